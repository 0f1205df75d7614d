"""Figures are drawn, claims T1 and T2 judged (small), and both commands answer."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from fedtaper.paper import theory as claims
from fedtaper.paper.claim import reproduce
from fedtaper.show import theory as plots

TOML = """
[experiment]
rounds = 5000
local_steps = 5
[problem]
kind = "linear"
[[schedules]]
c = 0.1
delta = 0.76
[[schedules]]
c = 0.1
delta = 1.0
clients = 9
"""


@pytest.fixture(scope="module")
def run():
    schedules = [ft.Power(0.1, 0.76, 20), *[ft.Power(0.1, 1.0, 20)] * 9]
    e = ft.Experiment(ft.LinearRegression(), schedules, rounds=300, local_steps=5)
    return ft.run(e, seeds=range(4))


def test_every_figure_is_drawn(run, tmp_path):
    curves = ft.probability_one(run)
    plots.phase_plane(run, tmp_path / "phase.png")
    plots.tracking({"a": ft.tracking_error(run), "b": ft.tracking_error(run)}, tmp_path / "t.png")
    plots.bound_terms(ft.bound(run), tmp_path / "bound.png")
    plots.noise({"a": ft.noise_sums(run)}, tmp_path / "noise.png")
    plots.probability_by_eps(curves, curves, tmp_path / "eps.png")
    plots.probability_presets({"a": curves}, {"a": curves}, tmp_path / "presets.png", 0.1)
    assert len(list(tmp_path.glob("*.png"))) == 6
    with pytest.raises(ft.FedtaperError, match="phase plane"):
        plots.phase_plane(run, tmp_path / "other.png", coordinates=(0, 3))


def test_claims_are_judged_from_data(tmp_path, monkeypatch):
    """With few seeds and a shorter reach; `fedtaper reproduce T1 T2` runs them in full."""
    monkeypatch.setattr(claims, "FAR_ROUNDS", 2000)
    monkeypatch.setattr(claims, "RESCALING", ())
    monkeypatch.setattr(claims, "MEANS", ("fedavg",))
    rows = reproduce(claims.CLAIMS, tmp_path, seeds=10)
    assert [row["id"] for row in rows] == ["T1", "T2"]
    for row in rows:
        assert row["verdict"] == "reproduced", [n for n in row["numbers"] if not n["passed"]]
        for figure in row["figures"]:
            assert (tmp_path / figure).stat().st_size > 5000
    assert json.loads((tmp_path / "claims.json").read_text())["claims"] == rows


def test_a_broken_check_changes_the_verdict(tmp_path):
    study = claims.Study(tmp_path)
    bad = claims.Check("x", 1.0, 1.0, 1.0, "below 0", False)
    assert claims._outcome(study, [bad], "", ()).verdict == "not-with-these-settings"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "case3.toml"
    path.write_text(TOML)
    return str(path)


def test_check_command(file):
    found = CliRunner().invoke(app, ["check", file])
    assert found.exit_code == 0
    for word in ("A1", "A5", "K_1 = 26.4", "holds", "fails", "FedNova"):
        assert word in found.output


def test_forecast_command(file):
    found = CliRunner().invoke(app, ["forecast", file, "--n", "1e12", "--to", "0.01"])
    assert found.exit_code == 0
    assert "0.001318" in found.output and "2.15e+08" in found.output and "never" in found.output
    several = CliRunner().invoke(app, ["forecast", file])
    assert "2.5e+04" in several.output and "1e+16" in several.output


def test_commands_refuse_with_advice(file, tmp_path):
    found = CliRunner().invoke(app, ["forecast", file, "--n", "0.5"])
    assert found.exit_code == 2 and "from 1 to 1e300" in found.output
    missing = CliRunner().invoke(app, ["check", str(tmp_path / "none.toml")])
    assert missing.exit_code == 2 and "there is no file" in missing.output


def test_thinned_beyond_a_block_of_rounds():
    e = ft.Experiment(
        ft.LinearRegression(), ft.Power(0.1, 0.76, 20), rounds=40_000, local_steps=1, batch_size=1
    )
    found = ft.run(e, seeds=[0], thin=40_000)
    assert found.w.shape == (1, 1, 3) and np.all(np.isfinite(found.w))
