"""A client's samples, however they are kept: tensors in memory, or read as they are needed.

``samples_of`` takes the user's data (tensors, NumPy arrays, data frames, dictionaries of them,
data sets with a length and an index) and gives an object with a length and ``take(index, key)``,
which returns the arguments that the loss gets after the model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError, OwnCodeError
from fedtaper.problems.randomness import (
    generators,
    own_generators,
    same_generators,
    seed_everything,
)

if TYPE_CHECKING:
    import torch

_DRAWING: dict[int, set[int]] = {}  # by data set: clients for whom reading draws numbers
CHUNK = 2**22  # numbers looked at together when data is searched for NaN


@dataclass(frozen=True)
class InMemory:
    """Tensors of equal length, one per argument of the loss, or a dictionary of them."""

    tensors: tuple[torch.Tensor, ...]
    keys: tuple[str, ...] | None = None  # of a dictionary

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, index: NDArray[np.int64], key: int = 0) -> tuple[Any, ...]:
        """The samples at these places."""
        import torch

        places = torch.from_numpy(index)
        taken = tuple(tensor[places] for tensor in self.tensors)
        return taken if self.keys is None else (dict(zip(self.keys, taken, strict=True)),)


@dataclass(frozen=True)
class Lazy:
    """A data set with a length and an index, read sample by sample when a batch needs it."""

    client: int
    samples: Any
    collate: Callable[[list[Any]], Any]
    check_finite: bool

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: NDArray[np.int64], key: int = 0, once: bool = False) -> tuple[Any, ...]:
        """Read these samples; each draws its augmentation from a seed of its own.

        ``once`` reads no sample twice, whatever it draws.
        """
        with own_generators():
            found = None if once or self._draws() else self._read_plainly(index, key)
            if found is None:
                found = []
                keys = draws.keys_after(key, len(index))
                for place, each in zip(index.tolist(), keys, strict=True):
                    seed_everything(each)
                    found.append(self._read(place))
        try:
            batch = arguments(self.collate(found))
        except (TypeError, ValueError, RuntimeError, KeyError) as trouble:
            raise self._trouble(
                f"its samples cannot be made into one batch ({trouble}); "
                "give collate=, a function from a list of samples to a batch",
                "collate",
            ) from None
        if self.check_finite:
            self._look(batch, index)
        return batch

    def _draws(self) -> bool:
        """Whether reading is known to draw random numbers: then each sample needs its seed."""
        return self.client in _DRAWING.get(id(self.samples), ())

    def _read_plainly(self, index: NDArray[np.int64], key: int) -> list[Any] | None:
        """The samples, if reading them drew no random numbers; then they need no seeds.

        Seeding costs more than reading a small sample. None if something was drawn.
        """
        seed_everything(key)
        before = generators()
        found = [self._read(place) for place in index.tolist()]
        if same_generators(before, generators()):
            return found
        _DRAWING.setdefault(id(self.samples), set()).add(self.client)
        return None

    def _read(self, place: int) -> Any:
        try:
            return self.samples[place]
        except FedtaperError:
            raise
        except Exception as trouble:
            raise self._trouble(
                f"sample {place} cannot be read ({type(trouble).__name__}: {trouble})"
            ) from trouble

    def _trouble(self, text: str, part: str = "data set") -> OwnCodeError:
        return OwnCodeError(part, text, f"client {self.client}")

    def _look(self, batch: tuple[Any, ...], index: NDArray[np.int64]) -> None:
        for name, tensor in _floats(batch):
            found = first_nonfinite(tensor)
            if found is not None:
                where = f"sample {index[found[0]]}" if len(tensor) == len(index) else "a batch"
                raise self._trouble(
                    f"{where} holds NaN or infinity (in {name}); "
                    "correct the data, or pass check_finite=False"
                )


Samples = InMemory | Lazy


def samples_of(
    client: int,
    entry: Any,
    lazy: bool | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    check_finite: bool = True,
) -> Samples:
    """One client's data as samples, or an error in the user's terms if that is not possible."""
    entry = _unwrapped(entry)
    if lazy is not True and collate is None:
        if isinstance(entry, Mapping):
            made = InMemory(
                tuple(_tensor(client, v, repr(k)) for k, v in entry.items()), tuple(entry)
            )
            return _checked(client, made, check_finite, entry.values())
        columns = _columns(entry)
        if columns is not None:
            made = InMemory(tuple(_tensor(client, v, f"array {j}") for j, v in enumerate(columns)))
            return _checked(client, made, check_finite, columns)
    if _columns(entry) is not None:
        entry = _Rows(samples_of(client, entry, False, None, check_finite))
    # users' data of any library: tables are known by to_numpy, data sets by items
    listed = hasattr(entry, "__getitem__") and hasattr(entry, "__len__")
    if not listed or isinstance(entry, str | bytes):
        raise FedtaperError(
            f"client {client}: its data must be tensors, arrays, data frames, or a data set with "
            f"a length and an index, not {type(entry).__name__}"
        )
    found = Lazy(client, entry, collate or default_collate, check_finite)
    if lazy is not False:
        return found
    batch = found.take(np.arange(len(entry), dtype=np.int64), once=True)
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        return InMemory(tuple(batch[0].values()), tuple(batch[0]))
    return InMemory(batch)


class _Rows:
    """Tensors in memory as single samples, for the user's own collate function."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Any:
        taken = self.samples.take(np.array([place]))
        if len(taken) == 1 and isinstance(taken[0], Mapping):
            return {k: v[0] for k, v in taken[0].items()}
        return tuple(t[0] for t in taken)


def _unwrapped(entry: Any) -> Any:
    """A TensorDataset as its tensors."""
    import torch

    return entry.tensors if type(entry) is torch.utils.data.TensorDataset else entry


def _columns(entry: Any) -> Sequence[Any] | None:
    """The entry as arrays of equal length, or None where it is a collection of samples."""
    import torch

    # users' data of any library: tables are known by to_numpy, data sets by items
    if isinstance(entry, (torch.Tensor, np.ndarray)) or hasattr(entry, "to_numpy"):
        return (entry,)
    if isinstance(entry, (tuple, list)) and len(entry):
        first = entry[0]
        # users' data of any library: tables are known by to_numpy, data sets by items
        if isinstance(first, (torch.Tensor, np.ndarray)) or hasattr(first, "to_numpy"):
            return entry
        if isinstance(entry, tuple) and isinstance(first, list):
            return entry
    return None


def _tensor(client: int, value: Any, name: str) -> torch.Tensor:
    """One array as a tensor; double precision becomes the model's single precision."""
    import torch

    if not isinstance(value, torch.Tensor):
        # users' data of any library: tables are known by to_numpy, data sets by items
        given = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        if given.dtype.kind not in "fiub":
            raise FedtaperError(
                f"client {client}: {_where(value, name)} holds no numbers ({given.dtype}); turn "
                "text and categories into numbers first"
            )
        with warnings.catch_warnings():  # memory maps cannot be written to, nor is that needed
            warnings.simplefilter("ignore", UserWarning)
            value = torch.from_numpy(np.ascontiguousarray(given))
    return value.float() if value.dtype == torch.float64 else value


def _where(value: Any, name: str) -> str:
    """The name of a data frame's first column that is not numeric, or of the array."""
    # a user's table of any library: pandas and its like name their columns' types
    for column, kind in getattr(getattr(value, "dtypes", None), "items", dict)():
        if getattr(kind, "kind", "O") not in "fiub":  # NumPy's letters, which others copy
            return f"column {column!r}"
    return name


def _checked(client: int, made: InMemory, check_finite: bool, given: Any) -> InMemory:
    if not all(t.ndim for t in made.tensors):
        raise FedtaperError(
            f"client {client}: its data holds a single number: give arrays of its samples"
        )
    lengths = [len(t) for t in made.tensors]
    if len(set(lengths)) != 1:
        raise FedtaperError(f"client {client}: its arrays differ in length ({lengths})")
    for j, (tensor, value) in enumerate(zip(made.tensors, given, strict=True)):
        found = first_nonfinite(tensor) if check_finite and tensor.is_floating_point() else None
        if found is not None:
            names = list(getattr(value, "columns", ()))  # data frames have them
            what = f"array {j}" if made.keys is None else repr(made.keys[j])
            inside = "".join(f", {names[k] if names else k!r}" for k in found[1:])
            raise FedtaperError(
                f"client {client}: NaN or infinity in its data, first in {what}, sample "
                f"{found[0]}{f', column{inside[1:]}' if inside else ''}; correct the data, or pass "
                "check_finite=False"
            )
    return made


def first_nonfinite(tensor: Any) -> tuple[int, ...] | None:
    """Where the first NaN or infinity stands, or None."""
    import torch

    if not tensor.is_floating_point() or not tensor.numel():
        return None
    rows = max(1, CHUNK // max(1, tensor[0].numel())) if tensor.ndim else 1
    for low in range(0, len(tensor) if tensor.ndim else 1, rows):
        part = tensor[low : low + rows] if tensor.ndim else tensor
        if math.isfinite(part.sum().item()):  # then every one is; it takes a tenth of the time
            continue
        bad = ~torch.isfinite(part)
        if bool(bad.any()):
            place = [int(k) for k in bad.nonzero()[0]]
            return (low + place[0], *place[1:]) if place else (0,)
    return None


def default_collate(samples: list[Any]) -> Any:
    """Torch's own, with lists of numbers (as Hugging Face data sets give) taken as tensors."""
    import torch

    found = torch.utils.data.default_collate([_listless(sample) for sample in samples])
    return found if isinstance(samples[0], (tuple, list)) else (found,)


def _listless(sample: Any) -> Any:
    import torch

    if isinstance(sample, Mapping):
        return {k: torch.as_tensor(v) if isinstance(v, list) else v for k, v in sample.items()}
    return sample


def arguments(batch: Any) -> tuple[Any, ...]:
    """A batch as the arguments of the loss: a tuple's parts, or one tensor or dictionary."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def converted(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with every tensor changed, however it is nested."""
    import torch

    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {k: converted(v, change) for k, v in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)([converted(v, change) for v in batch])
    return batch


def _floats(batch: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """The batch's tensors of floats, with names."""
    import torch

    out: list[tuple[str, Any]] = []
    for j, part in enumerate(batch):
        pairs = part.items() if isinstance(part, Mapping) else [(None, part)]
        for k, tensor in pairs:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                out.append((f"array {j}" if k is None else repr(k), tensor))
    return out
