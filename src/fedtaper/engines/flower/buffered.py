"""Asynchronous rounds: the server aggregates whenever K updates have arrived.

Nobody waits for the slowest site. A site gets the newest model as soon as it has answered; its
update may then be based on a model of some aggregations ago. Each aggregation is a round: the
clock advances by one period, and the update counts with the weight the site would have had.
A site that answers r times as often as another has r times its influence: ``answered`` in the
run, and ``sites.json``, say how often each site did.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.engines.flower import wire
from fedtaper.engines.flower.guard import Answer
from fedtaper.engines.flower.roster import FIRST_PAUSE, LONGEST_PAUSE, SLOWER
from fedtaper.engines.flower.rounds import GridSession
from fedtaper.rules.arrivals import drawn_by


class BufferedSession(GridSession):
    """Rounds that end when ``buffer`` good updates have arrived."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.flying: dict[str, tuple[int, int, float]] = {}  # message: client, round, deadline
        self.stale: list[int] = []
        self.used: dict[int, tuple[int, int]] = {}  # client: round of its last update, how many

    def _round(self) -> tuple[Any, dict[str, float]]:
        buffer: list[tuple[int, Answer]] = []
        end = time.monotonic() + self.federation.deadline * (self.federation.retries + 1)
        pause, self.stale = FIRST_PAUSE, []
        assert self.federation.buffer is not None
        while len(buffer) < self.federation.buffer:
            self._send()
            got = self._arrived(self.federation.buffer - len(buffer))
            buffer += got
            pause = FIRST_PAUSE if got else min(pause * SLOWER, LONGEST_PAUSE)
            if time.monotonic() > end:
                raise FedtaperError(
                    f"round {self.state.round + 1} has {len(buffer)} of the "
                    f"{self.federation.buffer} updates it needs, and no site sends more: check "
                    "the sites, then resume"
                )
            if len(buffer) < self.federation.buffer:
                time.sleep(pause)
        return self._summed(buffer)

    def _send(self) -> None:
        """Send the newest model to every site that is connected and free."""
        busy = {client for client, _, _ in self.flying.values()}
        here = self.roster.present()
        free = [i for i, n in enumerate(self.federation.sites) if n in here and i not in busy]
        if not free:
            return
        k = self.state.round
        again = {i: self.used[i][1] for i in free if i in self.used and self.used[i][0] == k}
        self.draws = {i: drawn_by(k, count) for i, count in again.items()}
        messages = self.messages({i: here[self.federation.sites[i]] for i in free})
        end = time.monotonic() + self.federation.deadline
        for one, client in zip(self.grid.push_messages(list(messages.values())), free, strict=True):
            if one:
                self.flying[one] = (client, self.state.round, end)

    def _arrived(self, most: int) -> list[tuple[int, Answer]]:
        """Good updates that have arrived, at most ``most``; the rest wait for the next round."""
        found: list[tuple[int, Answer]] = []
        for one in list(self.flying):
            if len(found) == most:
                break
            client, round_, end = self.flying[one]
            for reply in self.grid.pull_messages([one]):
                del self.flying[one]
                answer = self.checked(client, reply, round_)
                if answer is not None:
                    found.append((client, self._discounted(answer, self.state.round - round_)))
                    before, count = self.used.get(client, (-1, 0))
                    self.used[client] = (round_, count + 1 if before == round_ else 1)
                    self.stale.append(self.state.round - round_)
            if one in self.flying and time.monotonic() > end:
                del self.flying[one]
                self.fault(self.state.round, client, "late", "no answer in time")
        return found

    def _discounted(self, answer: Answer, staleness: int) -> Answer:
        """The factor that its staleness puts on an update."""
        factor = float(self.e.staleness(staleness))
        if factor == 1.0:
            return answer
        update = [(factor * piece).astype(piece.dtype) for piece in answer.update]
        return answer._replace(update=update, norm=wire.norm(update))

    def _summed(self, buffer: list[tuple[int, Answer]]) -> Any:
        """One aggregation; a site with two updates counts twice."""
        total: dict[int, Answer] = {}
        for client, answer in buffer:
            if client in total:
                pairs = zip(total[client].update, answer.update, strict=True)
                update = [one + other for one, other in pairs]
                answer = Answer(update, wire.norm(update), answer.measured)
            total[client] = answer
        buffer.clear()
        intake = self.intake(list(range(self.e.num_clients)))
        for client in sorted(total):
            intake.add(client, total.pop(client))
        found = self._step(intake)
        self.notes = {"staleness": float(np.mean(self.stale))}
        return found
