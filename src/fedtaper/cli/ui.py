"""``fedtaper ui``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtaper.cli.terminal import say


def ui(
    folder: Annotated[
        Path, typer.Argument(help="The folder with the runs and claims to show.")
    ] = Path(),
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 for any free one.")
    ] = 8765,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
) -> None:
    """Open a live page in the browser: runs, a studio for step sizes, claims, audits.

    It answers only this machine, and only a page with the token in its address. Runs that are
    started from it continue when it ends. Example: fedtaper ui runs
    """
    from fedtaper.ui.serve import serve

    def opened(address: str) -> None:
        say(f"Open {address}")
        say("Stop with Ctrl-C.")

    serve(folder, port, not no_browser, opened)
