"""Seconds a round of the same work in Flower's simulation: images_cpu_flower.py 10 500."""

import logging
import sys
import time

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedtaper.problems import models

logging.getLogger("flwr").setLevel(logging.ERROR)
ROUNDS = 6
clients, each = (int(word) for word in sys.argv[1:3])
client_app, server_app = ClientApp(), ServerApp()
times = []


@client_app.train()
def train(message, context):
    torch.set_num_threads(1)
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    x = torch.from_numpy(rng.normal(size=(each, 1, 28, 28)).astype(np.float32))
    y = torch.arange(each) % 10
    model = models.build("lenet5", 1, 28, 28, 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.randperm(each).split(32):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": each}),
    }
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when each round begins."""

    def configure_train(self, *args, **kwargs):
        """Note the time."""
        times.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


@server_app.main()
def main(grid, context):
    model = models.build("lenet5", 1, 28, 28, 10)
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)


if __name__ == "__main__":
    run_simulation(
        server_app, client_app, num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1.0}, "init_args": {"num_cpus": 2}},
    )  # fmt: skip
    print(f"seconds {np.diff(times).min():.4f}")
