"""Named arrays as one ``.safetensors`` file: a JSON head and plain bytes, no code.

The format is read by Hugging Face's ``safetensors`` and by most frameworks; 60 lines write and
read it, so that a model can be stored wherever NumPy is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError

KINDS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "|i1", "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "|b1",
}  # fmt: skip
WORDS = {np.dtype(kind): word for word, kind in KINDS.items()}
LARGEST_HEAD = 100_000_000  # bytes, as the format has it


def packed(tensors: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> bytes:
    """The file's content. Double precision is kept; arrays are written in the order of their names.

    >>> unpacked(packed({"w": np.arange(3.0)}))["w"]
    array([0., 1., 2.])
    """
    head: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    parts, place = [], 0
    for name in sorted(tensors):
        array = np.asarray(tensors[name])
        kind = WORDS.get(array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype)
        if kind is None:
            raise FedtaperError(f"{name} holds {array.dtype}, which .safetensors cannot hold")
        data = np.ascontiguousarray(array, dtype=KINDS[kind]).tobytes()
        ends = [place, place + len(data)]
        head[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        parts.append(data)
        place += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def unpacked(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file's content, each a new array."""
    try:
        size = int.from_bytes(content[:8], "little")
        if len(content) < 8 or size > min(LARGEST_HEAD, len(content) - 8):
            raise ValueError("its head is cut off")
        head = json.loads(content[8 : 8 + size])
        data, out = content[8 + size :], {}
        for name, about in head.items():
            if name == "__metadata__":
                continue
            low, high = about["data_offsets"]
            kind = np.dtype(KINDS[about["dtype"]])
            if not 0 <= low <= high <= len(data):
                raise ValueError(f"{name} lies outside the file")
            flat = np.frombuffer(data[low:high], kind)
            out[name] = flat.reshape([int(n) for n in about["shape"]]).copy()
        return out
    except Exception as trouble:  # a damaged head may lead to any error
        raise FedtaperError(f"not a .safetensors file: {trouble}") from None


def read(path: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file."""
    try:
        return unpacked(Path(path).read_bytes())
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be read: {trouble.strerror}") from None
    except FedtaperError as trouble:
        raise FedtaperError(f"{path}: {trouble}") from None
