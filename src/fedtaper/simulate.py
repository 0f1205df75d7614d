"""``run``: an Experiment becomes a Run. Blocks of rounds, progress, checkpoints, divergence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper import engines, store
from fedtaper.checks import whole
from fedtaper.engines import State
from fedtaper.errors import FedtaperError, nearest
from fedtaper.experiment import Divergence, Experiment, Run
from fedtaper.stability import warn_if_unstable

KEEP_BYTES = 2**30  # what a run may keep in memory before its record is thinned
BLOCK_SAMPLES = 1e8  # samples touched between two looks at the clock: a fraction of a second
CHECKPOINT_SECONDS = 20.0
Array = NDArray[np.float64]


def run(
    experiment: Experiment,
    *,
    seeds: Iterable[int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    engine: str | None = None,
    thin: int | None = None,
    updates: bool = False,
    progress: bool | None = None,
) -> Run:
    """Simulate an experiment, for its own seed or for many seeds in one batch.

    Args:
        experiment: what to run.
        seeds: seeds to run in place of ``experiment.seed``; the Run's arrays then have a
            leading axis of seeds. The problem, with a seed of its own, is the same for all.
        out: a folder to store the run in. It must not exist, unless resuming.
        resume: go on where a stopped run in ``out`` left off (a finished one is just loaded).
        engine: "reference" or "compiled"; chosen by the problem and the rules if not given.
        thin: record every thin-th round (and the last). By default all, unless they would
            take more than 1 GiB.
        updates: record every client's update, (rounds, L, dim), as ``run.updates``: an audit
            sees more in directions than in sizes.
        progress: a progress bar; by default where one can be seen and the work is long.
    """
    chosen = _seeds(experiment, seeds)
    if resume and out is None:
        raise FedtaperError("resume=True needs out=, the folder of the run to go on with")
    if out is not None:
        if resume and store.is_complete(out):
            return store.load(out)
        store.prepare(out, resume=resume)
    module = _engine(experiment, engine)
    warn_if_unstable(experiment)
    thin = _thinning(experiment, chosen, thin, updates)
    record = _Record(experiment, chosen, seeds is not None, thin, updates)
    state = engines.init(experiment, chosen)
    state.keep_updates = updates
    record.w0 = state.w.copy()
    seconds = 0.0
    if resume and out is not None:
        seconds = record.restore(state, store.load_checkpoint(out))
    block = _block_rounds(experiment, len(chosen))
    began = saved = time.perf_counter()
    with _bar(experiment.rounds, state.round, progress) as moved:
        try:
            while state.round < experiment.rounds and not np.all(state.dead_round):
                rounds = min(block, experiment.rounds - state.round)
                before = state.w.copy()
                first = state.round
                record.add(first, before, module.advance(experiment, state, rounds))
                moved(rounds)
                if out is not None and time.perf_counter() - saved > CHECKPOINT_SECONDS:
                    so_far = seconds + time.perf_counter() - began
                    store.save_checkpoint(out, record.checkpoint(state, so_far))
                    saved = time.perf_counter()
        except KeyboardInterrupt:
            if out is not None:
                so_far = seconds + time.perf_counter() - began
                store.save_checkpoint(out, record.checkpoint(state, so_far))
            raise
    name = module.__name__.rsplit(".", 1)[-1]
    made = record.finish(state, name, seconds + time.perf_counter() - began)
    return made if out is None else store.save(made, out)


class _Record:
    """Collects blocks into the arrays of a Run."""

    def __init__(
        self, e: Experiment, seeds: NDArray[np.int64], many: bool, thin: int, updates: bool
    ) -> None:
        self.e, self.seeds, self.many = e, seeds, many
        kept = np.arange(thin, e.rounds + 1, thin)
        self.round = kept if kept.size and kept[-1] == e.rounds else np.append(kept, e.rounds)
        shape = (len(seeds), len(self.round))
        self.w = np.full((*shape, e.problem.dim), np.nan)
        self.norms = np.full((*shape, e.num_clients), np.nan)
        self.updates = np.full((*self.norms.shape, e.problem.dim), np.nan) if updates else None
        self.metrics: dict[str, Array] = {}
        self.w0 = np.empty(0)
        self.p = e.limit_influence

    def add(self, first: int, before: Array, block: engines.Block) -> None:
        rounds = block.w.shape[1]
        low, high = np.searchsorted(self.round, [first + 1, first + rounds + 1])
        pick = self.round[low:high] - 1 - first
        p_n = self.e.effective_influence(first, first + rounds)[pick]
        last = np.where(pick[:, None] > 0, block.w[:, pick - 1], before[:, None, :])
        w = block.w[:, pick]
        with np.errstate(over="ignore", invalid="ignore"):
            found = {"change": np.linalg.norm(w - last, axis=-1)}
            found |= self.e.problem.metrics(w, p_n, self.p)
        self.w[:, low:high] = w
        self.norms[:, low:high] = block.update_norms[:, pick]
        if self.updates is not None and block.updates is not None:
            self.updates[:, low:high] = block.updates[:, pick]
        for name, values in found.items():
            if name not in self.metrics:
                self.metrics[name] = np.full(self.w.shape[:2], np.nan)
            self.metrics[name][:, low:high] = values

    def checkpoint(self, state: State, seconds: float) -> dict[str, Any]:
        done = int(np.searchsorted(self.round, state.round, side="right"))
        parts = {f"memory_{i}": array for i, array in enumerate(state.memory)}
        kept = {f"metric_{name}": array[:, :done] for name, array in self.metrics.items()}
        if state.last is not None:
            kept["last"] = state.last
        if self.updates is not None:
            kept["updates"] = self.updates[:, :done]
        return {
            "state_round": state.round, "state_w": state.w, "seconds": seconds,
            "seeds": self.seeds, "round": self.round, "dead_round": state.dead_round,
            "dead_client": state.dead_client, "w": self.w[:, :done],
            "norms": self.norms[:, :done], **parts, **kept,
        }  # fmt: skip

    def restore(self, state: State, saved: dict[str, Any] | None) -> float:
        if saved is None:
            return 0.0
        if not (
            np.array_equal(saved["seeds"], self.seeds)
            and np.array_equal(saved["round"], self.round)
        ):
            raise FedtaperError(
                "the stopped run has other seeds or another thinning: resume with its own"
            )
        state.round, state.w = int(saved["state_round"]), saved["state_w"]
        state.memory = tuple(saved[f"memory_{i}"] for i in range(len(state.memory)))
        state.dead_round, state.dead_client = saved["dead_round"], saved["dead_client"]
        if state.last is not None:
            state.last = saved["last"]
        done = saved["w"].shape[1]
        if self.updates is not None:
            if "updates" not in saved:
                raise FedtaperError("the stopped run did not record updates: resume without them")
            self.updates[:, :done] = saved["updates"]
        self.w[:, :done], self.norms[:, :done] = saved["w"], saved["norms"]
        for key in saved:
            if key.startswith("metric_"):
                full = np.full(self.w.shape[:2], np.nan)
                full[:, :done] = saved[key]
                self.metrics[key.removeprefix("metric_")] = full
        return float(saved["seconds"])

    def finish(self, state: State, engine: str, seconds: float) -> Run:
        e = self.e
        keep = np.ones(len(self.round), dtype=bool)
        if not self.many and state.dead_round[0]:
            keep = self.round < state.dead_round[0]
        pick = (lambda array: array[:, keep]) if self.many else (lambda array: array[0][keep])
        return Run(
            experiment=e,
            seeds=tuple(int(s) for s in self.seeds),
            many=self.many,
            round=self.round[keep],
            n=(self.round[keep] * e.period).astype(np.float64),
            t=_ode_time(e, self.round[keep]),
            w=pick(self.w),
            w0=self.w0 if self.many else self.w0[0],
            metrics={name: pick(values) for name, values in self.metrics.items()},
            update_norms=pick(self.norms),
            updates=None if self.updates is None else pick(self.updates),
            diverged=_divergences(e, state),
            engine=engine,
            seconds=seconds,
        )


def _divergences(e: Experiment, state: State) -> tuple[Divergence, ...]:
    found = []
    for s in np.flatnonzero(state.dead_round):
        k, i = int(state.dead_round[s]), int(state.dead_client[s])
        a = float(e.step_sizes(k - 1, k)[0, :, i].max())
        reason = "its local model is no longer finite"
        if hasattr(e.problem, "curvature"):
            product = a * (float(e.problem.curvature[i]) + getattr(e.local, "mu", 0.0))
            reason += f"; step size {a:g} times curvature is {product:.3g}"
            reason += " (above 2: unstable)" if product > 2 else ""
        found.append(Divergence(int(state.seeds[s]), k, i, reason))
    return tuple(found)


def _ode_time(e: Experiment, rounds: NDArray[np.int64]) -> Array:
    """T_k (Eqn17): the reference client's step sizes, summed up to each recorded round."""
    if not rounds.size:
        return np.empty(0)
    sums = [
        e.step_sums(low, min(low + 100_000, int(rounds[-1])))[:, e.reference]
        for low in range(0, int(rounds[-1]), 100_000)
    ]
    return np.cumsum(np.concatenate(sums))[rounds - 1]


