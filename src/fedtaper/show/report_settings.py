"""The settings of runs as short texts, and which runs are of one problem."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.results import Run
from fedtaper.show import labels
from fedtaper.storage.config import to_toml

LONGEST = 48  # characters of a setting
_OWN = "own model and data"


def settings(run: Run) -> dict[str, str]:
    """A run's settings, flat, as short texts."""
    e = run.experiment
    try:
        tree = tomllib.loads(to_toml(e))
    except FedtaperError:  # rules or data of the user's own: what can be said without a file
        tree = {"experiment": {"rounds": e.rounds, "batch_size": e.batch_size, "seed": e.seed}}
    tree.pop("schedules", None)
    out: dict[str, str] = {}
    for name, part in tree.items():
        _flatten("" if name == "experiment" else name, part, out)
    if out.get("problem.kind") == "recorded":
        out["problem.kind"] = _OWN
    names = labels.clients(run)
    groups = e.groups()
    out["step sizes"] = (
        labels.taper(groups[0])
        if len(groups) == 1
        else "; ".join(f"{labels.who(names, g)}: {labels.taper(g)}" for g in groups[:4])
        + (f"; {len(groups) - 4} more" if len(groups) > 4 else "")
    )
    out["seeds"] = str(len(run.seeds))
    out["engine"] = run.engine
    return out


def _flatten(prefix: str, part: Any, out: dict[str, str]) -> None:
    if isinstance(part, dict):
        for name, value in part.items():
            _flatten(f"{prefix}.{name}" if prefix else name, value, out)
    else:
        each = [_short(one) for one in part] if isinstance(part, list) else [str(part)]
        kinds = any(isinstance(one, dict) for one in part) if isinstance(part, list) else False
        out[prefix] = _joined(list(dict.fromkeys(each)) if kinds else each, "; " if kinds else ", ")


def _joined(each: list[str], between: str) -> str:
    """Texts in one: as many as are short together, and how many more there are.

    >>> _joined(["north", "south"], ", "), _joined([f"hospital {k}" for k in range(9)], ", ")
    ('north, south', 'hospital 0, hospital 1, hospital 2 and 6 more')
    """
    text = between.join(each)
    if len(text) <= LONGEST:
        return text
    if len(each) == 1:
        return f"{text[: LONGEST - 3]}..."
    count = 1
    while len(between.join(each[: count + 1])) <= LONGEST - len(f" and {len(each)} more"):
        count += 1
    return f"{between.join(each[:count])} and {len(each) - count} more"


def _short(part: Any) -> str:
    """A rule among several, such as the delay of one client, in words.

    >>> _short({"kind": "random_delay", "mean": 10})
    'random delay (mean 10)'
    """
    if not isinstance(part, dict):
        return str(part)
    kind = str(part.get("kind", "")).replace("_", " ")
    more = ", ".join(f"{k} {v}" for k, v in part.items() if k != "kind")
    return f"{kind} ({more})" if more else kind


def problems(
    runs: Sequence[Run], names: Sequence[str]
) -> list[tuple[tuple[Run, ...], tuple[str, ...]]]:
    """The runs of each problem with their names, in the order of their first runs."""
    groups: dict[Any, list[tuple[Run, str]]] = {}
    for run, name in zip(runs, names, strict=True):
        found = {k: v for k, v in settings(run).items() if k.split(".")[0] == "problem"}
        key = (run.experiment.num_clients, run.experiment.problem.dim, *sorted(found.items()))
        groups.setdefault(key, []).append((run, name))
    return [(tuple(r for r, _ in one), tuple(n for _, n in one)) for one in groups.values()]
