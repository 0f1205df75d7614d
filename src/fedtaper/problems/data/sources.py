"""Where each data set comes from: the official address, its checksum, and what it holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedtaper.core.errors import FedtaperError

FOLDER_VARIABLE = "FEDTAPER_DATA"
_ZENODO = "https://zenodo.org/records/10519652/files/"
_ORGANS = (
    "bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver",
    "lung-left", "lung-right", "pancreas", "spleen",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One data set: its file, MD5 and classes; ``augment`` as in the paper's experiments."""

    name: str
    url: str
    md5: str
    classes: tuple[str, ...]
    augment: bool = False
    rare: int = 0

    @property
    def file(self) -> str:
        """The file's name in a cache."""
        return self.url.rsplit("/", 1)[-1]


def _medmnist(name: str, md5: str, classes: tuple[str, ...] | int, rare: int = 0) -> Source:
    labels = tuple(str(k) for k in range(classes)) if isinstance(classes, int) else classes
    return Source(name, f"{_ZENODO}{name}.npz", md5, labels, augment=True, rare=rare)


_KNOWN = (
    Source("digits", "", "", tuple("0123456789"), rare=8),
    _medmnist("organsmnist", "9ab87b696fb54e2a387ebe992d6ed5f1", _ORGANS, rare=6),
    _medmnist("organamnist", "68e3f8846a6bd62f0c9bf841c0d9eacc", _ORGANS, rare=6),
    _medmnist("organcmnist", "b9ceb9546e10131b32923c5bbeaea2b1", _ORGANS, rare=6),
    _medmnist(
        "bloodmnist",
        "7053d0359d879ad8a5505303e11de1dc",
        ("basophil", "eosinophil", "erythroblast", "immature granulocyte", "lymphocyte",
         "monocyte", "neutrophil", "platelet"),
        rare=6,
    ),
    _medmnist("pathmnist", "a8b06965200029087d5bd730944a56c1", 9),
    _medmnist("dermamnist", "0744692d530f8e62ec473284d019b0c7", 7),
    _medmnist("octmnist", "c68d92d5b585d8d81f7112f81e2d0842", 4),
    _medmnist("pneumoniamnist", "28209eda62fecd6e6a2d98b1501bb15f", 2),
    _medmnist("retinamnist", "bd4c0672f1bba3e3a89f0e4e876791e4", 5),
    _medmnist("breastmnist", "750601b1f35ba3300ea97c75c52ff8f6", 2),
    _medmnist("tissuemnist", "ebe78ee8b05294063de985d821c1c34b", 8),
    Source(
        "cifar10",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
)  # fmt: skip
SOURCES = {source.name: source for source in _KNOWN}


def folder_of(data_dir: str | Path | None) -> Path | None:
    """The folder that the user named, in the call or in FEDTAPER_DATA; None for the download."""
    if data_dir is not None and not isinstance(data_dir, (str, os.PathLike)):
        raise FedtaperError(f"data_dir must be a folder, not {data_dir!r:.80}")
    named = data_dir or os.environ.get(FOLDER_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise FedtaperError(f"the data folder {folder} does not exist")
    return folder


def fetch(source: Source, cache: Path | None = None) -> Path:
    """The official file from the cache, downloaded first if it is not there.

    The download is moved into the cache only if its MD5 is right, so a broken transfer leaves
    nothing behind. A cached file that no longer matches is downloaded again.
    """
    try:
        import pooch
    except ImportError:
        raise FedtaperError(
            "downloading data needs pooch: pip install 'fedtaper[torch]', or put "
            f"{source.name}.npz into a folder and name it (data_dir=, {FOLDER_VARIABLE})"
        ) from None
    where = cache or Path(pooch.os_cache("fedtaper"))
    try:
        found = pooch.retrieve(
            source.url,
            known_hash=f"md5:{source.md5}",
            fname=source.file,
            path=where,
            downloader=_Download(),
        )
    except ValueError:
        raise FedtaperError(
            f"the download of {source.url} is damaged: its MD5 is not {source.md5}. Nothing was "
            "kept; try again, or get the file another way and name its folder (data_dir=)"
        ) from None
    except Exception as problem:
        raise FedtaperError(
            f"{source.url} cannot be downloaded ({type(problem).__name__}: {problem}). "
            f"Without a connection, put {source.name}.npz into a folder and name it "
            f"(data_dir=, or the variable {FOLDER_VARIABLE})"
        ) from None
    return Path(found)


class _Download:
    """A download with a progress bar, in the form that pooch calls."""

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Stream the address into the file that pooch will check and move."""
        from urllib.request import Request, urlopen

        from rich.progress import Progress

        request = Request(url, headers={"User-Agent": "fedtaper"})
        with (
            urlopen(request, timeout=60) as answer,
            Path(output_file).open("wb") as target,
            Progress(transient=True) as bar,
        ):
            total = int(answer.headers.get("Content-Length") or 0) or None
            task = bar.add_task(f"download {url.rsplit('/', 1)[-1]}", total=total)
            while chunk := answer.read(1 << 18):
                target.write(chunk)
                bar.advance(task, len(chunk))
