"""``pip install fedtaper`` without extras: every command that needs none of them works.

A finder on ``sys.meta_path`` refuses what only the extras and the developers' tools bring, so a
process sees what a fresh machine would, whatever is installed here.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORT_NAMES = {  # where a package is imported by another name
    "scikit-learn": "sklearn",
    "mlflow-skinny": "mlflow",
    "axe-playwright-python": "axe_playwright_python",
    "import-linter": "importlinter",
    "pytest-xdist": "xdist",
    "pytest-cov": "pytest_cov",
    "sp-repo-review": "sp_repo_review",
    "validate-pyproject": "validate_pyproject",
    "sphinx-design": "sphinx_design",
    "myst-parser": "myst_parser",
}
BLOCKED = """
import importlib.abc, sys
blocked = set(BLOCKED)
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""
COMMAND = """
from fedtaper_command import main
sys.argv = ["fedtaper", *WORDS]
main()
"""
EXPERIMENT = """
[experiment]
rounds = 30
local_steps = 5
batch_size = 20
seed = 1

[problem]
kind = "linear"
num_clients = 3
dim = 2
samples = 200
feature_spread = 1.0

[[schedules]]
c = 0.1
delta = 0.76

[[schedules]]
clients = 2
c = 0.05
delta = 0.76
"""


def package(requirement: str) -> str:
    """The import name of a requirement such as ``flwr[simulation]>=1.41``."""
    name = re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]
    return IMPORT_NAMES.get(name, name)


def extras() -> list[str]:
    """Every package that is not a dependency of the package itself, by its import name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [*project["project"]["optional-dependencies"].values()]
    groups += project["dependency-groups"].values()
    named = {package(line) for group in groups for line in group if isinstance(line, str)}
    base = {package(line) for line in project["project"]["dependencies"]}
    return sorted(named - base - {"fedtaper"})


def bare(code: str, folder: Path, words: list[str] | None = None):
    """Run code, or the command with these words, in a process without any extra."""
    text = BLOCKED.replace("set(BLOCKED)", repr(set(extras())))
    text += code.replace("WORDS", repr(words))
    settings = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=settings, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an experiment, and a run of it with the updates an audit reads."""
    made = tmp_path_factory.mktemp("base")
    (made / "e.toml").write_text(EXPERIMENT)
    done = bare(COMMAND, made, ["run", "e.toml", "--out", "stored", "--updates", "--quiet"])
    assert done.returncode == 0, done.stderr
    return made


def test_the_extras_are_out_of_reach(tmp_path):
    """The test itself: what is blocked includes the heavy ones, and cannot be imported."""
    names = extras()
    assert {"torch", "sklearn", "flwr", "ray", "starlette", "pandas", "mlflow"} <= set(names)
    for name in ("torch", "flwr", "pandas"):
        done = bare(f"import {name}", tmp_path)
        assert done.returncode != 0
        assert f"No module named {name!r}" in done.stderr


def test_every_public_name_but_none_of_the_extras_is_imported(tmp_path):
    done = bare("import fedtaper\nfor name in fedtaper.__all__: getattr(fedtaper, name)", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "plan"),
        (["engines"], "cpu cannot run here: the engine 'cpu' needs torch"),
        (["check", "e.toml"], "A2"),
        (["forecast", "e.toml", "--n", "1e9"], "1e+09"),
        (
            ["plan", "1", "0.1", "0.1", "--rounds", "100", "--local-steps", "5"],
            "Influence at round 100",
        ),
        (["audit", "stored"], "declared"),
        (["report", "stored", "--out", "report.html"], "report.html"),
        (["run", str(ROOT / "examples/case3.toml"), "--out", "case3", "--quiet"], ""),
        (["run", "e.toml", "--out", "stored", "--resume", "--quiet"], ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_without_extras(folder, words, said):
    done = bare(COMMAND, folder, words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_without_extras(tmp_path):
    """``make demo`` on a fresh machine, with fewer seeds: all nine runs and their page."""
    done = bare(COMMAND, tmp_path, ["demo", "--seeds", "2", "--out", "shown", "--json"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["report"] == "shown/report.html"
    page = (tmp_path / "shown/report.html").read_text()
    stored = sorted(path.parent.name for path in tmp_path.glob("shown/*/config.toml"))
    assert len(stored) == 9
    for name in stored:
        assert name in page


def test_a_claim_without_extras(tmp_path):
    """A claim about regression is judged."""
    words = ["reproduce", "R1", "--out", "claims", "--seeds", "10", "--quiet"]
    done = bare(COMMAND, tmp_path, words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "claims/claims.json").exists()


def test_what_needs_an_extra_names_it(folder):
    (folder / "images.toml").write_text(
        '[experiment]\nrounds = 1\nlocal_steps = 1\n[problem]\nkind = "images"\n'
        'data_set = "digits"\nnum_clients = 2\n[[schedules]]\nc = 0.1\ndelta = 0.8\nclients = 2\n'
    )
    done = bare(COMMAND, folder, ["run", "images.toml", "--out", "images"])
    assert done.returncode != 0
    assert "fedtaper[torch]" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
