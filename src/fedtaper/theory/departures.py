"""What an experiment does that the paper's theorem does not cover, and what is known about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedtaper.experiment import Experiment

Status = Literal["holds", "fails", "assumed"]


@dataclass(frozen=True)
class Assumption:
    """One row: what is required, whether it holds, the number that decides it, and why."""

    id: str
    asks: str
    status: Status
    number: str
    why: str


def departures(e: Experiment) -> tuple[Assumption, ...]:
    """One row for each way in which clients are rare, late or moving; none in the plain case."""
    return (*_rare(e), *_late(e), *_asynchronous(e), *_own_clocks(e), *_moving(e))


def _rare(e: Experiment) -> Iterator[Assumption]:
    if e.asynchronous is not None or not np.any(e.rates < 1):
        return
    asks = "every client takes part again and again"
    number = f"in {e.rates.min():.3g} to {e.rates.max():.3g} of the rounds"
    never = np.flatnonzero(e.rates == 0)
    if len(never):
        yield Assumption("P", asks, "fails", number, f"{e.name(int(never[0]))} never takes part")
        return
    how = "of the mean over those present" if e.average_over == "present" else "of its influence"
    yield Assumption("P", asks, "holds", number, f"a client's rate is a factor {how}")


def _late(e: Experiment) -> Iterator[Assumption]:
    if e.late_by is None:
        return
    laws = [delay.law() for delay in e.late_by]
    most = max(len(law) - 1 for law in laws)
    mean = max(float(law @ np.arange(len(law))) for law in laws)
    asks = "updates are late by a bounded number of rounds"
    number = f"at most {most} rounds, {mean:.3g} on average for the slowest"
    why = "the limit is that of updates in time; forecasts leave out a difference of order a_n"
    yield Assumption("D", asks, "holds", number, why)


def _asynchronous(e: Experiment) -> Iterator[Assumption]:
    if e.asynchronous is None:
        return
    asks = "every client's updates arrive at a steady rate"
    times = e.asynchronous.times_between(e.num_clients)
    endless = np.flatnonzero(np.isinf(times))
    if len(endless):
        who = e.name(int(endless[0]))
        why = f"the working time of {who} has no mean: its influence goes to 0"
        yield Assumption("D", asks, "fails", "mean time between arrivals infinite", why)
        return
    number = f"every {times.min():.3g} to {times.max():.3g} units of time"
    why = "speeds and staleness weights are factors of influence"
    yield Assumption("D", asks, "holds", number, why)


def _own_clocks(e: Experiment) -> Iterator[Assumption]:
    if not e.own_clock:
        return
    asks = "ratios of step sizes have a limit although the clocks differ"
    number = f"clocks at {e.counts.min():.3g} to {e.counts.max():.3g} of the federation's"
    why = "a client at rate r keeps r^(1 - delta) of its influence, in the long run"
    yield Assumption("C", asks, "assumed", number, why)


def _moving(e: Experiment) -> Iterator[Assumption]:
    if e.problem.kind != "moving":
        return
    why = "steps that taper to 0 cannot follow: see the problem's error(run)"
    yield Assumption("M", "each client's population stays the same", "fails", "it moves", why)
