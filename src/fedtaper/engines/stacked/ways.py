"""The ways to train the clients of a round, and which of them a run uses.

``per-client``: one network, client after client, the clients over all cores. ``stacked``: all
clients' models as one, by ``vmap``. ``compiled``: the same, through ``torch.compile``. They give
the same results except for rounding, so the way is kept in the State: a resumed run continues
the way it began.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import State, Way
from fedtaper.engines import WAYS
from fedtaper.engines.network_client import Apart, Client, Trainer
from fedtaper.engines.stacked.choice import choose
from fedtaper.engines.stacked.stack import Stack
from fedtaper.engines.stacked.trial import bytes_per_lane, objection
from fedtaper.experiment import Experiment

PER_CLIENT, STACKED, COMPILED = WAYS
STACK_BYTES = 2**28  # models, gradients and what their step keeps, of a stack in one process
GPU_SHARE = 0.4  # of a GPU's free memory, likewise: a captured graph keeps what it works with


def trainer_of(
    e: Experiment, state: State, asked: str | None, own: Client, workers: int,
    dtype: torch.dtype = torch.float32,
) -> Trainer:  # fmt: skip
    """What trains the lanes: as the State says, or as asked; the State then keeps the choice."""
    if state.way is not None:
        way = _checked(state.way, asked)
        return _made(e, way.name, way.lanes, own, dtype)
    if asked is not None:
        name, why = _possible(e, asked, own.device)
    elif state.round:
        name, why = PER_CLIENT, "as it began"  # by an older version
    else:
        width = partial(width_of, e, len(state.seeds), workers, own.device)
        name, why = choose(e, state, own, width)
    lanes = 1 if name == PER_CLIENT else width_of(e, len(state.seeds), workers, own.device)
    try:
        trainer = _made(e, name, lanes, own, dtype)
    except Exception as trouble:
        if name != COMPILED or isinstance(trouble, FedtaperError):
            raise
        name, why = STACKED, f"torch.compile failed ({type(trouble).__name__})"
        warn(f"{why}: the clients are trained stacked, without it")
        trainer = _made(e, name, lanes, own, dtype)
    state.way = Way(name, lanes, why)
    return trainer


def _possible(e: Experiment, asked: str, device: str) -> tuple[str, str]:
    """The way that was asked for, unless the model cannot be trained that way."""
    trouble = None if asked == PER_CLIENT else objection(e, device)
    if trouble is None:
        return asked, "as asked"
    warn(f"{asked} is not possible: {trouble}; the clients are trained one by one")
    return PER_CLIENT, trouble


def _made(e: Experiment, way: str, width: int, own: Client, dtype: torch.dtype) -> Trainer:
    if way == PER_CLIENT:
        return Apart(own)
    return Stack(e, width, way == COMPILED, own.device, dtype)


def width_of(e: Experiment, seeds: int, workers: int, device: str = "cpu") -> int:
    """Lanes of one stack: a share for each core, as many as fit memory."""
    lanes = max(1, int(np.ceil(float(e.rates.sum()) * seeds)))
    fit = max(1, _room(device) // bytes_per_lane(e, device))
    return int(max(1, min(-(-lanes // workers), fit)))


def _room(device: str) -> int:
    """Bytes that a stack may take."""
    if device == "cpu":
        return STACK_BYTES
    return int(GPU_SHARE * torch.cuda.mem_get_info()[0])


def _checked(way: Way, asked: str | None) -> Way:
    """The way that a State holds, if it is one, and the one that was asked for."""
    if way.name not in WAYS or way.lanes < 1:
        raise FedtaperError(
            "the stopped run was trained in a way that this engine or this version does not know: "
            f"{str(way)!r:.40}"
        )
    if asked is not None and asked != way.name:
        raise FedtaperError(
            f'the stopped run is trained with way="{way.name}", not "{asked}": resume without '
            "way=, so that it ends as it would have"
        )
    return way
