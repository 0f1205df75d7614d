"""Flower's client-side mods that clip or add noise to models, for answers that are updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message, MessageType

from fedtaper.engines.flower import wire
from fedtaper.engines.flower.client import MODEL, UPDATE

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def on_models(mod: Mod) -> Mod:
    """The mod, applied to models where our answers hold updates; it affects only training.

    For example ``make_client_app(find, mods=[on_models(LocalDpMod(1.0, 0.1, 1.0, 1e-5))])``, or
    ``on_models(fixedclipping_mod)`` where the federation has a ``clipping_norm``.
    """

    def wrapped(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return call_next(message, context)
        w = wire.joined(message.content[MODEL])

        def as_model(inner: Message, more: Context) -> Message:
            return _shifted(call_next(inner, more), w)

        return _shifted(mod(message, context, as_model), -w)

    return wrapped


def _shifted(reply: Message, by: Any) -> Message:
    if not reply.has_error():
        moved = wire.joined(reply.content[UPDATE]) + by
        reply.content[UPDATE] = wire.packed(moved.astype(by.dtype))
    return reply
