"""The command's own help, as a page."""

import re
from pathlib import Path

import click
import typer

from _site import put


def write(folder: Path) -> None:
    """One section per command: what it does, its arguments and options."""
    from fedtaper.cli.main import app

    command = typer.main.get_command(app)
    body = ["# The command\n", "`fedtaper --help` and `fedtaper COMMAND --help` print the same.\n"]
    context = click.Context(command, info_name="fedtaper")
    for name in command.list_commands(context):
        body.append(section(name, command.get_command(context, name), context))
    put(folder / "commands.md", "\n".join(body))


def section(name: str, command: click.Command, parent: click.Context) -> str:
    """A command's text and a table of what it takes."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    text = command.help.replace("\b", "").strip()
    rows = [row(parameter, context) for parameter in command.params]
    table = "\n".join(["| | |", "|---|---|", *filter(None, rows)])
    title = f"## fedtaper {name}\n\n```text\nfedtaper {name} {usage}\n```\n"
    body = "\n\n".join(map(paragraph, text.split("\n\n")))
    return f"{title}\n{body}\n\n{table}\n"


def paragraph(text: str) -> str:
    """A paragraph, and the examples at its end as code, where quotes stay as they are typed."""
    found = re.search(r"\b(Examples?): (.*)", " ".join(text.split()))
    if found is None:
        return plain(text)
    words = text[: text.index(f"{found[1]}:")]
    lines = "\n".join(found[2].split("; "))
    return f"{plain(words)}\n\n{found[1]}:\n\n```text\n{lines}\n```"


def row(parameter: click.Parameter, context: click.Context) -> str:
    """One argument or option."""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    shown, help_ = (" ".join(text.split()).replace("|", "\\|") for text in record)
    help_ = help_.replace("\\[", "[")  # typer has escaped it for the terminal
    return f"| `{shown}` | {plain(help_)} |"


def plain(text: str) -> str:
    """Text for a terminal, for Markdown."""
    return text.replace("<", "\\<").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
