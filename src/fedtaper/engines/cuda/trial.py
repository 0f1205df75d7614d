"""Whether the steps for images train a network of the user's own as it is: tried on a few samples.

They compute in a type of their own, replace some layers, fill short batches up, and put the images
of all clients into one batch. A network that cannot take that fails here, or moves otherwise than
by its loss. The networks that come with fedtaper can, as the project's tests show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedtaper.engines.cuda import stacked
from fedtaper.engines.cuda.batches import normalised
from fedtaper.engines.cuda.captured_steps import channels_last, client_step, tested_of
from fedtaper.engines.cuda.graphs import said
from fedtaper.engines.cuda.layout import empty, joined, views
from fedtaper.engines.layout import Layout
from fedtaper.engines.precision import single_precision
from fedtaper.problems.network import bind

REAL, FILLED = 2, 2  # samples of a batch, and those that only fill it up
CLOSE = 0.05  # of the update: rounding that tips a ReLU is no objection
STEP = 0.01
CLIENTS = 2


class _Trial:
    """A mini-batch of a client, and how far some clients' models go on it by themselves."""

    def __init__(self, e: Any, device: str) -> None:
        self.e, self.device = e, device
        self.module = e.problem.module().to(device)
        self.layout = Layout.of(self.module)
        self.anchor = torch.from_numpy(e.problem.initial(e.seed)).float().to(device)
        data, places = e.problem.data, e.problem.places[0]
        index = places[np.arange(REAL + FILLED) % len(places)]
        self.raw = torch.from_numpy(np.ascontiguousarray(data.train_x[index])).to(device)
        self.y = torch.from_numpy(data.train_y[index]).to(device)
        self.scale = tuple(torch.from_numpy(v).to(device) for v in data.scale)
        self.x = normalised(self.raw, self.scale)
        self.share = torch.tensor([1.0 / REAL] * REAL + [0.0] * FILLED, device=device)
        draws = np.random.default_rng(0).normal(size=(CLIENTS, len(self.anchor)))
        noise = torch.from_numpy(draws).float().to(device)
        self.models = self.anchor + 0.01 * self.anchor.std() * noise
        self.moves = torch.stack([self._alone(w) for w in self.models])

    def _alone(self, w: torch.Tensor) -> torch.Tensor:
        """An update as the CPU engine makes it."""
        gradient = torch.zeros_like(w)
        bind(self.module, w.clone(), gradient)
        loss, _ = self.e.problem.batch_loss(self.module, self.x[:REAL], self.y[:REAL])
        loss.backward()
        return -STEP * self.e.local.direction(gradient, w, self.anchor)

    def anchors(self) -> list[torch.Tensor]:
        """The shared model by its parameters."""
        return views(self.layout, self.anchor)

    def parts(self, w: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        """A model by its parameters, as the steps keep them."""
        made = empty(self.layout, self.device, dtype)
        torch._foreach_copy_(made, views(self.layout, w))
        return made

    def near(self, rows: Sequence[torch.Tensor]) -> bool:
        """Whether the clients moved there as they do by themselves."""
        off = (torch.stack(list(rows)) - self.models - self.moves).norm()
        return bool(off <= CLOSE * self.moves.norm())


def objection(e: Any, device: str, dtype: torch.dtype) -> str | None:
    """Why a client's network cannot be trained by the steps for images, or None."""
    try:
        with single_precision(device, exact=True):
            trial = _Trial(e, device)
            found = [joined(_moved(trial, w, torch.float32)) for w in trial.models]
            if not trial.near(found):
                return "its update depends on how a batch is filled up"
            _moved(trial, trial.anchor, dtype)
            judged = channels_last(e.problem.module().to(device, dtype)).eval()
            tested = tested_of(judged, trial.layout.names, dtype)
            with torch.no_grad():
                tested(trial.parts(trial.anchor, dtype), trial.raw, trial.y, trial.scale)
    except Exception as trouble:  # whatever the network objects to
        return f"{type(trouble).__name__}: {said(trouble)}"
    return None


def _moved(trial: _Trial, w: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """A client's model after an update in this type."""
    module = channels_last(trial.e.problem.module().to(trial.device, dtype))
    step = client_step(module, trial.layout.names, trial.e.local)
    masters = trial.parts(w, torch.float32)
    copies = masters if dtype == torch.float32 else trial.parts(w, dtype)
    x = trial.x.to(dtype).contiguous(memory_format=torch.channels_last)
    a = torch.tensor(STEP, device=trial.device)
    step(copies, masters, trial.anchors(), x, trial.y, trial.share, a)
    return masters


def stacks(e: Any) -> bool:
    """Whether all clients' networks can be one: by their layers, and as tried on the CPU."""
    if not stacked.can_stack(e.problem.module()):
        return False
    if isinstance(e.problem.model, str):
        return True
    try:
        trial = _Trial(e, "cpu")
        return trial.near(_together(trial))
    except Exception:  # whatever the network objects to
        return False


def _together(trial: _Trial) -> list[torch.Tensor]:
    """The clients' models after an update of all as one."""
    names = trial.layout.names
    loss = stacked.loss_of(stacked.stacked(trial.e.problem.module()), names)
    models = empty(trial.layout, "cpu", torch.float32, CLIENTS)
    for j, w in enumerate(trial.models):
        torch._foreach_copy_([whole[j] for whole in models], views(trial.layout, w))
    leaves = [whole.detach().requires_grad_() for whole in models]
    x = torch.cat([trial.x] * CLIENTS).contiguous(memory_format=torch.channels_last)
    y, share = (torch.stack([part] * CLIENTS) for part in (trial.y, trial.share))
    total, _ = loss(leaves, x, y, share)
    gradients = torch.autograd.grad(total, leaves)
    a = torch.full((CLIENTS,), STEP)
    with torch.no_grad():
        stacked.update_of(trial.e.local)(models, models, trial.anchors(), gradients, a)
    return [joined([whole[j] for whole in models]) for j in range(CLIENTS)]
