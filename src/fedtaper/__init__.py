"""Federated learning in which each client has its own tapering step size.

The people who run the federation decide, and can check, how much each client influences
the shared model. ``import fedtaper`` is fast: Numba, matplotlib and torch are imported
when they are first needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedtaper.core.version import __version__

if TYPE_CHECKING:
    from fedtaper.auditing import Audit, Auditor, ClientAudit, HeldOut, audit
    from fedtaper.core.errors import (
        AssumptionWarning,
        FedtaperError,
        FedtaperWarning,
        OwnCodeError,
        StabilityWarning,
    )
    from fedtaper.core.influence import Influence, effective_influence, influence
    from fedtaper.core.participation import Exactly
    from fedtaper.core.patterns import Cyclic, Listed, OnOff
    from fedtaper.core.rules import Memoryless, PlainServer, Remembering
    from fedtaper.core.scaled import Scaled
    from fedtaper.core.schedules import Constant, Cosine, Piecewise, Power, Shaped, WarmUp
    from fedtaper.engines.flower.federation import Federation, Task
    from fedtaper.experiment import Experiment
    from fedtaper.outcomes.board import Board, board
    from fedtaper.outcomes.contributions import Contributions, contributions
    from fedtaper.outcomes.fair import Fair, fair
    from fedtaper.outcomes.intervals import Intervals, intervals
    from fedtaper.outcomes.price import price
    from fedtaper.outcomes.steer import Steered, steer
    from fedtaper.planning.plan import Fade, Plan, plan
    from fedtaper.problems.custom import Custom
    from fedtaper.problems.data import Dirichlet, DominantClass, Iid, RareClass
    from fedtaper.problems.data.drift import LabelDrift
    from fedtaper.problems.eeg import SeizureDetection
    from fedtaper.problems.images import ImageClassification
    from fedtaper.problems.linear import LinearRegression
    from fedtaper.problems.moving import MovingRegression
    from fedtaper.problems.normalisation import groupnorm
    from fedtaper.problems.streams import RegressionStream
    from fedtaper.results import Divergence, Run
    from fedtaper.rules.asynchronous import Asynchronous, Duration
    from fedtaper.rules.behaviours import After, Copies, Idle, Noise, OtherSchedule, Recognises
    from fedtaper.rules.challenges import Answers, Challenges
    from fedtaper.rules.control import Controlled, Dynamic, DynamicServer, Scaffold
    from fedtaper.rules.delays import FixedDelay, HeavyDelay, RandomDelay
    from fedtaper.rules.local import Proximal, Sgd
    from fedtaper.rules.momentum import AdamW, Momentum
    from fedtaper.rules.presets import PRESETS
    from fedtaper.rules.robust import Clipped, Median, Trimmed
    from fedtaper.rules.server import Adagrad, Adam, Average, AverageMomentum, Normalised, Yogi
    from fedtaper.rules.staleness import Hinge, Polynomial, Undiscounted
    from fedtaper.rules.steering import Looks, Steering
    from fedtaper.show.report import report
    from fedtaper.simulation.callbacks import EarlyStopping, Progress
    from fedtaper.simulation.drive import run
    from fedtaper.simulation.jobs import run_many
    from fedtaper.simulation.sweep import Sweep, sweep
    from fedtaper.storage.config import from_toml, read_toml, to_toml
    from fedtaper.storage.logs import Log
    from fedtaper.storage.store import load
    from fedtaper.theory.assumptions import Assumptions, check
    from fedtaper.theory.bound import Bound, bound
    from fedtaper.theory.forecast import Forecast, forecast
    from fedtaper.theory.noise import NoiseSums, noise_sums
    from fedtaper.theory.ode import LimitOde, limit_ode
    from fedtaper.theory.prices import Price
    from fedtaper.theory.probability import ProbabilityOne, probability_one
    from fedtaper.theory.stability import Stability, stability
    from fedtaper.theory.tracking import Tracking, tracking_error

_WHERE = {  # public name: the module that it is imported from when it is first used
    "Adagrad": "fedtaper.rules.server",
    "Adam": "fedtaper.rules.server",
    "AdamW": "fedtaper.rules.momentum",
    "After": "fedtaper.rules.behaviours",
    "Answers": "fedtaper.rules.challenges",
    "AssumptionWarning": "fedtaper.core.errors",
    "Assumptions": "fedtaper.theory.assumptions",
    "Asynchronous": "fedtaper.rules.asynchronous",
    "Audit": "fedtaper.auditing",
    "Auditor": "fedtaper.auditing",
    "Average": "fedtaper.rules.server",
    "AverageMomentum": "fedtaper.rules.server",
    "Board": "fedtaper.outcomes.board",
    "Bound": "fedtaper.theory.bound",
    "Challenges": "fedtaper.rules.challenges",
    "ClientAudit": "fedtaper.auditing",
    "Clipped": "fedtaper.rules.robust",
    "Constant": "fedtaper.core.schedules",
    "Contributions": "fedtaper.outcomes.contributions",
    "Controlled": "fedtaper.rules.control",
    "Copies": "fedtaper.rules.behaviours",
    "Cosine": "fedtaper.core.schedules",
    "Custom": "fedtaper.problems.custom",
    "Cyclic": "fedtaper.core.patterns",
    "Dirichlet": "fedtaper.problems.data",
    "Divergence": "fedtaper.results",
    "DominantClass": "fedtaper.problems.data",
    "Duration": "fedtaper.rules.asynchronous",
    "Dynamic": "fedtaper.rules.control",
    "DynamicServer": "fedtaper.rules.control",
    "EarlyStopping": "fedtaper.simulation.callbacks",
    "Exactly": "fedtaper.core.participation",
    "Experiment": "fedtaper.experiment",
    "Fade": "fedtaper.planning.plan",
    "Fair": "fedtaper.outcomes.fair",
    "Federation": "fedtaper.engines.flower.federation",
    "FedtaperError": "fedtaper.core.errors",
    "FedtaperWarning": "fedtaper.core.errors",
    "FixedDelay": "fedtaper.rules.delays",
    "Forecast": "fedtaper.theory.forecast",
    "HeavyDelay": "fedtaper.rules.delays",
    "HeldOut": "fedtaper.auditing",
    "Hinge": "fedtaper.rules.staleness",
    "Idle": "fedtaper.rules.behaviours",
    "Iid": "fedtaper.problems.data",
    "ImageClassification": "fedtaper.problems.images",
    "Influence": "fedtaper.core.influence",
    "Intervals": "fedtaper.outcomes.intervals",
    "LabelDrift": "fedtaper.problems.data.drift",
    "LimitOde": "fedtaper.theory.ode",
    "LinearRegression": "fedtaper.problems.linear",
    "Listed": "fedtaper.core.patterns",
    "Log": "fedtaper.storage.logs",
    "Looks": "fedtaper.rules.steering",
    "Median": "fedtaper.rules.robust",
    "Memoryless": "fedtaper.core.rules",
    "Momentum": "fedtaper.rules.momentum",
    "MovingRegression": "fedtaper.problems.moving",
    "Noise": "fedtaper.rules.behaviours",
    "NoiseSums": "fedtaper.theory.noise",
    "Normalised": "fedtaper.rules.server",
    "OnOff": "fedtaper.core.patterns",
    "OtherSchedule": "fedtaper.rules.behaviours",
    "OwnCodeError": "fedtaper.core.errors",
    "PRESETS": "fedtaper.rules.presets",
    "Piecewise": "fedtaper.core.schedules",
    "PlainServer": "fedtaper.core.rules",
    "Plan": "fedtaper.planning.plan",
    "Polynomial": "fedtaper.rules.staleness",
    "Power": "fedtaper.core.schedules",
    "Price": "fedtaper.theory.prices",
    "ProbabilityOne": "fedtaper.theory.probability",
    "Progress": "fedtaper.simulation.callbacks",
    "Proximal": "fedtaper.rules.local",
    "RandomDelay": "fedtaper.rules.delays",
    "RareClass": "fedtaper.problems.data",
    "Recognises": "fedtaper.rules.behaviours",
    "RegressionStream": "fedtaper.problems.streams",
    "Remembering": "fedtaper.core.rules",
    "Run": "fedtaper.results",
    "Scaffold": "fedtaper.rules.control",
    "Scaled": "fedtaper.core.scaled",
    "SeizureDetection": "fedtaper.problems.eeg",
    "Sgd": "fedtaper.rules.local",
    "Shaped": "fedtaper.core.schedules",
    "Stability": "fedtaper.theory.stability",
    "StabilityWarning": "fedtaper.core.errors",
    "Steered": "fedtaper.outcomes.steer",
    "Steering": "fedtaper.rules.steering",
    "Sweep": "fedtaper.simulation.sweep",
    "Task": "fedtaper.engines.flower.federation",
    "Tracking": "fedtaper.theory.tracking",
    "Trimmed": "fedtaper.rules.robust",
    "Undiscounted": "fedtaper.rules.staleness",
    "WarmUp": "fedtaper.core.schedules",
    "Yogi": "fedtaper.rules.server",
    "audit": "fedtaper.auditing",
    "board": "fedtaper.outcomes.board",
    "bound": "fedtaper.theory.bound",
    "check": "fedtaper.theory.assumptions",
    "contributions": "fedtaper.outcomes.contributions",
    "effective_influence": "fedtaper.core.influence",
    "fair": "fedtaper.outcomes.fair",
    "forecast": "fedtaper.theory.forecast",
    "from_toml": "fedtaper.storage.config",
    "groupnorm": "fedtaper.problems.normalisation",
    "influence": "fedtaper.core.influence",
    "intervals": "fedtaper.outcomes.intervals",
    "limit_ode": "fedtaper.theory.ode",
    "load": "fedtaper.storage.store",
    "noise_sums": "fedtaper.theory.noise",
    "plan": "fedtaper.planning.plan",
    "price": "fedtaper.outcomes.price",
    "probability_one": "fedtaper.theory.probability",
    "read_toml": "fedtaper.storage.config",
    "report": "fedtaper.show.report",
    "run": "fedtaper.simulation.drive",
    "run_many": "fedtaper.simulation.jobs",
    "stability": "fedtaper.theory.stability",
    "steer": "fedtaper.outcomes.steer",
    "sweep": "fedtaper.simulation.sweep",
    "to_toml": "fedtaper.storage.config",
    "tracking_error": "fedtaper.theory.tracking",
}
_RENAMED = {"Tapers": "OtherSchedule"}  # the old name still works


def __getattr__(name: str) -> Any:
    name = _RENAMED.get(name, name)
    if name not in _WHERE:
        raise AttributeError(f"module 'fedtaper' has no attribute {name!r}")
    found = getattr(import_module(_WHERE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


__all__ = [
    "PRESETS",
    "Adagrad",
    "Adam",
    "AdamW",
    "After",
    "Answers",
    "AssumptionWarning",
    "Assumptions",
    "Asynchronous",
    "Audit",
    "Auditor",
    "Average",
    "AverageMomentum",
    "Board",
    "Bound",
    "Challenges",
    "ClientAudit",
    "Clipped",
    "Constant",
    "Contributions",
    "Controlled",
    "Copies",
    "Cosine",
    "Custom",
    "Cyclic",
    "Dirichlet",
    "Divergence",
    "DominantClass",
    "Duration",
    "Dynamic",
    "DynamicServer",
    "EarlyStopping",
    "Exactly",
    "Experiment",
    "Fade",
    "Fair",
    "Federation",
    "FedtaperError",
    "FedtaperWarning",
    "FixedDelay",
    "Forecast",
    "HeavyDelay",
    "HeldOut",
    "Hinge",
    "Idle",
    "Iid",
    "ImageClassification",
    "Influence",
    "Intervals",
    "LabelDrift",
    "LimitOde",
    "LinearRegression",
    "Listed",
    "Log",
    "Looks",
    "Median",
    "Memoryless",
    "Momentum",
    "MovingRegression",
    "Noise",
    "NoiseSums",
    "Normalised",
    "OnOff",
    "OtherSchedule",
    "OwnCodeError",
    "Piecewise",
    "PlainServer",
    "Plan",
    "Polynomial",
    "Power",
    "Price",
    "ProbabilityOne",
    "Progress",
    "Proximal",
    "RandomDelay",
    "RareClass",
    "Recognises",
    "RegressionStream",
    "Remembering",
    "Run",
    "Scaffold",
    "Scaled",
    "SeizureDetection",
    "Sgd",
    "Shaped",
    "Stability",
    "StabilityWarning",
    "Steered",
    "Steering",
    "Sweep",
    "Task",
    "Tracking",
    "Trimmed",
    "Undiscounted",
    "WarmUp",
    "Yogi",
    "__version__",
    "audit",
    "board",
    "bound",
    "check",
    "contributions",
    "effective_influence",
    "fair",
    "forecast",
    "from_toml",
    "groupnorm",
    "influence",
    "intervals",
    "limit_ode",
    "load",
    "noise_sums",
    "plan",
    "price",
    "probability_one",
    "read_toml",
    "report",
    "run",
    "run_many",
    "stability",
    "steer",
    "sweep",
    "to_toml",
    "tracking_error",
]
