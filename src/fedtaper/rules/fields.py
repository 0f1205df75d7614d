"""Fields of an Experiment that accept more than one form and always return the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, get_args

from fedtaper.core.errors import FedtaperError
from fedtaper.core.influence import checked_schedules
from fedtaper.core.protocols import ProblemKind, is_schedule, missing_parts
from fedtaper.core.schedules import Schedule
from fedtaper.rules.behaviours import Behaviour, checked

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

KINDS = get_args(ProblemKind)


class PerClient:
    """The field ``schedules``: takes one schedule or one per client, gives one per client."""

    def __get__(self, experiment: Experiment | None, owner: Any = None) -> tuple[Schedule, ...]:
        if experiment is None:
            raise AttributeError("schedules")  # so that the field has no default
        found: tuple[Schedule, ...] = experiment.__dict__["schedules"]
        return found

    def __set__(self, experiment: Experiment, value: Sequence[Schedule] | Schedule) -> None:
        _check_problem(experiment.problem)
        given = tuple(checked_schedules(value))
        alone = is_schedule(value)
        experiment.__dict__["schedules"] = given * experiment.num_clients if alone else given


class ByClient:
    """The field ``behaviours``: takes a mapping or pairs, gives sorted pairs."""

    def __get__(
        self, experiment: Experiment | None, owner: Any = None
    ) -> tuple[tuple[int, Behaviour], ...]:
        if experiment is None:
            return ()  # the default
        found: tuple[tuple[int, Behaviour], ...] = experiment.__dict__["behaviours"]
        return found

    def __set__(
        self,
        experiment: Experiment,
        value: Mapping[int, Behaviour] | tuple[tuple[int, Behaviour], ...],
    ) -> None:
        experiment.__dict__["behaviours"] = checked(value, experiment.num_clients)


def _check_problem(problem: Any) -> None:
    # the one place that looks at an unknown object: what it says of itself, nothing else
    if isinstance(problem, type) or getattr_static(problem, "kind", None) not in KINDS:
        raise FedtaperError(
            f"problem must be a problem such as LinearRegression() or Custom(...), not "
            f"{problem!r:.80}; a problem of your own must fulfil fedtaper.core.protocols.Problem"
        )
    missing = [] if problem.kind == "recorded" else missing_parts(problem)  # that has only sizes
    if missing:
        raise FedtaperError(
            f"{type(problem).__name__} is not a problem yet: it has no {', '.join(missing[:3])}; a "
            "problem of your own must fulfil fedtaper.core.protocols.Problem"
        )
