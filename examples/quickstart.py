"""Two groups of clients, one dial: who counts how much, and where the model ends.

python examples/quickstart.py
"""

import numpy as np

import fedtaper as ft

slow, fast = ft.Power(c=0.05, delta=0.76), ft.Power(c=0.05, delta=1.0)
problem = ft.LinearRegression(num_clients=10, seed=0)
experiment = ft.Experiment(problem, [slow] + [fast] * 9, rounds=5000, local_steps=5)

print("influence of the other clients, in the limit:", experiment.limit_influence[1])
print("and at the end of this run:", round(experiment.influence().effective[1], 3))

run = ft.run(experiment)
print("distance to the optimum of the influences now:", round(run.metrics["error"][-1], 3))
print("distance to the optimum of their limits:", round(run.metrics["error_limit"][-1], 3))

many = ft.run(experiment, seeds=range(50), progress=False)
print("over 50 seeds:", np.quantile(many.metrics["error"][:, -1], [0.1, 0.5, 0.9]).round(3))
