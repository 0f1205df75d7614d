"""What commands print: words, nothing, or JSON; and what a long run shows."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from recorders import recorder
from rich.console import Console
from small_file import FILE
from test_cli import COMMAND
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper import engines
from fedtaper.cli import terminal
from fedtaper.cli.main import app
from fedtaper.simulation import progress


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(FILE)
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_json_holds_what_the_run_holds(folder):
    done = call("run", "e.toml", "--json", "--updates")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    run = ft.load("runs/e")
    assert said["folder"] == "runs/e" and said["rounds"] == 30 and said["seeds"] == [0]
    for name, values in run.metrics.items():
        assert said["metrics"][name] == values[-1]
    assert said["influence"]["now"] == run.experiment.influence().effective.tolist()
    assert said["diverged"] == [] and "error" not in said
    table = said["tables"][0]["rows"]
    assert {row["round 30"] for row in table} == set(run.metrics) - {"seconds"}
    found = json.loads(call("audit", "runs/e", "--json").stdout)
    assert [c["verdict"] for c in found["clients"]] == [c.verdict for c in ft.audit(run).clients]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", 1, 0.1, "--rounds", 50, "--local-steps", 5),
        ("check", "e.toml"),
        ("forecast", "e.toml", "--n", "1e6"),
        ("engines",),
        ("reproduce", "--list"),
        ("new", "mine"),
    ],
)
def test_every_command_has_json_and_quiet(folder, words):
    said = json.loads(call(*words, "--json").stdout)
    assert said["tables"] or said["notes"]
    if words[0] == "new":
        return
    done = call(*words, "--quiet")
    assert done.exit_code == 0 and done.stdout == ""
    assert call(*words).stdout.strip()  # and neither stays on


def test_a_mistake_is_in_the_json_and_a_diverged_run_is_no_mistake(folder):
    done = call("run", "none.toml", "--json")
    assert done.exit_code == 2 and "none.toml" in json.loads(done.stdout)["error"]
    bad = FILE.replace("c = 0.1\ndelta = 0.8", "a = 50.0").replace("rounds = 30", "rounds = 3000")
    (folder / "bad.toml").write_text(bad)
    with pytest.warns(ft.StabilityWarning):
        done = call("run", "bad.toml", "--json")
    said = json.loads(done.stdout)
    assert done.exit_code == 1 and said["diverged"][0]["seed"] == 0 and "error" not in said


def test_cells_become_numbers(capsys):
    with terminal.speaking(quiet=False, as_json=True):
        terminal.table("T", ["", "a", "a"], [["x", "1,000", "0.5 [0.1, 0.9]"]])
        terminal.give(values=np.array([1.0, np.nan]))
    said = json.loads(capsys.readouterr().out)
    assert said["tables"][0]["rows"] == [{"column 1": "x", "a": 1000, "a 2": "0.5 [0.1, 0.9]"}]
    assert said["values"] == [1.0, None]


def test_progress_asks_for_the_numbers_now_and_then(capsys):
    asked = []

    def newest():
        asked.append(1)
        return "error 0.5"

    with progress.bar(1000, 0, True) as moved:
        for _ in range(1000):
            moved(1, newest)
    assert 1 <= len(asked) < 100
    with progress.bar(10, 0, False) as moved:
        moved(1, newest)


def test_the_newest_numbers_in_words(tiny):
    e = ft.Experiment(tiny, ft.Power(0.1, 0.8), rounds=4, local_steps=2, batch_size=5)
    record = recorder(e, engines.init(e, np.array([0])))
    assert record.newest() == ""
    record.metrics = {
        "answered": np.array([[3.0, 2.0, np.nan, np.nan]]),
        "test_accuracy": np.array([[0.5, 0.8234567, np.nan, np.nan]]),
        "seconds": np.array([[1.0, 1.0, np.nan, np.nan]]),
    }
    assert record.newest() == "2 answered, test accuracy 0.8235"
    record.metrics = {"auc": np.array([[0.25, np.nan, np.nan, np.nan]])}
    assert record.newest() == "auc 0.25"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rnu",), "No such command 'rnu'. Did you mean 'run'? See fedtaper --help."),
        (("run", "e.toml", "--sead", 3), "Did you mean '--seeds'? See fedtaper run --help."),
        (("run",), "Missing argument 'FILE'. See fedtaper run --help."),
        (("run", "ee.toml"), "there is no file ee.toml; did you mean 'e.toml'?"),
        (("check", "."), ". is a folder: name a TOML file in it"),
        (("audit", "e.toml"), "e.toml is a file: name a run folder, such as runs/e"),
        (("audit", "rnus"), "there is no run folder rnus"),
        (("contributions", "none"), "there is no file or run folder none"),
        (("price", "e.toml", "--plot", "."), ". is a folder: name a file to write"),
        (("price", "e.toml", "--plot", "p.foo"), "p.foo names no format of a figure"),
        (("price", "e.toml", "--plot", "no/p.png"), "there is no folder no"),
        (("fair", "e.toml", "--out", "."), ". is a folder: name a file to write"),
        (("plan", "equal effective influence", "--rounds", 9, "--local-steps", 5), "--clients"),
    ],
)
def test_wrong_words_are_one_line_before_any_work(folder, words, said):
    done = call(*words)
    assert done.exit_code == 2 and done.stdout == "" and said in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    given = json.loads(call(*words, "--json").stdout)
    assert said in given["error"]


def test_a_run_over_several_seeds_says_which_option_chooses_one(folder):
    assert call("run", "e.toml", "--seeds", 2).exit_code == 0
    done = call("audit", "runs/e")
    assert done.exit_code == 2 and "runs/e has 2 seeds" in done.stderr and "--seed 0" in done.stderr
    assert call("audit", "runs/e", "--seed", 1).exit_code == 0


def test_a_narrow_terminal_cuts_no_number_off(capsys, monkeypatch):
    rows = [["north", "kept", f"{i}.123456789", "2,000,000"] for i in range(2)]
    monkeypatch.setattr(terminal.console, "_width", 30)
    terminal.table("T", ["site", "", "estimated", "rounds"], rows, left=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "T",
        "north kept",
        "  estimated  0.123456789",
        "  rounds     2,000,000",
    ]
    monkeypatch.setattr(terminal.console, "_width", 60)
    terminal.table("T", ["site", "", "estimated", "rounds"], rows, left=2)
    assert "north  kept  0.123456789  2,000,000" in capsys.readouterr().out


def test_names_that_no_terminal_can_show(capsys):
    terminal.say("Written: [red]x\udcff\x1b[31m.html")
    assert capsys.readouterr().out == "Written: [red]x\\udcff\\x1b[31m.html\n"
    terminal.table("", ["client", "p"], [["x\x1b[2J\x07", "1"], ["[/red]", "2"]])
    assert capsys.readouterr().out.split() == ["client", "p", "x\\x1b[2J\\x07", "1", "[/red]", "2"]


def test_a_federation_s_sites_have_their_names(folder):
    text = FILE + '\n[federation]\nsites = ["north", "south", "west"]\n'
    (folder / "f.toml").write_text(text)
    shown = call("forecast", "f.toml", "--n", "1e6").stdout
    assert "north, south, west" in shown and "client 0" not in shown
    assert "west" in call("price", "f.toml").stdout
    for sites in ("3", "[1, 2, 3]", '["a", "a", "b"]', '["a"]'):
        (folder / "f.toml").write_text(f"{FILE}\n[federation]\nsites = {sites}\n")
        assert "clients 0 to 2" in call("forecast", "f.toml", "--n", "1e6").stdout


def test_what_only_flower_can_run(folder):
    (folder / "f.toml").write_text(FILE + '\n[federation]\nsites = ["a"]\ntask = "mine:task"\n')
    for words in (("run", "f.toml"), ("check", "f.toml")):
        done = call(*words)
        assert done.exit_code == 2 and "--engine flower" in done.stderr
        assert done.stderr.count("\n") == 1
    done = call("run", "e.toml", "--engine", "flower", "--seeds", 2)
    assert done.exit_code == 2 and "leave out --seeds" in done.stderr


def test_a_simulated_federation_prints_its_rounds_apart_from_its_results(folder):
    pytest.importorskip("flwr")
    text = FILE.replace("rounds = 30", "rounds = 2")
    (folder / "f.toml").write_text(text + '\n[federation]\nsites = ["north", "south", "west"]\n')
    words = [*COMMAND, "run", "f.toml", "--engine", "flower", "--json"]
    done = subprocess.run(words, check=True, cwd=folder, capture_output=True, text=True)
    assert json.loads(done.stdout)["rounds"] == 2 and "round 1/2" not in done.stderr
    words[-1] = "--out=second"
    done = subprocess.run(words, check=True, cwd=folder, capture_output=True, text=True)
    assert "round 2/2, 3 answered" in done.stderr and "round 1/2" not in done.stdout
    assert "north" in done.stdout and "client 0" not in done.stdout


def test_every_command_shows_an_example():
    from typer.main import get_command

    for name, command in get_command(app).commands.items():
        assert f"fedtaper {name}" in command.help, name


def test_a_stopped_run_says_how_to_go_on(folder, monkeypatch):
    def stop(*words, **how):
        raise progress.Stopped(2)

    monkeypatch.setattr("fedtaper.cli.simulation.simulate", stop)
    done = call("run", "e.toml", "--json")
    assert done.exit_code == 130
    said = json.loads(done.stdout)["error"]
    assert said == "stopped: repeat the command with --resume to continue in runs/e"


def test_a_full_disk_is_one_line(folder):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "check", "e.toml", "--json"],
            check=False, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 2 and "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_status_of_long_work(capsys, monkeypatch):
    with terminal.status("begins") as shown:
        for text in ("[red]one", "[red]one", "two"):
            shown.update(text)
    assert capsys.readouterr().err == "[red]one\ntwo\n"
    shown = Console(stderr=True, markup=False, force_terminal=True, width=60, _environ={})
    monkeypatch.setattr(terminal, "errors", shown)
    with terminal.status("begins") as shown:
        shown.update("[red]one")
    said = capsys.readouterr().err
    assert "0:00:00" in said and "[red]one" in said


def test_the_bar_keeps_the_time_left_on_a_narrow_terminal(capsys, monkeypatch):
    for columns, there in (("60", False), ("100", True)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        with progress.bar(2_000_000, 0, True) as moved:
            moved(1000, lambda: "[test] accuracy 0.5")
        shown = capsys.readouterr().err
        assert "/2,000,000" in shown and "-:--:--" in shown and "[test] accuracy" in shown
        assert ("━" in shown) == there


def test_a_round_of_a_federation_in_one_line():
    from fedtaper.deploy.progress import round_line

    assert round_line(3, 5, {"auc": 0.9, "change": 0.1, "answered": 3}) == (
        "round 3/5, 3 answered, auc 0.9"
    )
    assert round_line(3, 5, {"change": 0.1, "answered": 3}).endswith("change 0.1")
    assert round_line(3, 5, {}) == "round 3/5"
