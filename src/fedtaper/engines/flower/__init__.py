"""The same Experiment on Flower: the engine "flower", and the rounds of a deployed server.

``engine.py`` opens Flower's simulation; ``rounds.py`` is what a server does in a round over any
Flower grid, ``client.py`` what a site does, ``roster.py`` knows which sites are connected, and
``guard.py`` decides which answers count. There are no equations here: local updates come from the
engines, the step sizes from the experiment, the aggregation from the server rule. What needs the
driver, the run folder or the audit (the apps of a deployed federation) is in ``fedtaper.deploy``.
"""

from fedtaper.core.protocols import Capabilities

CAPABILITIES = Capabilities(
    problems=frozenset({"linear", "quadratic", "gradient", "network"}),
    stateful_rules=True,
    updates=True,
    challenges=True,
    steering=True,
    combining=True,
    many_seeds=False,
    saves_each_round=True,
)
