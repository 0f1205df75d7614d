"""Simulated clients that do not do what they declared, to test an audit against.

A behaviour changes a client's honest update: ``Experiment(..., behaviours={3: Idle()})``. The
experiment's schedules remain what was *declared*; a behaviour decides what is *sent*. All of them
reduce to two tables: the step sizes that are really used and, round by round, a kind and a
scale. So every engine needs only one small function, :func:`sent`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import check_number, check_whole
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import checked_schedule
from fedtaper.core.scaled import Scaled
from fedtaper.core.schedules import Schedule

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
SCALED, NOISE, COPY, MATCHED_COPY = range(4)  # kinds of what is sent


@runtime_checkable
class Behaviour(Protocol):
    """What an engine asks of a behaviour."""

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """The schedule really used, the kind of what is sent, and its scale."""
        ...


@dataclass(frozen=True)
class OtherSchedule:
    """Uses a schedule other than the declared one: a faster taper, or a smaller c.

    >>> from fedtaper.core.schedules import Power
    >>> OtherSchedule(Power(0.1, 1.0)).plan(Power(0.1, 0.76))
    (Power(c=0.1, delta=1.0, offset=0.0), 0, 1.0)
    """

    schedule: Schedule

    def __post_init__(self) -> None:
        checked_schedule("schedule", self.schedule)

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """Its own schedule; the update that this gives is sent unchanged."""
        return self.schedule, SCALED, 1.0


@dataclass(frozen=True)
class Idle:
    """Returns the model unchanged."""

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """Nothing is sent."""
        return honest, SCALED, 0.0


@dataclass(frozen=True)
class Noise:
    """Sends a random direction, of exactly the size of its honest update times ``scale``.

    The hardest case for an audit by size: the sizes are exactly those of an honest client.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(self.scale)

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """A new direction in each round."""
        return honest, NOISE, self.scale


@dataclass(frozen=True)
class Copies:
    """Sends the mean of the others' last updates, times ``scale``.

    Without a scale the copy is made as large as the others' last updates are on average:
    the mean itself shrinks as the shared model settles, and its size would give it away.
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            _positive(self.scale)

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """The others' last mean, scaled or made as large as their updates."""
        if self.scale is None:
            return honest, MATCHED_COPY, 1.0
        return honest, COPY, self.scale


@dataclass(frozen=True)
class Recognises:
    """Uses a schedule other than the declared one, except in challenges that it recognises.

    It keeps hashes of the models it was sent: a model that comes again is a challenge. With
    ``near`` it recognises every challenge, as if by its distance from the latest model.
    """

    schedule: Schedule
    near: bool = False

    def __post_init__(self) -> None:
        OtherSchedule(self.schedule)

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """Its own schedule, in rounds and in challenges that it mistakes for rounds."""
        return self.schedule, SCALED, 1.0


@dataclass(frozen=True)
class After:
    """Honest through round ``round`` (counted from 1), then another behaviour."""

    round: int
    then: OtherSchedule | Idle | Noise | Copies | Recognises

    def __post_init__(self) -> None:
        check_whole("round", self.round, low=0)
        if isinstance(self.then, After) or not isinstance(self.then, Behaviour):
            raise FedtaperError(f"After needs a behaviour such as Idle(), not {self.then!r}")

    def plan(self, honest: Schedule) -> tuple[Schedule, int, float]:
        """The plan of the later behaviour."""
        return self.then.plan(honest)


BEHAVIOURS: dict[str, Any] = {
    "other_schedule": OtherSchedule,
    "idle": Idle,
    "noise": Noise,
    "copies": Copies,
    "recognises": Recognises,
}


