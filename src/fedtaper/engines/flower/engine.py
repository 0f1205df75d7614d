"""The engine "flower": an Experiment on Flower's simulation, on this machine."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedtaper.core.errors import warn
from fedtaper.core.protocols import Array, Block, Options, State, is_network
from fedtaper.engines.flower import CAPABILITIES, simulation
from fedtaper.engines.flower.federation import Federation, numbered
from fedtaper.experiment import Experiment

QUIET_KINDS = ("missing", "unclear", "steered")  # sites that are still starting; no trouble


class FlowerEngine:
    """One seed; each client is a simulated Flower site in its own process."""

    name = "flower"
    capabilities = CAPABILITIES

    def check(self) -> None:
        """Raise if Flower or Ray is not installed."""
        simulation.check()

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """One: a round is expensive, and each one is stored."""
        return 1

    def open(self, experiment: Experiment, state: State, options: Options) -> SimulatedSession:
        """Start Flower in the background and wait until every site is connected."""
        self.check()
        return SimulatedSession(experiment, state, options)


class SimulatedSession:
    """The rounds of a grid engine, with the simulation that is closed after them."""

    def __init__(self, experiment: Experiment, state: State, options: Options) -> None:
        from fedtaper.engines.flower.app import make_client_app
        from fedtaper.engines.flower.memory import FileVault, hand_out
        from fedtaper.engines.flower.roster import Roster
        from fedtaper.engines.flower.rounds import GridEngine
        from fedtaper.engines.flower.source import PickledSource

        federation = Federation(numbered(experiment.num_clients))
        self.state = state
        self.stack = ExitStack()
        try:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="fedtaper-"))
            source = PickledSource.write(experiment, federation, Path(folder))
            app = make_client_app(lambda _: source)
            grid = self.stack.enter_context(simulation.Simulation(app, experiment.num_clients))
            roster = Roster(grid, federation, _warn_of)
            roster.wait(federation.wait, experiment.num_clients)
            self.vaults = [FileVault(source.folder(site)) for site in federation.sites]
            hand_out(
                state, self.vaults, np.float32 if is_network(experiment.problem) else np.float64
            )
            self.rounds = GridEngine(grid, federation, roster).open(experiment, state, options)
        except BaseException:
            self.stack.close()
            raise

    def advance(self, rounds: int) -> Block:
        """Advance by this many rounds."""
        return self.rounds.advance(rounds)

    def answers(self, s: int, clients: list[int], model: Array, round_: int, a: Array) -> Array:
        """What sites send back for any model."""
        return self.rounds.answers(s, clients, model, round_, a)

    def losses(self, s: int) -> Array:
        """The loss that every site reports."""
        found: Array = self.rounds.losses(s)
        return found

    def steer(self, experiment: Experiment) -> None:
        """Use other factors from here on."""
        self.rounds.steer(experiment)

    def sync(self) -> None:
        """Bring the State up to date, with the sites' memories: the sites end with this."""
        from fedtaper.engines.flower.memory import bring_in

        self.rounds.sync()
        bring_in(self.state, self.vaults)

    def close(self) -> None:
        """End Flower and its processes."""
        self.stack.close()


def _warn_of(round_: int, site: str, kind: str, why: str) -> None:
    if kind not in QUIET_KINDS:
        warn(f"round {round_}, {site or 'server'}: {kind}: {why}")


ENGINE = FlowerEngine()
