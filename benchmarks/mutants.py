"""Would the tests notice? Change one operator, comparison or constant, and run the tests.

``python benchmarks/mutants.py --sample 20`` draws so many mutants of each module (fixed seed) and
runs the module's own tests against each, in a fork of this process, quick ones first, until one
fails. ``--longest 2`` leaves out tests that take longer: the score is then a lower bound. A mutant
that no test notices survives: it is either equal to the original in every case that matters, or a
hole. docs/development/mutants.md lists the survivors, one by one.
"""

import argparse
import ast
import importlib.abc
import importlib.util
import io
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from copy import copy
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/fedtaper"
MODULES = {  # what is changed: the tests that must notice
    "schedules": (["core/tapers.py", "core/shapes.py"],
                  ["test_by_value", "test_schedules_and_influence", "test_shaped_schedules"]),
    "influence": (["core/influence.py", "experiment/influences.py"],
                  ["test_by_value_influence", "test_schedules_and_influence",
                   "test_participation"]),
    "clock": (["theory/clock.py"], ["test_clock", "test_shaped_schedules"]),
    "plan": (["planning/plan.py", "planning/over_time.py"],
             ["test_by_value", "test_by_value_plan", "test_plan", "test_plan_over_time",
              "test_plan_over_time_by_value"]),
    "rules": (["rules/local.py", "rules/server.py", "rules/momentum.py", "rules/control.py"],
              ["test_by_value", "test_by_value_rules", "test_rules", "test_stateful_rules"]),
    "ode": (["theory/ode.py"], ["test_by_value", "test_by_value_ode", "test_ode"]),
    "forecast": (["theory/forecast.py"],
                 ["test_by_value", "test_ode", "test_by_value_forecast"]),
    "audit": (["auditing/judge.py"], ["test_by_value", "test_by_value_judge", "test_audit"]),
}  # fmt: skip
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.MatMult: ast.Mult, ast.Lt: ast.LtE,
    ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "any": "all",
         "all": "any", "argmax": "argmin", "argmin": "argmax", "ones": "zeros"}  # fmt: skip
SHOWN = ("repr", "strict")  # keywords that decide no value
LONGEST = 240  # seconds; a mutant that hangs is noticed


class Places(ast.NodeVisitor):
    """Every place that can be changed, in order; changes the one that is asked for."""

    def __init__(self, wanted=None):
        self.wanted, self.found = wanted, []

    def _place(self, node, change):
        if self.wanted == len(self.found):
            change()
        self.found.append(node.lineno)

    def visit_Raise(self, node):
        """What an error says is not a value."""

    def visit_JoinedStr(self, node):
        """Words are no values."""

    def visit_AnnAssign(self, node):
        """Types are no values."""
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node):
        """Its defaults and its body, not its types."""
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(part)

    def visit_Call(self, node):
        """All but flags that say how something is shown, compared or checked, not what it is."""
        own = isinstance(node.func, ast.Name) and node.func.id == "field"
        given = [k for k in node.keywords if k.arg not in SHOWN and not (own and _flag(k))]
        for part in [node.func, *node.args, *given]:
            self.visit(part)

    def visit_BinOp(self, node):
        """Plus for minus, times for divided by, and for or."""
        if type(node.op) in SWAPS:
            self._place(node, lambda: setattr(node, "op", SWAPS[type(node.op)]()))
        self.generic_visit(node)

    visit_BoolOp = visit_BinOp  # noqa: N815 (as ast names it)

    def visit_Compare(self, node):
        """Less for at most, equal for unequal."""
        if type(node.ops[0]) in SWAPS:
            new = [SWAPS[type(node.ops[0])](), *node.ops[1:]]
            self._place(node, lambda: setattr(node, "ops", new))
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        """Minus signs go."""
        if isinstance(node.op, ast.USub):
            self._place(node, lambda: setattr(node, "op", ast.UAdd()))
        self.generic_visit(node)

    def visit_Constant(self, node):
        """Another number."""
        if isinstance(node.value, bool):
            self._place(node, lambda: setattr(node, "value", not node.value))
        elif isinstance(node.value, (int, float)):
            new = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 + 0.1
            self._place(node, lambda: setattr(node, "value", new))

    def visit_Attribute(self, node):
        """The largest for the smallest, as a method."""
        if node.attr in NAMES:
            self._place(node, lambda: setattr(node, "attr", NAMES[node.attr]))
        self.generic_visit(node)

    def visit_Name(self, node):
        """The same as a function."""
        if node.id in NAMES and isinstance(node.ctx, ast.Load):
            self._place(node, lambda: setattr(node, "id", NAMES[node.id]))


def _flag(keyword):
    """Whether a keyword is a plain True or False."""
    return isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)


def places(path):
    """The lines of all that can be changed in a file."""
    look = Places()
    look.visit(ast.parse(path.read_text()))
    return look.found


