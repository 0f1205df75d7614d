"""Where a result came from: version, command, commit, machine and time."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.version import __version__
from fedtaper.results import Run
from fedtaper.storage.durable import FORMAT


def provenance(run: Run) -> dict[str, Any]:
    """Where a result came from."""
    return environment() | {
        "format": FORMAT,
        "engine": run.engine,
        **({"way": run.way, "way_because": run.way_because} if run.way else {}),
        "kind": run.experiment.problem.kind,
        "seeds": list(run.seeds),
        "many": run.many,
        "seconds": round(run.seconds, 4),
        "diverged": [asdict(d) for d in run.diverged],
        **{k: v for k, v in (("start", run.start), ("stopped", run.stopped)) if v},
    }


def environment() -> dict[str, Any]:
    """Version, command, commit, machine and time."""
    return {
        "fedtaper": __version__,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of this package's own source tree, if it is run from one."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
