"""Wrong calls of every public function: each must be one line, never a raw error.

``python -m torture.calls COUNT [SEED]`` makes so many of them.
"""

import itertools
import os
import sys
import tempfile
import warnings
from collections import deque
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

import fedtaper as ft
from fedtaper.core.checks import shown
from torture import limits


class Word(str):
    """A text that is more than a text."""


LOOP = [1]
LOOP.append(LOOP)  # a list that holds itself
WRONG = [
    None, True, -1, 0, 0.0, 1.5, float("nan"), float("inf"), -float("inf"), 2**63, 2**64, 10**30,
    10**12, 10**400, 1e-320, "", "abc", "1", b"x", [], [1], [1, 2, 3], ["a"], (), (1, "a"), {},
    {"a": 1}, object(), np.array([]), np.array([[1.0]]), np.array(["a"]), int, ft.Power(0.1, 0.8),
    ft.Idle(), 1j, [[1, 2], [3]], [None] * 3, [1e308] * 3, range(3), set(), {0: None}, "[/red]",
    "a\0b", len, np.int64(-3), np.float32(2.5), np.nan * np.ones(3), np.datetime64("2020-01-01"),
    (1, 2), ((0, 1), (2, "x")), [[0], [9]], lambda *words: None, ft.Power, Path("/dev/null/x"),
    "é\ud800", np.zeros((2, 3)), "x" * 10_000, {3: ft.Idle()}, [float("nan")] * 3, 2**62, iter(()),
    np.timedelta64(3, "D"), np.array(True), np.array("x"), np.ma.masked, 2**70, 5e-324,
    np.longdouble(1) / 3, np.broadcast_to(1.0, 10**12), range(10**18), itertools.repeat(1), LOOP,
    np.dtype("f8"), Decimal("1.5"), Fraction(1, 3), bytearray(b"x"), deque([1, 2, 3]), Word("sgd"),
    "/dev/full", "/proc/self/mem",
]  # fmt: skip


def calls():
    """By name: a function, and good values of the arguments to make wrong one at a time."""
    return [*_records(), *_regression(), *_outcomes(), *_networks(), *_files()]


def _records():
    power, mean = ft.Power(0.1, 0.8), ft.Average()
    server = {"eta": 0.1, "b1": 0.9, "b2": 0.99, "tau": 0.1, "mean": mean}
    rows = {"round": 3, "then": ft.Idle()}
    piece = ((1, ft.Power(0.1, 0.8)), (50, ft.Constant(0.01)))
    steps = {"most": 5}
    return [
        (ft.Power, {"c": 0.1, "delta": 0.8, "offset": 0.0}),
        (ft.Constant, {"a": 0.1}),
        (ft.Cosine, {"a": 0.1, "over": 100, "end": 0.01}),
        (ft.WarmUp, {"schedule": power, "over": 10}),
        (ft.Piecewise, {"pieces": piece}),
        (ft.Shaped, {"shape": lambda n: 0.1 / n, "limit": ft.Power(0.1, 1.0), "after": 10.0}),
        *((schedule, {"n": 3}) for schedule in (power, ft.Constant(0.1), ft.Cosine(0.1, 50, 0.01),
          ft.WarmUp(power, 5), ft.Piecewise(piece))),
        *((rule, server) for rule in (ft.Adam, ft.Adagrad, ft.Yogi)),
        (ft.AdamW, {"b1": 0.9, "b2": 0.999, "epsilon": 1e-8, "decay": 0.01, "reset": False}),
        (ft.Momentum, {"beta": 0.9, "nesterov": False, "reset": False}),
        (ft.AverageMomentum, {"beta": 0.9, "mean": mean}),
        (ft.Controlled, {"mean": mean}),
        (ft.Dynamic, {"alpha": 0.1}),
        (ft.DynamicServer, {"alpha": 0.1, "mean": mean}),
        (ft.Proximal, {"mu": 0.1}),
        (ft.Average, {"by": "uniform"}),
        (ft.Normalised, {"by": "uniform", "over": "steps"}),
        (ft.Clipped, {"norm": 1.0, "by": "uniform"}),
        (ft.Trimmed, {"each": 1}),
        (ft.After, rows), (ft.OtherSchedule, {"schedule": power}), (ft.Noise, {"scale": 1.0}),
        (ft.Copies, {"scale": 1.0}), (ft.Recognises, {"schedule": power, "near": False}),
        (ft.Challenges, {"every": 11, "base": 2, "share": 1.0, "jitter": 0.02, "clients": (0, 1)}),
        (ft.Cyclic, {"groups": 2}), (ft.Exactly, {"k": 2}),
        (ft.OnOff, {"rate": 0.5, "mean_on": 10.0}),
        (ft.Listed, {"rounds": ((0, 1), (2,))}),
        (ft.FixedDelay, steps), (ft.RandomDelay, {"mean": 2.0, "most": 100}),
        (ft.HeavyDelay, {"tail": 1.5, "most": 100}),
        (ft.Duration, {"mean": 1.0, "law": "exponential", "shape": 1.0}),
        (ft.Asynchronous, {"buffer": 2, "durations": 1.0, "mean_on": 10.0, "mean_off": 1.0}),
        (ft.Hinge, {"grace": 4.0, "slope": 10.0}), (ft.Polynomial, {"power": 0.5}),
        (ft.RareClass, {"rare": 3, "client": 0}), (ft.DominantClass, {"share": 0.5}),
        (ft.Dirichlet, {"alpha": 0.5, "smallest": 1}),
        (ft.LabelDrift, {"rounds": 10, "start": 0, "to": None}),
        (ft.Fade, {"end": 0.1, "by": 20, "start": 1.0}),
        (ft.Log, {"tensorboard": None, "mlflow": None}),
        (ft.Federation, {"sites": ("a", "b"), "task": None, "deadline": 60.0, "quorum": 1,
                         "retries": 3, "wait": 60.0, "own_schedules": False, "buffer": None,
                         "clipping_norm": None, "noise_multiplier": 0.0, "nodes": {},
                         "samples": {}, "max_size_ratio": 100.0}),
    ]  # fmt: skip


