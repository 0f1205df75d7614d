"""Killed twice, with dropout, rules with memory and data read ahead: the same bits in the end."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch

import fedtaper as ft
from fedtaper.problems import readers
from fedtaper.simulation import drive


class Augmented(torch.utils.data.Dataset):
    """Random augmentation, drawn as a sample is read."""

    def __init__(self, client):
        rng = np.random.default_rng(client)
        self.x, self.y = rng.normal(size=(12, 3)), rng.normal(size=(12, 1))

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return torch.from_numpy(self.x[place]).float() + 0.1 * torch.randn(3), self.y[place]


def squared(model, x, y):
    return ((model(x) - y) ** 2).mean()


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))


def slowly(model):
    time.sleep(0.05)
    return {}


@pytest.mark.parametrize("rules", [{"local": ft.Momentum(0.5)}, ft.PRESETS["scaffold"]])
def test_killed_twice_it_goes_on_to_the_same_bits(tmp_path, monkeypatch, rules):
    """The processes that read for a killed run do not keep its folder locked."""
    monkeypatch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(readers, "LOOKED_AT", 0)
    data = [Augmented(client) for client in range(2)]
    problem = ft.Custom(squared, net, data, slowly, workers=1)
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=30, local_epochs=1, batch_size=4, **rules)
    whole = ft.run(e)
    out = tmp_path / "a"
    for _ in range(2):
        before = (out / "checkpoint.npz").stat().st_mtime_ns if out.exists() else 0
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=ft.run, args=(e,), kwargs={"out": out, "resume": True})
        child.start()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            made = out / "checkpoint.npz"
            if made.is_file() and made.stat().st_mtime_ns > before:
                break
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL
    again = ft.run(e, out=out, resume=True)
    assert np.array_equal(again.w, whole.w)
    assert np.array_equal(again.update_norms, whole.update_norms)
