"""Who contributes as declared? Simulated clients that do not, and what an audit says.

python examples/audit.py
"""

import fedtaper as ft

declared = ft.Power(c=0.1, delta=0.76, offset=4)
faster = ft.Power(c=0.1, delta=1.0, offset=4)
experiment = ft.Experiment(
    ft.LinearRegression(num_clients=10, seed=0),
    declared,
    rounds=100,
    local_steps=5,
    behaviours={
        0: ft.OtherSchedule(faster),
        1: ft.Idle(),
        2: ft.Noise(),
        3: ft.Copies(),
    },
)
run = ft.run(experiment, updates=True, progress=False)
print(ft.audit(run))

# From a server of your own, a round at a time: sizes alone, or with the updates. Only because
# the losses are quadratic can these show a taper; other models need challenges or replays.
auditor = ft.Auditor([declared] * 10, quadratic=True)
for k in range(len(run.round)):
    auditor.add(run.update_norms[k], n=run.n[k])
found = auditor.result()
print("\nFrom sizes alone:", {c.client: c.verdict for c in found.clients})
assert {c.client for c in found.accused} >= {0, 1}
