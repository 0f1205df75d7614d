"""``run``: an Experiment becomes a Run. Blocks of rounds, progress, checkpoints, divergence."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper import engines
from fedtaper.auditing.directions import SKETCH
from fedtaper.core.checks import whole
from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.engines import KEEP_DIM, State
from fedtaper.experiment import Divergence, Experiment, Run
from fedtaper.storage import store
from fedtaper.storage.logs import Log
from fedtaper.theory.clock import Clock
from fedtaper.theory.stability import warn_if_unstable

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
    engine: Any = None,
    device: str | None = None,
    precision: str | None = None,
    thin: int | None = None,
    updates: bool = False,
    progress: bool | None = None,
    log: Log | None = None,
) -> Run:
    """Simulate an experiment, for its own seed or for many seeds in one batch.

    Args:
        experiment: what to run.
        seeds: seeds to run in place of ``experiment.seed``; the Run's arrays then have a
            leading axis of seeds. The problem, with a seed of its own, is the same for all.
        out: a folder to store the run in. It must not exist, unless resuming.
        resume: go on where a stopped run in ``out`` left off (a finished one is just loaded).
        engine: "reference", "compiled" (regression), "cpu" or "cuda" (networks), "flower" (its
            simulation, on this machine); chosen by the problem, the rules and the device if not
            given. Or an engine of your own: an object with ``start``, as in ``engines``.
        device: "cpu" or "cuda"; networks only. By default the CPU.
        precision: "bf16" (the default) or "float32", on CUDA.
        thin: record every thin-th round (and the last). By default all, unless they would
            take more than 1 GiB.
        updates: record every client's update, (rounds, L, dim), as ``run.updates`` (networks: a
            sketch of it): an audit sees more in directions than in sizes.
        progress: a progress bar; by default where one can be seen and the work is long.
        log: where else the numbers of each round go: TensorBoard, MLflow.
    """
    if engine == "flower":
        engine = _on_flower({"seeds": seeds, "device": device, "precision": precision})
    chosen = _seeds(experiment, seeds)
    if resume and out is None:
        raise FedtaperError("resume=True needs out=, the folder of the run to go on with")
    if out is not None:
        if resume and store.is_complete(out):
            return store.load(out, experiment.problem)
        store.prepare(out, resume=resume)
    module = _without_extras(_engine(experiment, engine, device), experiment, updates)
    warn_if_unstable(experiment)
    thinned = _thinning(experiment, chosen, thin, updates)
    record = _Record(experiment, chosen, seeds is not None, thinned)
    state = engines.init(experiment, chosen, updates)
    record.w0 = state.w.copy() if record.w is not None else None
    going_on = resume and out is not None
    seconds = record.restore(state, store.load_checkpoint(out) if going_on else None)  # type: ignore[arg-type]
    each = getattr(module, "each_round", False)  # rounds too dear to lose one; new arrays in each
    block = 1 if each else _block_rounds(experiment, len(chosen))
    session = _session(module, experiment, state, precision)
    began = saved = time.perf_counter()
    disk = store.Checkpoints(out)

    def checkpoint() -> None:
        if session is not None:
            session.sync()
        disk.save(record.checkpoint(state, seconds + time.perf_counter() - began), behind=each)

    try:
        with (
            disk,
            (log or Log()).opened(experiment, out, state.round) as note,
            _bar(experiment.rounds, state.round, progress) as moved,
            _interrupts() as stop,
        ):
            while state.round < experiment.rounds and not np.all(state.dead_round):
                rounds = min(block, experiment.rounds - state.round)
                first = state.round
                before = state.w.copy() if session is None or record.w is not None else None
                if session is not None:
                    record.add(first, before, session.advance(rounds))
                else:
                    record.add(first, before, module.advance(experiment, state, rounds))
                moved(rounds)
                note(partial(record.rows, first, state.round))
                if stop or each or time.perf_counter() - saved > CHECKPOINT_SECONDS:
                    checkpoint()
                    saved = time.perf_counter()
                if stop:
                    raise KeyboardInterrupt
    finally:
        if session is not None:
            session.sync()
            session.close()
    name = module.__name__.rsplit(".", 1)[-1]
    made = record.finish(state, name, seconds + time.perf_counter() - began)
    return made if out is None else store.save(made, out)


class _Record:
    """Collects blocks into the arrays of a Run."""

    def __init__(self, e: Experiment, seeds: NDArray[np.int64], many: bool, thin: int) -> None:
        self.e, self.seeds, self.many = e, seeds, many
        kept = np.arange(thin, e.rounds + 1, thin)
        self.round = kept if kept.size and kept[-1] == e.rounds else np.append(kept, e.rounds)
        shape = (len(seeds), len(self.round))
        small = e.problem.dim <= KEEP_DIM or not hasattr(e.problem, "batch_loss")
        self.w = np.full((*shape, e.problem.dim), np.nan) if small else None
        self.norms = np.full((*shape, e.num_clients), np.nan)
        self.updates: Array | None = None
        self.metrics: dict[str, Array] = {}
        self.w0: Array | None = None
        self.p = e.limit_influence

    def add(self, first: int, before: Array | None, block: engines.Block) -> None:
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
            columns[f"update_norm/client_{i}"] = self.norms[..., i]
        middle = {name: np.median(values[:, low:high], axis=0) for name, values in columns.items()}
        return [
            (int(self.round[low + j]), {name: float(v[j]) for name, v in middle.items()})
            for j in range(high - low)
        ]

    def _room_for_updates(self, width: int) -> Array:
        if self.updates is None:
            self.updates = np.full((*self.norms.shape, width), np.nan)
        return self.updates

    def _from_weights(
        self, first: int, before: Array | None, block: engines.Block, pick: Any
    ) -> dict[str, Array]:
        assert block.w is not None and before is not None
        p_n = self.e.effective_influence(first, first + block.w.shape[1])[pick]
        last = np.where(pick[:, None] > 0, block.w[:, pick - 1], before[:, None, :])
        w = block.w[:, pick]
        with np.errstate(over="ignore", invalid="ignore"):
            found = {"change": np.linalg.norm(w - last, axis=-1)}
            return found | self.e.problem.metrics(w, p_n, self.p)

    def checkpoint(self, state: State, seconds: float) -> dict[str, Any]:
        done = int(np.searchsorted(self.round, state.round, side="right"))
        parts = {f"memory_{i}": array for i, array in enumerate(state.memory)}
        kept = {f"metric_{name}": array[:, :done] for name, array in self.metrics.items()}
        if state.last is not None:
            kept["last"] = state.last
        if self.updates is not None:
            kept["updates"] = self.updates[:, :done]
        if self.w is not None:
            parts["w"] = self.w[:, :done]
        return {
            "state_round": state.round, "state_w": state.w, "seconds": seconds,
            "seeds": self.seeds, "round": self.round, "dead_round": state.dead_round.copy(),
            "dead_client": state.dead_client.copy(), "norms": self.norms[:, :done], **parts, **kept,
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
        done = saved["norms"].shape[1]
        self.norms[:, :done] = saved["norms"]
        if self.w is not None:
            self.w[:, :done] = saved["w"]
        if state.last is not None:
            state.last = saved["last"]
        if state.keep_updates:
            if "updates" not in saved:
                raise FedtaperError("the stopped run did not record updates: resume without them")
            self._room_for_updates(saved["updates"].shape[-1])[:, :done] = saved["updates"]
        for key in saved:
            if key.startswith("metric_"):
                full = np.full(self.norms.shape[:2], np.nan)
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
            t=Clock.of(e).t(self.round[keep] * e.period),
            w=None if self.w is None else pick(self.w),
            w0=self.w0 if self.many or self.w0 is None else self.w0[0],
            model=(state.w if self.many else state.w[0]) if self.w is None else None,
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


def _on_flower(refused: dict[str, Any]) -> Any:
    from fedtaper.engines.flower.engine import ENGINE

    for name, value in refused.items():
        if value is not None:
            raise FedtaperError(f'engine="flower" takes no {name}: it runs one seed on the CPU')
    ENGINE.check()
    return ENGINE


def _seeds(e: Experiment, seeds: Iterable[int] | None) -> NDArray[np.int64]:
    chosen = [e.seed] if seeds is None else list(seeds)
    if not chosen:
        raise FedtaperError("no seeds to run")
    for seed in chosen:
        whole("seed", seed, low=0)
    if len(set(chosen)) < len(chosen):
        raise FedtaperError("a seed stands twice in seeds: its runs would be the same")
    return np.array(chosen, dtype=np.int64)


def _engine(e: Experiment, name: Any, device: str | None = None) -> ModuleType:
    known = ("reference", "compiled", "cpu", "cuda", "flower")
    if hasattr(name, "start"):
        return name
    if name not in (None, *known):
        raise FedtaperError(
            f"there is no engine {name!r}: use {' or '.join(known)}{nearest(str(name), known)}"
        )
    if device not in (None, "cpu", "cuda"):
        raise FedtaperError(f'device must be "cpu" or "cuda", not {device!r}')
    if hasattr(e.problem, "batch_loss") and name != "reference":
        return _network_engine(name or device or "cpu")
    if "cuda" in (name, device) or name == "cpu":
        raise FedtaperError(
            'regression runs on the CPU: use engine="compiled" or "reference", no device'
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


def _without_extras(module: ModuleType, e: Experiment, updates: bool) -> ModuleType:
    """Refuse what an engine cannot do, before any work."""
    if module.__name__.endswith("cuda") and (updates or e.clients):
        raise FedtaperError(
            'the CUDA engine neither records updates nor simulates clients=: use device="cpu"'
        )
    if module.__name__ == "flower" and e.clients:
        raise FedtaperError("sites on Flower are real: clients= simulates on the other engines")
    return module


def _network_engine(name: str) -> ModuleType:
    if name == "cpu":
        from fedtaper.engines import cpu

        return cpu
    if name == "cuda":
        from fedtaper.engines.cuda import session as on_gpu

        on_gpu.check()
        return on_gpu
    raise FedtaperError(f'the {name} engine knows no networks: use "cpu", "cuda" or "reference"')


def _session(module: Any, e: Experiment, state: State, precision: str | None) -> Any:
    how = {} if precision is None else {"precision": precision}
    return module.start(e, state, **how) if hasattr(module, "start") else None


def _thinning(e: Experiment, seeds: NDArray[np.int64], thin: int | None, updates: bool) -> int:
    if thin is not None:
        whole("thin", thin)
        return thin
    kept = 0 if hasattr(e.problem, "batch_loss") else e.problem.dim
    width = min(e.problem.dim, SKETCH) if hasattr(e.problem, "batch_loss") else e.problem.dim
    per_client = e.num_clients * (1 + updates * width)
    per_round = 8 * (kept + per_client + 5) * len(seeds)
    return int(np.ceil(per_round * e.rounds / KEEP_BYTES))


def _block_rounds(e: Experiment, seeds: int) -> int:
    if hasattr(e.problem, "batch_loss"):
        return 1
    per_round = int(e.steps.sum()) * e.batch_size * seeds * max(1.0, e.problem.dim / 3)
    return int(np.clip(BLOCK_SAMPLES / per_round, 1, 20_000))


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Hold Ctrl-C back until a block of rounds is whole: the list is then no longer empty.

    A second Ctrl-C interrupts at once. Only the main thread may set signal handlers.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def hold(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(total: int, done: int, wanted: bool | None) -> Iterator[Any]:
    if wanted is False:
        yield lambda rounds: None
        return
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
