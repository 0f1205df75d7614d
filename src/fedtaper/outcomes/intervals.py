"""Error bars: intervals for the model, for every client's loss, and for the weighted loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_path, check_number, check_type, one_of
from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import Brief, html, plain
from fedtaper.experiment import Experiment
from fedtaper.outcomes.scaling import ENOUGH, average, critical
from fedtaper.results import Run, check_recorded
from fedtaper.theory.equilibria import refuse_elsewhere
from fedtaper.theory.fluctuation import Fluctuation, centres, fluctuation

Array = NDArray[np.float64]
Method = Literal["plug-in", "scaling"]
METHODS = ("plug-in", "scaling")
EARLY = (
    "The first model still has an effect: these intervals are too narrow. Run longer, or with "
    "larger steps."
)
SHORT = (
    "The run is {times} the memory of its models: intervals by random scaling then cover less "
    "than stated (88 to 93 % instead of 95 % at 10 to 25 times)."
)
SKEWED = (
    "{who} fewer than {few} samples: as the loss of a sample is skewed, intervals for the "
    "population's losses then cover less than stated (89 to 93 % instead of 95 % for 40 to 100 "
    "samples)."
)
FEW = 200  # samples
DRAWS = 4000  # of the model's error, for the losses


@dataclass(frozen=True, repr=False)
class Band(Brief):
    """Estimates with an interval each; arrays of one shape."""

    value: Array
    low: Array
    high: Array

    def covers(self, truth: Any) -> NDArray[np.bool_]:
        """Whether each interval contains its true value."""
        return np.asarray((self.low <= truth) & (truth <= self.high))


@dataclass(frozen=True, repr=False)
class Intervals(Brief):
    """Intervals at one level. With many seeds every band has a leading axis of seeds.

    Attributes:
        model: for every parameter of the target.
        losses: for every client's loss at the target, on its own samples or, with
            of="population", on the distribution that they were drawn from. None with "scaling".
        weighted: for the loss weighted by the influences, which the target minimises; None with
            of="population" or "scaling".
        target: what the intervals are for, in words.
        method, level, n: the method, the level, and the clock value.
        covariance: of the model, if it was computed.
        notes: what to know before using them, in words.
    """

    model: Band
    losses: Band | None
    weighted: Band | None
    target: str
    method: Method
    level: float
    n: float
    covariance: Array | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the clients, where they have any

    @property
    def title(self) -> str:
        """What this is, in one line."""
        how = "plug-in covariance" if self.method == "plug-in" else "random scaling of the average"
        return f"{self.level:.0%} intervals for {self.target} (n = {self.n:,.0f}; {how})"

    def rows(self, most: int = 20) -> list[list[str]]:
        """The table's cells, a heading first (the first seed, where there are many)."""
        rows = [["of", "estimate", "low", "high"]]
        bands: list[tuple[str, Band | None]] = [("w", self.model), ("loss", self.losses)]
        for name, band in bands:
            if band is None:
                continue
            value, low, high = (np.atleast_2d(v)[0] for v in (band.value, band.low, band.high))
            for i in range(min(most, len(value))):
                rows.append(
                    [self._quantity(name, i), *(f"{v:.6g}" for v in (value[i], low[i], high[i]))]
                )
        if self.weighted is not None:
            one = (self.weighted.value, self.weighted.low, self.weighted.high)
            rows.append(["weighted loss", *(f"{np.ravel(v)[0]:.6g}" for v in one)])
        return rows

    def _quantity(self, name: str, i: int) -> str:
        if name == "w":
            return f"w[{i}]"
        return f"loss of {self.names[i] if self.names else f'client {i}'}"

    def __str__(self) -> str:
        return "\n".join([self.title, *plain(self.rows()), *self.notes])

    def _repr_html_(self) -> str:
        return html(self.title, self.rows(), self.notes)

    def plot(self, path: str | Path) -> Path:
        """Draw every client's loss, or the model, with its interval."""
        from fedtaper.show.outcomes import error_bars

        return error_bars(self, as_path(path))


def intervals(
    source: Run | Experiment,
    *,
    level: float = 0.95,
    method: Method = "plug-in",
    of: Literal["data", "population"] = "data",
    n: float | None = None,
) -> Intervals:
    """Error bars for what a run has reached, or for what an experiment will reach.

    The target is w*(p_n), the optimum of the influences at clock n. A run's model differs
    from it by the noise of mini-batches and absences, and by a lag that is computed and
    subtracted. With method "plug-in" the covariance is computed from the clients' Hessians and
    gradient noise; with "scaling" it is not needed: the average of the run's own models is
    compared with its fluctuations, for any number of parameters.

    Args:
        source: a run, or an experiment: then the intervals say where its model will be.
        level: of the intervals; for "scaling" 0.8, 0.9, 0.95 or 0.98.
        method: "plug-in" (convex problems, mini-batches with replacement, up to 500
            parameters) or "scaling" (runs that keep their models).
        of: "data": the target is the optimum for the clients' own samples. "population": that
            for the distribution they were drawn from (independent samples), and so are the
            losses: the choice of samples adds to the uncertainty of both; plug-in only. For a
            stream of fresh samples it is always the population.
        n: the clock value, for an experiment; by default its last.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=3, samples=200)
    >>> e = ft.Experiment(problem, ft.Power(0.05, 0.76, offset=50), rounds=400, local_steps=5)
    >>> found = ft.intervals(ft.run(e, progress=False))
    >>> found.model.covers(problem.equilibrium([1, 1, 1])).tolist()
    [True, True, True]
    """
    check_number("level", level, above=0, below=1, hint=", such as 0.95")
    one_of("method", method, METHODS)
    one_of("of", of, ("data", "population"))
    if n is not None:
        check_number("n", n, low=1)
    if isinstance(source, Experiment):
        if method == "scaling":
            raise FedtaperError("random scaling needs a run: it is computed from its models")
        return _predicted(source, level, of, n)
    check_type("intervals", source, Run)
    check_recorded(source)
    if source.w is None:
        raise FedtaperError("this run kept no models (w is None): intervals need them")
    refuse_elsewhere(source.experiment)
    if method == "scaling":
        if of == "population":
            raise FedtaperError("an interval for the population's optimum needs the method plug-in")
        return _scaled(source, level)
    try:
        theory = fluctuation(source.experiment, float(source.n[-1]))
    except FedtaperError as trouble:
        hint = "" if "scaling" in str(trouble) else '; or use --method scaling (method="scaling")'
        raise FedtaperError(f"{trouble}{hint}") from None
    return _plugged(theory, np.asarray(source.w[..., -1, :]) - theory.lag, level, of)


