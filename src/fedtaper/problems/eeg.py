"""Neonatal seizure detection: hospitals that hold EEG windows of their own infants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import as_list, check_number, check_whole, one_of
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import ProblemKind, Unit
from fedtaper.problems.data.eeg import EegWindows, compressed, features, load_eeg, stand_in
from fedtaper.problems.labelled import Labelled, answers_of
from fedtaper.problems.network import (
    Minibatches,
    bind,
    first_model,
    minibatches,
    need_torch,
)

if TYPE_CHECKING:
    import torch

    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]
_HOSPITALS, _FOLDS = 10, 11  # places of the draws
_MODELS = ("cnn", "features")


@dataclass(frozen=True)
class SeizureDetection(Labelled):
    """Hospitals with different sizes and shares of seizures train one detector.

    A client is a hospital and holds all windows of its infants. One of ``folds`` parts of the
    infants is held out, so no infant is ever on both sides.

    Args:
        data: "neonatal_eeg" (the file ``neonatal_eeg.npz`` in a local folder) or "synthetic",
            synthetic windows that need no file.
        model: "cnn", a small one-dimensional network on the signal, or "features", a linear
            model on twelve features of a window.
        shares: each hospital's share of the infants; they are scaled to sum to 1.
        seizure_shares: how common infants with seizures are at each hospital, relative to the
            other hospitals.
        fold, folds: which part of the infants is held out, and how many parts there are.
        expert: whose labels: "A", "B" or "both" (all windows of both).
        data_dir: the folder of the file, if not named by FEDTAPER_DATA.
        seed: of hospitals, folds and synthetic data (the experiment has a seed of its own).

    >>> problem = SeizureDetection("synthetic", model="features")
    >>> problem.num_clients, problem.dim
    (5, 26)
    >>> problem.infants_of(0)[:3]
    [0, 1, 8]
    """

    data: Literal["neonatal_eeg", "synthetic"] = "neonatal_eeg"
    model: Literal["cnn", "features"] = "cnn"
    shares: tuple[float, ...] = (0.40, 0.24, 0.16, 0.12, 0.08)
    seizure_shares: tuple[float, ...] = (0.85, 0.35, 0.75, 0.25, 0.60)
    fold: int = 0
    folds: int = 5
    expert: Literal["A", "B", "both"] = "both"
    data_dir: str | None = None
    seed: int = 0
    default_clock: ClassVar[Unit] = "epoch"
    kind: ClassVar[ProblemKind] = "network"

    def __post_init__(self) -> None:
        for name in ("shares", "seizure_shares"):
            given = as_list(name, getattr(self, name))
            for share in given:
                check_number(name, share)
            object.__setattr__(self, name, tuple(given))
        one_of("data", self.data, ("neonatal_eeg", "synthetic"))
        one_of("model", self.model, tuple(_MODELS))
        if len(self.shares) < 2 or len(self.shares) != len(self.seizure_shares):
            raise FedtaperError(
                f"shares has {len(self.shares)} hospitals and seizure_shares "
                f"{len(self.seizure_shares)}; give the same number in both, at least two"
            )
        if not all(s > 0 for s in self.shares):
            raise FedtaperError("shares must be above 0: every hospital has infants")
        if not all(0 < s < 1 for s in self.seizure_shares):
            raise FedtaperError("seizure_shares must lie between 0 and 1")
        check_whole("folds", self.folds, low=2)
        check_whole("fold", self.fold, low=0)
        if self.fold >= self.folds:
            raise FedtaperError(f"fold {self.fold} does not exist: folds are 0 to {self.folds - 1}")
        check_whole("seed", self.seed, low=0)

    @property
    def num_clients(self) -> int:
        """How many hospitals (L)."""
        return len(self.shares)

    @cached_property
    def windows(self) -> EegWindows:
        """All windows of all infants."""
        if self.data == "synthetic":
            return stand_in(self.seed)
        return load_eeg(self.data_dir, self.expert)

    @cached_property
    def hospital(self) -> dict[int, int]:
        """Each infant's hospital."""
        windows = self.windows
        found: dict[int, int] = {}
        for kind in (True, False):
            members = [int(i) for i in windows.infants if windows.seizure(int(i)) == kind]
            weight = np.array(self.seizure_shares) if kind else 1 - np.array(self.seizure_shares)
            counts = _apportioned(len(members), np.array(self.shares) * weight)
            order = draws.generator(self.seed, _HOSPITALS, int(kind)).permutation(members)
            places = np.repeat(np.arange(self.num_clients), counts)
            found |= {int(i): int(h) for i, h in zip(order, places, strict=True)}
        return found

    @cached_property
    def held_out(self) -> frozenset[int]:
        """The infants of this fold: assigned in turn, hospital by hospital, kind by kind."""
        shuffled = draws.generator(self.seed, _FOLDS).permutation(self.windows.infants)
        order = sorted(
            (int(i) for i in shuffled), key=lambda i: (self.hospital[i], self.windows.seizure(i))
        )
        return frozenset(order[self.fold :: self.folds])

    def infants_of(self, client: int) -> list[int]:
        """The infants that a hospital trains on."""
        mine = (i for i, h in self.hospital.items() if h == client and i not in self.held_out)
        return sorted(mine)

    @cached_property
    def infant_counts(self) -> NDArray[np.int64]:
        """How many infants each hospital trains on."""
        return np.array([len(self.infants_of(i)) for i in range(self.num_clients)])

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], ...]:
        infant = self.windows.infant
        places = tuple(
            np.flatnonzero(np.isin(infant, self.infants_of(i))) for i in range(self.num_clients)
        )
        for i, place in enumerate(places):
            if not len(place):
                raise FedtaperError(
                    f"hospital {i} has no infant left to train on: use fewer or larger hospitals"
                )
        return places

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Windows of each hospital."""
        return np.array([len(p) for p in self._places], dtype=np.int64)

    @cached_property
    def _inputs(self) -> NDArray[np.float32]:
        """Every window as the model sees it, scaled by the training infants' numbers."""
        raw = features(self.windows.x) if self.model == "features" else compressed(self.windows.x)
        mine = raw[np.concatenate(self._places)]
        if self.model == "cnn":
            return raw / mine.std()
        return (raw - mine.mean(axis=0)) / mine.std(axis=0)

    @property
    def x(self) -> tuple[NDArray[np.float32], ...]:
        """Each hospital's windows as the model sees them."""
        return tuple(self._inputs[p] for p in self._places)

    @property
    def y(self) -> tuple[NDArray[np.int64], ...]:
        """Each hospital's labels, 1 for a seizure."""
        return tuple(self.windows.y[p] for p in self._places)

    def module(self) -> torch.nn.Module:
        """A fresh detector."""
        need_torch()
        from torch import nn

        if self.model == "features":
            return nn.Linear(self._inputs.shape[1], 2)
        return nn.Sequential(
            nn.Conv1d(self._inputs.shape[1], 16, 7, padding=3), nn.GroupNorm(4, 16),
            nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 5, padding=2), nn.GroupNorm(4, 32),
            nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
            nn.Linear(32, 2),
        )  # fmt: skip

    def initial(self, seed: int) -> Array:
        """The shared model before round 1."""
        return first_model(self.module, seed, 1)

    def batches(self, e: Experiment, seed: int, client: int, round_: int) -> Minibatches:
        """One hospital's mini-batches in one round."""
        return minibatches(e, seed, client, round_, augment=False)

    @cached_property
    def _test_places(self) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.windows.infant, list(self.held_out)))

    def _answers(self, module: Any) -> torch.Tensor:
        """A module's answers to the windows of the infants that are held out."""
        import torch

        return answers_of(module, torch.from_numpy(self._inputs[self._test_places]))

    def scores(self, module: Any) -> dict[str, float]:
        """Loss and accuracy on the windows of the infants that are held out.

        Every infant counts the same, however many windows it has.
        """
        import torch
        from torch.nn.functional import cross_entropy

        place = self._test_places
        answers = self._answers(module)
        y = torch.from_numpy(self.windows.y[place])
        losses = cross_entropy(answers, y, reduction="none").numpy()
        right = (answers.argmax(1) == y).numpy()
        _, who = np.unique(self.windows.infant[place], return_inverse=True)
        weight = 1 / np.bincount(who)[who]
        return {
            "test_loss": float(np.average(losses, weights=weight)),
            "test_accuracy": float(np.average(right, weights=weight)),
        }

    def infant_scores(self, w: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_], Array]:
        """The held-out infants, whether theirs are seizures, and the model's score of each.

        An infant's score is the mean over its windows of the log odds of a seizure.
        """
        import torch

        module = self.module()
        bind(module, torch.from_numpy(np.array(w, dtype=np.float32)))
        answers = self._answers(module).numpy()
        odds = answers[:, 1] - answers[:, 0]
        infant, who = np.unique(self.windows.infant[self._test_places], return_inverse=True)
        score = np.bincount(who, weights=odds) / np.bincount(who)
        return infant, np.array([self.windows.seizure(int(i)) for i in infant]), score


def _apportioned(total: int, weight: Array) -> NDArray[np.int64]:
    """Whole numbers that sum to ``total``, proportional to the weights (largest remainders)."""
    exact = total * weight / weight.sum()
    counts = np.floor(exact).astype(np.int64)
    for i in np.argsort(counts - exact)[: total - counts.sum()]:
        counts[i] += 1
    return counts
