"""A problem whose code and data are at the sites: only its sizes are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.protocols import ProblemKind, Unit


@dataclass(frozen=True)
class Recorded:
    """Enough of a problem to read a stored run: influences, tables and reports, but no training.

    >>> Recorded((20, 30), dim=4).num_clients
    2
    """

    samples: tuple[int, ...]
    dim: int
    kind: ClassVar[ProblemKind] = "recorded"
    default_clock: ClassVar[Unit] = "epoch"

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        return len(self.samples)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client."""
        return np.array(self.samples, dtype=np.int64)
