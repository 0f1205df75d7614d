"""Four hospitals train one risk model: plan, run, store, plot, audit, predict."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import binary_cross_entropy_with_logits

import fedtaper as ft

SITES = ("north", "south", "east", "west")
x, y = load_breast_cancer(return_X_y=True)
x = StandardScaler().fit_transform(x).astype("float32")
patients = {site: (x[i:400:4], y[i:400:4].astype("float32")) for i, site in enumerate(SITES)}


def loss(model, x, y):
    return binary_cross_entropy_with_logits(model(x).squeeze(1), y)


def evaluate(model):
    return {"auc": roc_auc_score(y[400:], model(torch.tensor(x[400:])).squeeze(1))}


task = ft.Task(loss, lambda: torch.nn.Linear(30, 1), patients.get, evaluate)

if __name__ == "__main__":
    problem = ft.Custom(task.loss, task.init, [task.data(site) for site in SITES], task.evaluate)
    plan = ft.plan("client 3 counts 3x", rounds=40, local_epochs=1, problem=problem,
                   batch_size=20, names=SITES)  # fmt: skip
    run = ft.run(plan.experiment, out="hospitals")  # stores the model, too
    run.plot("hospitals.png")
    print(plan, ft.audit(run), sep="\n\n")
    print("risk of the first new patient:", run.module()(torch.tensor(x[400])).sigmoid().item())
