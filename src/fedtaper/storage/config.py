"""TOML <-> Experiment: a file describes the whole experiment; every unknown key is refused."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.checks import as_path, check_flag, check_type
from fedtaper.core.errors import FedtaperError, nearest, one_line
from fedtaper.core.protocols import checked_problem
from fedtaper.core.schedules import Schedule
from fedtaper.experiment import Experiment
from fedtaper.problems.linear import LinearRegression
from fedtaper.problems.recorded import Recorded
from fedtaper.rules.behaviours import BEHAVIOURS, After
from fedtaper.rules.challenges import Challenges
from fedtaper.rules.presets import PRESETS
from fedtaper.rules.steering import Steering
from fedtaper.storage import durable, kinds, names, origins
from fedtaper.storage.checkpoints import CHECKPOINT, PREVIOUS
from fedtaper.storage.kinds import build, known
from fedtaper.storage.logs import Log
from fedtaper.storage.written import to_toml

__all__ = ["from_toml", "log_of", "read_how", "read_log", "read_toml", "to_toml"]

_OWN_TABLES = ("problem", "schedules", "local", "server", "behaviours", "challenges", "steering")
_OLD_NAMES = {"clients": "behaviours"}  # files written before the tables were renamed
TABLES = ("experiment", *_OWN_TABLES, *_OLD_NAMES, "federation", "log", "run")
CUSTOM, RECORDED = "custom", "recorded"  # problems that are code, and so cannot be in a file


def read_toml(path: str | Path, problem: Any = None, trusted: bool = True) -> Experiment:
    """The experiment that a TOML file describes; ``problem`` if that is the user's own code.

    Code that the file names (``kind = "my_module:MyRule"``) is imported from the file's folder,
    the current folder or Python's path. If the file is not ``trusted``, as in a run folder, only
    from the path, and the function that made its problem is not called.
    """
    path = as_path(path)
    check_flag("trusted", trusted)
    text = _text(path)
    beside = (Path() if _in_run_folder(path) else path.parent) if trusted else None
    try:
        return from_toml(text, folder=path.parent, problem=problem, code=beside)
    except FedtaperError as trouble:
        raise FedtaperError(f"{path}: {trouble}") from None


def _in_run_folder(path: Path) -> bool:
    """Whether a file is a run's own settings: code is not looked for beside the results."""
    marks = ("run.npz", CHECKPOINT, PREVIOUS)
    return path.name == "config.toml" and any((path.parent / name).is_file() for name in marks)


def read_log(path: str | Path) -> Log | None:
    """The table [log] of a TOML file, if it has one."""
    text = _text(as_path(path))
    try:
        return log_of(_tree(text))
    except FedtaperError as trouble:
        raise FedtaperError(f"{path}: {trouble}") from None


def read_how(path: str | Path) -> dict[str, Any]:
    """The table [run] of a TOML file: by which means it is run, which affects only rounding."""
    text = _text(as_path(path))
    try:
        tree = _tree(text)
        table = dict(_table(tree, "run")) if "run" in tree else {}
        known("key", table, {"engine", "device", "precision", "way"}, where="[run]")
    except FedtaperError as trouble:
        raise FedtaperError(f"{path}: {trouble}") from None
    return table


def _text(path: Path) -> str:
    try:
        return durable.text_of(path)
    except FileNotFoundError:
        raise FedtaperError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise FedtaperError(f"{path} is not a TOML file: it is not text") from None
    except OSError as trouble:
        raise FedtaperError(f"{path} cannot be read: {one_line(trouble)}") from None


def log_of(tree: dict[str, Any]) -> Log | None:
    """The table [log] of a file that was read."""
    if "log" not in tree:
        return None
    table = dict(_table(tree, "log"))
    known("key", table, {f.name for f in fields(Log)}, where="[log]")
    made: Log = build(Log, table, "[log]")
    return made


