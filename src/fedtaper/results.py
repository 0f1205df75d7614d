"""The result of an experiment: the record that engines fill and everything else reads."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_path
from fedtaper.core.errors import FedtaperError, writing
from fedtaper.core.protocols import as_network, is_network
from fedtaper.core.tables import html
from fedtaper.experiment import Experiment
from fedtaper.rules.challenges import Answers
from fedtaper.rules.steering import Looks, scales

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """A run that diverged: in which round, at which client, and why."""

    seed: int
    round: int
    client: int
    reason: str
    name: str = ""  # of the client, where it has one

    def __str__(self) -> str:
        who = self.name or f"client {self.client}"
        where = f"seed {self.seed} diverged in round {self.round} at {who}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True)
class Run:
    """The result of an experiment. With many seeds every array has a leading axis of seeds.

    Attributes:
        experiment: what was run.
        seeds: the seeds, in order; ``many`` says whether there is a leading axis.
        round: the recorded rounds, counted from 1 (all of them unless thinned).
        n, t: the clock, and the ODE's time T_k (Eqn17), after each recorded round.
        w: trajectory of the shared model, (rounds, dim), or None if the model is large.
        w0: the shared model before round 1, or None if the model is large.
        metrics: name to array, one value per recorded round.
        update_norms: size of each client's update, (rounds, L); 0 where it was absent.
        updates: the updates themselves, (rounds, L, dim), if they were asked for.
        challenges: the answers to challenges, if the experiment has some.
        looks: what a controller saw and did, if the experiment is steered. The
            ``experiment`` then has the scales as they were moved.
        diverged: the seeds that diverged; their later rounds are NaN (for a single
            seed: cut off).
        engine, seconds: which engine, and how long it took.
        way, way_because: how a network's clients were trained, and why.
        path: the run folder, if it was stored.
        model: the last shared model as one vector, if w is None.
        start: the digest of a warm start's model, else empty.
        stopped: why a callback ended the run before its last round, else empty.
        stored: reads the model's tensors by name, if a loaded run has no code for them.
    """

    experiment: Experiment
    seeds: tuple[int, ...]
    many: bool
    round: NDArray[np.int64]
    n: Array
    t: Array
    w: Array | None
    w0: Array | None
    metrics: dict[str, Array]
    update_norms: Array
    updates: Array | None = None
    challenges: Answers | None = None
    diverged: tuple[Divergence, ...] = ()
    engine: str = ""
    way: str = ""
    way_because: str = ""
    seconds: float = 0.0
    path: Path | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    model: Array | None = None
    looks: Looks | None = None
    start: str = ""
    stopped: str = ""
    stored: Callable[[], dict[str, NDArray[Any]]] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        ends = f", {len(self.diverged)} diverged" if self.diverged else ""
        ends += f", stopped: {self.stopped}" if self.stopped else ""
        return (
            f"Run({len(self.round)} rounds, {len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}, "
            f"metrics {', '.join(self.metrics)}{ends})"
        )

    def _repr_html_(self) -> str:
        e, many = self.experiment, self.many
        rows = [["metric", "median of the seeds" if many else "value"]]
        for name, values in self.metrics.items():
            if values.shape[-1] and name != "seconds":
                rows.append([name, f"{np.nanmedian(values[..., -1]):.4g}"])
        last = f"{self.round[-1]:,} of {e.rounds:,}" if len(self.round) else "0"
        seeds = f"{len(self.seeds)} seeds" if many else f"seed {self.seeds[0]}"
        title = f"Run: round {last}, {seeds}, {self.engine} engine, {self.seconds:.1f} s"
        notes = [*map(str, self.diverged), *([f"Stopped: {self.stopped}."] if self.stopped else [])]
        return html(title, rows, notes)

    @property
    def final(self) -> Array:
        """The last shared model as one vector, whatever its size; (seeds, dim) of many seeds."""
        if self.w is None:
            assert self.model is not None
            return self.model
        if not self.w.shape[-2]:
            raise FedtaperError("the run diverged in its first round: there is no model")
        return self.w[..., -1, :]

    @property
    def last_round(self) -> int:
        """The last recorded round in which a seed was still running; 1 if there is none."""
        if not len(self.round):
            return 1
        lost = [d.round for d in self.diverged]
        end = max(lost) - 1 if lost and len(lost) == len(self.seeds) else int(self.round[-1])
        kept = self.round[self.round <= end]
        return int(kept[-1]) if len(kept) else 1

    @property
    def scales(self) -> Array:
        """The factor on every client's scale in each recorded round, (rounds, L)."""
        return scales(self.experiment, self.n)

    def module(self, seed: int | None = None) -> Any:
        """The trained ``torch.nn.Module``, in evaluation mode: frozen weights, buffers and all.

        Args:
            seed: which seed's, of a run over many.
        """
        if self.stored is not None:
            raise FedtaperError(
                f"{self.path} holds the model's tensors but not its code: give the problem, "
                "ft.load(folder, problem=...), or fill your own module with run.state_dict()"
            )
        import torch

        from fedtaper.problems.network import bind

        w = np.array(self._of(seed), dtype=np.float32)
        made = as_network(self.experiment.problem).module()
        bind(made, torch.from_numpy(w))
        return made.eval()

    def state_dict(self, seed: int | None = None) -> dict[str, Any]:
        """The trained model's tensors by name; regression has one, ``w``."""
        if self.stored is not None:
            return {name: _tensor(array) for name, array in self.stored().items()}
        if not is_network(self.experiment.problem):
            return {"w": np.array(self._of(seed))}
        return {name: t.detach().clone() for name, t in self.module(seed).state_dict().items()}

    def _of(self, seed: int | None) -> Array:
        """The final model of one seed."""
        if not self.many:
            return self.final
        if seed not in self.seeds:
            raise FedtaperError(f"give seed=, one of this run's seeds: {list(self.seeds)[:20]}")
        return np.asarray(self.final[self.seeds.index(int(seed))])

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The metrics as a tidy table: one row per seed and recorded round."""
        seeds = len(self.seeds)
        front = {"seed": np.repeat(np.array(self.seeds), len(self.round))}
        front |= {name: np.tile(vars(self)[name], seeds) for name in ("round", "n", "t")}
        return front | {name: values.reshape(-1) for name, values in self.metrics.items()}

    def to_frame(self) -> Any:
        """The metrics as a pandas DataFrame: one row per seed and recorded round."""
        return need_pandas().DataFrame(self.columns)

    def to_csv(self, path: str | Path) -> Path:
        """Write the metrics as CSV: one row per seed and recorded round."""
        found, path = self.columns, as_path(path)
        with writing(path), path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(found)
            rows.writerows(zip(*(column.tolist() for column in found.values()), strict=True))
        return path

    def to_parquet(self, path: str | Path) -> Path:
        """Write the metrics as Parquet, which needs pyarrow."""
        try:
            import pyarrow
            from pyarrow.parquet import write_table
        except ImportError:
            raise FedtaperError(
                "to_parquet needs pyarrow (pip install pyarrow); to_csv needs no package"
            ) from None
        path = as_path(path)
        with writing(path):
            write_table(pyarrow.table(self.columns), path)
        return path

    def plot(self, path: str | Path | None = None, metrics: Sequence[str] | None = None) -> Any:
        """Draw the metrics over the rounds, several seeds as a median with a band.

        Args:
            path: a file to write, PNG or SVG. Without it the figure is returned, and a
                notebook shows it.
            metrics: which; by default all.
        """
        from fedtaper.show.run_plots import metrics_plot

        return metrics_plot(self, metrics, None if path is None else as_path(path))


def check_recorded(run: Run) -> None:
    """Refuse a run without a single finite round, and say what became of it."""
    if not len(run.round):
        why = "; ".join(map(str, run.diverged)) or run.stopped
        raise FedtaperError(f"the run has no finite round: {why}")


def seeds_in_words(seeds: Sequence[int]) -> str:
    """Seeds as a range, or as a list that says how many are left out.

    >>> seeds_in_words(range(40)), seeds_in_words([3, 5])
    ('0 to 39', '3, 5')
    """
    found = [int(seed) for seed in seeds]
    if len(found) > 2 and found == list(range(found[0], found[0] + len(found))):
        return f"{found[0]} to {found[-1]}"
    more = f" and {len(found) - 20} more" if len(found) > 20 else ""
    return ", ".join(map(str, found[:20])) + more


def _tensor(array: NDArray[Any]) -> Any:
    """A torch tensor, or the array itself where torch is not installed."""
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array)


def need_pandas() -> Any:
    """The pandas module, or an error that says how to get it."""
    try:
        import pandas
    except ImportError:
        raise FedtaperError("a data frame needs pandas: pip install pandas") from None
    return pandas
