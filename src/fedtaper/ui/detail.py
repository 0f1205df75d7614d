"""One run in full: curves, influence, settings, provenance, and what its sites did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError, one_line
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.show.charts import spread
from fedtaper.storage.config import read_toml
from fedtaper.storage.loading import EVENTS
from fedtaper.storage.store import ARRAYS, CHECKPOINT, CONFIG, PROVENANCE, load
from fedtaper.ui.plain import curve, number, numbers, picked
from fedtaper.ui.rows import metric_names

LAST_EVENTS = 50
TEXT = 200_000  # characters of a settings file that are shown
INFLUENCES = 80  # rounds at which the influence is drawn


def detail(folder: Path) -> dict[str, Any]:
    """What the page shows about a run; ``trouble`` says what could not be read."""
    out: dict[str, Any] = {"trouble": "", "round": [], "metrics": {}, "influence": None}
    try:
        out |= _finished(folder) if (folder / ARRAYS).is_file() else _going(folder)
    except Exception as trouble:  # a damaged folder may lead to any error
        out["trouble"] = one_line(trouble, 300)
    out["titles"] = {name: labels.title(name) for name in out["metrics"]}
    out["settings"] = _text(folder / CONFIG)
    out["provenance"] = _provenance(folder / PROVENANCE)
    out["events"] = _events(folder / EVENTS)
    return out


def full_run(folder: Path) -> Run:
    """The stored run, with everything checked; anything wrong becomes a one-line error."""
    try:
        return load(folder)
    except FedtaperError:
        raise
    except Exception as trouble:  # a damaged folder may lead to any error
        said = one_line(trouble)
        raise FedtaperError(f"{folder.name} is damaged: {said}") from None


def _finished(folder: Path) -> dict[str, Any]:
    run = full_run(folder)
    places = picked(len(run.round))
    found = labels.metrics(run)
    return {
        "round": run.round[places].tolist(),
        "metrics": {name: curve(values, places) for name, values in found.items()},
        "influence": influence(run.experiment, labels.clients(run), run.last_round),
        "seeds": len(run.seeds),
    }


def _going(folder: Path) -> dict[str, Any]:
    path = folder / CHECKPOINT
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as saved:
        done = saved["norms"].shape[1]
        rounds = saved["round"][:done]
        places = picked(done)
        names = labels.ordered(metric_names(saved.files))
        found = {n: curve(saved[f"metric_{n}"], places) for n in names}
        seeds = len(saved["seeds"])
    out: dict[str, Any] = {"round": rounds[places].tolist(), "metrics": found, "seeds": seeds}
    try:
        e = read_toml(folder / CONFIG, trusted=False)  # looking at a run calls nobody's code
        sites: Sequence[str] = e.names or tuple(f"client {i}" for i in range(e.num_clients))
        out["influence"] = influence(e, sites, int(rounds[-1]) if done else 1)
    except FedtaperError:
        out["influence"] = None  # not written yet, or code of the user's own
    return out


def influence(e: Experiment, names: Sequence[str], last: int) -> dict[str, Any]:
    """Effective influence up to the last recorded round, one curve per group of equal clients.

    ``drawn`` says which groups a chart shows, where there are more than can be told apart.
    """
    rounds = np.unique(np.geomspace(1, last, min(INFLUENCES, last)).round().astype(int))
    values = np.concatenate([e.effective_influence(k - 1, k) for k in rounds])
    groups = e.groups(last)
    return {
        "round": rounds.tolist(),
        "reference": names[e.reference],
        "drawn": spread([g.effective for g in groups]),
        "groups": [
            {
                "who": labels.who(names, g),
                "taper": labels.taper(g),
                "values": numbers(values[:, g.clients[0]]),
                "now": number(g.effective),
                "limit": number(g.limit),
            }
            for g in groups
        ],
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:TEXT]
    except OSError:
        return ""


def _provenance(path: Path) -> dict[str, str]:
    wanted = ("command", "fedtaper", "commit", "python", "machine", "time", "engine", "seconds")
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
        return {name: str(notes[name])[:500] for name in wanted if notes.get(name) is not None}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _events(path: Path) -> list[dict[str, Any]]:
    """The last events of a federation; incomplete lines are skipped."""
    out: list[dict[str, Any]] = []
    for line in _text(path).splitlines()[-LAST_EVENTS:]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            out.append(
                {key: str(entry.get(key, ""))[:300] for key in ("round", "site", "kind", "why")}
            )
    return out
