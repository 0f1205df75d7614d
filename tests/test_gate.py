"""Wrong arguments are refused in one line, before any work."""

import dataclasses

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.core.protocols import Engine, Options
from fedtaper.engines import gate, registry

STEP = ft.Power(0.01, 0.8)


def experiment(tiny, **how):
    settings = {"rounds": 3, "local_steps": 2, "batch_size": 4} | how
    return ft.Experiment(tiny, settings.pop("schedules", STEP), **settings)


WRONG = [None, 3, -1.5, "nonsense", "fedprox", object(), [], {}, (1, "x"), ft.Sgd, float("nan")]


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ft.Experiment)])
@pytest.mark.parametrize("value", WRONG, ids=map(str, range(len(WRONG))))
def test_no_raw_error_from_a_wrong_setting(tiny, name, value):
    settings = {"problem": tiny, "schedules": STEP, "rounds": 3, "local_steps": 2, "batch_size": 4}
    try:
        e = ft.Experiment(**settings | {name: value})
        ft.run(e, progress=False)
    except ft.FedtaperError as trouble:
        assert "\n" not in str(trouble)


@pytest.mark.parametrize(
    "name", ["seeds", "engine", "device", "precision", "thin", "resume", "out", "updates"]
)
@pytest.mark.parametrize("value", WRONG[1:], ids=map(str, range(1, len(WRONG))))
def test_no_raw_error_from_a_wrong_argument_of_run(tiny, tmp_path, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    try:
        ft.run(experiment(tiny), **{"progress": False, name: value})
    except ft.FedtaperError as trouble:
        assert "\n" not in str(trouble)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"precision": "nonsense"}, ["precision", "bf16"]),
        ({"precision": "float32"}, ["precision", "cuda"]),
        ({"device": "cuda"}, ["cpu", "no GPU engine"]),
        ({"device": "tpu"}, ["device", "cuda"]),
        ({"engine": "cpu"}, ["LinearRegression", "compiled"]),
        ({"engine": "compield"}, ["did you mean 'compiled'"]),
        ({"engine": object()}, ["protocols.Engine"]),
        ({"engine": ft.Sgd}, ["protocols.Engine"]),
        ({"engine": "flower", "seeds": [1, 2]}, ["one seed"]),
    ],
)
def test_what_an_engine_cannot_do_is_one_line(tiny, tmp_path, how, words):
    with pytest.raises(ft.FedtaperError) as found:
        ft.run(experiment(tiny), out=tmp_path / "run", **how)
    assert all(word in str(found.value) for word in words) and "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()  # refused before any work


def test_attackers_on_flower_are_refused_before_any_work(tiny, tmp_path):
    e = experiment(tiny, behaviours={0: ft.Idle()})
    with pytest.raises(ft.FedtaperError, match=r"does not simulate behaviours=.*compiled"):
        ft.run(e, engine="flower", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_precision_on_the_cpu_names_the_gpu():
    problem = ft.ImageClassification("digits", model="cnn", num_clients=2)
    e = ft.Experiment(problem, STEP, rounds=1, local_epochs=1, batch_size=32)
    with pytest.raises(ft.FedtaperError, match=r'no precision .float32.: .*device="cuda"'):
        ft.run(e, precision="float32")


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_engine_has_the_one_shape(name):
    engine = registry.get(name)
    assert isinstance(engine, Engine) and engine.name == name


def test_the_table_has_a_row_for_every_capability():
    rows = gate.table()
    assert rows[0][1 : 1 + len(registry.BUILT_IN)] == list(registry.BUILT_IN)
    assert all(len(row) == len(rows[0]) for row in rows)


def test_the_quickest_engine_that_can_is_chosen(tiny):
    class Own(ft.Memoryless):
        def direction(self, gradient, w, anchor):
            return np.sign(gradient)

    options = Options()
    assert gate.choose(experiment(tiny), None, options).name == "compiled"
    assert gate.choose(experiment(tiny, local=Own()), None, options).name == "reference"
    with pytest.raises(ft.FedtaperError, match="reference"):
        gate.choose(experiment(tiny, local=Own()), "compiled", options)


def test_a_third_party_engine_comes_by_entry_point(tiny, monkeypatch):
    class Entry:
        name = "mine"

        def load(self):
            return registry.get("reference")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()])
    assert "mine" in registry.names()
    run = ft.run(experiment(tiny), engine="mine")
    np.testing.assert_array_equal(run.w, ft.run(experiment(tiny), engine="reference").w)
