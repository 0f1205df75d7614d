"""What a model draws as it trains (dropout, say), for all lanes at once.

Client by client, torch's generator is seeded for each update by (seed, client, round, step). Here
the draws of an update are recorded once, made for each lane by a generator with that lane's seed,
and given to the step as tensors where the model would draw. So every lane has the numbers that
its client draws alone, and a compiled step needs no generator.

They are recorded from a client that is alone, because vmap loses a tensor's strides, and torch
fills a transposed tensor in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Drawn = tuple[torch.Tensor, ...]
# operations that draw, and how torch fills an empty tensor for them
FILLED_BY: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.p: torch.Tensor.bernoulli_,
    aten.bernoulli_.float: torch.Tensor.bernoulli_,
    aten.uniform_.default: torch.Tensor.uniform_,
    aten.normal_.default: torch.Tensor.normal_,
    aten.rand_like.default: torch.Tensor.uniform_,
    aten.randn_like.default: torch.Tensor.normal_,
    aten.rand.default: torch.Tensor.uniform_,
    aten.randn.default: torch.Tensor.normal_,
}
SIZED = (aten.rand.default, aten.randn.default)  # their first argument is a size


@dataclass(frozen=True)
class Draw:
    """One draw of an update."""

    fill: Callable[..., Any]
    arguments: tuple[Any, ...]
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def of(self, generators: Sequence[torch.Generator]) -> torch.Tensor:
        """Each lane's numbers, (lanes, ...); those of single precision, for doubles too."""
        shape = (len(generators), *self.shape)
        stride = (self.shape.numel(), *self.stride)
        drawn_as = torch.float32 if self.dtype == torch.float64 else self.dtype
        room = torch.empty_strided(shape, stride, dtype=drawn_as)
        for lane, generator in zip(room.unbind(0), generators, strict=True):
            self.fill(lane, *self.arguments, generator=generator)
        return room.to(self.dtype)


def drawn(draws: Sequence[Draw], keys: Iterable[int]) -> Drawn:
    """What each lane draws in an update for which its generator is seeded by its key."""
    generators = [torch.Generator().manual_seed(key) for key in keys]
    return tuple(draw.of(generators) for draw in draws)


def draws_of(alone: Callable[[], Any], stacked: Callable[[], Any]) -> tuple[Draw, ...]:
    """What a client alone draws, in its order, which has to be that of the stacked step."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with _Recording() as one:
            alone()
        with _Recording() as lanes:
            stacked()
    if [draw.shape for draw in one.found] != [draw.shape[1:] for draw in lanes.found]:
        raise TypeError("what it draws when it is stacked is not what a client draws alone")
    return tuple(one.found)


def given(numbers: Drawn) -> AbstractContextManager[Any]:
    """Inside, what is drawn by a stacked step is these numbers, in their order."""
    return _Giving(numbers) if numbers else nullcontext()


class _Below(TorchDispatchMode):
    """Sees the operations that draw; below vmap, the lanes are the first axis."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        return self.draws(func, args, kwargs or {})

    def draws(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """The result of an operation that draws."""
        raise NotImplementedError


class _Recording(_Below):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Draw] = []

    def draws(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        if func not in FILLED_BY:
            raise TypeError(f"{func} draws random numbers in a way that has no stacked form")
        result: torch.Tensor = func(*args, **kwargs)
        arguments = () if func in SIZED else tuple(args[1:])
        place = (result.shape, result.stride(), result.dtype)
        self.found.append(Draw(FILLED_BY[func], arguments, *place))
        return result


class _Giving(_Below):
    def __init__(self, numbers: Drawn) -> None:
        super().__init__()
        self.left = iter(numbers)

    def draws(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        numbers = next(self.left)
        if not func._schema.is_mutable:
            return numbers
        room: torch.Tensor = args[0]
        return room.copy_(numbers)