def from_toml(
    text: str, folder: str | Path = ".", problem: Any = None, code: Path | None = None
) -> Experiment:
    """The experiment that a TOML text describes; ``folder`` is where its data files are.

    A problem that is code (``kind = "custom"``) is passed as ``problem``. Your own rules,
    schedules and problems are named by import path, ``kind = "my_module:MyRule"``; ``code`` is a
    folder that is searched for them first. ``problem = "my_module:make_problem"`` at the top of
    the text is short for a table ``[problem]`` with only that kind.

    >>> text = '''
    ... [experiment]
    ... rounds = 100
    ... local_steps = 5
    ... [problem]
    ... kind = "linear"
    ... num_clients = 3
    ... [[schedules]]
    ... c = 0.1
    ... delta = 0.76
    ... [[schedules]]
    ... c = 0.1
    ... delta = 1.0
    ... clients = 2
    ... '''
    >>> from_toml(text).schedules[2]
    Power(c=0.1, delta=1.0, offset=0.0)
    """
    check_type("from_toml", text, str)
    folder = as_path(folder)
    tree = _tree(text)
    find = partial(names.find, folder=code)
    known("table", tree, TABLES, where="the file")
    tree = {_OLD_NAMES.get(name, name): table for name, table in tree.items()}
    for name in ("experiment", "problem", "schedules"):
        if name not in tree:
            _misplaced(tree)
            raise FedtaperError(f"the table [{name}] is missing")
    settings = _with_preset(dict(_table(tree, "experiment")))
    objective = _problem(_problem_table(tree), Path(folder), problem, find, code is not None)
    for name, rules in (("local", kinds.LOCAL_RULES), ("server", kinds.SERVER_RULES)):
        if name in tree:
            what = f"the {name} rule"
            settings[name] = kinds.rule(_table(tree, name), rules, f"[{name}]", what, find)
    if "behaviours" in tree:
        settings["behaviours"] = _behaviours(_table(tree, "behaviours"), find)
    own: tuple[tuple[str, type], ...] = (("challenges", Challenges), ("steering", Steering))
    for name, kind in own:
        if name in tree:
            table = dict(_table(tree, name))
            known("key", table, {f.name for f in fields(kind)}, where=f"[{name}]")
            settings[name] = build(kind, table, f"[{name}]")
    for name in ("delays", "asynchronous", "staleness"):
        if name in settings:
            settings[name] = kinds.arrival(settings[name], f"[experiment] {name}", find)
    if isinstance(settings.get("participation"), dict):
        where, table = "[experiment] participation", settings["participation"]
        settings["participation"] = kinds.rule(
            table, kinds.PARTICIPATION, where, "participation", find
        )
    if "rounds" not in settings:
        raise FedtaperError("[experiment] needs rounds")
    schedules = _schedules(tree["schedules"], objective.num_clients, find)
    made: Experiment = build(
        Experiment, {"problem": objective, "schedules": schedules, **settings}, "[experiment]"
    )
    return made


