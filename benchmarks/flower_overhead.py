"""What a round costs above Flower's own floor, and how many models the server holds.

    python benchmarks/flower_overhead.py [--clients 10] [--rounds 8] [--megabytes 26]
    python benchmarks/flower_overhead.py --memory [--clients 3]

The floor: clients that send the weights back as they are, and Flower's own FedAvg, which averages
them. Ours: clients that send them back as their update, and whole rounds of ``fedtaper.run``: the
clock, a check of every answer, aggregation, and a checkpoint on disk each round. In one Flower
simulation, a round of one after a round of the other, so that both meet the same machine.

``--memory`` starts a real federation on loopback twice, with this model and with a tiny one, and
compares the peak memory of the ServerApp's process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fedtaper as ft
from fedtaper import store
from fedtaper.engines.flower import client, simulation
from fedtaper.engines.flower.roster import Roster
from fedtaper.engines.flower.rounds import Rounds, event_log
from fedtaper.engines.flower.source import PickledSource


class Flat(torch.nn.Module):
    """A model that is only weights: next to no work."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(count))


def experiment(clients: int, rounds: int, count: int) -> ft.Experiment:
    problem = ft.Custom(
        loss=lambda model, x: (model.w[:8] * x.mean()).sum(),
        init=lambda: Flat(count),
        client_data=[torch.ones(4)] * clients,
    )
    return ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=rounds, local_steps=1, batch_size=4)


