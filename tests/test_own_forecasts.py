"""Forecasts of a user's own network end, and say what they cannot tell."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.datasets import load_iris
from torch.nn.functional import cross_entropy

import fedtaper as ft
from fedtaper.theory import forecast as forecasting

X, Y = load_iris(return_X_y=True)
X = ((X - X.mean(0)) / X.std(0)).astype("float32")
DATA = [(X[i:100:2], Y[i:100:2]) for i in range(2)]  # two classes: they can be separated


def loss(model, x, y):
    return cross_entropy(model(x), y) + 0.05 * sum((p**2).sum() for p in model.parameters())


def experiment(*layers):
    problem = ft.Custom(loss, lambda: torch.nn.Sequential(*layers), DATA)
    return ft.Experiment(problem, ft.Power(0.3, 0.8), rounds=20, local_steps=2, batch_size=10)


LINEAR = torch.nn.Linear(4, 2)
DROPOUT = (torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 2))
RELU = (torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))


def test_forecasts_of_networks_end_and_say_what_they_cannot():
    e = experiment(LINEAR)
    near = ft.forecast(e, n=2000)
    best = ft.run(replace(e, rounds=1000, batch_size=50)).final
    assert near.note == "" and np.allclose(near.w, best, atol=0.05)
    found = ft.forecast(experiment(*DROPOUT), n=1e9)
    assert (
        "dropout" in found.note and np.isnan(found.w).all() and found.influence.tolist() == [1, 1]
    )


def test_a_forecast_that_takes_long_is_given_up(monkeypatch):
    monkeypatch.setattr(forecasting, "PATIENCE", 0.2)
    found = ft.forecast(experiment(*RELU), n=1e12)
    assert "takes more than 0.2 s" in found.note
