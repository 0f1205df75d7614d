"""``fedtaper export``: the trained model as a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtaper.cli import paths
from fedtaper.cli.terminal import give, say
from fedtaper.core.errors import FedtaperError
from fedtaper.storage import durable, tensors
from fedtaper.storage.loading import TENSORS


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.", callback=paths.run_folder)],
    out: Annotated[Path, typer.Option(help="File to write.", callback=paths.file_to_write)] = Path(
        "model.safetensors"
    ),
) -> None:
    """Write the trained model to a file: its tensors by name, as .safetensors.

    Example: fedtaper export runs/hospitals --out model.safetensors
    """
    path = run / TENSORS
    if not path.is_file():
        raise FedtaperError(
            f"{run} has no {TENSORS}: it is written only for finished runs of one seed"
        )
    found = tensors.read(path)
    durable.write(out, path.read_bytes())
    count = sum(array.size for array in found.values())
    tensor = "tensor" if len(found) == 1 else "tensors"
    give(model=out)
    say(f"Written: {out} ({len(found)} {tensor}, {count:,} numbers)")
