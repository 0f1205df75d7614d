"""What was measured for a model on this machine, kept from process to process."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedtaper.core.protocols import as_network
from fedtaper.engines.workers import cores
from fedtaper.experiment import Experiment

Record = TypeVar("Record")
KEPT = 200  # models


def file() -> Path:
    """The file that keeps the measurements."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "fedtaper" / "ways.json"


def key(e: Experiment, lanes: int, device: str) -> str:
    """What the time of a round depends on: model, sizes, rule, libraries, machine."""
    module = as_network(e.problem).module()
    shapes = [(n, tuple(p.shape), p.requires_grad) for n, p in module.named_parameters()]
    parts = (
        str(module), shapes, e.problem.sizes.tolist(), e.steps.tolist(), e.batch_size,
        e.rates.tolist(), repr(e.local), lanes, cores(), device, torch.__version__,
        _machine(device),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _machine(device: str) -> str:
    """The processor by name, or the GPU's."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line
    return f"{platform.machine()} {platform.processor()}"


def read(name: str, make: Callable[..., Record]) -> Record | None:
    """What is remembered under that key, if it can be read."""
    try:
        return make(**_all()[name])
    except (KeyError, TypeError):
        return None


def write(name: str, record: Any) -> None:
    """Remember a measurement; if that fails, the next run measures again."""
    known = _all()
    known.pop(name, None)
    newest = dict(list(known.items())[-KEPT + 1 :]) | {name: asdict(record)}
    path = file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(json.dumps(newest), encoding="utf-8")
        part.replace(path)


def _all() -> dict[str, Any]:
    try:
        found = json.loads(file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
