"""Folder -> Run: everything that was stored is checked before it is used."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.checks import as_path
from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.experiment import Experiment
from fedtaper.problems.recorded import Recorded
from fedtaper.results import Divergence, Run
from fedtaper.rules.challenges import Answers
from fedtaper.rules.steering import Looks, as_asked, with_factors
from fedtaper.storage import durable, tensors
from fedtaper.storage.checkpoints import CHECKPOINT, PREVIOUS
from fedtaper.storage.config import read_toml
from fedtaper.storage.fingerprint import checked, differences, fingerprint, in_words

CONFIG, ARRAYS, METRICS, PROVENANCE = "config.toml", "run.npz", "metrics.csv", "provenance.json"
DATA, MODEL, STATE = "data.npz", "model.npz", "state.npz"
TENSORS = "model.safetensors"  # the trained model, for other programs
STEERING = "steering.csv"  # of a steered run: losses, shares and factors at every look
SITES = "sites.json"  # of a run on Flower: what became of each site
EVENTS = "events.jsonl"  # of a run on Flower: what went wrong, a line each
CLAIMS = "claims.json"  # of a folder of judged claims


def is_complete(out: str | Path) -> bool:
    """Whether the folder holds a finished run."""
    path = Path(out) / ARRAYS
    return path.is_file() and path.stat().st_size > 0


def load(folder: str | Path, problem: Any = None, experiment: Experiment | None = None) -> Run:
    """The run stored in a folder.

    Args:
        folder: a run folder.
        problem: the problem, if it is your own code, which no file can hold. Without it
            such a run can be reported and audited, but not trained further.
        experiment: the experiment itself, if it has rules or schedules that cannot be
            imported. It must be the one that was stored.
    """
    folder = as_path(folder)
    if not (folder / ARRAYS).is_file():
        left = any((folder / name).is_file() for name in (CHECKPOINT, PREVIOUS))
        hint = " (unfinished: continue it with resume)" if left else ""
        raise FedtaperError(f"{folder} holds no finished run{hint}")
    try:
        return _loaded(folder, problem, experiment)
    except FedtaperError:
        raise
    except Exception as trouble:  # whatever a damaged folder may lead to
        kind = type(trouble).__name__
        raise FedtaperError(f"{folder} is damaged: {kind}: {one_line(trouble)}") from None


def _loaded(folder: Path, problem: Any, experiment: Experiment | None) -> Run:
    arrays, about = durable.read_arrays(folder / ARRAYS)
    if about is not None:
        check_files(folder, arrays, about)
    notes = _json(folder / PROVENANCE)
    if about is None and "format" in notes:
        raise FedtaperError(
            f"{folder / ARRAYS} is damaged: the description of its arrays is missing"
        )
    e = experiment or read_toml(folder / CONFIG, problem or _recorded(folder), trusted=False)
    if about is not None and (problem is not None or experiment is not None):
        e = as_asked(e)
        stored = checked(about.get("fingerprint"), folder / ARRAYS)
        found = differences(stored, fingerprint(e), ignore=("start",))
        if found:
            raise FedtaperError(f"{folder} holds another experiment: {in_words(found)}")
    looks = _looks(arrays)
    if looks is not None:
        e = with_factors(e, [0, *looks.round.tolist()], list(looks.factor))
    made = Run(
        experiment=e,
        seeds=tuple(int(seed) for seed in notes["seeds"]),
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
        challenges=_answers(arrays),
        looks=looks,
        diverged=tuple(Divergence(**d) for d in notes["diverged"]),
        engine=str(notes["engine"]),
        way=str(notes.get("way", "")),
        way_because=str(notes.get("way_because", "")),
        seconds=float(notes["seconds"]),
        path=folder,
        provenance=notes,
        model=_stored_model(folder),
        start=str(notes.get("start", "")),
        stopped=str(notes.get("stopped", "")),
        stored=_tensors(folder, e, notes),
    )
    _check_shapes(made, folder)
    return made


def _answers(arrays: dict[str, Any]) -> Answers | None:
    """The answers to challenges, if there were any."""
    if "challenge_round" not in arrays:
        return None
    return Answers(*(arrays[f"challenge_{f.name}"] for f in fields(Answers)))


def _looks(arrays: dict[str, Any]) -> Looks | None:
    """What a controller saw and did, if there was one."""
    if "steer_round" not in arrays:
        return None
    return Looks(*(arrays[f"steer_{f.name}"] for f in fields(Looks)))


def stored_fingerprint(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """The fingerprint of a finished run; for an older version, from its config (without data)."""
    _, about = durable.read_arrays(folder / ARRAYS)
    if about is not None:
        return checked(about.get("fingerprint"), folder / ARRAYS)
    return fingerprint(read_toml(folder / CONFIG, experiment.problem, trusted=False), data=False)


def check_files(folder: Path, arrays: dict[str, Any], about: dict[str, Any]) -> None:
    """Compare the files beside the arrays with the checksums in the archive.

    The arrays were compared when they were read; a run has a checksum of each.
    """
    sums, files = about.get("checksums"), about.get("files")
    if not isinstance(sums, dict) or not isinstance(files, dict) or sums.keys() != arrays.keys():
        raise FedtaperError(f"{folder / ARRAYS} is damaged: its checksums cannot be read")
    for name, sum_ in files.items():
        path = folder / name
        if not path.is_file():
            raise FedtaperError(f"{folder} is damaged: {name} is missing")
        if durable.file_digest(path) != sum_:
            raise FedtaperError(
                f"{folder} is damaged: {name} is not the file that was stored with the run"
            )


def _check_shapes(run: Run, folder: Path) -> None:
    """Refuse arrays that do not fit the experiment: they belong to another run."""
    e, rounds = run.experiment, run.round
    lead = (len(run.seeds), len(rounds)) if run.many else (len(rounds),)
    wanted = {name: (values, lead) for name, values in run.metrics.items()}
    wanted |= {"n": (run.n, rounds.shape), "t": (run.t, rounds.shape)}
    wanted["update_norms"] = (run.update_norms, (*lead, e.num_clients))
    seeds = lead[:1] if run.many else ()
    for name, array, shape in (
        ("w", run.w, (*lead, -1)),
        ("w0", run.w0, (*seeds, -1)),
        ("updates", run.updates, (*lead, e.num_clients, -1)),
        ("model", run.model, (*seeds, -1)),
    ):
        if array is not None:
            wanted[name] = (array, (*shape[:-1], array.shape[-1] if array.ndim else -1))
    for name, (array, shape) in wanted.items():
        if array.shape != shape or array.dtype.kind not in "fiu":
            raise FedtaperError(
                f"{folder} is damaged: {name} has shape {array.shape}, and its run needs {shape}"
            )
    ordered = rounds.ndim == 1 and rounds.dtype.kind in "iu" and bool(np.all(np.diff(rounds) > 0))
    if not ordered or (rounds.size and not 1 <= rounds[0] <= rounds[-1] <= e.rounds):
        raise FedtaperError(f"{folder} is damaged: its rounds are not those of its experiment")
    if not run.many and len(run.seeds) != 1:
        raise FedtaperError(f"{folder} is damaged: {len(run.seeds)} seeds for one run")


def _json(path: Path) -> Any:
    try:
        return json.loads(durable.text_of(path))
    except FileNotFoundError:
        raise FedtaperError(f"{path.parent} is damaged: {path.name} is missing") from None
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be read: {one_line(trouble)}") from None
    except (ValueError, RecursionError) as trouble:
        raise FedtaperError(f"{path} is damaged: {one_line(trouble)}") from None


def _recorded(folder: Path) -> Recorded | None:
    """A deployed run's problem as its folder describes it: code and data are elsewhere."""
    if not (folder / SITES).is_file():
        return None
    rows = _json(folder / SITES)
    return Recorded(tuple(int(row["samples"]) for row in rows), int(rows[0]["parameters"]))


def _tensors(folder: Path, e: Experiment, notes: dict[str, Any]) -> Any:
    """What reads a network's tensors, where the problem is only recorded."""
    path = folder / TENSORS
    network = notes.get("kind") == "network" and e.problem.kind == "recorded"
    return partial(tensors.read, path) if network and path.is_file() else None


def _stored_model(folder: Path) -> Any:
    if not (folder / MODEL).is_file():
        return None
    return durable.read_arrays(folder / MODEL)[0]["model"]
