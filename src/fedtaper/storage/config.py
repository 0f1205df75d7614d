"""TOML <-> Experiment: a file says all that is to be run, and every unknown word is refused."""

from __future__ import annotations

import math
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError, nearest
from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.experiment import Experiment
from fedtaper.problems.data.splits import Dirichlet, DominantClass, Iid, RareClass
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.linear import LinearRegression
from fedtaper.rules.behaviours import BEHAVIOURS, After
from fedtaper.rules.local import Proximal, Sgd
from fedtaper.rules.presets import PRESETS
from fedtaper.rules.server import Adagrad, Adam, Average, Normalised, Yogi
from fedtaper.storage.logs import Log

PROBLEMS = {"linear": LinearRegression, "images": ImageClassification}
SPLITS = {"rare": RareClass, "dominant": DominantClass, "iid": Iid, "dirichlet": Dirichlet}
LOCAL_RULES = {"sgd": Sgd, "proximal": Proximal}
SERVER_RULES = {
    "average": Average,
    "normalised": Normalised,
    "adagrad": Adagrad,
    "adam": Adam,
    "yogi": Yogi,
}
_OWN_TABLES = ("problem", "schedules", "local", "server", "clients")
TABLES = ("experiment", *_OWN_TABLES, "federation", "log")
CUSTOM = "custom"  # a problem that is code, and so cannot be in a file


def read_toml(path: str | Path, problem: Any = None) -> Experiment:
    """The experiment that a TOML file describes; ``problem`` where it is code of the user's."""
    path = Path(path)
    text = _text(path)
    try:
        return from_toml(text, folder=path.parent, problem=problem)
    except FedtaperError as trouble:
        raise FedtaperError(f"{path}: {trouble}") from None


