"""``run``: an Experiment becomes a Run. Rounds in blocks, checkpoints between them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper import engines
from fedtaper.core.checks import check_flag, check_memory, check_type, check_whole, taken
from fedtaper.core.errors import FedtaperError, OwnCodeError, own_code, warn
from fedtaper.core.protocols import Block, Engine, Options, Session, State, is_network
from fedtaper.engines.gate import choose
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.simulation.callbacks import Callback, Progress, checked, verdict
from fedtaper.simulation.challenger import Challenger, joined
from fedtaper.simulation.controller import Controller, Judge
from fedtaper.simulation.progress import Stopped, bar, interrupts
from fedtaper.simulation.recorder import Recorder, copied, thinning
from fedtaper.simulation.start import Start, warm
from fedtaper.storage.disk import Also, Disk, opened
from fedtaper.storage.logs import Log
from fedtaper.theory.stability import warn_if_unstable

CHECKPOINT_SECONDS = 20.0  # at most, between two checkpoints
SOONEST, SHARE = 1.0, 20  # a cheap one is made sooner, so that it takes 1/20 of the time at most


def run(
    experiment: Experiment,
    *,
    seeds: Iterable[int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    start: Start | None = None,
    callbacks: Sequence[Callback] = (),
    engine: str | Engine | None = None,
    device: str | None = None,
    precision: str | None = None,
    way: str | None = None,
    thin: int | None = None,
    updates: bool = False,
    progress: bool | None = None,
    log: Log | None = None,
    keep_data: bool = False,
    also: Also | None = None,
    judge: Judge | Any = None,
) -> Run:
    """Simulate an experiment, for its own seed or for many seeds in one batch.

    Args:
        experiment: what to run.
        seeds: seeds to run instead of ``experiment.seed``; the Run's arrays then have a
            leading axis of seeds. The problem, with its own seed, is the same for all.
        out: a folder to store the run in. It must not exist, unless resuming.
        resume: continue a stopped run in ``out``, or load it if it is finished. The experiment
            must have the stored settings; if it has more rounds, they are added.
        start: the model to start from instead of the problem's first: a Run, a torch module, a
            state_dict, or a vector. The clock starts at 1 all the same.
        callbacks: functions that are called after every recorded round with the run's progress
            (:class:`fedtaper.Progress`). One that returns True, or a reason as text, ends the
            run there, as :class:`fedtaper.EarlyStopping` does.
        engine: "reference", "compiled" (regression), "cpu" or "cuda" (networks), "flower" (its
            simulation, on this machine); chosen by the problem, the rules and the device if not
            given. Or an engine of your own, see :class:`fedtaper.core.protocols.Engine`.
        device: "cpu" or "cuda"; networks only. By default the CPU.
        precision: "bf16" (the default) or "float32", on CUDA.
        way: how a network's clients are trained on the CPU: "per-client", "stacked" (all clients'
            models as one) or "compiled" (the same, compiled). The results are the same except for
            rounding. By default the fastest, if a run is long enough to find out; see
            ``Run.way``. A resumed run keeps its way.
        thin: record every thin-th round (and the last). By default all, unless they would
            take more than 1 GiB.
        updates: record every client's update, (rounds, L, dim), as ``run.updates`` (networks: a
            sketch of it): an audit sees more in directions than in sizes.
        progress: a progress bar; by default if one can be seen and the work is long.
        log: where else the numbers of each round go: TensorBoard, MLflow.
        keep_data: store your own data (``LinearRegression.from_arrays``) in the folder too.
        also: a function of the Run that gives further text files to store with it, by name.
        judge: for a steered experiment, what the controller looks at: a function from
            the model to every client's loss, or a problem with held-out samples of every
            client; by default the clients' own training losses.

    If your own code (loss, evaluate, data set, callback) raises, the rounds made so far are
    kept: in the folder, to be resumed, and as ``run`` of the :class:`OwnCodeError`.
    """
    if not isinstance(experiment, Experiment):
        raise FedtaperError(f"run needs an Experiment, not {type(experiment).__name__}")
    if log is not None:
        check_type("log", log, Log)
    chosen = _seeds(experiment, seeds)
    if out is not None and not isinstance(out, str | Path):
        raise FedtaperError(f"out must be the path of a folder, not {out!r:.80}")
    for name, value in (("resume", resume), ("updates", updates), ("keep_data", keep_data)):
        check_flag(name, value)
    if progress is not None:
        check_flag("progress", progress)
    if also is not None and not callable(also):
        raise FedtaperError(f"also must be a function of the Run, not {also!r:.80}")
    if resume and out is None:
        raise FedtaperError("resume=True needs out=, the folder of the run to continue")
    options = Options(updates, seeds is not None, precision, device, way)
    selected = choose(experiment, engine, options)
    calls = checked(callbacks)
    first, begins = warm(experiment, start, chosen)
    with opened(out, resume, experiment, keep_data, also, begins) as disk:
        found = disk.standing(chosen, options.many_seeds) if resume else None
        if isinstance(found, Run):
            if updates and found.updates is None:
                raise FedtaperError(
                    f"{out}: the stored run did not record updates: resume it without "
                    "--updates (updates=True)"
                )
            return found
        warn_if_unstable(experiment)
        thinned = thinning(experiment, chosen, thin, updates)
        at_sites = selected.capabilities.memory_at_sites
        state = engines.init(experiment, chosen, updates, at_sites, first)
        beside = Challenger(experiment, state), Controller(experiment, state, judge)
        record = Recorder(experiment, chosen, options.many_seeds, thinned, *beside, begins)
        record.w0 = state.w.copy() if record.w is not None else None
        began = time.perf_counter() - record.restore(state, found)
        session = selected.open(record.e, state, options)
        course = Course(selected, session, state, record, disk, began, log or Log(), calls)
        with interrupts() as stop:
            try:
                course.advance(progress, stop)
            finally:
                session.sync()
                session.close()
            seconds = time.perf_counter() - began
            made = record.finish(state, selected.name, seconds)
            made = disk.save(made, record.checkpoint(state, seconds))
        if stop:  # while it was being stored
            raise Stopped(stop[0])
        return made


@dataclass
class Course:
    """A running run: all rounds, block by block, with a checkpoint now and then."""

    engine: Engine
    session: Session
    state: State
    record: Recorder
    disk: Disk
    began: float
    log: Log
    callbacks: tuple[Callback, ...]

    def advance(self, progress: bool | None, stop: list[int]) -> None:
        """To the last round, or to where a callback, a divergence or a signal ends it."""
        e, state = self.record.e, self.state
        with (
            self.disk.checkpoints() as self.checkpoints,
            self.log.opened(e, self.disk.folder, state.round) as note,
            bar(e.rounds, state.round, progress) as moved,
        ):
            self.saved, self.pause = time.perf_counter(), min(SOONEST, CHECKPOINT_SECONDS)
            while state.round < e.rounds and not np.all(state.dead_round):
                first = state.round
                self._block()
                moved(state.round - first, self.record.newest)
                note(partial(self.record.rows, first, state.round))
                if stop or self._each or time.perf_counter() - self.saved > self.pause:
                    self._checkpoint()
                if stop:
                    raise Stopped(stop[0])
                if self.record.stopped:
                    return

    @property
    def _each(self) -> bool:
        """Whether every round is worth a checkpoint."""
        return self.engine.capabilities.saves_each_round

    @property
    def _rounds(self) -> int:
        """How many rounds the next block has: one if something looks at each round.

        None goes beyond a look of the controller: rounds are measured with the scales that they
        were made with.
        """
        if self._each or self.callbacks:
            return 1
        e, controller = self.record.e, self.record.controller
        most = self.engine.block_rounds(e, len(self.state.seeds))
        return controller.quiet(min(e.rounds - self.state.round, most))

    def _block(self) -> None:
        """Some rounds, or none of them: if the user's code fails, the state before is kept."""
        record, state = self.record, self.state
        self.session.sync()
        before, first, rounds = copied(state), state.round, self._rounds
        safe = record.checkpoint(before, time.perf_counter() - self.began)
        try:
            block = _block(self.session, record, rounds)
            if first == 0:
                _warn_if_still(record.e, int(state.seeds[0]), block)
            record.add(first, before.w if record.w is not None else None, block)
            record.controller.after_rounds(self.session)
            record.follow()
            self._call()
        except Exception as trouble:
            if isinstance(trouble, OwnCodeError) and trouble.round is None and rounds == 1:
                trouble.round = first + 1
            self._rescue(trouble, before, safe)
            raise

    def _call(self) -> None:
        """Call every callback, if the newest round is a recorded one."""
        record, state = self.record, self.state
        if not self.callbacks or state.round not in record.round or np.all(state.dead_round):
            return
        now = Progress(record, state, self.session)
        for callback in self.callbacks:
            with own_code("callback", round_=state.round):
                record.stopped = verdict(callback, now) or record.stopped

    def _checkpoint(self) -> None:
        start = time.perf_counter()
        self.session.sync()
        self.disk.describe()
        made = self.record.checkpoint(self.state, start - self.began)
        self.checkpoints.save(made, behind=self._each)
        self.saved = time.perf_counter()
        self.pause = min(max(SOONEST, SHARE * (self.saved - start)), CHECKPOINT_SECONDS)

    def _rescue(self, trouble: Exception, before: State, safe: dict[str, Any]) -> None:
        """Keep the rounds made before the block in which something failed."""
        own = trouble if isinstance(trouble, OwnCodeError) else None
        if not before.round:
            return
        where = " in the error's .run"
        if self.disk.folder is not None:
            with suppress(FedtaperError, OSError):  # a full disk, perhaps: the first trouble counts
                self.disk.describe()
                self.checkpoints.save(safe, failed=None if own is None else own.part)
                where = f" in {self.disk.folder}: fix it, then resume (--resume, resume=True)"
        if own is not None:
            own.after = f"; {before.round} rounds are kept{where}"
            own.run = self.record.finish(before, self.engine.name, float(safe["seconds"]))


