"""Random draws, counted by (seed, client, round): the same on every engine, and on a resume.

A draw is a hash of its place (SplitMix64 started at a key of seed, client and round), not
the next number of a stream, so neither the order of the work nor the number of seeds in a
batch can change it. ``engines/compiled.py`` compiles the very functions below.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE, _S11 = np.uint64(1), np.uint64(11)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
FEW = 1000  # normal numbers that are worth making one by one
LOW_32, S32 = np.uint64(0xFFFFFFFF), np.uint64(32)


def mix(z: Any) -> Any:
    """SplitMix64's finaliser: every bit of the input stirs every bit of the output."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


def stream_key(seed: Any, client: Any, round_: Any) -> Any:
    """The key of one client's draws in one round (all arguments uint64)."""
    return mix(mix(mix(seed + GOLDEN) + client * _MIX_2) + round_ * GOLDEN)


def batch(
    seed: int, client: int, round_: int, step: int, size: int, samples: int
) -> NDArray[np.int64]:
    """Which of a client's samples are in one mini-batch: uniform, with replacement.

    Each 64-bit draw gives two indices, its low half for the first half of the batch and its
    high half for the second. Scaling 32 bits to ``samples`` leaves a bias of at most
    samples / 2**32.
    """
    half = (size + 1) // 2
    with np.errstate(over="ignore"):
        key = stream_key(np.uint64(seed), np.uint64(client), np.uint64(round_))
        count = np.arange(step * half + 1, (step + 1) * half + 1, dtype=np.uint64)
        u = mix(key + count * GOLDEN)
    low = ((u & LOW_32) * np.uint64(samples)) >> S32
    high = ((u >> S32) * np.uint64(samples)) >> S32
    return np.concatenate([low, high])[:size].astype(np.int64)


def uniform(seed: int, client: int, round_: int) -> float:
    """One uniform number in [0, 1) for a client and a round, apart from its mini-batches."""
    with np.errstate(over="ignore"):
        key = stream_key(np.uint64(seed), np.uint64(client), np.uint64(round_))
        return float(mix(key ^ _MIX_1) >> np.uint64(11)) * 2.0**-53


def uniform_table(seed: int, clients: Any, first: int, last: int) -> NDArray[np.float64]:
    """:func:`uniform` for some clients in rounds first to last - 1, (rounds, clients).

    >>> bool(uniform_table(3, [1], 5, 8)[2, 0] == uniform(3, 1, 7))
    True
    """
    with np.errstate(over="ignore"):
        rounds = np.arange(first, last, dtype=np.uint64)[:, None]
        key = stream_key(np.uint64(seed), np.asarray(clients, dtype=np.uint64)[None, :], rounds)
        return np.asarray((mix(key ^ _MIX_1) >> _S11).astype(np.float64) * 2.0**-53)


def normal_place(key: Any, j: Any) -> Any:
    """Where the two hashes of normal number j of a stream start, apart from its mini-batches."""
    return (key ^ _MIX_2) + (j + j + _ONE) * GOLDEN


def box_muller(first: Any, second: Any) -> float:
    """A standard normal number from two hashes."""
    u, v = float(first >> _S11) * 2.0**-53, float(second >> _S11) * 2.0**-53
    return math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2.0 * math.pi * v)


def normals(seed: int, client: int, round_: int, count: int) -> NDArray[np.float64]:
    """Standard normal numbers for a client and a round.

    >>> bool(np.allclose(normals(3, 1, 7, 2 * FEW)[:FEW], normals(3, 1, 7, FEW), rtol=1e-14))
    True
    """
    with np.errstate(over="ignore"):
        key = stream_key(np.uint64(seed), np.uint64(client), np.uint64(round_))
        place = normal_place(key, np.arange(count, dtype=np.uint64))
        first, second = mix(place), mix(place + GOLDEN)
    if count <= FEW:  # to the bit what the compiled engine draws
        return np.array([box_muller(a, b) for a, b in zip(first, second, strict=True)])
    u, v = ((z >> _S11).astype(np.float64) * 2.0**-53 for z in (first, second))
    return np.asarray(np.sqrt(-2.0 * np.log(1.0 - u)) * np.cos(2.0 * np.pi * v))


def generator(seed: int, *place: int) -> np.random.Generator:
    """A NumPy generator for set-up work (data, first models), keyed by place."""
    return np.random.default_rng(np.random.SeedSequence((seed, *place)))


def shuffle(seed: int, client: int, round_: int, epoch: int, size: int) -> NDArray[np.int64]:
    """The order of a client's samples in one epoch: a permutation.

    >>> shuffle(0, 1, 2, 0, 5).tolist() == shuffle(0, 1, 2, 0, 5).tolist()
    True
    """
    with np.errstate(over="ignore"):
        key = stream_key(np.uint64(seed), np.uint64(client), np.uint64(round_)) ^ GOLDEN
        count = np.arange(epoch * size + 1, (epoch + 1) * size + 1, dtype=np.uint64)
        return np.argsort(mix(key + count * GOLDEN), kind="stable").astype(np.int64)


def uniforms(seed: int, client: int, round_: int, count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) for a client's augmentations in one round."""
    with np.errstate(over="ignore"):
        key = stream_key(np.uint64(seed), np.uint64(client), np.uint64(round_)) ^ _MIX_2
        u = mix(key + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)
    return (u >> np.uint64(11)).astype(np.float64) * 2.0**-53


def step_keys(seed: int, client: int, round_: int, steps: int) -> NDArray[np.int64]:
    """Seeds for what other libraries draw in each local update of a round (dropout, say)."""
    with np.errstate(over="ignore"):
        key = stream_key(np.uint64(seed), np.uint64(client), np.uint64(round_)) ^ _MIX_1 ^ GOLDEN
        found = mix(key + np.arange(1, steps + 1, dtype=np.uint64) * GOLDEN)
    return (found >> _ONE).astype(np.int64)


def keys_after(key: int, count: int) -> list[int]:
    """Seeds for the samples of one mini-batch, from the batch's own."""
    with np.errstate(over="ignore"):
        found = mix(np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)
    return (found >> _ONE).astype(np.int64).tolist()
