"""The trained model: as a vector, a module, named tensors, a file; and predictions with it."""

import numpy as np
import pytest
import torch
from test_cli import fedtaper
from test_own_data import Mixed, arrays, custom, experiment

import fedtaper as ft
from fedtaper.storage import tensors


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    problem = custom(
        [arrays(c) for c in range(2)],
        init=Mixed,
        evaluate=lambda m: {"at": float(m(torch.ones(3)))},
    )
    return ft.run(experiment(problem), out=tmp_path_factory.mktemp("runs") / "run")


def test_the_module_predicts_what_was_evaluated(made):
    module = made.module()
    assert not module.training
    assert float(module(torch.ones(3))) == pytest.approx(made.metrics["at"][-1], rel=1e-6)
    assert np.array_equal(made.final, made.w[-1])


def test_the_file_holds_frozen_weights_and_buffers_too(made):
    found = tensors.read(made.path / "model.safetensors")
    named = made.state_dict()
    assert sorted(found) == sorted(named) and "scale" in found and "frozen.weight" in found
    again = Mixed()
    again.load_state_dict({name: torch.from_numpy(a) for name, a in found.items()})
    x = torch.randn(5, 3)
    assert torch.equal(again.eval()(x), made.module()(x))


def test_export(made, tmp_path):
    done = fedtaper("export", made.path, "--out", "home.safetensors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tensors" in done.stdout and (tmp_path / "home.safetensors").is_file()
    none = fedtaper("export", tmp_path, cwd=tmp_path)
    assert none.returncode == 2 and "no model.safetensors" in none.stderr


def test_regression_and_many_seeds(tmp_path):
    problem = ft.LinearRegression(num_clients=2, samples=60)
    e = ft.Experiment(problem, ft.Power(0.05, 0.8), rounds=3, local_steps=1)
    run = ft.run(e, out=tmp_path / "run")
    assert np.array_equal(tensors.read(tmp_path / "run/model.safetensors")["w"], run.final)
    many = ft.run(e, seeds=[4, 7])
    assert np.array_equal(many.state_dict(seed=7)["w"], many.w[1, -1])
    with pytest.raises(ft.FedtaperError, match="one of this run"):
        many.state_dict()
    with pytest.raises(ft.FedtaperError, match="a torch module"):
        run.module()
    pytest.importorskip("pandas")
    frame = many.to_frame()
    assert len(frame) == 6 and frame["seed"].tolist() == [4, 4, 4, 7, 7, 7]


def test_a_loaded_run_keeps_its_tensors_by_name(made):
    loaded = ft.load(made.path)
    assert loaded.experiment.problem.kind == "recorded"
    mine = made.state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, mine[name])
    assert list(loaded.state_dict()) == sorted(mine)
    with pytest.raises(ft.FedtaperError, match=r"give the problem, ft\.load"):
        loaded.module()
    again = ft.load(made.path, problem=made.experiment.problem)
    assert all(torch.equal(t, mine[n]) for n, t in again.module().state_dict().items())
