"""Code of a user's own, as a module that a file can name: it inherits nothing from fedtaper."""

from dataclasses import dataclass

import numpy as np

import fedtaper as ft


@dataclass(frozen=True)
class Steps:
    """A step size that is halved once, and inherits nothing from fedtaper."""

    first: float
    change: float

    delta = 0.0
    offset = 0.0

    @property
    def c(self):
        return self.first / 2

    @property
    def limit(self):
        return ft.Constant(self.c)

    @property
    def settles(self):
        return self.change

    @property
    def formula(self):
        return f"{self.first:g}, halved at n = {self.change:g}"

    def __call__(self, n):
        n = np.asarray(n, dtype=float)
        if np.any(n < 1):
            raise ft.FedtaperError("the clock starts at 1")
        a = np.where(n < self.change, self.first, self.c)
        return float(a) if a.ndim == 0 else a
