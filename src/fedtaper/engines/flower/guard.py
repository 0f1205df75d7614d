"""Which answers count: each is checked by itself, and a bad one is reported and left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message

from fedtaper.core.protocols import is_network
from fedtaper.core.schedules import Schedule
from fedtaper.engines.flower import fields, wire
from fedtaper.engines.flower.client import (
    FACTOR,
    LOSS,
    LOST,
    METRICS,
    TOLD,
    UPDATE,
    as_numbers,
    unscaled,
)
from fedtaper.engines.flower.federation import Federation
from fedtaper.engines.flower.fields import FaultError, shown
from fedtaper.engines.flower.memory import LostError
from fedtaper.experiment import Experiment

MEASURED = ("train_loss", "train_accuracy")  # what a site says of a network's training
LARGEST_METRIC = 1e12
MOST_METRICS = 64  # names in an answer; more are not looked at


class Answer(NamedTuple):
    """A good answer: the update in pieces, its size, and what the site measured."""

    update: list[Any]
    norm: float
    measured: dict[str, float]


def checked_update(
    reply: Message, like: Any, site: str, round_: int, schedule: Schedule, factor: float = 1.0
) -> Answer:
    """The update in an answer and what the site measured, or a :class:`FaultError`.

    A :class:`LostError` if the site reports that it has lost its memory. ``like`` is the shared
    model: an update must have its dtype and shape, and finite numbers.
    """
    if reply.has_error():
        raise FaultError(f"no answer: {shown(reply.error.reason)}")
    try:
        told: Any = reply.content[TOLD]
        found = fields.mapping(told)
        _check_told(found, site, round_, as_numbers(unscaled(schedule)) | {FACTOR: factor})
        if LOST in found:
            raise LostError(shown(fields.word(found, LOST)))
        arrays: Any = reply.content[UPDATE]
        measures: Any = reply.content.get(METRICS, {})
    except (FaultError, LostError):
        raise
    except Exception as trouble:  # what comes from elsewhere may be anything
        raise FaultError(f"a part is missing or malformed: {shown(str(trouble))}") from None
    update = _pieces(arrays, like)
    norm = wire.norm(update)
    if not math.isfinite(norm):  # or too large for the square of a float32
        count = sum(int((~np.isfinite(piece)).sum()) for piece in update)
        if count:
            raise FaultError(f"{count} of its numbers are not finite")
        norm = wire.norm(piece.astype(np.float64) for piece in update)
        if not math.isfinite(norm):
            raise FaultError("its size is too large for a floating-point number")
    return Answer(update, norm, fields.mapping(measures))


def allowed_metrics(e: Experiment, federation: Federation, w: Any) -> frozenset[str]:
    """Metrics that sites may send: never one that the server records itself."""
    network = is_network(e.problem)
    wanted = {*federation.metrics, *(MEASURED if network else ())}
    if not network:
        p = e.limit_influence
        with np.errstate(all="ignore"):
            wanted -= set(e.problem.metrics(w[None, None], p[None], p))
    return frozenset(wanted)


def known_metrics(
    measured: Mapping[str, Any], allowed: frozenset[str]
) -> tuple[dict[str, float], str]:
    """The metrics that a site may send, as numbers, and what is wrong with the rest, if any."""
    if len(measured) > MOST_METRICS:
        return {}, f"{len(measured):,} metrics were sent, and at most {MOST_METRICS} are read"
    good, bad = {}, []
    for name, value in measured.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name in allowed and number and abs(value) <= LARGEST_METRIC:  # False for NaN
            good[name] = float(value)
        else:
            bad.append(f"{name} = {shown(value, 40)}")
    return good, shown(", ".join(bad))


def _pieces(arrays: Any, like: Any) -> list[Any]:
    wanted = wire.cut(like)
    keys = [str(i) for i in range(len(wanted))]
    found = fields.mapping(arrays)
    if list(found) != keys:
        raise FaultError(f"wrong keys: {shown(list(found)[:50])} instead of {shown(keys)}")
    update = []
    for key, same in zip(keys, wanted, strict=True):
        try:
            piece = wire.piece(found[key])
        except Exception as trouble:  # bytes from elsewhere may break the decoder in any way
            raise FaultError(f"its array cannot be decoded: {shown(str(trouble))}") from None
        if piece.dtype != same.dtype:
            raise FaultError(f"wrong dtype: {shown(str(piece.dtype))} instead of {same.dtype}")
        if piece.shape != same.shape:
            raise FaultError(f"wrong shape: {piece.shape} instead of {same.shape}")
        update.append(piece)
    return update


def checked_loss(reply: Message, site: str, round_: int) -> float:
    """A site's loss at the shared model, or a :class:`FaultError`."""
    if reply.has_error():
        raise FaultError(f"no answer: {shown(reply.error.reason)}")
    try:
        told: Any = reply.content[TOLD]
    except Exception as trouble:  # what comes from elsewhere may be anything
        raise FaultError(f"a part is missing or malformed: {shown(str(trouble))}") from None
    found = fields.mapping(told)
    _check_told(found, site, round_, {})
    return fields.number(found, LOSS, -LARGEST_METRIC, LARGEST_METRIC)


def _check_told(
    told: dict[str, Any], site: str, round_: int, declared: Mapping[str, float]
) -> None:
    if told.get("site") != site:
        raise FaultError(f"it answers as {shown(told.get('site'))}")
    if isinstance(told.get("round"), bool) or told.get("round") != round_:
        raise FaultError(f"it answers for round {shown(told.get('round'))}")
    for name, wanted in declared.items():
        value = told.get(name)
        if not (isinstance(value, float) and math.isclose(value, wanted, rel_tol=1e-12)):
            raise FaultError(f"it used {name} = {shown(value)}, not the declared {wanted:g}")
