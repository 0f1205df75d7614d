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

import click
import typer
from typer.core import TyperGroup

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
from fedtaper.cli.terminal import fail, output, print_json, say, show_error, show_warning, speaking
from fedtaper.core.errors import FedtaperError
from fedtaper.core.version import __version__
from fedtaper.simulation.progress import Stopped


class Commands(TyperGroup):
    """The commands; words that cannot be read are one line, as all mistakes are."""

    def main(  # type: ignore[override]  # only these are used
        self, args: Any = None, standalone_mode: bool = True, **how: Any
    ) -> Any:
        """Run the command that these words name."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, standalone_mode=False, **{**how, "prog_name": "fedtaper"})
        except click.exceptions.NoArgsIsHelpError as wanted:
            if not standalone_mode:
                raise
            click.echo(wanted.format_message())
            sys.exit(2)
        except (click.ClickException, FedtaperError) as problem:
            if not standalone_mode:
                raise
            text = _read(problem)
            if "--json" in words:
                print_json({"error": text, "tables": [], "notes": []})
            show_error(text)
            sys.exit(2)
        except OSError as problem:  # JSON to a full disk
            if not standalone_mode:
                raise
            show_error(_refused(problem))
            sys.exit(2)
        except click.Abort:
            if not standalone_mode:
                raise
            sys.exit(128 + signal.SIGINT)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _refused(problem: OSError) -> str:
    """What the machine refused, and where."""
    return f"{problem.filename or 'output'}: {problem.strerror or problem}"


def _read(problem: click.ClickException | FedtaperError) -> str:
    """What is wrong with the words, and where their help is."""
    if isinstance(problem, FedtaperError):
        return str(problem)
    text = " ".join(problem.format_message().split())
    context = getattr(problem, "ctx", None)  # only errors of usage know their command
    return text if context is None else f"{text} See {context.command_path} --help."


app = typer.Typer(
    cls=Commands,
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
        with speaking(quiet, as_json):
            try:
                command(*words, **options)
            except FedtaperError as problem:
                fail(str(problem))
                sys.exit(2)
            except KeyboardInterrupt as stop:
                fail(output.stopped)
                sys.exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT))
            except MemoryError:
                fail("there is not enough memory for this: use a smaller problem")
                sys.exit(2)
            except OSError as problem:
                if problem.errno == errno.EPIPE:  # whoever read the output has gone
                    raise
                fail(_refused(problem))
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
        say(f"fedtaper {__version__}")
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
    try:
        app()
    except KeyboardInterrupt:  # while the commands are being put together
        sys.exit(128 + signal.SIGINT)
