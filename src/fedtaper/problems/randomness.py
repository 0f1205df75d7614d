"""Random numbers of the user's own code (dropout, augmentation, first weights), made repeatable.

Code that draws from the global generators of torch, NumPy or Python is seeded by its place,
(seed, client, round, step). So it draws the same numbers on every engine, with any number of
worker processes, and after a resume.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

_SMALL = 2**32  # NumPy's global generator takes no larger seed


def seed_everything(key: int) -> None:
    """Seed the global generators of torch (CPU), NumPy and Python."""
    import torch

    torch.default_generator.manual_seed(key)
    np.random.seed(key % _SMALL)  # noqa: NPY002 (the user's code may draw from it)
    random.seed(key)


def seed_step(batch: Any) -> None:
    """Seed torch for one local update: what dropout draws then depends only on its place."""
    import torch

    torch.default_generator.manual_seed(batch.key)


def generators() -> tuple[Any, Any, Any]:
    """The state of the global generators of torch (CPU), NumPy and Python."""
    import torch

    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def same_generators(before: tuple[Any, Any, Any], now: tuple[Any, Any, Any]) -> bool:
    """Whether nothing was drawn between the two states."""
    (torch_0, numpy_0, python_0), (torch_1, numpy_1, python_1) = before, now
    drawn = numpy_0[2:] != numpy_1[2:] or not np.array_equal(numpy_0[1], numpy_1[1])
    return not drawn and python_0 == python_1 and bool((torch_0 == torch_1).all())


@contextmanager
def own_generators() -> Iterator[None]:
    """Leave the global generators as they were found."""
    import torch

    before = generators()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


@contextmanager
def seeded(key: int, device: Any = None) -> Iterator[None]:
    """The global generators seeded inside, and as before afterwards; a GPU's too, if given."""
    import torch

    gpus = [device] if device is not None and device.type == "cuda" else []
    with own_generators(), torch.random.fork_rng(gpus):
        seed_everything(key)
        if gpus:
            torch.cuda.manual_seed(key)
        yield


def drawing_single() -> AbstractContextManager[Any]:
    """Inside, torch draws the numbers that it draws in single precision, also for doubles.

    It fills doubles from other bits, so a model in double precision would see other noise.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    double = torch.float64

    def rounded(part: Any) -> Any:
        if isinstance(part, torch.Tensor) and part.dtype == double:
            return part.float()
        return torch.float32 if part is double else part

    def widened(part: Any) -> Any:
        is_single = isinstance(part, torch.Tensor) and part.dtype == torch.float32
        return part.to(double) if is_single else part

    class Single(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if torch.Tag.nondeterministic_seeded not in func.tags or _drops_nothing(func, args):
                return func(*args, **kwargs)
            given, how = tree_map(rounded, args), tree_map(rounded, kwargs)
            found = func(*given, **how)
            for place, argument in enumerate(func._schema.arguments[: len(args)]):
                if argument.is_write and given[place] is not args[place]:
                    args[place].copy_(given[place])
                    found = args[place] if found is given[place] else found
            return tree_map(widened, found) if _doubles(args, kwargs) else found

    def _doubles(args: Any, kwargs: Any) -> bool:
        asked = kwargs.get("dtype")
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        return asked == double or (asked is None and first is not None and first.dtype == double)

    return Single()


def _drops_nothing(func: Any, args: Any) -> bool:
    """Whether this is attention without dropout, which could draw but does not."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    return place >= len(args) or args[place] == 0
