import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_file import FILE

import fedtaper as ft
from fedtaper import engines
from fedtaper.simulation import drive as simulate
from fedtaper.simulation import recorder
from fedtaper.storage import checkpoints, store

BASE = FILE.replace("rounds = 30", "rounds = 20")

schedule = st.one_of(
    st.builds(ft.Constant, a=st.floats(1e-6, 10)),
    st.builds(
        ft.Power, c=st.floats(1e-6, 10), delta=st.floats(0.751, 1.0), offset=st.floats(0, 1e3)
    ),
)
mean = st.one_of(
    st.builds(ft.Average, by=st.sampled_from(["uniform", "samples"])),
    st.builds(ft.Normalised, over=st.sampled_from(["steps", "step_sums"])),
)
optimisers = (ft.Adam, ft.Yogi, ft.Adagrad)
server = st.one_of(
    mean, *(st.builds(rule, eta=st.floats(0.01, 1), mean=mean) for rule in optimisers)
)
problem = st.builds(
    ft.LinearRegression,
    num_clients=st.just(3),
    dim=st.integers(1, 4),
    samples=st.one_of(st.integers(10, 99), st.tuples(*[st.integers(10, 99)] * 3)),
    snr_db=st.one_of(st.floats(-20, 60), st.just(math.inf)),
    seed=st.integers(0, 10**6),
)
experiments = st.builds(
    ft.Experiment,
    problem,
    st.lists(schedule, min_size=3, max_size=3),
    rounds=st.integers(1, 10**6),
    local_steps=st.one_of(st.integers(1, 9), st.tuples(*[st.integers(1, 9)] * 3)),
    batch_size=st.integers(1, 10),
    local=st.one_of(st.just(ft.Sgd()), st.builds(ft.Proximal, mu=st.floats(0, 5))),
    server=server,
    clock=st.sampled_from(["update", "round"]),
    participation=st.one_of(st.floats(0.1, 1), st.tuples(*[st.floats(0.1, 1)] * 3)),
    seed=st.integers(0, 10**6),
)


@given(experiments)
@settings(max_examples=60, deadline=None)
def test_toml_both_ways(e):
    text = ft.to_toml(e)
    assert ft.from_toml(text) == e
    assert ft.to_toml(ft.from_toml(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("rounds = 20", "ronuds = 20", "did you mean 'rounds'"),
        ("[problem]", "[probelm]", "did you mean 'problem'"),
        ("num_clients", "num_client", "did you mean 'num_clients'"),
        ("delta = 0.8", "dleta = 0.8", "did you mean 'delta'"),
        ("\nclients = 3\n", "\nclients = 2\n", "2 schedules for 3 clients"),
        ("delta = 0.8", "delta = -1", "delta must be"),
        ("c = 0.1", "c = nan", "c must be"),
        ("c = 0.1", 'c = "a"', "c must be"),
        ("samples = 50", "samples = 0", "samples"),
        ("samples = 50", "samples = [50, 0, 50]", "client 1"),
        ("local_steps = 3", "local_steps = 0", "local_steps"),
        ("local_steps = 3", "", "local_steps or local_epochs"),
        ("rounds = 20", "rounds = 2.5", "rounds must be a whole number"),
        ("rounds = 20", 'rounds = 20\nclock = "epoch"', "local_epochs"),
        ("rounds = 20", 'rounds = 20\npreset = "fedavgg"', "did you mean 'fedavg'"),
        ("rounds = 20", "rounds = 20\nparticipation = 2.0", "participation"),
        ('kind = "linear"', 'kind = "liner"', "did you mean 'linear'"),
        ("[[schedules]]", "[local]\nkind = 'sdg'\n[[schedules]]", "did you mean 'sgd'"),
        ("[[schedules]]", "[server]\nkind = 'adam'\neta = -1\n[[schedules]]", "eta"),
        ("rounds = 20", "rounds = ", "not valid TOML"),
        ('kind = "linear"', 'kind = "linear"\ndata = "none.npz"', "no data file"),
    ],
)
def test_mistakes_in_a_file_are_reported(old, new, text):
    with pytest.raises(ft.FedtaperError, match=text):
        ft.from_toml(BASE.replace(old, new))


