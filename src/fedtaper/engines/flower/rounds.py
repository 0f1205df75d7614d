"""What the server does in a round: ask the sites, check their answers, aggregate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Block, Options, State, as_network, is_network
from fedtaper.core.sketch import SKETCH
from fedtaper.engines import KEEP_DIM, taken_part
from fedtaper.engines.flower import CAPABILITIES, wire
from fedtaper.engines.flower.client import (
    ALONG,
    END,
    FACTOR,
    MODEL,
    ORDER,
    START,
    as_numbers,
    factor_of,
    unscaled,
)
from fedtaper.engines.flower.federation import Federation
from fedtaper.engines.flower.fields import FaultError
from fedtaper.engines.flower.guard import Answer, allowed_metrics, checked_update, known_metrics
from fedtaper.engines.flower.intake import Intake
from fedtaper.engines.flower.memory import LostError, Stamps
from fedtaper.engines.flower.questions import asked_losses, challenged, in_order
from fedtaper.engines.flower.refused import refuse
from fedtaper.engines.flower.roster import Roster, Site, answers
from fedtaper.engines.flower.sizes import Sizes
from fedtaper.experiment import Experiment

Seen = Callable[[int, Any, Any, dict[str, float]], None]
RETRY_PAUSE = 3.0
GRACE = 60.0  # seconds a message outlives the deadline, so that it is ours that decides


class GridEngine:
    """An engine over an existing Flower grid: that of a deployed server.

    ``seen``, if given, is called after each complete round: with its number (from 0), the sizes
    of the updates (NaN where a site did not count), the updates, if they are kept, and the
    round's metrics. ``earlier`` are the sizes of the rounds before a resume, (rounds, L).
    ``follow`` is called with the current experiment: at first, and when it is steered.
    """

    name = "flower"
    capabilities = replace(CAPABILITIES, memory_at_sites=True)

    def __init__(
        self,
        grid: Grid,
        federation: Federation,
        roster: Roster,
        seen: Seen | None = None,
        earlier: Any = None,
        follow: Callable[[Experiment], None] = lambda experiment: None,
    ) -> None:
        self.grid, self.federation, self.roster, self.seen = grid, federation, roster, seen
        self.earlier, self.follow = earlier, follow

    def check(self) -> None:
        """There is a grid, so Flower is installed."""

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """One: rounds are too expensive to lose one."""
        return 1

    def open(self, experiment: Experiment, state: State, options: Options) -> GridSession:
        """Start a session that advances the state."""
        self.follow(experiment)
        if self.federation.buffer is not None:
            from fedtaper.engines.flower.buffered import BufferedSession

            return BufferedSession(self, experiment, state)
        return GridSession(self, experiment, state)


class GridSession:
    """The rounds of one run over Flower's grid. Weights are one flat vector, float64 or float32."""

    def __init__(self, engine: GridEngine, experiment: Experiment, state: State) -> None:
        self.grid, self.federation, self.roster = engine.grid, engine.federation, engine.roster
        self.e, self.state, self.seen = experiment, state, engine.seen
        self.moves: Any = None  # this round's updates, sketched where they are large
        self.sizes = Sizes(engine.federation, engine.earlier)
        self.faults: dict[str, str] = {}  # this round's, by site
        self.draws: dict[int, int] = {}  # rounds to draw by, where it is not this one
        self.notes: dict[str, float] = {}  # this round's further metrics of the server
        self.ignored: set[str] = set()  # sites whose metrics were once not taken
        self.network = is_network(experiment.problem)
        refuse(experiment, engine.federation)
        self.dtype = np.dtype(np.float32 if self.network else np.float64)
        self.w = state.w[0].astype(self.dtype)
        self.memory = tuple(array[0].astype(self.dtype) for array in state.memory)
        keeps = experiment.local.keeps == "run"
        self.stamps = Stamps(experiment.num_clients, state) if keeps else None
        self.module: Any = None
        self.allowed = allowed_metrics(experiment, engine.federation, self.w)
        self.follow = engine.follow
        self.early: dict[int, Message | None] = {}  # answers of the next round, None if none came
        self.base: dict[int, Any] = {}  # what the sites sent in the base round of the challenges
        self.sync()

    def advance(self, rounds: int) -> Block:
        """Advance by this many rounds."""
        e, state = self.e, self.state
        keep = not self.network or e.problem.dim <= KEEP_DIM
        block = Block(
            np.full((1, rounds, e.problem.dim), np.nan) if keep else None,
            np.zeros((1, rounds, e.num_clients)),
            {} if self.network else None,
        )
        if state.keep_updates:
            size = min(e.problem.dim, SKETCH) if self.network else e.problem.dim
            block.updates = np.zeros((1, rounds, e.num_clients, size))
        for k in range(rounds):
            began, before = time.perf_counter(), self.w
            self.moves = None if block.updates is None else block.updates[0, k]
            norms, measured = self._round()
            change = wire.norm(new - old for new, old in _pairs(self.w, before))
            if not (np.isfinite(change) or np.all(np.isfinite(self.w))):
                state.dead_round[0], state.dead_client[0] = (
                    state.round + 1,
                    int(np.nan_to_num(norms).argmax()),
                )
                return block
            state.round += 1
            block.update_norms[0, k] = norms
            if block.w is not None:
                block.w[0, k] = self.w
            del before
            values = {**measured, "change": change, **(self._scores() if self.network else {})}
            notes = measured if block.metrics is None else {}
            if block.metrics is not None:
                block.metrics = _noted(block.metrics, values, rounds, k)
            own = {"answered": self.answered, "seconds": time.perf_counter() - began}
            block.notes = _noted(block.notes, {**notes, **self.notes, **own}, rounds, k)
            if self.seen is not None:
                self.seen(state.round - 1, norms, self.moves, {**values, **own})
        self.sync()  # the record's metrics of the next round start from here
        return block

    def _round(self) -> tuple[Any, dict[str, float]]:
        """One aggregation: the size of each site's update, and what the sites measured."""
        e, k = self.e, self.state.round
        asked = np.flatnonzero(e.present(k, k + 1, int(self.state.seeds[0]))[0]).tolist()
        for attempt in range(self.federation.retries + 1):
            self.faults = {}
            intake = self._taken_in(asked, k)
            if intake.count >= min(self.federation.enough, len(asked)):
                return self._step(intake)
            self.roster.tell(k + 1, "", "no-quorum", f"{intake.count} of {len(asked)} answers")
            if attempt < self.federation.retries:
                time.sleep(RETRY_PAUSE)
        why = "; ".join(f"{site}: {text}" for site, text in list(self.faults.items())[:5])
        raise FedtaperError(
            f"round {k + 1} has no quorum: {intake.count} good answers, {self.federation.enough} "
            f"needed, after {self.federation.retries + 1} attempts ({why}). The rounds before it "
            "are stored: check the sites, then resume"
        )

    def _taken_in(self, asked: list[int], k: int) -> Intake:
        """The good updates of the sites that were asked, added up in the order of the clients."""
        here = self.roster.present()
        names = self.federation.sites
        early, self.early = self.early, {}  # what was asked beside a challenge
        new = [i for i in asked if names[i] in here and i not in early]
        messages = self.messages({i: here[names[i]] for i in new})
        waiting = set(messages)
        for i in asked:
            if i not in messages and early.get(i) is None:
                why = "no answer in time" if i in early else "not connected"
                self.fault(k, i, "late" if i in early else "lost", why)
        intake = self.intake(asked)
        replies = answers(self.grid, messages, self.federation.deadline, self.w.nbytes)
        for i, reply in in_order(early, replies):
            waiting.discard(i)
            answer = None if reply is None else self.checked(i, reply, k)
            if answer is not None:
                intake.add(i, answer)
                if self.e.challenges is not None and k == self.e.challenges.base - 1:
                    self.base[i] = np.concatenate(answer.update)
            del reply, answer  # their bytes: the next may be as large
        for i in sorted(waiting):
            self.fault(k, i, "late", f"no answer in {self.federation.deadline:g} s")
        return intake

    def fault(self, k: int, client: int, kind: str, why: str) -> None:
        """Note that a site does not count in this round: as an event, and for a missing quorum."""
        self.faults[self.federation.sites[client]] = why
        self.roster.tell(k + 1, self.federation.sites[client], kind, why)

    def intake(self, asked: list[int]) -> Intake:
        """An empty sum for this round."""
        k, limit = self.state.round, self.federation.clipping_norm
        return Intake(self.e, k, self.w, asked, self.moves, limit)

    def messages(self, sites: dict[int, Site]) -> dict[int, Message]:
        """One message per site; they share one copy of the model."""
        model = {MODEL: wire.packed(self.w)}
        for i, value in enumerate(self.memory[: self.e.server.travels]):
            model[f"{ALONG}-{i}"] = wire.packed(value)
        return {i: self.message(i, site, model) for i, site in sites.items()}

    def message(
        self, client: int, site: Site, model: dict[str, ArrayRecord], kind: str = MessageType.TRAIN
    ) -> Message:
        """What a site is asked in this round: the model, the clock, its schedule."""
        k = self.state.round
        order: dict[str, Any] = {
            "round": k,
            "draw": self.draws.get(client, k),
            "n": float(k * self.e.period),
            "seed": int(self.state.seeds[0]),
            "samples": int(self.e.problem.sizes[client]),
            **as_numbers(unscaled(self.e.schedules[client])),
            FACTOR: self._factor(client, k),
        }
        if self.federation.clipping_norm is not None:  # for Flower's clipping mods
            order["clipping_norm"] = float(self.federation.clipping_norm)
        if self.stamps is not None:
            order |= {START: self.stamps.start(client), END: self.stamps.end(client, k)}
        content = RecordDict({ORDER: ConfigRecord(order), **model})
        return Message(content, site.node, kind, ttl=self.federation.deadline + GRACE)

    def _factor(self, client: int, k: int) -> float:
        """The controller's factor on the site's scale in round k (from 0)."""
        return factor_of(self.e.schedules[client], k * self.e.period)

    def checked(self, i: int, reply: Message, k: int) -> Answer | None:
        """An answer's update, or None and an event."""
        name, schedule = self.federation.sites[i], self.e.schedules[i]
        try:
            answer = checked_update(reply, self.w, name, k, schedule, self._factor(i, k))
            unusual = self.sizes.look(i, answer.norm)
        except LostError as lost:
            self._lost_memory(k, i, str(lost))
            return None
        except FaultError as fault:
            self.fault(k, i, "lost" if reply.has_error() else "rejected", str(fault))
            return None
        if unusual:
            self.roster.tell(k + 1, name, "unusual", unusual)
        measured, wrong = known_metrics(answer.measured, self.allowed)
        if wrong and name not in self.ignored:
            self.ignored.add(name)
            self.roster.tell(k + 1, name, "ignored", f"metrics: {wrong}")
        return answer._replace(measured=measured)

    def _lost_memory(self, k: int, client: int, why: str) -> None:
        """The site cannot continue from its last update that counted: it is left out, or reset."""
        if self.stamps is not None and self.federation.restart_memory:
            self.stamps.forget(client)
            why += "; it starts again, without a memory, when it is asked next"
        self.fault(k, client, "memory", why)

    def _step(self, intake: Intake) -> tuple[Any, dict[str, float]]:
        """The server rule's step on the weighted sum of the updates; absent sites add nothing."""
        self.answered, self.notes = intake.count, {}
        k, server, there = self.state.round, self.e.server, intake.there
        with np.errstate(over="ignore", invalid="ignore"):
            intake.combined(server)
            intake.add_noise(self.federation.noise_multiplier)
            mean = intake.mean
            self.w, memory = server.step(self.w, mean, self.memory)
            facts = taken_part(self.e, k, intake.weights * intake.scale, there)
            self.memory = server.learn(mean, *facts, memory)
        if self.stamps is not None:
            self.stamps.counted(np.flatnonzero(there), k)
        return intake.norms, intake.measured()

    def _scores(self) -> dict[str, float]:
        """The shared model's own metrics, on the server."""
        import torch

        from fedtaper.problems.network import bind

        problem = as_network(self.e.problem)
        if self.module is None:
            self.module = problem.module()
        bind(self.module, torch.from_numpy(self.w))
        return dict(problem.scores(self.module))

    def answers(self, s: int, clients: list[int], model: Any, round_: int, a: Any) -> Any:
        """What sites send back for any model; for the base round, what they sent then."""
        found = np.full((len(clients), len(model)), np.nan)
        got = self.base
        if round_ == self.state.round:
            got, self.early = challenged(self, clients, model.astype(self.dtype))
        for row, i in enumerate(clients):
            if i in got:
                found[row] = got[i]
        return found

    def losses(self, s: int) -> Any:
        """The loss at the shared model that every site reports; NaN where it did not."""
        return asked_losses(self)

    def steer(self, experiment: Experiment) -> None:
        """Use other factors from here on: they are sent with every message."""
        self.e = experiment
        self.follow(experiment)
        n = self.state.round * experiment.period
        given = [f"{factor_of(s, n):.4g}" for s in experiment.schedules]
        pairs = zip(self.federation.sites, given, strict=True)
        self.roster.tell(
            self.state.round, "", "steered", ", ".join(f"{site} {f}" for site, f in pairs)
        )

    def sync(self) -> None:
        """Put the model, the memory and the stamps of the sites' memories into the State."""
        self.state.w = self.w[None]
        self.state.memory = tuple(value[None] for value in self.memory)
        if self.stamps is not None:
            self.state.sites = self.stamps.saved()

    def close(self) -> None:
        """Nothing to free."""


def _pairs(new: Any, old: Any) -> Any:
    return zip(wire.cut(new), wire.cut(old), strict=True)


def _noted(into: dict[str, Any], values: dict[str, Any], rounds: int, k: int) -> dict[str, Any]:
    for name, value in values.items():
        into.setdefault(name, np.full((1, rounds), np.nan))[0, k] = value
    return into
