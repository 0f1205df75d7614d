"""The published methods by name: nothing but combinations of a local and a server rule.

>>> import fedtaper as ft
>>> ft.PRESETS["fedprox"]
{'local': Proximal(mu=0.1), 'server': Average(by='uniform')}

Use one as ``ft.Experiment(problem, schedules, rounds=100, local_steps=5, **ft.PRESETS["fedavg"])``.
FedSGD is FedAvg with one local update per round.
"""

from __future__ import annotations

from typing import Any

from fedtaper.rules.control import Controlled, Dynamic, DynamicServer, Scaffold
from fedtaper.rules.local import Proximal, Sgd
from fedtaper.rules.momentum import AdamW, Momentum
from fedtaper.rules.server import Adagrad, Adam, Average, AverageMomentum, Normalised, Yogi

PRESETS: dict[str, dict[str, Any]] = {
    "fedsgd": {"local": Sgd(), "server": Average(), "local_steps": 1},
    "fedavg": {"local": Sgd(), "server": Average()},
    "fedprox": {"local": Proximal(mu=0.1), "server": Average()},
    "fednova": {"local": Sgd(), "server": Normalised()},
    "fedadagrad": {"local": Sgd(), "server": Adagrad()},
    "fedadam": {"local": Sgd(), "server": Adam()},
    "fedyogi": {"local": Sgd(), "server": Yogi()},
    "fedavgm": {"local": Sgd(), "server": AverageMomentum()},
    "momentum": {"local": Momentum(), "server": Average()},
    "nesterov": {"local": Momentum(nesterov=True), "server": Average()},
    "adamw": {"local": AdamW(), "server": Average()},
    "scaffold": {"local": Scaffold(), "server": Controlled()},
    "feddyn": {"local": Dynamic(), "server": DynamicServer()},
}
