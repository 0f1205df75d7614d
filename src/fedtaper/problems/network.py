"""What the two network problems share: flat parameters, mini-batches, first models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
ANGLE = np.deg2rad(10.0)  # the largest rotation of an augmented image


def need_torch() -> None:
    """Say which extra is missing, in one line."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise FedtaperError("networks need torch: pip install 'fedtaper[torch]'") from None


@dataclass(frozen=True)
class Minibatches:
    """One client's mini-batches in one round: a row a local update, padded with sample 0.

    ``size`` says how many of a row's samples are real (the last batch of an epoch may be
    short); ``flip`` and ``angle`` are each image's augmentation, or None.
    """

    index: NDArray[np.int64]
    size: NDArray[np.int64]
    flip: NDArray[np.bool_] | None = None
    angle: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, step: int) -> Minibatches:
        """One row, without its padding."""
        if step >= len(self):
            raise IndexError(step)
        cut = (step, slice(0, int(self.size[step])))
        turn = None if self.angle is None else self.angle[cut]
        flip = None if self.flip is None else self.flip[cut]
        return Minibatches(self.index[cut], self.size[step : step + 1], flip, turn)


def minibatches(e: Any, seed: int, client: int, round_: int, augment: bool) -> Minibatches:
    """Counted by (seed, client, round): the same on every engine, and on a resume.

    With ``local_epochs`` every epoch goes through the client's samples once, in a new order;
    with ``local_steps`` every mini-batch is drawn with replacement.
    """
    samples, size, steps = int(e.problem.sizes[client]), e.batch_size, int(e.steps[client])
    index = np.zeros((steps, size), dtype=np.int64)
    full = np.full(steps, size, dtype=np.int64)
    if e.local_epochs is None:
        for step in range(steps):
            index[step] = draws.batch(seed, client, round_, step, size, samples)
    else:
        per_epoch = steps // e.local_epochs
        for epoch in range(e.local_epochs):
            rows = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
            order = np.zeros(per_epoch * size, dtype=np.int64)
            order[:samples] = draws.shuffle(seed, client, round_, epoch, samples)
            index[rows] = order.reshape(per_epoch, size)
            full[rows.stop - 1] = samples - (per_epoch - 1) * size
    if not augment:
        return Minibatches(index, full)
    u = draws.uniforms(seed, client, round_, 2 * index.size).reshape(2, *index.shape)
    return Minibatches(index, full, u[0] < 0.5, ((2 * u[1] - 1) * ANGLE).astype(np.float32))


def augmented(x: torch.Tensor, flip: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Images flipped left to right where asked, and turned by an angle (bilinear)."""
    import torch

    sign = 1 - 2 * flip.to(x.dtype)
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    height, width = x.shape[-2:]
    zero = torch.zeros_like(cos)
    rows = torch.stack(
        [sign * cos, -sin * (height / width) * sign, zero, sin * (width / height), cos, zero], 1
    )
    grid = torch.nn.functional.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(
        x, grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def parameters_of(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are trained, in order."""
    return [p for p in module.parameters() if p.requires_grad]


def flat_parameters(module: torch.nn.Module) -> torch.Tensor:
    """All trained parameters as one vector."""
    import torch

    return torch.cat([p.detach().reshape(-1) for p in parameters_of(module)])


def bind(module: torch.nn.Module, w: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
    """Make the module's parameters (and gradients) views of flat vectors: no copies from then on.

    A module that shares one tensor between layers lists it once, so it stays shared.
    """
    start = 0
    for p in parameters_of(module):
        end = start + p.numel()
        p.data = w[start:end].view(p.shape)
        if gradient is not None:
            p.grad = gradient[start:end].view(p.shape)
        start = end
    if start != w.numel():
        raise FedtaperError(f"a model of {start} parameters cannot take {w.numel()} numbers")


def first_model(make: Any, seed: int, draws_: int) -> Array:
    """The mean of ``draws_`` independently initialised models, as one vector."""
    import torch

    total: Any = None
    for i in range(draws_):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(draws.generator(seed, 5, i).integers(2**62)))
            one = flat_parameters(make()).double().numpy()
        if total is None:
            total = one
        else:
            total += one
    total /= draws_
    return np.asarray(total, dtype=np.float64)


def reference_gradient(problem: Any, client: int, w: Array, batch: Minibatches) -> Array:
    """The gradient of one mini-batch's mean loss at w, in double precision."""
    import torch

    module = problem.module().double()
    bind(module, torch.from_numpy(np.array(w, dtype=np.float64)))
    loss, _ = problem.batch_loss(module, *problem.take(client, batch, torch.float64))
    gradients = torch.autograd.grad(loss, parameters_of(module))
    return torch.cat([g.reshape(-1) for g in gradients]).numpy()


def scores_along(problem: Any, w: Array) -> dict[str, Array]:
    """The shared model's scores along trajectories w (seeds, rounds, d): the reference's."""
    import torch

    found: dict[str, Array] = {}
    module = problem.module()
    for place in np.ndindex(*w.shape[:2]):
        if np.all(np.isfinite(w[place])):
            bind(module, torch.from_numpy(w[place]).float())
            for name, value in problem.scores(module).items():
                found.setdefault(name, np.full(w.shape[:2], np.nan))[place] = value
    return found
