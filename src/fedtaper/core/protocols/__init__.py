"""The contract: what problems, rules, schedules and engines promise one another.

Whether an object of your own fulfils its protocol is checked once, where it comes in. From then
on nothing asks it which attributes it happens to have: a problem states its ``kind``, a rule
states what it keeps, an engine states its ``capabilities``, and one gate (``engines/gate.py``)
compares what is asked for with what the engine can do. ``fedtaper.testing`` checks an
implementation against its protocol.

One page for each: :mod:`problems`, :mod:`rules`, :mod:`schedules` and :mod:`engines`. Five smaller
parts can be your own as well; their protocols stand beside those that ship:

- :class:`fedtaper.core.participation.Participation`: who takes part in a round
- :class:`fedtaper.rules.behaviours.Behaviour`: what a client does instead of what it declared
- :class:`fedtaper.rules.delays.Delay`: by how many rounds an update is late
- :class:`fedtaper.rules.staleness.Staleness`: how much a late update counts
- :class:`fedtaper.problems.data.splits.Split`: which samples each client holds
"""

from fedtaper.core.protocols.engines import (
    Block,
    Capabilities,
    Engine,
    Options,
    Session,
    State,
    Steerable,
    Way,
)
from fedtaper.core.protocols.problems import (
    Array,
    LinearProblem,
    NetworkProblem,
    Problem,
    ProblemKind,
    QuadraticProblem,
    StreamProblem,
    Unit,
    as_linear,
    as_network,
    as_quadratic,
    as_stream,
    checked_problem,
    is_network,
    is_quadratic,
    is_stream,
    missing_parts,
)
from fedtaper.core.protocols.rules import (
    CombiningRule,
    Keeps,
    LocalRule,
    Memory,
    ServerRule,
    is_combining,
)
from fedtaper.core.protocols.schedules import (
    Schedule,
    checked_schedule,
    is_schedule,
)

__all__ = [
    "Array",
    "Block",
    "Capabilities",
    "CombiningRule",
    "Engine",
    "Keeps",
    "LinearProblem",
    "LocalRule",
    "Memory",
    "NetworkProblem",
    "Options",
    "Problem",
    "ProblemKind",
    "QuadraticProblem",
    "Schedule",
    "ServerRule",
    "Session",
    "State",
    "Steerable",
    "StreamProblem",
    "Unit",
    "Way",
    "as_linear",
    "as_network",
    "as_quadratic",
    "as_stream",
    "checked_problem",
    "checked_schedule",
    "is_combining",
    "is_network",
    "is_quadratic",
    "is_schedule",
    "is_stream",
    "missing_parts",
]
