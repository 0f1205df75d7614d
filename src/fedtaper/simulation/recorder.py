"""Blocks of rounds become the arrays of a Run; a checkpoint keeps them until the run is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_memory, check_whole
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Block, State, Way, is_network, is_quadratic
from fedtaper.core.sketch import SKETCH
from fedtaper.core.sums import norms
from fedtaper.engines import KEEP_DIM
from fedtaper.experiment import Experiment
from fedtaper.experiment.influences import effective_influence
from fedtaper.results import Divergence, Run
from fedtaper.simulation.challenger import Challenger
from fedtaper.simulation.controller import Controller
from fedtaper.theory.clock import OdeClock

WATCHED = ("error", "test_accuracy", "accuracy", "test_loss", "train_accuracy", "train_loss")
KEEP_BYTES = 2**30  # what a run may keep in memory before its record is thinned
Array = NDArray[np.float64]
# arrays of a checkpoint that have one entry per recorded round, or per challenge
GROWING = ("round", "w", "updates", "challenge_product", "challenge_size")


class Recorder:
    """Collects blocks into the arrays of a Run."""

    def __init__(
        self, e: Experiment, seeds: NDArray[np.int64], many: bool, thin: int,
        challenger: Challenger, controller: Controller, start: str = "",
    ) -> None:  # fmt: skip
        self.e, self.seeds, self.many, self.start = e, seeds, many, start
        self.challenger, self.controller = challenger, controller
        self.stopped = ""  # why a callback ended the run
        kept = np.arange(thin, e.rounds + 1, thin)
        self.round = kept if kept.size and kept[-1] == e.rounds else np.append(kept, e.rounds)
        shape = (len(seeds), len(self.round))
        small = e.problem.dim <= KEEP_DIM or not is_network(e.problem)
        self.w = np.full((*shape, e.problem.dim), np.nan) if small else None
        self.norms = np.full((*shape, e.num_clients), np.nan)
        self.updates: Array | None = None
        self.metrics: dict[str, Array] = {}
        self.w0: Array | None = None
        self.p = e.limit_influence

    def follow(self) -> None:
        """Record the scales that the controller has moved."""
        if self.controller.e is not self.e:
            self.e = self.challenger.e = self.controller.e
            self.p = self.e.limit_influence

    def add(self, first: int, before: Array | None, block: Block) -> None:
        """Record the rounds after ``first``; ``before`` is the model that they started from."""
        rounds = block.update_norms.shape[1]
        low, high = np.searchsorted(self.round, [first + 1, first + rounds + 1])
        pick = self.round[low:high] - 1 - first
        if not pick.size:  # thinned: no round of this block is recorded
            return
        if block.metrics is not None:
            found = {name: values[:, pick] for name, values in block.metrics.items()}
        else:
            found = self._from_weights(first, before, block, pick)
        found |= {name: values[:, pick] for name, values in block.notes.items()}
        if self.w is not None and block.w is not None:
            self.w[:, low:high] = block.w[:, pick]
        self.norms[:, low:high] = block.update_norms[:, pick]
        if block.updates is not None:
            self._room_for_updates(block.updates.shape[-1])[:, low:high] = block.updates[:, pick]
        for name, values in found.items():
            if name not in self.metrics:
                self.metrics[name] = np.full(self.norms.shape[:2], np.nan)
            self.metrics[name][:, low:high] = values

    def rows(self, first: int, last: int) -> list[tuple[int, dict[str, float]]]:
        """The recorded rounds after ``first`` as plain numbers: medians over the seeds."""
        low, high = np.searchsorted(self.round, [first + 1, last + 1])
        columns = dict(self.metrics)
        for i in range(self.e.num_clients):
            columns[f"update_norm/{self.e.name(i).replace(' ', '_')}"] = self.norms[..., i]
        middle = {name: np.median(values[:, low:high], axis=0) for name, values in columns.items()}
        return [
            (int(self.round[low + j]), {name: float(v[j]) for name, v in middle.items()})
            for j in range(high - low)
        ]

    def newest(self) -> str:
        """The newest recorded round in words: who answered, and the metric to watch."""
        known = [name for name in self.metrics if name not in ("answered", "seconds")]
        shown = next((name for name in WATCHED if name in known), known[0] if known else None)
        parts = []
        for name in ("answered", shown):
            if name not in self.metrics:
                continue
            values = self.metrics[name]
            at = np.flatnonzero(np.isfinite(values).any(axis=0))
            if at.size:
                middle = float(np.nanmedian(values[:, at[-1]]))
                text = f"{middle:.4g} answered" if name == "answered" else f"{name} {middle:.4g}"
                parts.append(text.replace("_", " "))
        return ", ".join(parts)

    def _room_for_updates(self, width: int) -> Array:
        if self.updates is None:
            self.updates = np.full((*self.norms.shape, width), np.nan)
        return self.updates

    def _from_weights(
        self, first: int, before: Array | None, block: Block, pick: Any
    ) -> dict[str, Array]:
        assert block.w is not None and before is not None
        p_n = effective_influence(self.e, first + pick)
        last = np.where(pick[:, None] > 0, block.w[:, pick - 1], before[:, None, :])
        w = block.w[:, pick]
        with np.errstate(over="ignore", invalid="ignore"):
            found = {"change": norms(w - last)}
            return found | dict(self.e.problem.metrics(w, p_n, self.p))

    def checkpoint(self, state: State, seconds: float) -> dict[str, Any]:
        """All that a resume needs, as named arrays."""
        done = int(np.searchsorted(self.round, state.round, side="right"))
        parts = {f"memory_{i}": array for i, array in enumerate(state.memory)}
        parts |= {f"clients_{i}": array.copy() for i, array in enumerate(state.clients)}
        kept: dict[str, Any] = {}
        kept |= {f"metric_{name}": array[:, :done] for name, array in self.metrics.items()}
        if state.last is not None:
            kept["last"] = state.last
        if state.history is not None:
            kept["history"] = state.history
        if state.sites is not None:
            kept["sites"] = state.sites
        if state.way is not None:
            kept["way"] = np.array(str(state.way))
        if self.updates is not None:
            kept["updates"] = self.updates[:, :done]
        if self.w is not None:
            parts["w"] = self.w[:, :done]
        kept |= self.challenger.checkpoint() | self.controller.checkpoint()
        return {
            "state_round": state.round, "state_w": state.w, "seconds": seconds,
            "seeds": self.seeds, "round": self.round, "dead_round": state.dead_round.copy(),
            "dead_client": state.dead_client.copy(), "norms": self.norms[:, :done], **parts, **kept,
        }  # fmt: skip

    def restore(self, state: State, saved: dict[str, Any] | None) -> float:
        """Continue from a checkpoint; returns the seconds that were spent before it."""
        if saved is None:
            self.follow()
            return 0.0
        try:
            return self._restored(state, saved)
        except KeyError as missing:
            raise FedtaperError(f"the checkpoint is damaged: it has no {missing}") from None

    def _restored(self, state: State, saved: dict[str, Any]) -> float:
        shape = state.w.shape
        self._check_kinds(state, saved)
        state.round, state.w = int(saved["state_round"]), saved["state_w"]
        state.memory = tuple(saved[f"memory_{i}"] for i in range(len(state.memory)))
        if state.clients and "sites" in saved:
            raise FedtaperError(
                "the clients' memories are at the sites of a deployed federation: resume the run "
                "there"
            )
        state.clients = tuple(saved[f"clients_{i}"] for i in range(len(state.clients)))
        state.sites = saved.get("sites")
        state.dead_round, state.dead_client = saved["dead_round"], saved["dead_client"]
        if state.last is not None:
            state.last = saved["last"]
        state.history = saved.get("history")
        state.way = Way.read(str(saved["way"])) if "way" in saved else None
        here, there = self._places(state, saved, shape)
        self.norms[:, here] = saved["norms"][:, there]
        if self.w is not None:
            self.w[:, here] = saved["w"][:, there]
        if state.keep_updates and there.size:  # thinned, there may be no recorded round yet
            if "updates" not in saved:
                raise FedtaperError("the stopped run did not record updates: resume without them")
            room = self._room_for_updates(saved["updates"].shape[-1])
            room[:, here] = saved["updates"][:, there]
        self.challenger.restore(saved)
        self.controller.restore(saved)
        self.follow()
        for key in saved:
            if key.startswith("metric_"):
                full = np.full(self.norms.shape[:2], np.nan)
                full[:, here] = saved[key][:, there]
                self.metrics[key.removeprefix("metric_")] = full
        return float(saved["seconds"])

    def _check_kinds(self, state: State, saved: dict[str, Any]) -> None:
        """Refuse arrays of another kind or form than this run's own: files come from anywhere."""
        own = {name: np.asarray(array) for name, array in self.checkpoint(state, 0.0).items()}
        width = (np.shape(saved.get("updates", ())) or (0,))[-1]
        own.setdefault("updates", np.empty((*self.norms.shape, width)))
        metric = np.empty(self.norms.shape[:2])
        for name, array in saved.items():
            like = own.get(name, metric if name.startswith("metric_") else None)
            if like is None:
                continue
            free = {"round": 0}.get(name, 0 if name.startswith("steer_") else 1)
            grows = name in GROWING or name.startswith(("steer_", "metric_"))
            forms = [list(np.shape(a)) for a in (array, like)]
            for form in forms:
                del form[free : free + grows]
            alike = np.ndim(array) == like.ndim and forms[0] == forms[1]
            alike |= name in ("state_w", "norms")  # their forms tell whose run it is
            if not alike or np.asarray(array).dtype.kind != like.dtype.kind:
                raise FedtaperError(f"the checkpoint is damaged: its {name} does not fit this run")

    def _places(self, state: State, saved: dict[str, Any], shape: Any) -> tuple[Any, Any]:
        """The places of the recorded rounds, in this record and in the saved one."""
        made = saved["round"][: saved["norms"].shape[1]]
        wanted = self.round[self.round <= state.round]
        known = np.isin(wanted, made)
        fits = saved["state_w"].shape == shape and saved["norms"].shape[2:] == (self.e.num_clients,)
        if not fits or not np.array_equal(saved["seeds"], self.seeds):
            raise FedtaperError("the stopped run has other seeds or another model")
        if not known.all() and not state.dead_round.any():
            raise FedtaperError("the stopped run has another thin=: resume with that one")
        return np.flatnonzero(known), np.searchsorted(made, wanted[known])

    def finish(self, state: State, engine: str, seconds: float) -> Run:
        """The Run; a diverged seed ends where it diverged."""
        e = self.e
        keep = self.round <= state.round  # a run may end early
        if self.many and np.all(state.dead_round):
            keep[:] = True  # NaN from where each diverged
        if not self.many and state.dead_round[0]:
            keep = self.round < state.dead_round[0]
        pick = (lambda array: array[:, keep]) if self.many else (lambda array: array[0][keep])
        return Run(
            experiment=e,
            seeds=tuple(int(s) for s in self.seeds),
            many=self.many,
            round=self.round[keep],
            n=(self.round[keep] * e.period).astype(np.float64),
            t=OdeClock.of(e).t(self.round[keep] * e.period),
            w=None if self.w is None else pick(self.w),
            w0=self.w0 if self.many or self.w0 is None else self.w0[0],
            model=(state.w if self.many else state.w[0]) if self.w is None else None,
            metrics={name: pick(values) for name, values in self.metrics.items()},
            update_norms=pick(self.norms),
            updates=None if self.updates is None else pick(self.updates),
            challenges=self.challenger.answers(self.many),
            looks=self.controller.looks(),
            diverged=_divergences(e, state),
            engine=engine,
            way="" if state.way is None else state.way.name,
            way_because="" if state.way is None else state.way.why,
            seconds=seconds,
            start=self.start,
            stopped=self.stopped,
        )


