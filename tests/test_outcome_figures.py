"""Figures of outcomes and plans with site names of any length."""

import warnings
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.show import labels, outcomes, style

LONG = "Hospital of the Municipal Area, Ward {:02d}"


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the last figure, after it was drawn."""
    kept = []

    @contextmanager
    def keeping(*args, **how):
        with style.figure(*args, **how) as axes:
            yield axes
        kept[:] = [axes]

    monkeypatch.setattr(outcomes, "figure", keeping)
    return kept


@pytest.mark.parametrize("count", [4, 12])
@pytest.mark.parametrize("name", [LONG, "site{}"])
def test_names_at_a_heat_map_fit(drawn, tmp_path, count, name):
    values = np.random.default_rng(0).normal(size=(count, count))
    names = tuple(name.format(i) for i in range(count))
    found = SimpleNamespace(loss=values, names=names, clients=tuple(range(count)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcomes.price_map(found, tmp_path / "price.png")
    axis = drawn[0][0, 0]
    assert axis.get_window_extent().width > 0.4 * axis.figure.bbox.width
    down, along = axis.get_yticklabels(), axis.get_xticklabels()
    assert len(down) == len(along) == count
    assert min(text.get_window_extent().x0 for text in down) >= 0
    flat = [text.get_window_extent() for text in along if not text.get_rotation()]
    assert all(one.x1 < other.x0 for one, other in pairwise(flat))


def test_prices_of_many_clients_have_few_names(drawn, tmp_path):
    found = SimpleNamespace(loss=np.ones((60, 60)), names=(), clients=tuple(range(60)))
    outcomes.price_map(found, tmp_path / "price.png")
    assert len(drawn[0][0, 0].get_yticklabels()) <= 15


def test_short_names_are_different():
    long = [LONG.format(i) for i in range(12)]
    same = ["Hospital A of Berlin", "Hospital B of Berlin"]
    for names in (long, same, ["north", "south"]):
        short = labels.short(names)
        assert len(set(short)) == len(names) and max(map(len, short)) <= 14
    assert labels.short(["north"]) == ["north"]


def test_a_plan_of_long_names_fits_its_legend(tmp_path, monkeypatch):
    names = [LONG.format(i) for i in range(12)]
    problem = ft.LinearRegression(num_clients=12, seed=1)
    made = ft.plan(target=[10] + [1] * 11, rounds=50, local_steps=5, problem=problem, names=names)
    widths = []
    monkeypatch.setattr(
        style, "key", lambda axes, columns: widths.extend(_legend(axes[0, 0], columns))
    )
    made.plot(tmp_path / "plan.png")
    assert widths and max(widths) < 60


def _legend(axis, columns):
    return [len(text) * columns for text in axis.get_legend_handles_labels()[1]]
