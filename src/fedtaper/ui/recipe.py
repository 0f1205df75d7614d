"""An experiment as text: a TOML file, and a Python program."""

from __future__ import annotations

from itertools import groupby
from typing import Any, cast

from fedtaper.experiment import Experiment
from fedtaper.problems.linear import LinearRegression
from fedtaper.storage.config import to_toml


def recipe(e: Experiment) -> dict[str, str]:
    """The experiment as both texts."""
    return {"toml": to_toml(e), "python": to_python(e)}


def to_python(e: Experiment) -> str:
    """A program that runs the experiment, for linear regression with generated data."""
    problem = cast(LinearRegression, e.problem)
    lines = [
        "import fedtaper as ft",
        "",
        f"problem = ft.LinearRegression(num_clients={problem.num_clients}, "
        f"sigma_w={problem.sigma_w!r}, feature_spread={problem.feature_spread!r})",
        "schedules = [",
        *(f"    {line}," for line in _schedules(e.schedules)),
        "]",
        "experiment = ft.Experiment(",
        f"    problem, schedules, rounds={e.rounds}, local_steps={e.local_steps},",
        f"    batch_size={e.batch_size}, seed={e.seed},",
        ")",
        "run = ft.run(experiment)",
        "print(f\"distance to w*(p_n): {run.metrics['error'][-1]:.4g}\")",
        "",
    ]
    return "\n".join(lines)


def _schedules(schedules: Any) -> list[str]:
    out = []
    for schedule, same in groupby(schedules):
        count = len(list(same))
        out.append(_code(schedule) if count == 1 else f"*[{_code(schedule)}] * {count}")
    return out


def _code(schedule: Any) -> str:
    if schedule.delta == 0:
        return f"ft.Constant({schedule.c!r})"
    offset = f", offset={schedule.offset!r}" if schedule.offset else ""
    return f"ft.Power(c={schedule.c!r}, delta={schedule.delta!r}{offset})"
