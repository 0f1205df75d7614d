# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""The order of arrivals at an asynchronous server, simulated event by event (Numba)."""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
from numba import njit

from fedtaper.core import draws
from fedtaper.rules.asynchronous import LAWS, Asynchronous

_FIXED, _EXPONENTIAL, _LOGNORMAL, _PARETO = range(len(LAWS))
_DURATION, _ON, _OFF = range(3)  # which draw of a job
_APART = 1 << 41  # keeps these draws away from those of the mini-batches
_GOLDEN, _MIX_2, _S11 = draws.GOLDEN, draws._MIX_2, np.uint64(11)
_mix = njit(draws.mix)


def simulate(rule: Asynchronous, num_clients: int, rounds: int, seed: int) -> tuple[Any, ...]:
    """Arrivals of every round: clients and the rounds of their models (rounds, K), and times.

    The third array counts how often the client had been sent the same model before. The times
    (rounds,) are those of the aggregations. The last number is the age in rounds of the oldest
    model that a client was still working on when a round ended.
    """
    laws = rule.laws(num_clients)
    kinds = np.array([LAWS.index(law.law) for law in laws])
    scales = np.array([law.scale for law in laws])
    shapes = np.array([law.shape for law in laws])
    on, off = rule.away(num_clients)
    return _simulate(kinds, scales, shapes, on, off, rule.buffer, rounds, np.uint64(seed))


@njit
def _uniform(seed, client, job, which):
    """In [0, 1), by (seed, client, job)."""
    key = _mix(_mix(seed + _GOLDEN) + np.uint64(client + _APART) * _MIX_2)
    key = _mix(key + np.uint64(3 * job + which) * _GOLDEN)
    return float(key >> _S11) * 2.0**-53


@njit
def _normal(u):
    """Standard normal from one uniform: Newton's method on the distribution function."""
    p = min(max(u, 1e-16), 1.0 - 1e-16)
    t = math.sqrt(-2.0 * math.log(min(p, 1.0 - p)))
    x = t - (2.30753 + 0.27061 * t) / (1.0 + 0.99229 * t + 0.04481 * t * t)
    x = -x if p < 0.5 else x
    for _ in range(4):
        error = 0.5 * math.erfc(-x / math.sqrt(2.0)) - p
        x -= error * math.sqrt(2.0 * math.pi) * math.exp(0.5 * x * x)
    return x


@njit
def _time(kind, scale, shape, u):
    if kind == _EXPONENTIAL:
        return -scale * math.log(1.0 - u)
    if kind == _LOGNORMAL:
        return scale * math.exp(shape * _normal(u))
    if kind == _PARETO:
        return scale * (1.0 - u) ** (-1.0 / shape)
    return scale


@njit
def _start(now, i, job, kinds, scales, shapes, on, off, seed):
    """When client i's next event is, and whether it is the arrival of its update."""
    work = _time(kinds[i], scales[i], shapes[i], _uniform(seed, i, job, _DURATION))
    if math.isinf(on[i]):
        return now + work, True
    stays = -on[i] * math.log(1.0 - _uniform(seed, i, job, _ON))
    if work <= stays:
        return now + work, True
    return now + stays - off[i] * math.log(1.0 - _uniform(seed, i, job, _OFF)), False


@njit(cache=True)
def _simulate(kinds, scales, shapes, on, off, buffer, rounds, seed):
    count = len(kinds)
    client = np.empty((rounds, buffer), dtype=np.int64)
    base = np.empty((rounds, buffer), dtype=np.int64)
    again = np.empty((rounds, buffer), dtype=np.int64)
    times = np.empty(rounds)
    job = np.zeros(count, dtype=np.int64)
    held, repeat = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    arrives = np.empty(count, dtype=np.bool_)
    queue = [(0.0, 0)]
    queue.pop()
    for i in range(count):
        when, arrives[i] = _start(0.0, i, 0, kinds, scales, shapes, on, off, seed)
        heapq.heappush(queue, (when, i))
    k, filled, reach = 0, 0, 0
    while k < rounds:
        now, i = queue[0]
        if arrives[i]:
            client[k, filled], base[k, filled], again[k, filled] = i, held[i], repeat[i]
            filled += 1
            if filled == buffer:
                times[k] = now
                k, filled = k + 1, 0
        repeat[i] = repeat[i] + int(arrives[i]) if held[i] == k else 0
        held[i] = k
        if filled == 0:
            reach = max(reach, k - held.min())
        job[i] += 1
        when, arrives[i] = _start(now, i, job[i], kinds, scales, shapes, on, off, seed)
        heapq.heapreplace(queue, (when, i))
    return client, base, again, times, reach


def waiting_times(rule: Asynchronous, num_clients: int, rounds: int, seed: int) -> Any:
    """When each round would end if the server waited for everyone, (rounds,).

    Clients that drop out lose their work and begin again when they return.
    """
    laws = rule.laws(num_clients)
    kinds = np.array([LAWS.index(law.law) for law in laws])
    scales = np.array([law.scale for law in laws])
    shapes = np.array([law.shape for law in laws])
    on, off = rule.away(num_clients)
    return _waiting(kinds, scales, shapes, on, off, rounds, np.uint64(seed))


@njit(cache=True)
def _waiting(kinds, scales, shapes, on, off, rounds, seed):
    out, begin = np.empty(rounds), 0.0
    job = np.zeros(len(kinds), dtype=np.int64)
    for k in range(rounds):
        end = begin
        for i in range(len(kinds)):
            now, arrived = begin, False
            while not arrived:
                now, arrived = _start(now, i, job[i], kinds, scales, shapes, on, off, seed)
                job[i] += 1
            end = max(end, now)
        out[k] = begin = end
    return out
