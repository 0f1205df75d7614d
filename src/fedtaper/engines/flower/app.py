"""A site's ClientApp: who it is, a round's local updates, its loss at the shared model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtaper.engines.flower import client
from fedtaper.engines.flower.source import Source


def make_client_app(
    find: Callable[[Context], Source], mods: Sequence[Any] | None = None
) -> ClientApp:
    """A ClientApp whose experiment ``find`` gives; ``mods`` as in Flower (see privacy.py)."""
    app = ClientApp(mods=list(mods or ()))

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return client.describe(message, context, find(context))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return client.train(message, context, find(context))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return client.judge(message, context, find(context))

    return app
