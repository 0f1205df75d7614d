"""The user's own loss, model and data: any torch module without running statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError
from fedtaper.problems.network import (
    Minibatches,
    first_model,
    minibatches,
    need_torch,
    parameters_of,
    reference_gradient,
    scores_along,
)

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Custom:
    """Any torch loss on any data.

    Args:
        loss: a function of (model, *batch) that returns the batch's mean loss, or a pair of
            that and the share of right answers.
        init: a function without arguments that makes a fresh ``torch.nn.Module`` (its class,
            say), called after torch was seeded.
        client_data: one entry a client: a tensor, a tuple of tensors of equal length, or a
            map-style ``torch.utils.data.Dataset``.
        evaluate: a function of the shared model that returns named numbers, once a round.

    >>> import torch
    >>> from torch.nn.functional import mse_loss
    >>> data = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(2)]
    >>> problem = Custom(
    ...     loss=lambda model, x, y: mse_loss(model(x), y),
    ...     init=lambda: torch.nn.Linear(3, 1),
    ...     client_data=data,
    ... )
    >>> problem.num_clients, problem.dim
    (2, 4)
    """

    loss: Callable[..., Any]
    init: Callable[[], Any]
    client_data: Sequence[Any] = field(repr=False)
    evaluate: Callable[[Any], dict[str, Any]] | None = None
    default_clock: ClassVar[str] = "epoch"

    def __post_init__(self) -> None:
        if not callable(self.loss) or not callable(self.init):
            raise FedtaperError("loss and init must be functions: loss(model, *batch), init()")
        if not len(self.client_data):
            raise FedtaperError("client_data is empty: give one entry a client")
        for i, size in enumerate(self.sizes):
            if size < 1:
                raise FedtaperError(f"client {i} is empty: every client needs at least one sample")

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        return len(self.client_data)

    @cached_property
    def _tensors(self) -> list[tuple[torch.Tensor, ...]]:
        return [_as_tensors(i, entry) for i, entry in enumerate(self.client_data)]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client."""
        return np.array([len(tensors[0]) for tensors in self._tensors], dtype=np.int64)

    @property
    def x(self) -> tuple[Any, ...]:
        """The first tensor of each client's data."""
        return tuple(tensors[0] for tensors in self._tensors)

    @property
    def y(self) -> tuple[Any, ...]:
        """The last tensor of each client's data."""
        return tuple(tensors[-1] for tensors in self._tensors)

    def module(self) -> torch.nn.Module:
        """A fresh model."""
        need_torch()
        import torch

        from fedtaper.problems.models import without_statistics

        made = self.init()
        if not isinstance(made, torch.nn.Module):
            raise FedtaperError(f"init() must make a torch.nn.Module, not {type(made).__name__}")
        return without_statistics(made)

    @cached_property
    def dim(self) -> int:
        """Parameters of the model."""
        return sum(p.numel() for p in parameters_of(self.module()))

    def initial(self, seed: int) -> Array:
        """The shared model before round 1."""
        return first_model(self.module, seed, 1)

    def minibatches(self, e: Any, seed: int, client: int, round_: int) -> Minibatches:
        """One client's mini-batches in one round."""
        return minibatches(e, seed, client, round_, augment=False)

    def take(self, client: int, batch: Minibatches, dtype: Any = None) -> tuple[Any, ...]:
        """A mini-batch as tensors; ``dtype`` for those that hold floats."""
        import torch

        index = torch.from_numpy(batch.index)
        taken = [tensor[index] for tensor in self._tensors[client]]
        if dtype is None:
            return tuple(taken)
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in taken)

    def batch_loss(self, module: Any, *batch: Any) -> tuple[Any, Any]:
        """Mean loss of a mini-batch, and the share of right answers if the user gives it."""
        found = self.loss(module, *batch)
        loss, right = found if isinstance(found, tuple) else (found, None)
        if loss.ndim:
            raise FedtaperError(
                f"loss must return one number, the batch's mean, not shape {tuple(loss.shape)}"
            )
        return loss, right

    def scores(self, module: Any) -> dict[str, float]:
        """The user's own metrics of the shared model."""
        import torch

        if self.evaluate is None:
            return {}
        with torch.no_grad():
            return {name: float(value) for name, value in self.evaluate(module).items()}

    def gradient(self, client: int, w: Array, batch: Minibatches) -> Array:
        """The mini-batch gradient at w, in double precision: the reference's."""
        return reference_gradient(self, client, w, batch)

    def metrics(self, w: Array, p_n: Array, p: Array) -> dict[str, Array]:
        """What the reference engine tracks along trajectories."""
        return scores_along(self, w)


def _as_tensors(client: int, entry: Any) -> tuple[Any, ...]:
    import torch

    if isinstance(entry, torch.Tensor):
        entry = (entry,)
    elif isinstance(entry, (tuple, list)) and entry and isinstance(entry[0], np.ndarray):
        entry = tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in entry)
    elif hasattr(entry, "__getitem__") and not isinstance(entry, (tuple, list)):
        entry = torch.utils.data.default_collate([entry[j] for j in range(len(entry))])
        entry = (entry,) if isinstance(entry, torch.Tensor) else tuple(entry)
    if not entry or not all(isinstance(t, torch.Tensor) for t in entry):
        raise FedtaperError(
            f"client {client}: its data must be tensors or a Dataset, not {type(entry).__name__}"
        )
    if len({len(t) for t in entry}) != 1:
        raise FedtaperError(
            f"client {client}: its tensors differ in length ({[len(t) for t in entry]})"
        )
    return tuple(entry)
