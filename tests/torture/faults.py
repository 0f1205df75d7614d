"""A disk that fails: each write, rename and fsync in turn, once or from then on.

``python -m torture.faults [SEED]`` goes through all of them for several kinds of work. A fault is
one line; what was reported as saved before it is there after it; and when the disk works again
the work goes on to the same bits. A torn write leaves half of a file behind, without an error,
and the process ends at once, as in a power cut.
"""

import builtins
import errno
import io
import os
import pathlib
import shutil
import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import fedtaper as ft
from fedtaper.storage import checkpoints
from torture import cases, limits

FAULTS = {
    "full disk": OSError(errno.ENOSPC, "No space left on device"),
    "I/O error": OSError(errno.EIO, "Input/output error"),
}
CALLS = ("write", "fsync", "replace", "open", "unlink")


class PowerCutError(BaseException):
    """The process ends here."""


class _File(io.FileIO):
    """A file whose writes may fail."""

    def __init__(self, disk, *words):
        super().__init__(*words)
        self.disk = disk

    def write(self, data):
        if self.disk.now("write"):
            data = bytes(data)
            super().write(data[: len(data) // 2])  # a torn write: half of it reaches the disk
            raise self.disk.trouble
        return super().write(data)


class Disk:
    """Counts calls below a folder; the ``at``-th fails, and with ``stays`` all after it too."""

    def __init__(self, folder, call, at, trouble, stays):
        self.folder, self.call, self.at = str(folder), call, at
        self.trouble, self.stays, self.count = trouble, stays, 0

    def now(self, call):
        """Whether this call fails."""
        if call != self.call:
            return False
        self.count += 1
        return self.count == self.at or (self.stays and self.count > self.at)

    def fails(self, call, real, which=0):
        """A function that fails when it is its turn, for paths in the folder and for numbers."""

        def tried(*words, **how):
            place = words[which] if words else None
            inside = isinstance(place, int) or self.folder in os.fspath(place)
            if inside and self.now(call):
                raise self.trouble
            return real(*words, **how)

        return tried


@contextmanager
def failing(disk):
    """Let the disk fail within: what Python's own files and ``os`` do there."""
    real = {name: getattr(os, name) for name in ("fsync", "replace", "open", "unlink")}
    first_open, path_open = builtins.open, pathlib.Path.open

    def opened(self, mode="r", *words, **how):
        if disk.folder in str(self) and disk.call == "write" and set(mode) & set("wxa"):
            raw = _File(disk, self, mode.replace("b", ""))
            if "b" in mode:
                return io.BufferedWriter(raw)
            return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
        return path_open(self, mode, *words, **how)

    for name, call in real.items():
        setattr(os, name, disk.fails(name, call))
    pathlib.Path.open = opened
    try:
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)
        builtins.open, pathlib.Path.open = first_open, path_open


def extended(out):
    """A finished run to which rounds are added."""
    how = {"engine": "reference", "progress": False}
    ft.run(cases.regression(20), out=Path(out) / "run", resume=True, **how)


def longer(out):
    how = {"engine": "reference", "progress": False}
    ft.run(cases.regression(35), out=Path(out) / "run", resume=True, **how)


WORK = {  # what there is before the disk fails, and what is done then
    "run": (lambda out: None, extended),
    "extend": (extended, longer),
    "run_many": (lambda out: None, cases.many),
    "reproduce": (lambda out: None, cases.study),
}


def saved_rounds(folder):
    """The newest round that a folder's checkpoint or run holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = checkpoints.load_checkpoint(folder)
    made = 0 if last is None else int(last["state_round"])
    if (folder / "run.npz").is_file():
        made = max(made, int(ft.load(folder).round[-1]))
    return made


def attempt(work, base, call, at, trouble, stays):
    """Do the work while the disk fails: lines about what is wrong, and whether it failed at all."""
    go = WORK[work][1]
    out = base / "hurt"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(base / "before", out)
    told, real = [0], checkpoints.save_checkpoint

    def save(*words):
        real(*words)
        told[0] = int(words[1]["state_round"])

    disk = Disk(out, call, at, trouble, stays)
    checkpoints.save_checkpoint = save
    wrong = []
    try:
        with failing(disk):
            go(out)
    except ft.FedtaperError as said:
        if "\n" in str(said):
            wrong.append(f"more than a line: {said}")
    except PowerCutError:
        pass
    except OSError as said:
        if said.errno not in (errno.ENOSPC, errno.EIO):
            raise
        wrong.append(f"a raw {type(said).__name__}: {said}")
    finally:
        checkpoints.save_checkpoint = real
    if work in ("run", "extend") and (out / "run").is_dir():
        try:
            if saved_rounds(out / "run") < told[0]:
                wrong.append(f"round {told[0]} was reported as saved, and is not there")
        except ft.FedtaperError as said:
            wrong.append(f"unreadable: {said}")
    try:
        go(out)
    except ft.FedtaperError as said:
        wrong.append(f"does not go on: {said}")
    return wrong, disk.count >= at


def fuzz(works=tuple(WORK), calls=CALLS, step=1, say=lambda line: None):
    """Every call of every kind of work: how many faults, and lines about what went wrong."""
    bad, count = [], 0
    kinds = [(name, trouble, stays) for name, trouble in FAULTS.items() for stays in (False, True)]
    kinds.append(("power cut", PowerCutError(), True))
    for work in works:
        with tempfile.TemporaryDirectory(prefix="fedtaper-faults-") as base:
            base = Path(base)
            (base / "before").mkdir()
            WORK[work][0](base / "before")
            shutil.copytree(base / "before", base / "right")
            WORK[work][1](base / "right")
            right = cases.bits(base / "right")
            for call in calls:
                made = 0
                for k in range(0, 10_000, step):
                    name, trouble, stays = kinds[k % len(kinds)]
                    wrong, failed = attempt(work, base, call, k + 1, trouble, stays)
                    if not failed:
                        break
                    made += 1
                    if not wrong and cases.bits(base / "hurt") != right:
                        wrong = ["other bits"]
                    bad += [f"{work}: {call} {k + 1}, {name}: {line}" for line in wrong]
                count += made
                say(f"{work}: {made} faults at {call}, {len(bad)} wrong so far")
    return count, bad


def main(step=1):
    warnings.simplefilter("ignore")
    cases.hasten()
    count, bad = fuzz(step=step, say=lambda line: print(line, flush=True))
    print("\n".join(bad))
    print(f"{count:,} faults, {len(bad)} wrong, {limits.peak() / 2**20:.0f} MiB")
    return bool(bad) or limits.peak() > limits.MOST


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
