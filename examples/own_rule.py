"""A local rule of your own, beside FedAvg, on the readable engine.

python examples/own_rule.py
"""

from dataclasses import dataclass

import fedtaper as ft


@dataclass(frozen=True)
class Decay(ft.Memoryless):
    """Weight decay: the gradient of the loss plus strength/2 times the square of the model."""

    strength: float = 0.05

    def direction(self, gradient, w, anchor):
        """What the step size multiplies."""
        return gradient + self.strength * w


problem = ft.LinearRegression(num_clients=4, samples=500, feature_spread=2.0)
for rule in (ft.Sgd(), Decay()):
    e = ft.Experiment(problem, ft.Power(0.3, 0.76), rounds=200, local_steps=5, local=rule)
    run = ft.run(e)
    size = (run.w[-1] ** 2).sum() ** 0.5
    print(f"{rule!s:22} {run.engine:10} ends at a model of size {size:.3f}")
