"""A rare class at one client: who decides whether the shared model learns it?"""

import fedtaper as ft

problem = ft.ImageClassification("digits", split=ft.RareClass(8), model="cnn")
slow = ft.Power(c=0.3, delta=0.76)
cases = {
    "equal": slow,
    "finite": [slow] + [ft.Power(c=0.03, delta=0.76)] * 9,
    "vanishing": [ft.Power(c=0.3, delta=1.0)] + [slow] * 9,
}
for name, schedules in cases.items():
    e = ft.Experiment(problem, schedules, rounds=8, local_epochs=3, batch_size=32)
    run = ft.run(e)
    rare, everything = (run.metrics[k][-3:].mean() for k in ("rare_test_accuracy", "test_accuracy"))
    print(f"{name:>10}: rare class {rare:.2f}, all classes {everything:.2f}")
