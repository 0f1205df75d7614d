"""Tables, plots, frames, sweeps and names: what a user looks at."""

import subprocess
import sys

import numpy as np
import pytest

import fedtaper as ft

NAMES = ("north", "south", "east")


def experiment(**how):
    problem = ft.LinearRegression(num_clients=3, samples=80, seed=2)
    how = {"rounds": 30, "local_steps": 2, "batch_size": 9, "names": NAMES} | how
    return ft.Experiment(problem, ft.Power(0.005, 0.8, offset=3), **how)


@pytest.fixture(scope="module")
def run():
    return ft.run(experiment(), updates=True)


@pytest.fixture(scope="module")
def many():
    return ft.run(experiment(), seeds=range(3))


@pytest.fixture(scope="module")
def shown(run):
    return {
        "run": run,
        "experiment": run.experiment,
        "influence": run.experiment.influence(),
        "plan": ft.plan([1, 2, 3], rounds=30, local_steps=2, names=NAMES),
        "audit": ft.audit(run),
        "price": ft.price(run.experiment),
        "intervals": ft.intervals(run),
        "contributions": ft.contributions(run.experiment),
        "board": ft.board(run),
    }


def test_results_of_the_theory_are_one_line_without_long_arrays(run):
    forecast, tracking = ft.forecast(run.experiment, n=1e6), ft.tracking_error(run)
    assert "n=1e+06" in repr(forecast) and "influence=[1, 1, 1]" in repr(forecast)
    assert f"step=array of {len(tracking.round)}" in repr(tracking)
    for found in (forecast, tracking):
        assert "\n" not in repr(found) and len(repr(found)) < 700


@pytest.mark.parametrize("what", ["run", "experiment", "influence", "plan", "audit"])
def test_reprs_are_short(shown, what):
    text = repr(shown[what])
    assert len(text) < 400 and "\n" not in text and "array(" not in text


def test_every_result_is_a_table_in_a_notebook(shown):
    for name, result in shown.items():
        page = result._repr_html_()
        assert page.startswith("<p><b>") and "<table>" in page, name


@pytest.mark.parametrize(
    "what", ["influence", "plan", "audit", "price", "intervals", "contributions", "board"]
)
def test_sites_have_their_names_in_every_table(shown, what):
    cells = " ".join(" ".join(row) for row in shown[what].rows())
    assert all(name in cells for name in NAMES)
    assert "client 0" not in str(shown[what]) + shown[what]._repr_html_()


def test_a_divergence_names_the_site():
    problem = ft.LinearRegression(num_clients=3, samples=80)
    e = ft.Experiment(problem, ft.Constant(5.0), rounds=400, local_steps=5, names=NAMES)
    with pytest.warns(ft.StabilityWarning):
        run = ft.run(e)
    assert run.diverged[0].name in NAMES and f"at {run.diverged[0].name}" in str(run.diverged[0])


def test_the_evidence_and_the_plots_have_names(shown, tmp_path):
    from fedtaper.auditing.history import histories

    for name, found in zip(NAMES, histories(shown["run"]), strict=True):
        assert found.sentence.startswith(name.capitalize())
    for what in ("plan", "price", "contributions", "intervals"):
        drawn = shown[what].plot(tmp_path / f"{what}.svg").read_text()
        assert all(name in drawn for name in NAMES), what


def test_names_from_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from fedtaper.cli.main import app

    out = str(tmp_path / "a")
    ft.run(experiment(), updates=True, out=out)
    for words in (["audit", out], ["report", out, "--out", str(tmp_path / "page.html")]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["audit", out])
    assert all(name in done.output for name in NAMES)
    assert all(name in (tmp_path / "page.html").read_text() for name in NAMES)


# ------------------------------------------------------------------ frames and files


def test_a_tidy_frame_csv_and_parquet(run, many, tmp_path):
    pandas = pytest.importorskip("pandas")
    for made in (run, many):
        frame = made.to_frame()
        assert len(frame) == 30 * len(made.seeds)
        last = frame[(frame.seed == made.seeds[-1]) & (frame["round"] == 30)]["error"].item()
        assert last == made.metrics["error"][..., -1].ravel()[-1]
        again = pandas.read_csv(made.to_csv(tmp_path / "a.csv"))
        pandas.testing.assert_frame_equal(again, frame)


