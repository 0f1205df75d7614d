"""Pages of the site that are made when it is built."""

from pathlib import Path


def put(path: Path, text: str) -> None:
    """Write a page where it is new or has changed, so that the others are not built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