def _tree(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as trouble:
        raise FedtaperError(f"not valid TOML: {one_line(trouble)}") from None


def _with_preset(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of [experiment], on top of those of the preset that it names."""
    preset = settings.pop("preset", None)
    allowed = {f.name for f in fields(Experiment)} - set(_OWN_TABLES)
    known("key", settings, {*allowed, "preset"}, where="[experiment]")
    if preset is None:
        return settings
    if not isinstance(preset, str) or preset not in PRESETS:
        raise FedtaperError(
            f"there is no preset {preset!r}: use one of {', '.join(PRESETS)}"
            f"{nearest(str(preset), PRESETS)}"
        )
    return PRESETS[preset] | settings


def _problem_table(tree: dict[str, Any]) -> dict[str, Any]:
    """The table [problem]; ``problem = "my_module:make_problem"`` is short for its kind."""
    if isinstance(tree["problem"], str):
        if not names.is_import_path(tree["problem"]):
            raise FedtaperError(
                f'problem = "my_module:make_problem" names code of your own, not '
                f"{tree['problem']!r}; other problems are tables [problem] with a kind"
            )
        return {"kind": tree["problem"]}
    return dict(_table(tree, "problem"))


def _misplaced(tree: dict[str, Any]) -> None:
    """In TOML ``problem = "..."`` below the head of a table belongs to that table."""
    for name, table in tree.items():
        if isinstance(table, dict) and names.is_import_path(table.get("problem")):
            raise FedtaperError(
                f"problem = {table['problem']!r} is in the table [{name}]: "
                "move it above the first table"
            )


def _problem(
    table: dict[str, Any], folder: Path, given: Any, find: kinds.Find, trusted: bool
) -> Any:
    kind = table.get("kind", "linear")
    if kind == CUSTOM and given is None:
        raise FedtaperError(
            "its problem is your own code (a model, a loss), which no file can hold: "
            "pass it, as in ft.load(folder, problem=...)"
        )
    if kind in (CUSTOM, RECORDED):
        if given is not None or not trusted or "made_by" not in table:
            return _recorded(table) if given is None else given
        kind = table["made_by"]
        table = {"kind": kind, **_table({"arguments": {}, **table}, "arguments")}
    if names.is_import_path(kind):
        if given is not None:
            return given
        made = kinds.build_own(table, "[problem]", find, "the problem")
        origins.remember(checked_problem(f"[problem]: what {kind} returns", made), table)
        return made
    if not isinstance(kind, str) or kind not in kinds.PROBLEMS:
        raise FedtaperError(
            f"there is no problem kind {kind!r}: use one of {', '.join(kinds.PROBLEMS)}, or "
            f"module:Name of your own{nearest(str(kind), kinds.PROBLEMS)}"
        )
    table.pop("kind", None)
    return _built_in(kind, table, folder, find)


def _built_in(kind: str, table: dict[str, Any], folder: Path, find: kinds.Find) -> Any:
    cls = kinds.PROBLEMS[kind]
    data = table.pop("data", None)
    allowed = {f.name for f in fields(cls)} - {"arrays"}
    known("key", table, {*allowed, "kind", "data"}, where="[problem]")
    if "split" in table:
        if not isinstance(table["split"], dict):
            raise FedtaperError('[problem]: split is a table, such as { kind = "rare", rare = 6 }')
        where = "[problem] split"
        table["split"] = kinds.rule(table["split"], kinds.SPLITS, where, "the split", find)
    if isinstance(table.get("drift"), dict):
        what = "the drift"
        table["drift"] = kinds.rule(table["drift"], kinds.DRIFTS, "[problem] drift", what, find)
    if data is None:
        return build(cls, table, "[problem]")
    if cls is not LinearRegression or not isinstance(data, str):
        raise FedtaperError(
            f'[problem]: data must be the name of a file, for kind = "linear", not {data!r}'
        )
    x, y = read_data(folder / data)
    return build(LinearRegression.from_arrays, {"x": x, "y": y, **table}, "[problem]")


def _recorded(table: dict[str, Any]) -> Recorded:
    """A problem whose code and data are elsewhere: only its sizes."""
    sizes, dim = table.get("client_samples"), table.get("parameters")
    whole = isinstance(sizes, list) and sizes and all(type(n) is int and n >= 0 for n in sizes)
    if not isinstance(sizes, list) or not whole or type(dim) is not int or dim < 1:
        raise FedtaperError("[problem]: a recorded problem needs client_samples and parameters")
    return Recorded(tuple(sizes), dim)


def read_data(path: Path) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Clients' arrays: an npz with x0, y0, x1, y1, ..., or a folder of CSV files, one per client.

    In a CSV file each line is a sample, the last column its y; files are taken in the order
    of their names.
    """
    try:
        if path.is_dir():
            tables = [
                np.loadtxt(file, delimiter=",", ndmin=2) for file in sorted(path.glob("*.csv"))
            ]
            if not tables:
                raise FedtaperError(f"{path} holds no .csv file (one per client)")
            return [t[:, :-1] for t in tables], [t[:, -1] for t in tables]
        with np.load(path, allow_pickle=False) as found:
            count = sum(name.startswith("x") for name in found.files)
            if not count:
                raise FedtaperError(f"{path} has no arrays x0, y0, x1, y1, ...")
            return [found[f"x{i}"] for i in range(count)], [found[f"y{i}"] for i in range(count)]
    except FileNotFoundError:
        raise FedtaperError(f"there is no data file {path}") from None
    except KeyError as missing:
        raise FedtaperError(f"{path} has no array {missing}") from None
    except FedtaperError:
        raise
    except Exception as trouble:  # zip, struct and numpy each have errors of their own
        raise FedtaperError(f"{path} cannot be read as numbers: {one_line(trouble)}") from None


def _schedules(found: Any, num_clients: int, find: kinds.Find) -> list[Schedule]:
    if isinstance(found, dict):
        found = [{**found, "clients": found.get("clients", num_clients)}]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise FedtaperError("schedules must be [[schedules]] tables, each with c and delta, or a")
    out: list[Schedule] = []
    for i, entry in enumerate(found):
        entry = dict(entry)
        where = f"[[schedules]] number {i + 1}"
        count = entry.pop("clients", 1)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise FedtaperError(f"{where}: clients must be a whole number above 0, not {count!r}")
        if len(out) + count > num_clients:  # before a list of any length is made
            raise FedtaperError(f"{where}: {len(out) + count} schedules for {num_clients} clients")
        out += [kinds.schedule(entry, where, find)] * count
    return out


def _behaviours(table: dict[str, Any], find: kinds.Find) -> dict[int, Any]:
    """``[behaviours.3]`` tables: what a client does instead of what it declared."""
    out = {}
    for client, found in table.items():
        where = f"[behaviours.{client}]"
        if not (client.isascii() and client.isdigit()) or not isinstance(found, dict):
            raise FedtaperError(
                f"{where}: behaviours must be tables by client number (from 0), such as "
                "[behaviours.3]"
            )
        found = dict(found)
        after = found.pop("after", None)
        behaviour = kinds.rule(found, BEHAVIOURS, where, "the behaviour", find)
        if after is not None:
            behaviour = build(After, {"round": after, "then": behaviour}, where)
        out[int(client)] = behaviour
    return out


def _table(tree: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(tree[name], dict):
        raise FedtaperError(f"[{name}] must be a table")
    return tree[name]
