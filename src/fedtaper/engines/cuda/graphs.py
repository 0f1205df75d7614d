"""A stacked step captured as a CUDA graph, one for each usual shape of its arguments.

A graph has no Python between its kernels, which is most of the time of a small step. A graph
holds the memory that it works in, so shapes that come once, more shapes than ``MOST``, and those
that no memory is left for are run as they are. So is a step that cannot be captured: this is said
once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedtaper.core.errors import warn

WARM_UP = 3
MOST = 32  # graphs of one step

# it finds what matters here: whatever waits for the device can be in no graph
warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype feature")


def captured(step: Callable[[], Any], ready: Callable[[], Any] = tuple) -> tuple[Any, Any]:
    """The step as a graph, and what it returns; an error if it cannot be captured.

    ``ready`` is called before each step of the warm-up.

    The last step of the warm-up must not wait for the device: an error there does no harm, while
    one in a capture ruins the capture, and PyTorch before 2.12 then stays on its stream.
    """
    before, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(before)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP - 1):
            ready()
            step()
        ready()
        with _no_waiting():
            step()
    before.wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = step()
    finally:
        torch.cuda.set_stream(before)
    return graph, result


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def said(trouble: Exception) -> str:
    """The beginning of an error, in one line."""
    return f"{str(trouble).strip().partition(chr(10))[0]:.100}"


class Captured:
    """A step as a row of graphs: what it returns is overwritten by the next call."""

    def __init__(self, step: Any) -> None:
        self.step = step
        self.graphs: dict[Any, tuple[Any, list[Any], Any]] = {}
        self.seen: set[Any] = set()
        self.most = MOST
        self.possible = True

    def __call__(self, *args: Any) -> Any:
        """The step's own result."""
        if not self.possible:
            return self.step(*args)
        flat, form = tree_flatten(args)
        key = (form, tuple((t.shape, t.dtype) if torch.is_tensor(t) else t for t in flat))
        if key not in self.graphs:
            if not self._usual(key):
                return self.step(*args)
            try:
                self.graphs[key] = self._capture(flat, form)
            except torch.cuda.OutOfMemoryError:
                self.most = len(self.graphs)
                return self.step(*args)
            except Exception as trouble:  # whatever a capture does not allow
                warn(
                    f"no CUDA graph of this model ({said(trouble)}): its steps are made one by one"
                )
                self.possible = False
                return self.step(*args)
        graph, inputs, result = self.graphs[key]
        for room, value in zip(inputs, flat, strict=True):
            if torch.is_tensor(room):
                room.copy_(value)
        graph.replay()
        return result

    def _usual(self, key: Any) -> bool:
        """Whether the shape has come before, and there is room for its graph."""
        before = key in self.seen
        self.seen.add(key)
        return before and len(self.graphs) < self.most

    def _capture(self, flat: list[Any], form: Any) -> tuple[Any, list[Any], Any]:
        """The graph, with inputs of its own."""
        inputs = [t.clone() if torch.is_tensor(t) else t for t in flat]
        args = tree_unflatten(inputs, form)
        graph, result = captured(lambda: self.step(*args))
        assert all(torch.is_tensor(t) for t in tree_leaves(result))
        return graph, inputs, result
