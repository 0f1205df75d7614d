"""Kill the server of a federation at random instants, go on, compare bits.

``python -m torture.flower COUNT [SEED]`` makes so many kills (SIGKILL) of the ServerApp of a
deployment on loopback, with TLS, keys and real processes; and ten times as many of a process in
which server and sites live together, so that the sites' files are cut off in the middle, too. In
the end each run must hold the bits of the reference loop, which nobody disturbs.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from flower_loop import LoopGrid, Source

import fedtaper as ft
from fedtaper.deploy import processes
from fedtaper.deploy.local import LocalFederation
from fedtaper.deploy.server import serve
from fedtaper.storage import store
from torture import limits

TOGETHER = 10  # kills of server and sites in one process, for each of a deployment's
SECONDS = 600.0  # for a deployed run to get from one round to the next
SITES = ("north", "south", "west")
RULES = {
    "adam": {"server": ft.Adam()},
    "momentum": {"local": ft.Momentum(0.8), "participation": 0.8},
    "adamw": {"local": ft.AdamW()},
    "scaffold": {"local": ft.Scaffold(), "server": ft.Controlled()},
    "feddyn": {"local": ft.Dynamic(0.3), "server": ft.DynamicServer(0.3)},
    "steered": {"steering": ft.Steering("minmax", every=5), "local": ft.Momentum(0.5)},
    "challenged": {"challenges": ft.Challenges(every=3, base=2)},
}
FILE = """
[experiment]
rounds = {rounds}
local_steps = 5
batch_size = 20
[problem]
kind = "linear"
num_clients = 3
samples = 200
[local]
kind = "scaffold"
[server]
kind = "controlled"
[[schedules]]
c = 0.02
delta = 0.76
[[schedules]]
c = 0.02
delta = 1.0
clients = 2
[federation]
sites = ["north", "south", "west"]
deadline = 240.0
quorum = 3
retries = 20
"""


class Folders(Source):
    """Sites with folders of their own."""

    def __init__(self, experiment, place):
        super().__init__(experiment, ft.Federation(sites=SITES, deadline=60.0, quorum=3))
        self.place = Path(place)

    def folder(self, site):
        return self.place / site


def experiment(rule, rounds=40):
    problem = ft.LinearRegression(num_clients=3, dim=2, samples=40, feature_spread=1.0, seed=7)
    steps = (ft.Power(0.1, 0.76), ft.Power(0.1, 1.0), ft.Power(0.05, 0.9))
    return ft.Experiment(problem, steps, rounds, 3, batch_size=10, seed=4, **RULES[rule])


def forked(e, base):
    """A process that is server and sites at once."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 4
    try:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        grid = LoopGrid(Folders(e, base / "sites"))
        serve(grid, grid.source, base / "run", progress=False)
        code = 0
    finally:
        os._exit(code)


def together(count, rng, base):
    """Kills of server and sites in one process: kills, and what went wrong."""
    kills, wrong = 0, []
    rules = list(RULES)
    while kills < count:
        rule = rules[int(rng.integers(len(rules)))]
        e, place = experiment(rule), base / f"{kills}-{rule}"
        began = time.perf_counter()
        right = LoopGrid(Folders(e, place / "other"))
        whole = serve(right, right.source, None, progress=False)
        seconds = time.perf_counter() - began
        tries = 0
        while not store.is_complete(place / "run"):
            process = forked(e, place)
            tries += 1  # longer and longer: where other work slows this down, it must get on, too
            time.sleep(float(rng.uniform(0, 0.7 * seconds * (1 + tries / 10))))
            os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            kills += code == -signal.SIGKILL
            if code == 4:
                wrong.append(f"{rule}: the server gave up")
                break
        wrong += differences(rule, place / "run", whole)
    return kills, wrong


def differences(name, folder, whole):
    """Lines about a stored run that is not the one that nobody disturbed."""
    try:
        run = ft.load(folder)
    except ft.FedtaperError as trouble:
        return [f"{name}: unreadable: {trouble}"]
    if np.array_equal(run.w, whole.w) and np.array_equal(run.update_norms, whole.update_norms):
        return []
    return [f"{name}: other models, by {np.abs(run.w - whole.w).max():g}"]


def server_apps(local):
    """The processes that run the ServerApp."""
    found = processes.descendants(local.superlink.pid)
    return [pid for pid in found if "flwr-serverapp" in processes.command_line(pid)]


def deployed(count, rng, base):
    """Kills of a deployed ServerApp, at instants from its start to some rounds later."""
    file = base / "federation.toml"
    file.write_text(FILE.format(rounds=2 * count + 2), encoding="utf-8")
    kills = 0
    with LocalFederation(file, base / "local", say=lambda text: None) as local:
        while kills < count and not store.is_complete(local.run_folder):
            local.submit()
            end = time.monotonic() + SECONDS
            while not server_apps(local) and time.monotonic() < end:
                time.sleep(0.2)
            time.sleep(float(rng.uniform(0, 30)))
            for pid in server_apps(local):
                os.kill(pid, signal.SIGKILL)
                kills += 1
            print(f"deployed: kill {kills}", flush=True)
        run = local.run(seconds=SECONDS * 3)
    whole = ft.run(ft.read_toml(file), engine="reference", progress=False)
    far = float(np.abs(run.w - whole.w).max())
    return kills, [] if far < 1e-12 else [f"deployed: other models, by {far:g}"]


def main(count="20", seed="0"):
    """Both kinds of kills, and a last line about them."""
    rng = np.random.default_rng(int(seed))
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        base = Path(folder)
        near, wrong = together(TOGETHER * int(count), rng, base / "together")
        print(f"{near} kills of server and sites together: {len(wrong)} differences", flush=True)
        far, more = deployed(int(count), rng, base)
    for line in wrong + more:
        print(line)
    print(f"{near + far} kills ({far} of a deployed ServerApp): {len(wrong + more)} differences")
    return bool(wrong or more) or limits.peak() > limits.MOST


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
