"""What a server saw: traces from a Run, and declared step sizes round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing.challenges import Asked
from fedtaper.auditing.judge import Trace
from fedtaper.auditing.own_check import even
from fedtaper.auditing.replay import HeldOut, replay
from fedtaper.auditing.taper import Declared
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_quadratic
from fedtaper.core.schedules import Schedule, step_sizes
from fedtaper.core.sketch import sketch
from fedtaper.experiment import Experiment
from fedtaper.problems.images import ImageClassification
from fedtaper.results import Run, check_recorded, seeds_in_words
from fedtaper.rules.challenges import Answers

Array = NDArray[np.float64]
LARGEST = 1e150  # size of an update whose square is still a number
POINTS = 64  # updates of a round at which a schedule is looked at, at most


def trace_of(run: Run, seed: int | None = None) -> Trace:
    """What the server of a run saw."""
    return from_run(run, None, seed, None)[0]


def from_run(
    run: Run,
    schedules: Sequence[Schedule] | None,
    seed: int | None,
    held_out: HeldOut | None,
) -> tuple[Trace, Array, Array, NDArray[np.int64], Array]:
    """The trace, declared influence at the end, declared deltas, rounds and clock."""
    check_recorded(run)
    e = run.experiment
    if schedules is not None:
        e = replace(e, schedules=schedules, behaviours=())
    if run.many and seed is None:
        raise FedtaperError(f"this run has {len(run.seeds)} seeds: choose one to audit with seed=")
    if seed is not None and (not isinstance(seed, int | np.integer) or seed not in run.seeds):
        raise FedtaperError(
            f"the run has no seed {seed!r:.80}: choose one of {seeds_in_words(run.seeds)}"
        )
    pick: Any = run.seeds.index(seed) if run.many and seed is not None else slice(None)
    lost = min((d.round for d in run.diverged if not run.many or d.seed == seed), default=None)
    kept = _finite(run.update_norms[pick][: None if lost is None else np.sum(run.round < lost)])
    if not kept:
        raise FedtaperError("the run has no round with finite numbers, so there is none to audit")
    rounds = run.round[:kept]
    index, last = rounds - 1, int(rounds[-1])
    there = e.present(0, last, run.seeds[pick] if run.many else run.seeds[0])[index]
    norms = np.where(there, run.update_norms[pick][:kept], np.nan)
    a, clock = e.step_sizes(0, last)[index], e.clock_values(0, last)[index]
    answers = run.challenges
    if answers is not None and run.many:
        answers = answers.of_seed(pick)
    moves = start = None
    if lost is None and last == kept and run.w is not None and run.w0 is not None:
        start = np.concatenate([run.w0[pick][None], run.w[pick][: kept - 1]])
        if held_out is None and answers is None and isinstance(e.problem, ImageClassification):
            held_out = replay(e, start, run.seeds[pick] if run.many else run.seeds[0])
    if lost is None and last == kept and run.updates is not None:
        found = np.where(there[..., None], run.updates[pick][:kept], np.nan)
        moves = sketch(found).transpose(1, 0, 2)
    trace = Trace(
        norms.T,
        _as_declared(a, clock + np.array([s.offset for s in e.schedules])),
        moves,
        None if moves is None or start is None else sketch(start),
        held_out,
        is_quadratic(e.problem),
        None if answers is None else _asked(e, answers).until(last),
        not is_quadratic(e.problem) or even(e.problem.moments[0]),
        lost,
    )
    p = e.effective_influence(last - 1, last)[0]
    deltas = np.array([s.delta for s in e.schedules])
    return trace, p, deltas, rounds, run.n[:kept]


def _finite(norms: Array) -> int:
    """How many rounds there are before sizes, or their squares, are too large for a number.

    NaN is a site of a federation that did not answer.
    """
    lost = (norms >= LARGEST).any(axis=-1)
    return int(np.argmax(lost)) if lost.any() else len(norms)


def _asked(e: Experiment, answers: Answers) -> Asked:
    """The answers to challenges, with the step sizes that were declared for them."""
    assert e.challenges is not None
    index, made = answers.round - 1, e.challenges.steps(e.steps)
    last = int(index.max()) + 1 if index.size else 0
    a = e.step_sizes(0, last)[index] * (np.arange(e.steps.max())[:, None] < made)
    clock = e.clock_values(0, last)[index] + np.array([s.offset for s in e.schedules])
    sums = a.sum(axis=1)
    log_n = (a * np.log(clock)).sum(axis=1) / sums
    q, length = (answers.product / sums).T, (answers.size / sums).T
    return Asked(answers.round, q, log_n.T, sums.T, length)


def _as_declared(a: Array, clock: Array) -> Declared:
    sums = a.sum(axis=1)
    log_n = (a * np.log(clock)).sum(axis=1) / sums
    return Declared(sums.T, (a**2).sum(axis=1).T, log_n.T, a.max(axis=1).T)


def declared_round(schedules: list[Schedule], before: float, n: float, sums: Array | None) -> Array:
    """Sum, sum of squares, mean log n and largest step of one round, (4, L)."""
    count = max(1, round(n - before))
    points = np.linspace(before + 1, max(n, before + 1), min(count, POINTS))
    a = step_sizes(schedules, points[:, None])
    each = count / len(points)
    total, squares = a.sum(axis=0) * each, (a**2).sum(axis=0) * each
    shifted = points[:, None] + np.array([s.offset for s in schedules])
    log_n = (a * np.log(shifted)).sum(axis=0) / a.sum(axis=0)
    scale = np.ones(len(schedules)) if sums is None else sums / total
    return np.stack([total * scale, squares * scale**2, log_n, a.max(axis=0) * scale])
