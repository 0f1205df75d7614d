"""Programs beside the package, which no other test runs: what they take from it exists."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/pictures/*.py")])


def module_of(name):
    """The module of that name, or None if it is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name == name or name.startswith(f"{missing.name}."):
            return None
        return pytest.skip(f"{missing.name} is not installed")


def missing_names(tree):
    """The names of the package that a program imports, or looks up in a module, and that are none.

    Names of modules come first, since ``ast.walk`` meets an import before the lines that use it.
    """
    modules, missing = {}, []
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            own = [part for part in node.names if part.name.startswith("fedtaper")]
            modules |= {part.asname or "fedtaper": part.name for part in own}
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedtaper"):
            for part in node.names:
                whole = f"{node.module}.{part.name}"
                if module_of(whole) is not None:
                    modules[part.asname or part.name] = whole
                elif not hasattr(module_of(node.module), part.name):
                    missing.append(whole)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = modules.get(node.value.id)
            if name and not hasattr(module_of(name), node.attr):
                missing.append(f"{name}.{node.attr}")
    return missing


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_what_a_program_takes_from_the_package_exists(path):
    assert missing_names(ast.parse(path.read_text())) == []


def test_what_does_not_exist_is_noticed():
    program = """
import fedtaper as ft
from fedtaper.engines import cpu, nowhere
from fedtaper.engines.cpu import begin
cpu.start(ft.Power, ft.Unknown)
"""
    assert missing_names(ast.parse(program)) == [
        "fedtaper.engines.nowhere", "fedtaper.engines.cpu.begin", "fedtaper.engines.cpu.start",
        "fedtaper.Unknown",
    ]  # fmt: skip
