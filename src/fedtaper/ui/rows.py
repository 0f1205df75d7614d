"""One run folder as one row of the page, read from as few files as possible."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.errors import one_line
from fedtaper.show import labels
from fedtaper.storage.store import ARRAYS, CHECKPOINT, CONFIG, PROVENANCE
from fedtaper.ui.plain import number

SHOWN = ("test_accuracy", "error", "test_loss", "train_loss", "change")  # first that exists


@dataclass(frozen=True)
class Row:
    """What the list shows about a run.

    ``read`` is False while only its name is known; ``live`` if a process is writing it; ``own`` if
    its model and data are code that its settings do not name, so that the page cannot resume it.
    """

    id: str
    state: str
    when: float
    live: bool = False
    read: bool = False
    round: int | None = None
    rounds: int | None = None
    seeds: int | None = None
    clients: int | None = None
    problem: str = ""
    own: bool = False
    metric: str = ""
    title: str = ""  # of the metric, as in the charts
    value: float | None = None
    trouble: str = ""
    ends: dict[str, float | None] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def read_row(name: str, folder: Path, when: float) -> Row:
    """A run's row; even a damaged folder has one."""
    try:
        if (folder / ARRAYS).is_file():
            return _finished(name, folder, when)
        if (folder / CHECKPOINT).is_file():
            return _unfinished(name, folder, when)
        about = _settings(folder)
        return Row(name, "unfinished", when, read=True, round=0, **about)
    except Exception as trouble:  # a damaged folder may lead to any error
        return Row(name, "damaged", when, read=True, trouble=one_line(trouble))


def _finished(name: str, folder: Path, when: float) -> Row:
    notes = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    with np.load(folder / ARRAYS, allow_pickle=False) as found:
        rounds = found["round"]
        ends = _ends({n: found[f"metric_{n}"] for n in metric_names(found.files)})
    return Row(
        name,
        "diverged" if notes["diverged"] else "finished",
        when,
        read=True,
        round=int(rounds[-1]) if len(rounds) else 0,
        seeds=len(notes["seeds"]),
        ends=ends,
        trouble=_divergence(notes["diverged"], len(notes["seeds"])),
        **_settings(folder),
        **_main(ends),
    )


def _unfinished(name: str, folder: Path, when: float) -> Row:
    with np.load(folder / CHECKPOINT, allow_pickle=False) as found:
        planned, seeds = found["round"], found["seeds"]
        done = int(found["state_round"])
        clients = int(found["norms"].shape[-1])
        ends = _ends({n: found[f"metric_{n}"] for n in metric_names(found.files)})
    about = {"rounds": int(planned[-1]), "clients": clients} | _settings(folder)
    return Row(
        name,
        "unfinished",
        when,
        read=True,
        round=done,
        seeds=len(seeds),
        ends=ends,
        **about,
        **_main(ends),
    )


def metric_names(files: list[str]) -> list[str]:
    """The metrics among an archive's arrays."""
    names = [f.removeprefix("metric_") for f in files if f.startswith("metric_")]
    return [name for name in names if name not in labels.HIDDEN]


def _ends(metrics: dict[str, Any]) -> dict[str, float | None]:
    """Each metric's last value: the median of those seeds that have one."""
    out: dict[str, float | None] = {}
    for name, values in metrics.items():
        last = np.atleast_1d(values[..., -1]) if values.shape[-1] else np.zeros(0)
        last = last[np.isfinite(last)]
        out[name] = number(np.median(last)) if last.size else None
    return out


def _main(ends: dict[str, float | None]) -> dict[str, Any]:
    own = [n for n in ends if n not in labels.METRICS]  # the user's own say most
    name = next((n for n in (*own, *SHOWN, *ends) if n in ends), "")
    title = labels.title(name) if name else ""
    return {"metric": name, "title": title, "value": ends.get(name)}


def _settings(folder: Path) -> dict[str, Any]:
    """Rounds, clients and the kind of problem, if the settings are there."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    schedules = tree["schedules"]
    schedules = schedules if isinstance(schedules, list) else [schedules]
    kind = str(tree["problem"].get("kind", "linear"))
    return {
        "own": kind in ("recorded", "custom") and "made_by" not in tree["problem"],
        "rounds": int(tree["experiment"]["rounds"]),
        "clients": sum(int(s.get("clients", 1)) for s in schedules),
        "problem": str(tree["problem"].get("data_set") or kind),
    }


def _divergence(found: list[dict[str, Any]], seeds: int) -> str:
    if not found:
        return ""
    first = min(found, key=lambda d: d["round"])
    who = first.get("name") or f"client {first['client']}" if "client" in first else "a client"
    where = f"in round {first['round']} at {who}: {first['reason']}"
    if seeds == 1:
        return f"Diverged {where}"
    count = len(found)
    return f"{count} of {seeds} seeds diverged{', the first' * (count > 1)} {where}"
