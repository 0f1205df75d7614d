"""The user's own loss, model and data: any torch module."""

from __future__ import annotations

import copy
import multiprocessing
import os
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.checks import check_flag, check_whole, one_of
from fedtaper.core.errors import FedtaperError, OwnCodeError, own_code
from fedtaper.core.protocols import Problem, ProblemKind, Unit
from fedtaper.problems.network import (
    Minibatches,
    Network,
    bind,
    evaluating,
    first_model,
    flat_parameters,
    minibatches,
    need_torch,
    statistics_of,
)
from fedtaper.problems.randomness import seeded
from fedtaper.problems.samples import InMemory, Samples, converted, samples_of

if TYPE_CHECKING:
    import torch

    from fedtaper.experiment import Experiment
    from fedtaper.problems.readers import ReadAhead

Array = NDArray[np.float64]
_EVALUATED = 0  # torch's seed for what evaluate draws
_FROZEN = 0  # torch's seed while a model is made: frozen weights and buffers are always the same
_READERS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_PACES: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
TRAINERS = os.cpu_count() or 1  # processes that train side by side share the readers


@dataclass(frozen=True, eq=False)
class Custom(Network):
    """Any torch loss on any data.

    Args:
        loss: a function of (model, *batch) that returns the batch's mean loss, or a pair of
            that and the share of correct answers.
        init: a function without arguments that makes a ``torch.nn.Module`` (such as its class),
            called after torch was seeded; or a module, from whose weights every run starts.
            Frozen weights and buffers are part of the model, the same in every run. The model
            trains in the mode in which it is made (usually train mode, with dropout).
        client_data: one entry per client: an array or a tuple of arrays of equal length
            (tensors, NumPy, data frames), a dictionary of arrays, or a data set with a length
            and an index (``torch.utils.data.Dataset``, a Hugging Face data set, a list of
            samples). The loss gets a tuple's parts as arguments, a dictionary as one.
        evaluate: a function of the shared model, in evaluation mode, that returns a dictionary
            of names and numbers; called once per round.
        lazy: read samples when they are needed, so that augmentation is fresh in every epoch
            and the data may be larger than memory. The default is True for data sets and
            False for arrays.
        workers: processes that read data sets ahead where reading takes long enough to be worth
            it (0: none; the training process reads).
        collate: a function from a list of samples to a batch.
        sampler: a function of the client's number that returns the order of one pass over its
            samples, such as a ``torch.utils.data.WeightedRandomSampler``.
        buffers: "refuse" models that keep running statistics (BatchNorm), or "average" the
            statistics with the weights. That is outside the theorem: no step size applies to them.
        check_finite: look for NaN and infinity in the data (in a data set, as it is read).

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
    lazy: bool | None = None
    workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    sampler: Callable[[int], Any] | None = None
    buffers: Literal["refuse", "average"] = "refuse"
    check_finite: bool = True
    kind: ClassVar[ProblemKind] = "network"
    default_clock: ClassVar[Unit] = "epoch"

    def __post_init__(self) -> None:
        if not callable(self.loss) or not callable(self.init):
            raise FedtaperError("loss and init must be functions: loss(model, *batch), init()")
        for name in ("evaluate", "collate", "sampler"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise FedtaperError(f"{name} must be a function, not {getattr(self, name)!r:.80}")
        scalar = isinstance(self.client_data, np.ndarray) and self.client_data.ndim == 0
        if scalar or not isinstance(self.client_data, Sized):
            given = type(self.client_data).__name__
            raise FedtaperError(
                f"client_data must be a list with one entry per client, not {given}"
            )
        if not len(self.client_data):
            raise FedtaperError("client_data is empty: give one entry per client")
        check_whole("workers", self.workers, low=0)
        check_flag("check_finite", self.check_finite)
        one_of("buffers", self.buffers, ("refuse", "average"))
        need_torch()
        for i, size in enumerate(self.sizes):
            if size < 1:
                raise FedtaperError(f"client {i} is empty: every client needs at least one sample")

    @property
    def num_clients(self) -> int:
        """How many clients (L)."""
        return len(self.client_data)

    @cached_property
    def samples(self) -> list[Samples]:
        """Each client's data, in memory or to be read."""
        how = (self.lazy, self.collate, self.check_finite)
        return [samples_of(i, entry, *how) for i, entry in enumerate(self.client_data)]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Samples of each client."""
        return np.array([len(samples) for samples in self.samples], dtype=np.int64)

    @property
    def x(self) -> tuple[Any, ...]:
        """The first tensor of each client's data."""
        return tuple(self._held(i).tensors[0] for i in range(self.num_clients))

    @property
    def y(self) -> tuple[Any, ...]:
        """The last tensor of each client's data."""
        return tuple(self._held(i).tensors[-1] for i in range(self.num_clients))

    def _held(self, client: int) -> InMemory:
        found = self.samples[client]
        if not isinstance(found, InMemory):
            raise FedtaperError(
                f"client {client}: its data set is read as needed, so there is no tensor of all "
                "samples; lazy=False reads it at once"
            )
        return found

    def module(self) -> torch.nn.Module:
        """The model: its trained weights are still to be filled in, the rest is fixed."""
        with seeded(_FROZEN):
            return self._made()

    def _made(self) -> torch.nn.Module:
        import torch

        from fedtaper.problems.models import usable

        # a copy: training fills it in place, and init may hand out one module again and again
        made = copy.deepcopy(self.init if isinstance(self.init, torch.nn.Module) else self.init())
        if not isinstance(made, torch.nn.Module):
            raise FedtaperError(f"init() must make a torch.nn.Module, not {type(made).__name__}")
        return usable(made, average_buffers=self.buffers == "average")

    def initial(self, seed: int) -> Array:
        """The shared model before round 1."""
        return first_model(self._made, seed, 1)

    def batches(
        self, e: Experiment, seed: int, client: int, round_: int
    ) -> Minibatches | ReadAhead:
        """One client's mini-batches in one round."""
        order = None if self.sampler is None else lambda key: self._pass(client, key)
        found = minibatches(e, seed, client, round_, augment=False, order=order)
        if not self.workers or isinstance(self.samples[client], InMemory):
            return found
        if "fork" not in multiprocessing.get_all_start_methods() or not self._pace.slow:
            return found
        return self._readers().read(client, found)

    @property
    def _pace(self) -> Any:
        from fedtaper.problems.readers import Pace

        return _PACES.setdefault(self, Pace())

    def _readers(self) -> Any:
        from fedtaper.problems.readers import Readers

        if self not in _READERS or _READERS[self].owner != os.getpid():  # a fork has its own
            trainers = TRAINERS if multiprocessing.current_process().daemon else 1
            _READERS[self] = Readers(self.samples, max(1, self.workers // trainers))
        return _READERS[self]

    def _pass(self, client: int, key: int) -> NDArray[np.int64]:
        """One pass of the client's sampler."""
        assert self.sampler is not None
        with seeded(key):
            found = np.array([int(i) for i in self.sampler(client)], dtype=np.int64)
        if np.any((found < 0) | (found >= self.sizes[client])):
            raise FedtaperError(
                f"client {client}: its sampler gives samples outside 0 to {self.sizes[client] - 1}"
            )
        return found

    def take(self, client: int, batch: Minibatches, dtype: Any = None) -> tuple[Any, ...]:
        """A mini-batch as the loss's arguments; ``dtype`` for floats (default: single)."""
        import torch

        taken = batch.loaded
        if taken is None:
            own = self.samples[client]
            if self.workers and not isinstance(own, InMemory):
                taken = self._pace.timed(lambda: own.take(batch.index, batch.key))
            else:
                taken = own.take(batch.index, batch.key)
        wanted = torch.float32 if dtype is None else dtype
        found = converted(taken, lambda t: t.to(wanted) if t.is_floating_point() else t)
        return tuple(found)

    def batch_loss(self, module: Any, *batch: Any) -> tuple[Any, Any]:
        """Mean loss of a mini-batch, and the share of correct answers if the user gives it."""
        import torch

        found = self.loss(module, *batch)
        loss, right = found if isinstance(found, tuple) else (found, None)
        if not isinstance(loss, torch.Tensor):
            raise FedtaperError(
                f"loss must return a tensor (the batch's mean loss), not {type(loss).__name__}"
            )
        if loss.ndim:
            raise FedtaperError(
                f"loss must return one number (the batch's mean), not shape {tuple(loss.shape)}"
            )
        return loss, right

    @cached_property
    def _shown(self) -> torch.nn.Module:
        """What ``evaluate`` gets of a model that is trained on a GPU: a copy on the CPU."""
        return self.module()

    def scores(self, module: Any) -> dict[str, float]:
        """The user's own metrics of the shared model, in evaluation mode, on the CPU.

        What ``evaluate`` draws is the same every time: the numbers depend on the model alone.
        """
        if self.evaluate is None:
            return {}
        if next(module.parameters()).device.type != "cpu":  # where the user's data are not
            trained, module = flat_parameters(module).cpu(), self._shown
            bind(module, trained)
        with own_code("evaluate"), evaluating(module), seeded(_EVALUATED):
            found = self.evaluate(module)
        try:
            return {str(name): float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise OwnCodeError(
                "evaluate",
                f"evaluate must return a dictionary of names and numbers, not {found!r:.80}",
            ) from None

    @property
    def in_memory(self) -> bool:
        """Whether all data are tensors in memory."""
        return all(isinstance(samples, InMemory) for samples in self.samples)


def averages_statistics(problem: Problem) -> bool:
    """Whether running statistics (BatchNorm) are sent with the weights and averaged."""
    if not isinstance(problem, Custom) or problem.buffers != "average":
        return False
    return bool(statistics_of(problem.module()))
