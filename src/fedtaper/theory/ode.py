"""The limit ODE (Eqn6, Eqn19, Eqn20): with the limiting influences p, or with p_n at finite n."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers, check_number, check_type, one_of
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import as_quadratic, is_combining, is_quadratic
from fedtaper.experiment import Experiment
from fedtaper.theory.clock import OdeClock

Array = NDArray[np.float64]
Variable = Callable[[Any], Any]
Kind = Literal["limit", "finite"]
KINDS: tuple[Kind, ...] = ("limit", "finite")
LARGEST = 5000  # parameters: a stiff solver keeps their square in memory
SHORTEST = 1e-100  # time from start to end: below it LSODA does not come back


def limit_ode(experiment: Experiment, influence: Kind = "limit") -> LimitOde:
    r"""The ODE that the shared model follows.

    .. math:: \dot w = \sum_i q_i \pi_i \frac{s_i}{s_1} h^{(i)}(w)

    with server weight q, participation rate pi and sum s of a round's step sizes, 1 being
    the reference client. For the plain mean of clients that all take part and make the same
    number of updates this is the paper's (1/L) sum p_i h_i.

    Args:
        experiment: its problem has ``mean_field(w)`` of shape (L, d), or ``gradient(client,
            w, batch)``, from which the full gradients are computed.
        influence: "limit" for the autonomous ODE with p; "finite" for the one with p_n, which is
            the right one at finite n (n is the clock's inverse at the ODE's time t).

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> e = ft.Experiment(problem, ft.Power(0.1, 0.76, offset=20), rounds=10, local_steps=5)
    >>> ode = ft.limit_ode(e)
    >>> path = ode.solve(end=10.0)
    >>> bool(abs(path(10.0) - problem.equilibrium([1.0, 1.0])).max() < 1e-8)
    True
    """
    check_type("limit_ode", experiment, Experiment)
    one_of("influence", influence, KINDS)
    if experiment.server.rescales or is_combining(experiment.server):
        raise FedtaperError(
            f"the limit ODE is that of a weighted mean of the clients' models, which "
            f"{experiment.server!r} is not: use Average or Normalised"
        )
    if experiment.local.rescales:
        raise FedtaperError(
            f"in the limit ODE clients follow their gradients; {experiment.local!r} scales each "
            "coordinate separately: use Sgd, or Momentum"
        )
    return LimitOde(experiment, influence, mean_fields(experiment.problem))


def mean_fields(problem: Any) -> Callable[[Array], Array]:
    """All clients' mean fields as a function of w, or an error for problems without any."""
    if is_quadratic(problem):
        return problem.mean_field
    if problem.kind == "recorded":
        raise FedtaperError(
            "a recorded run has only its sites' sizes, not the gradients that the ODE needs: load "
            "it with the problem itself, ft.load(folder, problem=...)"
        )
    if problem.kind == "moving":
        raise FedtaperError(
            f"the population of {type(problem).__name__} moves, so there is no limit: "
            "see its error(run), or use only its stream"
        )
    if problem.dim > LARGEST:
        raise FedtaperError(
            f"a model of {problem.dim:,} parameters is too large to follow as an ODE "
            f"(at most {LARGEST:,})"
        )
    batches = [problem.every_sample(i) for i in range(problem.num_clients)]

    def full(w: Array) -> Array:
        return -np.stack([problem.gradient(i, w, every) for i, every in enumerate(batches)])

    return full


class TooLongError(FedtaperError):
    """Following an ODE took longer than allowed."""


def _timed(pull: Any, patience: float | None) -> Any:
    """The right side, with a time limit."""
    if patience is None:
        return pull
    end = time.monotonic() + patience

    def timed(x: Any, w: Any) -> Any:
        if time.monotonic() > end:
            raise TooLongError(f"following the ODE takes more than {patience:g} s")
        return pull(x, w)

    return timed


