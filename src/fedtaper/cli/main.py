"""The ``fedtaper`` command: which commands there are, and how their mistakes are told."""

from __future__ import annotations

import errno
import signal
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from fedtaper.cli import claims, engines, federation, influence, outcomes, simulation, theory, ui
from fedtaper.cli.terminal import console, show_error, show_warning
from fedtaper.core.errors import FedtaperError
from fedtaper.core.version import __version__
from fedtaper.simulation.progress import Stopped

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,  # click suggests already
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def told(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with a user's mistake told in one line and exit code 2."""

    @wraps(command)
    def run(*words: Any, **options: Any) -> None:
        try:
            command(*words, **options)
        except FedtaperError as problem:
            show_error(str(problem))
            sys.exit(2)
        except KeyboardInterrupt as stop:
            show_error("stopped; a stored run can go on with --resume")
            sys.exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT))
        except MemoryError:
            show_error("there is not enough memory for this: make it smaller")
            sys.exit(2)
        except OSError as problem:
            if problem.errno == errno.EPIPE:  # whoever read the output has gone
                raise
            show_error(f"{problem.filename or 'output'}: {problem.strerror or problem}")
            sys.exit(2)

    return run


for command in (
    simulation.demo,
    simulation.run,
    influence.plan,
    influence.audit,
    theory.check,
    theory.forecast,
    outcomes.fair,
    outcomes.intervals,
    engines.engines,
    claims.reproduce,
    claims.report,
    ui.ui,
    federation.new,
    federation.deploy,
):
    app.command()(told(command))


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"fedtaper {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def entry(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated learning with client-specific tapering step sizes.

    Decide, and check, how much each client influences the shared model.
    Start with `fedtaper demo`.
    """


def main() -> None:
    """Run the command."""
    warnings.showwarning = show_warning
    app(prog_name="fedtaper")
