"""A Flower app around a federation file: a folder with pyproject.toml and one package."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy.federation_file import read_federation
from fedtaper.deploy.places import quotable

SERVER_SCRIPT = "server/superlink.sh"  # by which a folder is known as a deployment
TRAVELS = (".py", ".toml")  # files of an app that go to every site, with README and LICENSE
TEXTS = ("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md")
SKIPPED = ("__pycache__", "runs", "build", "dist", "node_modules")
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A federation with client-specific tapering step sizes"
requires-python = ">=3.11"
dependencies = ["fedtaper[flower]{more}"]

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
{package} = ["*.toml"]

[tool.flwr.app]
publisher = "{name}"

[tool.flwr.app.components]
serverapp = "fedtaper.deploy.apps:server_app"
clientapp = "fedtaper.deploy.apps:client_app"

[tool.flwr.app.config]
federation = "{federation}"
out = ""     # the run folder, on the server's machine
nodes = ""   # site=node id,... if sites are bound to their keys
"""


def app_name(word: str) -> str:
    """A name that both Flower and Python accept: letters, digits, hyphens, at most 32."""
    name = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:32].strip("-")
    if not name or not name[0].isalpha():
        raise FedtaperError(f"{word!r} is not a valid name for an app: begin with a letter")
    return name


def pyproject(name: str, federation: str, extra: str = "") -> str:
    """The app's pyproject.toml; ``federation`` names its file."""
    package = name.replace("-", "_")
    return PYPROJECT.format(name=name, package=package, federation=federation, more=extra)


def app_of(file: Path) -> Path | None:
    """The Flower app that contains a federation file, if any."""
    for folder in list(file.resolve().parents)[:3]:
        found = folder / "pyproject.toml"
        if found.is_file():
            tree = tomllib.loads(found.read_text(encoding="utf-8"))
            if "flwr" in tree.get("tool", {}):
                return folder
    return None


@dataclass(frozen=True)
class Written:
    """An app as it was written: the files that are sent to the sites, and those left out."""

    travels: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def write_app(file: Path, target: Path) -> Written:
    """The app of a federation file, in ``target``: a copy of the user's own, or one made here."""
    own = app_of(file)
    return _made(file, target) if own is None else _copied(own, target)


def _copied(own: Path, target: Path) -> Written:
    """The user's app: Python, TOML, README and LICENSE, and what its pyproject.toml names.

    Data beside the code must not be sent by accident.
    """
    settings = tomllib.loads((own / "pyproject.toml").read_text(encoding="utf-8"))
    include = settings.get("tool", {}).get("fedtaper", {}).get("include", [])
    if not isinstance(include, list) or not all(isinstance(entry, str) for entry in include):
        raise FedtaperError(
            f"{own}/pyproject.toml: include in [tool.fedtaper] must be a list of files"
        )
    travels, left_out = [], []
    for path in _files(own, target):
        name = path.relative_to(own)
        if path.suffix in TRAVELS or str(name) in TEXTS or any(map(name.match, include)):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
            travels.append(name.as_posix())
        else:
            left_out.append(name.as_posix())
    return Written(tuple(travels), tuple(left_out))


def _files(own: Path, target: Path) -> list[Path]:
    """An app's plain files, without runs, deployments, environments and hidden files."""
    found = []
    for place, folders, names in os.walk(own):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not (name.startswith(".") or name in SKIPPED or name.endswith(".egg-info"))
            and not (here / name / SERVER_SCRIPT).is_file()
            and not (here / name / "pyvenv.cfg").is_file()
            and (here / name).resolve() not in (target.resolve(), *target.resolve().parents)
        )
        paths = [here / name for name in sorted(names) if not name.startswith(".")]
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    return found


def _made(file: Path, target: Path) -> Written:
    """An app around a file that is in none; a task may be a module beside the file."""
    plan = read_federation(file)
    module = _task_module(file, plan.federation.task)
    name = app_name(f"{file.stem[:24]}-app")  # not the name of some module
    package = target / name.replace("-", "_")
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""A federation."""\n', encoding="utf-8")
    (package / "federation.toml").write_text(plan.text, encoding="utf-8")
    federation = f"{package.name}:federation.toml"
    problem = tomllib.loads(plan.text)["problem"]
    if isinstance(problem, dict) and "data" in problem:
        federation = quotable(file.resolve())  # its data lies beside it
    about = pyproject(name, federation, '", "fedtaper[torch]' if module else "")
    inside = [f"{package.name}/{entry}" for entry in ("__init__.py", "federation.toml")]
    if module is not None:
        shutil.copyfile(module, target / module.name)
        head = "[tool.setuptools]\n"
        about = about.replace(head, f'{head}py-modules = ["{module.stem}"]\n')
        inside.append(module.name)
    (target / "pyproject.toml").write_text(about, encoding="utf-8")
    return Written(("pyproject.toml", *inside))


def _task_module(file: Path, task: str | None) -> Path | None:
    """The Python file of a task, beside the federation file."""
    if task is None:
        return None
    name = task.partition(":")[0]
    found = file.resolve().parent / f"{name}.py"
    if not (name.isidentifier() and found.is_file()):
        raise FedtaperError(
            f"{file} names the task {task} but is not in a Flower app, and there is no {name}.py "
            "beside it: put it there, or make an app with fedtaper new NAME"
        )
    return found
