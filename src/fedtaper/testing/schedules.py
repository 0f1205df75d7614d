"""Checks of a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.influence import influence
from fedtaper.core.protocols import Schedule
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
            _refuses_a_clock_below_1,
            _works_in_influence,
        ],
    )


def _has_the_protocol_s_parts(schedule: Any) -> None:
    need(isinstance(schedule, Schedule), "it lacks one of c, delta, formula, __call__")
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
