"""Image classification: a data set, its split over clients, and a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import (
    check_clients,
    check_flag,
    check_type,
    check_whole,
    one_of,
    whole_list,
)
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import ProblemKind, Unit
from fedtaper.problems.data import SOURCES, DominantClass, ImageData, RareClass, load_images
from fedtaper.problems.data.drift import LabelDrift
from fedtaper.problems.data.splits import Split
from fedtaper.problems.labelled import Labelled, answers_of
from fedtaper.problems.network import (
    Minibatches,
    augmented,
    first_model,
    minibatches,
    need_torch,
)
from fedtaper.problems.randomness import seeded

if TYPE_CHECKING:
    import torch

    from fedtaper.experiment import Experiment

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ImageClassification(Labelled):
    """L clients who hold images of a data set and train one network by cross-entropy.

    Args:
        data_set: "digits" (comes with scikit-learn), "organsmnist", "bloodmnist", "cifar10"
            and more (see ``fedtaper.problems.data.SOURCES``), or the path of an ``.npz`` file.
        split: who holds what: ``RareClass(r)``, ``DominantClass(share)``, ``Iid()`` or
            ``Dirichlet(alpha)``.
        model: "resnet9", "lenet5", "cnn", or a function of (channels, height, width, classes)
            that makes a ``torch.nn.Module`` without running statistics.
        num_clients: how many clients (L).
        augment: flip the training images and turn them a little; by default for MedMNIST's sets.
        rare: the class whose test metrics are shown separately; by default the split's.
        start: "one" first model for all, or the "mean" of L of them. In a network the mean
            is smaller by sqrt(L) in every layer, which stalls one without normalisation.
        data_dir: a folder that holds the data set's file (else downloaded, once).
        seed: of the split (the experiment has a seed of its own for the run).
        drift: lets the clients' class shares change over the rounds: ``LabelDrift(rounds=50)``.

    >>> from fedtaper import RareClass
    >>> problem = ImageClassification("digits", split=RareClass(8), model="cnn")
    >>> problem.holdings[0], problem.x[0].shape
    (array([  0,   0,   0,   0,   0,   0,   0,   0, 135,   0]), (135, 1, 8, 8))
    """

    data_set: str = "digits"
    split: Any = field(default_factory=DominantClass)
    model: Any = "cnn"
    num_clients: int = 10
    augment: bool | None = None
    rare: int | None = None
    start: Literal["one", "mean"] = "one"
    data_dir: str | None = None
    seed: int = 0
    drift: LabelDrift | None = None
    client_samples: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    kind: ClassVar[ProblemKind] = "network"
    default_clock: ClassVar[Unit] = "epoch"

    def __post_init__(self) -> None:
        check_clients(self.num_clients)
        check_whole("seed", self.seed, low=0)
        check_type("data_set", self.data_set, str)
        one_of("start", self.start, ("one", "mean"))
        if not isinstance(self.split, Split):
            raise FedtaperError(f"split must be a split such as RareClass(6), not {self.split!r}")
        if not isinstance(self.model, str) and not callable(self.model):
            raise FedtaperError(f"model must be a name or a function, not {self.model!r:.80}")
        if self.augment is not None:
            check_flag("augment", self.augment)
        if isinstance(self.data_dir, Path):
            object.__setattr__(self, "data_dir", str(self.data_dir))
        if self.client_samples is not None:
            known_sizes = whole_list("client_samples", self.client_samples)
            object.__setattr__(self, "client_samples", tuple(known_sizes))
        if self.rare is not None:
            check_whole("rare", self.rare, low=0)
        else:
            known = SOURCES[self.data_set].rare if self.data_set in SOURCES else 0
            rare = self.split.rare if isinstance(self.split, RareClass) else known
            object.__setattr__(self, "rare", rare)
        if self.augment is None:
            known = self.data_set in SOURCES and SOURCES[self.data_set].augment
            object.__setattr__(self, "augment", known)

    @cached_property
    def data(self) -> ImageData:
        """The data set."""
        found = load_images(self.data_set, self.data_dir)
        if self.rare is None or not 0 <= self.rare < len(found.classes):
            raise FedtaperError(
                f"class {self.rare} does not exist: {self.data_set} has classes 0 to "
                f"{len(found.classes) - 1}"
            )
        return found

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], ...]:
        """Each client's samples, as indices into the training set."""
        data = self.data
        if self.num_clients > len(data.train_y):
            raise FedtaperError(
                f"{self.num_clients} clients are too many for {len(data.train_y)} samples: use "
                "fewer clients"
            )
        found = self.split.places(data.train_y, self.num_clients, len(data.classes), self.seed)
        sizes = tuple(len(part) for part in found)
        if self.client_samples is not None and sizes != self.client_samples:
            raise FedtaperError(
                f"this {self.data_set} is not the data of the stored run: its clients hold "
                f"{sizes} samples, those of the run {self.client_samples}"
            )
        return found

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client (a stored run knows them without the data)."""
        known = self.client_samples or tuple(len(part) for part in self.places)
        return np.array(known, dtype=np.int64)

    @cached_property
    def holdings(self) -> NDArray[np.int64]:
        """How many samples of each class each client holds, (L, classes)."""
        data = self.data
        count = len(data.classes)
        return np.stack([np.bincount(data.train_y[p], minlength=count) for p in self.places])

    @cached_property
    def x(self) -> tuple[NDArray[np.float32], ...]:
        """Each client's images, normalised: (samples, channels, height, width)."""
        return tuple(self.data.normalised(self.data.train_x[p]) for p in self.places)

    @cached_property
    def y(self) -> tuple[NDArray[np.int64], ...]:
        """Each client's labels."""
        return tuple(self.data.train_y[p] for p in self.places)

    def module(self) -> torch.nn.Module:
        """The network: its trained weights are still to be filled in, the rest is fixed."""
        need_torch()
        with seeded(0):
            return self._made()

    def _made(self) -> torch.nn.Module:
        from fedtaper.problems.models import build

        _, height, width, channels = self.data.train_x.shape
        return build(self.model, channels, height, width, len(self.data.classes))

    def initial(self, seed: int) -> Array:
        """The shared model before round 1."""
        return first_model(self._made, seed, 1 if self.start == "one" else self.num_clients)

    def batches(self, e: Experiment, seed: int, client: int, round_: int) -> Minibatches:
        """One client's mini-batches and augmentations in one round."""
        order = None
        if self.drift is not None:
            order = self.drift.order(self.y[client], self.holdings[client], client, round_)
        return minibatches(e, seed, client, round_, bool(self.augment), order)

    def take(self, client: int, batch: Minibatches, dtype: Any = None) -> tuple[Any, ...]:
        """A mini-batch as tensors, augmented if asked."""
        import torch

        x, y = super().take(client, batch, dtype)
        if batch.flip is not None and batch.angle is not None:
            x = augmented(x, torch.from_numpy(batch.flip), torch.from_numpy(batch.angle))
        return x, y

    @cached_property
    def test(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The test set, normalised."""
        import torch

        x = self.data.normalised(self.data.test_x)
        return torch.from_numpy(x), torch.from_numpy(self.data.test_y)

    def scores(self, module: Any) -> dict[str, float]:
        """Test metrics of the shared model."""
        from torch.nn.functional import cross_entropy

        x, y = self.test
        answers = answers_of(module, x)
        losses = cross_entropy(answers, y, reduction="none")
        return self.test_metrics(losses.numpy(), (answers.argmax(1) == y).numpy())

    def test_metrics(self, losses: Any, right: Any) -> dict[str, float]:
        """Global, rare-class and per-class test metrics from each test image's."""
        classes = len(self.data.classes)
        y = self.data.test_y
        count = np.maximum(np.bincount(y, minlength=classes), 1)
        loss = np.bincount(y, weights=losses, minlength=classes) / count
        accuracy = np.bincount(y, weights=right, minlength=classes) / count
        out = {
            "test_loss": float(np.mean(losses)),
            "test_accuracy": float(np.mean(right)),
            "rare_test_loss": float(loss[self.rare]),
            "rare_test_accuracy": float(accuracy[self.rare]),
        }
        out |= {f"test_loss_class_{c}": float(loss[c]) for c in range(classes)}
        return out | {f"test_accuracy_class_{c}": float(accuracy[c]) for c in range(classes)}
