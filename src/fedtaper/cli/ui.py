"""``fedtaper ui``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtaper.cli.terminal import console


def ui(
    folder: Annotated[
        Path, typer.Argument(help="The folder with the runs and claims to show.")
    ] = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8765,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Open a live page in the browser: runs, a studio for step sizes, claims, audits.

    It answers only this machine, and only a page with the token in its address. Runs that are
    started from it continue when it ends. Example: fedtaper ui runs
    """
    from fedtaper.ui.serve import serve

    def say(address: str) -> None:
        console.print(f"Open {address}", highlight=False, soft_wrap=True)
        console.print("Stop with Ctrl-C.", highlight=False)

    serve(folder, port, not no_browser, say)
