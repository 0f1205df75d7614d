# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
"""Linear regression, compiled over updates x clients x seeds (Numba), on all cores.

The arithmetic is that of ``reference``: the hash of the draws, the local and the server
equations are the same functions, compiled. Threads share out the seeds; the rounds of one
seed follow one another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem

from fedtaper.core import draws
from fedtaper.core.protocols import Array, Block, Capabilities, Options, State, as_linear
from fedtaper.engines import new_block, quick_rounds
from fedtaper.engines.reference import answers_of
from fedtaper.engines.steered import client_losses
from fedtaper.engines.threads import over_threads
from fedtaper.experiment import Experiment
from fedtaper.rules import behaviours, local, momentum, server

WIDE = 16  # features from which sums are kept in memory rather than in registers
FMA = {"contract"}  # fused multiply-add: no reordering, so results stay reproducible
_MEAN, _ADAGRAD, _ADAM, _YOGI, _MOMENTUM = range(5)
_SECOND = {server.Adagrad: _ADAGRAD, server.Adam: _ADAM, server.Yogi: _YOGI}
_GOLDEN, _LOW_32, _S32 = draws.GOLDEN, draws.LOW_32, draws.S32

_SCALED, _NOISE, _MATCHED_COPY = behaviours.SCALED, behaviours.NOISE, behaviours.MATCHED_COPY

_mix = njit(inline="always")(draws.mix)
_normal_place = njit(draws.normal_place)
_box_muller = njit(draws.box_muller)
_direction = njit(inline="always")(local.proximal_direction)
_momentum = njit(inline="always")(server.momentum)
_velocity = njit(inline="always")(server.velocity)
_adagrad = njit(inline="always")(server.adagrad)
_adam = njit(inline="always")(server.adam)
_yogi = njit(inline="always")(server.yogi)
_scaled_step = njit(inline="always")(server.scaled_step)


class Compiled:
    """Regression with the built-in rules, at the speed of machine code."""

    name = "compiled"
    capabilities = Capabilities(
        problems=frozenset({"linear"}),
        local_rules=frozenset({local.Sgd, local.Proximal, momentum.Momentum}),
        server_rules=frozenset(
            {server.Average, server.Normalised, server.AverageMomentum, *_SECOND}
        ),
        stateful_rules=True,
        updates=True,
        behaviours=True,
        challenges=True,
        steering=True,
    )

    def check(self) -> None:
        """It runs everywhere."""

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """As many rounds as take a fraction of a second."""
        return quick_rounds(experiment, seeds)

    def open(self, experiment: Experiment, state: State, options: Options) -> CompiledSession:
        """Compiled code is cached on disk, so there is nothing to prepare."""
        return CompiledSession(experiment, state)


ENGINE = Compiled()


class CompiledSession:
    """All seeds, spread over the cores."""

    def __init__(self, experiment: Experiment, state: State) -> None:
        self.e, self.state = experiment, state

    def advance(self, rounds: int) -> Block:
        """Advance every seed by ``rounds`` rounds."""
        return _advance(self.e, self.state, rounds)

    def answers(self, s: int, clients: list[int], model: Array, round_: int, a: Array) -> Array:
        """What clients send back for any model; rare enough for the reference loop."""
        return answers_of(self.e, int(self.state.seeds[s]), clients, model, round_, a)

    def losses(self, s: int) -> Array:
        """Every client's loss at the shared model."""
        return client_losses(self.e.problem, self.state.w[s])

    def steer(self, experiment: Experiment) -> None:
        """Use other step sizes from here on."""
        self.e = experiment

    def sync(self) -> None:
        """The State is always up to date."""

    def close(self) -> None:
        """Nothing to free."""


def _advance(experiment: Experiment, state: State, rounds: int) -> Block:
    block = new_block(experiment, state, rounds)
    a = behaviours.actual_step_sizes(experiment, state.round, state.round + rounds)

    def work(part: Any, some: int) -> None:
        _advance_seeds(experiment, state, block, a[:some], part)

    over_threads(work, len(state.w), rounds)
    state.round += rounds
    return block


