"""Checks of a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.influence import influence
from fedtaper.core.protocols import Schedule, checked_schedule
from fedtaper.core.schedules import Constant, Power
from fedtaper.testing.checks import need, run_checks

CLOCK = np.array([1.0, 2.0, 3.0, 10.0, 1e3, 1e6])
FAR = 1e12


def check_schedule(schedule: Schedule) -> list[str]:
    """Check a schedule against :class:`fedtaper.core.protocols.Schedule`.

    >>> import fedtaper as ft
    >>> check_schedule(ft.Power(0.1, 0.8))[:2]
    ['has_the_protocol_s_parts', 'is_positive_and_finite']
    """
    return run_checks(
        schedule,
        [
            _has_the_protocol_s_parts,
            _is_positive_and_finite,
            _takes_numbers_and_arrays_alike,
            _is_hashable_and_equal_to_itself,
            _reaches_its_limit,
            _its_limit_is_a_plain_schedule,
            _equals_its_limit_once_it_has_settled,
            _refuses_a_clock_below_1,
            _works_in_influence,
        ],
    )


def _has_the_protocol_s_parts(schedule: Any) -> None:
    checked_schedule("it", schedule)
    need(isinstance(schedule.formula, str) and schedule.formula, "formula is not a text")


def _is_positive_and_finite(schedule: Any) -> None:
    a = np.asarray(schedule(CLOCK))
    need(np.all(np.isfinite(a)) and np.all(a > 0), f"step sizes {a} at n = {CLOCK}")


def _takes_numbers_and_arrays_alike(schedule: Any) -> None:
    a = np.asarray(schedule(CLOCK))
    need(a.shape == CLOCK.shape, f"an array of shape {CLOCK.shape} gave shape {a.shape}")
    need(np.shape(schedule(5)) == (), "a number gave an array")
    one_by_one = [float(schedule(float(n))) for n in CLOCK]
    need(np.allclose(a, one_by_one, rtol=1e-12), "an array and single numbers differ")


def _is_hashable_and_equal_to_itself(schedule: Any) -> None:
    need(hash(schedule) == hash(schedule) and schedule == schedule, "hash or equality fails")  # noqa: PLR0124


def _reaches_its_limit(schedule: Any) -> None:
    ratio = float(schedule(FAR)) * FAR**schedule.delta / schedule.c
    need(abs(ratio - 1) < 1e-3, f"a_n n^delta / c is {ratio:.6g} at n = {FAR:g}, not 1")


def _its_limit_is_a_plain_schedule(schedule: Any) -> None:
    limit = schedule.limit
    need(isinstance(limit, (Power, Constant)), f"limit is {limit!r}, not a Power or a Constant")
    for name in ("c", "delta", "offset"):
        mine, its = getattr(schedule, name), getattr(limit, name)
        need(mine == its, f"{name} is {mine!r}, and its limit's {its!r}")


def _equals_its_limit_once_it_has_settled(schedule: Any) -> None:
    settles = float(schedule.settles)
    need(settles >= 1, f"settles is {settles:g}, and the clock starts at 1")
    if settles < FAR:
        n = np.geomspace(settles, 10 * settles, 5)
        a, b = np.asarray(schedule(n)), np.asarray(schedule.limit(n))
        need(np.allclose(a, b, rtol=1e-9, atol=0), f"{a} is not the limit's {b} at n = {n}")


def _refuses_a_clock_below_1(schedule: Any) -> None:
    try:
        schedule(0.0)
    except FedtaperError:
        return
    raise AssertionError("n = 0 is accepted; the clock starts at 1")


def _works_in_influence(schedule: Any) -> None:
    for n in (None, 100):
        p = influence([schedule, schedule], n=n)
        need(np.allclose(p, 1), f"two clients with this schedule have influence {p}, not 1")
