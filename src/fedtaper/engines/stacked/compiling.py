"""A step through PyTorch's compiler, for one shape of its arguments.

The step is traced as it runs (``vmap`` and gradient included) and its operations are given to
the compiler. Nothing is checked between calls, which is what makes small steps fast; callers must
keep to the shapes it was made for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedtaper.engines.stacked.step import Step

# in this process: a forked worker would wait for ever for compiler processes of its own
OPTIONS = {"compile_threads": 1}


class Compiled:
    """The step, made for arguments like these."""

    def __init__(self, step: Step, *args: Any) -> None:
        flat, form = tree_flatten(args)

        def plain(*tensors: Any) -> Any:
            w, memory, losses, shares = step(*tree_unflatten(tensors, form))
            return [w, *memory, losses, shares]

        with torch.no_grad():
            traced = make_fx(plain)(*flat)
            # without a context that has a shape environment, nothing is kept on disk for the next
            with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
                self.code: Any = torch._inductor.compile(traced, flat, options=OPTIONS)
            self(*args)  # what is compiled at the first call

    def __call__(
        self, w: Any, memory: Any, anchors: Any, a: Any, active: Any, numbers: Any, batch: Any
    ) -> Any:
        """The step's own result, up to rounding."""
        parts = (w, *memory, anchors, a, active, *numbers, *tree_leaves(batch))
        new, *after, losses, shares = self.code(*parts)
        return new, tuple(after), losses, shares
