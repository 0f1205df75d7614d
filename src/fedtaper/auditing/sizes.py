r"""How fast a client really tapers, from nothing but the sizes of what it sends.

With :math:`g_{ik}` from :mod:`fedtaper.auditing.taper`, client i sends
:math:`|u_{ik}| = g_{ik} |w_i - \bar w_k|`: the distance moves with the shared model, which sizes
do not show. But where the model settles follows from the sizes: it is the mean of the clients'
optima, each weighted by its share :math:`q_{ik} = g_{ik} / \sum_j g_{jk}`, and so

.. math:: |w_i - \bar w_k| = (1 - q_{ik}) |w_i - m_{ik}|,

with m_ik the mean of the *other* clients' optima, with weights :math:`q_{jk} / (1 - q_{ik})`. The
first factor is known and is divided out. The second is constant while the others' weights keep
their proportions; where they do not, m_ik moves by the change of each weight times that
client's distance, in a direction that sizes cannot show. This drift, and the walk of the
model around this place that is caused by the noise of the clients' updates, are not fitted: their
possible effect on an estimate, linear in the log sizes, is part of its standard error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing.robust import middle, row_median
from fedtaper.auditing.taper import EXCESS_SPREAD, Declared, Fit, shape

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
SPREAD = (0.2, 0.7)  # deviation of log curvature among clients: at least, at most
COSINE = 0.4  # mean square of the cosine between two clients' directions: 1/d, d unknown
WALK = 2.0  # variance of the noise across a size's direction, over that along it, as one sees it
EXACT, SYSTEMATIC = 0.01, 0.004  # what the model leaves out, of a log size and of an excess
BELIEVED = 3.0  # standard errors from which on an excess counts for where the model settles
SETTLED = 0.15  # common log size above the later ones from which on the model still arrives
SCATTER = 2.0  # times the middle variance above which the scatter is the walk's
BENT = 8.0  # what a motion of the distance's own size adds to its effect, beyond the linear
FARTHEST = 5.0  # a client's distance counts for at most this many times the middle one's


@dataclass(frozen=True)
class _Seen:
    """Log sizes (L, rounds), which of them are used, and how many rounds each stands for."""

    logs: Array
    there: Flags
    late: Flags  # those that levels and scales are taken from
    each: Array
    declared: Declared


@dataclass(frozen=True)
class _State:
    """What is known of each client, and of the shared model's motion."""

    level: Array  # log distance
    curvature: Array  # log
    excess: Array
    believed: Array  # the excess that counts for the shares: 0 until shown
    centre: float  # of the log curvatures, and their spread
    spread: float
    walk: Array  # (rounds, rounds) covariance of the model's place along any direction
    drift: Array  # (rounds,) variance of the place it settles at
    like: float = 0.5  # how far a curvature is drawn to the centre where it weighs clients

    @property
    def common(self) -> Array:
        """Log curvature for the shares: late sizes know curvature times distance only."""
        return self.curvature + self.like * (self.centre - self.curvature)

    @property
    def distance(self) -> Array:
        """The distance that belongs to that curvature."""
        log = self.level + self.curvature - self.common
        return np.asarray(np.exp(np.clip(log, -14, 14)), dtype=np.float64)


@dataclass(frozen=True)
class _Look:
    """The model of the log sizes at a state, linearised in (level, log curvature, excess)."""

    g: Array
    share: Array
    noise: Array  # variance of one round's log size
    residual: Array
    design: Array  # (L, rounds, 3)
    weight: Array

    def matrix(self, prior: Array) -> Array:
        """The normal equations' left side, (L, 3, 3)."""
        weighted = self.weight[..., None] * self.design
        return weighted.transpose(0, 2, 1) @ self.design + prior[..., None] * np.eye(3)


def fit_sizes(norms: Array, declared: Declared, rounds_each: Array) -> Fit:
    """From sizes (L, rounds), NaN where absent; ``rounds_each`` as for updates.

    The curvatures are estimated with every client taken at its word (or at what has been shown
    about it), then each client's excess together with its own curvature; and once more.
    """
    seen = _used(norms, declared, rounds_each)
    state = _start(seen)
    for held in (True, False, True, False):
        state, look, inverse = _settle(seen, state, held)
        if held:
            state = _learn(state, inverse[:, 1, 1])
        state = _moving(seen, state, look)
        error = _error(seen, state, look, inverse)
        if not held:
            shown = np.abs(state.excess) > BELIEVED * error
            state = replace(state, believed=np.where(shown, state.excess, 0.0))
    return Fit(
        state.excess,
        error,
        state.curvature,
        state.distance,
        np.ones(len(norms)),
        row_median(look.residual.T, seen.there.T),
    )


