"""What the command says: no Python, no internals, no cut lists, no heads without meaning."""

import json

import numpy as np
import pytest
from small_file import THREE
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from fedtaper.outcomes.intervals import SHORT, _times
from fedtaper.results import seeds_in_words


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text(THREE)
    return path


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def heads(found):
    assert found.exit_code == 0, found.output
    return [list(table["rows"][0]) for table in json.loads(found.output)["tables"]]


def test_every_column_has_a_head(file, tmp_path):
    out = tmp_path / "run"
    assert command("run", file, "--out", out, "--updates").exit_code == 0
    first, second = heads(command("check", file, "--json"))
    assert first[:2] == ["assumption", "status"] and second[0] == "need"
    (audited,) = heads(command("audit", out, "--json"))
    assert audited[2:6] == ["delta", "delta estimated", "p", "p estimated"]
    for words in (("intervals", out), ("engines",), ("price", file), ("board", out)):
        shown = [name for head in heads(command(*words, "--json")) for name in head]
        assert not [name for name in shown if name.startswith("column")], words


def test_metrics_are_called_as_in_the_charts_and_in_scripts_as_in_the_files(file, tmp_path):
    shown = command("run", file, "--out", tmp_path / "a").output
    assert "Distance to w*(p_n)" in shown and "error_limit" not in shown
    found = json.loads(command("run", file, "--out", tmp_path / "b", "--json").output)
    assert {"error", "error_limit"} <= found["metrics"].keys()
    assert "error" in [row["round 4"] for row in found["tables"][0]["rows"]]


def test_seeds_are_a_range_or_say_how_many_are_left_out(file, tmp_path):
    assert seeds_in_words(range(3, 43)) == "3 to 42"
    assert seeds_in_words([*range(0, 50, 2)]).endswith("38 and 5 more")
    out = tmp_path / "run"
    assert command("run", file, "--out", out, "--seeds", 25, "--updates").exit_code == 0
    for name in ("audit", "board"):
        assert "choose one of 0 to 24" in command(name, out, "--seed", 99).output
    again = command("run", file, "--out", out, "--seeds", 26, "--resume").output
    assert "0 to 24 -> 0 to 25" in again


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a", "b"), "2 names for 3 clients"),
        (("a", "b", "a"), "clients 0 and 2 have the same name, 'a'"),
        (("a", " ", "c"), "the name of client 1 is empty"),
        ("abc", "names must be a list"),
    ],
)
def test_what_is_wrong_with_names(names, says):
    problem = ft.LinearRegression(num_clients=3, samples=50)
    with pytest.raises(ft.FedtaperError) as trouble:
        ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=1, local_steps=1, names=names)
    assert says in str(trouble.value)


def test_a_file_that_is_not_text_is_named_once(tmp_path):
    path = tmp_path / "run.npz"
    np.savez(path, x=np.arange(300))
    found = command("run", path).output
    assert f"{path} is not a TOML file" in found and "codec" not in found
    assert found.count(str(path)) == 1


def test_options_are_named_as_the_command_has_them(file, tmp_path):
    out = tmp_path / "run"
    assert command("run", file, "--out", out).exit_code == 0
    assert "(--updates, updates=True)" in command("board", out).output
    assert "--updates, updates=True" in command("contributions", out).output
    epochs = tmp_path / "epochs.toml"
    epochs.write_text(THREE.replace("local_steps = 5", "local_epochs = 1"))
    assert command("run", epochs, "--out", tmp_path / "epochs").exit_code == 0
    assert "--method scaling" in command("intervals", tmp_path / "epochs").output


def test_a_run_shorter_than_its_memory_is_called_that():
    assert "The run is shorter than the memory" in SHORT.format(times=_times(0.3))
    assert "only 1.4 times as long as the memory" in SHORT.format(times=_times(1.4))


def test_a_planned_file_has_twelve_digits():
    found = ft.plan([10, 1, 1, 1], 100, 4, sizes=[200] * 4)
    assert "c = 0.01\n" in found.toml()
    assert ft.from_toml(found.toml()).influence().raw == pytest.approx(
        found.experiment.influence().raw
    )
