"""What the C library does with freed memory. With libraries other than glibc nothing happens."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt, from malloc.h
KEPT, KEPT_BLOCK = 2**28, 2**25  # bytes; glibc allows no larger block
RETURNED_BLOCK = 2**16


def keep_memory() -> None:
    """Have this process keep freed memory for the next mini-batch or message.

    Getting it from the system again each time costs a page fault per 4 KiB, which is more than
    reading a small picture costs.
    """
    _mallopt(_TRIM, KEPT)
    _mallopt(_MMAP, KEPT_BLOCK)


def give_memory_back() -> None:
    """Have this process return every large block that it frees.

    The C library keeps blocks up to 32 MiB for later, and what Flower leaves between two
    models is worth two of them.
    """
    _mallopt(_MMAP, RETURNED_BLOCK)


def _mallopt(what: int, value: int) -> None:
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(what, value)
