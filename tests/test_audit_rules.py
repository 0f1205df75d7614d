"""Challenges with other local rules: covered, or refused in one line with what to do."""

import numpy as np
import pytest

import fedtaper as ft

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")


def federation(dropout=0.0, **how):
    """Five sites of the wine data; the first one fades."""
    found = datasets.load_wine()
    x = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    parts = np.array_split(np.random.default_rng(0).permutation(len(x))[:160], 5)
    data = [(torch.tensor(x[p], dtype=torch.float32), torch.tensor(found.target[p])) for p in parts]

    def network():
        layers = [torch.nn.Linear(13, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3))

    def loss(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y)

    settings = {"rounds": 60, "local_epochs": 4, "batch_size": 16, "challenges": ft.Challenges()}
    settings["behaviours"] = {0: ft.OtherSchedule(ft.Power(0.1, 1.0))}
    return ft.Experiment(ft.Custom(loss, network, data), ft.Power(0.1, 0.76), **settings | how)


@pytest.mark.parametrize(
    "how",
    [{"local": ft.Proximal(0.1)}, {"local": ft.Momentum(0.9, reset=True)}, {"dropout": 0.2}],
    ids=["proximal", "momentum", "dropout"],
)
def test_who_fades_is_found_and_nobody_else(how):
    found = ft.audit(ft.run(federation(**how), progress=False))
    assert [c.client for c in found.accused] == [0]
    assert found.clients[0].delta_low < 1.0 < found.clients[0].delta_high


def test_absent_clients_are_asked_when_they_are_there():
    run = ft.run(federation(participation=0.6, rounds=40), progress=False)
    there = run.experiment.present(0, 40, 0)[run.challenges.round - 1]
    assert np.all(np.isfinite(run.challenges.size) == there)
    assert not [c for c in ft.audit(run).accused if c.client > 0]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"local": ft.Momentum()}, "reset=True"),
        ({"delays": ft.FixedDelay(1), "behaviours": {}}, "leave out delays"),
        ({"own_clock": True, "participation": 0.5, "behaviours": {}}, "own_clock"),
    ],
)
def test_what_is_not_covered_is_refused_with_what_to_do(how, what):
    with pytest.raises(ft.FedtaperError, match=what):
        ft.run(federation(**how), progress=False)
