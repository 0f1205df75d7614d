"""What the directions of the updates show, and sizes cannot: copying and noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
LEAST = 12  # rounds that a verdict on directions needs
ALIKE = 0.98  # cosine from which an update is a copy
CLOSER = 0.25  # a copy is this much closer to what the others sent last than to what they send now
SMALL = 0.25  # size beside the others' below which a lack of direction proves nothing
CHANCE = 0.001  # how often chance alone may give noise a direction


def copying(updates: Array) -> Flags:
    """Who sends the others' last mean, up to scale, in nearly every round of the last half.

    ``updates`` is (L, rounds, d), NaN where absent. If most clients look like copies (the
    shared model is far away and everyone pulls the same way), nobody is called one. An honest
    client may pull in the others' direction, but no more in that of a round ago than in the
    current one; a copy is late.
    """
    clients, rounds, dim = updates.shape
    if dim < 2 or clients < 3:
        return np.zeros(clients, dtype=bool)
    there = np.isfinite(updates[..., 0])
    sent = np.where(there[..., None], updates, 0.0)
    total, count = sent.sum(axis=0), there.sum(axis=0)
    others = (total - sent) / np.maximum(count - there, 1)[..., None]
    everyone = np.broadcast_to(total / np.maximum(count, 1)[:, None], sent.shape)
    late = np.arange(1, rounds) >= rounds // 2
    used = there[:, 1:] & late
    alike, late_by_one = np.zeros((clients, rounds - 1)), np.zeros(clients, dtype=bool)
    for target in (others, everyone):
        before, now = _cosine(sent[:, 1:], target[:, :-1]), _cosine(sent[:, 1:], others[:, 1:])
        alike = np.maximum(alike, before)
        gap, usual = (((1 - cosine) * used).sum(axis=1) for cosine in (before, now))
        late_by_one |= gap < CLOSER * usual
    share = ((alike > ALIKE) & used).sum(axis=1) / np.maximum(used.sum(axis=1), 1)
    found = (share >= 0.8) & (used.sum(axis=1) >= LEAST) & late_by_one
    return found & (np.median(share) < 0.5)


def noise(updates: Array, sums: Array) -> Flags:
    """Whose updates have no direction that lasts, though they are as large as the others'.

    The unit vectors of the last half of the rounds are added up: of K random directions in d
    dimensions, K d times the squared length of their mean is chi-squared with d degrees of
    freedom. A client with much smaller updates than the others may just have reached its own
    optimum, where only its mini-batch noise is left; it is not judged.
    """
    clients, rounds, dim = updates.shape
    if dim < 2:
        return np.zeros(clients, dtype=bool)
    from scipy.special import chdtri

    late = np.arange(rounds) >= rounds // 2
    size = np.linalg.norm(np.nan_to_num(updates), axis=2)
    used = np.isfinite(updates[..., 0]) & late & (size > 0)
    unit = (
        np.where(used[..., None], np.nan_to_num(updates), 0) / np.maximum(size, 1e-300)[..., None]
    )
    count = np.maximum(used.sum(axis=1), 1)
    resultant = (unit.sum(axis=1) ** 2).sum(axis=1) * dim / count
    scaled = size / sums
    relative = np.array(
        [np.median(r[u]) if u.any() else 0.0 for r, u in zip(scaled, used, strict=True)]
    )
    usual = float(np.median(relative[relative > 0])) if (relative > 0).any() else 0.0
    comparable = relative > SMALL * usual
    return (used.sum(axis=1) >= LEAST) & (resultant < chdtri(dim, CHANCE)) & comparable


def _cosine(a: Array, b: Array) -> Array:
    size = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(axis=-1) / np.maximum(size, 1e-300)
