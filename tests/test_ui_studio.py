"""The live page's studio: every number is the library's."""

import time
import warnings

import numpy as np
import pytest
from ui_client import JSON, opened, small

import fedtaper as ft
from fedtaper.ui import studio


@pytest.fixture
def page(tmp_path):
    return opened(tmp_path)


@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
def test_studio_numbers_are_the_librarys(page):
    shown = page.post("/api/draw", json=small(offset=5, sigma_w=3, seed=4)).json()
    problem = ft.LinearRegression(num_clients=2, sigma_w=3.0)
    schedules = [ft.Power(0.1, 0.76, 5), ft.Power(0.1, 1.0, 5)]
    e = ft.Experiment(problem, schedules, rounds=60, local_steps=5, seed=4)
    now = e.influence()
    assert [row["now"] for row in shown["table"]] == pytest.approx(now.effective, rel=1e-6)
    assert [row["share"] for row in shown["table"]] == pytest.approx(now.share, rel=1e-6)
    assert [row["limit"] for row in shown["table"]] == [1, 0]
    star = problem.equilibrium(now.effective)
    assert shown["equilibrium"]["now"] == pytest.approx(star, rel=1e-6)
    assert shown["equilibrium"]["limit"] == pytest.approx(problem.equilibrium([1, 0]), rel=1e-6)
    assert [row["loss"] for row in shown["table"]] == pytest.approx(problem.losses(star), rel=1e-6)
    run = ft.run(e)
    assert shown["end"]["model"] == pytest.approx(run.w[-1], rel=1e-6)
    assert shown["end"]["error"] == pytest.approx(run.metrics["error"][-1], rel=1e-6)
    limit = shown["distance"]["limit"]["values"][-1]
    assert limit == pytest.approx(run.metrics["error_limit"][-1], rel=1e-6)
    band = ft.intervals(run).model
    assert shown["intervals"]["low"] == pytest.approx(band.low, rel=1e-5)
    assert shown["intervals"]["high"] == pytest.approx(band.high, rel=1e-5)
    path = ft.limit_ode(e, "finite").solve()
    assert shown["end"]["ode"] == pytest.approx(path.w, rel=1e-4)
    curve = shown["influence"]
    wanted = ft.influence(schedules, n=curve["n"][-1])
    assert [g["values"][-1] for g in curve["groups"]] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
@pytest.mark.parametrize("more", [{}, {"offset": 3.5, "local_steps": 2, "batch_size": 7}])
def test_what_is_copied_makes_the_same_experiment(page, more):
    asked = small(**more)
    asked["clients"] += [{"c": 0.02, "delta": 0}, {"c": 0.02, "delta": 0}]
    e = studio.experiment(asked)
    recipe = page.post("/api/draw", json=asked).json()["recipe"]
    assert ft.from_toml(recipe["toml"]) == e
    names = {}
    exec(recipe["python"], names)
    assert names["experiment"] == e
    np.testing.assert_array_equal(names["run"].w, ft.run(e).w)


def test_influence_sliders_give_exactly_the_influence(page):
    asked = {"mode": "influence", "clients": [{"p": 1}, {"p": 0.25}], "rounds": 50, "offset": 9}
    shown = page.post("/api/draw", json=asked).json()
    assert [row["now"] for row in shown["table"]] == pytest.approx([1, 0.25])
    assert shown["influence"]["groups"][1]["values"] == pytest.approx([0.25] * studio.CURVE)
    assert set(shown["distance"]) == {"run", "ode"}  # p_n = p: no second line over the first


def test_presets_are_the_papers(page):
    from fedtaper.paper.regression_cases import case_2, case_3

    offered = page.get("/api/studio").json()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [studio.experiment(preset) for preset in offered["presets"].values()]
    assert made[0].schedules == (ft.Power(0.1, 0.76),) * 10
    assert made[1].schedules == case_2() and made[2].schedules == case_3()
    assert made[3].schedules == (ft.Constant(0.05),) * 10


@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
@pytest.mark.timed
def test_the_paper_sized_problem_is_drawn_within_300_ms():
    preset = studio.presets()["Case 3: one client counts"]
    studio.draw(preset)
    spent = []
    for k in range(3):
        began = time.process_time()
        studio.draw(preset | {"seed": k})
        spent.append(time.process_time() - began)
    assert min(spent) < 0.3


def test_goals_are_those_of_fair(page):
    settings = {"clients": [{"c": 0.1, "delta": 0.8}] * 4}
    found = page.post("/api/goal", json={"goal": "minmax", "settings": settings}).json()
    wanted = ft.fair(ft.LinearRegression(num_clients=4), "minmax").p
    assert found["p"] == pytest.approx(np.maximum(wanted / wanted.max(), 1e-3), rel=1e-5)
    assert any("Certificate" in text for text in found["said"])
    for name, _ in studio.goals():
        answer = page.post("/api/goal", json={"goal": name, "settings": settings})
        assert answer.status_code == 200 and max(answer.json()["p"]) == 1


WRONG = [
    {"clients": []},
    {"clients": [{"c": 0.1}]},
    {"clients": [{"c": -1, "delta": 0.8}]},
    {"clients": [{"c": 0.1, "delta": 0.8}] * 21},
    {"clients": 3},
    {"clients": [3]},
    small(rounds=1e9),
    small(rounds=10.5),
    small(rounds="many"),
    small(seed=True),
    small(sigma_w=None),
    small(mode="x"),
    small(unknown=1),
    {},
]


@pytest.mark.parametrize("asked", WRONG)
def test_wrong_settings_are_one_line(page, asked):
    answer = page.post("/api/draw", json=asked)
    assert answer.status_code == 400 and "\n" not in answer.json()["error"]


def test_numbers_that_json_does_not_have(page):
    answer = page.post("/api/draw", content=b'{"clients": [{"c": NaN, "delta": 1}]}', headers=JSON)
    assert answer.status_code == 400


@pytest.mark.filterwarnings("ignore::fedtaper.core.errors.FedtaperWarning")
def test_divergence_and_too_much_work_are_said(page):
    wild = {"clients": [{"c": 0.5, "delta": 0}] * 2, "rounds": 500}
    notes = page.post("/api/draw", json=wild).json()["notes"]
    assert any("diverged" in text for text in notes)
    much = small(rounds=20_000, local_steps=50)
    shown = page.post("/api/draw", json=much).json()
    assert "run" not in shown["model"] and any("too much work" in n for n in shown["notes"])
