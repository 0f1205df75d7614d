"""Two versions of fedtaper side by side: is the newer one as fast?

python benchmarks/versions.py PATH_OF_ANOTHER_CHECKOUT [--repeats 5]

Each measurement is a process of its own, old and new in turn, and counts CPU seconds, so that
other work on the machine matters little. The best of the repeats is compared.
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
WORK = {
    "import fedtaper": """
before = used()
import fedtaper
print(used() - before)
""",
    "regression, 5,000 rounds": """
import fedtaper as ft
e = ft.Experiment(ft.LinearRegression(seed=0), ft.Power(0.05, 0.76), rounds=5000, local_steps=5)
ft.run(e, progress=False)
best = 1e9
for _ in range(5):
    before = used()
    ft.run(e, progress=False)
    best = min(best, used() - before)
print(best)
""",
    "digits on the CPU, 4 rounds": """
import fedtaper as ft
problem = ft.ImageClassification("digits", model="cnn", num_clients=10)
e = ft.Experiment(problem, ft.Power(0.1, 0.76), rounds=4, local_epochs=1, batch_size=32)
ft.run(e, progress=False)
best = 1e9
for _ in range(3):
    before = used()
    ft.run(e, progress=False)
    best = min(best, used() - before)
print(best)
""",
}


def measured(tree, code):
    settings = os.environ | {
        "PYTHONPATH": str(Path(tree).resolve() / "src"),
        "FEDTAPER_WORKERS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-c", COMMON + code]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("other", help="a checkout of the older version")
    words.add_argument("--repeats", type=int, default=5)
    asked = words.parse_args()
    print(f"{'CPU ms, best of the repeats':32} {'old':>8} {'new':>8} {'ratio':>7}")
    for name, code in WORK.items():
        old, new = [], []
        for _ in range(asked.repeats):
            old.append(measured(asked.other, code))
            new.append(measured(HERE, code))
        ratio = min(new) / min(old)
        print(f"{name:32} {1e3 * min(old):8.1f} {1e3 * min(new):8.1f} {ratio:7.3f}")


if __name__ == "__main__":
    main()
