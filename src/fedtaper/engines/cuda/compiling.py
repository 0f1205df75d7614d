"""Functions of tensors through PyTorch's compiler, once a process for each network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedtaper.core.errors import warn

_COMPILED: dict[Any, Compiled] = {}


class Compiled:
    """A function, compiled when it is called; as it is, and slower, where the compiler fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.code: Callable[..., Any] = torch.compile(function, dynamic=False)

    def __call__(self, *args: Any) -> Any:
        """The function's own result, up to rounding."""
        try:
            return self.code(*args)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as trouble:
            if self.code is self.function:
                raise
            warn(f"torch.compile failed ({type(trouble).__name__}): steps run uncompiled, slower")
            self.code = self.function
            return self.function(*args)


def compile_once(key: Any, function: Callable[..., Any]) -> Compiled:
    """Compiled, once a process for each key: it stands for all that the function depends on."""
    if key not in _COMPILED:
        _COMPILED[key] = Compiled(function)
    return _COMPILED[key]
