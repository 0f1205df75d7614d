"""Who is connected: Flower's nodes have random numbers; a query asks each which site it is."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtaper.core.errors import FedtaperError
from fedtaper.core.schedules import Schedule
from fedtaper.core.version import __version__
from fedtaper.engines.flower import fields
from fedtaper.engines.flower.client import TOLD, as_schedule
from fedtaper.engines.flower.federation import Federation
from fedtaper.engines.flower.fields import FaultError, shown

BYTES_AT_ONCE = 2**23  # bytes of answers that are taken in together
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two looks for answers
SLOWER = 1.2  # each pause beside the one before
QUERY_SECONDS = 300.0  # how long a node may take to say who it is: a first start is slow
ASK_AGAIN = 10.0  # seconds until a node that could not say is asked again
SCHEDULE_RANGE = {"c": (1e-12, 1e6), "delta": (0.0, 10.0), "offset": (0.0, 1e12)}


@dataclass(frozen=True)
class Site:
    """What a node reported about itself."""

    node: int
    name: str
    samples: int | None = None
    schedule: Schedule | None = None
    trouble: str = ""  # why it cannot take part


class Roster:
    """Nodes by site, asked once each; a node that joins later is asked when it is first seen.

    Nobody waits for a node's answer: it takes part as soon as its site is known.
    """

    def __init__(self, grid: Grid, federation: Federation, tell: Callable[..., None]) -> None:
        self.grid, self.federation, self.tell = grid, federation, tell
        self.known: dict[int, Site | None] = {}  # None: refused
        self.asked: dict[str, int] = {}  # message to node
        self.again: dict[int, float] = {}  # node to the time from which on it may be asked
        self.told: dict[int, str] = {}  # node to the trouble that was last told of it
        self.failing: dict[str, str] = {}  # site to why it cannot take part
        self.sizes: dict[str, int] = {}  # site to the samples that it said it has

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
                why = f"node {node} claims to be {site.name}, which is connected already"
                self._refuse(node, why)
            else:
                found[site.name] = site
        return found

    def wait(
        self, seconds: float, needed: int, say: Callable[[str], None] = lambda line: None
    ) -> dict[str, Site]:
        """All sites, or after ``seconds`` at least ``needed`` of them.

        If all are needed, a site that cannot take part ends the wait at once.
        """
        end = time.monotonic() + seconds
        while True:
            found = self.present()
            missing = [name for name in self.federation.sites if name not in found]
            if not missing:
                return found
            if self.failing and needed == len(self.federation.sites):
                why = "; ".join(f"{site}: {text}" for site, text in self.failing.items())
                raise FedtaperError(f"before round 1 a site failed: {why}. Fix it at that site")
            if time.monotonic() > end:
                break
            say(f"waiting for {', '.join(missing)}")
            time.sleep(LONGEST_PAUSE)
        if len(found) < needed:
            raise FedtaperError(
                f"after {seconds:g} s only {len(found)} of {len(self.federation.sites)} sites "
                f"are connected ({needed} needed); missing: {', '.join(missing)}"
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
        """Read the answers so far; a node that could not answer is asked again later."""
        for reply in self.grid.pull_messages(list(self.asked)) if self.asked else ():
            node = self.asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                reason = shown(str(reply.error.reason)[-200:])
                why = f"node {node} cannot say which site it is: {reason}"
                self._later(node, self._bound(node), "unclear", why)
                continue
            try:
                site = self._read(node, reply)
            except FaultError as fault:
                self._refuse(node, f"node {node}: {fault}")
                continue
            if site.trouble:
                self.failing[site.name] = site.trouble
                self._later(node, site.name, "failed", site.trouble)
            else:
                self.failing.pop(site.name, None)
                self.known[node] = site

    def _later(self, node: int, site: str, kind: str, why: str) -> None:
        """Ask again after a while; the same trouble is reported once."""
        self.again[node] = time.monotonic() + ASK_AGAIN
        if self.told.get(node) != why:
            self.told[node] = why
            self.tell(0, site, kind, why)

    def _read(self, node: int, reply: Message) -> Site:
        """What a node reports about itself, every field checked."""
        try:
            record: Any = reply.content[TOLD]
        except Exception:  # what comes from elsewhere may be anything
            raise FaultError("it sent no site name") from None
        told = fields.mapping(record)
        name = fields.word(told, "site")
        if name not in self.federation.sites:
            raise FaultError(f"it is {shown(name, 80)!r}, which is not a site of this federation")
        bound = self.federation.nodes.get(name)
        if bound is not None and bound != str(node):
            raise FaultError(f"it claims to be {name}, whose key has node id {bound}")
        if "trouble" in told:
            return Site(node, name, trouble=shown(fields.word(told, "trouble")))
        self._check_version(node, name, told)
        return Site(node, name, self._samples(name, told), self._schedule(name, told))

    def _check_version(self, node: int, name: str, told: dict[str, Any]) -> None:
        found = fields.word(told, "version")
        if found != __version__ and self.told.get(node) != found:
            self.told[node] = found
            why = f"it runs fedtaper {shown(found, 40)}, the server runs {__version__}"
            self.tell(0, name, "version", why)

    def _samples(self, name: str, told: dict[str, Any]) -> int | None:
        """How many samples a site reports: within its bounds, and the same as before."""
        if "samples" not in told:
            return None
        found = fields.whole_number(told, "samples", *self.federation.bounds(name))
        if self.sizes.setdefault(name, found) != found:
            raise FaultError(
                f"{name} reports {found:,} samples, and reported {self.sizes[name]:,} before"
            )
        return found

    def _schedule(self, name: str, told: dict[str, Any]) -> Schedule | None:
        if "c" not in told:
            return None
        if not self.federation.own_schedules:
            raise FaultError(
                f"{name} has a schedule of its own; allow that with own_schedules = true"
            )
        numbers = {key: fields.number(told, key, *SCHEDULE_RANGE[key]) for key in SCHEDULE_RANGE}
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            schedule = as_schedule(numbers)
        for warning in noted:
            self.tell(0, name, "schedule", shown(str(warning.message)))
        return schedule

    def _refuse(self, node: int, why: str) -> None:
        self.known[node] = None
        self.tell(0, self._bound(node), "refused", why)

    def _bound(self, node: int) -> str:
        """The site whose key has this node id, if that is known."""
        sites = self.federation.nodes.items()
        return next((site for site, number in sites if number == str(node)), "")


def answers(
    grid: Grid, messages: dict[Any, Message], seconds: float, size: int = 0
) -> Iterator[tuple[Any, Message]]:
    """Send messages, and yield the answers in the order of the messages.

    An answer is yielded as soon as those before it are; when the time is over, without those
    that are missing. Flower's own loop looks every three seconds; this one starts at once and
    slows down. If each answer has many bytes (``size``), only a few are fetched together, and
    those that are far from their turn wait at the SuperLink.
    """
    ids = list(grid.push_messages(list(messages.values())))
    turn = {one: key for one, key in zip(ids, messages, strict=True) if one}
    messages.clear()
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    few = max(1, BYTES_AT_ONCE // (size + 1))
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
