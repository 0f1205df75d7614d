"""Wrong calls of every public function: each must be one line, never a raw error.

``python tests/wrong_calls.py COUNT`` makes so many of them (``make torture``).
"""

import sys
import warnings
from functools import partial

import numpy as np

import fedtaper as ft

WRONG = [
    None, True, -1, 0, 0.0, 1.5, float("nan"), float("inf"), -float("inf"), 2**63, 2**64, 10**30,
    "", "abc", "1", b"x", [], [1], [1, 2, 3], ["a"], (), (1, "a"), {}, {"a": 1}, object(),
    np.array([]), np.array([[1.0]]), np.array(["a"]), int, ft.Power(0.1, 0.8), ft.Idle(), 1j,
    [[1, 2], [3]], [None] * 3, [1e308] * 3, range(3), set(), {0: None}, "[/red]", "a\0b", len,
]  # fmt: skip


def calls():
    """By name: a function, and good values of the arguments to make wrong one at a time."""
    problem = ft.LinearRegression(num_clients=3, samples=40, dim=2, feature_spread=1.0)
    how = {"problem": problem, "schedules": ft.Power(0.1, 0.8), "rounds": 3, "local_steps": 2}
    e = ft.Experiment(**how, batch_size=4)
    run = ft.run(e, progress=False, engine="reference")
    pair = [ft.Power(0.1, 0.8)] * 2
    found = [
        (ft.Power, {"c": 0.1, "delta": 0.8, "offset": 0.0}),
        (ft.Constant, {"a": 0.1}),
        (ft.Power(0.1, 0.8), {"n": 3}),
        (ft.influence, {"schedules": pair, "n": 4}),
        (ft.effective_influence, {"schedules": pair, "n": 3}),
        (ft.Experiment, how | {"batch_size": 4, "local": ft.Sgd(), "server": ft.Average(),
                               "clock": "update", "participation": 1.0, "seed": 0}),
        (ft.LinearRegression, {"num_clients": 3, "dim": 2, "samples": 40, "feature_spread": 1.0,
                               "sigma_w": 1.0, "true_w": None, "snr_db": 10.0, "init_spread": 2.0,
                               "seed": 0}),
        (ft.LinearRegression.from_arrays, {"x": problem.x, "y": problem.y}),
        (problem.equilibrium, {"p": [1, 1, 1]}),
        (partial(ft.run, progress=False),
         {"experiment": e, "seeds": [0], "resume": False, "engine": "reference", "device": None,
          "precision": None, "thin": None, "updates": False, "log": None}),
        (ft.run_many, {"experiments": [e]}),
        (ft.plan, {"target": [1, 0.1, 0.1], "rounds": 10, "local_steps": 2}),
        (ft.forecast, {"experiment": e, "n": 1e6}),
        (ft.check, {"experiment": e}),
        (ft.load, {"folder": "no-such-folder"}),
        (ft.from_toml, {"text": "a = 1"}),
        (ft.read_toml, {"path": "no-such-file"}),
        (ft.to_toml, {"experiment": e}),
        (ft.limit_ode, {"experiment": e}),
        (ft.stability, {"experiment": e}),
        (ft.tracking_error, {"run": run}),
        (ft.bound, {"run": run}),
        (ft.noise_sums, {"run": run}),
        (ft.probability_one, {"run": run}),
        (ft.Proximal, {"mu": 0.1}),
        (ft.Adam, {"eta": 0.1, "b1": 0.9, "b2": 0.99, "tau": 0.1}),
        (ft.Average, {"by": "uniform"}),
        (ft.Normalised, {"by": "uniform", "over": "steps"}),
        (ft.After, {"round": 3, "then": ft.Idle()}),
        (ft.OtherSchedule, {"schedule": ft.Power(0.1, 0.8)}),
        (ft.Noise, {"scale": 1.0}),
        (ft.Copies, {"scale": 1.0}),
        (ft.ImageClassification, {"data_set": "digits", "split": ft.Iid(), "num_clients": 3,
                                  "start": "one", "seed": 0}),
        (ft.RareClass, {"rare": 3}),
        (ft.DominantClass, {"share": 0.5}),
        (ft.Dirichlet, {"alpha": 0.5}),
        (e.influence, {"round": 2}),
    ]  # fmt: skip
    return [(call, given, name) for call, given in found for name in given]


def raw_error(call, given, wrong):
    """What a call raises that it should not, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(**given | wrong)
        except ft.FedtaperError as trouble:
            return trouble if "\n" in str(trouble) else None
        except Exception as trouble:
            return trouble
    return None


def main(count):
    rng = np.random.default_rng(0)
    known, raw = calls(), []
    for _ in range(count):
        call, given, name = known[rng.integers(len(known))]
        wrong = {name: WRONG[rng.integers(len(WRONG))]}
        if rng.random() < 0.3:  # two at once
            other = list(given)[rng.integers(len(given))]
            wrong[other] = WRONG[rng.integers(len(WRONG))]
        trouble = raw_error(call, given, wrong)
        if trouble is not None:
            raw.append(f"{call}: {wrong}: {trouble!r}"[:300])
    print(f"{count} wrong calls, {len(raw)} raw errors")
    print("\n".join(sorted(set(raw))))
    return bool(raw)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
