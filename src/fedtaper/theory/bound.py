"""The proof's bound on the tracking error (Eqn28 to Eqn35), term by term, for regression."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_type
from fedtaper.core.protocols import as_quadratic
from fedtaper.core.tables import Brief
from fedtaper.results import Run
from fedtaper.theory.ode import Kind, LimitOde, limit_ode
from fedtaper.theory.tracking import (
    flow,
    round_record,
    round_weights,
    window_length,
    window_starts,
)

if TYPE_CHECKING:
    from fedtaper.theory.replayed import RoundSums

Array = NDArray[np.float64]
TERMS = ("K", "P", "Q", "W", "U")


@dataclass(frozen=True, repr=False)
class Bound(Brief):
    """The terms of Eqn35 for each seed and window, (seeds, windows), and what is measured.

    Attributes:
        window: the windows' length in the ODE's time.
        round: the round after which each window starts.
        terms: K (the ODE moves within a round), P and Q (local models drift apart, by their
            fields and by their noise), W (p_n is not p), U (the aggregated noise).
        factor: the exponential of Gronwall's lemma, (windows,).
        measured: the largest distance to the ODE at the window's aggregations.
    """

    window: float
    round: NDArray[np.int64]
    terms: dict[str, Array]
    factor: Array
    measured: Array

    @property
    def total(self) -> Array:
        """The bound: the sum of the terms times the factor."""
        return sum(self.terms.values(), np.zeros(())) * self.factor

    @property
    def holds(self) -> bool:
        """Whether every window of every (finite) seed is below its bound."""
        rounding = 1e-9 * (1 + self.total)
        return bool(np.all((self.measured <= self.total + rounding) | np.isnan(self.measured)))


def bound(
    run: Run,
    window: float | None = None,
    *,
    starts: Iterable[int] | None = None,
    influence: Kind = "limit",
) -> Bound:
    """The bound of Eqn35 from the run's own local models and noise.

    It is the paper's, made exact for this clock (docs/theory.md says where it differs). With
    weights rho of the mean fields in the ODE, server weights q, a round's ODE time D, its
    step sums s_i, and Lipschitz constants K_i: a client's share of D is spread over its own
    updates in proportion to its step sizes, f_i = rho_i D / s_i of each.

    Args:
        run: a regression run that recorded every round.
        window: as in ``tracking_error``.
        starts: as in ``tracking_error``; by default 24 windows.
        influence: which ODE, with p ("limit") or with p_n ("finite"; W is then 0).
    """
    check_type("bound", run, Run)
    from fedtaper.theory.replayed import refuse_other_rules, replayed

    refuse_other_rules(run.experiment)
    w, t = round_record(run)
    length = window_length(t, window)
    chosen = window_starts(t, length, starts)
    if starts is None:
        chosen = chosen[np.unique(np.linspace(0, len(chosen) - 1, 24).astype(int))]
    ends = np.maximum(np.searchsorted(t, (t[chosen] + length) * (1 + 1e-14), "right") - 1, chosen)
    rounds = np.unique(np.concatenate([np.arange(k, m) for k, m in zip(chosen, ends, strict=True)]))
    window_of = _Windows(limit_ode(run.experiment, influence), t, rounds)
    shape = (len(w), len(chosen))
    terms, measured = {name: np.zeros(shape) for name in TERMS}, np.zeros(shape)
    if len(rounds):
        for part in replayed(run, rounds):
            steps = window_of.round_terms(part)
            for j, (k, m) in enumerate(zip(chosen, ends, strict=True)):
                if m > k:
                    found = window_of.terms(steps, w[part.seeds], int(k), int(m))
                    for name in TERMS:
                        terms[name][part.seeds, j] = found[name]
                    measured[part.seeds, j] = found["measured"]
    factor = np.array([window_of.factor(k, m) for k, m in zip(chosen, ends, strict=True)])
    return Bound(length, chosen, terms, factor, measured)


class _Windows:
    """What all windows share: the ODE's weights, times and constants in each round."""

    def __init__(self, ode: LimitOde, t: Array, rounds: NDArray[np.int64]) -> None:
        e = ode.experiment
        self.rounds, self.lengths = rounds, np.diff(t)
        weights = round_weights(ode, len(self.lengths))
        self.a, self.b = flow(e, weights)
        sums = e.step_sums(0, len(self.lengths))
        self.curvature = as_quadratic(e.problem).curvature
        self.per_update = (weights * self.lengths[:, None] / sums)[rounds]  # f_i
        self.server = e.server_weights(sums)[rounds]  # q_i
        self.lipschitz = weights @ self.curvature  # sum of rho_i K_i, a round each

    def factor(self, k: int, m: int) -> float:
        """The exponential of Gronwall's lemma over rounds k to m - 1."""
        return float(np.exp(self.lipschitz[k:m] @ self.lengths[k:m]))

    def round_terms(self, part: RoundSums) -> dict[str, Array]:
        """A round's share of P, Q, W and U: (seeds, rounds) and (seeds, rounds, d)."""
        apart = self.per_update * self.curvature
        return {
            "P": np.einsum("ki,ski->sk", apart, part.drift_apart),
            "Q": np.einsum("ki,ski->sk", apart, part.noise_apart),
            "W": np.einsum("ki,skid->skd", self.server - self.per_update, part.drift),
            "U": np.einsum("ki,skid->skd", self.server, part.noise),
        }

    def terms(self, steps: dict[str, Array], w: Array, k: int, m: int) -> dict[str, Array]:
        """The terms over rounds k to m - 1, for all seeds, and the measured distance."""
        inside = slice(*np.searchsorted(self.rounds, [k, m]))
        found = {name: steps[name][:, inside].sum(axis=1) for name in ("P", "Q")}
        for name in ("W", "U"):
            partial = np.cumsum(steps[name][:, inside], axis=1)
            found[name] = np.linalg.norm(partial, axis=-1).max(axis=1)
        model, speed = w[:, k], np.zeros(len(w))
        measured = np.zeros(len(w))
        for q in range(k, m):
            pull = self.b[q] - model @ self.a[q]
            speed = np.maximum(speed, np.linalg.norm(pull, axis=1))
            model = model + pull @ _gain(self.a[q], self.lengths[q])
            measured = np.maximum(measured, np.linalg.norm(w[:, q + 1] - model, axis=1))
        found["K"] = speed * float(self.lipschitz[k:m] @ self.lengths[k:m] ** 2)
        return found | {"measured": measured}


def _gain(a: Array, length: float) -> Array:
    """(1 - exp(-A length)) / A for a symmetric A: a round's effect of the pull at its start."""
    values, vectors = np.linalg.eigh(a)
    small = np.abs(values) * length < 1e-12
    gain = np.where(small, length, -np.expm1(-values * length) / np.where(small, 1.0, values))
    return (vectors * gain) @ vectors.T
