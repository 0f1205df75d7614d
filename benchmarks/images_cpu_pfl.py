"""Seconds a round of the same work in pfl: torchrun --nproc-per-node 2 images_cpu_pfl.py 10 500."""

import logging
import os
import sys
import time

import numpy as np
import torch

torch.set_num_threads(1)
logging.disable(logging.WARNING)

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.internal.ops import pytorch_ops  # noqa: E402
from pfl.internal.ops.selector import set_framework_module  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402

from fedtaper.problems import models  # noqa: E402

ROUNDS = 8
clients, each = (int(word) for word in sys.argv[1:3])


class Network(torch.nn.Module):
    """LeNet-5 as pfl takes it."""

    def __init__(self):
        super().__init__()
        self.body = models.build("lenet5", 1, 28, 28, 10)

    def loss(self, x, y, **_):
        """What a client minimises."""
        return torch.nn.functional.cross_entropy(self.body(x), y)

    def metrics(self, x, y, **_):
        """None."""
        return {}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self):
        self.times = []

    def after_central_iteration(self, *args, **kwargs):
        """Note the time."""
        self.times.append(time.perf_counter())
        return False, Metrics()


set_framework_module(pytorch_ops)
rng = np.random.default_rng(0)
x = torch.from_numpy(rng.normal(size=(clients, each, 1, 28, 28)).astype(np.float32))
y = torch.from_numpy(np.tile(np.arange(each) % 10, (clients, 1)))
np.random.seed(0)  # noqa: NPY002 (pfl draws from it)
users = FederatedDataset(
    lambda user: Dataset([x[user], y[user]]),
    get_user_sampler("minimize_reuse", list(range(clients))),
)
network = Network()
model = PyTorchModel(
    network,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
)
clock = Clock()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=10**6,
        train_cohort_size=clients,
        val_cohort_size=None,
    ),
    backend=SimulatedBackend(training_data=users, val_data=None),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=0.01, local_batch_size=32
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=32),
    callbacks=[clock],
    send_metrics_to_platform=False,
)
if int(os.environ.get("RANK", "0")) == 0:
    print(f"seconds {np.diff(clock.times).min():.4f}")