def checked(clients: Any, count: int) -> tuple[tuple[int, Behaviour], ...]:
    """Behaviours by client, as sorted pairs; refused where there is no such client."""
    try:
        pairs = list(dict(clients).items())
    except (TypeError, ValueError):
        raise FedtaperError(
            f"behaviours are given by client, such as {{3: Idle()}}, not {clients!r:.80}"
        ) from None
    for client, behaviour in pairs:
        check_whole("a client in behaviours", client, low=0)
        if client >= count:
            raise FedtaperError(
                f"behaviours names client {client}; the clients are 0 to {count - 1}"
            )
        if not isinstance(behaviour, Behaviour):
            raise FedtaperError(
                f"behaviours: client {client} needs a behaviour such as Idle(), not {behaviour!r}"
            )
    return tuple(sorted(pairs, key=lambda pair: int(pair[0])))


def needs_last(experiment: Experiment) -> bool:
    """Whether an engine has to remember the clients' last updates."""
    return any(plan[1] in (COPY, MATCHED_COPY) for _, plan, _ in _plans(experiment))


def tables(experiment: Experiment, first: int, last: int) -> tuple[NDArray[np.int64], Array]:
    """Kind and scale of what each client sends in rounds first to last - 1, each (rounds, L)."""
    kind = np.full((last - first, experiment.num_clients), SCALED, dtype=np.int64)
    scale = np.ones(kind.shape)
    for client, (_, what, size), start in _plans(experiment):
        from_row = max(0, start - first)
        kind[from_row:, client] = what
        scale[from_row:, client] = size
    return kind, scale


def actual_step_sizes(experiment: Experiment, first: int, last: int) -> Array:
    """The step sizes that are really used in those rounds, (rounds, updates, L)."""
    a, schedules = experiment.step_sizes(first, last), experiment.schedules
    used = [one for one in _plans(experiment) if one[1][0] is not _unsteered(schedules[one[0]])]
    if not used:
        return a
    a = a.copy()
    clock = experiment.clock_values(first, last)
    for client, (schedule, _, _), start in used:
        declared = schedules[client]
        if isinstance(declared, Scaled):  # it follows the controller, from its own schedule
            schedule = Scaled(schedule, declared.factors)
        n = clock[..., client] if clock.shape[-1] > 1 else clock[..., 0]
        from_row = max(0, start - first)
        made = np.arange(a.shape[1]) < experiment.steps[client]
        a[from_row:, :, client] = (schedule(n) * made)[from_row:]
    return a


def sent(
    kind: int, scale: float, honest: Array, client: int, last: Array | None, place: tuple[int, int]
) -> Array:
    """What a client sends instead of its honest update; ``place`` is (seed, round)."""
    if kind == SCALED:
        return honest if scale == 1.0 else scale * honest
    if kind == NOISE:
        seed, round_ = place
        direction = draws.normals(seed, client, round_, len(honest))
        return direction * (scale * np.linalg.norm(honest) / np.linalg.norm(direction))
    assert last is not None
    others = np.delete(last, client, axis=0)
    mean = others.mean(axis=0)
    if kind == MATCHED_COPY:
        size = float(np.linalg.norm(mean))
        scale = float(np.linalg.norm(others, axis=1).mean()) / size if size > 0 else 0.0
    return scale * mean


def recognises(pairs: tuple[tuple[int, Behaviour], ...], client: int, seen: bool) -> bool:
    """Whether a client recognises a challenge; ``seen``: it was sent that very model before."""
    found = _later(dict(pairs).get(client))
    return isinstance(found, Recognises) and (found.near or seen)


def _plans(experiment: Experiment) -> Iterator[tuple[int, tuple[Schedule, int, float], int]]:
    """Each behaving client, its plan, and the round (from 0) from which it keeps to the plan."""
    for client, behaviour in experiment.behaviours:
        honest = _unsteered(experiment.schedules[client])
        yield client, behaviour.plan(honest), _start(behaviour)


def _unsteered(schedule: Schedule) -> Schedule:
    """A schedule before any factor of a controller."""
    return schedule.schedule if isinstance(schedule, Scaled) else schedule


def _later(behaviour: Any) -> Any:
    return behaviour.then if isinstance(behaviour, After) else behaviour


def _start(behaviour: Behaviour) -> int:
    return behaviour.round if isinstance(behaviour, After) else 0


def _positive(scale: float) -> None:
    check_number("scale", scale, above=0.0)
