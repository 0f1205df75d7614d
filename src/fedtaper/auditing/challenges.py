r"""How fast a client really tapers, from its answers to one and the same model.

At clock n the server sends a client, besides the round's model, an earlier model :math:`w_j`. What
comes back is :math:`u_k = S_k h_i(w_j)` and noise, with :math:`S_k` the step sum of round k: the
field is the same in every answer, so the answers shrink as the step sizes do, whatever the loss.
With :math:`v = u_j`, what the client sent in round j itself, each answer becomes one number,

.. math:: q_k = \langle u_k, v \rangle / S_k, \qquad
   q_k = c \, e^{-e x_k} \psi_k (1 + \varepsilon_k),

with :math:`x_k = \log n_k`, e the excess taper and :math:`\psi_k \le 1` what large steps lose
within a round (saturation): :math:`(1 - e^{-u}) / u` with u proportional to the real step sum, as
for a quadratic loss of one curvature. v is a direction and no more: the answers are compared with
one another, never with :math:`|v|^2`, which holds the noise of v itself and would make honest
clients look faster. All :math:`\varepsilon_k` have one variance, because the noise of an answer
shrinks with the steps too. It is estimated from the scatter of the answers.

**Accusing** (:func:`evidence`) uses an e-process: the mixture Bayes factor of the linear model
with unknown level and unknown variance (Lindon et al. 2022; the invariant t-test of Lai 1976),
one-sided. For an honest client it is, at any time, above 100 with probability at most 1 %, so one
may look after every round and stop when one likes. Saturation makes an honest client's q_k *rise*
with k, away from an accusation. A mixture over the round from which on a client fades finds those
that are honest at first.

Where steps are so large that a model leaves its neighbourhood within an answer, the answer also
*turns*: a long way ends nearer to v, which is a long way itself, so an honest q_k can fall as the
steps shrink. The length :math:`|u_k| / S_k` does not, unless gradients grow along the way: a bent
way is shorter than a straight one. So the same e-process is run on the lengths, and the smaller of
the two counts (:func:`examine`). Where the cosine of u_k and v changes by more than TURNED
(:func:`turned`) there is neither an accusation nor an estimate. One update is never bent, so
challenges of one update are exact.

**Estimating** (:func:`estimate`) fits level, excess and saturation together. Losses with several
curvatures can saturate more than that form has room for, and then even an honest client's answers
fall more slowly than any fit says; there is no estimate then, since the same form might hide a
taper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CHANCE = 0.01  # that an honest client is ever accused
MARGIN = 0.015  # excess taper that is not held against anyone: fields are not quite constant
EFFECTS = (2.0, 12.0)  # slopes looked for, in deviations of the noise
FUTURE = 12  # later times to fade from that the weight is spread over, each LATER on in log n
LATER = float(np.log(1.5))
LEAST = 4  # answers that an estimate needs
SATURATION_SPREAD = 0.25  # prior deviation of the first answer's saturation
SPREADS = (0.03, 4.0)  # the same, learnt from the clients: at least, at most
STARTS = (0.0, 2.0)  # saturations from which the fit starts
UNEXPLAINED = 0.05  # slowness that no saturation explains, from which on there is no estimate
EXCESS_SPREAD = 0.5
HALF_NORMAL = 0.6  # deviation of a half-normal variable: saturation is a loss, never a gain
LEFT_OUT = 0.05  # share of the saturation that its formula may miss, as a deviation of the excess
SYSTEMATIC = 0.004
TURNED = 0.35  # relative change of the cosine with the base update, from which nothing is said
SURELY = 2.0  # standard errors of that change
NOISE_FLOOR = 1e-4  # relative deviation below which scatter is not believed


@dataclass(frozen=True)
class Asked:
    """The answers of all clients: (L, A), NaN where there is none; ``round`` (A,) from 1."""

    round: NDArray[np.int64]
    q: Array  # inner product with the base update over the declared step sum
    log_n: Array  # mean of log(n + offset) over the work of the answer
    sums: Array  # declared step sums of that work
    length: Array | None = None  # of the answer, over the declared step sum; None if unknown

    def among(self, clients: NDArray[Any]) -> Asked:
        """Some of the clients."""
        return self._cut(self.round, (clients,))

    def until(self, round_: int) -> Asked:
        """The answers up to and including that round."""
        kept = self.round <= round_
        return self._cut(self.round[kept], (slice(None), kept))

    def _cut(self, rounds: NDArray[np.int64], part: tuple[Any, ...]) -> Asked:
        length = None if self.length is None else self.length[part]
        return Asked(rounds, self.q[part], self.log_n[part], self.sums[part], length)


@dataclass(frozen=True)
class Estimate:
    """Excess taper of one client with its standard error and degrees of freedom."""

    excess: float
    error: float
    freedom: float
    saturation: float  # half of u at the first answer: to first order what it lost, in logs


NOTHING = Estimate(float("nan"), float("nan"), float("inf"), 0.0)


def evidence(q: Array, log_n: Array, sums: Array) -> Array:
    """Log of the e-process after each answer, (K,), for "tapers faster than declared".

    NaN in q is an answer that never came: it changes nothing. Two nulls are averaged, each with
    any level: "q is level or rises", and "q is a straight line in the step sum", which is what
    saturation does at first order. Against each, half of the weight is on fading from the start
    and half on fading from a later time (steps of LATER in log n).

    >>> x = np.log(np.arange(6.0, 106, 10))
    >>> noise, sums = 1 + 0.02 * np.cos(np.arange(10) ** 2), np.exp(-0.76 * x)
    >>> honest, fading = evidence(noise, x, sums), evidence(noise * np.exp(-0.24 * x), x, sums)
    >>> bool(honest.max() < np.log(100) < fading[-1])
    True
    """
    out = np.zeros(len(q))
    there = np.isfinite(q)
    y, x, s = q[there], log_n[there], sums[there]
    if len(y) < 3:
        return out
    y = y * np.exp(MARGIN * (x - x[0])) / max(float(np.abs(y[:3]).mean()), 1e-300)
    passed = int((x[-1] - x[0]) / LATER)  # a change still to come says nothing: its factor is 1
    starts = [(0.0, 0.5), *((LATER * m, 0.5 / FUTURE) for m in range(1, FUTURE + 1))]
    paths = []
    for base in (np.ones((len(y), 1)), np.stack([np.ones(len(y)), s / s[0]], axis=1)):
        for start, weight in starts:
            ramp = np.maximum(x - x[0] - start, 0.0)
            known = start <= passed * LATER
            path = _one_sided(y, ramp, base) if known else np.zeros(len(y))
            paths.append(np.log(weight / 2) + path)
    out[there] = np.logaddexp.reduce(np.array(paths), axis=0)
    return np.asarray(out if there.all() else _carried(out, there), dtype=np.float64)


def _carried(values: Array, there: NDArray[np.bool_]) -> Array:
    """Fill gaps with the last known value."""
    last = np.maximum.accumulate(np.where(there, np.arange(len(values)), -1))
    return np.where(last >= 0, values[np.maximum(last, 0)], 0.0)


def _one_sided(y: Array, ramp: Array, base: Array) -> Array:
    """Log Bayes factor after each answer: "y falls along the ramp" against "y = base @ any".

    The base's coefficients and the variance have their invariant priors, the slope over the
    deviation a half-normal one, averaged over EFFECTS.
    """
    from scipy.special import stdtr

    width = base.shape[1]
    columns = np.concatenate([base, ramp[:, None], y[:, None]], axis=1)
    gram = np.cumsum(columns[:, :, None] * columns[:, None, :], axis=0)
    count = np.arange(1, len(y) + 1)
    whole = count >= width + 2
    inner = np.where(whole[:, None, None], gram[:, :width, :width], np.eye(width))
    cross = gram[:, :width, width:]
    left = gram[:, width:, width:] - cross.transpose(0, 2, 1) @ np.linalg.solve(inner, cross)
    used = whole & (left[:, 0, 0] > 1e-9 * np.maximum(gram[:, width, width], 1e-9))
    xx = np.where(used, left[:, 0, 0], 1.0)
    fall = np.where(used, -left[:, 0, 1] / xx, 0.0)
    floor = np.maximum(NOISE_FLOOR**2 * gram[:, -1, -1], 1e-300)
    rest = np.maximum(left[:, 1, 1] - fall**2 * xx, floor)
    freedom = np.maximum(count - width, 1)
    each = []
    for effect in EFFECTS:
        kept = 1 / (1 + effect**2 * xx)
        ratio = fall**2 * xx / rest
        log = 0.5 * np.log(kept) - 0.5 * freedom * (np.log1p(kept * ratio) - np.log1p(ratio))
        scale = np.sqrt((rest + fall**2 * xx * kept) / freedom)
        centre = fall * np.sqrt(xx * (1 - kept)) / scale
        each.append(log + np.log(np.maximum(2 * stdtr(freedom, centre), 1e-300)))
    mixed = np.logaddexp.reduce(np.array(each), axis=0) - np.log(len(EFFECTS))
    return np.where(used, mixed, 0.0)


def estimate(q: Array, log_n: Array, sums: Array, spread: float = SATURATION_SPREAD) -> Estimate:
    """Excess taper with its error, the saturation taken out.

    Quasi-likelihood with a log link and proportional noise. Saturation is 0 or a loss, never a
    gain; ``spread`` is its prior deviation at the first answer.
    """
    there = np.isfinite(q)
    if there.sum() < LEAST or np.mean(q[there]) <= 0:
        return NOTHING
    y, x, s = q[there], log_n[there], sums[there]
    y, s = y / np.mean(y), s / s[0]
    fits = [_fitted(y, x, s, spread, start) for start in STARTS]
    found, variance, freedom, design, lost = min(fits, key=lambda fit: fit[1])
    prior = variance / np.array([1e6, EXCESS_SPREAD, HALF_NORMAL * spread]) ** 2
    own = variance * np.linalg.inv(design.T @ design + np.diag(prior))[1, 1]
    more = SYSTEMATIC**2 + (LEFT_OUT * lost) ** 2
    return Estimate(float(found[1]), float(np.sqrt(own + more)), float(freedom), float(found[2]))


def _fitted(
    y: Array, x: Array, s: Array, spread: float, start: float
) -> tuple[Array, float, float, Array, float]:
    """Level, excess and saturation; variance, its freedom, the design, what the first lost."""
    centred, since = x - x.mean(), x - x[0]
    found, variance = np.array([0.0, 0.0, start]), 1e-4
    for _ in range(60):
        reach = 2 * s * np.exp(-np.clip(found[1], -1, 3) * since)
        log_kept, slope = saturated(found[2] * reach)
        design = np.stack(
            [np.ones(len(y)), -slope * found[2] * reach * since - centred, slope * reach], axis=1
        )
        log = found[0] - found[1] * centred + log_kept
        off = np.clip(y * np.exp(-np.clip(log, -20, 20)) - 1, -3, 3)
        prior = variance / np.array([1e6, EXCESS_SPREAD, spread]) ** 2
        matrix = design.T @ design + np.diag(prior)
        move = np.linalg.solve(matrix, design.T @ off - prior * found)
        found = found + np.clip(move, -0.5, 0.5)
        found[2] = max(found[2], 0.0)
        freedom = max(len(y) - np.trace(np.linalg.solve(matrix, design.T @ design)), 1.0)
        variance = max(float(off @ off) / freedom, NOISE_FLOOR**2)
        if np.abs(move).max() < 1e-7:
            break
    return found, variance, float(freedom), design, float(-log_kept[0])


def saturated(u: Array) -> tuple[Array, Array]:
    """Log of (1 - exp(-u)) / u, and its derivative.

    >>> log, slope = saturated(np.array([0.5, 1.0]))
    >>> log.round(4).tolist(), slope.round(4).tolist()
    ([-0.2396, -0.4587], [-0.4585, -0.418])
    """
    small = u < 1e-4
    safe = np.where(small, 1.0, u)
    log = np.where(small, -u / 2, np.log(-np.expm1(-safe) / safe))
    return log, np.where(small, u / 12 - 0.5, 1 / np.expm1(safe) - 1 / safe)


@dataclass(frozen=True)
class Challenged:
    """What the challenges show about every client."""

    excess: Array
    error: Array
    freedom: Array
    found: NDArray[np.int64]  # the round from which on it is accused; 0 where it is not
    unexplained: NDArray[np.bool_]  # slower than declared, and than any saturation explains
    turned: NDArray[np.bool_]  # its answers point elsewhere as its steps shrink


def examine(asked: Asked) -> Challenged:
    """Estimate and test every client by its answers."""
    from scipy.special import stdtrit

    rows = list(zip(asked.q, asked.log_n, asked.sums, strict=True))
    first = [estimate(*row) for row in rows]
    spreads = _usual(first, asked)
    each = [estimate(*row, float(spread)) for row, spread in zip(rows, spreads, strict=True)]
    found, at_last = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
    for i, (q, log_n, sums) in enumerate(rows):
        log, turns = evidence(q, log_n, sums), np.zeros(len(q), dtype=bool)
        if asked.length is not None:
            log = np.minimum(log, evidence(asked.length[i], log_n, sums))
            turns = turned(q / np.maximum(asked.length[i], 1e-300), log_n)
        over = np.flatnonzero((log >= -np.log(CHANCE)) & ~turns)
        found[i] = asked.round[over[0]] if over.size else 0
        at_last[i] = bool(turns[-1:].any())
    excess, error, freedom = np.array([(f.excess, f.error, f.freedom) for f in each]).T
    unexplained = excess + stdtrit(freedom, 0.975) * error < -UNEXPLAINED
    blank = np.where(unexplained | at_last, np.nan, 1.0)
    return Challenged(excess * blank, error * blank, freedom, found, unexplained, at_last)


def turned(cosine: Array, log_n: Array) -> NDArray[np.bool_]:
    """Whether the cosine with the base update has surely changed with n, after each answer.

    A straight line in log n is fitted to the answers so far; NaN is an answer that never came.

    >>> x = np.log(np.arange(3.0, 43, 4))
    >>> bool(turned(0.9 - 0.01 * x, x)[-1]), bool(turned(0.9 - 0.2 * x, x)[-1])
    (False, True)
    """
    out = np.zeros(len(cosine))
    there = np.isfinite(cosine)
    y, x = cosine[there], log_n[there]
    if len(y) < LEAST:
        return out > 0
    x = x - x[0]
    count = np.arange(1, len(y) + 1)
    mean_x, mean_y = np.cumsum(x) / count, np.cumsum(y) / count
    xx = np.cumsum(x * x) - count * mean_x**2
    xy = np.cumsum(x * y) - count * mean_x * mean_y
    yy = np.cumsum(y * y) - count * mean_y**2
    slope = xy / np.maximum(xx, 1e-300)
    rest = np.maximum(yy - slope * xy, 0.0) / np.maximum(count - 2, 1)
    least = np.abs(slope) - SURELY * np.sqrt(rest / np.maximum(xx, 1e-300))
    out[there] = (count >= LEAST) & (least * np.maximum.accumulate(x) > TURNED * np.abs(mean_y))
    return np.asarray((out if there.all() else _carried(out, there)) > 0)


def _usual(first: list[Estimate], asked: Asked) -> Array:
    """How much each client may saturate, by its step sum: they all train the same model."""
    known = np.array([np.isfinite(f.error) for f in first])
    if not known.any():
        return np.full(len(first), SATURATION_SPREAD)
    there = np.isfinite(asked.q).argmax(axis=1)
    sums = asked.sums[np.arange(len(first)), there]  # of each client's first answer
    lost = np.array([f.saturation for f in first])
    # the middle one: who fades late is no measure
    usual = 1.4826 * float(np.median(lost[known] / sums[known]))
    return np.clip(usual * sums, *SPREADS)
