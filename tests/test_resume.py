"""Resume: the stored experiment and no other; signals, faults and kills lose nothing."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from interrupted import stopped
from small_file import FILE

import fedtaper as ft
from fedtaper.simulation import drive
from fedtaper.storage import checkpoints, store

TINY = {"num_clients": 3, "dim": 2, "samples": 40, "feature_spread": 1.0, "seed": 7}


def experiment(rounds=40, **changes):
    how = {"local_steps": 2, "batch_size": 4, "server": ft.Adam()} | changes
    problem = how.pop("problem", None) or ft.LinearRegression(**TINY)
    return ft.Experiment(problem, how.pop("schedules", ft.Power(0.1, 0.8)), rounds=rounds, **how)


def same(a, b):
    for name in ("w", "w0", "n", "t", "round", "update_norms"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert list(a.metrics) == list(b.metrics)
    for name in a.metrics:
        np.testing.assert_array_equal(a.metrics[name], b.metrics[name])
    assert a.experiment == b.experiment and a.seeds == b.seeds


@pytest.fixture
def small_blocks(monkeypatch):
    """Five rounds in a block, and a checkpoint after each."""
    monkeypatch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr("fedtaper.engines.BLOCK_SAMPLES", 120)


CHANGES = {
    "local_steps: 2 -> 3": {"local_steps": 3},
    "batch_size: 4 -> 5": {"batch_size": 5},
    "local: ": {"local": ft.Proximal(0.2)},
    "server: eta default -> 0.2": {"server": ft.Adam(eta=0.2)},
    "clock: ": {"clock": "round"},
    "participation: 1 -> 0.5": {"participation": 0.5},
    "seed: 0 -> 1": {"seed": 1},
    "schedule of clients 0, 1, 2: c 0.1 -> 0.9": {"schedules": ft.Power(0.9, 0.8)},
    "schedule of client 2: ": {"schedules": [ft.Power(0.1, 0.8)] * 2 + [ft.Constant(0.1)]},
    "behaviour of client 1: ": {"behaviours": {1: ft.Idle()}},
    "problem: snr_db: 10 -> 11": {"problem": ft.LinearRegression(**TINY, snr_db=11.0)},
    "samples of clients 0, 1, 2: 40 -> 41": {
        "problem": ft.LinearRegression(**TINY | {"samples": 41})
    },
    "rounds: 40 -> 30, which is fewer": {"rounds": 30},
}


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "stopped"])
def test_a_resume_with_one_setting_changed_is_refused(
    tmp_path, small_blocks, monkeypatch, finished
):
    e = experiment()
    if finished:
        ft.run(e, out=tmp_path / "a")
    else:
        stopped(e, tmp_path / "a", monkeypatch)
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    for told, change in CHANGES.items():
        with pytest.raises(ft.FedtaperError) as trouble:
            ft.run(experiment(**change), out=tmp_path / "a", resume=True)
        assert told in str(trouble.value) and "\n" not in str(trouble.value)
    for how in ({"seeds": [0, 1]}, {"seeds": [3]}):
        with pytest.raises(ft.FedtaperError, match="other seeds"):
            ft.run(e, out=tmp_path / "a", resume=True, **how)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    same(ft.run(e, out=tmp_path / "a", resume=True), ft.run(e))


def test_changed_data_is_refused(tmp_path):
    tiny = ft.LinearRegression(**TINY)
    y = [a.copy() for a in tiny.y]
    y[1][3] += 1e-12
    own, other = (ft.LinearRegression.from_arrays(tiny.x, values) for values in (tiny.y, y))
    ft.run(experiment(problem=own), out=tmp_path / "a")
    assert not (tmp_path / "a/data.npz").exists()
    with pytest.raises(ft.FedtaperError, match="data of client 1 differs"):
        ft.run(experiment(problem=other), out=tmp_path / "a", resume=True)
    ft.run(experiment(problem=own), out=tmp_path / "b", keep_data=True)
    np.testing.assert_array_equal(ft.load(tmp_path / "b").experiment.problem.x[2], tiny.x[2])


@pytest.mark.parametrize("how", [{}, {"seeds": [0, 4]}, {"updates": True}, {"thin": 7}])
def test_more_rounds_are_added_to_a_finished_run(tmp_path, how):
    behaviours = {1: ft.Copies()}
    short, long = experiment(20, behaviours=behaviours), experiment(45, behaviours=behaviours)
    ft.run(short, out=tmp_path / "a", **how)
    went_on = ft.run(long, out=tmp_path / "a", resume=True, **how)
    same(went_on, ft.run(long, **how))
    same(ft.load(tmp_path / "a"), went_on)


def test_more_rounds_of_a_stopped_and_of_a_diverged_run(tmp_path, small_blocks, monkeypatch):
    stopped(experiment(40), tmp_path / "a", monkeypatch)
    same(ft.run(experiment(60), out=tmp_path / "a", resume=True), ft.run(experiment(60)))
    loud = {"schedules": ft.Constant(5.0), "server": ft.Average()}
    with pytest.warns(ft.StabilityWarning):
        ft.run(experiment(400, **loud), out=tmp_path / "b")
    with pytest.warns(ft.StabilityWarning):
        again = ft.run(experiment(800, **loud), out=tmp_path / "b", resume=True)
    with pytest.warns(ft.StabilityWarning):
        whole = ft.run(experiment(800, **loud))
    assert again.diverged == whole.diverged and len(again.diverged) == 1
    same(again, whole)


def test_an_extension_that_fails_keeps_what_was_stored(tmp_path, monkeypatch):
    short, long = experiment(20), experiment(40)
    first = ft.run(short, out=tmp_path / "a")
    for k in range(60):
        place = tmp_path / "b"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / "a", place)
        real, count = os.fsync, [0]

        def full(file, count=count, k=k, real=real):
            count[0] += 1
            if count[0] > k:
                raise OSError(28, "No space left on device")
            return real(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                ft.run(long, out=place, resume=True)
            except ft.FedtaperError as trouble:
                assert "No space left" in str(trouble)
        if count[0] <= k:
            break
        if store.is_complete(place):  # still the short run, or already the long one
            found = ft.load(place)
            assert found.experiment.rounds in (20, 40)
            np.testing.assert_array_equal(found.w[:20], first.w)
        same(ft.run(long, out=place, resume=True), ft.run(long))
    assert count[0] <= k


def test_a_run_that_cannot_be_stored_is_not_lost(tmp_path, monkeypatch):
    e = experiment()

    def broken(*words, **how):
        raise RuntimeError("a bug while storing")

    with monkeypatch.context() as patch:
        patch.setattr(store, "to_toml", broken)
        with pytest.raises(RuntimeError):
            ft.run(e, out=tmp_path / "a")
    saved = store.load_checkpoint(tmp_path / "a")
    assert int(saved["state_round"]) == e.rounds
    same(ft.run(e, out=tmp_path / "a", resume=True), ft.run(e))


def test_two_writers_do_not_mix(tmp_path):
    e = experiment(20_000)
    out, told = tmp_path / "a", []

    def go(seed):
        try:
            ft.run(replace(e, seed=seed), out=out, progress=False)
            told.append(seed)
        except ft.FedtaperError as trouble:
            told.append(str(trouble))

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [word for word in told if isinstance(word, int)]
    refused = [word for word in told if isinstance(word, str)]
    assert [w for w in refused if "another run" not in w and "exists" not in w] == []
    assert ft.load(out).experiment.seed == won


def test_names_of_many_runs_stay_in_their_folder(tmp_path):
    e = experiment(2)
    for name in ("../out", "a/b", "", "..", "x\0y", 3):
        with pytest.raises(ft.FedtaperError, match="cannot name a run"):
            ft.run_many({name: e}, out=tmp_path / "many")
    ft.run_many({"a": e}, out=tmp_path / "many")
    with pytest.raises(ft.FedtaperError, match="seed: 0 -> 1"):
        ft.run_many({"a": replace(e, seed=1)}, out=tmp_path / "many")


# ------------------------------------------------------------------ processes

SCRIPT = """
import fedtaper as ft
from fedtaper import engines
from fedtaper.simulation import drive
drive.CHECKPOINT_SECONDS, engines.BLOCK_SAMPLES = {every}, 1e4
ft.run(ft.read_toml("{file}"), out="{out}", resume=True, progress=False, engine="reference")
"""
LONG = FILE.replace("rounds = 30", "rounds = 400000")


def started(tmp_path, every=0.0, command=None, text=LONG):
    (tmp_path / "e.toml").write_text(text)
    script = SCRIPT.format(file=tmp_path / "e.toml", out=tmp_path / "run", every=every)
    words = command or [sys.executable, "-c", script]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(path, process):
    end = time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def test_sigterm_stores_the_rounds_made(tmp_path):
    """As Slurm and Kubernetes send it; without a checkpoint before."""
    process = started(tmp_path, every=1e9)
    wait_for(tmp_path / "run" / ".lock", process)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
    saved = store.load_checkpoint(tmp_path / "run")
    assert saved is not None and int(saved["state_round"]) > 0


def test_the_command_says_that_it_was_stopped(tmp_path):
    command = [sys.executable, "-m", "fedtaper", "run", str(tmp_path / "e.toml"), "--engine",
               "reference", "--out",
               str(tmp_path / "run")]  # fmt: skip
    process = started(tmp_path, command=command)
    wait_for(tmp_path / "run" / ".lock", process)
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    again = f"repeat the command with --resume to continue in {tmp_path / 'run'}"
    assert told.decode() == f"error: stopped: {again}\n"


def test_ctrl_c_during_the_import_leaves_no_trace(tmp_path):
    words = [sys.executable, "-X", "importtime", "-c", "import fedtaper_command as c; c.main()"]
    process = started(tmp_path, command=words)
    for line in process.stderr:  # wait until the import is well under way
        if b"numpy" in line:
            process.send_signal(signal.SIGINT)
            break
    _, told = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert b"Traceback" not in told and b"KeyboardInterrupt" not in told


def test_killed_at_any_instant_a_run_goes_on_to_the_same_bits(tmp_path):
    """A few kills; ``make torture`` makes hundreds."""
    rng = np.random.default_rng(0)
    text = FILE.replace("rounds = 30", "rounds = 4000")
    kills = 0
    while kills < 6:
        process = started(tmp_path, text=text)
        wait_for(tmp_path / "run" / ".lock", process)
        time.sleep(float(rng.uniform(0, 0.6)))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        kills += 1
        if store.is_complete(tmp_path / "run"):
            break
    e = ft.read_toml(tmp_path / "e.toml")
    how = {"progress": False, "engine": "reference"}
    same(ft.run(e, out=tmp_path / "run", resume=True, **how), ft.run(e, **how))


# ------------------------------------------------------------------ a machine of all of it


class Folder(RuleBasedStateMachine):
    """Any order of running, stopping, resuming, adding rounds, loading and damaging."""

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed):
        import tempfile

        self.base = Path(tempfile.mkdtemp(prefix="fedtaper-test-"))
        self.out = self.base / "run"
        self.seed, self.rounds, self.done = seed, 15, False

    def e(self, rounds=None, **how):
        return experiment(rounds or self.rounds, seed=self.seed, **how)

    @rule(checkpoints_made=st.integers(1, 3))
    def stop(self, checkpoints_made):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
            patch.setattr("fedtaper.engines.BLOCK_SAMPLES", 120)
            real, calls = checkpoints.save_checkpoint, []

            def interrupted(*words):
                real(*words)
                calls.append(1)
                if len(calls) == checkpoints_made:
                    raise KeyboardInterrupt

            patch.setattr(checkpoints, "save_checkpoint", interrupted)
            try:
                ft.run(self.e(), out=self.out, resume=True, progress=False)
                self.done = True
            except KeyboardInterrupt:
                pass

    @rule()
    def finish(self):
        same(ft.run(self.e(), out=self.out, resume=True, progress=False), ft.run(self.e()))
        self.done = True

    @rule(more=st.integers(1, 12))
    def extend(self, more):
        self.rounds += more
        self.done = False

    @rule()
    def another_experiment(self):
        if self.out.exists() and (store.is_complete(self.out) or checkpoint_of(self.out)):
            with pytest.raises(ft.FedtaperError, match="local_steps: 2 -> 3"):
                ft.run(self.e(local_steps=3), out=self.out, resume=True, progress=False)

    @rule()
    def damage_the_last_checkpoint(self):
        last, before = (self.out / n for n in (checkpoints.CHECKPOINT, checkpoints.PREVIOUS))
        if last.is_file() and before.is_file():
            last.write_bytes(last.read_bytes()[:-30])
            with pytest.warns(ft.FedtaperWarning, match="before it"):
                store.load_checkpoint(self.out)
            last.unlink()

    @invariant()
    def what_is_there_is_right(self):
        if hasattr(self, "out") and store.is_complete(self.out):
            found = ft.load(self.out)
            whole = ft.run(found.experiment, progress=False)
            same(found, whole)

    def teardown(self):
        if hasattr(self, "base"):
            shutil.rmtree(self.base)


def checkpoint_of(out):
    return (out / checkpoints.CHECKPOINT).is_file() or (out / checkpoints.PREVIOUS).is_file()


Folder.TestCase.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
TestFolder = Folder.TestCase
