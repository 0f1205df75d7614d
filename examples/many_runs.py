"""A study of many runs, stored run by run; with ray="local" it uses every core."""

import fedtaper as ft

problem = ft.LinearRegression(num_clients=5, samples=500, feature_spread=2.0)
study = {
    f"delta-{delta}": ft.Experiment(problem, ft.Power(0.1, delta), rounds=200, local_steps=5)
    for delta in (0.76, 0.85, 1.0)
}
for name, run in zip(study, ft.run_many(study, out="study"), strict=True):
    print(f"{name}: distance to w*(p_n) {run.metrics['error'][-1]:.3f}")
