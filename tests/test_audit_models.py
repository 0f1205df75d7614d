"""No model but a quadratic one is judged by its updates alone: honest clients stay unaccused."""

import numpy as np
import pytest

import fedtaper as ft

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")


def sites(name, count, seed):
    """Standardised data of scikit-learn, dealt out evenly."""
    found = getattr(datasets, f"load_{name}")()
    x = (found.data - found.data.mean(axis=0)) / np.maximum(found.data.std(axis=0), 1e-9)
    order = np.random.default_rng(seed).permutation(len(x))
    return [
        (torch.tensor(x[part], dtype=torch.float32), torch.tensor(found.target[part]))
        for part in np.array_split(order, count)
    ]


def federation(name, hidden, seed=0, rounds=60, **how):
    data = sites(name, 4, seed)
    width, classes = data[0][0].shape[1], int(max(y.max() for _, y in data)) + 1

    def network():
        if not hidden:
            return torch.nn.Linear(width, classes)
        first, last = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, classes)
        return torch.nn.Sequential(first, torch.nn.ReLU(), last)

    def loss(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y)

    problem = ft.Custom(loss, network, data)
    settings = {"rounds": rounds, "local_epochs": 2, "batch_size": 16, "seed": seed} | how
    return ft.Experiment(problem, ft.Power(0.1, 0.76), **settings)


@pytest.mark.parametrize(("name", "hidden"), [("wine", 0), ("wine", 16), ("breast_cancer", 0)])
def test_honest_clients_of_other_models_are_not_accused(name, hidden):
    run = ft.run(federation(name, hidden), updates=True, progress=False)
    found = ft.audit(run)
    assert [c.verdict for c in found.clients] == ["cannot tell"] * 4
    assert not found.accused
    assert "challenges" in str(found) and "held-out" in str(found)
    by_sizes = ft.audit(run.update_norms, n=run.n, schedules=run.experiment.schedules)
    assert [c.verdict for c in by_sizes.clients] == ["cannot tell"] * 4


def test_what_directions_and_sizes_show_still_counts():
    lazy = {0: ft.Idle(), 1: ft.Noise(), 2: ft.Copies()}
    run = ft.run(federation("wine", 0, behaviours=lazy), updates=True, progress=False)
    verdicts = [c.verdict for c in ft.audit(run).clients]
    assert verdicts == ["idle", "noise", "copying", "cannot tell"]


def test_arrays_are_of_unknown_losses_unless_one_says_otherwise():
    n = 5.0 * np.arange(1, 61)
    sizes = np.outer(n**-1.0, np.ones(4))
    how = {"n": n, "schedules": [ft.Power(0.1, 0.76)] * 4}
    assert {c.verdict for c in ft.audit(sizes, **how).clients} == {"cannot tell"}
    assert "quadratic=True" in str(ft.audit(sizes, **how))
    told = {c.verdict for c in ft.audit(sizes, quadratic=True, **how).clients}
    assert "cannot tell" not in told