@dataclass(frozen=True)
class LimitOde:
    """The right side of the ODE, and its solution.

    With ``drift`` the mean fields of regression are evaluated where a client's updates of a
    round see them on average: at its own model, which its earlier updates have moved. The drift
    vanishes with the step sizes; forecasts include it.
    """

    experiment: Experiment
    influence: Kind
    fields: Callable[[Array], Array] = field(repr=False)
    drift: bool = False

    @cached_property
    def clock(self) -> OdeClock:
        """The ODE's time as a function of n, and back."""
        return OdeClock.of(self.experiment)

    @cached_property
    def _limit(self) -> Array:
        return self.experiment.limit_field_weights

    def weights(self, t: ArrayLike) -> Array:
        """The weight of each client's mean field at time t: (..., L)."""
        if self.influence == "limit":
            return np.broadcast_to(self._limit, (*np.shape(t), len(self._limit)))
        return self.experiment.field_weights(self.clock.n(t))

    def __call__(self, t: float, w: Array) -> Array:
        """The right side at time t and model w, (d,)."""
        return self.weights(t) @ self.fields(w)

    def equilibrium(self, t: float | None = None) -> Array:
        """Where the right side is 0 at time t (REG8), for problems with a closed form."""
        if t is not None:
            check_number("t", t, low=0)
        return np.asarray(as_quadratic(self.experiment.problem).equilibrium(self.weights(t or 0.0)))

    def solve(
        self,
        w: ArrayLike | None = None,
        *,
        start: float = 0.0,
        end: float | None = None,
        method: str = "LSODA",
        rtol: float = 1e-10,
        atol: float = 1e-12,
        patience: float | None = None,
    ) -> Solution:
        """Follow the ODE from model w at time ``start`` to time ``end``.

        Args:
            w: where it starts; by default the experiment's own first model.
            start: in the ODE's time; ``clock.t(n)`` turns a clock value into one.
            end: in the ODE's time; by default that of the experiment's last round.
            method: a method of ``scipy.integrate.solve_ivp``. The default switches to a stiff
                method by itself if curvatures are far apart.
            rtol: error allowed in a step, relative to the model.
            atol: error allowed in a step, absolute.
            patience: give up (:class:`TooLongError`) after this many seconds.
        """
        from scipy.integrate import solve_ivp

        e = self.experiment
        first = e.problem.initial(e.seed) if w is None else as_numbers("w", w)
        for name, value in (("start", start), ("end", 0.0 if end is None else end)):
            check_number(name, value, finite=False)
        last = self.clock.t(e.rounds * e.period) if end is None else float(end)
        if not (np.all(np.isfinite(first)) and first.shape == (e.problem.dim,)):
            raise FedtaperError(f"w must be one model of {e.problem.dim} finite numbers")
        if not (np.isfinite(start) and np.isfinite(last) and 0 <= start <= last):
            raise FedtaperError(f"end must be later than start, not from {start} to {last}")
        if 0 < last - start < SHORTEST:
            raise FedtaperError(
                f"end is only {last - start:g} later than start: choose a later one"
            )
        try:
            pull, slope, variable = self._right_side(start, last)
        except FedtaperError:
            raise
        except (ValueError, ArithmeticError) as trouble:
            raise FedtaperError(
                f"the ODE cannot be set up ({trouble}): its step sizes are too large or too small"
            ) from None
        how: dict[str, Any] = {"method": method, "rtol": rtol, "atol": atol, "dense_output": True}
        if is_quadratic(e.problem) and method in ("LSODA", "Radau", "BDF"):
            how["jac"] = slope
        span = variable(np.array([start, last])).tolist()
        try:
            found: Any = solve_ivp(_timed(pull, patience), span, first, **how)
        except FedtaperError:
            raise
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as trouble:
            raise FedtaperError(
                f"the ODE could not be solved ({trouble}): its steps are too large or too small"
            ) from None
        if not found.success:
            raise FedtaperError(f"the ODE could not be solved: {found.message}")
        return Solution(self, start, last, found.y[:, -1], found.sol, variable)

    def _right_side(self, start: float, end: float) -> tuple[Any, Any, Variable]:
        """The right side over the solver's own variable x, its derivative by w, and x of t.

        The variable is t, or log(1 + n) if the weights change with n; they then include dt/dx.
        """
        if self.influence == "limit":
            weights, drift, variable = (lambda x: self._limit), None, (lambda t: t)
        else:
            weights, drift, variable = self._tables(start, end)
        problem = self.experiment.problem
        if not is_quadratic(problem):
            return (lambda x, w: weights(x) @ self.fields(w)), None, variable
        if drift is None:
            return (
                lambda x, w: weights(x) @ self.fields(w),
                lambda x, w: -np.tensordot(weights(x), problem.moments[0], axes=1),
                variable,
            )
        values, vectors = np.linalg.eigh(problem.moments[0])
        pulled = values + self.experiment.local.added_curvature

        def felt(x: float) -> Array:  # 1 / (1 + d A) is 1 - d A where d A is small, and never < 0
            return weights(x)[:, None] / (1 + drift(x)[:, None] * pulled)

        def pull(x: float, w: Array) -> Array:
            own = felt(x) * (self.fields(w)[:, None, :] @ vectors)[:, 0]
            return np.asarray((vectors @ own[..., None])[..., 0].sum(axis=0))

        def slope(x: float, w: Array) -> Array:
            scaled = vectors * (felt(x) * values)[:, None, :]
            return np.asarray(-(scaled @ vectors.transpose(0, 2, 1)).sum(axis=0))

        return pull, slope, variable

    def _tables(self, start: float, end: float) -> tuple[Any, Any, Variable]:
        """Weights (times dt/dx) and drifts over x = log(1 + n), and x as a function of t.

        Tabulated once and splined: the solver asks for them thousands of times. The clock's
        first half round, in which they do not change, has its own spline.
        """
        from scipy.interpolate import CubicSpline

        def variable(t: Any) -> Any:
            return np.log1p(self.clock.n(t))

        low, high = variable(np.array([start, end]))
        still = float(np.log1p(self.experiment.period / 2))
        ends = [low, *([still] if low < still < high else []), high]
        tables: list[list[Any]] = [[], []]
        for a, b in pairwise(ends):
            x = np.linspace(a, max(b, a + 1e-9), max(30, int(100 * (b - a))))
            n = np.expm1(x)
            pace = self.clock.slope(n) * (1 + n)
            tables[0].append(CubicSpline(x, pace[:, None] * self.experiment.field_weights(n)))
            tables[1].append(CubicSpline(x, self.experiment.local_drift(n)))

        def lookup(pieces: list[Any]) -> Any:
            return lambda x: pieces[0 if x < ends[1] else -1](x)

        return lookup(tables[0]), lookup(tables[1]) if self.drift else None, variable


@dataclass(frozen=True)
class Solution:
    """A solution from time ``start`` to ``end``, where the model is ``w``; call it for others."""

    ode: LimitOde
    start: float
    end: float
    w: Array
    dense: Callable[[Any], Array] = field(repr=False)
    variable: Variable = field(repr=False)

    def __call__(self, t: ArrayLike) -> Array:
        """The model at time t, (..., d)."""
        times = np.asarray(t, dtype=np.float64)
        slack = 1e-12 * max(1.0, self.end)
        if not np.all((times >= self.start - slack) & (times <= self.end + slack)):
            raise FedtaperError(
                f"the ODE was solved from t = {self.start:g} to {self.end:g}; solve it with a "
                "larger end="
            )
        inside = np.clip(times.ravel(), self.start, self.end)
        return np.moveaxis(self.dense(self.variable(inside)), 0, -1).reshape(*times.shape, -1)

    def at(self, n: ArrayLike) -> Array:
        """The model when the clock stands at n, (..., d)."""
        return self(self.ode.clock.t(n))
