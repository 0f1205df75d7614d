"""The ``fedtaper`` command: which commands there are, and how mistakes are reported."""

from __future__ import annotations

import errno
import inspect
import signal
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from fedtaper.cli import (
    claims,
    engines,
    export,
    federation,
    influence,
    outcomes,
    simulation,
    theory,
    ui,
)
from fedtaper.cli.terminal import console, show_error, show_warning, speaking
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


QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]


def told(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --quiet and --json; a user's mistake is one line and exit code 2."""

    @wraps(command)
    def run(*words: Any, quiet: bool = False, as_json: bool = False, **options: Any) -> None:
        try:
            with speaking(quiet, as_json):
                command(*words, **options)
        except FedtaperError as problem:
            show_error(str(problem))
            sys.exit(2)
        except KeyboardInterrupt as stop:
            show_error("stopped; continue a stored run with --resume")
            sys.exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT))
        except MemoryError:
            show_error("there is not enough memory for this: use a smaller problem")
            sys.exit(2)
        except OSError as problem:
            if problem.errno == errno.EPIPE:  # whoever read the output has gone
                raise
            show_error(f"{problem.filename or 'output'}: {problem.strerror or problem}")
            sys.exit(2)

    return run if command is ui.ui else _with_options(run, command)  # a page has no result


def _with_options(run: Any, command: Callable[..., None]) -> Callable[..., None]:
    """The wrapped command, with the two options added to its signature."""
    own = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", QUIET), ("as_json", JSON))
    ]
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])
    run.__annotations__ = {p.name: p.annotation for p in run.__signature__.parameters.values()}
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
    outcomes.price,
    outcomes.contributions,
    outcomes.board,
    engines.engines,
    claims.reproduce,
    claims.report,
    export.export,
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

    Decide how much each client influences the shared model, and check that it does.
    Start with `fedtaper demo`.
    """


def main() -> None:
    """Run the command."""
    warnings.showwarning = show_warning
    app(prog_name="fedtaper")
