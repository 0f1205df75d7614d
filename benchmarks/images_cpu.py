"""Seconds a round of LeNet-5 on the CPU: 10 clients x 500 images, and 100 x 50.

    python benchmarks/images_cpu.py [--repeats 3]

float32, SGD, batch 32, one local epoch, random 28 x 28 images. Against a plain PyTorch loop
over the clients with 2 threads and with 1, against pfl in 1 and 2 processes and against Flower's
simulation where they are installed, on the same machine in turn; best of the repeats.
"""

import argparse
import copy
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import fedtaper as ft
from fedtaper import engines
from fedtaper.engines import cpu


def problem(folder, clients, each):
    rng = np.random.default_rng(0)
    path = Path(folder) / f"random-{clients}.npz"
    count = clients * each
    np.savez(
        path,
        train_images=rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        train_labels=(np.arange(count) % 10).astype(np.uint8),
        test_images=rng.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        test_labels=np.arange(10, dtype=np.uint8),
    )
    return ft.ImageClassification(
        str(path), split=ft.Iid(), model="lenet5", num_clients=clients, augment=False
    )


def plain(images, threads):
    """One round as it is usually written."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    shared = images.module()
    data = [
        (torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(images.x, images.y, strict=True)
    ]
    began = time.perf_counter()
    total = [torch.zeros_like(p) for p in shared.parameters()]
    for x, y in data:
        model = copy.deepcopy(shared)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
        for sum_, p in zip(total, model.parameters(), strict=True):
            sum_ += p.detach() / len(data)
    seconds = time.perf_counter() - began
    torch.set_num_threads(before)
    return seconds


def ours(images, rounds=7):
    """The quickest round, as of the peers."""
    e = ft.Experiment(images, ft.Power(0.01, 0.76), rounds=10**6, local_epochs=1, batch_size=32)
    session = cpu.CpuSession(e, engines.init(e, np.array([0])), way=None)
    session.advance(2)  # the second starts the workers
    seconds = session.advance(rounds).metrics["seconds"].min()
    session.close()
    return seconds


def peer(package, words):
    """Seconds a round of a peer, run as a program of its own; NaN where it is not installed."""
    if importlib.util.find_spec(package) is None:
        return np.nan
    done = subprocess.run(
        [sys.executable, *words],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not found:
        raise SystemExit(f"{words} failed:\n{done.stderr[-2000:]}")
    return float(found[0].split()[1])


def pfl(processes, clients, each):
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    return peer("pfl", [*torchrun, "images_cpu_pfl.py", str(clients), str(each)])


def flower(clients, each):
    return peer("flwr", ["images_cpu_flower.py", str(clients), str(each)])


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=3)
    repeats = options.parse_args().repeats
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for clients, each in ((10, 500), (100, 50)):
            images = problem(folder, clients, each)
            size = (clients, each)
            ways = {
                "fedtaper": lambda images=images: ours(images),
                "plain loop, 2 threads": lambda images=images: plain(images, 2),
                "plain loop, 1 thread": lambda images=images: plain(images, 1),
                "pfl, 1 process": lambda size=size: pfl(1, *size),
                "pfl, 2 processes": lambda size=size: pfl(2, *size),
                "Flower simulation": lambda size=size: flower(*size),
            }
            for _ in range(repeats):
                for name, way in ways.items():
                    found.setdefault((name, size), []).append(way())
    sizes = ((10, 500), (100, 50))
    print(f"{'seconds a round':24} {'10 x 500':>9} {'100 x 50':>9}   over fedtaper's")
    for name in ways:
        best = [min(found[name, size]) for size in sizes]
        times = [b / min(found["fedtaper", size]) for b, size in zip(best, sizes, strict=True)]
        print(f"{name:24} {best[0]:9.3f} {best[1]:9.3f}   {times[0]:.2f} and {times[1]:.2f} times")


if __name__ == "__main__":
    main()
