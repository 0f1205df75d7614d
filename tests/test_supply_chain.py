"""Lock file, oldest versions and page of licences follow what pyproject.toml declares."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HERE = Path(__file__).parent.parent
WITHOUT_HASH = {"torch"}  # its CPU builds come from more than one index; pinned by hand
PYPROJECT = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))


def declared(extras=True):
    """Every declared requirement: of the package, of its extras and of its development."""
    project = PYPROJECT["project"]
    lines = list(project["dependencies"])
    if extras:
        for found in project["optional-dependencies"].values():
            lines += found
        for found in PYPROJECT["dependency-groups"].values():
            lines += [line for line in found if isinstance(line, str)]
    found = [Requirement(line) for line in lines]
    return [one for one in found if canonicalize_name(one.name) != "fedtaper"]


def pinned(name):
    """The versions that a file pins, and its lines, by package."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if line and not line.startswith("#")]
    heads = [re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line) for line in found]
    assert all(heads), name
    return {
        canonicalize_name(head[1]): (Version(head[2]), line)
        for head, line in zip(heads, found, strict=True)
    }


def test_every_declared_package_is_locked_with_a_version_that_fits_and_a_hash():
    locked = pinned("requirements-lock.txt")
    for one in declared():
        name = canonicalize_name(one.name)
        if name in WITHOUT_HASH:
            continue
        assert name in locked, f"{name} is not in the lock file: python benchmarks/lock.py"
        assert locked[name][0] in one.specifier, f"{name} {locked[name][0]}"
    for name, (_, line) in locked.items():
        assert re.search(r" --hash=sha256:[0-9a-f]{64}( |$)", line), name


def test_the_lock_and_the_constraints_agree():
    locked = pinned("requirements-lock.txt")
    for name, (version, _) in pinned("constraints.txt").items():
        assert name in WITHOUT_HASH or locked[name][0] == version, name


def test_the_oldest_versions_are_those_that_are_declared():
    oldest = pinned("constraints-min.txt")
    base = {canonicalize_name(one.name): one for one in declared(extras=False)}
    assert set(oldest) == set(base)
    for name, one in base.items():
        (low,) = [Version(s.version) for s in one.specifier if s.operator == ">="]
        assert oldest[name][0] == low, name


def test_the_page_of_licences_has_every_package_that_a_user_installs():
    page = (HERE / "docs/development/licences.md").read_text(encoding="utf-8")
    listed = {canonicalize_name(n) for n in re.findall(r"^\| ([A-Za-z0-9._-]+) \|", page, re.M)}
    wanted = PYPROJECT["project"]["dependencies"] + [
        line for found in PYPROJECT["project"]["optional-dependencies"].values() for line in found
    ]
    names = {canonicalize_name(Requirement(line).name) for line in wanted} - {"fedtaper"}
    assert names <= listed, names - listed
