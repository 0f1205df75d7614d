"""Settings that do not go together over Flower: refused before the first message."""

from __future__ import annotations

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import is_combining
from fedtaper.engines.flower.federation import Federation
from fedtaper.experiment import Experiment


def refuse(e: Experiment, federation: Federation) -> None:
    """Raise where the federation's settings do not fit the experiment."""
    if federation.noise_multiplier and is_combining(e.server):
        raise FedtaperError(
            f"noise_multiplier is for a weighted mean, not for {e.server!r}: how far one site "
            "moves it is not bounded by the clipping norm times its weight"
        )
    if e.challenges is not None and e.challenges.share < 1:
        raise FedtaperError(
            "challenges over Flower ask for a whole round's updates, so that a site cannot tell "
            "them from a round: leave share = 1"
        )
    if federation.buffer is not None and e.local.keeps == "run":
        raise FedtaperError(
            f"{e.local!r} keeps a memory from round to round: leave out buffer, with which rounds "
            "overlap"
        )
    if federation.buffer is not None and e.challenges is not None:
        raise FedtaperError("challenges are asked in step: leave out buffer")
