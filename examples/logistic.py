"""Logistic regression on your own arrays, beside its exact equilibrium from scikit-learn.

python examples/logistic.py
"""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import binary_cross_entropy_with_logits

import fedtaper as ft

rng = np.random.default_rng(0)
truth = [np.array([1.0, -1.0, 0.5]), np.array([-0.5, 1.0, 1.0]), np.array([0.0, 0.5, -1.0])]
x = [rng.normal(size=(300, 3)) for _ in truth]
y = [(rng.random(300) < 1 / (1 + np.exp(-a @ w))) * 1.0 for a, w in zip(x, truth, strict=True)]


def loss(model, x, y):
    return binary_cross_entropy_with_logits(model(x).squeeze(1), y)


def equilibrium(p):
    """The minimiser of sum p_i f_i: one fit in which client i's samples weigh p_i."""
    weights = np.repeat(p / np.sum(p), 300)
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    return fit.fit(np.concatenate(x), np.concatenate(y), sample_weight=weights)


problem = ft.Custom(loss, lambda: torch.nn.Linear(3, 1), list(zip(x, y, strict=True)))
plan = ft.plan([1, 0.3, 0.1], rounds=1000, local_steps=5, problem=problem, batch_size=50, c=6.0)
run = ft.run(plan.experiment)
exact = equilibrium(plan.experiment.influence().effective)
print(
    "federated:", run.w[-1].round(2), " exact:", exact.coef_[0].round(2), exact.intercept_.round(2)
)
print("one client alone would give:", equilibrium([1, 1e-9, 1e-9]).coef_[0].round(2))
