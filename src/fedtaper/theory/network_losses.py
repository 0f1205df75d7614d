"""The clients' losses of a network on all their samples, with gradients and curvatures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.problems.network import one_thread

Array = NDArray[np.float64]


def sample_covariance(rows: Array) -> Array:
    """Covariance over the rows, all equally likely: divided by their number."""
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))


def loss_spread(values: list[Array], gradients: list[Array]) -> tuple[Array, Array]:
    """Variance of the samples' losses, and their covariance with the gradients, per client."""
    centred = [v - v.mean() for v in values]
    variance = np.array([np.mean(v * v) for v in centred])
    along = np.stack([v @ g / len(v) for v, g in zip(centred, gradients, strict=True)])
    return variance, along


@dataclass(frozen=True)
class TorchLosses:
    """Losses of a torch module on every sample, clients of equal size side by side."""

    problem: Any
    evaluating: bool = False  # without dropout, and whatever else only training does

    @property
    def clients(self) -> int:
        """How many clients."""
        return int(self.problem.num_clients)

    @cached_property
    def dim(self) -> int:
        """How many parameters."""
        return int(self.problem.dim)

    @cached_property
    def _wrapped(self) -> Any:
        import torch

        problem = self.problem

        class BatchLoss(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = problem.module().double()

            def forward(self, *batch: Any) -> Any:
                return problem.batch_loss(self.module, *batch)

        made = BatchLoss()
        return made.eval() if self.evaluating else made

    @cached_property
    def _parameters(self) -> list[tuple[str, Any]]:
        named = self._wrapped.named_parameters()
        return [(name, p.shape) for name, p in named if p.requires_grad]

    @cached_property
    def _data(self) -> list[tuple[Any, ...]]:
        import torch

        every = [self.problem.every_sample(i) for i in range(self.clients)]
        return [self.problem.take(i, batch, torch.float64) for i, batch in enumerate(every)]

    @cached_property
    def _groups(self) -> list[tuple[list[int], tuple[Any, ...]]]:
        """Clients whose data has one shape, with their data stacked."""
        import torch
        from torch.utils._pytree import tree_leaves, tree_map

        found: dict[Any, list[int]] = {}
        for i, data in enumerate(self._data):
            found.setdefault(tuple(t.shape for t in tree_leaves(data)), []).append(i)
        return [
            (members, tree_map(lambda *t: torch.stack(t), *(self._data[i] for i in members)))
            for members in found.values()
        ]

    def _both(self, w: Any, *batch: Any) -> tuple[Any, Any]:
        import torch

        sizes = [shape.numel() for _, shape in self._parameters]
        parts = w.split(sizes)
        named = {name: p.view(s) for (name, s), p in zip(self._parameters, parts, strict=True)}
        return torch.func.functional_call(self._wrapped, named, batch)

    def _loss(self, w: Any, *batch: Any) -> Any:
        return self._both(w, *batch)[0]

    @cached_property
    def _stacks(self) -> bool:
        """Whether the loss runs on stacked clients (a loss with .item() in it does not)."""
        import torch

        _, data = self._groups[0]
        sizes = [shape.numel() for _, shape in self._parameters]  # the module is made here
        w = torch.zeros(sum(sizes), dtype=torch.float64)
        inside = (None, *(0 for _ in data))
        try:
            torch.vmap(torch.func.grad(self._loss), in_dims=inside)(w, *data)
        except Exception:  # whatever vmap or the loss objects to
            return False
        return True

    def _over_clients(self, function: Any, w: Any) -> Any:
        """function(w, *data) for every client, stacked in the clients' order."""
        import torch

        if not self._stacks:
            return torch.stack([function(w, *data) for data in self._data])
        order, parts = [], []
        for members, data in self._groups:
            inside = (None, *(0 for _ in data))
            parts.append(torch.vmap(function, in_dims=inside)(w, *data))
            order += members
        place = torch.tensor(np.argsort(order))
        return torch.cat(parts)[place]

    @one_thread()
    def values(self, w: Array) -> Array:
        """Each client's loss: (..., L) for models (..., d)."""
        import torch

        models = np.asarray(w, dtype=np.float64).reshape(-1, np.shape(w)[-1])
        with torch.no_grad():
            found = [self._over_clients(self._loss, torch.from_numpy(m.copy())) for m in models]
        return np.stack([f.numpy() for f in found]).reshape(*np.shape(w)[:-1], self.clients)

    @one_thread()
    def gradients(self, w: Array) -> Array:
        """By reverse differentiation."""
        import torch

        point = torch.from_numpy(np.array(w, dtype=np.float64))
        return np.asarray(self._over_clients(torch.func.grad(self._loss), point).numpy())

    @one_thread()
    def hessian(self, w: Array, weights: Array) -> Array:
        """By reverse differentiation of the gradient of the weighted sum."""
        import torch

        scale = torch.from_numpy(np.array(weights, dtype=np.float64))

        def total(point: Any) -> Any:
            return scale @ self._over_clients(self._loss, point)

        point = torch.from_numpy(np.array(w, dtype=np.float64))
        if self._stacks:
            found = torch.func.jacrev(torch.func.grad(total), chunk_size=128)(point)
        else:
            found = torch.autograd.functional.hessian(total, point)
        return np.asarray(0.5 * (found + found.T).numpy())

    @one_thread()
    def hessians(self, w: Array) -> Array:
        """One weighted Hessian for each client."""
        return np.stack([self.hessian(w, row) for row in np.eye(self.clients)])

    @one_thread()
    def noise(self, w: Array) -> Array:
        """Covariance of the single samples' gradients."""
        return np.stack([sample_covariance(rows) for rows in self._one_by_one(w)[1]])

    @one_thread()
    def spread(self, w: Array) -> tuple[Array, Array]:
        """Of the single samples' losses."""
        return loss_spread(*self._one_by_one(w))

    def _one_by_one(self, w: Array) -> tuple[list[Array], list[Array]]:
        """Each client's single samples' losses, (samples,), and gradients, (samples, d)."""
        import torch
        from torch.utils._pytree import tree_map

        point = torch.from_numpy(np.array(w, dtype=np.float64))
        one = torch.func.grad_and_value(self._loss)
        values, gradients = [], []
        for data, samples in zip(self._data, self.problem.sizes, strict=True):
            singles = tree_map(lambda t: t[:, None], data)
            if self._stacks:
                inside = (None, *(0 for _ in data))
                slopes, found = torch.vmap(one, in_dims=inside)(point, *singles)
            else:
                taken = [tree_map(lambda t, k=k: t[k], singles) for k in range(samples)]
                rows = [one(point, *row) for row in taken]
                slopes, found = (torch.stack(part) for part in zip(*rows, strict=True))
            values.append(found.numpy())
            gradients.append(slopes.numpy())
        return values, gradients

    @one_thread()
    def third(self, w: Array, weights: Array, spread: Array) -> Array:
        """Gradient of tr(spread Hessian) of the weighted sum: how noise shifts the optimum."""
        import torch

        scale = torch.from_numpy(np.array(weights, dtype=np.float64))
        values, vectors = np.linalg.eigh(spread)
        kept = values > 1e-12 * max(values.max(), 1e-300)
        along = torch.from_numpy((vectors[:, kept] * np.sqrt(values[kept])).T.copy())

        def total(point: Any) -> Any:
            return scale @ self._over_clients(self._loss, point)

        def bend(point: Any) -> Any:
            slope = torch.func.grad(total)
            turned = [torch.func.grad(lambda x, v=v: slope(x) @ v)(point) @ v for v in along]
            return torch.stack(turned).sum()

        point = torch.from_numpy(np.array(w, dtype=np.float64))
        return np.asarray(torch.func.grad(bend)(point).numpy())

    @one_thread()
    def accuracies(self, w: Array) -> Array | None:
        """The share of correct answers, if the loss returns it."""
        import torch

        point = torch.from_numpy(np.array(w, dtype=np.float64))
        with torch.no_grad():
            found = [self._both(point, *data)[1] for data in self._data]
        return None if found[0] is None else np.array([float(v) for v in found])
