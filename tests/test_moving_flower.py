"""Flower's buffered mode and the simulated asynchronous server: the same order, the same models."""

import numpy as np
import pytest

import fedtaper as ft

pytest.importorskip("flwr")

from flower_loop import LoopGrid, Source

from fedtaper.deploy.server import serve
from fedtaper.rules.events import simulate

SITES = ("north", "south", "west")


class OrderedGrid(LoopGrid):
    """Answers come in a given order of sites, one at a time, however early they are ready."""

    def __init__(self, source, order):
        super().__init__(source)
        self.order = list(order)
        self.owner, self.ready = {}, True

    def _answer(self, message):
        number = super()._answer(message)
        self.owner[number] = message.metadata.dst_node_id - 100
        train = message.metadata.message_type == "train"
        if not train:
            self.owner.pop(number)
        return number

    def push_messages(self, messages):
        self.ready = True  # the server has looked, and sent its newest model
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        found = []
        for one in message_ids:
            if one not in self.owner:
                found += super().pull_messages([one])
            elif self.ready and self.order and self.owner[one] == self.order[0]:
                self.order.pop(0)
                self.ready = False
                found += super().pull_messages([one])
        return found


@pytest.mark.parametrize(
    ("buffer", "durations", "discount"),
    [
        (1, (1.0, 1.3, 4.1), ft.Undiscounted()),
        (2, (1.0, 2.3, 7.1), ft.Polynomial(0.5)),  # one site is there twice in some rounds
    ],
)
def test_same_order_of_arrivals_same_models(tiny, buffer, durations, discount):
    settings = {"rounds": 12, "local_steps": 2, "batch_size": 10, "staleness": discount}
    rule = ft.Asynchronous(buffer=buffer, durations=durations)
    e = ft.Experiment(tiny, ft.Power(0.3, 0.8), asynchronous=rule, **settings)
    simulated = ft.run(e, progress=False)
    order, _, again, _, _ = simulate(rule, 3, 12, seed=0)
    assert again.any() == (buffer == 2)
    plain = ft.Experiment(tiny, ft.Power(0.3, 0.8), **settings)
    federation = ft.Federation(sites=SITES, buffer=buffer, deadline=30.0)
    grid = OrderedGrid(Source(plain, federation), order.ravel())
    served = serve(grid, grid.source, None, progress=False)
    assert np.abs(served.w - simulated.w).max() < 1e-12
    assert np.allclose(served.metrics["staleness"], simulated.metrics["staleness"])