def test_presets_in_a_file():
    e = ft.from_toml(BASE.replace("rounds = 20", 'rounds = 20\npreset = "fedprox"'))
    assert e.local == ft.Proximal(0.1)


def test_a_run_comes_back_as_it_was(tmp_path, tiny):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=12, local_steps=2, batch_size=4)
    run = ft.run(e, out=tmp_path / "one")
    back = ft.load(tmp_path / "one")
    assert back.experiment == e and back.seeds == run.seeds and not back.many
    for name, values in run.metrics.items():
        np.testing.assert_array_equal(back.metrics[name], values)
    for name in ("w", "w0", "n", "t", "round", "update_norms"):
        np.testing.assert_array_equal(getattr(back, name), getattr(run, name))
    notes = json.loads((tmp_path / "one/provenance.json").read_text())
    assert {"fedtaper", "command", "seeds", "engine", "time"} <= set(notes)
    lines = (tmp_path / "one/metrics.csv").read_text().splitlines()
    assert len(lines) == 13 and lines[0].startswith("round,n,t,")
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    assert float(last["error"]) == run.metrics["error"][-1]
    many = ft.run(e, seeds=range(3), out=tmp_path / "many")
    np.testing.assert_array_equal(ft.load(tmp_path / "many").w, many.w)


def test_own_data_is_kept_with_the_run_only_when_asked(tmp_path, tiny):
    problem = ft.LinearRegression.from_arrays(tiny.x, tiny.y)
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=3, local_steps=2, batch_size=4)
    run = ft.run(e)
    store.save(run, store.prepare(tmp_path / "own"), data=True)
    back = ft.load(tmp_path / "own").experiment.problem
    np.testing.assert_array_equal(back.x[1], tiny.x[1])
    store.save(run, store.prepare(tmp_path / "without"))
    assert not (tmp_path / "without/data.npz").exists()
    assert ft.load(tmp_path / "without").experiment.problem.sizes.tolist() == [40] * 3
    assert ft.load(tmp_path / "without", problem=problem).experiment == e
    with pytest.raises(ft.FedtaperError, match="data="):
        ft.to_toml(e)


def test_data_from_csv_files(tmp_path):
    for i in range(3):
        rows = np.random.default_rng(i).normal(size=(50, 3))
        np.savetxt(tmp_path / f"site{i}.csv", rows, delimiter=",")
    (tmp_path / "e.toml").write_text(
        BASE.replace('kind = "linear"\nnum_clients = 3\nsamples = 50\nfeature_spread = 1.0',
                     'kind = "linear"\ndata = "."')
    )  # fmt: skip
    assert ft.read_toml(tmp_path / "e.toml").problem.dim == 2
    (tmp_path / "site1.csv").write_text("1,2,x\n")
    with pytest.raises(ft.FedtaperError, match="cannot be read as numbers"):
        ft.read_toml(tmp_path / "e.toml")


