"""Challenges besides the rounds of a simulation: asked, recorded, never aggregated.

The model of the base round is kept, and what each client sent then, as a direction. Before a
round with a challenge, every client that takes part in it trains once more, from the base
model, with the step sizes and the mini-batches of that round. Nothing of this reaches the
State, so the shared model and all metrics have the same bits with and without challenges.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Array, Block, Session, State
from fedtaper.core.sketch import sketch
from fedtaper.experiment import Experiment
from fedtaper.rules import behaviours
from fedtaper.rules.challenges import Answers

WIDTH = 4096  # numbers of a client's base update that the server keeps
KEPT = ("base", "after", "direction", "product", "size", "base_size")


def joined(parts: list[Block]) -> Block:
    """Consecutive blocks as one: metrics are computed at once, to the same bits."""
    if len(parts) == 1:
        return parts[0]

    def rows(arrays: list[Any]) -> Any:
        return None if arrays[0] is None else np.concatenate(arrays, axis=1)

    def tables(found: list[dict[str, Array]]) -> dict[str, Array]:
        return {name: rows([table[name] for table in found]) for name in found[0]}

    metrics = [part.metrics for part in parts if part.metrics is not None]
    return Block(
        rows([part.w for part in parts]),
        rows([part.update_norms for part in parts]),
        tables(metrics) if metrics else None,
        rows([part.updates for part in parts]),
        tables([part.notes for part in parts]),
    )


class Challenger:
    """Asks the challenges of one run; without any it does nothing."""

    def __init__(self, e: Experiment, state: State) -> None:
        self.e, self.state, self.plan = e, state, e.challenges
        self.rounds = np.zeros(0, dtype=np.int64)
        if self.plan is not None:
            self.rounds = self.plan.rounds(e.rounds)
            self._make_room()

    def _make_room(self) -> None:
        seeds, dim = self.state.w.shape
        clients, asked = self.e.num_clients, len(self.rounds)
        self.base = np.full((seeds, dim), np.nan)
        self.after = np.full((seeds, dim), np.nan)
        self.direction = np.full((seeds, clients, min(dim, WIDTH)), np.nan)
        self.product = np.full((seeds, asked, clients), np.nan)
        self.size = np.full((seeds, asked, clients), np.nan)
        self.base_size = np.full((seeds, clients), np.nan)

    def quiet(self, rounds: int) -> int:
        """How many rounds can be made before there is something to do."""
        if self.plan is None:
            return rounds
        now = self.state.round
        events = np.append(self.rounds - 1, [self.plan.base - 1, self.plan.base])
        ahead = events[events > now]
        return int(min(rounds, ahead.min() - now)) if ahead.size else rounds

    def before_round(self, session: Session) -> None:
        """Keep the base model, or ask a challenge, if the next round is one for it."""
        if self.plan is None:
            return
        now = self.state.round
        asked = np.flatnonzero(self.rounds == now + 1)
        if not asked.size and now not in (self.plan.base - 1, self.plan.base):
            return
        session.sync()
        for s in np.flatnonzero(self.state.dead_round == 0):
            if now == self.plan.base - 1:
                self.base[s] = self.state.w[s]
            if now == self.plan.base:
                self.after[s] = self.state.w[s]
                self._keep(session, int(s))
            if asked.size:
                self._ask(session, int(s), int(asked[0]))

    def _keep(self, session: Session, s: int) -> None:
        """What each client sent in the base round; a simulation computes it again."""
        assert self.plan is not None
        sent = self._sent(session, s, self.base[s], self.plan.base - 1, all_updates=True)
        for i, update in sent.items():
            self.direction[s, i] = sketch(update, WIDTH)
            self.base_size[s, i] = np.linalg.norm(update)

    def _ask(self, session: Session, s: int, row: int) -> None:
        assert self.plan is not None
        seed, now = int(self.state.seeds[s]), self.state.round
        model = self.plan.model(self.base[s], self.after[s], seed, now)
        for i, answer in self._sent(session, s, model, now, all_updates=False).items():
            small = sketch(answer, WIDTH)
            self.size[s, row, i] = np.linalg.norm(answer)
            if np.isnan(self.base_size[s, i]):  # absent in the base round: this one is its first
                self.direction[s, i], self.base_size[s, i] = small, self.size[s, row, i]
            else:
                self.product[s, row, i] = float(small @ self.direction[s, i])

    def _sent(
        self, session: Session, s: int, model: Array, round_: int, all_updates: bool
    ) -> dict[int, Array]:
        """What those who take part in that round send for a model, each by its own behaviour."""
        assert self.plan is not None
        e, seed = self.e, int(self.state.seeds[s])
        present = e.present(round_, round_ + 1, seed)[0]
        clients = [i for i in self.plan.whom(e.num_clients) if present[i]]
        a = self._step_sizes(s, model, round_, all_updates)
        honest = session.answers(s, clients, model, round_, a)
        kind, scale = (table[0] for table in behaviours.tables(e, round_, round_ + 1))
        last = None if self.state.last is None else self.state.last[s]
        place = (seed, round_)
        sent = {
            i: behaviours.sent(int(kind[i]), float(scale[i]), row, i, last, place)
            for i, row in zip(clients, honest, strict=True)
        }
        return {i: row for i, row in sent.items() if np.all(np.isfinite(row))}

    def _step_sizes(self, s: int, model: Array, round_: int, all_updates: bool) -> Array:
        """The step sizes that are really used, (updates, L), 0 where no update is asked for."""
        assert self.plan is not None
        e = self.e
        a = behaviours.actual_step_sizes(e, round_, round_ + 1)[0].copy()
        if all_updates:
            return a
        seen = bool(np.array_equal(model, self.base[s]))
        for i in range(e.num_clients):
            if behaviours.recognises(e.behaviours, i, seen):
                a[:, i] = e.step_sizes(round_, round_ + 1)[0, :, i]
        asked = self.plan.steps(e.steps)
        a = a * (np.arange(len(a))[:, None] < asked)
        return np.asarray(a[: int(asked.max())], dtype=np.float64)

    def checkpoint(self) -> dict[str, Any]:
        """What a resume needs, as named arrays."""
        if self.plan is None:
            return {}
        return {f"challenge_{name}": vars(self)[name].copy() for name in KEPT}

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Continue from a checkpoint."""
        if self.plan is None or saved is None:
            return
        if "challenge_product" not in saved:
            raise FedtaperError("the stopped run had no challenges: resume without them")
        for name in KEPT:
            array = saved[f"challenge_{name}"]
            if name in ("product", "size"):  # a run that is gone on with may ask more often
                vars(self)[name][:, : array.shape[1]] = array
            else:
                setattr(self, name, array)

    def answers(self, many: bool) -> Answers | None:
        """All that was recorded."""
        if self.plan is None:
            return None
        found = Answers(self.rounds, self.product, self.size, self.base_size)
        return found if many else found.of_seed(0)
