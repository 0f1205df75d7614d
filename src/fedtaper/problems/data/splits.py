"""Who holds what: a data set split over clients, by seed, with no sample used twice.

A split is a frozen dataclass with one method, ``places(labels, num_clients, classes, seed)``:
for each client the indices of its samples in the training set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.checks import check_number, check_whole
from fedtaper.core.errors import FedtaperError

Places = tuple[NDArray[np.int64], ...]
_SPLIT = 4  # place of the draws


@runtime_checkable
class Split(Protocol):
    """What a problem asks of a split."""

    def places(
        self, labels: NDArray[np.int64], num_clients: int, classes: int, seed: int
    ) -> Places:
        """The training samples of each client."""
        ...


@dataclass(frozen=True)
class Iid:
    """Every client's data is a uniform draw.

    >>> [part.tolist() for part in Iid().places(np.zeros(5, dtype=int), 2, 1, seed=0)]
    [[0, 1, 2], [3, 4]]
    """

    def places(
        self, labels: NDArray[np.int64], num_clients: int, classes: int, seed: int
    ) -> Places:
        """Equal shares of a shuffled data set."""
        order = draws.generator(seed, _SPLIT).permutation(len(labels))
        return _finished(np.array_split(order, num_clients))


@dataclass(frozen=True)
class RareClass:
    """All of class ``rare`` at one client, the other classes uniform over the other clients."""

    rare: int
    client: int = 0

    def __post_init__(self) -> None:
        check_whole("rare", self.rare, low=0)
        check_whole("client", self.client, low=0)

    def places(
        self, labels: NDArray[np.int64], num_clients: int, classes: int, seed: int
    ) -> Places:
        """All of the rare class at its client; each other class split equally over the rest."""
        _known_class(self.rare, classes)
        if num_clients < 2 or self.client >= num_clients:
            raise FedtaperError(
                f"RareClass gives the rare class to client {self.client} of {num_clients}: there "
                "must be that client and at least one other"
            )
        others = [i for i in range(num_clients) if i != self.client]
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
        parts[self.client] = [np.flatnonzero(labels == self.rare)]
        for label in range(classes):
            if label == self.rare:
                continue
            mine = _shuffled(labels, label, seed)
            turn = label % len(others)  # so that the odd samples do not all go to the first
            for i, share in enumerate(np.array_split(mine, len(others))):
                parts[others[(i + turn) % len(others)]].append(share)
        return _finished([np.concatenate(part) for part in parts])


@dataclass(frozen=True)
class DominantClass:
    """Clients of equal size; each has ``share`` of its data from one class, the rest evenly.

    Dominant classes are assigned in turn, the largest classes first where there are more
    clients than classes (and the smallest left out where there are fewer). The clients are as
    large as the scarcest class allows.
    """

    share: float = 0.7

    def __post_init__(self) -> None:
        check_number("share", self.share, above=0.0)
        if self.share > 1:
            raise FedtaperError(f"share must be above 0 and at most 1, not {self.share!r}")

    def places(
        self, labels: NDArray[np.int64], num_clients: int, classes: int, seed: int
    ) -> Places:
        """Quotas by client and class, filled from the shuffled classes."""
        counts = np.bincount(labels, minlength=classes)
        quota = self._quota(counts, num_clients)
        taken = np.zeros(classes, dtype=np.int64)
        pools = [_shuffled(labels, label, seed) for label in range(classes)]
        parts = []
        for i in range(num_clients):
            ends = taken + quota[i]
            parts.append(np.concatenate([pools[c][taken[c] : ends[c]] for c in range(classes)]))
            taken = ends
        return _finished(parts)

    def _quota(self, counts: NDArray[np.int64], num_clients: int) -> NDArray[np.int64]:
        classes = len(counts)
        largest = np.argsort(-counts, kind="stable")
        dominant = np.sort(largest[:classes])  # every class once, in order of its label ...
        dominant = np.concatenate([dominant, np.tile(largest, num_clients // classes)])
        if num_clients < classes:  # ... or the largest ones alone
            dominant = np.sort(largest[:num_clients])
        dominant = dominant[:num_clients]
        share = np.full((num_clients, classes), (1 - self.share) / max(classes - 1, 1))
        share[np.arange(num_clients), dominant] = self.share
        size = int(np.min(counts / np.maximum(share.sum(axis=0), 1e-12)))
        while True:  # rounding can ask for a sample too many
            quota = self._rounded(size, dominant, classes)
            if np.all(quota.sum(axis=0) <= counts) or size == 0:
                return quota
            size -= 1

    def _rounded(self, size: int, dominant: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
        """Whole samples; those left over are assigned to the other classes in turn."""
        rest = round((1 - self.share) * size) if classes > 1 else 0
        even, odd = divmod(rest, max(classes - 1, 1))
        quota = np.full((len(dominant), classes), even, dtype=np.int64)
        for i, own in enumerate(dominant):
            others = [(own + 1 + (i * odd + j) % (classes - 1)) % classes for j in range(odd)]
            quota[i, others] += 1
            quota[i, own] = size - rest
        return quota


@dataclass(frozen=True)
class Dirichlet:
    """Each class split by Dirichlet(alpha) proportions: a small alpha makes unlike clients."""

    alpha: float = 0.5
    smallest: int = 1

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0.0)
        check_whole("smallest", self.smallest)

    def places(
        self, labels: NDArray[np.int64], num_clients: int, classes: int, seed: int
    ) -> Places:
        """The first of up to 100 draws that leaves every client ``smallest`` samples."""
        for attempt in range(100):
            rng = draws.generator(seed, _SPLIT, attempt)
            parts: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
            for label in range(classes):
                mine = rng.permutation(np.flatnonzero(labels == label))
                ends = np.cumsum(rng.dirichlet(np.full(num_clients, self.alpha)))[:-1]
                for i, part in enumerate(np.split(mine, np.round(ends * len(mine)).astype(int))):
                    parts[i].append(part)
            joined = [np.concatenate(part) for part in parts]
            if min(len(part) for part in joined) >= self.smallest:
                return _finished(joined)
        raise FedtaperError(
            f"Dirichlet({self.alpha:g}) leaves some of {num_clients} clients fewer than "
            f"{self.smallest} samples: use a larger alpha or fewer clients"
        )


def _shuffled(labels: NDArray[np.int64], label: int, seed: int) -> NDArray[np.int64]:
    return draws.generator(seed, _SPLIT, label).permutation(np.flatnonzero(labels == label))


def _known_class(label: int, classes: int) -> None:
    if label >= classes:
        raise FedtaperError(
            f"class {label} does not exist: the data set has classes 0 to {classes - 1}"
        )


def _finished(parts: list[NDArray[np.int64]]) -> Places:
    for i, part in enumerate(parts):
        if not len(part):
            raise FedtaperError(
                f"client {i} gets no samples: the data set is too small for so many clients; use "
                "fewer clients or another split"
            )
    return tuple(np.sort(part).astype(np.int64) for part in parts)
