"""Damaged run folders: load, audit, report, resume and extend refuse it in one line, or are right.

``python -m torture.folders COUNT [SEED]`` damages so many: bytes flipped, files cut, emptied,
removed, grown, swapped with another run's, archives made anew with other arrays.
"""

import json
import os
import shutil
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import fedtaper as ft
from fedtaper.simulation import drive
from fedtaper.storage import checkpoints
from torture import cases, limits

WAYS = ("flip", "flip", "cut", "empty", "gone", "swap", "more", "other", "arrays", "json", "link")


def runs(base):
    """Folders of finished and stopped runs, each with its twin of another seed: name -> how."""
    made = {}
    for name, e, how in (
        ("finished", cases.regression(20), {"updates": True}),
        ("seeds", cases.regression(20, server=ft.Adam()), {"seeds": [0, 1]}),
        ("challenges", cases.regression(20, challenges=ft.Challenges(every=7)), {}),
        ("stopped", cases.regression(30, local=ft.Momentum(0.5)), {}),
    ):
        how = {"engine": "reference", "progress": False} | how
        for twin in ("", "-twin"):
            there = replace(e, seed=9) if twin else e
            if name == "stopped":
                stopped(there, base / (name + twin), how)
            else:
                ft.run(there, out=base / (name + twin), **how)
        right = ft.run(e, **how)
        longer = replace(e, rounds=e.rounds + 5)
        made[name] = e, how, right, longer, ft.run(longer, **how)
    return made


def stopped(e, out, how):
    """A run that stops after its third checkpoint."""
    before, real, calls = drive.CHECKPOINT_SECONDS, checkpoints.save_checkpoint, []

    def stop(*words):
        real(*words)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    drive.CHECKPOINT_SECONDS, checkpoints.save_checkpoint = -1.0, stop
    try:
        ft.run(e, out=out, **how)
    except KeyboardInterrupt:
        pass
    finally:
        drive.CHECKPOINT_SECONDS, checkpoints.save_checkpoint = before, real


def damage(folder, twin, rng):
    """Hurt one file of a folder; in words."""
    path = rng.choice(sorted(p for p in folder.iterdir()))
    content, way = path.read_bytes(), str(rng.choice(WAYS))
    at = int(rng.integers(max(1, len(content))))
    if way == "flip":
        mask = int(rng.integers(1, 256))
        path.write_bytes(content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :])
    elif way == "cut":
        path.write_bytes(content[:at])
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "gone":
        path.unlink()
    elif way == "more":
        path.write_bytes(content + bytes(rng.integers(0, 256, 20).astype(np.uint8)))
    elif way == "other":
        path.write_bytes(bytes(rng.integers(0, 256, 200).astype(np.uint8)))
    elif way == "swap":
        shutil.copy(twin / path.name, path)
    elif way == "link":
        path.unlink()
        path.symlink_to(rng.choice(["/dev/null", "/", "nowhere", "/etc/hostname"]))
    elif way == "arrays" and path.suffix == ".npz":
        _other_arrays(path, rng)
    elif way == "json" and path.suffix == ".json":
        _other_json(path, rng)
    else:
        path.write_bytes(content[::-1])
        way = "reversed"
    return f"{path.name} {way}"


def _other_arrays(path, rng):
    """One array of an archive in another shape, kind or value; what describes it stays."""
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    name = str(rng.choice([name for name in arrays if name != "manifest"]))
    array = arrays[name]
    changes = [array[..., None], array.astype("U8"), array.astype(complex), array * 0 + 1,
               np.array([]), array[:0] if array.ndim else array, array * np.nan]  # fmt: skip
    described = rng.random() >= 0.3
    if path.name.startswith("checkpoint") and not described:  # as those of old versions
        changes = [c for c in changes if c.shape != array.shape or c.dtype.kind != array.dtype.kind]
    arrays[name] = changes[int(rng.integers(len(changes)))]
    if rng.random() < 0.3:
        del arrays[name]
    if not described:
        arrays.pop("manifest", None)
    np.savez(path, **arrays)