def _advance_seeds(e: Experiment, state: State, block: Block, a: Any, part: Any) -> None:
    problem = as_linear(e.problem)
    first, rounds, clients = state.round, len(a), e.num_clients
    low, high = part[0], part[-1] + 1  # seeds of a part lie side by side: views, no copies
    with np.errstate(over="ignore"):
        keys = draws.stream_key(
            state.seeds[low:high, None, None].astype(np.uint64),
            np.arange(clients, dtype=np.uint64)[None, None, :],
            np.arange(first, first + rounds, dtype=np.uint64)[None, :, None],
        )
    who = state.seeds[low : low + 1 if np.all(e.rates == 1) else high]  # the same for all, or not
    found = [e.round_weights(first, first + rounds, int(seed)) for seed in who]
    weights, present = (np.stack(part) for part in zip(*found, strict=True))
    starts = np.concatenate([[0], np.cumsum(problem.sizes)[:-1]])
    rule, constants = _server_rule(e)
    moments = [*(array[low:high] for array in state.memory), state.w[:0], state.w[:0]]
    ahead = isinstance(e.local, momentum.Momentum) and e.local.nesterov
    beta = float(e.local.beta) if isinstance(e.local, momentum.Momentum) else 0.0
    kept = state.clients[0][low:high] if state.clients else np.empty((0, 0, 0))
    zeros = (0.0,) * (problem.dim if problem.dim <= WIDE else 1)
    none = np.empty((0, 0, 0, 1))
    kind, scale = behaviours.tables(e, first, first + rounds)
    assert block.w is not None
    _rounds(
        problem.rows, starts, np.asarray(problem.sizes), zeros,
        keys, present, a, e.steps, weights, e.batch_sizes, e.local.added_curvature, rule, constants,
        beta, ahead, kept,
        state.w[low:high], moments[0], moments[1], first,
        state.dead_round[low:high], state.dead_client[low:high],
        block.w[low:high], block.update_norms[low:high],
        none if block.updates is None else block.updates[low:high],
        kind, scale, np.empty((0, 0, 0)) if state.last is None else state.last[low:high],
    )  # fmt: skip


def _server_rule(e: Experiment) -> tuple[int, tuple[float, ...]]:
    """The server rule's number, and its constants (numbers of the user's may be ints)."""
    rule, kind, found = e.server, _MEAN, (1.0,) * 4
    if isinstance(rule, server.Adagrad | server.Adam | server.Yogi):
        kind, found = _SECOND[type(rule)], (rule.eta, rule.b1, rule.b2, rule.tau)
    elif isinstance(rule, server.AverageMomentum):
        kind, found = _MOMENTUM, (1.0, rule.beta, 1.0, 1.0)
    return kind, tuple(map(float, found))


@njit(inline="always")
def _fill_batch(picks, key, step, half, samples):
    """``draws.batch`` in place: low halves first, high halves from ``half`` on."""
    base = key + np.uint64(step * half) * _GOLDEN
    for q in range(half):
        u = _mix(base + np.uint64(q + 1) * _GOLDEN)
        picks[q] = np.uint32(((u & _LOW_32) * samples) >> _S32)
        picks[half + q] = np.uint32(((u >> _S32) * samples) >> _S32)


@njit(inline="always", fastmath=FMA)
def _residual(rows, row, w):
    """X'w - y for a row (x, y)."""
    total = -rows[row, len(w)]
    for j in range(len(w)):
        total += rows[row, j] * w[j]
    return total


@njit(inline="always", fastmath=FMA)
def _add(total, scale, rows, row):
    for j in range(len(total)):
        total = tuple_setitem(total, j, total[j] + scale * rows[row, j])
    return total