def mutated(path, wanted):
    """The file's tree with one change, and the changed line in words."""
    tree = ast.parse(path.read_text())
    look = Places(wanted)
    look.visit(tree)
    line = look.found[wanted]
    before, after = ast.parse(path.read_text()), ast.fix_missing_locations(tree)
    old, new = (_statement(t, line) for t in (before, after))
    differ = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    shown = slice(max(0, differ - 80), differ + 60)
    return after, line, f"{old[shown]}  ->  {new[shown]}"


def _statement(tree, line):
    """The smallest statement around a line, on one line; of a definition its head."""
    whole = (ast.ClassDef, ast.FunctionDef)
    around = [
        n for n in ast.walk(tree)
        if isinstance(n, ast.stmt) and _first(n) <= line <= (n.end_lineno or 0)
    ]  # fmt: skip
    best = min(around, key=lambda n: (n.end_lineno or 0) - _first(n))
    if isinstance(best, whole):
        best = copy(best)  # the tree itself is run later
        best.body = [ast.Expr(ast.Constant(...))]
    return " ".join(ast.unparse(best).split())


def _first(node):
    """The first line of a statement, with its decorators."""
    return min(n.lineno for n in [node, *getattr(node, "decorator_list", [])])


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, path, tree):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.path, self.tree = path, tree

    def find_spec(self, name, path=None, target=None):
        """Where the changed module comes from."""
        if name == self.name:
            return importlib.util.spec_from_file_location(name, self.path, loader=self)
        return None

    def exec_module(self, module):
        """Run the changed tree."""
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


class Quickest:
    """A pytest plugin: quick tests first, so that most mutants are noticed within a second.

    Without known times it measures them, and writes them to the file.
    """

    def __init__(self, file, known=None, longest=math.inf):
        self.file, self.known, self.longest = file, known, longest
        self.found = {}

    def pytest_collection_modifyitems(self, items):
        """Sort what was collected, without what takes too long."""
        if self.known is not None:
            items[:] = [i for i in items if self.known.get(i.nodeid, 0.0) <= self.longest]
            items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logstart(self, nodeid):
        """Seconds of this process: others do not count."""
        self.found[nodeid] = -time.process_time()

    def pytest_runtest_logfinish(self, nodeid):
        """Until its end, fixtures included."""
        self.found[nodeid] += time.process_time()

    def pytest_sessionfinish(self):
        """For the runs with mutants."""
        if self.known is None:
            self.file.write_text(json.dumps(self.found))


def noticed(path, tree, tests, quickest):
    """Whether a test fails with the changed module: in a fork, since modules stay imported."""
    process = os.fork()
    if process == 0:
        code = 1
        with suppress(BaseException):
            signal.alarm(LONGEST)
            sys.meta_path.insert(0, Changed(path, tree))
            import pytest

            words = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly",
                     "-m", "not (federation or timed or gpu or study)", *tests]  # fmt: skip
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = int(pytest.main(words, plugins=[quickest]))
        os._exit(0 if code == 0 else 1)
    _, status = os.waitpid(process, 0)
    return status != 0


def one_module(name, sample, seed, longest):
    """Make a module's mutants, and say which survived: how many were noticed, and how many made."""
    files, tests = MODULES[name]
    known = [f"tests/{test}.py" for test in tests]
    every = [(SOURCE / f, k) for f in files for k in range(len(places(SOURCE / f)))]
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        whole = ast.parse((SOURCE / files[0]).read_text())
        if noticed(SOURCE / files[0], whole, known, Quickest(times)):
            raise SystemExit(f"{name}: its tests fail without any change")
        quickest = Quickest(times, json.loads(times.read_text()), longest)
    chosen = random.Random(f"{seed} {name}").sample(every, min(sample, len(every)))
    made = 0
    for path, k in sorted(chosen):
        tree, line, words = mutated(path, k)
        found = noticed(path, tree, known, quickest)
        made += found
        if not found:
            print(f"  survived: {path.relative_to(SOURCE)}:{line}: {words}", flush=True)
    left = sum(seconds > longest for seconds in quickest.known.values())
    print(f"{name}: {made} of {len(chosen)} noticed, of {len(every)} that can be made"
          f" ({left} of {len(quickest.known)} tests left out)", flush=True)  # fmt: skip
    return made, len(chosen)


def main():
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--sample", type=int, default=20, help="mutants of each module")
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--longest", type=float, default=math.inf, help="seconds of a test to ask")
    ask.add_argument("modules", nargs="*", default=list(MODULES))
    given = ask.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    import hypothesis, numba, numpy, pytest, scipy.integrate, scipy.optimize, scipy.stats  # noqa

    found = [one_module(name, given.sample, given.seed, given.longest) for name in given.modules]
    killed, total = (sum(column) for column in zip(*found, strict=True))
    print(f"{killed} of {total} noticed: {100 * killed / max(1, total):.1f} %")


if __name__ == "__main__":
    main()
