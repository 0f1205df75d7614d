"""Checks of local and server rules."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from fedtaper.core.protocols import Keeps, LocalRule, ServerRule
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.problems.linear import LinearRegression
from fedtaper.simulation.drive import run
from fedtaper.testing.checks import Check, need, run_checks

W, GRADIENT, ANCHOR = np.array([3.0, -1.0, 0.5]), np.array([1.0, 2.0, -4.0]), np.zeros(3)
A = 0.125


def check_local_rule(rule: LocalRule, server: ServerRule | None = None) -> list[str]:
    """Check a local rule against :class:`fedtaper.core.protocols.LocalRule`.

    ``server`` is the server rule that it needs, if it does not work with a plain mean.

    >>> import fedtaper as ft
    >>> len(check_local_rule(ft.Proximal(mu=0.5)))
    7
    """
    return run_checks(
        rule,
        [
            _is_a_local_rule,
            _says_what_it_is,
            _steps_are_finite,
            _a_step_of_size_0_stays,
            _changes_nothing_in_place,
            _numpy_and_torch_agree,
            _runs_in_an_experiment({} if server is None else {"server": server}),
        ],
    )


def check_server_rule(rule: ServerRule, local: LocalRule | None = None) -> list[str]:
    """Check a server rule against :class:`fedtaper.core.protocols.ServerRule`.

    ``local`` is the local rule that it needs, if it does not work with plain steps.

    >>> import fedtaper as ft
    >>> len(check_server_rule(ft.Adam()))
    6
    """
    return run_checks(
        rule,
        [
            _is_a_server_rule,
            _weights_have_the_right_shape,
            _memory_keeps_its_shapes,
            _no_update_of_a_mean_stays,
            _server_numpy_and_torch_agree,
            _server_runs_in_an_experiment({} if local is None else {"local": local}),
        ],
    )


def _step(rule: Any, a: float, w: Any = W, gradient: Any = GRADIENT, anchor: Any = ANCHOR) -> Any:
    memory = rule.begin(rule.init(w), (0.0 * w,) * rule.receives)
    for _ in range(3):
        w, memory = rule.step(w, gradient, anchor, a, memory)
    return w


def _is_a_local_rule(rule: Any) -> None:
    need(isinstance(rule, LocalRule), "it lacks a part of LocalRule: subclass fedtaper.Memoryless")


def _says_what_it_is(rule: Any) -> None:
    need(np.isfinite(rule.added_curvature) and rule.added_curvature >= 0, "added_curvature < 0")
    need(np.isfinite(rule.gain) and rule.gain > 0, f"gain is {rule.gain}")
    need(rule.keeps in get_args(Keeps), f"keeps is {rule.keeps!r}, not one of {get_args(Keeps)}")
    need((rule.keeps == "nothing") == (not rule.init(W)), "keeps and init disagree")


def _steps_are_finite(rule: Any) -> None:
    w = _step(rule, A)
    need(np.shape(w) == W.shape and np.all(np.isfinite(w)), f"three steps lead to {w}")


def _a_step_of_size_0_stays(rule: Any) -> None:
    need(np.array_equal(_step(rule, 0.0), W), "a step of size 0 moves the model")


def _changes_nothing_in_place(rule: Any) -> None:
    given = [array.copy() for array in (W, GRADIENT, ANCHOR)]
    _step(rule, A, *given)
    for before, after in zip((W, GRADIENT, ANCHOR), given, strict=True):
        need(np.array_equal(before, after), "a step changes its arguments in place")


def _numpy_and_torch_agree(rule: Any) -> None:
    torch = _torch()
    if torch is None:
        return
    found = _step(rule, A, *(torch.from_numpy(v.copy()) for v in (W, GRADIENT, ANCHOR)))
    need(np.allclose(found.numpy(), _step(rule, A), rtol=1e-12), "NumPy and torch differ")


def _runs_in_an_experiment(beside: dict[str, Any]) -> Check:
    def runs_in_an_experiment(rule: Any) -> None:
        _stays_finite(_experiment(local=rule, **beside))

    return runs_in_an_experiment


def _stays_finite(e: Experiment) -> None:
    made = run(e, engine="reference", progress=False)
    need(made.w is not None and np.all(np.isfinite(made.w)), "a small run does not stay finite")


def _is_a_server_rule(rule: Any) -> None:
    need(isinstance(rule, ServerRule), "it lacks a part of ServerRule: subclass PlainServer")
    need(isinstance(rule.rescales, bool), "rescales is not True or False")
    need(isinstance(rule.erases_influence, bool), "erases_influence is not True or False")


def _weights_have_the_right_shape(rule: Any) -> None:
    sums = np.array([[0.1, 0.2, 0.3], [0.05, 0.1, 0.15]])
    found = np.asarray(rule.weights(np.array([10.0, 20.0, 30.0]), np.array([1.0, 2.0, 3.0]), sums))
    need(found.shape == sums.shape, f"weights have shape {found.shape}, not {sums.shape}")
    need(np.all(found >= 0) and np.all(np.isfinite(found)), "weights are negative or not finite")


def _memory_keeps_its_shapes(rule: Any) -> None:
    before = rule.init(W)
    w, after = rule.step(W, 0.1 * GRADIENT, before)
    need(np.shape(w) == W.shape, "the model changes its shape")
    need(len(after) == len(before), "the memory changes its length")
    for old, new in zip(before, after, strict=True):
        need(np.shape(old) == np.shape(new), "an array of the memory changes its shape")


def _no_update_of_a_mean_stays(rule: Any) -> None:
    if not rule.rescales and not rule.init(W):
        need(np.array_equal(rule.step(W, 0 * W, ())[0], W), "an update of 0 moves the model")


def _server_numpy_and_torch_agree(rule: Any) -> None:
    torch = _torch()
    if torch is None:
        return
    plain = rule.step(W, GRADIENT, rule.init(W))[0]
    w, update = torch.from_numpy(W.copy()), torch.from_numpy(GRADIENT.copy())
    need(np.allclose(rule.step(w, update, rule.init(w))[0].numpy(), plain), "NumPy, torch differ")


def _server_runs_in_an_experiment(beside: dict[str, Any]) -> Check:
    def runs_in_an_experiment(rule: Any) -> None:
        _stays_finite(_experiment(server=rule, **beside))

    return runs_in_an_experiment


def _experiment(**rule: Any) -> Experiment:
    problem = LinearRegression(num_clients=3, dim=2, samples=30, feature_spread=1.0)
    return Experiment(problem, Power(0.05, 0.8), rounds=4, local_steps=3, batch_size=5, **rule)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch
