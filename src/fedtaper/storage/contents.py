"""A digest of a client's data in any form, so that a resume notices other data.

Data in memory counts completely: arrays, tensors, tables, lists and dictionaries of them. A data
set that is read sample by sample may be larger than memory. It counts by its class, its length,
the arrays and texts it holds, and samples spread over it, each read under a fixed seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.problems.randomness import seeded
from fedtaper.storage.durable import array_digest
from fedtaper.storage.names import import_path

SHORT = 16  # digits kept of a digest
READ = 256  # samples read of all clients' data sets together
ROWS = 64  # rows looked at of a memory map


def digests_of(entries: Sequence[Any]) -> list[str]:
    """One digest per client."""
    each = max(2, min(32, READ // max(1, len(entries))))
    return [digest(entry, each) for entry in entries]


def digest(entry: Any, samples: int = 16) -> str:
    """The digest of one client's data; ``samples`` of a data set are read."""
    array = as_array(entry)
    if array is not None:
        return _of_array(array)
    if isinstance(entry, Mapping):
        return joined([f"{k}:{digest(v, samples)}" for k, v in entry.items()])
    if isinstance(entry, (tuple, list)):
        return joined([digest(part, samples) for part in entry])
    return joined(_parts(entry, samples))


def _parts(entry: Any, samples: int) -> list[str]:
    """What identifies data that is neither an array nor a collection."""
    if entry is None or isinstance(entry, (bool, int, float, str, bytes, np.generic)):
        return [repr(entry)]
    # users' data of any library: tables are known by to_numpy, data sets by items
    if hasattr(entry, "to_numpy"):
        return [_table(entry)]
    if hasattr(entry, "__getitem__") and hasattr(entry, "__len__"):  # a data set
        return [import_path(entry), str(len(entry)), *_held(entry), *_read(entry, samples)]
    if hasattr(entry, "__array__"):  # an image of PIL's
        return [_of_array(np.asarray(entry))]
    return [import_path(entry)]


def as_array(value: Any) -> Any:
    """NumPy's view of an array or a tensor of numbers; None for anything else."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind != "O" else None
    if import_path(type(value)) not in ("torch:Tensor", "torch.nn.parameter:Parameter"):
        return None
    tensor = value.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


def _of_array(array: Any) -> str:
    if isinstance(array, np.memmap):  # perhaps larger than memory
        rows = np.unique(np.linspace(0, max(0, len(array) - 1), ROWS).astype(np.int64))
        return joined([str(array.shape), array_digest(np.asarray(array[rows]))])
    return array_digest(array)[:SHORT]


def _table(entry: Any) -> str:
    """A data frame or a series: its columns and its values."""
    names = [str(name) for name in getattr(entry, "columns", ())]  # a series has none
    values = entry.to_numpy()
    if values.dtype.kind == "O":
        return joined([*names, repr(values.tolist())])
    return joined([*names, array_digest(values)])


def _held(entry: Any) -> list[str]:
    """The arrays and words that a data set holds; numbers may be counters that work changes."""
    out = []
    # an object may have no attributes of its own
    for name, value in sorted(getattr(entry, "__dict__", {}).items()):
        if name.startswith("_"):
            continue
        array = as_array(value)
        words = isinstance(value, (str, Path)) or _plain_list(value)
        if array is not None:
            out.append(f"{name}={_of_array(array)}")
        elif words:
            out.append(f"{name}={joined([str(value)])}")
    return out


def _plain_list(value: Any) -> bool:
    """Places or labels: a list of numbers or words."""
    return isinstance(value, (tuple, list)) and all(isinstance(v, (int, str)) for v in value)


def _read(entry: Any, samples: int) -> list[str]:
    """Samples spread over a data set, each read under a fixed seed."""
    places = np.unique(np.linspace(0, max(0, len(entry) - 1), samples).astype(np.int64))
    out = []
    for place in places.tolist() if len(entry) else []:
        try:
            with seeded(place):
                out.append(digest(entry[place]))
        except Exception as trouble:  # the user's own code: the run says where, if it comes to it
            out.append(type(trouble).__name__)
    return out


def joined(parts: Sequence[str]) -> str:
    """One digest of several."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:SHORT]
