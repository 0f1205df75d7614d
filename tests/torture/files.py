"""Fuzzed TOML files: each is read or refused in one line.

``python -m torture.files COUNT [SEED]`` makes so many: values replaced, keys and tables moved,
dropped, doubled and misspelt, bytes changed.
"""

import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

import fedtaper as ft
from torture import cases, limits

VALUES = [
    "0", "-1", "1", "1.5", "nan", "inf", "-inf", "9223372036854775807", "9223372036854775808",
    "1000000000000", "1e308", "1e-320", "1e400", '""', '"abc"', '"linear"', '"sgd"', '"../x"',
    '"\\u0000"', '"os:system"', '"numpy:array"', '"a:b"', "true", "false", "[]", "[1]", "[1, 2, 3]",
    '["a"]', "[[1, 2], [3]]", "[nan, nan, nan]", "{}", "{ kind = 3 }", '{ kind = "power" }',
    '{ kind = "sgd", x = 1 }', "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "0x7fffffff",
    "[[[[[[]]]]]]", '{ kind = "random_delay", mean = 1e300 }', '{ kind = "exactly", k = 99 }',
    '"x".y', "=", "[", '"""', "\x00", "9" * 400, "[" * 200 + "]" * 200, '{ kind = "duration" }',
]  # fmt: skip
WORDS = [
    "rounds", "kind", "clients", "c", "delta", "a", "mu", "seed", "samples", "num_clients", "dim",
    "experiment", "problem", "schedules", "local", "server", "behaviours", "challenges", "log",
    "federation", "delays", "participation", "data", "rebuild", "\u00e9", '"a b"', "preset",
]  # fmt: skip


def texts():
    """Files that are right, of many kinds."""
    regression, own = cases.regression, cases.stream
    made = [
        regression(30), regression(30, server=ft.Adam(), local=ft.Proximal(0.1)),
        regression(30, local=ft.Scaffold(), server=ft.Controlled()),
        regression(30, behaviours={1: ft.Copies(), 2: ft.After(9, ft.Idle())}),
        regression(30, challenges=ft.Challenges(every=7), names=("a", "b", "c")),
        regression(30, delays=(0, 3, ft.HeavyDelay(1.5, 40)), staleness=ft.Polynomial(0.5)),
        regression(30, asynchronous=ft.Asynchronous(buffer=2, durations=(1.0, 2.0, 3.0))),
        regression(30, participation=ft.Exactly(2)), regression(30, participation=ft.Cyclic(3)),
        regression(30, participation=ft.OnOff(0.5)), regression(30, server=ft.Trimmed(1)),
        regression(30, [ft.Cosine(0.1, 50, 0.01), ft.WarmUp(ft.Power(0.1, 0.8), 5),
                        ft.Piecewise(((1, 0.1), (9, 0.01)))]),
        own(30), cases.digits(),
    ]  # fmt: skip
    log = "[log]\ntensorboard = 'x'\n[federation]\nsites = ['a', 'b', 'c']\n"
    return [*map(ft.to_toml, made), ft.to_toml(made[0]) + log]


def spoil(text, rng):
    """The text with one to three things wrong."""
    for _ in range(int(rng.integers(1, 4))):
        lines = text.split("\n")
        at = int(rng.integers(len(lines)))
        kind = int(rng.integers(8))
        if kind <= 2 and "=" in lines[at]:
            lines[at] = f"{lines[at].split('=')[0]}= {rng.choice(VALUES)}"
        elif kind == 3:
            lines.insert(at, f"{rng.choice(WORDS)} = {rng.choice(VALUES)}")
        elif kind == 4:
            del lines[at]
        elif kind == 5:
            lines.insert(at, lines[int(rng.integers(len(lines)))])
        elif kind == 6:
            head = f"[{rng.choice(WORDS)}]", f"[[{rng.choice(WORDS)}]]", f"[behaviours.{at}]"
            lines.insert(at, str(rng.choice(head)))
        elif lines[at]:
            place = int(rng.integers(len(lines[at])))
            new = chr(
                int(rng.choice([0, 9, 32, 34, 39, 45, 46, 48, 57, 61, 91, 93, 101, 123, 0xE9]))
            )
            lines[at] = lines[at][:place] + new + lines[at][place + 1 :]
        text = "\n".join(lines)
    return text


def raw_error(text, folder):
    """What reading a file raises that it should not, or None."""
    path = folder / "e.toml"
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limits.watch():
                made = ft.read_toml(path)
                ft.from_toml(ft.to_toml(made, stored=True))  # and what is read is written again
        except ft.FedtaperError as trouble:
            return trouble if "\n" in str(trouble) else None
        except (Exception, limits.TooLong) as trouble:
            return trouble
    return None


def fuzz(count, seed=0, say=lambda line: None):
    """Lines about the raw errors among so many files."""
    rng = np.random.default_rng(seed)
    known, raw = texts(), []
    with tempfile.TemporaryDirectory() as place:
        for _ in range(count):
            text = spoil(known[rng.integers(len(known))], rng)
            trouble = raw_error(text, Path(place))
            if trouble is not None:
                raw.append(f"{type(trouble).__name__}: {trouble!s:.200}")
                say(f"{raw[-1]}\n{text}\n----")
    return raw


def main(count=10_000, seed=0):
    raw = fuzz(count, seed, partial(print, flush=True))
    print(f"{count:,} files, {len(raw)} raw errors, {limits.peak() / 2**20:.0f} MiB")
    return bool(raw) or limits.peak() > limits.MOST


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
