"""Run <-> folder: config, metrics, trajectory, provenance. Plain files, no pickle.

A run folder holds ``config.toml`` (every setting resolved), ``run.npz`` (the arrays),
``metrics.csv`` (one row per round and seed), ``provenance.json`` (version, command, settings,
machine, time), ``state.npz`` (the state at the end, so that more rounds can be added),
``steering.csv`` (what a controller saw and did, if there was one),
``model.npz`` (the last model, if it is too large for the trajectory to be kept),
``model.safetensors`` (the trained model by the names of its tensors, for other programs), and
``checkpoint.npz`` with the one before it while the run is unfinished.

``run.npz`` is written last. It describes itself and the files beside it: format version, shapes,
checksums, and the experiment's fingerprint. So a folder is either complete or unfinished, and
:func:`load` notices every later change. Folders of older versions that stored no checksums still
load.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.checks import as_path
from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.problems.linear import LinearRegression
from fedtaper.results import Run
from fedtaper.rules.steering import as_asked
from fedtaper.storage import durable, tensors
from fedtaper.storage.checkpoints import (
    CHECKPOINT,
    PREVIOUS,
    Checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from fedtaper.storage.fingerprint import fingerprint
from fedtaper.storage.loading import (
    ARRAYS,
    CONFIG,
    DATA,
    METRICS,
    MODEL,
    PROVENANCE,
    SITES,
    STATE,
    STEERING,
    TENSORS,
    is_complete,
    load,
)
from fedtaper.storage.provenance import environment, provenance
from fedtaper.storage.resuming import standing
from fedtaper.storage.written import to_toml

__all__ = [
    "ARRAYS",
    "CHECKPOINT",
    "CONFIG",
    "DATA",
    "METRICS",
    "MODEL",
    "PROVENANCE",
    "SITES",
    "STATE",
    "STEERING",
    "TENSORS",
    "Checkpoints",
    "clear",
    "drop",
    "environment",
    "finished",
    "is_complete",
    "load",
    "load_checkpoint",
    "only_writer",
    "opened",
    "prepare",
    "provenance",
    "save",
    "save_checkpoint",
    "standing",
    "write_text",
]
RUN_FILES = (
    CONFIG, ARRAYS, METRICS, PROVENANCE, STATE, STEERING, DATA, MODEL, TENSORS, SITES, CHECKPOINT,
    PREVIOUS,
)  # fmt: skip
CSV_ROWS = 100_000  # of metrics.csv; more are thinned (run.npz has all)


def prepare(out: str | Path, resume: bool = False) -> Path:
    """Make the folder, or say why not, before any work is done."""
    out = as_path(out)
    if out.exists() and not out.is_dir():
        raise FedtaperError(f"{out} is a file, but a run is stored in a folder: name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        passing = (durable.LOCK, durable.PART)  # of another writer that is about to be refused
        if not resume and any(not p.name.endswith(passing) for p in out.iterdir()):
            raise FedtaperError(
                f"{out} exists: name another folder, remove it, or resume (--resume, resume=True)"
            )
        durable.probe(out)
    except OSError as trouble:
        raise FedtaperError(f"{out} is not writable: {one_line(trouble)}") from None
    return out


@contextmanager
def opened(out: str | Path, resume: bool = False) -> Iterator[Path]:
    """A run's folder, with this process as its only writer; empty unless the run is resumed."""
    folder = prepare(out, resume=True)
    with durable.lock(folder):
        yield prepare(folder, resume)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a (prepared) folder."""
    with durable.lock(folder):
        yield


def clear(out: str | Path) -> None:
    """Remove a stored run from a folder: the files that make it up, and nothing else."""
    for name in RUN_FILES:
        durable.remove(Path(out) / name)


def save(
    run: Run,
    out: str | Path,
    state: Mapping[str, Any] | None = None,
    data: bool = False,
    more: Mapping[str, str] | None = None,
    known: Mapping[str, Any] | None = None,
) -> Run:
    """Write a run into a (prepared) folder, and remove its checkpoints.

    Args:
        run: what to store.
        out: the folder.
        state: the state at the end, as arrays, for more rounds later.
        data: whether the user's own data (``LinearRegression.from_arrays``) is stored too.
        more: further text files by name, written before the run counts as complete.
        known: the experiment's fingerprint, if it was already taken.
    """
    out = Path(out)
    durable.remove(out / ARRAYS)  # of a shorter run that was gone on with
    notes = provenance(run)
    kept = {PROVENANCE: json.dumps(notes, indent=2) + "\n", METRICS: metrics_csv(run)}
    if run.looks is not None:
        kept[STEERING] = run.looks.csv()
    asked = as_asked(run.experiment)
    files = {name: _text(out / name, text) for name, text in {**kept, **(more or {})}.items()}
    own = _own_data(run) if data else None
    if own is not None:
        files[DATA] = _arrays(out / DATA, own)
    config = to_toml(asked, DATA if DATA in files else None, stored=True)
    files[CONFIG] = _text(out / CONFIG, config)
    if run.model is not None:
        files[MODEL] = _arrays(out / MODEL, {"model": run.model.astype(np.float32)})
    named = _model(run)
    if named is not None:
        durable.write(out / TENSORS, tensors.packed(named))
        files[TENSORS] = durable.file_digest(out / TENSORS)
    if state is not None:
        files[STATE] = _arrays(out / STATE, state)
    about = {"fingerprint": known or fingerprint(asked), "files": files}
    durable.write_arrays(out / ARRAYS, run_arrays(run), about)
    finished(out)
    return replace(run, path=out, provenance=notes)


def finished(out: str | Path) -> None:
    """Remove the checkpoints of a complete run; if that fails, they do no harm."""
    for name in (CHECKPOINT, PREVIOUS):
        with suppress(FedtaperError):
            durable.remove(Path(out) / name)


def _model(run: Run) -> dict[str, Any] | None:
    """The trained model by the names of its tensors; None for many seeds, or without a model."""
    if run.many or run.experiment.problem.kind == "recorded" or not len(run.round):
        return None
    return {
        name: t if isinstance(t, np.ndarray) else t.float().numpy() if t.is_floating_point()
        else t.numpy()
        for name, t in run.state_dict().items()
    }  # fmt: skip


def run_arrays(run: Run) -> dict[str, Any]:
    """The arrays of a run, by the names they have in the file."""
    arrays: dict[str, Any] = {f"metric_{k}": v for k, v in run.metrics.items()}
    arrays |= {"round": run.round, "n": run.n, "t": run.t, "update_norms": run.update_norms}
    kept = {"w": run.w, "w0": run.w0, "updates": run.updates}
    if run.challenges is not None:
        arrays |= {f"challenge_{name}": array for name, array in vars(run.challenges).items()}
    if run.looks is not None:
        arrays |= {f"steer_{name}": array for name, array in vars(run.looks).items()}
    return arrays | {name: array for name, array in kept.items() if array is not None}


def drop(out: str | Path, *names: str) -> None:
    """Remove files of a stored run that are no longer needed, such as its model."""
    out = Path(out)
    arrays, about = durable.read_arrays(out / ARRAYS)
    if about is not None:
        left = {name: sum_ for name, sum_ in about["files"].items() if name not in names}
        kept = {"fingerprint": about["fingerprint"], "files": left}
        durable.write_arrays(out / ARRAYS, arrays, kept)
    for name in names:
        durable.remove(out / name)


def _own_data(run: Run) -> dict[str, Any] | None:
    problem = run.experiment.problem
    if not isinstance(problem, LinearRegression) or problem.arrays is None:
        return None
    pairs = zip(problem.x, problem.y, strict=True)
    return {f"{n}{i}": a for i, xy in enumerate(pairs) for n, a in zip("xy", xy, strict=True)}


def metrics_csv(run: Run) -> str:
    """One row per recorded round; for several seeds one per seed and round, thinned if many."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*(["seed"] if run.many else []), "round", "n", "t", *run.metrics])
    if not run.many:
        columns = [run.round, run.n, run.t, *run.metrics.values()]
        rows.writerows(zip(*(column.tolist() for column in columns), strict=True))
        return text.getvalue()
    step = -(-len(run.round) * len(run.seeds) // CSV_ROWS)
    pick = np.arange(len(run.round) - 1, -1, -max(step, 1))[::-1]
    for s, seed in enumerate(run.seeds):
        columns = [run.round, run.n, run.t, *(values[s] for values in run.metrics.values())]
        listed = (column[pick].tolist() for column in columns)
        rows.writerows((seed, *row) for row in zip(*listed, strict=True))
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    try:
        content = text.encode("utf-8", "surrogateescape")  # a file's name may be any bytes
    except UnicodeEncodeError:  # half a character, from a damaged file
        content = text.encode("utf-8", "replace")
    durable.write(path, content)


def _text(path: Path, text: str) -> str:
    write_text(path, text)
    return durable.digest(path.read_bytes())


def _arrays(path: Path, arrays: Mapping[str, Any]) -> str:
    durable.write_arrays(path, arrays, {})
    return durable.file_digest(path)
