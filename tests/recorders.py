"""A recorder for a state that a test makes itself."""

from fedtaper.simulation.challenger import Challenger
from fedtaper.simulation.controller import Controller
from fedtaper.simulation.recorder import Recorder


def recorder(e, state, many=False):
    """Records every round of the state's seeds."""
    return Recorder(e, state.seeds, many, 1, Challenger(e, state), Controller(e, state))