def copied(state: State) -> State:
    """A copy of the State as it is now, which later rounds do not change."""
    return replace(
        state,
        w=state.w.copy(),
        memory=tuple(array.copy() for array in state.memory),
        dead_round=state.dead_round.copy(),
        dead_client=state.dead_client.copy(),
        last=None if state.last is None else state.last.copy(),
        history=None if state.history is None else state.history.copy(),
        clients=tuple(array.copy() for array in state.clients),
    )


def _divergences(e: Experiment, state: State) -> tuple[Divergence, ...]:
    found = []
    for s in np.flatnonzero(state.dead_round):
        k, i = int(state.dead_round[s]), int(state.dead_client[s])
        a = float(e.step_sizes(k - 1, k)[0, :, i].max())
        reason = "its local model is no longer finite"
        if is_quadratic(e.problem):
            product = a * (float(e.problem.curvature[i]) + e.local.added_curvature)
            reason += f"; step size {a:g} times curvature is {product:.3g}"
            reason += " (above 2: unstable)" if product > 2 else ""
        name = "" if e.names is None else e.names[i]
        found.append(Divergence(int(state.seeds[s]), k, i, reason, name))
    return tuple(found)


def thinning(e: Experiment, seeds: NDArray[np.int64], thin: int | None, updates: bool) -> int:
    """How many rounds apart to record: as asked, or as memory allows."""
    network = is_network(e.problem)
    kept = 0 if network else e.problem.dim
    width = min(e.problem.dim, SKETCH) if network else e.problem.dim
    per_client = e.num_clients * (1 + updates * width)
    numbers = float(kept + per_client + 5) * len(seeds) * e.rounds
    if thin is not None:
        check_whole("thin", thin)
        check_memory(f"recording every {thin}-th of {e.rounds:,} rounds", numbers / thin)
        return thin
    return int(np.ceil(8 * numbers / KEEP_BYTES))