def test_parquet(many, tmp_path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    again = pandas.read_parquet(many.to_parquet(tmp_path / "a.parquet"))
    pandas.testing.assert_frame_equal(again, many.to_frame())


# ------------------------------------------------------------------ plots


def test_a_run_is_drawn(run, many, tmp_path):
    figure = run.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    text = many.plot(tmp_path / "a.svg", metrics=["error", "train_loss"]).read_text()
    assert "train loss" in text.lower()
    with pytest.raises(ft.FedtaperError, match="did you mean 'error'"):
        run.plot(metrics=["eror"])


def test_drawing_leaves_the_backend_and_its_figures_alone(tmp_path):
    """In a process of its own, with a backend that stands for a notebook's or a window's."""
    code = f"""
import matplotlib
matplotlib.use("svg")  # any backend that is not the one that files are written with
import matplotlib.pyplot as plt
plt.figure()
import fedtaper as ft
problem = ft.LinearRegression(num_clients=2, samples=40)
e = ft.Experiment(problem, ft.Power(0.005, 0.8), rounds=5, local_steps=2, batch_size=9)
run = ft.run(e)
run.plot({str(tmp_path / "a.png")!r})
run.plot()
ft.plan([1, 2], rounds=5, local_steps=2).plot({str(tmp_path / "b.png")!r})
ft.report([run], {str(tmp_path / "c.html")!r})
assert matplotlib.get_backend().lower() == "svg", matplotlib.get_backend()
assert plt.get_fignums() == [1] and matplotlib.rcParams["axes.grid"] is False
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ------------------------------------------------------------------ sweeps


def test_a_sweep_is_its_runs(tmp_path):
    over = {"delta": [0.76, 0.9], "local": {"sgd": ft.Sgd(), "prox": ft.Proximal(0.5)}}
    found = ft.sweep(experiment(), over, seeds=[4, 7])
    assert found.points[1] == {"delta": 0.76, "local": "prox"} and len(found.runs) == 4
    last = ft.run(_swept(0.9, ft.Proximal(0.5)), seeds=[4, 7])
    assert np.array_equal(found.runs[3].w, last.w)
    frame = found.to_frame()
    one = frame[(frame.delta == 0.9) & (frame.local == "prox") & (frame.seed == 7)]
    assert one["error"].tolist() == last.metrics["error"][1].tolist()
    drawn = found.plot("error", tmp_path / "a.svg").read_text()
    assert "delta 0.9, local prox" in drawn
    assert "prox" in str(found) and "<table>" in found._repr_html_()


def _swept(delta, local):
    problem = ft.LinearRegression(num_clients=3, samples=80, seed=2)
    return ft.Experiment(
        problem, ft.Power(0.005, delta, offset=3), rounds=30, local_steps=2, batch_size=9,
        names=NAMES, local=local,
    )  # fmt: skip


def test_a_sweep_is_stored_and_goes_on(tmp_path, monkeypatch):
    over = {"c": [0.002, 0.004], "problem.samples": [40, 80]}
    first = ft.sweep(experiment(), over, out=tmp_path / "s")
    assert (tmp_path / "s" / "c=0.002,problem.samples=40" / "run.npz").is_file()
    table = (tmp_path / "s" / "sweep.csv").read_text().splitlines()
    assert table[0].startswith("c,problem.samples,seed,round") and len(table) == 5
    said = []
    again = ft.sweep(experiment(), over, out=tmp_path / "s", say=said.append)
    assert [line.endswith(": found") for line in said] == [True] * 4
    assert all(np.array_equal(a.w, b.w) for a, b in zip(first.runs, again.runs, strict=True))
    wider = ft.sweep(experiment(), over | {"c": [0.002, 0.004, 0.006]}, out=tmp_path / "s")
    assert len(wider.runs) == 6


def test_a_sweep_from_steps_to_epochs():
    found = ft.sweep(experiment(rounds=2), {"local_epochs": [1, 2]})
    assert [run.experiment.local_epochs for run in found.runs] == [1, 2]


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({}, "name settings"),
        ({"roundz": [1]}, "did you mean 'rounds'"),
        ({"rounds": 3}, "a list of values"),
        ({"rounds": []}, "no values"),
        ({"problem.sample": [3]}, "did you mean 'samples'"),
        ({"a": [0.1]}, "has no a to vary"),
    ],
)
def test_wrong_sweeps_are_told(over, says):
    with pytest.raises(ft.FedtaperError, match=says):
        ft.sweep(experiment(), over)


def test_a_scale_for_all_is_refused_where_clients_differ():
    schedules = [ft.Power(0.1, 0.8), ft.Power(0.2, 0.8), ft.Power(0.2, 0.8)]
    e = ft.Experiment(
        ft.LinearRegression(num_clients=3, samples=80), schedules, rounds=2, local_steps=2
    )
    with pytest.raises(ft.FedtaperError, match="the clients differ in c"):
        ft.sweep(e, {"c": [0.1]})
