"""``fedtaper new`` and ``fedtaper deploy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtaper.cli import paths
from fedtaper.cli.simulation import show_run
from fedtaper.cli.terminal import give, output, say, status

PORT, PUBLIC_PORT = 8000, 9443
FEW = 5  # files that are named in a line


def new(
    name: Annotated[str, typer.Argument(help="Name of the app: letters, digits, hyphens.")],
) -> None:
    """Write a complete Flower app: model and data in task.py, sites in federation.toml.

    Example: fedtaper new my-federation
    """
    from fedtaper.deploy.scaffold import new_app

    target = new_app(name)
    say(f"Written: {target}. Next: {target}/README.md")


def deploy(
    file: Annotated[
        Path,
        typer.Argument(help="A TOML file with a table [federation].", callback=paths.settings),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("deployment"),
    host: Annotated[str, typer.Option(help="The server's public name or address.")] = "localhost",
    port: Annotated[
        int | None, typer.Option(help="The SuperLink's port, on 127.0.0.1 [8000; --local: free].")
    ] = None,
    public_port: Annotated[int, typer.Option(help="The port that sites reach.")] = PUBLIC_PORT,
    local: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rehearse with N sites on this machine.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue in an existing folder: keep its certificates, keys and run."
        ),
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="Longest time for a rehearsal, in seconds.")
    ] = 1800.0,
) -> None:
    """Write the scripts of a federation: certificates, keys, server, sites, proxy.

    With --local N the federation also runs here, on loopback, with these same scripts, and is
    then shut down. With --resume, app and scripts are written again and the rest is kept.
    Example: fedtaper deploy federation.toml --local 3
    """
    if local is not None:
        _rehearse(file, out, local, port, resume, seconds)
        return
    from fedtaper.deploy.files import write_deployment
    from fedtaper.deploy.places import Ports

    ports = Ports(PORT if port is None else port, public_port)
    made = write_deployment(file, out, host, ports, resume=resume)
    say(f"Written for {len(made.federation.sites)} sites: {out}. Next: {out}/README.md")
    say(f"Sent to every site: {_some(made.app.travels)} (app/).")
    if made.app.left_out:
        say(f"Left out: {_some(made.app.left_out)}; add files with include in [tool.fedtaper].")


def _rehearse(
    file: Path, out: Path, sites: int, port: int | None, resume: bool, seconds: float
) -> None:
    from fedtaper.deploy.local import LocalFederation

    output.stopped = f"stopped: repeat the command with --resume to continue in {out}"
    with status() as shown:
        rehearsal = LocalFederation(
            file,
            out,
            say=shown.update,
            sites=sites,
            port=port,
            resume=resume,
        )
        with rehearsal as running:
            made = running.run(seconds)
    give(folder=rehearsal.run_folder)
    show_run(made)
    say(f"Stored in {rehearsal.run_folder}; logs in {out}.")


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
