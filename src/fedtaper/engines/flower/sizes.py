"""Sizes that are out of proportion: of a site's update compared with its last ones, of its data."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.engines.flower.federation import Federation
from fedtaper.engines.flower.fields import FaultError

REMEMBERED = 10  # updates of a site
UNUSUAL = 100.0  # times the median of those, from which on an update is an event


class Sizes:
    """Each site's last sizes. An update that is out of proportion is reported, or a fault."""

    def __init__(self, federation: Federation, earlier: Any = None) -> None:
        self.most = federation.max_growth
        self.last = [deque[float](maxlen=REMEMBERED) for _ in federation.sites]
        for row in () if earlier is None else np.asarray(earlier)[-REMEMBERED:]:
            for client, size in enumerate(row):
                if np.isfinite(size) and size > 0:
                    self.last[client].append(float(size))

    def look(self, client: int, norm: float) -> str:
        """What is unusual about this update, if anything; afterwards it is among the last ones."""
        usual = median(self.last[client]) if self.last[client] else 0.0
        times = norm / usual if usual > 0 else 1.0
        text = f"its size {norm:.3g} is {times:.3g} times the median of its last updates"
        if self.most is not None and times > self.most:
            raise FaultError(f"{text} (max_growth = {self.most:g})")
        if norm > 0:
            self.last[client].append(norm)
        return text if times > UNUSUAL else ""


def check_samples(federation: Federation, samples: dict[str, int]) -> None:
    """Refuse a number of samples that is far out of proportion, unless it is expected.

    A site's claim sets its weight, its steps and, where the clock counts updates, everyone's
    clock.
    """
    for site, count in samples.items():
        others = [value for name, value in samples.items() if name != site]
        if site in federation.samples or not others:
            continue
        times = count / median(others)
        if times > federation.max_size_ratio:
            raise FedtaperError(
                f"{site} reports {count:,} samples, {times:,.0f} times the median of the "
                f"others: if that is right, set samples = {{ {site} = {count} }} in [federation]"
            )