def _predicted(e: Experiment, level: float, of: str, n: float | None) -> Intervals:
    theory = fluctuation(e, float(e.rounds * e.period if n is None else n))
    made = _plugged(theory, theory.target + 0.0, level, of)
    where = theory.target + theory.lag
    half = made.model.high - made.model.value
    model = Band(where, where - half, where + half)
    text = "the model that a run will reach"
    return replace(made, model=model, target=text)


def _plugged(theory: Fluctuation, estimate: Array, level: float, of: str) -> Intervals:
    fresh = theory.experiment.problem.kind == "stream"  # one pass, nothing fixed
    fixed = of == "population" and not fresh
    covariance = theory.covariance + (theory.sampling if fixed else 0.0)
    half = _normal_quantile(level) * np.sqrt(np.diag(covariance))
    losses, weighted = _losses(theory, np.atleast_2d(estimate), covariance, level, fixed)
    if estimate.ndim == 1:
        losses, weighted = (Band(b.value[0], b.low[0], b.high[0]) for b in (losses, weighted))
    text = "w*(p_n), the optimum of the influences now, on "
    text += "the samples' population" if fixed or fresh else "the clients' own samples"
    notes = () if theory.forgotten else (EARLY,)
    sizes = np.asarray(theory.experiment.problem.sizes)
    if fixed and (small := int((sizes < FEW).sum())):
        who = f"{small} client{'s have' if small > 1 else ' has'}"
        notes = (*notes, SKEWED.format(who=who, few=FEW))
    return Intervals(
        model=Band(estimate, estimate - half, estimate + half),
        losses=losses,
        weighted=None if fixed else weighted,
        target=text,
        method="plug-in",
        level=level,
        n=theory.n,
        covariance=covariance,
        notes=notes,
        names=theory.experiment.names or (),
    )


def _normal_quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def _losses(
    theory: Fluctuation, estimate: Array, covariance: Array, level: float, sampled: bool
) -> tuple[Band, Band]:
    """For each seed: losses minus the quantiles of what the model's error adds to them.

    With error z the loss is off by g'z + z'H z / 2; the weighted loss, whose gradient at the
    target is 0, by z'H z / 2 alone, so its interval is one-sided. If the samples are drawn from
    a population, the mean of their losses and its gradient are off too, by what z says of them
    (the model fits the samples that it is judged on), and the former by chance besides.
    """
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(covariance + 1e-300 * np.eye(len(covariance)))
    z = rng.normal(size=(DRAWS // 2, len(covariance))) @ root.T
    z = np.concatenate([z, -z])
    bends, whole = theory.clients
    square = 0.5 * np.einsum("zi,lij,zj->lz", z, bends, z)
    if sampled:
        variance, with_model, turned = theory.own_samples
        known = np.linalg.solve(covariance, with_model.T)
        left = np.sqrt(np.clip(variance - (with_model.T * known).sum(axis=0), 0.0, None))
        square += known.T @ z.T + left[:, None] * rng.normal(size=square.shape)
        square += np.einsum("zi,lij,zj->lz", z, turned, np.linalg.solve(covariance, z.T).T)
    edges = [0.5 - level / 2, 0.5 + level / 2]
    values, low, high = [], [], []
    for w in estimate:
        f = theory.losses.values(w)
        off = np.quantile(theory.losses.gradients(w) @ z.T + square, edges, axis=1)
        values.append(f)
        low.append(f - off[1])
        high.append(f - off[0])
    losses = Band(*(np.stack(v) for v in (values, low, high)))
    total = losses.value @ theory.share
    far = float(np.quantile(0.5 * np.einsum("zi,ij,zj->z", z, whole, z), level))
    return losses, Band(total, total - far, total)


def _times(few: float) -> str:
    return "shorter than" if few < 1 else f"only {few:.2g} times as long as"


def _scaled(run: Run, level: float) -> Intervals:
    assert run.w is not None
    e, path = run.experiment, np.asarray(run.w)
    share = e.effective_influence(0, 1)[0], e.influence().effective
    moving = not np.allclose(*share, rtol=1e-6)
    text = "w*(p), the optimum of the influences, by the average of the run's models"
    target: Array | float = 0.0
    if moving:
        target, centre = centres(e, np.asarray(run.n))
        path = path - centre
        text = "w*(p_n), the optimum of the influences now, by the average error of the models"
    mean, scale, times = average(path, run.round)
    value, half = target + mean, critical(level) * scale
    model = Band(value, value - half, value + half)
    few = float(np.min(times))
    notes = () if few >= ENOUGH else (SHORT.format(times=_times(few)),)
    return Intervals(
        model, None, None, text, "scaling", level, float(run.n[-1]), covariance=None, notes=notes
    )
