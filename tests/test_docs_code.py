"""Every code block of the README and of the pages runs, in order, in a folder of its own.

A block that takes minutes or many machines is marked with the reason, in a comment before it:
``<!-- not run: REASON -->``. A comment ``<!-- first: CODE -->`` holds what a page's blocks need
and a reader does not: data to load, a smaller size. Lines of a console block that start with
``$ fedtaper`` are run by the command itself.
"""

import re
import shlex
import shutil
import tomllib
import warnings
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from fedtaper.cli.main import app

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "docs", ROOT / "docs/development")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(path for folder in FOLDERS for path in folder.glob("*.md"))
LANGUAGES = {"python", "console", "toml", "text", "sh"}
REASON = re.compile(r"<!-- not run: (.{10,})-->", flags=re.S)
FIRST = re.compile(r"<!-- first:\n(.*?)-->", flags=re.S)


def blocks(page):
    """What to run, in order: (line, language, text). Marked blocks are left out."""
    reason = ""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type == "html_block":
            reason = REASON.match(token.content.strip())
            for found in FIRST.finditer(token.content):
                yield line, "python", found[1]
            continue
        if token.type == "code_block":
            yield line, "none", token.content
        elif token.type == "fence" and not token.info.startswith("{") and not reason:
            yield line, token.info.strip() or "none", token.content
        reason = ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_are_named(page):
    """A block without a language would be neither coloured nor run."""
    unnamed = [(line, kind) for line, kind, _ in blocks(page) if kind not in LANGUAGES]
    assert unnamed == []


def runs(page):
    return any(kind in ("python", "console", "toml") for _, kind, _ in blocks(page))


@pytest.mark.parametrize("page", list(filter(runs, PAGES)), ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    names: dict = {"__name__": "__page__"}
    for line, kind, text in blocks(page):
        where = f"{page.relative_to(ROOT)}:{line}"
        if kind == "python":
            text = text.replace("range(1000)", "range(3)")  # a study's size, in the README
            code = compile("\n" * line + text, str(page), "exec")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pages show warnings on purpose
                exec(code, names)
        elif kind == "console":
            for command in re.findall(r"^\$ fedtaper (.+)$", text, flags=re.M):
                words = shlex.split(command, comments=True)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
                assert done.exit_code == 0, f"{where}: fedtaper {command}\n{done.output}"
        elif kind == "toml":
            tomllib.loads(text)
