"""Checks of a problem."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from fedtaper.core.protocols import (
    NetworkProblem,
    Problem,
    ProblemKind,
    QuadraticProblem,
    Unit,
    is_network,
    is_quadratic,
)
from fedtaper.core.schedules import Power
from fedtaper.experiment import Experiment
from fedtaper.simulation.drive import run
from fedtaper.testing.checks import need, run_checks


def check_problem(problem: Problem) -> list[str]:
    """Check a problem against :class:`fedtaper.core.protocols.Problem` and those of its kind.

    >>> import fedtaper as ft
    >>> "draws_depend_on_their_place_alone" in check_problem(ft.LinearRegression(samples=60))
    True
    """
    return run_checks(
        problem,
        [
            _says_its_kind,
            _has_the_parts_of_its_kind,
            _has_sizes,
            _first_models_depend_on_the_seed,
            _draws_depend_on_their_place_alone,
            _gradients_are_those_of_all_samples,
            _equilibrium_has_no_pull,
            _runs_on_the_reference_engine,
        ],
    )


def experiment(problem: Problem) -> Experiment:
    """A short experiment on the problem."""
    size = min(4, *(int(size) for size in problem.sizes))
    return Experiment(problem, Power(1e-3, 0.8), rounds=2, local_steps=2, batch_size=size)


def _says_its_kind(problem: Any) -> None:
    need(problem.kind in get_args(ProblemKind), f"kind is {problem.kind!r}")
    need(problem.default_clock in get_args(Unit), f"default_clock is {problem.default_clock!r}")


def _has_the_parts_of_its_kind(problem: Any) -> None:
    need(isinstance(problem, Problem), "it lacks a part of Problem")
    if is_quadratic(problem):
        need(isinstance(problem, QuadraticProblem), "it lacks a part of QuadraticProblem")
    if is_network(problem):
        need(isinstance(problem, NetworkProblem), "it lacks a part of NetworkProblem")


def _has_sizes(problem: Any) -> None:
    sizes = np.asarray(problem.sizes)
    need(sizes.shape == (problem.num_clients,), f"sizes have shape {sizes.shape}")
    need(np.issubdtype(sizes.dtype, np.integer) and np.all(sizes >= 1), f"sizes are {sizes}")


def _first_models_depend_on_the_seed(problem: Any) -> None:
    one, again, other = (problem.initial(seed) for seed in (1, 1, 2))
    need(one.shape == (problem.dim,) and one.dtype == np.float64, "initial is not (dim,) float64")
    need(np.array_equal(one, again), "the same seed gives two different first models")
    need(problem.dim < 2 or not np.array_equal(one, other), "two seeds give the same first model")


def _draws_depend_on_their_place_alone(problem: Any) -> None:
    e, w = experiment(problem), problem.initial(0)

    def gradients(*place: int) -> list[Any]:
        return [problem.gradient(place[1], w, b) for b in problem.batches(e, *place)]

    first, again = gradients(5, 0, 3), gradients(5, 0, 3)
    need(len(first) == e.steps[0], f"{len(first)} mini-batches for {e.steps[0]} updates")
    need(all(map(np.array_equal, first, again)), "the same place gives different mini-batches")


def _gradients_are_those_of_all_samples(problem: Any) -> None:
    w = problem.initial(0)
    found = np.asarray(problem.gradient(0, w, problem.every_sample(0)))
    need(found.shape == w.shape and np.all(np.isfinite(found)), "a gradient is not finite (dim,)")
    if is_quadratic(problem):
        field = -problem.mean_field(w)[0]
        need(np.allclose(found, field, rtol=1e-8), "gradient and mean_field disagree")


def _equilibrium_has_no_pull(problem: Any) -> None:
    if is_quadratic(problem):
        p = np.linspace(1.0, 2.0, problem.num_clients)
        fields = problem.mean_field(problem.equilibrium(p))
        scale = max(1.0, float(np.abs(fields).max()))
        need(np.allclose(p @ fields, 0, atol=1e-8 * scale), "the field at the equilibrium is not 0")


def _runs_on_the_reference_engine(problem: Any) -> None:
    made = run(experiment(problem), engine="reference", progress=False)
    need(len(made.round) == 2 and not made.diverged, "two small rounds do not stay finite")
