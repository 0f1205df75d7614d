"""The gate: compares what is asked for with what an engine can do, before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import Capabilities, Engine, Options, is_combining
from fedtaper.core.protocols.engines import PRECISIONS
from fedtaper.engines import WAYS, registry
from fedtaper.experiment import Experiment
from fedtaper.problems.custom import averages_statistics
from fedtaper.rules.local import Sgd
from fedtaper.rules.momentum import Momentum
from fedtaper.rules.server import Average

PREFERRED = {  # by kind of problem, the quickest first
    "linear": ("compiled", "events", "reference"),
    "stream": ("events", "reference"),
    "moving": ("events", "reference"),
    "quadratic": ("reference",),
    "gradient": ("reference",),
    "network": ("cpu", "reference"),
}
DEVICES = ("cpu", "cuda")
UNKNOWN = "?"
ROWS: dict[
    str, Callable[[Capabilities], bool]
] = {  # the option table: a row of words per capability
    "regression": lambda c: "linear" in c.problems,
    "any problem with gradients": lambda c: "gradient" in c.problems,
    "networks": lambda c: "network" in c.problems,
    "local rules of your own": lambda c: c.local_rules is None,
    "server rules of your own": lambda c: c.server_rules is None,
    "local rules with memory": lambda c: c.stateful_rules,
    "robust means (median, trimmed, clipped)": lambda c: c.combining,
    "records updates": lambda c: c.updates,
    "simulated misbehaviour": lambda c: c.behaviours,
    "partial participation": lambda c: c.participation,
    "several seeds in one call": lambda c: c.many_seeds,
    "challenges": lambda c: c.challenges,
    "delays, asynchronous servers": lambda c: c.delays,
    "running statistics (BatchNorm), averaged": lambda c: c.statistics,
    "steering while it trains": lambda c: c.steering,
}


def choose(experiment: Experiment, engine: str | Engine | None, options: Options) -> Engine:
    """The engine that was asked for, or the fastest suitable one; an error if it cannot."""
    _known_words(options)
    if engine is not None and not isinstance(engine, str):
        if not isinstance(engine, Engine) or isinstance(engine, type):
            raise FedtaperError(
                f"engine must be one of {', '.join(registry.names())} or an object that fulfils "
                f"fedtaper.core.protocols.Engine, not {engine!r}"
            )
        return validate(experiment, engine, options)
    if engine is not None:
        return validate(experiment, registry.get(engine), options)
    kind = experiment.problem.kind
    if kind == "recorded":
        raise FedtaperError(
            "only the sizes of this problem are known, not its code and data, so it can be "
            "reported and audited, but not run: pass the problem, as in "
            "ft.load(folder, problem=...), or run the file that names it"
        )
    wanted = ("cuda",) if kind == "network" and options.device == "cuda" else PREFERRED[kind]
    refused = []
    for name in wanted:
        found = registry.get(name)
        objection = next(objections(experiment, found, options), None)
        if objection is None:
            return validate(experiment, found, options)
        refused.append(objection)
    raise FedtaperError(refused[0])


def validate(experiment: Experiment, engine: Engine, options: Options) -> Engine:
    """The engine itself, or an error that says what it cannot do and what to use instead."""
    for objection in objections(experiment, engine, options):
        raise FedtaperError(objection)
    engine.check()
    return engine


def table() -> list[list[str]]:
    """Options by engine: the table that ``fedtaper engines`` prints and docs/design.md shows."""
    found: dict[str, Capabilities | None] = {}
    for name in registry.names():
        try:
            found[name] = registry.get(name).capabilities
        except FedtaperError:  # it is not installed: what it could do is not known here
            found[name] = None
    rows = [["", *found]]
    for words, can in ROWS.items():
        rows.append([words, *(UNKNOWN if c is None else _mark(can(c)) for c in found.values())])
    for what in ("precisions", "ways", "devices"):
        rows.append([what, *(UNKNOWN if c is None else _words(c, what) for c in found.values())])
    return rows


def not_ready() -> dict[str, str]:
    """The engines that cannot run on this machine, each with the reason."""
    found = {}
    for name in registry.names():
        try:
            registry.get(name).check()
        except FedtaperError as reason:
            found[name] = str(reason)
    return found


def _mark(can: bool) -> str:
    return "yes" if can else "-"


def _words(capabilities: Capabilities, field: str) -> str:
    named = {"devices": capabilities.devices, "ways": capabilities.ways}
    words = named.get(field, capabilities.precisions)
    return ", ".join(words) or "-"


def _known_words(options: Options) -> None:
    for name, value, known in (
        ("device", options.device, DEVICES),
        ("precision", options.precision, PRECISIONS),
        ("way", options.way, WAYS),
    ):
        if value is not None and not (isinstance(value, str) and value in known):
            words = " or ".join(f'"{word}"' for word in known)
            raise FedtaperError(f"{name} must be {words}, not {value!r}")


def objections(e: Experiment, engine: Engine, options: Options) -> Iterator[str]:
    """What is asked for and the engine cannot do, one line each."""
    name, can = engine.name, engine.capabilities
    kind = type(e.problem).__name__
    if e.problem.kind not in can.problems:
        yield f"the {name} engine does not run {kind}: use {_others(e, name)}"
    yield from _rule_objections(e, engine)
    if options.updates and not can.updates:
        yield f'the {name} engine does not record updates: leave updates=False, or use device="cpu"'
    if e.behaviours and not can.behaviours:
        quick = "compiled" if e.in_step else "reference"
        yield (
            f"the {name} engine does not simulate behaviours=: use engine="
            f'"{"cpu" if e.problem.kind == "network" else quick}"'
        )
    yield from _challenge_objections(e, name, can)
    if e.steering is not None and not can.steering:
        yield f'the {name} engine does not steer: leave steering=None, or use device="cpu"'
    if e.steering is not None and options.many_seeds:
        yield "every steered run has its own scales: run its seeds one at a time"
    if np.any(e.rates < 1) and not can.participation:
        yield f"the {name} engine asks every client in every round: leave participation = 1"
    if not e.in_step and not can.delays:
        yield (
            f"the {name} engine runs all clients in step: use engine="
            f'"{"cpu" if e.problem.kind == "network" else "events"}" for delays, asynchronous '
            "servers and own clocks"
        )
    if options.many_seeds and not can.many_seeds:
        yield f"the {name} engine runs one seed at a time: leave seeds=None"
    if options.precision is not None and options.precision not in can.precisions:
        choice = " or ".join(can.precisions)
        hint = f"use precision {choice}" if choice else 'precision is a choice for device="cuda"'
        yield f"the {name} engine has no precision {options.precision!r}: {hint}"
    if options.way is not None and options.way not in can.ways:
        yield f"the {name} engine trains in one way only: leave way=None"
    if options.device is not None and options.device not in can.devices:
        yield (
            f"the {name} engine runs on {', '.join(can.devices)}, not on {options.device!r}"
            + (": regression has no GPU engine" if e.problem.kind == "linear" else "")
        )


def _rule_objections(e: Experiment, engine: Engine) -> Iterator[str]:
    """The rules that the engine does not run."""
    name, can = engine.name, engine.capabilities
    if can.local_rules is not None and type(e.local) not in can.local_rules:
        yield (
            f"the {name} engine does not know the local rule {type(e.local).__name__}: use "
            'engine="reference", which runs any rule'
        )
    if can.server_rules is not None and type(e.server) not in can.server_rules:
        yield (
            f"the {name} engine does not know the server rule {type(e.server).__name__}: use "
            'engine="reference", which runs any rule'
        )
    if e.local.keeps != "nothing" and not can.stateful_rules:
        yield f"the {name} engine runs no local rules with memory such as {e.local!r}"
    if is_combining(e.server) and not can.combining:
        yield (
            f"the {name} engine does not keep each client's update, which {e.server!r} needs: "
            f"{_robust(e)}"
        )
    yield from _statistics_objections(e, name, can)
    if is_combining(e.server) and not e.in_step:
        yield f"{e.server!r} needs a round's updates together: leave out delays and asynchronous"


def _statistics_objections(e: Experiment, name: str, can: Capabilities) -> Iterator[str]:
    """Running statistics are averaged only by plain means: no rule for weights fits them."""
    if not averages_statistics(e.problem):
        return
    what = 'buffers="average" (running statistics)'
    if not can.statistics:
        yield f'the {name} engine does not do {what}: use engine="cpu", or ft.groupnorm'
    if type(e.server) is not Average:
        yield f"{what} needs server=Average(): {e.server!r} would not average them"
    if type(e.local) not in (Sgd, Momentum):
        yield f"{what} needs local=Sgd() or Momentum(): {e.local!r} would change them too"


def _robust(e: Experiment) -> str:
    """Where robust means run."""
    return 'use device="cpu"' if e.problem.kind == "network" else 'use engine="reference"'


def _challenge_objections(e: Experiment, name: str, can: Capabilities) -> Iterator[str]:
    if e.challenges is not None and not can.challenges:
        yield f'the {name} engine sends no challenges: leave challenges=None, or use engine="cpu"'
    if e.challenges is not None and (e.local.keeps == "run" or e.local.receives):
        yield (
            f"challenges need a local rule that starts anew in each round, not {e.local!r}: its "
            "memory would change the answers; reset it in each round (Momentum(reset=True)), or "
            "audit by replays (ft.HeldOut)"
        )
    if e.challenges is not None and not e.in_step:
        yield (
            "challenges need all clients in step, because an answer is compared with its round's "
            "step sizes: leave out delays, asynchronous and own_clock, or leave challenges=None"
        )


def _others(e: Experiment, name: str) -> str:
    fit = [other for other in PREFERRED.get(e.problem.kind, ()) if other != name]
    return " or ".join(f'engine="{other}"' for other in fit) or "another problem"
