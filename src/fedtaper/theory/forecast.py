"""Where the model will be at a far clock value, and when an influence will have faded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import check_number, check_type
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_network, is_quadratic
from fedtaper.core.tables import Brief
from fedtaper.experiment import Experiment
from fedtaper.theory.fluctuation import fluctuation
from fedtaper.theory.ode import LimitOde, TooLongError, limit_ode

Array = NDArray[np.float64]
SMALL = 60  # parameters up to which a stiff method pays for a network
PATIENCE = 10.0  # seconds for following a network
_SCAN = np.linspace(0.0, math.log(1e300), 2001)


@dataclass(frozen=True, repr=False)
class Forecast(Brief):
    """The model at clock n, as the ODE with p_n predicts it.

    Attributes:
        experiment: the experiment.
        n, t: the clock value, and the ODE's time at it.
        w: the model, (d,); NaN if it cannot be followed, and ``note`` then says why. It also
            says if clients do not do what they declare: the forecast is for what they declare.
        influence: effective influences p_n at n; ``limit_influence``: their limit p.
        equilibrium: w*(p_n), which the model follows, and ``limit``: w*(p), where it ends
            (None if the problem has no closed form).
    """

    experiment: Experiment
    n: float
    t: float
    w: Array
    influence: Array
    limit_influence: Array
    equilibrium: Array | None
    limit: Array | None
    note: str = ""

    @property
    def round(self) -> float:
        """The number of rounds at that clock value."""
        return self.n / self.experiment.period

    @property
    def distance(self) -> float:
        """How far the model is from w*(p_n): the ODE's lag behind its moving equilibrium."""
        return _distance(self.w, self.equilibrium)

    @property
    def distance_limit(self) -> float:
        """How far the model is from w*(p)."""
        return _distance(self.w, self.limit)

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Where a run's model will be, with the noise of its mini-batches: low and high, (d,).

        For a single run of a convex problem whose covariance is known (see ``ft.intervals``).
        """
        from scipy.special import ndtri

        check_number("level", level, above=0, below=1)
        found = fluctuation(self.experiment, self.n).covariance
        half = float(ndtri(0.5 + level / 2)) * np.sqrt(np.diag(found))
        return self.w - half, self.w + half

    def fades(self, to: float = 0.01) -> Array:
        """For each client the clock value from which its influence stays below ``to``."""
        return fades(self.experiment, to)


def forecast(
    experiment: Experiment, n: float, *, w: ArrayLike | None = None, start: float = 0.0
) -> Forecast:
    """Where the model will be when the clock stands at n, in well under a second.

    The ODE with p_n is solved over its own time, which grows like n^(1 - delta): n = 1e16 is
    only a few thousand units away. For regression it includes the drift of a client's
    own model within a round, which shifts the equilibrium by the order of a step size (SCAFFOLD
    corrects it). It leaves out the mini-batch noise, of about the square root of the step size,
    and the climb after a first step that is too large. For rules that remember earlier rounds it
    is where the model goes once their memory has settled.

    Args:
        experiment: what is run.
        n: a clock value of at least 1.
        w: a model to start from, by default the experiment's first; its clock is ``start``.
        start: the clock value of w, such as ``run.n[-1]``.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=100)
    >>> schedules = [ft.Power(0.1, 0.76, offset=20), ft.Power(0.1, 1.0, offset=20)]
    >>> e = ft.Experiment(problem, schedules, rounds=10, local_steps=5)
    >>> far = ft.forecast(e, n=1e12)
    >>> far.influence.round(4)
    array([1.    , 0.0013])
    >>> f"{far.fades(to=0.01)[1]:.2g}"
    '2.2e+08'
    """
    check_type("forecast", experiment, Experiment)
    for name, value, low in (("n", n, 1.0), ("start", start, 0.0)):
        check_number(name, value, finite=False)
        if not low <= value <= 1e300:
            raise FedtaperError(
                f"{name} = {value!r:.20} is not a clock value: give a number from 1 to 1e300"
            )
    if start > n:
        raise FedtaperError(f"the model's clock {start:g} is already past n = {n:g}")
    # a client that is sent the others' mean gradient (SCAFFOLD) drifts with them, not apart
    ode = replace(limit_ode(experiment, "finite"), drift=not experiment.local.receives)
    end = ode.clock.t(n)
    p_n, p = experiment.field_weights(n), experiment.limit_field_weights
    problem = experiment.problem
    model, note = _model(ode, w, ode.clock.t(start), end)
    if experiment.behaviours and not note:
        who = ", ".join(experiment.name(client) for client, _ in experiment.behaviours)
        note = f"behaviours are set ({who}): the forecast is for the declared step sizes"
    return Forecast(
        experiment=experiment,
        n=float(n),
        t=end,
        w=model,
        note=note,
        influence=p_n / p_n[experiment.reference],
        limit_influence=experiment.limit_influence,
        equilibrium=problem.equilibrium(p_n) if is_quadratic(problem) else None,
        limit=problem.equilibrium(p) if is_quadratic(problem) else None,
    )


def fades(experiment: Experiment, to: float) -> Array:
    """For each client the clock value from which its effective influence stays below ``to``.

    1 if it always was, infinity if it never will be (or only beyond n = 1e300).
    """
    from scipy.optimize import brentq

    check_number("an influence to fade to", to, above=0)

    def above(log_n: ArrayLike) -> Array:
        weights = experiment.field_weights(np.exp(log_n))
        return weights / weights[..., experiment.reference, None] - to

    seen = above(_SCAN) >= 0
    out = np.ones(experiment.num_clients)
    for i in range(experiment.num_clients):
        last = int(np.flatnonzero(seen[:, i])[-1]) if seen[:, i].any() else -1
        if last == len(_SCAN) - 1:
            out[i] = math.inf
        elif last >= 0:
            low, high = _SCAN[last], _SCAN[last + 1]
            out[i] = math.exp(brentq(lambda x, i=i: float(above(x)[i]), low, high, xtol=1e-12))
    return out


def _model(ode: LimitOde, w: ArrayLike | None, start: float, end: float) -> tuple[Array, str]:
    """The model at the end, or why it was not followed.

    A network's mean field is a gradient over all samples, so the ODE is followed only for a few
    seconds; and with dropout it is not a function of the model.
    """
    problem = ode.experiment.problem
    if not is_network(problem):
        return ode.solve(w, start=start, end=end, rtol=1e-8, atol=1e-10).w, ""
    from fedtaper.problems.trial import trial

    unknown = np.full(problem.dim, np.nan)
    if trial(problem):
        return unknown, "the model draws random numbers in training (dropout): no ODE follows it"
    small = problem.dim <= SMALL
    how: dict[str, Any] = {"method": "LSODA" if small else "RK45", "patience": PATIENCE}
    try:
        return ode.solve(w, start=start, end=end, rtol=1e-6, atol=1e-8, **how).w, ""
    except TooLongError:
        return unknown, (
            f"following the model takes more than {PATIENCE:g} s (a gradient over all samples for "
            "every step of the ODE); ask for a smaller n, or start nearer (w=, start=)"
        )


def _distance(w: Array, other: Array | None) -> float:
    return math.nan if other is None else float(np.linalg.norm(w - other))
