"""Replays of a user's own model on data that the server holds."""

import numpy as np
import pytest

import fedtaper as ft

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")


def network():
    return torch.nn.Sequential(torch.nn.Linear(13, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def wine():
    """Six sites, and a seventh part for the server."""
    found = datasets.load_wine()
    x = (found.data - found.data.mean(axis=0)) / found.data.std(axis=0)
    parts = np.array_split(np.random.default_rng(0).permutation(len(x))[:175], 7)
    data = [(torch.tensor(x[p], dtype=torch.float32), torch.tensor(found.target[p])) for p in parts]
    return data[:6], data[6]


@pytest.fixture(scope="module")
def made():
    sites, server = wine()
    e = ft.Experiment(
        ft.Custom(loss, network, sites), ft.Power(0.1, 0.76), rounds=60, local_epochs=3,
        batch_size=25, behaviours={5: ft.OtherSchedule(ft.Power(0.1, 1.0))},
    )  # fmt: skip
    return ft.run(e, updates=True, progress=False), server


def test_who_fades_is_found_and_nobody_else(made):
    run, server = made
    assert {c.verdict for c in ft.audit(run).clients} == {"cannot tell"}
    found = ft.audit(run, held_out=ft.HeldOut.replayed(run, server))
    assert [c.client for c in found.accused] == [5]


def test_replays_on_the_sites_own_data_are_what_they_sent(made):
    """Up to which samples are drawn: batches of the server are drawn with replacement."""
    run, _ = made
    held = ft.HeldOut.replayed(run, list(run.experiment.problem.client_data))
    seen = np.isfinite(held.sizes[0, :, 0])
    honest = np.arange(5)
    ratio = held.sizes[0][seen][:, honest] / run.update_norms[seen][:, honest]
    assert np.exp(np.log(ratio).mean()) == pytest.approx(1, abs=0.03)
    assert np.log(ratio).std() < 0.15
    n = float(run.n[-1])
    faster = held.sizes[1][seen][:, honest] / held.sizes[0][seen][:, honest]
    assert np.all(faster[-1] < n**-0.2) and np.all(faster > n**-0.3)


def test_what_cannot_be_replayed_is_refused_in_one_line(made):
    run, server = made
    with pytest.raises(ft.FedtaperError, match="2 entries for 6 clients"):
        ft.HeldOut.replayed(run, [server, server])
    plain = ft.Experiment(ft.LinearRegression(num_clients=2), ft.Power(0.01, 0.76), rounds=3,
                          local_steps=2)  # fmt: skip
    with pytest.raises(ft.FedtaperError, match="need Custom"):
        ft.HeldOut.replayed(ft.run(plain, progress=False), server)
