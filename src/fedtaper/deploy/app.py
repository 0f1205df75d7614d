"""A Flower app around a federation file: a folder with pyproject.toml and one package."""

from __future__ import annotations

import re
import shutil
import tomllib
from functools import partial
from pathlib import Path

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy.federation_file import read_federation

SERVER_SCRIPT = "server/superlink.sh"  # by which a folder is known as a deployment
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
nodes = ""   # site=node id,... where sites are bound to their keys
"""


def app_name(word: str) -> str:
    """A name that Flower and Python both take: letters, digits, hyphens, at most 32."""
    name = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:32].strip("-")
    if not name or not name[0].isalpha():
        raise FedtaperError(f"{word!r} is no name for an app: begin with a letter")
    return name


def pyproject(name: str, federation: str, extra: str = "") -> str:
    """The app's pyproject.toml; ``federation`` names its file."""
    package = name.replace("-", "_")
    return PYPROJECT.format(name=name, package=package, federation=federation, more=extra)


def app_of(file: Path) -> Path | None:
    """The Flower app that a federation file lies in, if any."""
    for folder in list(file.resolve().parents)[:3]:
        found = folder / "pyproject.toml"
        if found.is_file():
            tree = tomllib.loads(found.read_text(encoding="utf-8"))
            if "flwr" in tree.get("tool", {}):
                return folder
    return None


def _not_of_the_app(target: Path, folder: str, names: list[str]) -> set[str]:
    """What lies in an app's folder and is not to be copied: runs, and deployments with keys."""
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs")(folder, names)
    places = {name: Path(folder).resolve() / name for name in names}
    inside = {name for name, place in places.items() if place in target.resolve().parents}
    deployed = {name for name, place in places.items() if (place / SERVER_SCRIPT).is_file()}
    return set(hidden) | inside | deployed


def write_app(file: Path, target: Path) -> Path:
    """The app of a federation file, in ``target``: a copy of the user's own, or one made here."""
    plan = read_federation(file)
    own = app_of(file)
    if own is not None:
        shutil.copytree(own, target, ignore=partial(_not_of_the_app, target), dirs_exist_ok=True)
        return target
    if plan.federation.task is not None:
        raise FedtaperError(
            f"{file} names the task {plan.federation.task} but lies in no Flower app: make one "
            "with fedtaper new NAME"
        )
    name = app_name(f"{file.stem[:24]}-app")  # not the name of some module
    package = target / name.replace("-", "_")
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""A federation."""\n', encoding="utf-8")
    (package / "federation.toml").write_text(plan.text, encoding="utf-8")
    federation = f"{package.name}:federation.toml"
    if "data" in tomllib.loads(plan.text)["problem"]:
        federation = str(file.resolve())  # its data lies beside it
    (target / "pyproject.toml").write_text(pyproject(name, federation), encoding="utf-8")
    return target