def _experiment():
    problem = ft.LinearRegression(num_clients=3, samples=40, dim=2, feature_spread=1.0)
    how = {"problem": problem, "schedules": ft.Power(0.1, 0.8), "rounds": 40, "local_steps": 2}
    return problem, how, ft.Experiment(**how, batch_size=4)


def _regression():
    problem, how, e = _experiment()
    run = ft.run(e, progress=False, engine="reference", seeds=[0, 1, 2])
    one = ft.run(e, progress=False, engine="reference", updates=True)
    pair = [ft.Power(0.1, 0.8), ft.Power(0.1, 1.0)]
    quiet = partial(ft.run, progress=False)
    ode, plan = ft.limit_ode(e), {"target": [1, 0.1, 0.1], "rounds": 10, "local_steps": 2}
    tracked, noise, sure = ft.tracking_error(run), ft.noise_sums(run), ft.probability_one(run)
    stream = {
        "num_clients": 3,
        "dim": 2,
        "rho": 0.5,
        "feature_spread": 1.0,
        "sigma_w": 1.0,
        "true_w": None,
        "snr_db": 10.0,
        "init_spread": 2.0,
        "samples": 100,
        "seed": 0,
    }
    linear = {k: v for k, v in stream.items() if k != "rho"} | {"samples": 40}
    moving = {
        "stream": ft.RegressionStream(**stream),
        "drift": 0.1,
        "change_round": 5,
        "change": 1.0,
        "seed": 0,
    }
    rest = {
        "batch_size": 4,
        "local": ft.Sgd(),
        "server": ft.Average(),
        "clock": "update",
        "participation": 1.0,
        "seed": 0,
        "behaviours": {1: ft.Idle()},
        "challenges": None,
        "delays": None,
        "asynchronous": None,
        "staleness": ft.Undiscounted(),
        "own_clock": False,
        "average_over": "all",
        "names": ("a", "b", "c"),
        "local_epochs": None,
    }
    late = {"batch_size": 4, "delays": (0, 1, ft.RandomDelay(1.0, 9)), "own_clock": True}
    auditor = partial(_audited, pair)
    return [
        (ft.influence, {"schedules": pair, "n": 4}),
        (ft.effective_influence, {"schedules": pair, "n": 3, "local_steps": 1,
                                  "server_weight": None, "participation": 1.0}),
        (ft.Experiment, how | rest), (ft.Experiment, how | late),
        (ft.LinearRegression, linear), (ft.RegressionStream, stream), (ft.MovingRegression, moving),
        (ft.LinearRegression.from_arrays, {"x": problem.x, "y": problem.y}),
        (problem.equilibrium, {"p": [1, 1, 1]}),
        (quiet, {"experiment": e, "seeds": [0], "resume": False, "engine": "reference",
                 "device": None, "precision": None, "thin": None, "updates": False, "log": None,
                 "progress": False, "keep_data": False, "also": None, "out": None}),
        (ft.run_many, {"experiments": [e], "out": None, "ray": None, "retries": 3, "cores": 1,
                       "gpus": 0, "seeds": None, "thin": None}),
        (ft.plan, plan | {"problem": None, "num_clients": None, "sizes": None, "c": 0.1,
                          "delta": 0.76, "offset": 0.0, "batch_size": 50, "participation": 1.0}),
        (ft.plan, {"target": {0: 1.0, 2: 0.1}, "rounds": 10, "local_steps": 2, "num_clients": 3}),
        (ft.plan(**plan).save, {"path": "plan.toml"}),
        (ft.plan(**plan).plot, {"path": "plan.png"}),
        (ft.forecast, {"experiment": e, "n": 1e6, "w": None, "start": 0.0}),
        (ft.forecast(e, n=1e6).fades, {"to": 0.01}),
        (ft.check, {"experiment": e}), (ft.stability, {"experiment": e}),
        (ft.limit_ode, {"experiment": e, "influence": "limit"}),
        (ode.solve, {"w": [0.0, 0.0], "start": 0.0, "end": 1.0}),
        (ode.equilibrium, {"t": None}),
        (ft.tracking_error, {"run": run, "window": None, "starts": None}),
        (tracked.band, {"kind": "finite", "shares": (0.1, 0.5)}),
        (tracked.fit, {"kind": "finite", "after": 0}),
        (tracked.fall, {"early": (1, 15), "late": (10, 40), "kind": "finite"}),
        (ft.bound, {"run": run, "window": None, "starts": None, "influence": "limit"}),
        (ft.noise_sums, {"run": run, "points": 10}), (noise.fit, {"client": 0, "after": 0}),
        (ft.probability_one, {"run": run, "eps": (1.0, 0.1), "metric": "error"}),
        (sure.at, {"eps": 1.0, "round": 3}),
        (e.influence, {"round": 2}),
        (ft.audit, {"source": one, "seed": None, "level": 0.95, "held_out": None}),
        (ft.audit, {"source": one.update_norms, "n": one.n, "schedules": e.schedules,
                    "step_sums": None, "updates": None, "w": None, "held_out": None,
                    "quadratic": True, "level": 0.95}),
        (ft.Auditor, {"schedules": pair, "alike": None, "quadratic": False}),
        (auditor("add"), {"n": 2.0, "norms": [0.1, 0.2], "updates": None, "w": None,
                          "step_sums": None, "held_out": None}),
        (auditor("result"), {"level": 0.95}),
        (auditor("challenge"), {"products": [0.1, 0.2], "share": 1.0}),
    ]  # fmt: skip


