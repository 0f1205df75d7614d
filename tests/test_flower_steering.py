"""Steering over Flower: factors travel in the messages, losses are asked for, all is resumed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedtaper as ft

pytest.importorskip("flwr")

from flower_loop import LoopGrid, Source, told

from fedtaper.deploy import keeper
from fedtaper.deploy.local import LocalFederation
from fedtaper.deploy.progress import last_line
from fedtaper.deploy.server import serve

SITES = ("north", "south", "west", "east")


def experiment(rounds=20, **changes):
    problem = ft.LinearRegression(num_clients=4, dim=3, samples=120, feature_spread=1.0, seed=7)
    plan = ft.Steering("minmax", every=4, rate=3.0)
    how = {"local_steps": 3, "batch_size": 8, "steering": plan} | changes
    return ft.Experiment(problem, how.pop("schedules", ft.Power(0.2, 0.8, 5)), rounds, **how)


def over_loop(e, out=None, spoil=None, node_config=None, **changes):
    made = ft.Federation(**({"sites": SITES, "deadline": 0.3} | changes))
    grid = LoopGrid(Source(e, made), spoil, node_config)
    return serve(grid, grid.source, out, progress=False), grid


def events(out, kind):
    lines = (Path(out) / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if kind in (None, entry["kind"])]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"participation": 0.6},
        {"local": ft.Momentum(0.5)},
        {"server": ft.Adam()},
        {"schedules": ft.Constant(0.05)},
        {"schedules": ft.WarmUp(ft.Power(0.2, 0.8, 5), 6)},
    ],
    ids=lambda how: next(iter(how), "plain"),
)
def test_steered_as_in_simulation(how, tmp_path):
    e = experiment(**how)
    mine, (theirs, grid) = ft.run(e, engine="reference"), over_loop(e, tmp_path / "run")
    assert np.abs(mine.w - theirs.w).max() < 1e-12
    np.testing.assert_allclose(theirs.looks.losses, mine.looks.losses, rtol=1e-12)
    np.testing.assert_allclose(theirs.looks.factor, mine.looks.factor, rtol=1e-12)
    sent = {(s, k): m.content["order"]["factor"] for s, k, m in grid.sent if k >= 0}
    for k, row in enumerate(theirs.scales):
        for site, factor in zip(SITES, row, strict=True):
            assert sent.get((site, k), factor) == factor
    assert np.abs(theirs.scales[-1] - 1).max() > 0.01
    assert len(events(tmp_path / "run", "steered")) == 5
    assert "north " in events(tmp_path / "run", "steered")[0]["why"]
    assert (tmp_path / "run" / "steering.csv").is_file()


def test_networks_steer_as_on_the_cpu():
    import torch

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 5)) + i, rng.integers(3, size=20)) for i in range(4)]
    problem = ft.Custom(
        lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y),
        lambda: torch.nn.Linear(5, 3),
        data,
    )
    plan = ft.Steering("tilt", every=2)
    e = ft.Experiment(problem, ft.Power(0.3, 0.8, 5), 6, 2, batch_size=10, steering=plan)
    mine, (theirs, _) = ft.run(e, engine="cpu"), over_loop(e)
    np.testing.assert_allclose(theirs.looks.factor, mine.looks.factor, rtol=1e-5)
    np.testing.assert_allclose(theirs.w, mine.w, atol=1e-6)


class Killed(BaseException):
    """The server dies here."""


def test_a_killed_server_goes_on_with_the_factors_it_gave(tmp_path):
    e = experiment()
    whole, _ = over_loop(e)
    for stop in (3, 4, 9):

        def spoil(site, round_, reply, stop=stop):
            if round_ == stop:
                raise Killed
            return reply

        with pytest.raises(Killed):
            over_loop(e, tmp_path / str(stop), spoil)
        again, _ = over_loop(e, tmp_path / str(stop))
        np.testing.assert_array_equal(again.w, whole.w)
        np.testing.assert_array_equal(again.looks.factor, whole.looks.factor)


def test_a_site_that_ignores_its_factor_is_rejected_and_one_with_a_schedule_of_its_own_is_not():
    def spoil(site, round_, reply):
        return told(reply, factor=1.0) if site == "south" else reply

    run, _ = over_loop(experiment(12), spoil=spoil)
    assert np.isnan(run.update_norms[4:, 1]).all()
    assert np.isfinite(run.update_norms[:4, 1]).all()
    own = {"south": {"c": 0.1, "delta": 0.9, "offset": 5.0}}
    mine = ft.Power(0.1, 0.9, 5.0)
    run, _ = over_loop(experiment(12), node_config=own, own_schedules=True)
    plain = ft.Power(0.2, 0.8, 5)
    same = ft.run(experiment(12, schedules=(plain, mine, plain, plain)), engine="reference")
    assert np.abs(run.w - same.w).max() < 1e-12


def test_a_loss_that_is_no_number_is_named_and_the_last_one_stands(tmp_path):
    class Lying(LoopGrid):
        def _answer(self, message):
            number = super()._answer(message)
            if message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == 101:
                wait, reply = self.replies[number]
                self.replies[number] = (wait, told(reply, loss="nan"))
            return number

    e = experiment(12)
    grid = Lying(Source(e, ft.Federation(sites=SITES, deadline=0.3)))
    run = serve(grid, grid.source, tmp_path / "run", progress=False)
    others = np.delete(run.looks.losses[0], 1).mean()
    np.testing.assert_allclose(run.looks.losses[:, 1], others)
    assert {x["site"] for x in events(tmp_path / "run", "loss")} == {"south"}


def test_honest_sites_are_not_accused_while_their_factors_move(tmp_path):
    problem = ft.LinearRegression(num_clients=4, samples=400, seed=3)
    plan = ft.Steering("minmax", every=10, rate=2.0)
    e = ft.Experiment(problem, ft.Power(0.02, 0.8, 20), 100, 5, steering=plan)
    run, _ = over_loop(e, tmp_path / "run")
    assert run.scales[-1].max() / run.scales[-1].min() > 2
    found = events(tmp_path / "run", None)
    assert not [x for x in found if x["kind"].startswith("audit")]
    assert {c.verdict for c in ft.audit(run).clients} <= {"as declared", "cannot tell"}


@pytest.mark.federation
def test_steered_in_flowers_simulation():
    e = experiment(8)
    run = ft.run(e, engine="flower", progress=False)
    assert np.abs(run.w - ft.run(e, engine="reference").w).max() < 1e-12


STEERED = """
[experiment]
rounds = 8
local_steps = 5
batch_size = 20
[problem]
kind = "linear"
num_clients = 3
samples = 200
feature_spread = 1.0
seed = 7
[steering]
goal = "minmax"
every = 2
rate = 0.3
[[schedules]]
c = 0.2
delta = 0.8
offset = 5.0
clients = 3
[federation]
sites = ["north", "south", "west"]
deadline = 240.0
"""


def same_as_simulated(run, mine, folder):
    """Models, looks and factors are the simulated ones, were moved, and were logged."""
    np.testing.assert_allclose(run.w, mine.w, atol=1e-12)
    for name in ("round", "losses", "share", "factor"):
        theirs, simulated = getattr(run.looks, name), getattr(mine.looks, name)
        np.testing.assert_allclose(theirs, simulated, rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(run.scales, mine.scales, rtol=1e-12)
    assert np.abs(run.scales[-1] - 1).max() > 0.05, "the step sizes were moved"
    first, last = run.looks.share[0], run.looks.share[-1]
    assert np.abs(last - first).max() > 0.02, "and the influences with them"
    given = [entry["why"] for entry in events(folder, "steered")]
    assert len(set(given)) == 4, "every move is in the log of events"
    log = np.loadtxt(folder / "steering.csv", delimiter=",", skiprows=1)
    np.testing.assert_array_equal(log[:, 0], [2, 4, 6, 8])
    np.testing.assert_array_equal(log[:, 7:], run.looks.factor[:-1])


@pytest.mark.federation
def test_steered_over_processes_and_resumed_after_a_kill(tmp_path):
    """Two rehearsals: one left alone, one killed between two looks and gone on with."""
    file = tmp_path / "case.toml"
    file.write_text(STEERED)
    simulated = ft.run(ft.read_toml(file), engine="reference")
    with LocalFederation(file, tmp_path / "whole", sites=3) as local:
        whole = local.run(seconds=900)
    same_as_simulated(whole, simulated, local.run_folder)

    out = tmp_path / "killed"
    command = [sys.executable, "-m", "fedtaper", "deploy", str(file), "--local", "3"]
    command += ["--out", str(out)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    mark, folder = f"FLWR_HOME={out / 'flower'}", out / "server" / "run"
    first = subprocess.Popen(command, env=env)
    try:
        end = time.monotonic() + 300
        while "round 3/8" not in last_line(folder) and time.monotonic() < end:
            time.sleep(0.05)
        first.kill()
        first.wait(timeout=10)
        end = time.monotonic() + 30
        while keeper.marked(mark) and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        first.kill()
        keeper.end_marked(mark)
    assert not (folder / "steering.csv").exists(), "it was killed before its end"
    again = [*command, "--resume", "--seconds", "900"]
    done = subprocess.run(again, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = ft.load(folder)
    np.testing.assert_array_equal(run.w, whole.w)
    np.testing.assert_array_equal(run.looks.factor, whole.looks.factor)
    np.testing.assert_array_equal(run.update_norms, whole.update_norms)
    same_as_simulated(run, simulated, folder)
