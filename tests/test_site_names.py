"""The names of the sites are in every table and sentence, and rules may use them."""

import json

import numpy as np
import pytest
from small_file import THREE
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app

NAMES = ("St. Mary's / Ward 3", "Ünïklinik", "West")
FILE = (
    THREE.replace("rounds = 4", "rounds = 20")
    + f"names = {json.dumps(NAMES, ensure_ascii=False)}\n"
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(FILE)
    return path


def command(*words):
    found = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_fair_names_the_sites_and_takes_their_names(file):
    problem = ft.read_toml(file).problem
    free = ft.fair(problem)
    limit = float(free.after[1] * 0.9)
    words = (f"Ünïklinik's loss below {limit}", f'"west" below {free.after[2] * 2}')
    found = ft.fair(problem, constraints=words, names=NAMES)
    numbers = (f"client 1's loss below {limit}", f"client 2 below {free.after[2] * 2}")
    assert np.array_equal(found.p, ft.fair(problem, constraints=numbers).p)
    assert [row[0] for row in found.rows()[1:]] == list(NAMES)
    said = command("fair", file, "--constraint", words[0])
    assert "Ünïklinik is at its limit" in said and "client" not in said.splitlines()[-2]
    with pytest.raises(ft.FedtaperError, match=r"the clients are St\. Mary's / Ward 3, Ünïklinik"):
        ft.fair(problem, constraints="Uniklinik's loss below 3", names=NAMES)
    with pytest.raises(ft.FedtaperError, match="exceeds Ünïklinik's by"):
        ft.fair(problem, constraints="Ünïklinik's loss below 0.001", names=NAMES)


def test_plans_name_the_sites_and_take_their_names(file):
    e = ft.read_toml(file)
    rules = ["ünïklinik counts 3x", 'fade "St. Mary\'s / Ward 3" to 60% by round 20']
    found = ft.plan(rules, 20, 5, problem=e.problem, names=NAMES)
    numbers = ["client 1 counts 3x", "fade client 0 to 60% by round 20"]
    assert found.schedules == ft.plan(numbers, 20, 5, problem=e.problem).schedules
    said = command("plan", *rules, "--rounds", 20, "--file", file)
    assert all(name in said for name in NAMES)
    with pytest.raises(ft.FedtaperError, match="the clients are"):
        ft.plan("Unklinik counts 3x", 20, 5, problem=e.problem, names=NAMES)
    with pytest.warns(ft.AssumptionWarning, match="West cannot fade to"):
        ft.plan("fade West to 1% by round 3", 20, 5, problem=e.problem, names=NAMES)


def test_names_like_other_words_are_no_trouble():
    rules = ["client 2 counts 10x", "3 counts 2x", "the counts 4x"]
    found = ft.plan(rules, 20, 5, sizes=[100] * 3, names=("3", "the", "counts"))
    assert found.target.tolist() == [2, 4, 10]


def test_the_audits_json_has_names(file, tmp_path):
    command("run", file, "--out", tmp_path / "run", "--updates")
    found = json.loads(command("audit", tmp_path / "run", "--json"))
    assert [client["name"] for client in found["clients"]] == list(NAMES)
    assert [client["client"] for client in found["clients"]] == [0, 1, 2]
