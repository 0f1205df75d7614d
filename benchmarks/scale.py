"""How time and memory grow: clients, rounds, seeds, stored runs, and a digits federation.

``python benchmarks/scale.py`` measures each at four sizes up to 10,000 clients, 1,000,000 rounds,
100,000 seeds, 500 runs in a folder and 1,000 clients of digits, each size in a process of its own,
and fits the exponents of CPU time and of memory beyond the smallest size. ``--share 0.1`` goes to
a tenth of the sizes. An exponent above 1 grows faster than the work.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

LARGEST = {"clients": 10_000, "rounds": 1_000_000, "seeds": 100_000, "folder": 500, "digits": 1_000}
STEPS = (0.05, 0.15, 0.4, 1.0)


def clients(size):
    """A hundred rounds of regression with so many clients."""
    import fedtaper as ft

    problem = ft.LinearRegression(num_clients=size, samples=50)
    e = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=100, local_steps=2, batch_size=10)
    ft.run(e, progress=False)


def rounds(size):
    """So many rounds of a small regression."""
    import fedtaper as ft

    problem = ft.LinearRegression(num_clients=3, samples=200)
    e = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=size, local_steps=2, batch_size=10)
    ft.run(e, progress=False)


def seeds(size):
    """So many seeds of a short regression."""
    import fedtaper as ft

    problem = ft.LinearRegression(num_clients=3, samples=200)
    e = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=50, local_steps=2, batch_size=10)
    ft.run(e, seeds=range(size), progress=False)


def folder(size):
    """So many small runs stored in a folder, all of them loaded, and one page about ten."""
    import fedtaper as ft

    problem = ft.LinearRegression(num_clients=3, samples=200)
    made = [
        ft.Experiment(problem, ft.Power(0.01, 0.8), 20, local_steps=2, batch_size=10, seed=s)
        for s in range(size)
    ]
    with tempfile.TemporaryDirectory() as place:
        ft.run_many(made, out=place)
        found = [ft.load(Path(place) / str(k)) for k in range(size)]
        ft.report(found[:10], Path(place) / "page.html")


def digits(size):
    """Three rounds of digits over so many clients."""
    import fedtaper as ft

    problem = ft.ImageClassification("digits", split=ft.Iid(), num_clients=size)
    e = ft.Experiment(problem, ft.Power(0.05, 0.8), rounds=3, local_steps=1, batch_size=1)
    ft.run(e, progress=False)


WORK = {"clients": clients, "rounds": rounds, "seeds": seeds, "folder": folder, "digits": digits}


def cpu_seconds():
    """Of this process and of those that it forked and that have ended."""
    times = os.times()
    return sum(times[:4])


def measured(name, size):
    """CPU seconds and bytes of one size, less what a run of the least size takes."""
    words = [sys.executable, __file__, "--work", name, "--size", str(size)]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.strip().rpartition("\n")[2])


def work(name, size):
    """One size, in this process: after a first run that compiles and imports."""
    import warnings

    warnings.simplefilter("ignore")
    WORK[name](2 if name != "digits" else 10)
    before, began = resource.getrusage(resource.RUSAGE_SELF), cpu_seconds()
    WORK[name](size)
    after, seconds = resource.getrusage(resource.RUSAGE_SELF), cpu_seconds() - began
    print(json.dumps([seconds, 1024 * (after.ru_maxrss - before.ru_maxrss), after.ru_maxrss]))


def exponent(sizes, values):
    """The slope of log value against log size."""
    kept = np.array(values) > 0
    if kept.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(np.array(sizes)[kept]), np.log(np.array(values)[kept]), 1)[0])


def main():
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--share", type=float, default=1.0, help="of the largest sizes")
    ask.add_argument("--work", help=argparse.SUPPRESS)
    ask.add_argument("--size", type=int, help=argparse.SUPPRESS)
    ask.add_argument("chosen", nargs="*", help=f"some of {', '.join(WORK)}")
    given = ask.parse_args()
    if given.work:
        work(given.work, given.size)
        return
    print(f"{'what':8} {'size':>9} {'CPU s':>8} {'more MiB':>9} {'peak MiB':>9}")
    for name in given.chosen or WORK:
        sizes = [max(10, int(LARGEST[name] * given.share * step)) for step in STEPS]
        found = [measured(name, size) for size in sizes]
        for size, (seconds, more, peak) in zip(sizes, found, strict=True):
            row = f"{name:8} {size:>9,} {seconds:>8.2f} {more / 2**20:>9.0f} {peak / 1024:>9.0f}"
            print(row, flush=True)
        grows = exponent(sizes, [f[0] for f in found]), exponent(sizes, [f[1] for f in found])
        print(f"{name:8} time ~ size^{grows[0]:.2f}, memory ~ size^{grows[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
