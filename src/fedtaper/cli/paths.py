"""Files and folders that commands are given: what is wrong with one is said before any work."""

from __future__ import annotations

import os
from pathlib import Path

from fedtaper.core.checks import as_path
from fedtaper.core.errors import FedtaperError, nearest

PICTURES = (  # what Matplotlib writes
    "avif", "eps", "gif", "jpeg", "jpg", "pdf", "pgf", "png", "ps", "raw", "rgba", "svg", "svgz",
    "tif", "tiff", "webp",
)  # fmt: skip


def settings(path: Path | None) -> Path | None:
    """A TOML file to read."""
    if path is None or as_path(path).is_file():
        return path
    if path.is_dir():
        raise FedtaperError(f"{path} is a folder: name a TOML file in it")
    return _absent(path, "file")


def run_folder(path: Path) -> Path:
    """A folder with a run."""
    if as_path(path).is_file():
        raise FedtaperError(f"{path} is a file: name a run folder, such as runs/{path.stem}")
    return path if path.is_dir() else _absent(path, "run folder")


def source(path: Path) -> Path:
    """A run folder, or a TOML file."""
    return path if as_path(path).exists() else _absent(path, "file or run folder")


def file_to_write(path: Path | None) -> Path | None:
    """A file that is written at the end."""
    if path is not None and as_path(path).is_dir():
        raise FedtaperError(f"{path} is a folder: name a file to write")
    return path


def picture(path: Path | None) -> Path | None:
    """A figure that is drawn at the end, in the format of its name."""
    if path is None:
        return None
    file_to_write(path)
    if path.suffix[1:].lower() not in PICTURES:
        raise FedtaperError(
            f"{path} names no format of a figure: write {path.stem}.png, .svg, .pdf"
        )
    if not path.parent.is_dir():
        raise FedtaperError(f"{path} cannot be drawn: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise FedtaperError(f"{path} cannot be drawn: {path.parent} is not writable")
    return path


def _absent(path: Path, what: str) -> Path:
    """The error about a missing file or folder, with the nearest name beside it."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        beside = []
    raise FedtaperError(f"there is no {what} {path}{nearest(path.name, beside)}")
