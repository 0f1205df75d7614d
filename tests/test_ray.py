"""Many runs on a local Ray: the same results as one after another, also when a worker dies."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.deploy.processes import command_line, descendants
from fedtaper.simulation.jobs import run_many


def regressions(count, rounds=60):
    problem = ft.LinearRegression(num_clients=4, samples=200, feature_spread=1.0, seed=2)
    return {
        f"r{i}": ft.Experiment(
            problem, ft.Power(0.05 + 0.01 * (i % 5), 0.8), rounds=rounds, local_steps=4, seed=i
        )
        for i in range(count)
    }


def digits(count):
    problem = ft.ImageClassification("digits", model="cnn", num_clients=3)
    return {
        f"d{i}": ft.Experiment(
            problem, ft.Power(0.1, 0.76), rounds=2, local_epochs=1, batch_size=32, seed=i
        )
        for i in range(count)
    }


def kill_a_worker(killed, stop):
    """Kill -9 the first Ray worker that is seen busy with a task."""
    while not stop.is_set() and not killed:
        for pid in descendants(os.getpid()):
            if command_line(pid).startswith("ray::_simulated"):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break
        time.sleep(0.02)


def same(mine, theirs):
    assert mine.experiment.seed == theirs.experiment.seed
    np.testing.assert_array_equal(mine.w, theirs.w)
    for name in mine.metrics:
        if name != "seconds":
            np.testing.assert_array_equal(mine.metrics[name], theirs.metrics[name])


@pytest.mark.parametrize(
    ("small", "large"), [(16, 2), pytest.param(64, 8, marks=pytest.mark.federation)]
)
def test_a_killed_worker_costs_only_its_runs(small, large, tmp_path):
    jobs = regressions(small) | digits(large)
    killed, stop = [], threading.Event()
    hunter = threading.Thread(target=kill_a_worker, args=(killed, stop))
    hunter.start()
    try:
        spread = run_many(jobs, ray="local", out=tmp_path)
    finally:
        stop.set()
        hunter.join()
    assert killed, "no worker was killed: the test shows nothing"
    for mine, theirs in zip(run_many(jobs), spread, strict=True):
        same(mine, theirs)
    stamp = (tmp_path / "r0" / "run.npz").stat().st_mtime_ns
    again = run_many(regressions(2), out=tmp_path)
    assert (tmp_path / "r0" / "run.npz").stat().st_mtime_ns == stamp, "found, not run again"
    same(again[1], spread[1])


def test_a_run_that_fails_is_named_and_the_others_are_kept(tmp_path):
    jobs = regressions(2, rounds=3)
    with pytest.raises(ft.FedtaperError, match="2 of 2 runs failed: r0: there is no engine"):
        run_many(jobs, engine="none")
    bad = ft.Experiment(digits(1)["d0"].problem, ft.Power(0.1, 0.8), rounds=1, local_epochs=1)
    with pytest.raises(ft.FedtaperError, match="1 of 3 runs failed: bad"):
        run_many(jobs | {"bad": bad}, out=tmp_path, engine="compiled")
    assert len(ft.load(tmp_path / "r1").round) == 3
