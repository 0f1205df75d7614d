"""Checks of the user's arguments, each kind of check in one place."""

from __future__ import annotations

import os
from collections.abc import Sized
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.errors import FedtaperError


def shown(value: Any, most: int = 80) -> str:
    """A value in an error: its repr, cut, or its type where it has none.

    >>> shown([1, 2]), shown(10**5000)
    ('[1, 2]', 'an int')
    """
    try:
        return repr(value)[:most]
    except Exception:  # a whole number of more than 4,300 digits; a class of the user's own
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def per_client(
    name: str, value: ArrayLike, count: int, low: float = -np.inf, high: float = np.inf
) -> NDArray[np.float64]:
    """One number for all clients, or one for each, as an array of length ``count``."""
    try:
        array = _array(name, value)
    except FedtaperError:
        raise
    except NO_NUMBERS:
        raise FedtaperError(
            f"{name} must be a number, or one per client, not {shown(value)}"
        ) from None
    if array.ndim > 1 or (array.ndim == 1 and len(array) != count):
        raise FedtaperError(
            f"{name} has {array.size} values for {count} clients; give one, or one per client"
        )
    if not np.all((array >= low) & (array <= high)):  # catches NaN too
        limits = f"at least {low:g}" if np.isfinite(low) else "a number"
        limits += f" and at most {high:g}" if np.isfinite(high) else ""
        raise FedtaperError(f"{name} must be {limits}, not {shown(value)}")
    return np.broadcast_to(array, count).copy()


# what NumPy and torch raise for what is not numbers: a tensor with a gradient is a RuntimeError
NO_NUMBERS = (TypeError, ValueError, OverflowError, RuntimeError)


def _array(name: str, value: Any) -> NDArray[np.float64]:
    """``value`` as an array, refused where it does not fit in memory."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except MemoryError:
        raise FedtaperError(f"{name} does not fit in memory: {shown(value)}") from None
    if array.size > 2**27:  # a view of one number takes no memory, but what is made of it does
        check_memory(name, float(array.size))
    return array


LARGEST = 2**63 - 1  # what 64 bits hold
LONGEST = 255  # bytes in a name, on every common file system
MOST = float(np.finfo(np.float64).max)  # an int or a longdouble may be larger
DEEPEST = 3  # lists within lists
MOST_ITEMS = 10**7  # taken from something that does not say how long it is


def check_whole(name: str, value: Any, low: int = 1) -> None:
    """Refuse what is not a whole number of at least ``low`` that fits in 64 bits."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))
    if not whole or value < low:
        raise FedtaperError(f"{name} must be a whole number of at least {low}, not {shown(value)}")
    if value > LARGEST:
        raise FedtaperError(f"{name} {shown(value)} is too large: use one below 2**63")


def check_number(
    name: str,
    value: Any,
    low: float = -np.inf,
    above: float = -np.inf,
    below: float = np.inf,
    hint: str = "",
    finite: bool = True,
) -> None:
    """Refuse what is not a finite number of at least ``low``, above ``above``, below ``below``.

    Without ``finite``, any number that a float can hold passes, infinity and NaN included.
    """
    number = isinstance(value, (int, float, np.integer, np.floating))
    # NumPy's durations are integers to Python, and longdoubles are unknown to SciPy
    if number and not isinstance(value, (bool, np.timedelta64, np.longdouble)):
        fits: Any = value
        too_large = isinstance(value, int) and abs(value) > MOST
        inside = abs(fits) <= MOST and fits >= low and fits > above and fits < below
        if inside or not (finite or too_large):
            return
    limits = [f"at least {low:g}"] if np.isfinite(low) else []
    limits += [f"above {above:g}"] if np.isfinite(above) else []
    limits += [f"below {below:g}"] if np.isfinite(below) else []
    words = " ".join(["a number", " and ".join(limits)]).strip()
    raise FedtaperError(f"{name} must be {words}, not {shown(value)}{hint}")


def as_numbers(name: str, value: Any) -> NDArray[np.float64]:
    """The value as an array of numbers, or an error that shows what is not a number."""
    try:
        return _array(name, value)
    except FedtaperError:
        raise
    except NO_NUMBERS:
        raise FedtaperError(f"{name} must be a number or an array, not {shown(value)}") from None


def optional_numbers(name: str, value: Any) -> NDArray[np.float64] | None:
    """Like :func:`as_numbers`, but None stays None."""
    return None if value is None else as_numbers(name, value)


def as_path(value: Any) -> Path:
    """The value as a path, or an error that says what was given instead."""
    try:
        path = Path(value)
        os.fsencode(path)
    except (TypeError, ValueError):
        raise FedtaperError(f"expected a file or folder, not {shown(value)}") from None
    if "\0" in str(path) or any(len(os.fsencode(part)) > LONGEST for part in path.parts):
        raise FedtaperError(f"{str(path)!r:.80} is not the name of a file")
    return path


def as_list(name: str, value: Any) -> list[Any]:
    """The argument as a list, or an error if it is not one."""
    try:
        return taken(name, value)
    except TypeError:
        raise FedtaperError(f"{name} must be a list, not {shown(value)}") from None


def taken(name: str, value: Any) -> list[Any]:
    """``list(value)``, refused where it does not end or does not fit in memory."""
    try:
        sized = isinstance(value, Sized)
        found = list(value if sized else islice(value, MOST_ITEMS + 1))
    except MemoryError:
        raise FedtaperError(f"{name} does not fit in memory: {shown(value)}") from None
    if not sized and len(found) > MOST_ITEMS:
        raise FedtaperError(f"{name} has more than {MOST_ITEMS:,} items: does {shown(value)} end?")
    return found


def as_tuple(value: Any, depth: int = 0) -> Any:
    """A list or an array as a tuple, of tuples where it is nested; anything else as it is."""
    if isinstance(value, np.ndarray):
        if value.size > MOST_ITEMS:
            check_memory("an array", 4.0 * value.size)  # as objects
        value = value.tolist()
    if not isinstance(value, list) or depth > DEEPEST:  # a list may even hold itself
        return value
    return tuple(as_tuple(one, depth + 1) for one in value)


def whole_list(name: str, value: Any, low: int = 0) -> list[int]:
    """Whole numbers of at least ``low``, as a list."""
    found = as_list(name, value)
    for one in found:
        check_whole(name, one, low)
    return [int(one) for one in found]


def check_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise FedtaperError(f"{name} must be True or False, not {shown(value)}")


def check_type(what: str, value: Any, kind: type) -> None:
    """Refuse an argument of another kind."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise FedtaperError(f"{what} needs {article} {kind.__name__}, not {type(value).__name__}")


def one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the known ones."""
    if not isinstance(value, str) or value not in known:
        raise FedtaperError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")


def check_memory(what: str, numbers: float) -> None:
    """Refuse arrays that do not fit in this machine's memory, before they are made."""
    most = _memory()
    if 8 * numbers > most:
        size = f"{8 * numbers / 2**30:,.0f} GiB of memory ({8 * numbers:,.0f} bytes)"
        raise FedtaperError(
            f"{what} would take {size}, and this machine has {most / 2**30:,.0f} GiB: make it "
            "smaller"
        )


def _memory() -> int:
    """The machine's memory in bytes; 1 TiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**40


def check_clients(count: Any) -> None:
    """Refuse a number of clients that is not a whole number, or too large to simulate."""
    check_whole("num_clients", count)
    if count > MOST_CLIENTS:
        raise FedtaperError(
            f"{count:,} clients would take {8000 * int(count):,} bytes of memory or more: use at "
            f"most {MOST_CLIENTS:,}"
        )


MOST_CLIENTS = 10**8