def _seeds(e: Experiment, seeds: Iterable[int] | None) -> NDArray[np.int64]:
    chosen = [e.seed] if seeds is None else list(seeds)
    if not chosen:
        raise FedtaperError("no seeds to run")
    for seed in chosen:
        whole("seed", seed, low=0)
    if len(set(chosen)) < len(chosen):
        raise FedtaperError("a seed stands twice in seeds: its runs would be the same")
    return np.array(chosen, dtype=np.int64)


def _engine(e: Experiment, name: str | None) -> ModuleType:
    known = ("reference", "compiled")
    if name not in (None, *known):
        raise FedtaperError(
            f"there is no engine {name!r}: use {' or '.join(known)}{nearest(str(name), known)}"
        )
    if name != "reference":
        from fedtaper.engines import compiled

        if compiled.supports(e):
            return compiled
        if name == "compiled":
            raise FedtaperError(
                "the compiled engine knows the built-in rules on LinearRegression only: "
                'use engine="reference" for your own'
            )
    from fedtaper.engines import reference

    return reference


def _thinning(e: Experiment, seeds: NDArray[np.int64], thin: int | None, updates: bool) -> int:
    if thin is not None:
        whole("thin", thin)
        return thin
    per_client = e.num_clients * (1 + updates * e.problem.dim)
    per_round = 8 * (e.problem.dim + per_client + 5) * len(seeds)
    return int(np.ceil(per_round * e.rounds / KEEP_BYTES))


def _block_rounds(e: Experiment, seeds: int) -> int:
    per_round = int(e.steps.sum()) * e.batch_size * seeds * max(1.0, e.problem.dim / 3)
    return int(np.clip(BLOCK_SAMPLES / per_round, 1, 20_000))


@contextmanager
def _bar(total: int, done: int, wanted: bool | None) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = console.is_terminal if wanted is None else wanted
    with Progress(
        TextColumn("round {task.completed:.0f} / {task.total:.0f}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not shown,
    ) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda rounds: bar.advance(task, rounds)
