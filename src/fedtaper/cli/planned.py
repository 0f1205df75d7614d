"""Planned step sizes as a file: the user's own file with only rounds and step sizes changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedtaper.cli.terminal import say
from fedtaper.core.errors import FedtaperError
from fedtaper.experiment import Experiment
from fedtaper.planning.targets import tidy
from fedtaper.storage import durable
from fedtaper.storage.changed import beside, with_steps


def settings_of(e: Experiment) -> dict[str, Any]:
    """All that a plan takes over from an experiment: everything but rounds and step sizes."""
    return {f.name: getattr(e, f.name) for f in fields(e) if f.name not in ("rounds", "schedules")}


def check_out(file: Path, out: Path | None) -> None:
    """Refuse, before any work, a file to write that would replace or break the one to read."""
    if out is None:
        return
    if out.resolve() == file.resolve():
        raise FedtaperError(f"--out {out} is the file to plan for: name another file to write")
    needed = beside(file) if out.parent.resolve() != file.parent.resolve() else []
    if needed:
        raise FedtaperError(
            f"{out} would not find {', '.join(needed)}, which must lie beside it: write it to "
            f"{file.parent / out.name}"
        )


def write(file: Path, made: Experiment, out: Path, given: Mapping[str, Any]) -> None:
    """Write the file with a plan's rounds and step sizes, and say what to do with it."""
    durable.write(out, with_steps(file, tidy(made), given).encode())
    if made.problem.kind == "recorded":
        say(f"Written: {out}. Only the sizes of its data are known: train with it from Python.")
    else:
        say(f"Written: {out}. Next: fedtaper run {out}")
