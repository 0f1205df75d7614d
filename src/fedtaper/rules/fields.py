"""Fields of an Experiment that accept more than one form and always return the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedtaper.core.influence import checked_schedules
from fedtaper.core.protocols import checked_problem, is_schedule
from fedtaper.core.schedules import Schedule
from fedtaper.rules.behaviours import Behaviour, checked

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment


class PerClient:
    """The field ``schedules``: takes one schedule or one per client, gives one per client."""

    def __get__(self, experiment: Experiment | None, owner: Any = None) -> tuple[Schedule, ...]:
        if experiment is None:
            raise AttributeError("schedules")  # so that the field has no default
        found: tuple[Schedule, ...] = experiment.__dict__["schedules"]
        return found

    def __set__(self, experiment: Experiment, value: Sequence[Schedule] | Schedule) -> None:
        checked_problem("problem", experiment.problem)
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
