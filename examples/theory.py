"""The theorem as tools: assumptions, forecast, tracking, bound, noise, probability one.

python examples/theory.py
"""

import numpy as np

import fedtaper as ft
from fedtaper.show import theory as plots

slow, fast = ft.Power(c=0.1, delta=0.76, offset=20), ft.Power(c=0.1, delta=1.0, offset=20)
problem = ft.LinearRegression(num_clients=10, seed=0)
experiment = ft.Experiment(problem, [slow] + [fast] * 9, rounds=2000, local_steps=5)

print(ft.check(experiment))

print("\nWhere will it be? (the limit is client 0's own optimum)")
for n in (1e4, 1e8, 1e12, 1e16):
    far = ft.forecast(experiment, n=n)
    print(f"n = {n:.0e}: w = {far.w.round(3)}, {far.distance_limit:.3f} from the limit")
print(f"the others' influence is below 0.01 from n = {far.fades(0.01)[1]:.2g}")

run = ft.run(experiment, seeds=range(50), progress=False)

print("\nDoes it follow the ODE?")
tracking = ft.tracking_error(run, window=0.1)
fit = tracking.fit(after=20)
print(f"largest distance in a window: {tracking.band()[1][[0, -1]].round(4)}, first and last")
print(f"it falls like round^{fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]")
bound = ft.bound(run, window=0.1)
print(f"the proof's bound holds in every window of every seed: {bound.holds}")

print("\nDoes the noise settle, and with what probability is it over?")
noise = ft.noise_sums(run)
print(f"client 0's noise sum moves like round^{noise.fit(client=0, after=20).exponent:.2f}")
curves = ft.probability_one(run, eps=[0.3, 0.1])
for k in (10, 100, 1000):
    print(f"after round {k}: share of seeds that exceed 0.3 again {curves.at(0.3, k)[0]:.2f}")

plots.phase_plane(run, "phase-plane.png")
plots.tracking({"": tracking}, "tracking.png")
plots.bound_terms(bound, "bound.png")
print("\nfigures: phase-plane.png, tracking.png, bound.png")
assert np.all(bound.measured <= bound.total)
