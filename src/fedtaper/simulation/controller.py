"""Steering a run: looks at the losses between rounds, and moves the clients' scales.

Everything it did is in its record, so a stopped run continues to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import (
    Array,
    Session,
    State,
    Steerable,
    checked_problem,
    is_network,
    is_quadratic,
)
from fedtaper.engines.steered import client_losses
from fedtaper.experiment import Experiment
from fedtaper.rules.steering import Looks, as_asked, with_factors

Judge = Callable[[Array], Array]  # the shared model (d,) -> every client's loss (L,)


class Controller:
    """Moves the scales of one run; without ``steering`` it does nothing.

    ``e`` is the current experiment: with every factor so far.
    """

    def __init__(self, e: Experiment, state: State, judge: Judge | Any = None) -> None:
        self.state, self.plan = state, e.steering
        self.asked: Experiment = as_asked(e)
        self.e = e
        self.judge = None if self.plan is None else _judge(self.asked, judge)
        if self.plan is None and judge is not None:
            raise FedtaperError("judge= is for steered runs: give the experiment steering=")
        self.round: list[int] = []  # of every look
        self.seen: list[Array] = []
        self.share: list[Array] = []
        self.factor: list[Array] = [np.ones(e.num_clients)]  # before the first look, after each
        self._follow()

    def _follow(self) -> None:
        if self.plan is not None:
            self.e = with_factors(self.asked, [0, *self.round], self.factor)

    def quiet(self, rounds: int) -> int:
        """How many rounds can be made before the next look."""
        if self.plan is None:
            return rounds
        return min(rounds, self.plan.every - self.state.round % self.plan.every)

    def after_rounds(self, session: Session) -> None:
        """Look and move, if it is time to."""
        if self.plan is None or self.state.round % self.plan.every or self.state.dead_round[0]:
            return
        f = self._losses(session)
        share = self.e.influence(self.state.round).share
        goal = self.plan.aim(self.seen[0] if self.seen else f)
        self.round.append(self.state.round)
        self.seen.append(f)
        self.share.append(share)
        if not goal.allows(f):
            hint = "raise its baseline, or " if goal.name == "proportional" else ""
            raise FedtaperError(
                f'after round {self.state.round} the goal "{goal.name}" has no value at the '
                f"clients' losses: {hint}use another goal"
            )
        last = self.factor[-1]
        self.factor.append(self.plan.moved(goal, last, share, f, len(self.round)))
        self._follow()
        assert isinstance(session, Steerable)  # the gate has seen to it
        session.steer(self.e)

    def _losses(self, session: Session) -> Array:
        if self.judge is None:
            assert isinstance(session, Steerable)
            f = np.array(session.losses(0), dtype=np.float64)
            gone = np.isnan(f)
            if gone.any():  # as it was when it last said, or like the others
                known = self.seen[-1] if self.seen else np.full(len(f), np.nanmean(f))
                f = np.where(gone, known, f)
        else:
            session.sync()
            f = np.asarray(self.judge(self.state.w[0].copy()), dtype=np.float64)
        if f.shape != (self.e.num_clients,) or not np.all(np.isfinite(f)):
            raise FedtaperError(
                f"after round {self.state.round} the controller needs one finite loss for each of "
                f"{self.e.num_clients} clients, not {f!r:.80}"
            )
        return f

    def checkpoint(self) -> dict[str, Any]:
        """What a resume needs, as named arrays."""
        if self.plan is None:
            return {}
        shape = (len(self.round), self.e.num_clients)
        return {
            "steer_round": np.array(self.round, dtype=np.int64),
            "steer_losses": np.array(self.seen).reshape(shape),
            "steer_share": np.array(self.share).reshape(shape),
            "steer_factor": np.array(self.factor),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        if self.plan is None:
            return
        if "steer_round" not in saved:
            raise FedtaperError("the stopped run was not steered: resume without steering")
        self.round = [int(k) for k in saved["steer_round"]]
        self.seen, self.share = list(saved["steer_losses"]), list(saved["steer_share"])
        self.factor = list(saved["steer_factor"])
        self._follow()

    def looks(self) -> Looks | None:
        """All that was recorded."""
        if self.plan is None:
            return None
        kept = self.checkpoint()
        return Looks(
            kept["steer_round"],
            kept["steer_losses"],
            kept["steer_share"],
            kept["steer_factor"],
        )


def _judge(e: Experiment, judge: Any) -> Judge | None:
    """What to look at: a function, a problem with held-out samples, or clients' reports (None)."""
    if judge is None:
        if not (is_quadratic(e.problem) or is_network(e.problem)):
            client_losses(e.problem, np.zeros(e.problem.dim))  # says what is missing
        return None
    if callable(judge):
        found: Judge = judge
        return found
    checked_problem("judge", judge)
    if judge.num_clients != e.num_clients or judge.dim != e.problem.dim:
        raise FedtaperError(
            f"the held-out problem has {judge.num_clients} clients and {judge.dim} parameters; it "
            f"must have {e.num_clients} and {e.problem.dim}"
        )
    return lambda w: client_losses(judge, w)