def read_log(path: str | Path) -> Log | None:
    """The table [log] of a TOML file, if it has one."""
    try:
        return log_of(tomllib.loads(_text(Path(path))))
    except tomllib.TOMLDecodeError as trouble:
        raise FedtaperError(f"{path}: not valid TOML: {trouble}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FedtaperError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as trouble:
        raise FedtaperError(f"{path} cannot be read: {trouble}") from None


def log_of(tree: dict[str, Any]) -> Log | None:
    """The table [log] of a file that was read."""
    if "log" not in tree:
        return None
    table = dict(_table(tree, "log"))
    _known("key", table, {f.name for f in fields(Log)}, where="[log]")
    return Log(**table)


def from_toml(text: str, folder: str | Path = ".", problem: Any = None) -> Experiment:
    """The experiment that a TOML text describes; ``folder`` is where its data files are.

    A problem that is code (``kind = "custom"``) is handed in as ``problem``.

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
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as trouble:
        raise FedtaperError(f"not valid TOML: {trouble}") from None
    _known("table", tree, TABLES, where="the file")
    for name in ("experiment", "problem", "schedules"):
        if name not in tree:
            raise FedtaperError(f"the table [{name}] is missing")
    settings = dict(_table(tree, "experiment"))
    preset = settings.pop("preset", None)
    allowed = {f.name for f in fields(Experiment)} - set(_OWN_TABLES)
    _known("key", settings, {*allowed, "preset"}, where="[experiment]")
    if preset is not None:
        if preset not in PRESETS:
            raise FedtaperError(
                f"there is no preset {preset!r}: use one of {', '.join(PRESETS)}"
                f"{nearest(str(preset), PRESETS)}"
            )
        settings = PRESETS[preset] | settings
    objective = _problem(dict(_table(tree, "problem")), Path(folder), problem)
    for name, rules in (("local", LOCAL_RULES), ("server", SERVER_RULES)):
        if name in tree:
            settings[name] = _rule(dict(_table(tree, name)), rules, f"[{name}]")
    if "clients" in tree:
        settings["clients"] = _behaviours(_table(tree, "clients"))
    if "rounds" not in settings:
        raise FedtaperError("[experiment] needs rounds")
    schedules = _schedules(tree["schedules"], objective.num_clients)
    return Experiment(objective, schedules, **settings)


def to_toml(experiment: Experiment, data: str | None = None) -> str:
    """The experiment as TOML, every setting resolved; ``data`` names a file of its arrays."""
    problem = experiment.problem
    kind = next((k for k, v in PROBLEMS.items() if isinstance(problem, v)), CUSTOM)
    if getattr(problem, "arrays", None) is not None and data is None:
        raise FedtaperError("a problem with data of your own needs a file to keep it in: data=")
    skip = {"arrays"} | ({"num_clients", "dim", "samples"} if data else set())
    if isinstance(problem, ImageClassification) and not isinstance(problem.model, str):
        kind = CUSTOM
    found = {} if kind == CUSTOM else _settings(problem, skip)
    if kind == "images":
        found["client_samples"] = problem.sizes.tolist()
    tree: dict[str, Any] = {
        "experiment": _settings(experiment, skip=set(_OWN_TABLES)),
        "problem": {"kind": kind} | ({"data": data} if data else {}) | found,
        "local": _named(experiment.local, LOCAL_RULES),
        "server": _named(experiment.server, SERVER_RULES),
    }
    lines = []
    for name, table in tree.items():
        lines += [f"[{name}]", *(f"{k} = {_value(v)}" for k, v in table.items()), ""]
    for client, behaviour in experiment.clients:  # type: ignore[misc]
        found = _behaviour_settings(behaviour)
        lines += [f"[clients.{client}]", *(f"{k} = {_value(v)}" for k, v in found.items()), ""]
    for schedule, count in _grouped(experiment.schedules):  # type: ignore[arg-type]
        lines += ["[[schedules]]"]
        lines += [f"{k} = {_value(v)}" for k, v in _settings(schedule, set()).items()]
        lines += [f"clients = {count}", ""]
    return "\n".join(lines)


def _problem(table: dict[str, Any], folder: Path, given: Any = None) -> Any:
    kind = table.pop("kind", "linear")
    if kind == CUSTOM:
        if given is None:
            raise FedtaperError(
                "its problem is code of your own (a model, a loss), which no file can hold: "
                "hand it in, as in ft.load(folder, problem=...)"
            )
        return given
    if kind not in PROBLEMS:
        raise FedtaperError(
            f"there is no problem kind {kind!r}: use one of {', '.join(PROBLEMS)}"
            f"{nearest(str(kind), PROBLEMS)}"
        )
    cls = PROBLEMS[kind]
    data = table.pop("data", None)
    allowed = {f.name for f in fields(cls)} - {"arrays"}
    _known("key", table, {*allowed, "kind", "data"}, where="[problem]")
    if "split" in table:
        if not isinstance(table["split"], dict):
            raise FedtaperError('[problem]: split is a table, such as { kind = "rare", rare = 6 }')
        table["split"] = _rule(dict(table["split"]), SPLITS, "[problem] split")
    if data is not None:
        if cls is not LinearRegression:
            raise FedtaperError(f'[problem]: data belongs to kind = "linear", not {kind!r}')
        x, y = read_data(folder / str(data))
        return _build(cls.from_arrays, {"x": x, "y": y, **table}, "[problem]")
    return _build(cls, table, "[problem]")


def read_data(path: Path) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Clients' arrays: an npz with x0, y0, x1, y1, ..., or a folder of CSV files, one a client.

    In a CSV file each line is a sample, the last column its y; files are taken in the order
    of their names.
    """
    try:
        if path.is_dir():
            tables = [
                np.loadtxt(file, delimiter=",", ndmin=2) for file in sorted(path.glob("*.csv"))
            ]
            if not tables:
                raise FedtaperError(f"{path} holds no .csv file (one a client)")
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
    except (OSError, ValueError) as trouble:
        raise FedtaperError(f"{path} cannot be read as numbers: {trouble}") from None


def _schedules(found: Any, num_clients: int) -> list[Schedule]:
    if isinstance(found, dict):
        found = [{**found, "clients": found.get("clients", num_clients)}]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise FedtaperError(
            "schedules are [[schedules]] tables, each with c and delta, or constant"
        )
    out: list[Schedule] = []
    for i, entry in enumerate(found):
        entry = dict(entry)
        where = f"[[schedules]] number {i + 1}"
        count = entry.pop("clients", 1)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise FedtaperError(f"{where}: clients must be a whole number above 0, not {count!r}")
        _known("key", entry, ("c", "delta", "offset", "a", "clients"), where)
        kind = Constant if "a" in entry else Power
        out += [_build(kind, entry, where)] * count
    return out


def _rule(table: dict[str, Any], rules: dict[str, Any], where: str) -> Any:
    kind = table.pop("kind", None)
    if kind not in rules:
        raise FedtaperError(
            f"{where}: kind must be one of {', '.join(rules)}, not {kind!r}"
            f"{nearest(str(kind), rules)}"
        )
    names = {f.name for f in fields(rules[kind])}
    _known("key", table, {*names, "kind"}, where)
    if "mean" in table:
        if not isinstance(table["mean"], dict):
            raise FedtaperError(f'{where}: mean is a table, such as {{ kind = "average" }}')
        means = {k: v for k, v in rules.items() if v in (Average, Normalised)}
        table["mean"] = _rule(dict(table["mean"]), means, f"{where} mean")
    return _build(rules[kind], table, where)


def _behaviours(table: dict[str, Any]) -> dict[int, Any]:
    """``[clients.3]`` tables: what a client does that is not what it declared."""
    out = {}
    for client, found in table.items():
        where = f"[clients.{client}]"
        if not client.isdigit() or not isinstance(found, dict):
            raise FedtaperError(f"{where}: behaviours are tables by client number, from 0")
        found = dict(found)
        after = found.pop("after", None)
        if isinstance(found.get("schedule"), dict):
            found["schedule"] = _schedules([found["schedule"]], 1)[0]
        behaviour = _rule(found, BEHAVIOURS, where)
        out[int(client)] = behaviour if after is None else After(after, behaviour)
    return out


def _behaviour_settings(behaviour: Any) -> dict[str, Any]:
    late = isinstance(behaviour, After)
    what = behaviour.then if late else behaviour
    kind = next((k for k, v in BEHAVIOURS.items() if type(what) is v), None)
    if kind is None:
        raise FedtaperError(f"a behaviour of your own ({type(what).__name__}) cannot be TOML")
    found = {f.name: getattr(what, f.name) for f in fields(what)}
    if "schedule" in found:
        found["schedule"] = _settings(found["schedule"], set())
    found = {"kind": kind} | {k: v for k, v in found.items() if v is not None}
    return found | ({"after": behaviour.round} if late else {})


def _build(make: Any, settings: dict[str, Any], where: str) -> Any:
    try:
        return make(**settings)
    except FedtaperError as trouble:
        raise FedtaperError(f"{where}: {trouble}") from None
    except (TypeError, ValueError) as trouble:
        text = str(trouble).replace(f"{getattr(make, '__name__', '')}.__init__() ", "")
        raise FedtaperError(f"{where}: {text}") from None


def _table(tree: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(tree[name], dict):
        raise FedtaperError(f"[{name}] must be a table")
    return tree[name]


def _known(what: str, found: Any, known: Any, where: str) -> None:
    for word in found:
        if word not in known:
            raise FedtaperError(
                f"unknown {what} {word!r} in {where}{nearest(word, known)}"
                f" (known: {', '.join(sorted(known))})"
            )


def _settings(record: Any, skip: set[str]) -> dict[str, Any]:
    found = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in skip}
    return {
        k: _named(v, SERVER_RULES | SPLITS) if hasattr(v, "__dataclass_fields__") else v
        for k, v in found.items()
        if v is not None
    }


def _named(rule: Any, rules: dict[str, Any]) -> dict[str, Any]:
    kind = next((k for k, v in rules.items() if type(rule) is v), None)
    if kind is None:
        raise FedtaperError(f"a rule of your own ({type(rule).__name__}) cannot be written as TOML")
    return {"kind": kind} | _settings(rule, set())


def _grouped(schedules: tuple[Schedule, ...]) -> list[tuple[Schedule, int]]:
    out: list[tuple[Schedule, int]] = []
    for s in schedules:
        if out and out[-1][0] == s:
            out[-1] = (s, out[-1][1] + 1)
        else:
            out.append((s, 1))
    return out


def _value(v: Any) -> str:
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, (int, np.integer)):
        return str(int(v))
    if isinstance(v, (float, np.floating)):
        return repr(float(v)) if math.isfinite(v) else str(float(v))
    if isinstance(v, str):
        quoted = v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{quoted}"'
    if isinstance(v, dict):
        return "{ " + ", ".join(f"{k} = {_value(x)}" for k, x in v.items()) + " }"
    return "[" + ", ".join(_value(x) for x in v) + "]"
