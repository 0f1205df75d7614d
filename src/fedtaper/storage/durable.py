"""Files that are complete or absent: one writer per folder, fsync, checked archives of arrays.

A file is written under a temporary name beside its place, flushed to the disk, and then renamed;
the folder is flushed to the disk too. So a kill, a power cut or a full disk leaves the old file
or the new one. A lock keeps a second process out of a folder that is being written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedtaper.core.checks import as_path
from fedtaper.core.errors import FedtaperError, one_line

try:
    import fcntl
except ImportError:  # not on Windows: there, only the unique names protect
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

LOCK = ".lock"
PART = ".part"  # how the name of an unfinished file ends
LONGEST = 2**27  # characters of a text file that is read
FORMAT = 2  # of run folders; those of version 1 say nothing of a version
MANIFEST = "manifest"  # the member of an archive that describes the others
_held: set[int] = set()  # the locks of this process


def _let_go() -> None:
    """In a forked child, close the parent's lock: it is held until its last copy is closed.

    Otherwise a training or reading process would keep a killed run's folder locked.
    """
    for place in _held:
        with suppress(OSError):
            os.close(place)
    _held.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_let_go)


def write(path: Path, content: bytes | Callable[[IO[bytes]], Any]) -> None:
    """Write a file completely or not at all, and to the disk; ``content`` may be a function."""
    if not path.name:
        raise FedtaperError(f"{str(path)!r} is not the name of a file")
    if as_path(path).exists() and not (path.is_file() or path.is_dir()):
        _pour(path, content)
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{PART}")
    try:
        with beside.open("xb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        settle(path.parent)
    except OSError as trouble:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise FedtaperError(f"{path} cannot be written: {one_line(trouble)}") from None
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _pour(path: Path, content: bytes | Callable[[IO[bytes]], Any]) -> None:
    """Write to a device or a pipe, such as /dev/null: it must not be replaced by a file."""
    try:
        with path.open("wb", buffering=0) as file:
            if callable(content):
                buffer = io.BytesIO()
                content(buffer)
                content = buffer.getvalue()
            file.write(content)
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be written: {one_line(trouble)}") from None


def text_of(path: Path) -> str:
    """A file's text, refused where it is too long to be one of ours, or endless (/dev/zero)."""
    with path.open(encoding="utf-8") as file:
        text = file.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise FedtaperError(f"{path} cannot be read: it holds more than {LONGEST:,} characters")
    return text


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be removed: {one_line(trouble)}") from None


def settle(folder: Path) -> None:
    """Flush a folder's list of names to the disk, if the system can."""
    if os.name != "posix":
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def digest(content: bytes) -> str:
    """A checksum of a file's contents."""
    return hashlib.sha256(content).hexdigest()


