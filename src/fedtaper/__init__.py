"""Federated learning in which each client has its own tapering step size.

The people who run the federation decide, and can check, how much each client influences
the shared model. ``import fedtaper`` is quick: Numba, matplotlib and torch are imported
when they are first needed.
"""

from fedtaper.auditing import Audit, Auditor, ClientAudit, HeldOut, audit
from fedtaper.core.errors import AssumptionWarning, FedtaperError, FedtaperWarning, StabilityWarning
from fedtaper.core.influence import Influence, effective_influence, influence
from fedtaper.core.participation import Exactly
from fedtaper.core.patterns import Cyclic, Listed, OnOff
from fedtaper.core.rules import Memoryless, PlainServer, Remembering
from fedtaper.core.schedules import Constant, Cosine, Piecewise, Power, Shaped, WarmUp
from fedtaper.core.version import __version__
from fedtaper.engines.flower.federation import Federation, Task
from fedtaper.experiment import Experiment
from fedtaper.outcomes.board import Board, board
from fedtaper.outcomes.contributions import Contributions, contributions
from fedtaper.outcomes.fair import Fair, fair
from fedtaper.outcomes.intervals import Intervals, intervals
from fedtaper.outcomes.price import Price, price
from fedtaper.outcomes.steer import Steered, steer
from fedtaper.planning.plan import Fade, Plan, plan
from fedtaper.problems.custom import Custom
from fedtaper.problems.data import Dirichlet, DominantClass, Iid, RareClass
from fedtaper.problems.data.drift import LabelDrift
from fedtaper.problems.eeg import SeizureDetection
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.linear import LinearRegression
from fedtaper.problems.normalisation import groupnorm
from fedtaper.problems.streams import MovingRegression, RegressionStream
from fedtaper.results import Divergence, Run
from fedtaper.rules.asynchronous import Asynchronous, Duration
from fedtaper.rules.behaviours import After, Copies, Idle, Noise, Recognises, Tapers
from fedtaper.rules.challenges import Answers, Challenges
from fedtaper.rules.control import Controlled, Dynamic, DynamicServer, Scaffold
from fedtaper.rules.delays import FixedDelay, HeavyDelay, RandomDelay
from fedtaper.rules.local import Proximal, Sgd
from fedtaper.rules.momentum import AdamW, Momentum
from fedtaper.rules.presets import PRESETS
from fedtaper.rules.robust import Clipped, Median, Trimmed
from fedtaper.rules.server import Adagrad, Adam, Average, AverageMomentum, Normalised, Yogi
from fedtaper.rules.staleness import Hinge, Polynomial, Undiscounted
from fedtaper.show.report import report
from fedtaper.simulation.drive import run
from fedtaper.simulation.jobs import run_many
from fedtaper.storage.config import from_toml, read_toml, to_toml
from fedtaper.storage.logs import Log
from fedtaper.storage.store import load
from fedtaper.theory.assumptions import Assumptions, check
from fedtaper.theory.bound import Bound, bound
from fedtaper.theory.forecast import Forecast, forecast
from fedtaper.theory.noise import NoiseSums, noise_sums
from fedtaper.theory.ode import LimitOde, limit_ode
from fedtaper.theory.probability import ProbabilityOne, probability_one
from fedtaper.theory.stability import Stability, stability
from fedtaper.theory.tracking import Tracking, tracking_error

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
    "Median",
    "Memoryless",
    "Momentum",
    "MovingRegression",
    "Noise",
    "NoiseSums",
    "Normalised",
    "OnOff",
    "Piecewise",
    "PlainServer",
    "Plan",
    "Polynomial",
    "Power",
    "Price",
    "ProbabilityOne",
    "Proximal",
    "RandomDelay",
    "RareClass",
    "Recognises",
    "RegressionStream",
    "Remembering",
    "Run",
    "Scaffold",
    "SeizureDetection",
    "Sgd",
    "Shaped",
    "Stability",
    "StabilityWarning",
    "Steered",
    "Tapers",
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
    "to_toml",
    "tracking_error",
]
