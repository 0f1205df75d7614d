"""The report with many runs, many sites and numbers that are hard to round."""

import numpy as np
import pytest
from test_report import cells, read

import fedtaper as ft
from fedtaper.paper import audit_figures
from fedtaper.show import charts, style
from fedtaper.show.report_settings import settings


@pytest.fixture
def many(tiny):
    """Runs that end at different distances."""
    made = []
    for k in range(25):
        e = ft.Experiment(
            tiny, ft.Power(0.02 + 0.01 * k, 0.8, 5), rounds=12, local_steps=2, batch_size=5
        )
        made.append(ft.run(e))
    return made


def test_of_many_runs_some_are_drawn_and_all_can_be(many, tmp_path):
    text, specs = read(ft.report(many, tmp_path / "page.html", figures=tmp_path / "figures"))
    assert "Drawn: 9 of 25 runs, spread evenly over the last distance to w*(p_n)." in text
    for title in ("Distance to w*(p_n)", "Train loss"):
        series = specs[title]["series"]
        assert len(series) == 25 and {one["colour"] for one in series} == set(range(25))
        shown = [one for one in series if not one.get("hidden")]
        assert shown == series[:9] and [one["colour"] for one in shown] == list(range(9))
    ends = [one["values"][-1] for one in specs["Distance to w*(p_n)"]["series"]]
    assert ends[0] == max(ends) and ends[8] == min(ends) and ends[:9] == sorted(ends[:9])[::-1]
    drawn = (tmp_path / "figures/overlay-error.svg").read_text()
    assert drawn.count(">run ") == 9  # a printed chart has no names to click
    few = read(ft.report(many[:21], tmp_path / "few.html"))
    assert "Drawn:" not in few[0]
    assert not any(one.get("hidden") for one in few[1]["Train loss"]["series"])


def test_a_legend_rounds_as_the_table_does(tiny, tmp_path):
    assert charts.plain([1176.4996, 1176.4996]) == [1176.5, 1176.4996]
    run = ft.run(ft.Experiment(tiny, ft.Power(0.1, 0.8, 5), rounds=12, local_steps=2, batch_size=5))
    run.metrics["score"] = np.full(12, 0.123449)
    text, specs = read(ft.report(run, tmp_path / "page.html"))
    assert f"{specs['Score']['series'][0]['values'][-1]:.4g}" == cells(text, "score")[0]


def test_a_list_of_names_ends_with_a_whole_one(tiny):
    problem = ft.LinearRegression(num_clients=12, dim=2, samples=40)
    names = tuple(f"clinic {letter}" for letter in "ABCDEFGHIJKL")
    e = ft.Experiment(
        problem, ft.Power(0.1, 0.8, 5), rounds=2, local_steps=1, batch_size=5, names=names
    )
    assert settings(ft.run(e))["names"] == "clinic A, clinic B, clinic C and 9 more"


def test_a_narrow_log_axis_has_more_than_two_ticks():
    assert style.log_ticks(22, 74) == [30, 40, 50, 60, 70]


def test_shares_that_coincide_can_all_be_seen(tmp_path, monkeypatch):
    class Table(dict):
        def accused(self, kinds, k, witness):
            return np.ones(4)

    tables = {name: Table(round=np.array([20, 40])) for name in "abcd"}
    widths = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.plot", lambda self, *x, **how: widths.append(how["linewidth"])
    )
    monkeypatch.setattr(audit_figures, "key", lambda *x, **how: None)
    audit_figures.heterogeneity(tables, tmp_path / "a.png")
    one = widths[:8:2]
    assert one == sorted(one, reverse=True) and len(set(one)) == 4  # the last one is drawn on top