def _audited(schedules, name):
    """A method of an auditor that has seen one round, made anew for each call."""

    def call(**given):
        auditor = ft.Auditor(schedules, quadratic=True)
        auditor.add([0.3, 0.2], n=1.0)
        return getattr(auditor, name)(**given)

    return call


def _outcomes():
    problem, _, e = _experiment()
    run = ft.run(e, progress=False, engine="reference", updates=True)
    return [
        (ft.fair, {"problem": problem, "goal": "minmax", "constraints": (), "q": 1.0, "t": 1.0,
                   "baseline": None, "before": None, "held_out": None}),
        (ft.fair(problem).plan, {"rounds": 10, "local_steps": 2}),
        (ft.price, {"source": problem, "p": [1, 1, 1], "method": "auto", "seeds": range(2),
                    "change": 0.25, "clients": None}),
        (ft.contributions, {"source": problem, "p": [1, 1, 1], "held_out": None, "weights": None,
                            "nobody": None, "method": "auto", "permutations": 20, "seed": 0}),
        (ft.contributions, {"source": run, "method": "sampled", "permutations": 20, "seed": 0}),
        (ft.intervals, {"source": run, "level": 0.95, "method": "plug-in", "of": "data",
                        "n": None}),
        (ft.intervals, {"source": e, "n": 1e4}),
        (ft.board, {"run": run, "asked": [1, 1, 1], "level": 0.95, "seed": None}),
        (ft.steer, {"experiment": e, "goal": "minmax", "every": 5, "rate": 1.0, "bound": 100.0,
                    "judge": None, "q": 1.0, "t": 1.0, "baseline": None, "engine": "reference",
                    "device": None}),
        (ft.price(problem).plot, {"path": "price.png"}),
    ]  # fmt: skip


