"""Messages dropped, delayed, duplicated, reordered, late: a site counts in a round or not.

Whatever happens on the way, the models are those of the reference loop in which exactly the
sites whose updates counted took part, with their memories.
"""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
from flower_loop import LoopGrid, Source

import fedtaper as ft
from fedtaper.deploy.server import serve
from fedtaper.engines.flower import roster as rosters

SITES = ("north", "south", "west")
SCHEDULES = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))
RULES = {
    "sgd": {},
    "adam": {"server": ft.Adam()},
    "momentum": {"local": ft.Momentum(0.8)},
    "scaffold": {"local": ft.Scaffold(), "server": ft.Controlled()},
    "feddyn": {"local": ft.Dynamic(0.3), "server": ft.DynamicServer(0.3)},
    "challenges": {"challenges": ft.Challenges(every=2, base=2)},
}
FAULTS = ("none", "lost", "lost answer", "late", "twice", "twice, late", "delayed", "error")
WEIGHTS = (8, 1, 1, 1, 1, 1, 2, 1)


class Folders(Source):
    """Sites with folders of their own."""

    def __init__(self, experiment, federation, place):
        super().__init__(experiment, federation)
        self.place = Path(place)

    def folder(self, site):
        return self.place / site


class FaultyGrid(LoopGrid):
    """Every training message may meet a fault; answers come in any order, some of them again."""

    def __init__(self, source, rng, stop=None):
        super().__init__(source)
        self.rng, self.stop, self.met = rng, stop, []
        self.postponed, self.again = [], []

    def push_messages(self, messages):
        for message in self.postponed:  # from a round that is over
            super()._answer(message)
        self.postponed = []
        order = list(enumerate(messages))
        self.rng.shuffle(order)
        ids = {place: self._answer(message) for place, message in order}
        return [ids[place] for place in range(len(messages))]

    def _answer(self, message):
        if message.metadata.message_type != "train":
            return super()._answer(message)
        if message.content["order"]["round"] == self.stop:
            raise Killed
        (fault,) = self.rng.choices(FAULTS, WEIGHTS)
        self.met.append(fault)
        if fault in ("late", "lost"):
            if fault == "late":
                self.postponed.append(copy.copy(message))
            return f"lost-{len(self.met)}"
        number = super()._answer(message)
        if fault == "lost answer":
            del self.replies[number]
        elif fault == "error":
            self.replies[number] = (0, broken(message))
        elif fault == "delayed":
            self.replies[number] = (self.rng.randrange(1, 4), self.replies[number][1])
        elif fault == "twice":
            super()._answer(copy.copy(message))
            self.again.append(self.replies[number][1])
        elif fault == "twice, late":
            self.postponed.append(copy.copy(message))
        return number

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids) + self.again  # answers that nobody waits for
        self.again = self.again[-2:]
        self.rng.shuffle(found)
        return found


def broken(message):
    from flwr.app import Error, Message

    return Message(Error(2, "the process of this site ended"), reply_to=message)


class Killed(BaseException):
    """The server dies here."""


def faulty(e, rng, out, place, stop=None):
    known = ft.Federation(sites=SITES, deadline=0.25, quorum=1, retries=50)
    grid = FaultyGrid(Folders(e, known, place), rng, stop)
    return serve(grid, grid.source, out, progress=False), grid


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(rosters, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr("fedtaper.engines.flower.rounds.RETRY_PAUSE", 0.0)


def experiment(problem, rule, rounds=14, **changes):
    how = {"local_steps": (3, 2, 4), "batch_size": 10, "seed": 4} | RULES[rule] | changes
    return ft.Experiment(problem, SCHEDULES, rounds, **how)


def with_those_who_counted(problem, rule, run):
    """The reference loop in which exactly those took part."""
    who = [tuple(np.flatnonzero(np.isfinite(row)).tolist()) for row in run.update_norms]
    plain = experiment(problem, rule, participation=ft.Listed(who), challenges=None)
    return ft.run(plain, engine="reference")


@pytest.mark.parametrize("rule", RULES)
def test_faults_on_the_way(tiny, tmp_path, rule):
    e, rng = experiment(tiny, rule), random.Random(rule)
    run, grid = faulty(e, rng, tmp_path / "run", tmp_path / "sites")
    absent = np.isnan(run.update_norms).mean()
    assert 0.1 < absent < 0.7
    assert len(set(grid.met)) >= 6
    assert np.abs(run.w - with_those_who_counted(tiny, rule, run).w).max() < 1e-12


@pytest.mark.parametrize("rule", ["sgd", "scaffold"])
def test_faults_on_the_way_and_the_server_killed_twice(tiny, tmp_path, rule):
    e, rng = experiment(tiny, rule), random.Random(f"{rule} killed")
    for stop in (4, 9):
        with pytest.raises(Killed):
            faulty(e, rng, tmp_path / "run", tmp_path / "sites", stop)
    run, _ = faulty(e, rng, tmp_path / "run", tmp_path / "sites")
    assert np.isnan(run.update_norms).any()
    assert np.abs(run.w - with_those_who_counted(tiny, rule, run).w).max() < 1e-12
