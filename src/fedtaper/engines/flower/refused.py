"""Settings that do not go together over Flower: refused before the first message."""

from __future__ import annotations

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_combining
from fedtaper.engines.flower.federation import Federation
from fedtaper.experiment import Experiment


def refuse(e: Experiment, federation: Federation) -> None:
    """Raise if the federation's settings do not fit the experiment."""
    if federation.noise_multiplier and is_combining(e.server):
        raise FedtaperError(
            f"noise_multiplier needs a weighted mean, not {e.server!r}: there the effect of one "
            "site is not bounded by the clipping norm times its weight"
        )
    if e.challenges is not None and e.challenges.share < 1:
        raise FedtaperError(
            "challenges over Flower ask for a whole round's updates, so that a site cannot tell "
            "them from a round: leave share = 1"
        )
    if federation.buffer is not None and e.local.keeps == "run":
        raise FedtaperError(
            f"{e.local!r} keeps a memory from round to round, but with a buffer rounds overlap: "
            "leave out buffer"
        )
    if federation.buffer is not None and e.challenges is not None:
        raise FedtaperError("challenges need all sites in the same round: leave out buffer")
