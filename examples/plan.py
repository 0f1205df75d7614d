"""Say how much each client should count; get the step sizes that do it.

python examples/plan.py
"""

import warnings

import numpy as np

import fedtaper as ft

# Three hospitals with unequal data: the server weighs by samples, one of them is often away.
# The small one should count as much as the large ones all the same.
plan = ft.plan(
    "equal effective influence",
    rounds=100,
    local_epochs=2,
    sizes=[400, 2000, 3000],
    participation=[1.0, 0.5, 1.0],
    server=ft.Average("samples"),
    batch_size=50,
    offset=20,  # a gentler start; with problem= the plan finds it from the curvature
)
print(plan)
assert np.allclose(plan.effective, 1)

# Rules as text. What cannot be had inside the theorem's assumptions is said, with the nearest.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the plan keeps what was warned of
    plan = ft.plan(
        ["client 0 counts 10x", "fade client 3 to 30% by round 80"],
        rounds=100,
        local_steps=5,
        num_clients=5,
    )
print()
print(plan)
plan.plot("influence.png")
plan.save("plan.toml")
print("\nwritten: influence.png, plan.toml (fedtaper run plan.toml)")
