"""How many models the ServerApp's process holds, in a deployment on loopback with TLS.

    python benchmarks/flower_memory.py [--clients 3] [--megabytes 26.3] [--trace]

Measured is the process's peak resident memory (VmHWM), less what it held when the first model was
about to be made (VmRSS at that moment: interpreter, libraries, connections), over the size of a
model. All sites are asked in every round, so as many models are in flight as there are sites.
Beside it Flower's own FedAvg, with clients that send the weights back as they are.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from fedtaper.deploy import processes
from fedtaper.deploy.local import LocalFederation
from fedtaper.deploy.scaffold import new_app
from fedtaper.storage import store

BEFORE = """
import os
from pathlib import Path

def note():
    lines = Path("/proc/self/status").read_text().splitlines()
    found = Path({folder!r}) / str(os.getpid())
    if not found.exists():
        found.write_text(next(x.split()[1] for x in lines if x.startswith("VmRSS")))
"""
TASK = """
import torch
from fedtaper import Task

class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        note()
        self.w = torch.nn.Parameter(torch.ones({count}).normal_())

task = Task(
    loss=lambda model, x: (model.w * x.mean()).sum(),
    init=Flat,
    data=lambda site: torch.ones(4),
)
"""
FEDERATION = """
[experiment]
rounds = 4
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
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
import fedtaper.deploy.apps, torch

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
    note()
    w = np.random.default_rng(0).random({count}, np.float32)
    strategy.start(grid, ArrayRecord([w]), num_rounds=4)
    out = Path(context.run_config["out"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "done").touch()
"""


def written(folder: Path, clients: int, count: int, floor: bool) -> Path:
    """The app; its federation file."""
    app = new_app("flat", folder)
    before = BEFORE.format(folder=str(folder / "before"))
    (folder / "before").mkdir()
    (app / "flat" / "task.py").write_text(before + TASK.format(count=count))
    sites = ", ".join(f'"site-{i}"' for i in range(clients))
    file = app / "flat" / "federation.toml"
    file.write_text(FEDERATION.format(clients=clients, sites=sites))
    if floor:
        text = FLOOR.format(clients=clients, count=count)
        (app / "flat" / "floor.py").write_text(before + text)
        settings = (app / "pyproject.toml").read_text()
        ours = "fedtaper.deploy.apps:"
        (app / "pyproject.toml").write_text(settings.replace(ours, "flat.floor:"))
    return file


def peak(clients: int, count: int, floor: bool, trace: bool) -> tuple[float, float]:
    """Memory of the ServerApp's process in MB: before there is a model, and at its peak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalFederation(written(folder, clients, count, floor), folder / "local") as local:
            local.submit()
            high, before, end = 0.0, 0.0, time.monotonic() + 400
            run = local.run_folder
            while not (done := store.is_complete(run) or (run / "done").exists()):
                if time.monotonic() > end:
                    break
                for pid in processes.descendants(local.superlink.pid):
                    if "flwr-serverapp" not in processes.command_line(pid):
                        continue
                    high = max(high, memory(pid, "VmHWM"))
                    noted = folder / "before" / str(pid)
                    before = float(noted.read_text() or 0) * 1.024e-3 if noted.exists() else 0.0
                    if trace:
                        print(f"{time.monotonic():.2f} {memory(pid, 'VmRSS'):.0f} {high:.0f}")
                time.sleep(0.05)
            assert done, local.trouble("")
            return before, high


def memory(pid: int, what: str) -> float:
    """A figure of /proc/PID/status in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((float(x.split()[1]) * 1.024e-3 for x in lines if x.startswith(what)), 0.0)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--clients", type=int, default=3)
    words.add_argument("--megabytes", type=float, default=26.3)
    words.add_argument("--trace", action="store_true", help="print every sample")
    words.add_argument("--only", choices=("FedAvg", "ours"))
    given = words.parse_args()
    count = int(given.megabytes * 1e6 / 4)
    print(f"{given.clients} sites on loopback, TLS, {given.megabytes:g} MB of weights")
    for name in ("FedAvg", "ours"):
        if given.only in (None, name):
            before, high = peak(given.clients, count, name == "FedAvg", given.trace)
            models = (high - before) / given.megabytes
            print(
                f"{name:7s} {before:.0f} MB before, {high:.0f} MB at the peak: {models:.1f} models"
            )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
