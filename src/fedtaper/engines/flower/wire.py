"""A flat vector as Flower's ArrayRecord, and back, with as few copies as possible.

It is sent in pieces: Flower holds three copies of an array while it puts it together, and
three more of each part that is being sent, so arrays must be small if models are large. A
piece comes back as a view of the message's own bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

PIECES = 13  # of a model, each a request to the SuperLink
SMALLEST, LARGEST = 2**18, 2**22  # bytes of a piece; one object of Flower's (at most 5 MiB)
NUMPY = "numpy.ndarray"


def cut(w: Any) -> list[Any]:
    """A vector as views, at least one; the same for every vector of that length and dtype.

    >>> [len(piece) for piece in cut(np.zeros(70_000, dtype=np.float32))]
    [65536, 4464]
    """
    step = min(max(w.nbytes // PIECES, SMALLEST), LARGEST) // w.itemsize
    return [w[low : low + step] for low in range(0, max(len(w), 1), step)]


def packed(w: Any) -> ArrayRecord:
    """A vector as a record with keys "0", "1", ..., one per piece."""
    return ArrayRecord({str(i): _array(piece) for i, piece in enumerate(cut(w))})


def joined(record: Any) -> Any:
    """The vector in a record, as a new array."""
    return np.concatenate([piece(array) for array in record.values()])


def piece(array: Array) -> Any:
    """The numbers of one array: a view of its bytes, which cannot be written to.

    >>> piece(packed(np.arange(3.0))["0"])
    array([0., 1., 2.])
    """
    if array.stype != NUMPY:
        raise ValueError(f"its kind is {array.stype!r}, not {NUMPY!r}")
    start = 10 + int.from_bytes(array.data[8:10], "little")
    shape, dtype = _read_head(array.data[:start])
    return np.frombuffer(array.data, dtype, offset=start).reshape(shape)


@lru_cache(maxsize=64)
def _read_head(head: bytes) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype from the first bytes of NumPy's format (cached: there are only a few)."""
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"its format has the version {version}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError("it holds objects, not numbers")
    return shape, dtype


def norm(pieces: Iterable[Any]) -> float:
    """The Euclidean norm; infinite or NaN where a number is, or where it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(sum(float(np.dot(p, p)) for p in pieces)))


def _array(numbers: Any) -> Array:
    head = io.BytesIO()
    about = np.lib.format.header_data_from_array_1_0(numbers)
    np.lib.format.write_array_header_1_0(head, about)
    data = b"".join((head.getvalue(), np.ascontiguousarray(numbers).data.cast("B")))
    return Array(str(numbers.dtype), numbers.shape, NUMPY, data)
