"""Callbacks: functions that are called after every round with its progress, and may end a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedtaper.core.checks import check_number, check_whole, one_of
from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.core.protocols import Array, Session, State, as_network
from fedtaper.experiment import Experiment

if TYPE_CHECKING:
    from fedtaper.simulation.recorder import Recorder

Callback = Callable[["Progress"], Any]


@dataclass(frozen=True)
class Progress:
    """The progress of a run after a round: what a callback receives.

    In a run over several seeds, models and metrics have a leading axis of seeds.
    """

    _record: Recorder = field(repr=False)
    _state: State = field(repr=False)
    _session: Session = field(repr=False)

    @property
    def experiment(self) -> Experiment:
        """The experiment that is run."""
        return self._record.e

    @property
    def round(self) -> int:
        """The round that was just completed, counted from 1."""
        return self._state.round

    @property
    def history(self) -> dict[str, Array]:
        """Every metric of all recorded rounds so far, one value per round, this one last."""
        done = int(np.searchsorted(self._record.round, self.round, side="right"))
        kept = {name: values[:, :done] for name, values in self._record.metrics.items()}
        return kept if self._record.many else {name: v[0] for name, v in kept.items()}

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of this round, by name."""
        now = {name: values[..., -1] for name, values in self.history.items()}
        return now if self._record.many else {name: float(v) for name, v in now.items()}

    @property
    def w(self) -> Array:
        """The shared model as one vector."""
        self._session.sync()
        return (self._state.w if self._record.many else self._state.w[0]).copy()

    def module(self) -> Any:
        """The shared model as a torch module, in evaluation mode (one seed)."""
        import torch

        from fedtaper.problems.network import bind

        if self._record.many:
            raise FedtaperError("module() is for one seed: run without seeds=")
        made = as_network(self.experiment.problem).module()
        bind(made, torch.from_numpy(self.w).float())
        return made.eval()


@dataclass(frozen=True)
class EarlyStopping:
    """Ends a run when a metric has not improved for a number of rounds.

    It keeps no state: it looks at the whole record, so a resumed run stops in the same round. A
    run over several seeds ends when none has improved.

    Args:
        metric: a name in ``run.metrics``, such as "auc" or "train_loss".
        patience: how many recorded rounds without improvement to wait for.
        better: whether "lower" or "higher" values are better.
        least: the smallest change that counts as an improvement.

    >>> import fedtaper as ft
    >>> problem = ft.LinearRegression(num_clients=2, samples=60)
    >>> e = ft.Experiment(problem, ft.Power(0.03, 0.8), rounds=500, local_steps=2)
    >>> run = ft.run(e, callbacks=[ft.EarlyStopping("error", patience=5)])
    >>> len(run.round) < 500, run.stopped[:29]
    (True, 'error has not improved for 5 ')
    """

    metric: str
    patience: int = 10
    better: Literal["lower", "higher"] = "lower"
    least: float = 0.0

    def __post_init__(self) -> None:
        check_whole("patience", self.patience)
        one_of("better", self.better, ("lower", "higher"))
        check_number("least", self.least)

    def __call__(self, progress: Progress) -> str | None:
        """A reason to stop, or None."""
        if self.metric not in progress.history:
            known = progress.history
            raise FedtaperError(
                f"EarlyStopping: there is no metric {self.metric!r}; the run has "
                f"{', '.join(known)}{nearest(self.metric, known)}"
            )
        values = np.atleast_2d(progress.history[self.metric])
        waited = min(self._waited(row) for row in values)
        if waited < self.patience:
            return None
        return f"{self.metric} has not improved for {waited} rounds"

    def _waited(self, values: Array) -> int:
        """Rounds since the last improvement."""
        sign = 1.0 if self.better == "lower" else -1.0
        best, at = math.inf, 0
        for k, value in enumerate((sign * values).tolist()):
            if value < best - (self.least if math.isfinite(best) else 0.0):
                best, at = value, k
        return len(values) - 1 - at


def checked(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks, or an error."""
    given = (callbacks,) if callable(callbacks) else callbacks
    if not isinstance(given, (tuple, list)) or not all(callable(c) for c in given):
        raise FedtaperError(f"callbacks must be a list of functions, not {callbacks!r:.80}")
    for callback in given:
        if isinstance(callback, type):
            raise FedtaperError(
                f"callbacks: give an object, {callback.__name__}(...), not the class"
            )
    return tuple(given)


def verdict(callback: Callback, progress: Progress) -> str:
    """Why the callback ends the run, or nothing."""
    found = callback(progress)
    if found is None or found is False:
        return ""
    if isinstance(found, str):
        return found
    if found is True or isinstance(found, np.bool_):
        # functions have a name, objects their class's
        name = getattr(callback, "__name__", type(callback).__name__)
        return f"{name} ended it" if found else ""
    raise FedtaperError(
        "a callback must return None, or True or a reason as text to end the run, not "
        f"{found!r:.80}"
    )
