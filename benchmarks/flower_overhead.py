"""What a round costs above Flower's own floor: clients that send 26 MB of weights back.

    python benchmarks/flower_overhead.py [--clients 10] [--turns 8] [--megabytes 26.3]

Three kinds of round, five of each in turn, in one Flower simulation, so that all meet the same
machine; the first of five does not count (it meets what the kind before left to be done):

- echo: the floor. Messages with the weights to every client, which answers with the very record
  it got, and all answers taken in: nobody looks into them.
- FedAvg: the same clients, and Flower's own strategy, which averages the answers.
- ours: clients that unpack the weights and pack them as their update, and whole rounds of
  ``fedtaper.run``: the clock, a check of every answer, its size, the sum, the server's step, the
  model's change, and a checkpoint on disk.

For the memory of the server, see flower_memory.py.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedtaper as ft
from fedtaper.deploy.server import event_log
from fedtaper.engines.flower import client
from fedtaper.engines.flower.roster import Roster
from fedtaper.engines.flower.rounds import GridEngine
from fedtaper.engines.flower.simulation import Simulation
from fedtaper.engines.flower.source import PickledSource
from fedtaper.storage import store

KINDS = ("echo", "FedAvg", "ours")
TURN = 5  # rounds of a kind, one after another
TICK = 0.1  # seconds between two looks of Flower's: rounds are to begin at any time between


class Flat(torch.nn.Module):
    """A model that is only weights: next to no work."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.rand(count))


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
        client._updates = lambda e, w, a, *others: (w, {}, ())
        return client.train(message, context, source)

    @app.evaluate()
    def echo(message, context):
        told = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": told})
        return Message(content, reply_to=message)

    return app


def echo_round(grid, arrays) -> float:
    """Seconds of a round of messages alone."""
    began = time.perf_counter()
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict({"arrays": arrays}), n, MessageType.EVALUATE) for n in nodes]
    assert len(list(grid.send_and_receive(messages))) == len(nodes)
    return time.perf_counter() - began


def fedavg_round(strategy, grid, arrays) -> float:
    """Seconds of a round by Flower's own FedAvg."""
    began = time.perf_counter()
    messages = [
        Message(m.content, m.metadata.dst_node_id, MessageType.EVALUATE)
        for m in strategy.configure_train(1, arrays, ConfigRecord(), grid)
    ]
    strategy.aggregate_train(1, list(grid.send_and_receive(messages)))
    return time.perf_counter() - began


class Interleaved(GridEngine):
    """Before each turn of ours, one of each other kind."""

    def __init__(self, *words) -> None:
        super().__init__(*words)
        self.seconds = {kind: [] for kind in KINDS}
        self.last, self.count = 0.0, 0
        self.phase = np.random.default_rng(0)

    def open(self, e, state, options=None):
        """Time them all."""
        session = super().open(e, state, options)
        advance, sites = session.advance, len(self.federation.sites)
        strategy = FedAvg(1.0, fraction_evaluate=0.0, min_available_nodes=sites)
        others = {"echo": echo_round, "FedAvg": partial(fedavg_round, strategy)}

        def timed(rounds):
            if self.last:  # a round of ours ends where the next begins: checkpoint and all
                self.seconds["ours"].append(time.perf_counter() - self.last)
            for kind in KINDS[:2] if self.count % TURN == 0 else ():
                for _ in range(TURN):
                    time.sleep(self.phase.uniform(0, TICK))
                    seconds = others[kind](self.grid, ArrayRecord([session.w]))
                    self.seconds[kind].append(seconds)
            self.count += 1
            self.last = time.perf_counter()
            return advance(rounds)

        session.advance = timed
        return session


def measured(clients: int, rounds: int, count: int) -> dict[str, list[float]]:
    e = experiment(clients, rounds, count)
    federation = ft.Federation(tuple(f"site-{i}" for i in range(clients)))
    with tempfile.TemporaryDirectory() as folder:
        source = PickledSource.write(e, federation, Path(folder))
        with Simulation(client_app(source), clients) as grid:
            out = store.prepare(Path(folder) / "run")
            roster = Roster(grid.grid, federation, event_log(out, print))
            roster.wait(60, clients)
            engine = Interleaved(grid.grid, federation, roster)
            ft.run(e, engine=engine, out=out, progress=False)
            return engine.seconds


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--clients", type=int, default=10)
    words.add_argument("--turns", type=int, default=8)
    words.add_argument("--megabytes", type=float, default=26.3)
    given = words.parse_args()
    # one round more: the last of ours has no successor; and the first turn is a warm-up
    rounds = TURN * (given.turns + 1)
    seconds = measured(given.clients, rounds + 1, int(given.megabytes * 1e6 / 4))
    rows = {
        kind: np.array(values[:rounds]).reshape(-1, TURN)[1:, 1:].ravel()
        for kind, values in seconds.items()
    }
    print(f"{given.clients} clients, {given.megabytes:g} MB, {rows['ours'].size} rounds of each")
    ways = {"median": np.median, "mean": np.mean, "best": np.min}
    for kind, row in rows.items():
        print(f"{kind:7s}", *(f"{name} {way(row):.3f} s  " for name, way in ways.items()))
    for kind in KINDS[:2]:
        above = {name: way(rows["ours"]) / way(rows[kind]) - 1 for name, way in ways.items()}
        print(f"ours above {kind}:", *(f"{name} {x:+.1%}  " for name, x in above.items()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
