"""Which answers count: each is looked at alone, and a bad one is named and left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message

from fedtaper.core.schedules import Schedule
from fedtaper.engines.flower import fields, wire
from fedtaper.engines.flower.client import LOST, METRICS, SCHEDULE_KEYS, TOLD, UPDATE, as_numbers
from fedtaper.engines.flower.fields import FaultError, shown
from fedtaper.engines.flower.memory import LostError

MEASURED = ("train_loss", "train_accuracy")  # what a site says of a network's training
LARGEST_METRIC = 1e12
MOST_METRICS = 64  # names in an answer; more are not looked at


class Answer(NamedTuple):
    """A good answer: the update in pieces, its size, and what the site measured."""

    update: list[Any]
    norm: float
    measured: dict[str, float]


def checked_update(reply: Message, like: Any, site: str, round_: int, schedule: Schedule) -> Answer:
    """The update in an answer and what the site measured, or a :class:`FaultError`.

    A :class:`LostError` where the site says that it has lost its memory. ``like`` is the shared
    model: an update must have its dtype and shape, and finite numbers.
    """
    if reply.has_error():
        raise FaultError(f"no answer: {shown(reply.error.reason)}")
    try:
        told: Any = reply.content[TOLD]
        found = fields.mapping(told)
        _check_told(found, site, round_, schedule)
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
            raise FaultError("it is too large to have a size")
    return Answer(update, norm, fields.mapping(measures))


def known_metrics(
    measured: Mapping[str, Any], allowed: frozenset[str]
) -> tuple[dict[str, float], str]:
    """The metrics that a site may send, as numbers, and what is wrong with the rest, if any."""
    if len(measured) > MOST_METRICS:
        return {}, f"{len(measured):,} metrics, and at most {MOST_METRICS} are looked at"
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
        raise FaultError(f"wrong keys: {shown(list(found)[:50])} in place of {shown(keys)}")
    update = []
    for key, same in zip(keys, wanted, strict=True):
        try:
            piece = wire.piece(found[key])
        except Exception as trouble:  # bytes from elsewhere may break the decoder in any way
            raise FaultError(f"its array cannot be decoded: {shown(str(trouble))}") from None
        if piece.dtype != same.dtype:
            raise FaultError(f"wrong dtype: {shown(str(piece.dtype))} in place of {same.dtype}")
        if piece.shape != same.shape:
            raise FaultError(f"wrong shape: {piece.shape} in place of {same.shape}")
        update.append(piece)
    return update


def _check_told(told: dict[str, Any], site: str, round_: int, schedule: Schedule) -> None:
    if told.get("site") != site:
        raise FaultError(f"it answers as {shown(told.get('site'))}")
    if isinstance(told.get("round"), bool) or told.get("round") != round_:
        raise FaultError(f"it answers for round {shown(told.get('round'))}")
    declared = as_numbers(schedule)
    for name in SCHEDULE_KEYS:
        value = told.get(name)
        same = isinstance(value, float) and math.isclose(value, declared[name], rel_tol=1e-12)
        if not same:
            raise FaultError(
                f"it used {name} = {shown(value)}, not the declared {declared[name]:g}"
            )
