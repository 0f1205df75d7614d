"""What the theory's tools show on the paper's settings, how long it takes, and in what memory.

    python benchmarks/theory.py [part ...]      # parts: tracking forecast probability all presets

Each part runs in a process of its own, so that its peak memory is its own. ``cores busy`` is
CPU time over wall time: below 2 on a machine of two cores, something else was running, and
CPU time / 2 is the better figure.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import warnings
from itertools import pairwise

import numpy as np

import fedtaper as ft
from fedtaper.paper import theory as paper

warnings.simplefilter("ignore", ft.FedtaperWarning)


def tracking() -> None:
    for name, schedules in paper.CASES.items():
        found = paper.track(ft.run(paper.experiment(schedules), seeds=range(200), progress=False))
        fit, limit = found.fit(after=50), found.fit("limit", after=50)
        print(
            f"{name}: falls {found.fall(paper.EARLY, paper.LATE):.2f} times (with p: "
            f"{found.fall(paper.EARLY, paper.LATE, 'limit'):.2f}), exponent {fit.exponent:.3f} "
            f"[{fit.low:.3f}, {fit.high:.3f}] (with p: {limit.exponent:.3f}), "
            f"square root of the step size {found.theory}"
        )


def forecast() -> None:
    e = paper.experiment(paper.CASES["case 3"])
    for n in (10.0, 1e12, 1e16):  # the first call also loads SciPy
        began = time.perf_counter()
        far = ft.forecast(e, n=n)
        print(
            f"n = {n:.0e}: {time.perf_counter() - began:.3f} s, to w*(p_n) {far.distance:.2e}, "
            f"to client 1's optimum {far.distance_limit:.4f}"
        )
    print(paper._reaches())


def probability() -> None:
    for steps in (paper.SLOW, ft.Constant(0.01), ft.Constant(0.05)):
        curve = _curve(paper.experiment(steps))
        shown = ", ".join(f"{k:,}: {curve.at(0.1, k)[0]:.3f}" for k in (100, 300, 1000, 4000))
        low, high = curve.at(0.1, 4000)[1:]
        print(f"{steps}: share above 0.1 after round {shown} [{low:.4f}, {high:.4f}]")


def _curve(e: ft.Experiment) -> ft.ProbabilityOne:
    return ft.probability_one(ft.run(e, seeds=range(1000), progress=False), (0.1,))


def presets() -> None:
    for name in ft.PRESETS:
        for steps in (paper.SLOW, ft.Constant(0.01)):
            share, low, high = _curve(paper.experiment(steps, name)).at(0.1, 4000)
            kind = "constant" if steps.delta == 0 else "tapering"
            print(f"{name}, {kind}: {share:.3f} [{low:.4f}, {high:.4f}]", flush=True)


def all_() -> None:
    """Simulation of 1,000 seeds and every analysis of them, one after another."""
    ft.bound(ft.run(paper.experiment(paper.SLOW), seeds=[0], progress=False))  # compile
    marks = [("", time.perf_counter(), _cpu())]
    run = ft.run(paper.experiment(paper.CASES["case 3"]), seeds=range(1000), progress=False)
    marks.append(("simulation", time.perf_counter(), _cpu()))
    ft.tracking_error(run, 0.05)
    marks.append(("tracking", time.perf_counter(), _cpu()))
    found = ft.bound(run, 0.05)
    marks.append(("bound", time.perf_counter(), _cpu()))
    ft.noise_sums(run)
    marks.append(("noise sums", time.perf_counter(), _cpu()))
    ft.probability_one(run)
    marks.append(("probability one", time.perf_counter(), _cpu()))
    for (_, before, cpu), (name, after, more) in pairwise(marks):
        print(f"{name}: {after - before:.1f} s wall, {more - cpu:.1f} s CPU")
    print(f"all: {marks[-1][1] - marks[0][1]:.1f} s wall, {marks[-1][2] - marks[0][2]:.1f} s CPU")
    share = np.max(found.measured / found.total)
    print(f"bound holds: {found.holds}, largest measured / bound {share:.3f}")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


PARTS = {
    "tracking": tracking,
    "forecast": forecast,
    "probability": probability,
    "all": all_,
    "presets": presets,
}


def measure(part: str) -> None:
    began = time.perf_counter()
    PARTS[part]()
    wall, busy = time.perf_counter() - began, _cpu()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"[{part}] {wall:.1f} s wall, {busy / wall:.2f} cores busy, peak {peak:.2f} GiB\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2])
    else:
        for part in sys.argv[1:] or PARTS:
            subprocess.run([sys.executable, __file__, "--one", part], check=True)
