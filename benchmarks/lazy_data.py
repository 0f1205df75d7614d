"""Training from a data set ten times larger than the memory allowed, beside one in memory.

    python benchmarks/lazy_data.py [--mib 640] [--workers 2] [--repeats 3]

Pictures of 64 x 64 lie in one file, a record each, and a ``Dataset`` reads one when it is asked
for. The process that trains from it, and the processes that read for it, may each take a tenth of
the file's size beyond what they hold once everything is imported and a first round was made
(``RLIMIT_DATA``). The same pictures as tensors in memory are the peer. A small CNN, four clients,
batches of 32; each run is a process of its own, the two take turns, and the quickest round of each
counts. The file was just written, so it is in the disk's cache: the cost of reading, converting and
handing over a sample is measured, not that of a slow disk.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedtaper as ft

SHAPE, CLIENTS, STEPS, ROUNDS = (3, 64, 64), 4, 24, 8
RECORD = int(np.prod(SHAPE))  # bytes


class Pictures(torch.utils.data.Dataset):
    """One client's part of the file, read picture by picture."""

    def __init__(self, path, first, count):
        self.path, self.first, self.count, self.file = path, first, count, None

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        if self.file is None:
            self.file = os.open(self.path, os.O_RDONLY)
        raw = os.pread(self.file, RECORD, (self.first + k) * RECORD)
        x = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(SHAPE)
        return x.float().div_(255), int(raw[0]) % 4


def network():
    """A small CNN."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(512, 4),
    )  # fmt: skip


def loss(model, x, y):
    """Cross entropy."""
    return cross_entropy(model(x), y)


def held_bytes():
    """What counts for RLIMIT_DATA: private pages that can be written."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmData:")[1].split()[0])


def trained(path, kind, workers, allowed):
    """One run in this process: the quickest round's seconds, and the most memory it took."""
    count = path.stat().st_size // RECORD // CLIENTS
    parts = [Pictures(path, i * count, count) for i in range(CLIENTS)]
    lazy = kind == "lazy"
    problem = ft.Custom(loss, network, parts, lazy=lazy, workers=workers if lazy else 0)
    e = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=ROUNDS, local_steps=STEPS, batch_size=32)

    def limit(progress):
        if lazy and progress.round == 1:
            most = held_bytes() + allowed
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    run = ft.run(e, progress=False, callbacks=[limit], way="per-client")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps([float(np.min(run.metrics["seconds"][2:])), peak / 1024, run.final.sum()]))


def main():
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--mib", type=int, default=640, help="size of the file")
    ask.add_argument("--workers", type=int, default=2, help="processes that read ahead")
    ask.add_argument("--repeats", type=int, default=3)
    ask.add_argument("--kind", choices=("lazy", "memory"), help=argparse.SUPPRESS)
    ask.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.kind:
        return trained(given.file, given.kind, given.workers, given.mib * 2**20 // 10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures"
        rng = np.random.default_rng(0)
        with path.open("wb") as file:
            for _ in range(given.mib):
                file.write(rng.bytes(2**20))
        found = {"memory": [], "lazy": []}
        for _ in range(given.repeats):
            for kind, times in found.items():
                words = ["--kind", kind, "--file", str(path), "--mib", str(given.mib)]
                words += ["--workers", str(given.workers)]
                made = subprocess.run([sys.executable, __file__, *words], check=True,
                                      stdout=subprocess.PIPE, text=True)  # fmt: skip
                times.append(json.loads(made.stdout))
    assert len({values[2] for times in found.values() for values in times}) == 1, "same model"
    best = {kind: min(t[0] for t in times) for kind, times in found.items()}
    for kind, times in found.items():
        peak = max(t[1] for t in times)
        pace = CLIENTS * STEPS * 32 / best[kind]
        print(
            f"{kind:8} {pace:8,.0f} samples a second, peak of the training process {peak:6,.0f} MiB"
        )
    print(f"{given.mib} MiB of pictures, {given.mib / 10:.0f} MiB allowed, {given.workers} workers:"
          f" {best['memory'] / best['lazy']:.2f} of the speed in memory")  # fmt: skip
    return None


if __name__ == "__main__":
    main()