def client_app(source):
    """Sites that send back what they get: to the floor as it is, to ours as an update."""
    app = ClientApp()

    @app.query()
    def query(message, context):
        return client.describe(message, context, source)

    @app.train()
    def train(message, context):
        client._updates = lambda e, w, a, *place: (w, {})
        return client.train(message, context, source)

    @app.evaluate()
    def echo(message, context):
        content = RecordDict(
            {
                "arrays": message.content["arrays"],
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        return Message(content, reply_to=message)

    return app


def floor_round(grid, strategy, arrays) -> tuple[float, float]:
    """Seconds of a round by Flower's own FedAvg, and of its messages alone."""
    began = time.perf_counter()
    messages = [
        Message(m.content, m.metadata.dst_node_id, MessageType.EVALUATE)
        for m in strategy.configure_train(1, arrays, ConfigRecord(), grid)
    ]
    replies = list(grid.send_and_receive(messages))
    sent = time.perf_counter() - began
    assert len(replies) == len(list(grid.get_node_ids()))
    made, _ = strategy.aggregate_train(1, replies)
    made.to_numpy_ndarrays()
    return time.perf_counter() - began, sent


class Interleaved(Rounds):
    """Before each round of ours, one of the floor's."""

    def __init__(self, *words) -> None:
        super().__init__(*words)
        self.floor: list[tuple[float, float]] = []
        self.strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=len(words[1].sites)
        )
        self.ours: list[float] = []

    def start(self, e, state):
        """Time both."""
        session = super().start(e, state)
        advance = session.advance
        self.last = 0.0

        def timed(rounds):
            if self.last:  # a round of ours ends where the next begins: checkpoint and all
                self.ours.append(time.perf_counter() - self.last)
            self.floor.append(floor_round(self.grid, self.strategy, ArrayRecord([session.w])))
            self.last = time.perf_counter()
            return advance(rounds)

        session.advance = timed
        return session


def overhead(clients: int, rounds: int, count: int) -> None:
    e = experiment(clients, rounds, count)
    federation = ft.Federation(tuple(f"site-{i}" for i in range(clients)))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        source = PickledSource(simulation._pickled(e, federation, Path(folder)))
        app = ServerApp()

        @app.main()
        def main(grid, context):
            out = store.prepare(Path(folder) / "run")
            roster = Roster(grid, federation, event_log(out, print))
            roster.wait(60, clients)
            engine = Interleaved(grid, federation, roster)
            ft.run(replace(e), engine=engine, out=out, progress=False)
            found.append((engine.floor, engine.ours))

        with simulation._quiet():
            simulation._flower()(
                server_app=app,
                client_app=client_app(source),
                num_supernodes=clients,
                backend_config=simulation._backend(clients),
            )
    floor, bare = np.array(found[0][0][1:-1]).T
    ours = np.array(found[0][1][1:])
    size = 4 * count / 1e6
    print(f"{clients} clients, {size:.0f} MB of weights, {len(ours)} rounds of each, in turn")
    for name, row in (("messages", bare), ("FedAvg", floor), ("ours", ours)):
        print(f"{name:9s} median {np.median(row):.3f} s   best {row.min():.3f} s")
    print(f"ours / FedAvg: medians {np.median(ours) / np.median(floor):.3f}, ", end="")
    print(f"best {ours.min() / floor.min():.3f}")


TASK = """
import torch
from fedtaper import Task

class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros({count}))

task = Task(
    loss=lambda model, x: (model.w[:8] * x.mean()).sum(),
    init=Flat,
    data=lambda site: torch.ones(4),
)
"""
FEDERATION = """
[experiment]
rounds = 3
local_steps = 1
batch_size = 4
[problem]
kind = "custom"
[[schedules]]
c = 0.1
delta = 0.8
clients = {clients}
[federation]
sites = [{sites}]
task = "flat.task:task"
"""


FLOOR = """
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
import fedtaper.engines.flower.apps, torch

server_app = ServerApp()
client_app = ClientApp()

@client_app.train()
def train(message, context):
    arrays = message.content["arrays"]
    told = MetricRecord({{"num-examples": 1}})
    return Message(RecordDict({{"arrays": arrays, "metrics": told}}), reply_to=message)

@server_app.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes={clients},
                      min_available_nodes={clients})
    strategy.start(grid, ArrayRecord([np.zeros({count}, np.float32)]), num_rounds=3)
    out = Path(context.run_config["out"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.npz").touch()
"""


def peak(clients: int, count: int, floor: bool = False) -> float:
    """Peak memory of the ServerApp's process in MB."""
    from fedtaper.deploy import processes
    from fedtaper.deploy.local import LocalFederation
    from fedtaper.deploy.scaffold import new_app

    with tempfile.TemporaryDirectory() as folder:
        app = new_app("flat", folder)
        (app / "flat" / "task.py").write_text(TASK.format(count=count))
        sites = ", ".join(f'"site-{i}"' for i in range(clients))
        file = app / "flat" / "federation.toml"
        file.write_text(FEDERATION.format(clients=clients, sites=sites))
        if floor:
            (app / "flat" / "floor.py").write_text(FLOOR.format(clients=clients, count=count))
            settings = (app / "pyproject.toml").read_text()
            ours = "fedtaper.engines.flower.apps:"
            (app / "pyproject.toml").write_text(settings.replace(ours, "flat.floor:"))
        with LocalFederation(file, Path(folder) / "local") as local:
            local.submit()
            high, end = 0.0, time.monotonic() + 400
            while not store.is_complete(local.run_folder) and time.monotonic() < end:
                for pid in processes.descendants(local.superlink.pid):
                    if "flwr-serverapp" in processes.command_line(pid):
                        high = max(high, _high_water(pid))
                time.sleep(0.1)
            assert store.is_complete(local.run_folder), local.trouble("")
            return high


def _high_water(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((float(x.split()[1]) / 1e3 for x in lines if x.startswith("VmHWM")), 0.0)


def memory(clients: int, count: int) -> None:
    size = 4 * count / 1e6
    print(f"{clients} sites on loopback, {size:.0f} MB of weights, TLS; ServerApp's peak memory")
    for name, floor in (("FedAvg", True), ("ours", False)):
        small, large = peak(clients, 100, floor), peak(clients, count, floor)
        models = (large - small) / size
        print(f"{name:7s} {large:.0f} MB, {small:.0f} MB with a tiny model: {models:.1f} models")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = argparse.ArgumentParser()
    words.add_argument("--clients", type=int, default=10)
    words.add_argument("--rounds", type=int, default=8)
    words.add_argument("--megabytes", type=float, default=26.3)
    words.add_argument("--memory", action="store_true")
    given = words.parse_args()
    weights = int(given.megabytes * 1e6 / 4)
    if given.memory:
        memory(given.clients, weights)
    else:
        overhead(given.clients, given.rounds, weights)
