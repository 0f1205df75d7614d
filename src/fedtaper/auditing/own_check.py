r"""Does the model of the updates hold? A test that an honest federation can fail.

The fit of :mod:`fedtaper.auditing.taper` assumes that a client's curvature is the same in all
directions: :math:`u_k = g_k (w_i - \bar w_k)`. Where it is not (features of unlike spread, or
correlated ones), the shared model moves quickly in some directions and slowly in others, and an
honest client looks as if it tapered faster. Then the residuals still follow the model's path:
they are regressed on :math:`g_k \bar w_k`, a full matrix of coefficients, and an F test says
whether that explains more than chance would.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.auditing.taper import Declared, Fit, shape

Array = NDArray[np.float64]
UNLIKELY = 0.01  # p value
MANY = 0.15  # share of clients with an unlikely one above which the model does not hold
TRUSTED = 0.5  # rounds that overshoot are left out
UNEVEN = 4.0  # largest over smallest curvature of a client from which on sizes prove nothing


def p_values(updates: Array, w: Array, declared: Declared, rounds_each: Array, fit: Fit) -> Array:
    """How likely residuals like these are if the model holds, (L,); NaN: too few rounds to say."""
    g, bend, variance, trust = shape(declared, fit.log_curvature, fit.excess)
    out = np.full(len(updates), np.nan)
    for i, u in enumerate(updates):
        used = (rounds_each[i] > 0) & (trust[i] > TRUSTED)
        if used.sum() <= w.shape[1] + 4:
            continue
        weight = np.sqrt(rounds_each[i] * trust[i] / variance[i])[used, None]
        out[i] = _p_value(
            u[used], w[used], g[i, used, None], bend[i, used, None], weight,
            declared.log_n[i, used, None],
        )  # fmt: skip
    return out


def _p_value(u: Array, w: Array, g: Array, bend: Array, weight: Array, log_n: Array) -> float:
    from scipy.special import fdtrc

    rounds, dim = u.shape
    one = (weight * g)[:, 0]
    sent = weight * (u + g * w)  # g times the client's optimum, if the model holds
    optimum = one @ sent / max(float(one @ one), 1e-300)
    left = sent - one[:, None] * optimum
    curve = weight * bend * (optimum - w)  # curvature and excess were fitted: taken out too
    fitted = np.stack([curve.ravel(), (curve * log_n).ravel()], axis=1)
    left = (left.ravel() - fitted @ np.linalg.lstsq(fitted, left.ravel())[0]).reshape(u.shape)
    path = np.concatenate([weight * g, weight * g * (w - w.mean(axis=0))], axis=1)
    basis = np.linalg.qr(path)[0]
    rest = left - basis @ (basis.T @ left)
    free = dim * (rounds - dim - 1)
    before, after = float((left**2).sum()), float((rest**2).sum())
    if after <= 0:
        return 1.0
    return float(fdtrc(dim**2, free, max((before - after) / dim**2 / (after / free), 0.0)))


def holds(p: Array, plain: NDArray[np.bool_]) -> bool:
    """Whether the model holds for a federation: few of the plain clients contradict it.

    One of them may do so by chance. If no client can be tested (few rounds for many parameters),
    the model is not known to hold.
    """
    known = p[plain & np.isfinite(p)]
    few = (known < UNLIKELY).sum() <= max(MANY * len(known), float(len(known) >= 5))
    return bool(known.size and (few or known.min() >= UNLIKELY / len(known)))


def even(moments: ArrayLike) -> bool:
    """Whether most clients' curvatures, (L, d, d), are alike in all directions."""
    found = np.linalg.eigvalsh(np.asarray(moments, dtype=np.float64))
    return bool(np.median(found[:, -1]) <= UNEVEN * max(float(np.median(found[:, 0])), 1e-300))
