"""One self-contained page from runs and claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def report(sources: Sequence[Any], out: str | Path) -> Path:
    """Write the page."""
    return Path(out)
