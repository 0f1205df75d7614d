"""``fedtaper new`` and ``fedtaper deploy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtaper.cli.simulation import show_run
from fedtaper.cli.terminal import console, errors
from fedtaper.core.errors import FedtaperError


def new(
    name: Annotated[str, typer.Argument(help="Name of the app: letters, digits, hyphens.")],
) -> None:
    """Write a ready Flower app: model and data in task.py, sites in federation.toml.

    Example: fedtaper new my-federation
    """
    from fedtaper.deploy.scaffold import new_app

    target = new_app(name)
    console.print(f"Written: {target}. Next: {target}/README.md", highlight=False)


def deploy(
    file: Annotated[Path, typer.Argument(help="A TOML file with a table [federation].")],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("deployment"),
    host: Annotated[str, typer.Option(help="The server's public name or address.")] = "localhost",
    port: Annotated[int, typer.Option(help="The SuperLink's port, on 127.0.0.1.")] = 8000,
    public_port: Annotated[int, typer.Option(help="The port that sites reach.")] = 9443,
    local: Annotated[
        int | None, typer.Option(min=1, help="Rehearse with N sites on this machine.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Longest time for a rehearsal.")] = 1800.0,
) -> None:
    """Write the commands of a federation: certificates, keys, server, sites, proxy.

    With --local N the federation also runs here, on loopback, by those very scripts, and is
    shut down. Example: fedtaper deploy federation.toml --local 3
    """
    if local is None:
        from fedtaper.deploy.files import Ports, write_deployment

        made = write_deployment(file, out, host, Ports(port, public_port))
        console.print(
            f"Written for {len(made.sites)} sites: {out}. Next: {out}/README.md", highlight=False
        )
        return
    from fedtaper.deploy.local import LocalFederation

    with errors.status("") as status:
        rehearsal = LocalFederation(file, out, say=status.update)
        if len(rehearsal.federation.sites) != local:
            raise FedtaperError(
                f"{file} has {len(rehearsal.federation.sites)} sites, not {local}: {out} is "
                "written, nothing was started"
            )
        with rehearsal as running:
            made_run = running.run(seconds)
    show_run(made_run)
    console.print(f"Stored in {rehearsal.run_folder}; logs in {out}.", highlight=False)