def plausible(fit: Fit) -> bool:
    """Whether the sizes follow this model, and not all clients fade or swing together."""
    together = float(np.sqrt(np.mean(fit.common[len(fit.common) // 3 :] ** 2)))
    return together < 0.1 and abs(middle(fit.excess)) < 0.05


def _used(norms: Array, declared: Declared, rounds_each: Array) -> _Seen:
    """The sizes from the round on in which the model, coming from far, has settled."""
    there = (rounds_each > 0) & (np.nan_to_num(norms) > 0)
    logs = np.where(there, np.log(np.where(there, norms, 1.0)), 0.0)
    number = np.arange(norms.shape[1])
    second = number >= len(number) // 2
    plain = logs - np.log(declared.sums)
    common = row_median((plain - row_median(plain, there & second)[:, None]).T, there.T)
    arriving = np.flatnonzero((common > SETTLED) & ~second)
    begin = int(arriving[-1]) + 3 if len(arriving) else 0
    there = there & (number >= begin)
    late = there & (number >= max(len(number) // 4, begin))
    return _Seen(logs - middle(logs[late]), there, late, rounds_each, declared)


def _start(seen: _Seen) -> _State:
    """One curvature for all: the one whose bend the median client follows best."""
    clients, rounds = seen.logs.shape
    halfway = middle(seen.declared.sums[:, rounds // 2])
    grid = np.log(np.geomspace(1e-2, 3, 16) / halfway)
    found = []
    for value in grid:
        g, _, _, trust = shape(seen.declared, np.full(clients, value), np.zeros(clients))
        residual = seen.logs - np.log(g)
        residual = residual - row_median(residual, seen.late)[:, None]
        used = seen.there & (trust > 0.3) & (np.arange(rounds) >= 2)
        off = (np.abs(residual) * used).sum(axis=1) / np.maximum(used.sum(axis=1), 1)
        found.append(middle(off))
    best = float(grid[int(np.argmin(found))])
    curvature, zero = np.full(clients, best), np.zeros(clients)
    level = row_median(seen.logs - np.log(shape(seen.declared, curvature, zero)[0]), seen.late)
    still = np.zeros((rounds, rounds))
    return _State(level, curvature, zero, zero, best, SPREAD[1], still, np.zeros(rounds))


def _look(seen: _Seen, state: _State) -> _Look:
    g, bend, variance, trust = shape(seen.declared, state.curvature, state.excess)
    usual, _, _, safe = shape(seen.declared, state.common, state.believed)
    weigh = usual * (seen.each.sum(axis=1) / seen.each.sum(axis=1).max())[:, None]
    share = weigh / weigh.sum(axis=0)
    known = np.log(g) + np.log1p(-np.minimum(share, 0.95))
    residual = np.where(seen.there, seen.logs - known - state.level[:, None], 0.0)
    uneven = variance / g**2
    uneven = uneven / row_median(uneven, seen.late)[:, None]
    apart = np.sqrt(np.maximum(seen.each.max(axis=0), 1) / uneven)
    scale = np.maximum(1.4826 * row_median(np.abs(residual) * apart, seen.late), 1e-3)
    noise = scale[:, None] ** 2 * uneven
    moved = (state.drift + np.diag(state.walk)) / state.distance[:, None] ** 2
    deviation = np.sqrt(noise / np.maximum(seen.each, 1) + EXACT**2 + moved)
    # where the middle client overshoots, the shared model is thrown about, for everyone
    weight = seen.there * trust * np.median(safe, axis=0) / deviation**2
    weight = weight / np.maximum(1, np.abs(residual) / (2 * deviation))
    lean = bend / g
    design = np.stack([np.ones_like(g), lean, -seen.declared.log_n * lean], axis=2)
    return _Look(g, share, noise, residual, design, weight)


def _settle(seen: _Seen, state: _State, held: bool) -> tuple[_State, _Look, Array]:
    """Gauss-Newton in level, curvature and excess, or with the excess held at what is believed."""
    if held:
        state = replace(state, excess=state.believed)
    for _ in range(10):
        look = _look(seen, state)
        off = state.curvature - state.centre
        prior = np.stack(
            [
                np.full(len(off), 1e-12),
                3 / (2 * state.spread**2 + off**2),  # heavy tails: the odd one is not drawn in
                np.full(len(off), 1e8 if held else 1 / EXCESS_SPREAD**2),
            ],
            axis=1,
        )
        at = np.stack([0 * off, off, 0 * off if held else state.excess], axis=1)
        matrix = look.matrix(prior)
        right = np.einsum("lk,lki,lk->li", look.weight, look.design, look.residual, optimize=True)
        move = np.linalg.solve(matrix, (right - prior * at)[..., None])[..., 0]
        size = np.maximum(np.abs(move), 1e-12)
        move = move * np.minimum(1, np.minimum(1 / size[:, 1], 0.3 / size[:, 2]))[:, None]
        curvature = np.clip(state.curvature + move[:, 1], state.centre - 3, state.centre + 2.5)
        excess = np.clip(state.excess + move[:, 2], -1, 3)
        state = replace(state, level=state.level + move[:, 0], curvature=curvature, excess=excess)
        if np.abs(move[:, 1:]).max() < 1e-4:
            break
    return state, look, np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _learn(state: _State, variance: Array) -> _State:
    """How similar the clients' curvatures are, estimated from them (one step of EM)."""
    if len(variance) < 4:
        return state
    usual = middle(state.curvature)
    inside = middle((state.curvature - usual) ** 2 / 0.4549) + middle(variance)
    return replace(state, centre=usual, spread=float(np.clip(np.sqrt(inside), *SPREAD)))


def _moving(seen: _Seen, state: _State, look: _Look) -> _State:
    """Drift of the place where the model settles, and the model's walk around it.

    In a round the model keeps a share 1 - mean g of its distance from that place, and the noises
    of the clients' updates add to it.
    """
    far = np.minimum(state.distance, FARTHEST * middle(state.distance))[:, None]
    drift = COSINE * (((look.share - look.share.mean(axis=1)[:, None]) * far) ** 2).sum(axis=0)
    gain = np.clip(look.g.mean(axis=0), 1e-9, 1.0)
    added = WALK * (look.noise * (look.g * far) ** 2).sum(axis=0) / len(far) ** 2
    rounds = np.maximum(seen.each.max(axis=0), 1)
    kept = np.maximum((1 - gain) ** rounds, 1e-12)
    variance = np.zeros(len(gain))
    place = float(added[0])
    for k in range(len(gain)):
        variance[k] = place
        steady = added[k] / (1 - (1 - gain[k]) ** 2)
        place = kept[k] ** 2 * place + (1 - kept[k] ** 2) * steady
    passed = np.concatenate([[0.0], np.cumsum(np.log(kept))[:-1]])
    first = np.minimum(*np.indices((len(gain), len(gain))))
    walk = np.exp(-np.abs(passed[:, None] - passed)) * variance[first]
    mean = np.sqrt(np.minimum(1, 2 / (gain * rounds)))  # a stretch's mean moves less
    return replace(state, drift=drift, walk=walk * mean[:, None] * mean)


def _error(seen: _Seen, state: _State, look: _Look, inverse: Array) -> Array:
    """Standard error of the excess: noise and prior, drift, walk, and what is left out."""
    reply = look.weight * np.einsum("li,lki->lk", inverse[:, 2], look.design)  # to each log size
    noise = look.noise / np.maximum(seen.each, 1) + EXACT**2
    own = np.maximum((reply**2 * noise).sum(axis=1), ((reply * look.residual) ** 2).sum(axis=1))
    off = state.curvature - state.centre
    own = own + inverse[:, 2, 1] ** 2 * 3 / (2 * state.spread**2 + off**2)
    own = own + inverse[:, 2, 2] ** 2 / EXCESS_SPREAD**2
    distance = state.distance
    far = np.minimum(distance, FARTHEST * middle(distance))
    turned = reply @ look.share.T / np.maximum(1 - look.share.mean(axis=1), 0.05)[:, None]
    np.fill_diagonal(turned, 0.0)
    drift = COSINE * (turned**2 * far**2).sum(axis=1) / distance**2
    drift = drift * (1 + BENT * state.drift.max() / distance**2)
    # near its own optimum a client's size is what the walk makes it: its scatter shows that too
    place = 3 * np.diag(state.walk)
    usual = (look.weight * place).sum(axis=1) / np.maximum(look.weight.sum(axis=1), 1e-300)
    square = np.maximum(distance**2 - usual, 0.1 * distance**2)
    walk = np.einsum("lk,kj,lj->l", reply, state.walk, reply, optimize=True) / square
    scatter = row_median(look.noise, seen.late)
    more = 3 * np.maximum(scatter - SCATTER * middle(scatter), 0.0)
    close = place * np.maximum(1 / square, more / np.maximum(usual, 1e-300))[:, None]
    near = (reply * 0.5 * np.log1p(close)).sum(axis=1)
    return np.asarray(np.sqrt(own + drift + walk + near**2 + SYSTEMATIC**2), dtype=np.float64)
