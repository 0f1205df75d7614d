"""The map in docs/design.md is that of the tree, and nothing is probed."""

import ast
import re
from pathlib import Path
from typing import get_args

from fedtaper.core import protocols
from fedtaper.core.protocols import Problem, ProblemKind
from fedtaper.engines import gate, registry

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/fedtaper"
PLAIN = {"__init__.py", "__main__.py", "py.typed"}


def test_the_map_names_every_room_and_no_other():
    text = (ROOT / "docs/design.md").read_text()
    named = set(re.findall(r"^\| `([\w/.]+)` \|", text, flags=re.M))
    folders = {
        f"{folder.relative_to(SOURCE)}/"
        for folder in SOURCE.rglob("*/")
        if folder != SOURCE and "__pycache__" not in folder.parts and any(folder.glob("*.*"))
    }
    files = {path.name for path in SOURCE.glob("*.*")} - PLAIN
    assert named == folders | files


def test_every_kind_of_problem_is_named_where_kinds_are_explained():
    for text in ((ROOT / "docs/design.md").read_text(), Problem.__doc__):
        assert [kind for kind in get_args(ProblemKind) if f'"{kind}"' not in text] == []


def test_the_contract_names_the_protocols_that_stand_elsewhere():
    named = set(re.findall(r":class:`([\w.]+)`", protocols.__doc__))
    found = set()
    for path in SOURCE.rglob("*.py"):
        module = ".".join(("fedtaper", *path.relative_to(SOURCE).with_suffix("").parts))
        classes = re.findall(r"@runtime_checkable\nclass (\w+)\(", path.read_text())
        if "protocols" not in path.parts:
            found |= {f"{module}.{name}" for name in classes}
    assert named == found


def probes(tree):
    """The lines that ask whether an attribute exists: hasattr, and getattr with a default."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name)]
    return {
        call.lineno
        for call in named
        if call.func.id == "hasattr" or (call.func.id == "getattr" and len(call.args) == 3)
    }


def test_nothing_probes_problems_rules_or_engines():
    """What remains has a reason in a comment, on its line or the one before."""
    bare, found = [], 0
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        lines = ["", *text.splitlines()]
        for number in probes(ast.parse(text)):
            line, before = lines[number], lines[number - 1]
            found += 1
            if "#" not in line and not before.lstrip().startswith("#"):
                bare.append(f"{path.relative_to(SOURCE)}: {line.strip()}")
    assert bare == []
    assert found > 10  # the test itself: it does find them


def test_every_type_ignore_has_a_reason():
    """Beside it, on the same line: ``# type: ignore[code]  # why``."""
    bare = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"# type: ignore(?!\[[\w, -]+\]  # \w)", line)
    ]
    assert bare == []


def test_no_module_is_longer_than_350_lines():
    """Our own Python, JavaScript and CSS; what is vendored stays as it came."""
    kinds = ("*.py", "*.js", "*.css")
    ours = [path for kind in kinds for path in SOURCE.rglob(kind) if "vendor" not in path.parts]
    assert len(ours) > 200
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in ours}
    assert {name: count for name, count in lines.items() if count > 350} == {}


def test_the_page_shows_the_engines_capabilities():
    """The table in docs/design.md is the one that ``fedtaper engines`` prints."""
    head, *rows = gate.table()
    ours = 1 + len(registry.BUILT_IN)  # without engines of other packages
    lines = [head[:ours], ["---"] * ours, *(row[:ours] for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)
    assert table in (ROOT / "docs/design.md").read_text(), f"docs/design.md should have\n{table}"
