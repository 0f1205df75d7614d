"""The engine "flower": Flower's simulation behind the same door as every other engine."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from flower_loop import LoopGrid, Source

import fedtaper as ft
from fedtaper.core.protocols import Engine
from fedtaper.deploy import processes
from fedtaper.engines import registry
from fedtaper.engines.flower.app import make_client_app
from fedtaper.engines.flower.engine import ENGINE, FlowerEngine
from fedtaper.engines.flower.federation import numbered
from fedtaper.engines.flower.roster import Roster
from fedtaper.engines.flower.rounds import GridEngine
from fedtaper.engines.flower.simulation import Simulation
from fedtaper.testing import check_engine

SCHEDULES = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))


def experiment(problem, **changes):
    basic = {"rounds": 4, "local_steps": 3, "batch_size": 10, "seed": 4}
    return ft.Experiment(problem, SCHEDULES, **(basic | changes))


def ray_processes():
    found = processes.descendants(os.getpid())
    return [p for p in found if "ray" in processes.command_line(p)]


def test_models_updates_and_resume_are_those_of_the_reference(tiny, tmp_path):
    e = experiment(tiny, participation=0.8)
    mine = ft.run(e, engine="reference", updates=True)
    out = tmp_path / "run"
    run = ft.run(e, engine="flower", updates=True, out=out)
    np.testing.assert_array_equal(run.w, mine.w)
    np.testing.assert_array_equal(run.updates, mine.updates)
    assert run.engine == "flower"
    assert ft.load(out).metrics["answered"].tolist() == run.metrics["answered"].tolist()
    assert not ray_processes(), "the simulation is closed"
    assert "flower" not in [t.name for t in threading.enumerate()]


def test_an_exception_in_the_middle_closes_the_simulation(tiny):
    with pytest.raises(RuntimeError, match="in the middle"), Simulation(client(), 2) as grid:
        while len(list(grid.get_node_ids())) < 2:
            time.sleep(0.05)
        raise RuntimeError("in the middle")
    assert not ray_processes()
    with pytest.raises(ft.FedtaperError, match="has ended"):
        grid.get_node_ids()


class LoopEngine(FlowerEngine):
    """The rounds of a deployed server, over sites in this process."""

    def open(self, experiment, state, options):
        federation = ft.Federation(numbered(experiment.num_clients))
        grid = LoopGrid(Source(experiment, federation))
        roster = Roster(grid, federation, lambda *words: None)
        return GridEngine(grid, federation, roster).open(experiment, state, options)


def test_the_rounds_keep_the_contract_of_an_engine():
    assert len(check_engine(LoopEngine())) >= 5
    assert isinstance(ENGINE, Engine)
    assert registry.get("flower") is ENGINE


def client():
    return make_client_app(lambda context: None)


SCRIPT = """
import fedtaper as ft
problem = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=100_000, local_steps=3, batch_size=10)
print("started", flush=True)
ft.run(e, engine="flower", out={out!r}, progress=False)
"""


def test_an_interrupt_keeps_the_rounds_and_leaves_no_process(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-c", SCRIPT.format(out=str(out))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 90
        while not (out / "checkpoint.npz").is_file() and time.monotonic() < end:
            time.sleep(0.1)
        members = processes.descendants(process.pid)
        assert members, "Ray's processes"
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=60)
    finally:
        processes.stop(process)
    assert "simulation.progress.Stopped" in text  # a KeyboardInterrupt
    assert (out / "checkpoint.npz").is_file()
    end = time.monotonic() + 10
    while (left := [p for p in members if processes.command_line(p)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, [processes.command_line(p) for p in left]
