"""Run <-> folder: config, metrics, trajectory, provenance. Plain files, no pickle.

A run folder holds ``config.toml`` (every setting resolved), ``run.npz`` (the arrays),
``metrics.csv`` (one row a round, for one seed), ``provenance.json`` (version, command,
settings, machine, time), ``model.npz`` (the last model, where it is too large for the
trajectory to be kept), and ``checkpoint.npz`` while it is unfinished. Files are written
beside their place and then moved there, so a kill or a full disk never leaves half a file.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import platform
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedtaper
from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Divergence, Run
from fedtaper.problems.recorded import Recorded
from fedtaper.storage.config import read_toml, to_toml

CONFIG, ARRAYS, METRICS, PROVENANCE = "config.toml", "run.npz", "metrics.csv", "provenance.json"
CHECKPOINT, DATA, MODEL = "checkpoint.npz", "data.npz", "model.npz"
SITES = "sites.json"  # of a run on Flower: what became of each site


def prepare(out: str | Path, resume: bool = False) -> Path:
    """Make the folder, or say why not, before any work is done."""
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise FedtaperError(f"{out} is a file; a run is stored in a folder")
    if out.is_dir() and any(out.iterdir()) and not resume:
        raise FedtaperError(
            f"{out} exists: name another folder, remove it, or resume (--resume, resume=True)"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as trouble:
        raise FedtaperError(f"{out} is not writable: {trouble.strerror}") from None
    return out


def clear(out: str | Path) -> None:
    """Remove a stored run from a folder: the files that make it up, and nothing else."""
    for name in (CONFIG, ARRAYS, METRICS, PROVENANCE, CHECKPOINT, DATA):
        (Path(out) / name).unlink(missing_ok=True)


def is_complete(out: str | Path) -> bool:
    """Whether a finished run lies there."""
    return (Path(out) / ARRAYS).is_file()


def save(run: Run, out: str | Path) -> Run:
    """Write a run into a (prepared) folder; its checkpoint, if any, goes."""
    out = Path(out)
    problem = run.experiment.problem
    data = None
    if getattr(problem, "arrays", None) is not None:
        data = DATA
        pairs = zip(problem.x, problem.y, strict=True)
        arrays = {f"{n}{i}": a for i, xy in enumerate(pairs) for n, a in zip("xy", xy, strict=True)}
        _write(out / DATA, _npz(arrays))
    notes = provenance(run)
    write_text(out / CONFIG, to_toml(run.experiment, data))
    write_text(out / PROVENANCE, json.dumps(notes, indent=2) + "\n")
    if not run.many:
        write_text(out / METRICS, metrics_csv(run))
    arrays = {f"metric_{k}": v for k, v in run.metrics.items()}
    arrays |= {"round": run.round, "n": run.n, "t": run.t, "update_norms": run.update_norms}
    kept = {"w": run.w, "w0": run.w0, "updates": run.updates}
    arrays |= {name: array for name, array in kept.items() if array is not None}
    if run.model is not None:
        _write(out / MODEL, _npz({"model": run.model.astype(np.float32)}))
    _write(out / ARRAYS, _npz(arrays))
    (out / CHECKPOINT).unlink(missing_ok=True)
    return replace(run, path=out, provenance=notes)


def load(folder: str | Path, problem: Any = None) -> Run:
    """The run stored in a folder; ``problem`` where it is code of the user's own."""
    folder = Path(folder)
    if not is_complete(folder):
        hint = " (unfinished: go on with resume)" if (folder / CHECKPOINT).is_file() else ""
        raise FedtaperError(f"{folder} holds no finished run{hint}")
    try:
        notes = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        with np.load(folder / ARRAYS, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        diverged = tuple(Divergence(**d) for d in notes["diverged"])
        return Run(
            experiment=read_toml(folder / CONFIG, problem or _recorded(folder)),
            seeds=tuple(notes["seeds"]),
            many=bool(notes["many"]),
            round=arrays["round"],
            n=arrays["n"],
            t=arrays["t"],
            w=arrays.get("w"),
            w0=arrays.get("w0"),
            metrics={
                k.removeprefix("metric_"): v for k, v in arrays.items() if k.startswith("metric_")
            },
            update_norms=arrays["update_norms"],
            updates=arrays.get("updates"),
            diverged=diverged,
            engine=notes["engine"],
            seconds=notes["seconds"],
            path=folder,
            provenance=notes,
            model=_stored_model(folder),
        )
    except FedtaperError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as trouble:
        raise FedtaperError(f"{folder} is damaged: {trouble}") from None


def _recorded(folder: Path) -> Recorded | None:
    """What a deployed run's folder says of a problem whose code and data are elsewhere."""
    if not (folder / SITES).is_file():
        return None
    rows = json.loads((folder / SITES).read_text(encoding="utf-8"))
    return Recorded(tuple(row["samples"] for row in rows), int(rows[0]["parameters"]))


def _stored_model(folder: Path) -> Any:
    if not (folder / MODEL).is_file():
        return None
    with np.load(folder / MODEL, allow_pickle=False) as found:
        return found["model"]


def provenance(run: Run) -> dict[str, Any]:
    """What is needed to say where a result came from."""
    return environment() | {
        "engine": run.engine,
        "seeds": list(run.seeds),
        "many": run.many,
        "seconds": round(run.seconds, 4),
        "diverged": [asdict(d) for d in run.diverged],
    }


def environment() -> dict[str, Any]:
    """Version, command, commit, machine and time."""
    return {
        "fedtaper": fedtaper.__version__,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of this package's own source tree, if it is run from one."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def metrics_csv(run: Run) -> str:
    """One row a recorded round."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["round", "n", "t", *run.metrics])
    columns = [run.round, run.n, run.t, *run.metrics.values()]
    rows.writerows(zip(*(column.tolist() for column in columns), strict=True))
    return text.getvalue()


def save_checkpoint(out: str | Path, values: dict[str, Any]) -> None:
    """Where an unfinished run stands."""
    path = Path(out) / CHECKPOINT
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:  # straight to disk: models may be large
            np.savez(file, **values)
        beside.replace(path)
    except OSError as trouble:
        beside.unlink(missing_ok=True)
        raise FedtaperError(f"{path} cannot be written: {trouble.strerror}") from None


class Checkpoints:
    """Checkpoints, behind the work if wanted: one at a time, the last whole when this is left."""

    def __init__(self, out: str | Path | None) -> None:
        self.out = out
        self.writer: threading.Thread | None = None
        self.trouble: BaseException | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: Any, *trouble: object) -> None:
        self._wait(quiet=kind is not None)

    def save(self, values: dict[str, Any], behind: bool = False) -> None:
        """Write; ``behind`` only begins to, and nobody may change the arrays from then on."""
        self._wait()
        if self.out is not None:
            self.writer = threading.Thread(target=self._write, args=(self.out, values))
            self.writer.start()
        if not behind:
            self._wait()

    def _write(self, out: str | Path, values: dict[str, Any]) -> None:
        try:
            save_checkpoint(out, values)
        except BaseException as trouble:  # told where the work goes on
            self.trouble = trouble

    def _wait(self, quiet: bool = False) -> None:
        if self.writer is not None:
            self.writer.join()
            self.writer = None
        trouble, self.trouble = self.trouble, None
        if trouble is not None and not quiet:
            raise trouble


def load_checkpoint(out: str | Path) -> dict[str, Any] | None:
    """What :func:`save_checkpoint` wrote, or None."""
    path = Path(out) / CHECKPOINT
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError) as trouble:
        raise FedtaperError(f"{path} is damaged: {trouble}") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    _write(path, text.encode())


def _npz(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as trouble:
        beside.unlink(missing_ok=True)
        raise FedtaperError(f"{path} cannot be written: {trouble.strerror}") from None
