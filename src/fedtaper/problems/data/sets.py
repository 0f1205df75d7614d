"""A data set in memory: images as bytes, labels, and how they are normalised."""

from __future__ import annotations

import math
import tarfile
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.problems.data.sources import FOLDER_VARIABLE, SOURCES, Source, fetch, folder_of

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
MOST_CLASSES = 100_000
_TEST_SHARE = 0.25  # of the digits, which have no test set of their own
_DIGITS_SPLIT = 3  # place of the draws


@dataclass(frozen=True)
class ImageData:
    """Images (samples, height, width, channels) as bytes, and their labels."""

    name: str
    train_x: NDArray[np.uint8]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]

    @cached_property
    def scale(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and deviation of each channel of the training images, of bytes over 255."""
        levels = np.arange(256) / 255
        mean, deviation = [], []
        for channel in range(self.train_x.shape[-1]):
            share = np.bincount(self.train_x[..., channel].ravel(), minlength=256).astype(float)
            share /= share.sum()
            mean.append(share @ levels)
            deviation.append(np.sqrt(np.maximum(share @ levels**2 - mean[-1] ** 2, 1e-12)))
        return np.array(mean, dtype=np.float32), np.array(deviation, dtype=np.float32)

    def normalised(self, x: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Float images (samples, channels, height, width) with mean 0 and deviation 1."""
        mean, deviation = self.scale
        scaled = (x.astype(np.float32) / 255 - mean) / deviation
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def load_images(name: str, data_dir: str | Path | None = None) -> ImageData:
    """A data set by name, or the user's own ``.npz`` file by its path.

    Args:
        name: one of ``SOURCES``, or a path ending in ``.npz`` (MedMNIST's keys: train_images,
            train_labels, test_images, test_labels).
        data_dir: a folder that holds ``NAME.npz``; default the variable FEDTAPER_DATA, else
            the official file, downloaded once and checked against its MD5.

    >>> digits = load_images("digits")
    >>> digits.train_x.shape, digits.test_x.shape
    ((1347, 8, 8, 1), (450, 8, 8, 1))
    """
    folder = None if name == "digits" else folder_of(data_dir)
    return _load(name, None if folder is None else str(folder.resolve()))


@lru_cache(maxsize=4)
def _load(name: str, folder: str | None) -> ImageData:
    if name == "digits":
        return _digits()
    if name.endswith(".npz"):
        path = Path(name) if folder is None else Path(folder) / name
        return _read_npz(path, Source(path.stem, "", "", ()))
    if name not in SOURCES:
        raise FedtaperError(
            f"there is no data set {name!r}: use one of {', '.join(SOURCES)}, or the path of "
            f"an .npz file of your own{nearest(name, SOURCES)}"
        )
    source = SOURCES[name]
    if folder is not None:
        return _read_npz(Path(folder) / f"{name}.npz", source)
    path = fetch(source)
    return _read_cifar(path, source) if path.name.endswith(".tar.gz") else _read_npz(path, source)


def _digits() -> ImageData:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise FedtaperError(
            "the digits come with scikit-learn: pip install 'fedtaper[torch]'"
        ) from None
    found = load_digits()
    images = np.minimum(np.round(found.images * (255 / 16)), 255).astype(np.uint8)[..., None]
    labels = found.target.astype(np.int64)
    order = draws.generator(0, _DIGITS_SPLIT).permutation(len(labels))
    train, test = np.split(order, [len(order) - math.ceil(_TEST_SHARE * len(order))])
    names = SOURCES["digits"].classes
    return ImageData("digits", images[train], labels[train], images[test], labels[test], names)


def _read_npz(path: Path, source: Source) -> ImageData:
    try:
        with np.load(path, allow_pickle=False) as found:
            missing = [key for key in KEYS if key not in found.files]
            if missing:
                raise FedtaperError(
                    f"{path} has no {', '.join(missing)}: it must hold {', '.join(KEYS)}"
                )
            arrays = {key: found[key] for key in KEYS}
    except FileNotFoundError:
        raise FedtaperError(
            f"there is no file {path}: put it there, or name no folder (data_dir=, "
            f"{FOLDER_VARIABLE}) to have it downloaded"
        ) from None
    except FedtaperError:
        raise
    except MemoryError:
        raise FedtaperError(f"{path} says that it holds more than fits in memory") from None
    except Exception as problem:  # zip, struct and numpy each have errors of their own
        raise FedtaperError(f"{path} is damaged: {problem}; remove it and get it again") from None
    return _checked(path, source, arrays)


def _checked(path: Path, source: Source, arrays: dict[str, Any]) -> ImageData:
    images, labels = {}, {}
    for part in ("train", "test"):
        x, y = arrays[f"{part}_images"], np.asarray(arrays[f"{part}_labels"])
        if x.dtype != np.uint8 or x.ndim not in (3, 4):
            raise FedtaperError(
                f"{path}: {part}_images must be bytes of shape (samples, height, width[, "
                f"channels]), not {x.dtype} {x.shape}"
            )
        if y.size != len(x) or not np.issubdtype(y.dtype, np.integer) or (y < 0).any():
            raise FedtaperError(
                f"{path}: {part}_labels must be {len(x)} whole numbers of at least 0, one per image"
            )
        if not len(x):
            raise FedtaperError(f"{path}: {part}_images is empty")
        if y.max() >= MOST_CLASSES:
            raise FedtaperError(
                f"{path}: {part}_labels has class {y.max()}; labels must be below {MOST_CLASSES:,}"
            )
        images[part] = x if x.ndim == 4 else x[..., None]
        labels[part] = y.reshape(-1).astype(np.int64)
    if images["train"].shape[1:] != images["test"].shape[1:]:
        raise FedtaperError(f"{path}: train and test images differ in shape")
    highest = 1 + max(int(labels[part].max()) for part in labels)
    classes = source.classes or tuple(str(k) for k in range(highest))
    if highest > len(classes):
        raise FedtaperError(
            f"{path} has label {highest - 1}, but {source.name} has only {len(classes)} classes"
        )
    return ImageData(
        source.name, images["train"], labels["train"], images["test"], labels["test"], classes
    )


def _read_cifar(path: Path, source: Source) -> ImageData:
    """The binary version: records of one label and 3 x 32 x 32 bytes. No pickle is loaded."""
    parts: dict[str, list[NDArray[np.uint8]]] = {"data": [], "test": []}
    try:
        with tarfile.open(path) as archive:
            members = sorted(m.name for m in archive.getmembers() if m.name.endswith(".bin"))
            for name in members:
                content = archive.extractfile(name)
                assert content is not None
                rows = np.frombuffer(content.read(), dtype=np.uint8).reshape(-1, 3073)
                parts[name.rsplit("/", 1)[-1].split("_")[0]].append(rows)
        stacked = {part: np.concatenate(rows) for part, rows in parts.items()}
    except (OSError, ValueError, KeyError, EOFError, tarfile.TarError) as problem:
        raise FedtaperError(f"{path} is damaged: {problem}; remove it and get it again") from None
    arrays = {}
    for part, rows in (("train", stacked["data"]), ("test", stacked["test"])):
        arrays[f"{part}_images"] = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"{part}_labels"] = rows[:, 0]
    return _checked(path, source, arrays)