@njit(inline="always", fastmath=FMA)
def _gradient(rows, start, picks, half, size, w, zeros, out):
    """Sum over the batch of x (x'w - y), in registers: two chains, one for each half."""
    dim = len(zeros)
    point = zeros
    for j in range(dim):
        point = tuple_setitem(point, j, w[j])
    even, odd = zeros, zeros
    for q in range(size // 2):
        row, other = start + np.uint64(picks[q]), start + np.uint64(picks[half + q])
        even = _add(even, _residual(rows, row, point), rows, row)
        odd = _add(odd, _residual(rows, other, point), rows, other)
    if size % 2:
        row = start + np.uint64(picks[half - 1])
        even = _add(even, _residual(rows, row, point), rows, row)
    for j in range(dim):
        out[j] = even[j] + odd[j]


@njit(fastmath=FMA)
def _gradient_wide(rows, start, picks, size, w, out):
    """The sum of ``_gradient`` in memory instead of registers, for many features."""
    dim = len(out)
    out[:] = 0.0
    for q in range(size):
        row = start + np.uint64(picks[q])
        residual = -rows[row, dim]
        for j in range(dim):
            residual += rows[row, j] * w[j]
        for j in range(dim):
            out[j] += residual * rows[row, j]


@njit(inline="always", fastmath=FMA)
def _server_step(rule, constants, w, update, first_moment, second_moment, z):
    eta, b1, b2, tau = constants
    for j in range(w.shape[1]):
        if rule == _MEAN:
            w[z, j] += update[z, j]
            continue
        m = _momentum(first_moment[z, j], update[z, j], b1)
        v = second_moment[z, j]
        if rule == _ADAGRAD:
            v = _adagrad(v, update[z, j], b2)
        elif rule == _ADAM:
            v = _adam(v, update[z, j], b2)
        else:
            v = _yogi(v, update[z, j], b2)
        first_moment[z, j], second_moment[z, j] = m, v
        w[z, j] = _scaled_step(w[z, j], m, v, eta, tau)


@njit(fastmath=FMA)
def _momentum_step(beta, w, update, speed, z):
    """``server.AverageMomentum.step``; separate, so that the other rules' code does not change."""
    for j in range(w.shape[1]):
        speed[z, j] = _velocity(speed[z, j], update[z, j], beta)
        w[z, j] += speed[z, j]


@njit
def _send(kind, scale, moves, i, last, z, key):
    """``behaviours.sent`` in place, on row i of the updates of a round."""
    dim = moves.shape[1]
    if kind == _SCALED:
        moves[i] *= scale
        return
    if kind == _NOISE:
        size = np.sqrt(np.sum(moves[i] ** 2))
        for j in range(dim):
            place = _normal_place(key, np.uint64(j))
            moves[i, j] = _box_muller(_mix(place), _mix(place + _GOLDEN))
        moves[i] *= scale * size / np.sqrt(np.sum(moves[i] ** 2))
        return
    count, norms = moves.shape[0], 0.0
    moves[i] = 0.0
    for other in range(count):
        if other != i:
            moves[i] += last[z, other] / (count - 1)
            norms += np.sqrt(np.sum(last[z, other] ** 2)) / (count - 1)
    if kind == _MATCHED_COPY:
        size = np.sqrt(np.sum(moves[i] ** 2))
        scale = norms / size if size > 0 else 0.0
    moves[i] *= scale


@njit(nogil=True, cache=True, fastmath=FMA)
def _rounds(  # noqa: PLR0912 (one loop nest: cutting it up would cost speed)
    rows, starts, sizes, zeros,
    keys, present, a, steps, weights, batch_sizes, mu, rule, constants, beta, ahead, kept,
    w, first_moment, second_moment, first_round, dead_round, dead_client,
    trajectory, update_norms, updates, kind, scales, last,
):  # fmt: skip
    seeds, dim = w.shape
    picks = np.empty(2 * ((batch_sizes.max() + 1) // 2), dtype=np.uint32)
    mine, gradient, speed = np.empty(dim), np.empty(dim), np.zeros(dim)
    update = np.empty((seeds, dim))
    moves = np.zeros((seeds, len(starts), dim))
    for k in range(a.shape[0]):
        update[:] = 0.0
        for i in range(len(starts)):
            start, samples = np.uint64(starts[i]), np.uint64(sizes[i])
            batch_size = batch_sizes[i]
            half, share = (batch_size + 1) // 2, 1.0 / batch_size
            for z in range(seeds):  # inside the clients: a client's data stays in the cache
                if dead_round[z] > 0:
                    continue
                for j in range(dim):
                    mine[j] = w[z, j]
                own = z if present.shape[0] > 1 else 0
                there = present[own, k, i]
                if beta > 0.0:
                    for j in range(dim):
                        speed[j] = kept[z, i, j] if kept.shape[0] else 0.0
                for step in range(steps[i] if there else 0):
                    _fill_batch(picks, keys[z, k, i], step, half, samples)
                    if dim == len(zeros):
                        _gradient(rows, start, picks, half, batch_size, mine, zeros, gradient)
                    else:
                        _gradient_wide(rows, start, picks, batch_size, mine, gradient)
                    for j in range(dim):
                        pull = _direction(gradient[j] * share, mine[j], w[z, j], mu)
                        if beta > 0.0:
                            speed[j] = _velocity(speed[j], pull, beta)
                            pull = pull + beta * speed[j] if ahead else speed[j]
                        mine[j] -= a[k, step, i] * pull
                if there and kept.shape[0]:
                    for j in range(dim):
                        kept[z, i, j] = speed[j]
                finite = True
                for j in range(dim):
                    moves[z, i, j] = mine[j] - w[z, j]
                    finite &= np.isfinite(mine[j])
                if there and (kind[k, i] != _SCALED or scales[k, i] != 1.0):
                    _send(kind[k, i], scales[k, i], moves[z], i, last, z, keys[z, k, i])
                square = 0.0
                for j in range(dim):
                    square += moves[z, i, j] * moves[z, i, j]
                    update[z, j] += weights[own, k, i] * moves[z, i, j]
                update_norms[z, k, i] = np.sqrt(square)
                if not finite:
                    update_norms[z, k, i] = np.nan
                    dead_round[z], dead_client[z] = first_round + k + 1, i
        for z in range(seeds):
            if dead_round[z] == 0:
                if rule == _MOMENTUM:
                    _momentum_step(constants[1], w, update, first_moment, z)
                else:
                    _server_step(rule, constants, w, update, first_moment, second_moment, z)
                trajectory[z, k] = w[z]
                if updates.shape[0]:
                    updates[z, k] = moves[z]
                if last.shape[0]:
                    last[z] = moves[z]
