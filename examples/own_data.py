"""Your own arrays: two hospitals with many patients, one with few and different ones.

python examples/own_data.py
"""

import numpy as np

import fedtaper as ft

rng = np.random.default_rng(0)
sizes, truth = [2000, 2000, 100], [[1.0, 2.0], [1.0, 2.0], [-1.0, 0.0]]
x = [rng.normal(size=(n, 2)) for n in sizes]
y = [xi @ np.array(w) + 0.1 * rng.normal(size=len(xi)) for xi, w in zip(x, truth, strict=True)]
problem = ft.LinearRegression.from_arrays(x, y)


def final(schedules, **rules):
    """Where the shared model ends."""
    e = ft.Experiment(problem, schedules, rounds=3000, local_steps=5, batch_size=20, **rules)
    run = ft.run(e)
    return e.influence().share.round(3), run.w[-1].round(2)


step = ft.Power(c=0.3, delta=0.8)
print("weighted by samples:", *final(step, server=ft.Average(by="samples")))
print("equal:              ", *final(step))
strong = ft.Power(c=0.9, delta=0.8)  # three times the step size: three times the influence
print("the small site x 3: ", *final([step, step, strong]))
