"""What the network problems share: flat models, mini-batches, first models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError
from fedtaper.problems.randomness import drawing_single, seed_step, seeded

if TYPE_CHECKING:
    import torch

    from fedtaper.experiment import Experiment

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
    """One client's mini-batches in one round: one row per local update, padded with sample 0.

    ``size`` says how many of a row's samples are real (the last batch of an epoch may be
    short); ``flip`` and ``angle`` are each image's augmentation, or None. ``keys`` holds one
    seed per row for what torch draws in that update; ``loaded`` the batch itself, where it was
    read ahead.
    """

    index: NDArray[np.int64]
    size: NDArray[np.int64]
    flip: NDArray[np.bool_] | None = None
    angle: NDArray[np.float32] | None = None
    keys: NDArray[np.int64] | None = None
    loaded: Any = None

    @property
    def key(self) -> int:
        """The seed of a single row."""
        return 0 if self.keys is None else int(self.keys[0])

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Minibatches]:
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> Minibatches:
        """One row, without its padding."""
        if step >= len(self):
            raise IndexError(step)
        cut = (step, slice(0, int(self.size[step])))
        turn = None if self.angle is None else self.angle[cut]
        flip = None if self.flip is None else self.flip[cut]
        keys = None if self.keys is None else self.keys[step : step + 1]
        return Minibatches(self.index[cut], self.size[step : step + 1], flip, turn, keys)


Order = Callable[[int], NDArray[np.int64]]  # a sampler: the samples of one pass, by its key


def minibatches(
    e: Experiment, seed: int, client: int, round_: int, augment: bool, order: Order | None = None
) -> Minibatches:
    """One client's mini-batches in a round: the same on every engine, and after a resume.

    With ``local_epochs`` every epoch goes through the client's samples once, in a new order;
    with ``local_steps`` every mini-batch is drawn with replacement. A client with fewer samples
    than ``batch_size`` makes batches of all it has. ``order`` replaces both draws.
    """
    samples, size, steps = int(e.problem.sizes[client]), e.batch_size, int(e.steps[client])
    index = np.zeros((steps, size), dtype=np.int64)
    full = np.full(steps, min(size, samples), dtype=np.int64)
    keys = draws.step_keys(seed, client, round_, steps)
    if e.local_epochs is None:
        if order is not None:
            row = min(size, samples)
            index[:, :row] = _passes(order, keys, steps * row).reshape(steps, row)
        else:
            for step in range(steps):
                row = min(size, samples)
                index[step, :row] = draws.batch(seed, client, round_, step, row, samples)
    else:
        per_epoch = steps // e.local_epochs
        for epoch in range(e.local_epochs):
            rows = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
            found = np.zeros(per_epoch * size, dtype=np.int64)
            if order is not None:
                found[:samples] = _passes(order, keys[rows], samples)
            else:
                found[:samples] = draws.shuffle(seed, client, round_, epoch, samples)
            index[rows] = found.reshape(per_epoch, size)
            full[rows.stop - 1] = samples - (per_epoch - 1) * size
    if not augment:
        return Minibatches(index, full, keys=keys)
    u = draws.uniforms(seed, client, round_, 2 * index.size).reshape(2, *index.shape)
    angle = ((2 * u[1] - 1) * ANGLE).astype(np.float32)
    return Minibatches(index, full, u[0] < 0.5, angle, keys)


def _passes(order: Order, keys: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The first ``count`` samples, from as many passes of a sampler as that takes."""
    found: list[NDArray[np.int64]] = []
    while sum(map(len, found)) < count:
        key = draws.keys_after(int(keys[0]), len(found) + 1)[-1]
        one = order(key)
        if not len(one):
            raise FedtaperError("the sampler returned no samples")
        found.append(one)
    return np.concatenate(found)[:count]


def every_sample(size: int) -> Minibatches:
    """All of a client's samples as one mini-batch."""
    return Minibatches(np.arange(size), np.array([size]))


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


STATISTICS = ("running_mean", "running_var")
COUNTED = "num_batches_tracked"  # beside them; only momentum=None reads it, which is refused