def _other_json(path, rng):
    page = json.loads(path.read_text())
    key = str(rng.choice(sorted(page))) if isinstance(page, dict) else 0
    page[key] = rng.choice(np.array([None, -1, "x", [], {}, [1, "a"], 1e300], dtype=object))
    path.write_text(json.dumps(page))


def outcome(work):
    """("right", what came back), ("refused", the line) or ("raw", the error)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limits.watch():
                return "right", work()
        except ft.FedtaperError as trouble:
            return ("raw" if "\n" in str(trouble) else "refused"), trouble
        except (Exception, limits.TooLong) as trouble:
            return "raw", trouble


def same(a, b):
    """Whether two runs are the same to the bit."""
    names = ("round", "n", "t", "w", "w0", "update_norms", "updates", "model")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    pairs += [(a.metrics.get(name), b.metrics.get(name)) for name in {*a.metrics, *b.metrics}]
    if a.challenges is not None and b.challenges is not None:
        pairs += zip(vars(a.challenges).values(), vars(b.challenges).values(), strict=True)
    for x, y in pairs:
        if (x is None) != (y is None) or (x is not None and not np.array_equal(x, y, True)):
            return False
    return a.experiment == b.experiment and a.seeds == b.seeds and a.diverged == b.diverged


def fuzz(count, seed=0, say=lambda line: None):
    """Lines about raw errors and accepted damage among so many folders; how often each end came."""
    rng = np.random.default_rng(seed)
    bad, ends = [], {"right": 0, "refused": 0, "raw": 0}
    with tempfile.TemporaryDirectory(prefix="fedtaper-folders-") as base:
        base = Path(base)
        made = runs(base)
        names = list(made)
        for _ in range(count):
            name = names[int(rng.integers(len(names)))]
            e, how, right, longer, right_longer = made[name]
            hurt = base / "hurt"
            shutil.rmtree(hurt, ignore_errors=True)
            shutil.copytree(base / name, hurt)
            words = damage(hurt, base / f"{name}-twin", rng)
            shutil.rmtree(base / "hurt-before", ignore_errors=True)
            shutil.copytree(hurt, base / "hurt-before", symlinks=True)
            for verb, work in (
                ("load", partial(ft.load, hurt)),
                ("audit", lambda hurt=hurt: (ft.audit(ft.load(hurt)), ft.load(hurt))[1]),
                ("report", partial(ft.report, [hurt], base / "page.html")),
                ("resume", partial(ft.run, e, out=hurt, resume=True, **how)),
                ("extend", partial(ft.run, longer, out=hurt, resume=True, **how)),
            ):
                if verb == "extend":  # what it would find is as it was before the resume
                    shutil.rmtree(hurt, ignore_errors=True)
                    shutil.copytree(base / "hurt-before", hurt, symlinks=True)
                end, found = outcome(work)
                ends[end] += 1
                wanted = right_longer if verb == "extend" else right
                wrong = isinstance(found, ft.Run) and not same(found, wanted)
                if end == "raw" or wrong:
                    told = "accepted" if wrong else f"{type(found).__name__}: {found!s:.200}"
                    bad.append(f"{name}: {words}: {verb}: {told}")
                    say(bad[-1])
    return bad, ends


def main(count=2_000, seed=0):
    os.chdir(tempfile.mkdtemp())
    bad, ends = fuzz(count, seed, partial(print, flush=True))
    told = ", ".join(f"{number:,} {end}" for end, number in ends.items())
    print(f"{count:,} folders ({told}), {len(bad)} bad, {limits.peak() / 2**20:.0f} MiB")
    return bool(bad) or limits.peak() > limits.MOST


if __name__ == "__main__":
    cases.hasten()
    sys.exit(main(*map(int, sys.argv[1:])))
