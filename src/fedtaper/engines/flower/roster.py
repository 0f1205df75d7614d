"""Who is there: Flower's nodes have random numbers; a query asks each which site it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtaper.core.errors import FedtaperError
from fedtaper.core.schedules import Schedule
from fedtaper.engines.flower.client import TOLD, as_schedule
from fedtaper.engines.flower.federation import Federation

TOGETHER = 2**23  # bytes of answers that are taken in together
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks for answers
SLOWER = 1.2  # each pause beside the one before
QUERY_SECONDS = 300.0  # how long a node may take to say who it is: a first start is slow
ASK_AGAIN = 10.0  # seconds until a node that could not say is asked again


@dataclass(frozen=True)
class Site:
    """What a node said of itself."""

    node: int
    name: str
    samples: int | None
    schedule: Schedule | None


class Roster:
    """Nodes by site, asked once each; a node that joins later is asked when it is first seen.

    Nobody waits for a node's answer: it takes part from the round on in which it is known.
    """

    def __init__(self, grid: Grid, federation: Federation, tell: Callable[..., None]) -> None:
        self.grid, self.federation, self.tell = grid, federation, tell
        self.known: dict[int, Site | None] = {}  # None: refused
        self.asked: dict[str, int] = {}  # message to node
        self.again: dict[int, float] = {}  # node to the time from which on it may be asked

    def present(self) -> dict[str, Site]:
        """The sites that are connected now."""
        online = list(self.grid.get_node_ids())
        self._ask([node for node in online if self._is_new(node)])
        self._hear()
        for node in [n for n in self.known if n not in online]:
            del self.known[node]
        found: dict[str, Site] = {}
        for node in online:
            site = self.known.get(node)
            if site is None:
                continue
            if site.name in found:
                self._refuse(node, f"node {node} claims to be {site.name}, who is here already")
            else:
                found[site.name] = site
        return found

    def wait(self, seconds: float, needed: int) -> dict[str, Site]:
        """All sites, or after ``seconds`` at least ``needed`` of them."""
        end = time.monotonic() + seconds
        while True:
            found = self.present()
            missing = [name for name in self.federation.sites if name not in found]
            if not missing:
                return found
            if time.monotonic() > end:
                break
            time.sleep(LONGEST_PAUSE)
        if len(found) < needed:
            raise FedtaperError(
                f"after {seconds:g} s only {len(found)} of {len(self.federation.sites)} sites "
                f"are here ({needed} needed); missing: {', '.join(missing)}"
            )
        for name in missing:
            self.tell(0, name, "missing", "not connected at the start")
        return found

    def _is_new(self, node: int) -> bool:
        unknown = node not in self.known and node not in self.asked.values()
        return unknown and time.monotonic() >= self.again.get(node, 0.0)

    def _ask(self, nodes: list[int]) -> None:
        messages = [Message(RecordDict(), n, MessageType.QUERY, ttl=QUERY_SECONDS) for n in nodes]
        if messages:
            ids = self.grid.push_messages(messages)
            self.asked |= {one: n for one, n in zip(ids, nodes, strict=True) if one}

    def _hear(self) -> None:
        """Answers that are there by now; who could not answer is asked again later."""
        for reply in self.grid.pull_messages(list(self.asked)) if self.asked else ():
            node = self.asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                self.again[node] = time.monotonic() + ASK_AGAIN
                why = f"node {node} cannot say who it is: {str(reply.error.reason)[-300:]}"
                self.tell(0, "", "unclear", why)
                continue
            try:
                self.known[node] = self._read(node, reply)
            except FedtaperError as problem:
                self._refuse(node, str(problem))

    def _read(self, node: int, reply: Message) -> Site:
        if reply.has_error():
            raise FedtaperError(
                f"node {node} cannot say who it is: {str(reply.error.reason)[-300:]}"
            )
        try:
            told: Any = dict(reply.content[TOLD])
            name, samples = str(told["site"]), told.get("samples")
        except (KeyError, TypeError, ValueError):
            raise FedtaperError(f"node {node} sent no site name") from None
        if name not in self.federation.sites:
            raise FedtaperError(f"node {node} is {name[:80]!r}, no site of this federation")
        bound = self.federation.nodes.get(name)
        if bound is not None and bound != str(node):
            raise FedtaperError(f"node {node} claims to be {name}, whose key has node id {bound}")
        schedule = as_schedule(told) if "c" in told else None
        if schedule is not None and not self.federation.own_schedules:
            raise FedtaperError(
                f"{name} keeps a schedule of its own; allow that with own_schedules = true"
            )
        return Site(node, name, None if samples is None else int(samples), schedule)

    def _refuse(self, node: int, why: str) -> None:
        self.known[node] = None
        self.tell(0, "", "refused", why)


def answers(
    grid: Grid, messages: dict[Any, Message], seconds: float, size: int = 0
) -> Iterator[tuple[Any, Message]]:
    """Send, and give the answers in the order of the messages, whoever is there first.

    An answer is given as soon as those before it are; at the end of the time, without those
    that are missing. Flower's own loop looks every three seconds; this one starts at once and
    slows down. Where each answer has many bytes (``size``), few are taken in together, and
    those that are far from their turn wait at the SuperLink.
    """
    ids = list(grid.push_messages(list(messages.values())))
    turn = {one: key for one, key in zip(ids, messages, strict=True) if one}
    messages.clear()
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    few = max(1, TOGETHER // (size + 1))
    near = max(few, len(turn) - 2)  # so that no more models are held than are in flight
    early: dict[str, Message] = {}
    while turn and time.monotonic() <= end:
        before = len(turn) - len(early)
        wanted = [one for one in list(turn)[:near] if one not in early]
        for low in range(0, len(wanted), few):
            early |= _arrived(grid, wanted[low : low + few])
            while turn and next(iter(turn)) in early:
                one = next(iter(turn))
                yield turn.pop(one), early.pop(one)
        pause = (
            FIRST_PAUSE if len(turn) - len(early) < before else min(pause * SLOWER, LONGEST_PAUSE)
        )
        if turn:
            time.sleep(pause)
    for one, key in turn.items():
        early |= {} if one in early else _arrived(grid, [one])
        if one in early:
            yield key, early.pop(one)


def _arrived(grid: Grid, ids: list[str]) -> dict[str, Message]:
    found = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(ids)}
    return {one: reply for one, reply in found.items() if one in ids}
