"""An asynchronous server: it adds updates as they arrive and waits for nobody.

A client works on the model that it was sent, for its own length of time. When its update arrives,
it is sent the newest model. After every ``buffer`` arrivals the server aggregates: that is a round,
and the clock advances by one period. The order of the arrivals does not depend on what is
trained, so it is simulated first, by itself (``events.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import as_tuple, check_number, check_whole, one_of, per_client
from fedtaper.core.errors import FedtaperError

Array = NDArray[np.float64]
Law = Literal["fixed", "exponential", "lognormal", "pareto"]
LAWS = ("fixed", "exponential", "lognormal", "pareto")


@dataclass(frozen=True)
class Duration:
    """How long a client takes for a round's work, in any unit of time.

    Args:
        mean: the mean time. For a Pareto law with a tail of 1 or less, which has no mean, the
            shortest time.
        law: "fixed", "exponential", "lognormal" or "pareto".
        shape: of a lognormal law the standard deviation of the logarithm, of a Pareto law the
            exponent of its tail.

    >>> Duration(2.0).mean_time
    2.0
    """

    mean: float = 1.0
    law: Law = "exponential"
    shape: float = 1.0

    def __post_init__(self) -> None:
        check_number("a mean time", self.mean, above=0)
        one_of("law", self.law, LAWS)
        check_number("shape", self.shape, above=0)

    @property
    def mean_time(self) -> float:
        """The mean, infinite for a Pareto law whose tail has none."""
        return math.inf if self.law == "pareto" and self.shape <= 1 else self.mean

    @property
    def scale(self) -> float:
        """The median of a lognormal law, the shortest time of a Pareto law, else the mean."""
        if self.law == "lognormal":
            return self.mean * math.exp(-(self.shape**2) / 2)
        if self.law == "pareto" and self.shape > 1:
            return self.mean * (self.shape - 1) / self.shape
        return self.mean

    def undisturbed(self, rate: float) -> float:
        """The chance that no event of this rate happens during the time: E exp(-rate * time)."""
        if rate == 0:
            return 1.0
        if self.law == "exponential":
            return 1.0 / (1.0 + rate * self.mean)
        if self.law == "fixed":
            return math.exp(-rate * self.mean)
        from scipy.integrate import quad
        from scipy.stats import norm

        if self.law == "lognormal":
            found = quad(
                lambda z: norm.pdf(z) * math.exp(-rate * self.scale * math.exp(self.shape * z)),
                -12, 12,
            )  # fmt: skip
        else:  # uniform u: time = scale * u^(-1 / shape)
            found = quad(lambda u: math.exp(-rate * self.scale * u ** (-1 / self.shape)), 0, 1)
        return float(found[0])


@dataclass(frozen=True)
class Asynchronous:
    """A server that aggregates after every ``buffer`` arrivals.

    Args:
        buffer: how many arrivals make a round (K).
        durations: how long clients take: one for all, or one for each; a number is a fixed
            time.
        mean_on: how long a client stays before it drops out, on average (exponential): one,
            or one for each; infinite if it never does. The work in progress is lost.
        mean_off: how long it then stays away, on average (exponential).

    An update counts with the server's own weight for its client, whoever else arrives. A
    client that arrives r times as often as another has r times its influence.

    >>> Asynchronous(durations=(1.0, 4.0)).arrival_rates(2)
    array([0.8, 0.2])
    """

    buffer: int = 1
    durations: float | Duration | tuple[float | Duration, ...] = 1.0
    mean_on: float | tuple[float, ...] = math.inf
    mean_off: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        check_whole("buffer", self.buffer)
        for name in ("durations", "mean_on", "mean_off"):
            object.__setattr__(self, name, as_tuple(getattr(self, name)))

    def laws(self, num_clients: int) -> tuple[Duration, ...]:
        """One duration per client."""
        given = self.durations
        several = given if isinstance(given, tuple) else (given,) * num_clients
        if len(several) != num_clients:
            raise FedtaperError(
                f"{len(several)} durations for {num_clients} clients; give one per client, or one "
                "for all"
            )
        return tuple(d if isinstance(d, Duration) else Duration(d, "fixed") for d in several)

    def away(self, num_clients: int) -> tuple[Array, Array]:
        """Mean times on and off of each client."""
        on = per_client("mean_on", self.mean_on, num_clients, low=1e-12)
        return on, per_client("mean_off", self.mean_off, num_clients, low=0)

    def check(self, num_clients: int) -> None:
        """Refuse settings that make no sense for this many clients."""
        self.laws(num_clients)
        self.away(num_clients)
        if self.buffer > num_clients:
            raise FedtaperError(
                f"buffer = {self.buffer} is more than the {num_clients} clients: use at most "
                f"{num_clients}, or a round would need some client twice"
            )

    def times_between(self, num_clients: int) -> Array:
        """Mean time between two arrivals of each client; infinite where there is no mean.

        A client that drops out at rate x during a job of time D starts again after its
        return: (1 - s) (1 / x + time off) / s, with s = E exp(-x D). Without drop-outs it
        is the mean of D.
        """
        on, off = self.away(num_clients)
        out = np.empty(num_clients)
        for i, law in enumerate(self.laws(num_clients)):
            rate = 0.0 if math.isinf(on[i]) else 1.0 / on[i]
            if rate == 0.0:
                out[i] = law.mean_time
                continue
            done = law.undisturbed(rate)
            out[i] = (1 - done) * (on[i] + off[i]) / done if done > 0 else math.inf
        return out

    def arrival_rates(self, num_clients: int) -> Array:
        """How many updates of each client a round adds in the long run: they sum to K."""
        pace = 1.0 / self.times_between(num_clients)
        if not pace.sum() > 0:
            raise FedtaperError(
                "no client's working time has a mean, so shares cannot be predicted: use another "
                "law, or a Pareto tail above 1"
            )
        return np.asarray(self.buffer * pace / pace.sum())

    def waiting_times(self, num_clients: int, rounds: int, seed: int) -> Array:
        """When each round would end if the server waited for every client, (rounds,)."""
        from fedtaper.rules.events import waiting_times

        return np.asarray(waiting_times(self, num_clients, rounds, seed))
