"""What a TOML file may name: the built-in kinds by a word, your own by an import path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from fedtaper.core.errors import FedtaperError, nearest, one_line
from fedtaper.core.participation import Exactly
from fedtaper.core.patterns import Cyclic, Listed, OnOff
from fedtaper.core.scaled import Scaled
from fedtaper.core.schedules import Constant, Cosine, Piecewise, Power, Shaped, WarmUp
from fedtaper.problems.data.drift import LabelDrift
from fedtaper.problems.data.splits import Dirichlet, DominantClass, Iid, RareClass
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.linear import LinearRegression
from fedtaper.rules.asynchronous import Asynchronous, Duration
from fedtaper.rules.behaviours import BEHAVIOURS
from fedtaper.rules.control import Controlled, Dynamic, DynamicServer, Scaffold
from fedtaper.rules.delays import FixedDelay, HeavyDelay, RandomDelay
from fedtaper.rules.local import Proximal, Sgd
from fedtaper.rules.momentum import AdamW, Momentum
from fedtaper.rules.robust import Clipped, Median, Trimmed
from fedtaper.rules.server import Adagrad, Adam, Average, AverageMomentum, Normalised, Yogi
from fedtaper.rules.staleness import Hinge, Polynomial, Undiscounted
from fedtaper.storage.names import is_import_path

PROBLEMS: dict[str, Any] = {"linear": LinearRegression, "images": ImageClassification}
SPLITS: dict[str, Any] = {
    "rare": RareClass,
    "dominant": DominantClass,
    "iid": Iid,
    "dirichlet": Dirichlet,
}
DRIFTS: dict[str, Any] = {"label_drift": LabelDrift}
LOCAL_RULES: dict[str, Any] = {
    "sgd": Sgd,
    "proximal": Proximal,
    "momentum": Momentum,
    "adamw": AdamW,
    "scaffold": Scaffold,
    "dynamic": Dynamic,
}
MEANS: dict[str, Any] = {"average": Average, "normalised": Normalised}
SERVER_RULES: dict[str, Any] = MEANS | {
    "adagrad": Adagrad,
    "adam": Adam,
    "yogi": Yogi,
    "median": Median,
    "trimmed": Trimmed,
    "clipped": Clipped,
    "average_momentum": AverageMomentum,
    "controlled": Controlled,
    "dynamic_server": DynamicServer,
}
SCHEDULES: dict[str, Any] = {
    "power": Power,
    "constant": Constant,
    "cosine": Cosine,
    "warm_up": WarmUp,
    "piecewise": Piecewise,
    "shaped": Shaped,
    "scaled": Scaled,
}
ARRIVALS: dict[str, Any] = {
    "fixed_delay": FixedDelay,
    "random_delay": RandomDelay,
    "heavy_delay": HeavyDelay,
    "asynchronous": Asynchronous,
    "duration": Duration,
    "undiscounted": Undiscounted,
    "polynomial": Polynomial,
    "hinge": Hinge,
}
PARTICIPATION: dict[str, Any] = {
    "exactly": Exactly,
    "cyclic": Cyclic,
    "on_off": OnOff,
    "listed": Listed,
}
RULES: dict[str, Any] = SERVER_RULES | LOCAL_RULES | BEHAVIOURS
NESTED: dict[str, Any] = RULES | SCHEDULES | SPLITS | ARRIVALS | DRIFTS | PARTICIPATION
OLD_NAMES = {"tapers": "other_schedule"}  # kinds in files that were written before a renaming
# the methods that tell what a class of the user's own is for
METHODS = {
    "the local rule": ("direction", "step"),
    "the server rule": ("weights",),
    "the behaviour": ("plan",),
    "the schedule": ("__call__",),
    "participation": ("present",),
    "the problem": ("initial",),
    "the split": ("places",),
}
Find = Callable[..., Any]


def known(what: str, found: Any, words: Any, where: str) -> None:
    """Refuse unknown words, and suggest the nearest known one."""
    for word in found:
        if word not in words:
            raise FedtaperError(
                f"unknown {what} {word!r} in {where}{nearest(word, words)}"
                f" (known: {', '.join(sorted(words))})"
            )


def build(make: Any, settings: dict[str, Any], where: str) -> Any:
    """Make something, and report any mistake in one line."""
    try:
        return make(**settings)
    except FedtaperError as trouble:
        raise FedtaperError(f"{where}: {trouble}") from None
    except Exception as trouble:  # wrong types fail in many ways; the user's classes in any
        words = one_line(trouble)
        # classes and functions have a name, callable objects do not
        words = words.replace(f"{getattr(make, '__name__', '')}.__init__() ", "")
        raise FedtaperError(f"{where}: {words}") from None


def rule(table: dict[str, Any], rules: dict[str, Any], where: str, what: str, find: Find) -> Any:
    """The rule that a table describes; ``what`` it is for, in words."""
    kind = table.get("kind")
    kind = OLD_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if is_import_path(kind):
        return build_own(table, where, find, what)
    table = dict(table)
    table.pop("kind", None)
    if not isinstance(kind, str) or kind not in rules:
        raise FedtaperError(
            f"{where}: kind must be one of {', '.join(rules)}, or module:Name of your own, "
            f"not {kind!r}{nearest(str(kind), rules)}"
        )
    names = {f.name for f in fields(rules[kind])}
    known("key", table, {*names, "kind"}, where)
    if "mean" in table:
        if not isinstance(table["mean"], dict):
            raise FedtaperError(f'{where}: mean must be a table, such as {{ kind = "average" }}')
        table["mean"] = rule(table["mean"], MEANS, f"{where} mean", "the server rule", find)
    if isinstance(table.get("schedule"), dict):
        table["schedule"] = schedule(table["schedule"], where, find)
    return build(rules[kind], table, where)


def arrival(value: Any, where: str, find: Find) -> Any:
    """Delays, asynchronous servers and staleness weights: tables with a kind, lists of them."""
    if isinstance(value, list):
        return tuple(arrival(v, where, find) for v in value)
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    inner = {name: arrival(v, where, find) for name, v in value.items() if name != "kind"}
    if is_import_path(kind):
        return build_own({"kind": kind, **inner}, where, find)
    if not isinstance(kind, str) or kind not in ARRIVALS:
        raise FedtaperError(
            f"{where}: kind must be one of {', '.join(ARRIVALS)}, or module:Name of your own, "
            f"not {kind!r}{nearest(str(kind), ARRIVALS)}"
        )
    known("key", inner, {f.name for f in fields(ARRIVALS[kind])}, where)
    return build(ARRIVALS[kind], inner, where)


def schedule(table: dict[str, Any], where: str, find: Find) -> Any:
    """The schedule that a table describes."""
    if is_import_path(table.get("kind")):
        return build_own(table, where, find, "the schedule")
    kind = table.get("kind", "constant" if "a" in table else "power")
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise FedtaperError(
            f"{where}: kind must be one of {', '.join(SCHEDULES)}, or module:Name of your own, "
            f"not {kind!r}{nearest(str(kind), SCHEDULES)}"
        )
    table = {name: value for name, value in table.items() if name != "kind"}
    words = {f.name for f in fields(SCHEDULES[kind])}
    if "kind" not in table and kind in ("power", "constant"):
        words |= {"c", "delta", "offset", "a"}
    known("key", table, {*words, "clients", "kind"}, where)
    table = {name: _part(value, where, find) for name, value in table.items()}
    return build(SCHEDULES[kind], table, where)


def _part(value: Any, where: str, find: Find) -> Any:
    """A setting of a schedule: inner schedules are tables, functions import paths."""
    if isinstance(value, dict):
        return schedule(value, where, find)
    if isinstance(value, list):
        return tuple(_part(v, where, find) for v in value)
    return find(value, "the shape") if isinstance(value, str) and ":" in value else value


def build_own(table: dict[str, Any], where: str, find: Find, what: str = "the rule") -> Any:
    """An object of the user's own class, made from the settings in its table."""
    settings = dict(table)
    path = settings.pop("kind")
    if settings.pop("rebuild", True) is False:
        raise FedtaperError(
            f"{where}: {what} {path} cannot be rebuilt from the file: pass the experiment, "
            "as in ft.load(folder, experiment=...)"
        )
    if path.split(":")[0].split(".")[0] in sys.stdlib_module_names:
        raise FedtaperError(f"{where}: {path} is part of Python itself, not of your code")
    cls = find(path, what)
    methods = METHODS.get(what, ("step", "direction", "weights", "plan", "__call__", "initial"))
    made = callable(cls) and what == "the problem" and not isinstance(cls, type)  # a function
    if not made and not (isinstance(cls, type) and any(name in dir(cls) for name in methods)):
        raise FedtaperError(f"{where}: {path} is not a class with {' or '.join(methods)}")
    nested = {name: _inner(value, where, find) for name, value in settings.items()}
    return build(cls, nested, where)


def _inner(value: Any, where: str, find: Find) -> Any:
    """A setting: lists become tuples, and tables with a kind become what they describe."""
    if isinstance(value, list):
        return tuple(_inner(v, where, find) for v in value)
    if isinstance(value, dict) and "kind" in value:
        if is_import_path(value["kind"]):
            return build_own(value, where, find)
        if value["kind"] in SCHEDULES:
            return schedule(value, where, find)
        return rule(value, NESTED, where, "the rule", find)
    return value
