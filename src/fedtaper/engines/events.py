# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
"""Regression with late, asynchronous or own-clocked updates, and on streams, compiled (Numba).

One loop over the slots of a round (``rules/arrivals.py``). The models of the last rounds are kept
in a ring, so memory is bounded by the longest staleness: 8 d bytes per seed and round of it. The
arithmetic is that of ``reference``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.memory import keep_memory
from fedtaper.core.protocols import Array, Block, Capabilities, Options, State, as_linear, as_stream
from fedtaper.engines import new_block, quick_rounds
from fedtaper.engines.compiled import (
    _MOMENTUM,
    FMA,
    WIDE,
    Compiled,
    _box_muller,
    _direction,
    _fill_batch,
    _gradient,
    _gradient_wide,
    _mix,
    _momentum_step,
    _normal_place,
    _server_rule,
    _server_step,
)
from fedtaper.engines.history import Timeline
from fedtaper.engines.steered import client_losses
from fedtaper.engines.threads import over_threads
from fedtaper.experiment import Experiment
from fedtaper.rules.arrivals import drawn_in

_GOLDEN, _MIX_2 = draws.GOLDEN, draws._MIX_2


class Events:
    """Late and asynchronous updates of regression, at the speed of machine code."""

    name = "events"
    capabilities = Capabilities(
        problems=frozenset({"linear", "stream", "moving"}),
        local_rules=Compiled.capabilities.local_rules,
        server_rules=Compiled.capabilities.server_rules,
        updates=True,
        delays=True,
        steering=True,
    )

    def check(self) -> None:
        """It runs everywhere."""

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """As many rounds as take a fraction of a second."""
        return quick_rounds(experiment, seeds)

    def open(self, experiment: Experiment, state: State, options: Options) -> EventSession:
        """Simulate the order of arrivals of every seed before anything is trained."""
        return EventSession(experiment, state)


class EventSession:
    """All seeds, spread over the cores."""

    def __init__(self, experiment: Experiment, state: State) -> None:
        self.e, self.state = experiment, state
        keep_memory()  # tables of arrivals are made anew for every run
        self.timeline = Timeline.of(experiment, state)

    def advance(self, rounds: int) -> Block:
        """Advance every seed by ``rounds`` rounds."""
        e, state = self.e, self.state
        block = new_block(e, state, rounds)
        block.notes |= self.timeline.notes(state.round, state.round + rounds)
        over_threads(partial(self._part, block), len(state.w), rounds)
        state.round += rounds
        return block

    def _part(self, block: Block, part: Any, rounds: int) -> None:
        e, state, first = self.e, self.state, self.state.round
        some = slice(part[0], part[-1] + 1)
        slots = self.timeline.table(some, first, first + rounds)
        low, a = self.timeline.step_sizes(slots.row)
        seeds = state.seeds[some]
        who = seeds if e.average_over == "present" else seeds[:1]  # else the same for all seeds
        weights = np.stack([e.round_weights(first, first + rounds, int(s))[0] for s in who])
        rule, constants = _server_rule(e)
        moments = [*(array[some] for array in state.memory), state.w[:0], state.w[:0]]
        dim = e.problem.dim
        assert block.w is not None and state.history is not None
        none = np.empty((0, 0, 0, 1))
        _rounds(
            *_data(e, drawn_in(slots.draw)), (0.0,) * (dim if dim <= WIDE else 1),
            seeds.astype(np.uint64), slots.client, slots.base, slots.draw,
            slots.row - low, slots.factor, a, e.steps, weights, e.batch_sizes,
            e.local.added_curvature, rule, constants,
            state.w[some], state.history[some], moments[0], moments[1], first,
            state.dead_round[some], state.dead_client[some],
            block.w[some], block.update_norms[some],
            none if block.updates is None else block.updates[some],
        )  # fmt: skip

    def losses(self, s: int) -> Array:
        """Every client's loss at the shared model."""
        return client_losses(self.e.problem, self.state.w[s])

    def steer(self, experiment: Experiment) -> None:
        """Use other step sizes from here on."""
        self.e = experiment
        self.timeline = replace(self.timeline, e=experiment)

    def sync(self) -> None:
        """The State is always up to date."""

    def close(self) -> None:
        """Nothing to free."""


ENGINE = Events()


def _data(e: Experiment, drawn: NDArray[np.int64]) -> tuple[Any, ...]:
    """Rows and their places, or the arrays that make a stream; the other is empty.

    ``drawn`` is the round whose population each slot's samples are drawn from. The last two
    arrays are the true parameters in some rounds, and where each slot finds its own in them.
    """
    none = np.empty(0)
    if e.problem.kind == "linear":
        linear = as_linear(e.problem)
        starts = np.concatenate([[0], np.cumsum(linear.sizes)[:-1]])
        sizes, no_targets = np.asarray(linear.sizes), np.empty((0, 0, 0))
        return (
            linear.rows,
            starts,
            sizes,
            none,
            none,
            none,
            np.empty(0, np.int64),
            no_targets,
            drawn,
        )
    stream = as_stream(e.problem)
    nothing = np.zeros(e.num_clients, dtype=np.int64)
    low, high = (int(drawn.min()), int(drawn.max())) if drawn.size else (0, 0)
    targets = np.ascontiguousarray(stream.targets(low, high + 1))
    when = np.minimum(drawn - low, len(targets) - 1)  # a single row holds in every round
    return (
        np.empty((0, e.problem.dim + 1)), nothing, nothing,
        stream.rhos, stream.spreads, stream.noise, stream.lengths, targets, when,
    )  # fmt: skip