def statistics_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Running statistics, which are sent with the parameters where that is allowed."""
    named = module.named_buffers()
    return [b for name, b in named if name.rsplit(".", 1)[-1] in STATISTICS]


@contextmanager
def buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """An error if the model changes a buffer of its own inside, as it trains.

    Only weights are sent, so the change would stay with whichever process made it, and the
    result would depend on who trained what.
    """
    import torch

    before = {
        name: buffer.clone()
        for name, buffer in module.named_buffers()
        if name.rsplit(".", 1)[-1] not in (*STATISTICS, COUNTED)
    }
    yield
    now = dict(module.named_buffers()) if before else {}
    for name, buffer in before.items():
        if name in now and not torch.equal(buffer.nan_to_num(), now[name].nan_to_num()):
            raise FedtaperError(
                f"the model changes its buffer {name} as it trains. Only parameters are sent and "
                "averaged, so every client would have another model: make it a parameter, or put "
                "that part of the model in evaluation mode in init"
            )


def size_of(module: torch.nn.Module) -> int:
    """How many numbers are sent: trained parameters, then running statistics."""
    return sum(t.numel() for t in (*parameters_of(module), *statistics_of(module)))


def flat_parameters(module: torch.nn.Module) -> torch.Tensor:
    """All that is sent, as one vector: trained parameters, then running statistics."""
    import torch

    travel = (*parameters_of(module), *statistics_of(module))
    return torch.cat([t.detach().reshape(-1) for t in travel])


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
    for buffer in statistics_of(module):  # changed in place by the layers that keep them
        end = start + buffer.numel()
        buffer.data = w[start:end].view(buffer.shape)
        start = end
    if start != w.numel():
        raise FedtaperError(f"the model has {start} parameters, but was given {w.numel()} numbers")


def first_model(make: Any, seed: int, draws_: int) -> Array:
    """The mean of ``draws_`` independently initialised models, as one vector."""
    total: Any = None
    for i in range(draws_):
        with seeded(int(draws.generator(seed, 5, i).integers(2**62))):
            one = flat_parameters(make()).double().numpy()
        if total is None:
            total = one
        else:
            total += one
    total /= draws_
    return np.asarray(total, dtype=np.float64)


def reference_gradient(problem: Any, client: int, w: Array, batch: Minibatches) -> Array:
    """The gradient of one mini-batch's mean loss at w, in double precision.

    Running statistics have no gradient: zeros stand for them.
    """
    import torch

    module = problem.module().double()
    bind(module, torch.from_numpy(np.array(w, dtype=np.float64)))
    taken = problem.take(client, batch, torch.float64)
    with torch.random.fork_rng(devices=[]), buffers_kept(module):
        seed_step(batch)
        with drawing_single():
            loss, _ = problem.batch_loss(module, *taken)
        gradients = torch.autograd.grad(loss, parameters_of(module), materialize_grads=True)
    whole = [g.to_dense() if g.is_sparse else g for g in gradients]  # of sparse embeddings
    found = torch.cat([g.reshape(-1) for g in whole]).numpy()
    return np.concatenate([found, np.zeros(len(w) - len(found))])


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per operation: small tensors lose more by waiting for one another than they gain.

    Two threads are very slow on a shared machine.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; afterwards every part is in its own mode again."""
    import torch

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def scores_along(problem: Any, w: Array) -> dict[str, Array]:
    """The shared model's scores along trajectories w (seeds, rounds, d), as in the reference."""
    import torch

    found: dict[str, Array] = {}
    module = problem.module()
    for place in np.ndindex(*w.shape[:2]):
        if np.all(np.isfinite(w[place])):
            bind(module, torch.from_numpy(w[place]).float())
            for name, value in problem.scores(module).items():
                found.setdefault(name, np.full(w.shape[:2], np.nan))[place] = value
    return found


class Network:
    """What problems with a torch module share: the reference engine's view of them."""

    @cached_property
    def dim(self) -> int:
        """How many numbers are sent: the network's trained parameters."""
        return size_of(self.module())  # type: ignore[attr-defined]  # every problem has one

    def every_sample(self, client: int) -> Minibatches:
        """All of a client's samples as one batch."""
        return every_sample(int(self.sizes[client]))  # type: ignore[attr-defined]  # likewise

    def gradient(self, client: int, w: Array, batch: Minibatches) -> Array:
        """The mini-batch gradient at w, in double precision, for the reference engine."""
        return reference_gradient(self, client, w, batch)

    def metrics(self, w: Array, p_n: Array, p: Array) -> dict[str, Array]:
        """The scores along trajectories: what the reference engine tracks."""
        return scores_along(self, w)


def cross_entropy_and_accuracy(module: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Mean cross-entropy of a batch, and the share of correct answers."""
    from torch.nn.functional import cross_entropy

    answers = module(x)
    return cross_entropy(answers, y), (answers.detach().argmax(1) == y).float().mean()
