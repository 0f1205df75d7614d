"""Commands with wrong arguments: each ends with a line, never with a raw error.

``python -m torture.commands COUNT [SEED]`` makes so many, in this process, and every fiftieth as
a process of its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path

import numpy as np
from typer.main import get_command
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from torture import cases, limits

APART = 50  # every so many commands run as a process
WORDS = [
    "", "abc", "-1", "0", "1", "1.5", "nan", "inf", "1e400", "99999999999999999999", "[/red]", "..",
    "/", "/dev/null", "no/such/place", "run", "run/run.npz", "e.toml", "broken.toml", "é\udcff",
    "x" * 300, "1,2,3", "a,b", "1 2 3", "{}", "--", "-", "$(touch P)", "linear", "client 9", "1e12",
    "=HYPERLINK(1)", "\x1b[31m", "client 1's loss below 3", "minmax", "True", "0.1,0.2,0.3", "R99",
]  # fmt: skip
COMMANDS = {  # what is given where it is not made wrong
    "run": ["e.toml"], "plan": ["e.toml"], "audit": ["run"], "check": ["e.toml"],
    "forecast": ["e.toml"], "fair": ["e.toml"], "intervals": ["run"], "price": ["e.toml"],
    "contributions": ["e.toml"], "engines": [], "report": ["run"], "export": ["run"],
    "new": ["mine"], "reproduce": ["R99"], "demo": ["--seeds", "1"], "ui": ["--port", "abc"],
    "deploy": ["no-such-file.toml"],
}  # fmt: skip
SLOW = ("reproduce", "demo", "deploy", "ui")  # where they are right they take minutes


def options():
    """Of each command: its options with a value, and its flags."""
    found = {}
    for name, one in get_command(app).commands.items():
        named = [p for p in one.params if p.param_type_name == "option"]
        valued = [p.opts[0] for p in named if not p.is_flag]
        found[name] = [*valued, "--nope"], [*(p.opts[0] for p in named if p.is_flag), "--nope"]
    return found


def command(rng, known):
    """Words of a command, some of them wrong."""
    name = str(rng.choice(list(COMMANDS)))
    given, (valued, flags) = COMMANDS[name], known[name]
    fixed = name in SLOW
    words = [name, *given] if fixed or rng.random() < 0.6 else [name, str(rng.choice(WORDS))]
    for _ in range(int(rng.integers(0, 4))):
        kind = rng.random()
        if kind < 0.6:
            words += [str(rng.choice(valued)), str(rng.choice(WORDS))]
        elif kind < 0.8:
            words.append(str(rng.choice(flags)))
        elif not fixed:
            words.append(str(rng.choice(WORDS)))
    if fixed:  # what makes it wrong comes last, so that it counts
        words += [word for word in given if name != "reproduce"]
    return words


def raw_error(words):
    """What a command shows that it should not, or None."""
    try:
        with limits.watch(60):
            found = CliRunner().invoke(app, words)
    except limits.TooLong as trouble:
        return str(trouble)
    trouble = found.exception
    if trouble is not None and not isinstance(trouble, SystemExit):
        return "".join(traceback.format_exception(trouble))[-600:]
    return None if found.exit_code in (0, 1, 2) else f"exit code {found.exit_code}"


def raw_process(words):
    """The same of a process of its own: no traceback, no signal, no more memory than allowed."""
    code = "import fedtaper_command as c; c.main()"
    plain = [word for word in words if "\0" not in word]
    found = subprocess.run(
        [sys.executable, "-c", code, *[os.fsencode(w) for w in plain]],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    told = found.stderr.decode(errors="replace")
    bad = found.returncode not in (0, 1, 2) or "Traceback" in told or "Aborted" in told
    return f"exit code {found.returncode}: {told[-600:]}" if bad else None


def prepare(place):
    """A folder with a file, a broken file and a run to name."""
    os.chdir(place)
    e = cases.regression(20)
    Path("e.toml").write_text(ft.to_toml(e))
    Path("broken.toml").write_bytes(b"\xff\xfe[[[")
    ft.run(e, out="run", engine="reference", progress=False, updates=True)


def fuzz(count, seed=0, say=lambda line: None, apart=APART):
    """Lines about the raw errors among so many commands."""
    rng = np.random.default_rng(seed)
    raw, home, known = [], Path.cwd(), options()
    with tempfile.TemporaryDirectory(prefix="fedtaper-commands-") as place:
        try:
            prepare(place)
            for k in range(count):
                words = command(rng, known)
                alone = apart and k % apart == apart - 1
                trouble = raw_process(words) if alone else raw_error(words)
                if trouble is not None:
                    raw.append(f"{words!r:.300}: {trouble}")
                    say(raw[-1])
                for left in Path(place).iterdir():
                    if left.is_dir() and left.name not in ("run",):
                        shutil.rmtree(left, ignore_errors=True)
                if not Path("run/run.npz").is_file() or not Path("e.toml").is_file():
                    shutil.rmtree("run", ignore_errors=True)
                    prepare(place)
        finally:
            os.chdir(home)
    return raw


def main(count=1_000, seed=0):
    raw = fuzz(count, seed, partial(print, flush=True))
    print(f"{count:,} commands, {len(raw)} raw errors, {limits.peak() / 2**20:.0f} MiB")
    return bool(raw) or limits.peak() > limits.MOST


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
