"""Seconds a round of LeNet-5 on the CPU: 10 clients x 500 images, and 100 x 50.

    python benchmarks/images_cpu.py [--repeats 3]

float32, SGD, batch 32, one local epoch, random 28 x 28 images. Against a plain PyTorch loop
over the clients with 2 threads and with 1, on the same machine in turn; best of the repeats.
"""

import argparse
import copy
import os
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


def ours(images, rounds=3):
    e = ft.Experiment(images, ft.Power(0.01, 0.76), rounds=10**6, local_epochs=1, batch_size=32)
    session = cpu.start(e, engines.init(e, np.array([0])))
    session.advance(2)  # the second starts the workers
    began = time.perf_counter()
    session.advance(rounds)
    seconds = (time.perf_counter() - began) / rounds
    session.close()
    return seconds


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=3)
    repeats = options.parse_args().repeats
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print(f"{'clients x images':>18} {'fedtaper':>9} {'plain, 2 threads':>17} {'plain, 1':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for clients, each in ((10, 500), (100, 50)):
            images = problem(folder, clients, each)
            rows = [(ours(images), plain(images, 2), plain(images, 1)) for _ in range(repeats)]
            best = np.min(rows, axis=0)
            print(f"{f'{clients} x {each}':>18} {best[0]:9.3f} {best[1]:17.3f} {best[2]:9.3f}")


if __name__ == "__main__":
    main()
