"""``fedtaper new``: a Flower app that runs unchanged, with places for your own model and data."""

from __future__ import annotations

import importlib.util
import keyword
import shutil
import sys
from pathlib import Path

from fedtaper.core.errors import FedtaperError, writing
from fedtaper.deploy.app import app_name, pyproject
from fedtaper.storage import store

USED = {"fedtaper", "flwr", "grpc", "matplotlib", "numba", "numpy", "ray", "scipy", "torch"}
TASK = '''\
"""Our model and data. Replace the functions with your own; nothing else has to change."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from fedtaper import Task

SITES = ("north", "south", "west")


def model() -> torch.nn.Module:
    """A fresh network, without running statistics (GroupNorm instead of BatchNorm)."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def loss(network, x, y):
    """A mini-batch's mean loss, and the share of correct answers."""
    answers = network(x)
    return cross_entropy(answers, y), (answers.argmax(1) == y).float().mean()


def data(site: str):
    """This site's own data: here a third of the embedded digits; at your site, your files."""
    if site not in SITES:
        raise ValueError(f"site {site} is not in SITES: {', '.join(SITES)}")
    x, y = digits()
    mine = np.arange(len(y) - 400) % len(SITES) == SITES.index(site)
    return x[:-400][mine], y[:-400][mine]


def evaluate(network) -> dict[str, float]:
    """The shared model's score on data that the server holds."""
    x, y = digits()
    answers = network(x[-400:])
    return {
        "test_loss": cross_entropy(answers, y[-400:]).item(),
        "test_accuracy": (answers.argmax(1) == y[-400:]).float().mean().item(),
    }


def digits():
    """1,797 images of 8 x 8 pixels that come with scikit-learn."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)


task = Task(loss=loss, init=model, data=data, evaluate=evaluate)
'''
FEDERATION = """\
# Who takes part, and how much each site counts.

[experiment]
rounds = 5
local_epochs = 2
batch_size = 32

[problem]
kind = "custom"        # model and data are in task.py

[[schedules]]          # north: a_n = 0.5 / n^0.76
c = 0.5
delta = 0.76

[[schedules]]          # south and west: half of north's influence at every n
c = 0.25
delta = 0.76
clients = 2

[federation]
sites = ["north", "south", "west"]   # in the order of the schedules; the same as SITES in task.py
task = "{package}.task:task"
deadline = 300.0       # seconds a site has to answer in a round
quorum = 2             # answers that make a round count
max_growth = 100.0     # reject an update that is this many times a site's usual size
"""
README = """\
# {name}

A federation on Flower in which each site has its own tapering step size.

    pip install -e .                       # at the server and at every site

Try it on this machine, with the sites as processes:

    fedtaper run {package}/federation.toml --engine flower --out runs/first
    fedtaper report runs/first

The same with Flower's own command (it leaves a SuperLink running in the background; `out` names
the run folder; the first line stops it from downloading packages for every run):

    export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    flwr run . local --stream --federation-config 'num-supernodes=3' \\
      --run-config 'out="'$PWD'/runs/flwr"'

Rehearse the deployment, with real server and site processes, TLS and keys, on loopback:

    fedtaper deploy {package}/federation.toml --local 3 --out rehearsal

Write the scripts for your machines:

    fedtaper deploy {package}/federation.toml --host federation.example.org --out deployment

Your own model and data go into `{package}/task.py`, the sites and how much each counts into
`{package}/federation.toml`. Python and TOML files, this README and a LICENSE are sent to the
sites; other files only if `pyproject.toml` names them:

```toml
[tool.fedtaper]
include = ["{package}/labels.json"]
```
"""


def _refuse_shadows(package: str) -> None:
    """Refuse a package name that would hide a package that the app imports."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    known = package in USED or package in sys.stdlib_module_names or keyword.iskeyword(package)
    if known or (found is not None and found.origin is not None):
        raise FedtaperError(
            f"{package} is already the name of a Python package: choose another name"
        )


def new_app(name: str, folder: str | Path = ".") -> Path:
    """Write a complete app into a new folder of that name."""
    name = app_name(name)
    _refuse_shadows(name.replace("-", "_"))
    target = Path(folder) / name
    if target.exists():
        raise FedtaperError(f"{target} exists: choose another name")
    try:
        _write(target, name)
    except BaseException:  # a full disk: half an app would be in the way of the next try
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _write(target: Path, name: str) -> None:
    package = target / name.replace("-", "_")
    with writing(package):
        package.mkdir(parents=True)
    words = {"name": name, "package": package.name}
    store.write_text(package / "__init__.py", f'"""The federation {name}."""\n')
    store.write_text(package / "task.py", TASK)
    store.write_text(package / "federation.toml", FEDERATION.format(**words))
    store.write_text(target / "README.md", README.format(**words))
    federation = f"{package.name}:federation.toml"
    more = '", "fedtaper[torch]'
    store.write_text(target / "pyproject.toml", pyproject(name, federation, more))