def array_digest(array: Any) -> str:
    """A checksum of an array: kind, shape and contents."""
    whole = np.asarray(array)
    found = hashlib.sha256(f"{whole.dtype.str}{whole.shape}".encode())
    if whole.size:  # an axis that repeats one number (a length, and no memory) counts once
        once = whole[tuple(slice(0, 1) if step == 0 else slice(None) for step in whole.strides)]
        found.update(np.ascontiguousarray(once).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock the folder. The system frees the lock when the process ends or is killed."""
    place = _locked(folder)
    try:
        if place is not None:
            _held.add(place)
            _sweep(folder)
        yield
    finally:
        if place in _held:
            _held.discard(place)
            try:
                with suppress(OSError):
                    (folder / LOCK).unlink()
            finally:
                os.close(place)


def _locked(folder: Path) -> int | None:
    if fcntl is None:
        return None
    path = folder / LOCK
    while True:
        try:
            place = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as trouble:
            raise FedtaperError(f"{folder} is not writable: {one_line(trouble)}") from None
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(place)
            raise FedtaperError(
                f"{folder} is being written by another run: wait for it, or name another folder"
            ) from None
        except OSError:  # a file system without locks
            os.close(place)
            return None
        with suppress(OSError):  # the one before may have removed the file that was opened
            if os.path.samestat(os.fstat(place), path.stat()):
                return place
        os.close(place)


def _sweep(folder: Path) -> None:
    """Remove what a killed writer left unfinished; only the holder of the lock may do so."""
    for left in folder.glob(f".*{PART}"):
        with suppress(OSError):
            left.unlink()


def write_arrays(path: Path, arrays: Mapping[str, Any], notes: Mapping[str, Any]) -> None:
    """Write arrays as an npz that describes itself: format, shapes, checksums, ``notes``."""
    plain: dict[str, Any] = {name: np.require(a, requirements="C") for name, a in arrays.items()}
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in plain.items()}
    sums = {name: array_digest(array) for name, array in plain.items()}
    text = json.dumps({"format": FORMAT, "arrays": shapes, "checksums": sums, **notes})
    plain[MANIFEST] = np.frombuffer(text.encode(), dtype=np.uint8)
    write(path, lambda file: np.savez(file, **plain))


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arrays of an npz, and its description (None: written by an older version).

    Every kind of damage is a :class:`FedtaperError` of one line.
    """
    try:
        if path.stat().st_size == 0:
            raise FedtaperError(f"{path} is damaged: the file is empty")
        with zipfile.ZipFile(path) as archive:
            arrays = dict(_member(archive, info, path) for info in archive.infolist())
        if MANIFEST not in arrays:
            return arrays, None
        text = arrays.pop(MANIFEST).tobytes().decode()
        return arrays, _checked(json.loads(text), arrays, path)
    except FedtaperError:
        raise
    except FileNotFoundError:
        raise FedtaperError(f"there is no file {path}") from None
    except OSError as trouble:  # not damage: no permission, or a disk that is gone
        raise FedtaperError(f"{path} cannot be read: {one_line(trouble)}") from None
    except Exception as trouble:  # zip, struct, numpy and json each have errors of their own
        raise FedtaperError(f"{path} is damaged: {one_line(trouble)}") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> tuple[str, Any]:
    """One array; its header is checked first, so that a wrong size takes no memory."""
    name = info.filename.removesuffix(".npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise FedtaperError(
            f"{path} is damaged: {one_line(ValueError(name))} is compressed or larger than the file"
        )
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read(file)
        if kind.hasobject:
            raise FedtaperError(f"{path} is damaged: {name} holds objects, not numbers")
        promised = kind.itemsize * int(np.prod([int(side) for side in shape], dtype=object))
        if file.tell() + promised != info.file_size:
            raise FedtaperError(f"{path} is damaged: {name} does not have the size it claims")
    with archive.open(info) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise FedtaperError(f"{path} is damaged: {name} has more data than it claims")
    return name, array


def _checked(notes: Any, arrays: dict[str, Any], path: Path) -> dict[str, Any]:
    """An archive's description, compared with what it holds."""
    if not isinstance(notes, dict) or not isinstance(notes.get("format"), int):
        raise FedtaperError(f"{path} is damaged: its description cannot be read")
    if notes["format"] > FORMAT:
        raise FedtaperError(
            f"{path} has format {notes['format']}, and this version of fedtaper reads formats up "
            f"to {FORMAT}: upgrade fedtaper"
        )
    found = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    if found != notes.get("arrays"):
        raise FedtaperError(f"{path} is damaged: its arrays are not those that were stored")
    sums = notes.get("checksums", {})  # older versions had none in checkpoints
    for name, sum_ in sums.items():
        if name not in arrays or array_digest(arrays[name]) != sum_:
            raise FedtaperError(f"{path} is damaged: {name} has changed")
    return notes


def file_digest(path: Path) -> str:
    """A checksum of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def probe(folder: Path) -> None:
    """Write and remove a file, so that a read-only folder is noticed at once."""
    path = folder / f".{uuid.uuid4().hex[:8]}{PART}"
    path.touch()
    path.unlink(missing_ok=True)  # another writer, who holds the lock, may have swept it away
