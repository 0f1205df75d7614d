"""Which answers count: each is looked at alone, and a bad one is named and left out."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message

from fedtaper.core.schedules import Schedule
from fedtaper.engines.flower import wire
from fedtaper.engines.flower.client import METRICS, SCHEDULE_KEYS, TOLD, UPDATE, as_numbers


class FaultError(Exception):
    """Why an answer does not count, in words."""


class Answer(NamedTuple):
    """A good answer: the update in pieces, its size, and what the site measured."""

    update: list[Any]
    norm: float
    measured: dict[str, float]


def checked_update(reply: Message, like: Any, site: str, round_: int, schedule: Schedule) -> Answer:
    """The update in an answer and what the site measured, or a :class:`FaultError`.

    ``like`` is the shared model: an update must have its dtype and shape, and finite numbers.
    """
    if reply.has_error():
        raise FaultError(f"no answer: {_short(reply.error.reason)}")
    try:
        told: Any = dict(reply.content[TOLD])
        arrays: Any = reply.content[UPDATE]
        measures: Any = reply.content.get(METRICS, {})
        measured = {str(k): float(v) for k, v in measures.items()}
    except (KeyError, TypeError, ValueError) as trouble:
        raise FaultError(f"a part is missing or malformed: {_short(trouble)}") from None
    _check_told(told, site, round_, schedule)
    update = _pieces(arrays, like)
    norm = wire.norm(update)
    if not math.isfinite(norm):  # a norm may overflow honestly
        count = sum(int((~np.isfinite(piece)).sum()) for piece in update)
        if count:
            raise FaultError(f"{count} of its numbers are not finite")
    return Answer(update, norm, measured)


def _pieces(arrays: Any, like: Any) -> list[Any]:
    wanted = wire.cut(like)
    keys = [str(i) for i in range(len(wanted))]
    if list(arrays.keys()) != keys:
        raise FaultError(f"wrong keys: {_short(list(arrays.keys()))} in place of {_short(keys)}")
    update = []
    for key, same in zip(keys, wanted, strict=True):
        try:
            piece = wire.piece(arrays[key])
        except Exception as trouble:  # bytes from elsewhere may break the decoder in any way
            raise FaultError(f"its array cannot be decoded: {_short(trouble)}") from None
        if piece.dtype != same.dtype:
            raise FaultError(f"wrong dtype: {piece.dtype} in place of {same.dtype}")
        if piece.shape != same.shape:
            raise FaultError(f"wrong shape: {piece.shape} in place of {same.shape}")
        update.append(piece)
    return update


def _check_told(told: dict[str, Any], site: str, round_: int, schedule: Schedule) -> None:
    if told.get("site") != site:
        raise FaultError(f"it answers as {_short(told.get('site'))}")
    if told.get("round") != round_:
        raise FaultError(f"it answers for round {_short(told.get('round'))}")
    declared = as_numbers(schedule)
    for name in SCHEDULE_KEYS:
        value = told.get(name)
        same = isinstance(value, float) and math.isclose(value, declared[name], rel_tol=1e-12)
        if not same:
            raise FaultError(
                f"it used {name} = {_short(value)}, not the declared {declared[name]:g}"
            )


def _short(what: Any) -> str:
    text = " ".join(str(what).split())
    return text if len(text) <= 200 else text[:200] + "..."
