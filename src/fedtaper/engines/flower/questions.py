"""What the server asks besides the rounds: challenges, and losses for a controller.

A challenge has the form of a round: the same fields and the same kind of message, sent together
with the round's own. Which of the two comes first is drawn anew for every site, from the system's
entropy and not from the run's seed, which every site knows. So neither form nor order gives a
challenge away.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Message, MessageType

from fedtaper.engines.flower import wire
from fedtaper.engines.flower.client import MODEL
from fedtaper.engines.flower.fields import FaultError
from fedtaper.engines.flower.guard import checked_loss
from fedtaper.engines.flower.roster import Site, answers

if TYPE_CHECKING:
    from fedtaper.engines.flower.rounds import GridSession

COIN = random.SystemRandom()


def challenged(
    session: GridSession, clients: list[int], model: Any
) -> tuple[dict[int, Any], dict[int, Message | None]]:
    """Good answers to a challenge, and the same sites' answers to the round that comes next.

    Every site gets both messages, one after the other, in an order that it cannot predict.
    """
    here = _here(session, clients)
    first = {i: COIN.random() < 0.5 for i in here}  # whether the challenge is first
    got: dict[int, Any] = {}
    early: dict[int, Message | None] = dict.fromkeys(here)
    for turn in (True, False):
        packed = {MODEL: wire.packed(model)}
        rounds = session.messages({i: site for i, site in here.items() if first[i] != turn})
        asked = {
            i: session.message(i, site, packed) if first[i] == turn else rounds[i]
            for i, site in here.items()
        }
        for i, reply in answers(session.grid, asked, session.federation.deadline, model.nbytes):
            if first[i] != turn:
                early[i] = reply
                continue
            answer = session.checked(i, reply, session.state.round)
            if answer is not None:
                got[i] = np.concatenate(answer.update)
    return got, early


def in_order(
    early: dict[int, Message | None], replies: Iterable[tuple[int, Message]]
) -> Iterator[tuple[int, Message | None]]:
    """Answers that have arrived and answers that still arrive, in the order of the clients."""
    waiting = dict(sorted(early.items()))
    for i, reply in replies:
        for client in [c for c in waiting if c < i]:
            yield client, waiting.pop(client)
        yield i, reply
    yield from waiting.items()


def asked_losses(session: GridSession) -> Any:
    """Every site's loss at the shared model, NaN where it did not report one."""
    found = np.full(session.e.num_clients, np.nan)
    here, k = _here(session, list(range(len(found)))), session.state.round
    model = {MODEL: wire.packed(session.w)}
    asked = {i: session.message(i, site, model, MessageType.EVALUATE) for i, site in here.items()}
    for i, reply in answers(session.grid, asked, session.federation.deadline):
        name = session.federation.sites[i]
        try:
            found[i] = checked_loss(reply, name, k)
        except FaultError as fault:
            session.roster.tell(k, name, "loss", str(fault))
    return found


def _here(session: GridSession, clients: list[int]) -> dict[int, Site]:
    present, names = session.roster.present(), session.federation.sites
    return {i: present[names[i]] for i in clients if names[i] in present}