@njit(inline="always")
def _key(seed, client, round_):
    """``draws.stream_key``."""
    own = _mix(_mix(seed + _GOLDEN) + np.uint64(client) * _MIX_2)
    return _mix(own + np.uint64(round_) * _GOLDEN)


@njit(fastmath=FMA)
def _fill_block(out, seed, client, block, rho, length, columns):
    """``streams.gauss_markov`` in place."""
    for side in range(2):
        key = _key(seed, client, block + side)
        for q in range(length if side == 0 else 1):
            for c in range(columns):
                place = _normal_place(key, np.uint64(q * columns + c))
                z = _box_muller(_mix(place), _mix(place + _GOLDEN))
                out[q + side * length, c] = z
    gap = length
    while gap > 1:
        half = gap // 2
        r = rho**half
        pull, free = r / (1 + r * r), np.sqrt((1 - r * r) / (1 + r * r))
        for q in range(half, length, gap):
            for c in range(columns - 1):
                out[q, c] = pull * (out[q - half, c] + out[q + half, c]) + free * out[q, c]
        gap = half


@njit(fastmath=FMA)
def _stream_gradient(
    buffer, held, z, i, seed, start, size, rho, length, spread, noise, target, w, out
):
    """Sum over the next ``size`` samples of a stream of x (x'w - y)."""
    dim = len(out)
    out[:] = 0.0
    for t in range(start, start + size):
        block = t // length
        if held[z, i] != block:
            _fill_block(buffer[z, i], seed, i, block, rho, length, dim + 1)
            held[z, i] = block
        q = t - block * length
        residual = -noise * buffer[z, i, q, dim]
        for j in range(dim):
            residual += spread * buffer[z, i, q, j] * (w[j] - target[j])
        for j in range(dim):
            out[j] += residual * spread * buffer[z, i, q, j]


@njit(nogil=True, cache=True, fastmath=FMA)
def _rounds(  # noqa: PLR0912, PLR0915 (one loop nest: cutting it up would cost speed)
    rows, starts, sizes, rhos, spreads, noises, lengths, targets, when, zeros,
    seeds, client, base, draw, row, factor, a, steps, weights, batch_sizes,
    mu, rule, constants,
    w, history, first_moment, second_moment, first_round, dead_round, dead_client,
    trajectory, update_norms, updates,
):  # fmt: skip
    count, dim = w.shape
    depth, streams = history.shape[1], len(rhos) > 0
    picks = np.empty(2 * ((batch_sizes.max() + 1) // 2), dtype=np.uint32)
    anchor, mine, gradient = np.empty(dim), np.empty(dim), np.empty(dim)
    update = np.empty((count, dim))
    moves = np.zeros((count, len(starts), dim))
    longest = lengths.max() + 1 if streams else 0
    buffer = np.empty((count if streams else 0, len(starts), longest, dim + 1))
    held = np.full((count, len(starts)), -1, dtype=np.int64)
    for k in range(client.shape[1]):
        update[:] = 0.0
        moves[:] = 0.0
        for slot in range(client.shape[2]):
            for z in range(count):
                i = client[z, k, slot]
                if dead_round[z] > 0 or i < 0:
                    continue
                batch_size = batch_sizes[i]
                half, share = (batch_size + 1) // 2, 1.0 / batch_size
                place, time = base[z, k, slot] % depth, row[z, k, slot]
                for j in range(dim):
                    anchor[j] = history[z, place, j]
                    mine[j] = anchor[j]
                key = _key(seeds[z], i, draw[z, k, slot])
                for step in range(steps[i]):
                    if streams:
                        begin = (draw[z, k, slot] * steps[i] + step) * batch_size
                        _stream_gradient(
                            buffer, held, z, i, seeds[z], begin, batch_size, rhos[i], lengths[i],
                            spreads[i], noises[i], targets[when[z, k, slot], i], mine, gradient,
                        )  # fmt: skip
                    else:
                        _fill_batch(picks, key, step, half, np.uint64(sizes[i]))
                        start = np.uint64(starts[i])
                        if dim == len(zeros):
                            _gradient(rows, start, picks, half, batch_size, mine, zeros, gradient)
                        else:
                            _gradient_wide(rows, start, picks, batch_size, mine, gradient)
                    for j in range(dim):
                        pull = _direction(gradient[j] * share, mine[j], anchor[j], mu)
                        mine[j] -= a[time, step, i] * pull
                own, finite = z if weights.shape[0] > 1 else 0, True
                for j in range(dim):
                    move = mine[j] - anchor[j]
                    moves[z, i, j] += move
                    finite &= np.isfinite(mine[j])
                    update[z, j] += weights[own, k, i] * factor[z, k, slot] * move
                if not finite:
                    moves[z, i, :] = np.nan
                    dead_round[z], dead_client[z] = first_round + k + 1, i
        for z in range(count):
            for i in range(len(starts)):
                square = 0.0
                for j in range(dim):
                    square += moves[z, i, j] * moves[z, i, j]
                update_norms[z, k, i] = np.sqrt(square)
            if dead_round[z] == 0:
                if rule == _MOMENTUM:
                    _momentum_step(constants[1], w, update, first_moment, z)
                else:
                    _server_step(rule, constants, w, update, first_moment, second_moment, z)
                trajectory[z, k] = w[z]
                history[z, (first_round + k + 1) % depth] = w[z]
                if updates.shape[0]:
                    updates[z, k] = moves[z]
