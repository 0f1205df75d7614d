"""Does your own problem, rule, schedule or engine keep the contract?

Each function runs a list of named checks, like scikit-learn's ``check_estimator``,
and raises :class:`ContractError` with one line per check that failed. Use them in your tests::

    from fedtaper.testing import check_local_rule

    def test_my_rule():
        check_local_rule(MyRule(strength=0.1))
"""

from fedtaper.testing.checks import ContractError
from fedtaper.testing.engines import check_engine
from fedtaper.testing.problems import check_problem
from fedtaper.testing.rules import check_local_rule, check_server_rule
from fedtaper.testing.schedules import check_schedule

__all__ = [
    "ContractError",
    "check_engine",
    "check_local_rule",
    "check_problem",
    "check_schedule",
    "check_server_rule",
]