def test_folders_are_guarded(tmp_path, tiny):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=2, local_steps=1, batch_size=4)
    ft.run(e, out=tmp_path / "a")
    with pytest.raises(ft.FedtaperError, match="exists"):
        ft.run(e, out=tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(ft.FedtaperError, match="is a file"):
        ft.run(e, out=tmp_path / "file")
    with pytest.raises(ft.FedtaperError, match="not writable"):
        ft.run(e, out="/proc/nothing/here")
    with pytest.raises(ft.FedtaperError, match="no finished run"):
        ft.load(tmp_path / "none")
    (tmp_path / "a/run.npz").write_bytes(b"broken")
    with pytest.raises(ft.FedtaperError, match="damaged"):
        ft.load(tmp_path / "a")


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path, tiny, monkeypatch):
    e = ft.Experiment(
        tiny, ft.Power(0.1, 0.8), rounds=50, local_steps=2, batch_size=4, server=ft.Adam()
    )
    whole = ft.run(e, seeds=[0, 1], out=tmp_path / "whole")
    monkeypatch.setattr(engines, "BLOCK_SAMPLES", 100)  # many blocks
    monkeypatch.setattr(simulate, "CHECKPOINT_SECONDS", -1.0)
    real, calls = checkpoints.save_checkpoint, []

    def stop_at_third(*arguments):
        real(*arguments)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt  # as a second Ctrl-C does

    monkeypatch.setattr(checkpoints, "save_checkpoint", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        ft.run(e, seeds=[0, 1], out=tmp_path / "cut")
    assert (tmp_path / "cut/checkpoint.npz").is_file() and not store.is_complete(tmp_path / "cut")
    with pytest.raises(ft.FedtaperError, match="unfinished"):
        ft.load(tmp_path / "cut")
    with pytest.raises(ft.FedtaperError, match="other seeds"):
        ft.run(e, seeds=[0, 2], out=tmp_path / "cut", resume=True)
    monkeypatch.setattr(checkpoints, "save_checkpoint", real)
    again = ft.run(e, seeds=[0, 1], out=tmp_path / "cut", resume=True)
    np.testing.assert_array_equal(again.w, whole.w)
    np.testing.assert_array_equal(again.metrics["change"], whole.metrics["change"])
    assert not (tmp_path / "cut/checkpoint.npz").exists()
    loaded = ft.run(e, seeds=[0, 1], out=tmp_path / "cut", resume=True)  # finished: just loaded
    np.testing.assert_array_equal(loaded.w, whole.w)


def test_a_full_disk_is_reported_and_leaves_no_half_file(tmp_path, tiny, monkeypatch):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=2, local_steps=1, batch_size=4)

    def full(place):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ft.FedtaperError, match="No space left"):
        ft.run(e, out=tmp_path / "a")
    assert [p.name for p in (tmp_path / "a").iterdir()] == []


def test_wrong_calls_of_run_are_refused(tiny):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=2, local_steps=1, batch_size=4)
    for how, text in (
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": [-1]}, "seed"),
        ({"engine": "compield"}, "did you mean 'compiled'"),
        ({"resume": True}, "needs out="),
        ({"thin": 0}, "thin"),
    ):
        with pytest.raises(ft.FedtaperError, match=text):
            ft.run(e, **how)


def test_own_rule_runs_on_the_reference_engine(tiny):
    class Clipped(ft.Memoryless):
        def direction(self, gradient, w, anchor):
            return np.clip(gradient, -1, 1)

    e = ft.Experiment(
        tiny, ft.Power(0.1, 0.8), rounds=5, local_steps=1, batch_size=4, local=Clipped()
    )
    assert ft.run(e).engine == "reference"
    with pytest.raises(ft.FedtaperError, match="reference"):
        ft.run(e, engine="compiled")


def test_thinning_wider_than_a_block(tiny, monkeypatch):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=50, local_steps=2, batch_size=4)
    whole = ft.run(e)
    monkeypatch.setattr(engines, "BLOCK_SAMPLES", 100)
    thinned = ft.run(e, thin=20)
    assert list(thinned.round) == [20, 40, 50]
    np.testing.assert_array_equal(thinned.w, whole.w[[19, 39, 49]])


def test_the_record_of_a_large_batch_is_thinned(tiny, monkeypatch):
    monkeypatch.setattr(recorder, "KEEP_BYTES", 10_000)
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=100, local_steps=1, batch_size=4)
    run = ft.run(e, seeds=range(4))
    assert len(run.round) < 40 and run.round[-1] == 100
    assert run.w.nbytes + run.update_norms.nbytes < 15_000
