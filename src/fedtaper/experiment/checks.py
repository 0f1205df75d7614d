"""What an experiment refuses, and what it fills in, before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from fedtaper.core.checks import as_tuple, check_flag, check_memory, check_type, check_whole, one_of
from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import LocalRule, ServerRule, Unit
from fedtaper.rules.asynchronous import Asynchronous
from fedtaper.rules.challenges import Challenges
from fedtaper.rules.staleness import Staleness
from fedtaper.rules.steering import Steering

if TYPE_CHECKING:
    from fedtaper.experiment import Experiment

CLOCKS = get_args(Unit)


def prepare(e: Experiment) -> None:
    """Check every setting, in the order in which later checks need the earlier ones."""
    _check_rules(e)
    _check_schedules(e)
    for name in ("local_steps", "participation"):
        _set(e, name, as_tuple(getattr(e, name)))
    if e.challenges is not None:
        Challenges.check(e.challenges, e.num_clients)
    check_whole("rounds", e.rounds)
    check_whole("batch_size", e.batch_size)
    check_whole("seed", e.seed, low=0)
    check_flag("own_clock", e.own_clock)
    _check_local_work(e)
    _check_clock(e)
    _check_participation(e)
    _check_arrivals(e)
    if e.steering is not None:
        check_type("steering", e.steering, Steering)
        e.steering.check(e)
    _check_names(e)
    _note_short_batches(e)


def _set(e: Experiment, name: str, value: Any) -> None:
    object.__setattr__(e, name, value)


def _check_rules(e: Experiment) -> None:
    parts: tuple[tuple[str, Any, type, str, str], ...] = (
        ("local", e.local, LocalRule, "Sgd() or Proximal(mu=0.1)", "Memoryless"),
        ("server", e.server, ServerRule, "Average() or Adam()", "PlainServer"),
    )
    for name, rule, kind, such, base in parts:
        if isinstance(rule, type) or not isinstance(rule, kind):
            raise FedtaperError(
                f"{name} must be a rule such as {such}, not {rule!r}; published methods are "
                f"in ft.PRESETS; subclass ft.{base} for a rule of your own"
            )


def _check_schedules(e: Experiment) -> None:
    if len(e.schedules) != e.num_clients:
        raise FedtaperError(
            f"{len(e.schedules)} schedules for {e.num_clients} clients; give one per "
            "client, or one for all"
        )
    if e.local.receives != e.server.travels:
        raise FedtaperError(
            f"{type(e.local).__name__} and {type(e.server).__name__} do not fit together: "
            "Scaffold() needs server=Controlled(), and no other rule does"
        )


def _check_local_work(e: Experiment) -> None:
    if (e.local_steps is None) == (e.local_epochs is None):
        raise FedtaperError("give either local_steps or local_epochs, not both or neither")
    name = "local_epochs" if e.local_steps is None else "local_steps"
    given = getattr(e, name)
    given = given if isinstance(given, tuple) else (given,)
    if not given:
        raise FedtaperError(f"{name} is empty: give one, or one per client")
    for value in given:
        check_whole(name, value)
    if name == "local_steps":  # a round's table of step sizes
        check_memory(f"{max(given):,} local updates per round", 4.0 * max(given) * e.num_clients)


def _check_clock(e: Experiment) -> None:
    if e.clock is None:
        _set(e, "clock", e.problem.default_clock if e.local_epochs else "update")
    one_of("clock", e.clock, CLOCKS)
    if e.clock == "epoch" and e.local_epochs is None:
        raise FedtaperError('clock = "epoch" needs local_epochs instead of local_steps')


def _check_participation(e: Experiment) -> None:
    one_of("average_over", e.average_over, ("all", "present"))
    if not np.any(e.rates > 0):
        raise FedtaperError("no client ever takes part: participation is 0 for all of them")


def _check_arrivals(e: Experiment) -> None:
    _set(e, "delays", e.late_by)
    if isinstance(e.staleness, type) or not isinstance(e.staleness, Staleness):
        raise FedtaperError(
            f"staleness must be a weight such as Polynomial(0.5), not {e.staleness!r}"
        )
    for i in np.flatnonzero(e.rates == 0):
        warn(f"client {i} never takes part (participation 0): it has no influence")
    carried = e.local.keeps == "run" or e.local.receives > 0
    if not e.in_step and (e.average_over == "present" or carried):
        raise FedtaperError(
            'late updates and own clocks need average_over="all" and a local rule '
            "that keeps nothing from round to round and receives nothing with the model"
        )
    if e.asynchronous is None:
        return
    if not isinstance(e.asynchronous, Asynchronous):
        raise FedtaperError(
            f"asynchronous must be a server such as Asynchronous(buffer=3), not {e.asynchronous!r}"
        )
    e.asynchronous.check(e.num_clients)
    if e.delays is not None:
        raise FedtaperError("an asynchronous server makes its own delays: leave out delays")
    if np.any(e.rates < 1):
        raise FedtaperError(
            "at an asynchronous server clients come and go by its mean_on and mean_off: leave "
            "participation = 1"
        )


def _check_names(e: Experiment) -> None:
    if e.names is None:
        return
    if not isinstance(e.names, (tuple, list)):
        raise FedtaperError(f"names must be a list with one name per client, not {e.names!r:.80}")
    names = tuple(map(str, e.names))
    if len(names) != e.num_clients:
        raise FedtaperError(f"{len(names)} names for {e.num_clients} clients: give one per client")
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if not name.strip():
            raise FedtaperError(f"the name of client {i} is empty: give every client a name")
        if first.setdefault(name, i) < i:
            raise FedtaperError(f"clients {first[name]} and {i} have the same name, {name!r:.80}")
    _set(e, "names", names)


def _note_short_batches(e: Experiment) -> None:
    short = np.flatnonzero(e.batch_sizes < e.batch_size)
    if len(short):
        first, size = int(short[0]), int(e.problem.sizes[short[0]])
        more = f" (and {len(short) - 1} more)" if len(short) > 1 else ""
        warn(
            f"{e.name(first)}{more} holds {size} sample{'s' * (size != 1)}, fewer than "
            f"batch_size {e.batch_size}: its batches have only as many samples as it holds"
        )