def _networks():
    import torch
    from torch.nn.functional import mse_loss

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(9, 3)).astype("f"), rng.normal(size=(9, 1)).astype("f"))] * 3

    def loss(model, x, y):
        return mse_loss(model(x), y)

    def init():
        return torch.nn.Linear(3, 1)

    problem = ft.Custom(loss, init, data)
    e = ft.Experiment(problem, ft.Power(0.01, 0.8), rounds=2, local_steps=1, batch_size=4)
    run = ft.run(e, progress=False)
    custom = {"loss": loss, "init": init, "client_data": data, "evaluate": None, "lazy": None,
              "workers": 0, "collate": None, "sampler": None, "buffers": "refuse",
              "check_finite": True}  # fmt: skip
    images = {"data_set": "digits", "split": ft.Iid(), "model": "cnn", "num_clients": 3,
              "augment": None, "rare": None, "start": "one", "data_dir": None, "seed": 0,
              "drift": None, "client_samples": None}  # fmt: skip
    eeg = {"data": "synthetic", "model": "features", "shares": (0.5, 0.5),
           "seizure_shares": (0.5, 0.5), "fold": 0, "folds": 2, "expert": "both",
           "data_dir": None, "seed": 0}  # fmt: skip
    train = partial(_trained, rounds=2, local_steps=1, batch_size=4)
    return [
        (ft.Custom, custom), (train, custom),
        (ft.ImageClassification, images), (_split, images),
        (ft.SeizureDetection, eeg), (_split_eeg, eeg),
        (ft.groupnorm, {"module": torch.nn.BatchNorm2d(4), "groups": 2}),
        (ft.Task, {"loss": loss, "init": init, "data": lambda site: data[0], "evaluate": None}),
        (partial(ft.run, progress=False), {"experiment": e, "engine": "cpu", "device": "cpu",
                                           "precision": None, "thin": None, "updates": False}),
        (run.to_frame, {}),
        (ft.audit, {"source": run, "held_out": None, "seed": None, "level": 0.95}),
        (ft.fair, {"problem": problem, "goal": "minmax", "q": 1.0}),
        (ft.price, {"source": e, "method": "runs", "seeds": [0, 1], "change": 0.25,
                    "clients": [0]}),
    ]  # fmt: skip


def _trained(rounds, local_steps, batch_size, **custom):
    """A problem of one's own, and one short run of it."""
    problem = ft.Custom(**custom)
    how = {"rounds": rounds, "local_steps": local_steps, "batch_size": batch_size}
    ft.run(ft.Experiment(problem, ft.Power(0.01, 0.8), **how), progress=False)


def _split(**images):
    return ft.ImageClassification(**images).sizes


def _split_eeg(**eeg):
    return ft.SeizureDetection(**eeg).sizes


def _files():
    _, _, e = _experiment()
    run = ft.run(e, progress=False, engine="reference", out=Path(tempfile.mkdtemp()) / "run")
    return [
        (ft.load, {"folder": run.path, "problem": None, "experiment": None}),
        (ft.from_toml, {"text": ft.to_toml(e), "folder": ".", "problem": None, "code": None}),
        (ft.read_toml, {"path": run.path / "config.toml", "problem": None, "trusted": True}),
        (ft.to_toml, {"experiment": e, "data": None, "stored": False}),
        (ft.report, {"sources": [run], "out": "page.html", "figures": None}),
    ]


CODE = ("loss", "init", "evaluate", "collate", "sampler", "shape", "judge", "data", "also", "say")


def wrong_value(rng, name):
    """A wrong value of an argument; a function of the user's own that fails is their own matter."""
    while True:
        value = WRONG[rng.integers(len(WRONG))]
        if name not in CODE or not callable(value):
            return value


def raw_error(call, given, wrong):
    """What a call raises that it should not, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limits.watch():
                call(**given | wrong)
        except ft.FedtaperError as trouble:
            return trouble if "\n" in str(trouble) else None
        except (Exception, limits.TooLong) as trouble:
            return trouble
    return None


def named(call):
    """A call in words."""
    while isinstance(call, partial):
        call = call.func
    return getattr(call, "__qualname__", repr(call))


def fuzz(count, seed=0, say=lambda line: None):
    """Lines about the raw errors among so many wrong calls."""
    rng = np.random.default_rng(seed)
    known = [(call, given, name) for call, given in calls() for name in given]
    raw = []
    for _ in range(count):
        call, given, name = known[rng.integers(len(known))]
        names = {name, str(rng.choice(list(given)))} if rng.random() < 0.3 else {name}
        wrong = {one: wrong_value(rng, one) for one in sorted(names)}
        trouble = raw_error(call, given, wrong)
        if trouble is not None:
            told = {name: shown(value, 60) for name, value in wrong.items()}
            raw.append(f"{named(call)}: {told}: {type(trouble).__name__}: {trouble!s:.200}")
            say(raw[-1])
    return raw


def main(count=10_000, seed=0):
    os.chdir(tempfile.mkdtemp())  # what is written by mistake lands here
    np.seterr(all="ignore")
    raw = fuzz(count, seed, partial(print, flush=True))
    print(f"{count:,} wrong calls, {len(raw)} raw errors, {limits.peak() / 2**20:.0f} MiB")
    return bool(raw) or limits.peak() > limits.MOST


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