def _block(session: Session, record: Recorder, rounds: int) -> Block:
    """Several rounds as one block, with the challenges that fall between them."""
    parts, challenger = [], record.challenger
    while rounds:
        challenger.before_round(session)
        made = challenger.quiet(rounds)
        parts.append(session.advance(made))
        rounds -= made
    return joined(parts)


def _warn_if_still(e: Experiment, seed: int, block: Block) -> None:
    """A network that does not move at all: the loss may be that of another model."""
    sent = block.update_norms[0]
    if is_network(e.problem) and not np.any(sent) and np.any(e.present(0, len(sent), seed)):
        warn(
            "no client moved the model: the gradient of the loss is 0. Does the loss use the "
            "model that it is given?"
        )


def _seeds(e: Experiment, seeds: Iterable[int] | None) -> NDArray[np.int64]:
    if isinstance(seeds, range):  # before it is written out
        check_memory("this many seeds", float(len(seeds)) * max(10, e.problem.dim))
    try:
        chosen = [e.seed] if seeds is None else taken("seeds", seeds)
    except TypeError:
        raise FedtaperError(
            f"seeds must be whole numbers such as range(10), not {seeds!r}"
        ) from None
    if not chosen:
        raise FedtaperError("seeds is empty: give at least one seed, such as range(10)")
    for seed in chosen:
        check_whole("seed", seed, low=0)
        if seed >= 2**63:
            raise FedtaperError(f"seed {seed} is too large: use one below 2**63")
    if len(set(chosen)) < len(chosen):
        raise FedtaperError("a seed is listed twice in seeds: its runs would be the same")
    return np.array(chosen, dtype=np.int64)
