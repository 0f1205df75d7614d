"""Hospitals train a seizure detector: equal influence, or every infant counts the same.

Runs on a synthetic stand-in. With the recordings, name the folder of ``neonatal_eeg.npz`` in
FEDTAPER_DATA and use data="neonatal_eeg".
"""

import numpy as np

import fedtaper as ft

problem = ft.SeizureDetection("synthetic", model="features")
infants = problem.infant_counts
print("infants per hospital:", infants, " windows:", problem.sizes)

cases = {
    "equal influence": ft.Power(c=0.1, delta=0.76),
    "by infants": [ft.Power(c=0.1 * n / infants.max(), delta=0.76) for n in infants],
}
for name, schedules in cases.items():
    e = ft.Experiment(problem, schedules, rounds=15, local_steps=20, batch_size=16)
    run = ft.run(e, progress=False)
    _, seizure, score = problem.infant_scores(run.w[-1])
    auc = np.mean(score[seizure][:, None] > score[~seizure])
    print(f"{name}: {len(score)} held-out infants, area under the curve {auc:.2f}")
