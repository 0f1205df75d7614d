"""Two versions of fedtaper side by side: is the newer one as fast?

python benchmarks/versions.py PATH_OF_ANOTHER_CHECKOUT [--repeats 5] [--only WORD]

Each measurement is a process of its own, old and new in turn, and counts CPU seconds, so that
other work on the machine matters little. The best of the repeats is compared. It takes about four
minutes on a quiet machine; each line is printed when it is done.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
COMMON = """
import resource, sys
def used():
    everyone = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own, kids = (resource.getrusage(who) for who in everyone)
    return own.ru_utime + own.ru_stime + kids.ru_utime + kids.ru_stime
"""
REGRESSION = """
import fedtaper as ft
problem = ft.LinearRegression(seed=0)
e = ft.Experiment(problem, ft.Power(0.05, 0.76), rounds=5000, local_steps=5, **RULES)
WORK = lambda: ft.run(e, progress=False)
"""
DIGITS = """
import fedtaper as ft
problem = ft.ImageClassification("digits", model="cnn", num_clients=10)
e = ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=2, local_steps=5, batch_size=32, **RULES)
WORK = lambda: ft.run(e, progress=False)
"""
BEST = """
WORK()
best = float("inf")
for _ in range(5):
    before = used()
    WORK()
    best = min(best, used() - before)
print(best)
"""
PROXIMAL = "dict(local=ft.Proximal(mu=0.1))"
BOTH = "dict(local=ft.Proximal(mu=0.1), server=ft.Adam())"
WORK = {
    "import fedtaper": "before = used()\nimport fedtaper\nprint(used() - before)",
    "import fedtaper; fedtaper.run": (
        "before = used()\nimport fedtaper\nfedtaper.run\nprint(used() - before)"
    ),
    "regression, 5,000 rounds": REGRESSION.replace("**RULES", "") + BEST,
    "the same, FedProx and Adam": REGRESSION.replace("RULES", BOTH) + BEST,
    "digits on the CPU, 2 rounds": DIGITS.replace("**RULES", "") + BEST,
    "the same, FedProx": DIGITS.replace("RULES", PROXIMAL) + BEST,
}


def measured(tree, code):
    settings = os.environ | {
        "PYTHONPATH": str(Path(tree).resolve() / "src"),
        "FEDTAPER_WORKERS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-c", COMMON + code]
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=300, check=True
    )
    return float(done.stdout.split()[-1])


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("other", help="a checkout of the older version")
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--only", default="", help="measure what has this word in its name")
    asked = words.parse_args()
    print(f"{'CPU ms, best of the repeats':32} {'old':>8} {'new':>8} {'ratio':>7}", flush=True)
    for name, code in WORK.items():
        if asked.only not in name:
            continue
        old, new = [], []
        for _ in range(asked.repeats):
            old.append(measured(asked.other, code))
            new.append(measured(HERE, code))
        ratio = min(new) / min(old)
        print(f"{name:32} {1e3 * min(old):8.1f} {1e3 * min(new):8.1f} {ratio:7.3f}", flush=True)


if __name__ == "__main__":
    main()
