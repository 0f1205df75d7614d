"""``run``: an Experiment becomes a Run. Rounds in blocks, checkpoints between them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper import engines
from fedtaper.core.checks import check_type, check_whole
from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Block, Engine, Options, Session, State
from fedtaper.engines.gate import choose
from fedtaper.experiment import Experiment
from fedtaper.results import Run
from fedtaper.simulation.challenger import Challenger, joined
from fedtaper.simulation.controller import Controller, Judge
from fedtaper.simulation.progress import Stopped, bar, interrupts
from fedtaper.simulation.recorder import Recorder, thinning
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
    engine: str | Engine | None = None,
    device: str | None = None,
    precision: str | None = None,
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
        seeds: seeds to run in place of ``experiment.seed``; the Run's arrays then have a
            leading axis of seeds. The problem, with a seed of its own, is the same for all.
        out: a folder to store the run in. It must not exist, unless resuming.
        resume: go on where a stopped run in ``out`` left off, or load it if it is finished. The
            experiment must be the stored one, setting by setting; more rounds are added to it.
        engine: "reference", "compiled" (regression), "cpu" or "cuda" (networks), "flower" (its
            simulation, on this machine); chosen by the problem, the rules and the device if not
            given. Or an engine of your own, see :class:`fedtaper.core.protocols.Engine`.
        device: "cpu" or "cuda"; networks only. By default the CPU.
        precision: "bf16" (the default) or "float32", on CUDA.
        thin: record every thin-th round (and the last). By default all, unless they would
            take more than 1 GiB.
        updates: record every client's update, (rounds, L, dim), as ``run.updates`` (networks: a
            sketch of it): an audit sees more in directions than in sizes.
        progress: a progress bar; by default where one can be seen and the work is long.
        log: where else the numbers of each round go: TensorBoard, MLflow.
        keep_data: store data of your own (``LinearRegression.from_arrays``) in the folder too.
        also: a function of the Run that gives further text files to store with it, by name.
        judge: where the experiment is steered, what the controller looks at: a function from
            the model to every client's loss, or a problem with held-out samples of every
            client; by default the clients' own training losses.
    """
    if not isinstance(experiment, Experiment):
        raise FedtaperError(f"run needs an Experiment, not {type(experiment).__name__}")
    if log is not None:
        check_type("log", log, Log)
    chosen = _seeds(experiment, seeds)
    if out is not None and not isinstance(out, str | Path):
        raise FedtaperError(f"out must be the path of a folder, not {out!r:.80}")
    for name, value in (("resume", resume), ("updates", updates)):
        if not isinstance(value, bool | np.bool_):
            raise FedtaperError(f"{name} must be True or False, not {value!r:.80}")
    if resume and out is None:
        raise FedtaperError("resume=True needs out=, the folder of the run to go on with")
    options = Options(updates, seeds is not None, precision, device)
    selected = choose(experiment, engine, options)
    with opened(out, resume, experiment, keep_data, also) as disk:
        found = disk.standing(chosen, options.many_seeds) if resume else None
        if isinstance(found, Run):
            if updates and found.updates is None:
                raise FedtaperError(f"{out}: the stored run did not record updates")
            return found
        warn_if_unstable(experiment)
        thinned = thinning(experiment, chosen, thin, updates)
        record = Recorder(experiment, chosen, options.many_seeds, thinned)
        state = engines.init(experiment, chosen, updates, selected.capabilities.memory_at_sites)
        record.challenger = Challenger(experiment, state)
        record.controller = Controller(experiment, state, judge)
        record.w0 = state.w.copy() if record.w is not None else None
        began = time.perf_counter() - record.restore(state, found)
        session = selected.open(record.e, state, options)
        with interrupts() as stop:
            try:
                _advance(
                    selected, session, state, record, disk, began, progress, log or Log(), stop
                )
            finally:
                session.sync()
                session.close()
            seconds = time.perf_counter() - began
            made = record.finish(state, selected.name, seconds)
            made = disk.save(made, record.checkpoint(state, seconds))
        if stop:  # while it was being stored
            raise Stopped(stop[0])
        return made


def _advance(
    engine: Engine,
    session: Session,
    state: State,
    record: Recorder,
    disk: Disk,
    began: float,
    progress: bool | None,
    log: Log,
    stop: list[int],
) -> None:
    """All rounds, block by block, with a checkpoint now and then and when interrupted."""
    e, each = record.e, engine.capabilities.saves_each_round
    block = 1 if each else engine.block_rounds(e, len(state.seeds))
    saved, pause = time.perf_counter(), min(SOONEST, CHECKPOINT_SECONDS)
    with (
        disk.checkpoints() as checkpoints,
        log.opened(e, disk.folder, state.round) as note,
        bar(e.rounds, state.round, progress) as moved,
    ):
        while state.round < e.rounds and not np.all(state.dead_round):
            rounds, first = min(block, e.rounds - state.round), state.round
            before = state.w.copy() if record.w is not None else None
            record.add(first, before, _block(session, record, rounds))
            moved(rounds, record.newest)
            note(partial(record.rows, first, state.round))
            if stop or each or time.perf_counter() - saved > pause:
                start = time.perf_counter()
                session.sync()
                disk.describe()
                checkpoints.save(record.checkpoint(state, start - began), behind=each)
                saved = time.perf_counter()
                pause = min(max(SOONEST, SHARE * (saved - start)), CHECKPOINT_SECONDS)
            if stop:
                raise Stopped(stop[0])


def _block(session: Session, record: Recorder, rounds: int) -> Block:
    """So many rounds as one block, with the challenges and looks that fall between them."""
    parts, challenger, controller = [], record.challenger, record.controller
    assert challenger is not None and controller is not None
    while rounds:
        challenger.before_round(session)
        made = controller.quiet(challenger.quiet(rounds))
        parts.append(session.advance(made))
        rounds -= made
        controller.after_rounds(session)
        record.follow()
    return joined(parts)


def _seeds(e: Experiment, seeds: Iterable[int] | None) -> NDArray[np.int64]:
    try:
        chosen = [e.seed] if seeds is None else list(seeds)
    except TypeError:
        raise FedtaperError(
            f"seeds must be whole numbers such as range(10), not {seeds!r}"
        ) from None
    if not chosen:
        raise FedtaperError("no seeds to run")
    for seed in chosen:
        check_whole("seed", seed, low=0)
        if seed >= 2**63:
            raise FedtaperError(f"seed {seed} is too large: use one below 2**63")
    if len(set(chosen)) < len(chosen):
        raise FedtaperError("a seed stands twice in seeds: its runs would be the same")
    return np.array(chosen, dtype=np.int64)
