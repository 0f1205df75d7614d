"""``problem = "my_module:make_problem"`` in a file: the command works on it, mistakes are told."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app
from fedtaper.ui.rows import read_row

MODULE = """
import torch
import fedtaper as ft

torch.manual_seed(3)
DATA = [(torch.randn(20, 4), torch.randn(20, 1)) for _ in range(3)]

def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()

def init():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))

def make_problem():
    return ft.Custom(loss, init, DATA)

def seven():
    return 7

def raises():
    raise OSError("no such\\ndisk")

number = 7
"""
TABLES = """
[experiment]
rounds = {rounds}
local_epochs = 1
batch_size = 5
[schedules]
c = 0.05
delta = 0.8
"""


@pytest.fixture
def module(tmp_path):
    (tmp_path / "bare_problem.py").write_text(MODULE)
    yield "bare_problem"
    sys.modules.pop("bare_problem", None)


def written(folder, name="bare_problem:make_problem", rounds=3):
    path = folder / "e.toml"
    path.write_text(f'problem = "{name}"\n' + TABLES.format(rounds=rounds))
    return path


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_commands_work_on_it(tmp_path, module):
    file, out = written(tmp_path), tmp_path / "run"
    for words in (
        ("run", file, "--out", out),
        ("check", file),
        ("plan", "client 2 counts 3x", "--rounds", 40, "--file", file),
        ("audit", out),
        ("report", out, "--out", tmp_path / "report.html"),
        ("export", out, "--out", tmp_path / "model.safetensors"),
    ):
        found = command(*words)
        assert found.exit_code == 0, (words[0], found.output)


def test_it_is_the_same_as_the_table_and_resumes(tmp_path, module):
    bare = written(tmp_path)
    table = tmp_path / "table.toml"
    head = f'[problem]\nkind = "{module}:make_problem"\n'
    table.write_text(head + TABLES.format(rounds=3))
    for file, out in ((bare, "a"), (table, "b")):
        assert command("run", file, "--out", tmp_path / out).exit_code == 0
    a, b = (tmp_path / out / "config.toml" for out in "ab")
    assert a.read_text() == b.read_text()
    more = command("run", written(tmp_path, rounds=5), "--out", tmp_path / "b", "--resume")
    assert more.exit_code == 0, more.output
    whole = ft.run(ft.read_toml(bare))
    assert np.array_equal(ft.load(tmp_path / "b").final, whole.final)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:make_problem", "No module named 'no_such_module'"),
        ("bare_problem:nothing", "has no attribute 'nothing'"),
        ("bare_problem:seven", "what bare_problem:seven returns must be a problem"),
        ("bare_problem:number", "bare_problem:number is not a class"),
        ("bare_problem:raises", "no such disk"),
        ("linear", "names code of your own, not 'linear'"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, module, name, says):
    with pytest.raises(ft.FedtaperError) as trouble:
        ft.read_toml(written(tmp_path, name))
    assert says in str(trouble.value) and "\n" not in str(trouble.value)
    assert command("check", written(tmp_path, name)).exit_code != 0


def test_below_a_table_it_is_sent_above(tmp_path):
    (tmp_path / "e.toml").write_text(TABLES.format(rounds=3) + 'problem = "a:b"\n')
    with pytest.raises(ft.FedtaperError, match=r"in the table \[schedules\]: move it above"):
        ft.read_toml(tmp_path / "e.toml")


ARGUED = """
def sized(sizes=None, shift=0.0):
    sizes = sizes or [9] * 3
    return ft.Custom(loss, init, [(x[:n] + shift, y[:n]) for (x, y), n in zip(DATA, sizes)])
"""
ARGUMENTS = '[problem]\nkind = "bare_problem:sized"\nsizes = [12, 9, 6]\nshift = 0.5\n'
NAMED = (
    'names = ["Nord", "Süd", "St. West"]\n[challenges]\nevery = 2\n[behaviours.1]\nkind = "idle"\n'
)


def argued(folder, rounds=4, more=""):
    """A file whose problem is made by a function with arguments."""
    with (folder / "bare_problem.py").open("a") as module:
        module.write(ARGUED)
    path = folder / "e.toml"
    tables = TABLES.format(rounds=rounds).replace("[schedules]", f"{more}[schedules]")
    path.write_text(ARGUMENTS + tables)
    return path


def loses(folder):
    sys.modules.pop("bare_problem", None)
    (folder / "bare_problem.py").unlink()


def test_a_plan_is_the_file_with_other_rounds_and_step_sizes(tmp_path, module):
    file, out = argued(tmp_path, more=NAMED), tmp_path / "plan.toml"
    found = command("plan", 10, 1, 1, "--rounds", 7, "--file", file, "--out", out)
    assert found.exit_code == 0, found.output
    assert "Süd" in found.output
    before, after = ft.read_toml(file), ft.read_toml(out)
    assert (after.names, after.challenges) == (before.names, before.challenges)
    assert after.behaviours == before.behaviours and after.rounds == 7
    assert after.problem.sizes.tolist() == [12, 9, 6]
    assert [s.c for s in after.schedules] == [0.1, 0.015, 0.015]
    assert command("run", out, "--out", tmp_path / "run").exit_code == 0
    assert after.influence().effective == pytest.approx([1, 0.1, 0.1])


def test_a_plan_replaces_the_work_of_a_round_and_keeps_other_tables(tmp_path, module):
    file, out = argued(tmp_path, more='[run]\nengine = "cpu"\n'), tmp_path / "plan.toml"
    words = ("plan", "equal", "--rounds", 7, "--file", file, "--local-steps", 3, "--out", out)
    assert command(*words, "--participation", "0.5").exit_code == 0
    made = ft.read_toml(out)
    assert (made.local_steps, made.local_epochs, made.participation) == (3, None, 0.5)
    assert '[run]\nengine = "cpu"' in out.read_text()


def test_a_plan_does_not_replace_its_own_file_nor_lose_what_lies_beside_it(tmp_path, module):
    file = argued(tmp_path)
    text = file.read_text()
    words = ("plan", "equal", "--rounds", 7, "--file", file, "--out")
    same = command(*words, tmp_path / "." / "e.toml")
    assert same.exit_code == 2 and "name another file" in same.output
    assert file.read_text() == text
    (tmp_path / "plans").mkdir()
    away = command(*words, tmp_path / "plans" / "p.toml")
    assert away.exit_code == 2 and "would not find bare_problem.py" in away.output
    assert not (tmp_path / "plans" / "p.toml").exists()


def test_fair_influences_of_an_own_model_can_be_run(tmp_path, module):
    straight = MODULE.replace(
        "torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))",
        "torch.nn.Linear(4, 1)",
    )
    (tmp_path / "bare_problem.py").write_text(straight)
    file, out = argued(tmp_path, more=NAMED), tmp_path / "fair.toml"
    found = command("fair", file, "--out", out)
    assert found.exit_code == 0, found.output
    assert ft.read_toml(out).names == ("Nord", "Süd", "St. West")
    assert command("run", out, "--out", tmp_path / "run").exit_code == 0


def test_the_settings_of_a_run_can_be_run_again(tmp_path, module, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, out = argued(tmp_path), tmp_path / "run"
    assert command("run", file, "--out", out, "--updates").exit_code == 0
    again = command("run", out / "config.toml", "--out", tmp_path / "again", "--updates")
    assert again.exit_code == 0, again.output
    assert (out / "config.toml").read_text() == (tmp_path / "again" / "config.toml").read_text()
    assert np.array_equal(ft.load(out).final, ft.load(tmp_path / "again").final)
    same = command("run", out / "config.toml", "--out", out, "--resume")
    assert same.exit_code == 0, same.output


def test_only_what_needs_the_problem_calls_its_function(tmp_path, module, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    assert command("run", argued(tmp_path), "--out", out, "--updates").exit_code == 0
    assert command("contributions", out).exit_code == 0
    assert "brought" not in command("board", out).output  # the model is not convex
    loses(tmp_path)
    assert ft.load(out).experiment.problem.kind == "recorded"
    for words in (("audit", out), ("report", out, "--out", tmp_path / "r.html")):
        assert command(*words).exit_code == 0, words
    missing = command("contributions", out)
    assert missing.exit_code == 2 and "bare_problem.py is looked for in" in missing.output
    with pytest.warns(ft.FedtaperWarning, match="bare_problem.py is looked for in"):
        assert command("board", out).exit_code == 0


def test_code_is_not_looked_for_among_results(tmp_path, module, monkeypatch):
    out = tmp_path / "run"
    assert command("run", argued(tmp_path), "--out", out).exit_code == 0
    loses(tmp_path)
    (out / "bare_problem.py").write_text("raise SystemExit('this must not be imported')")
    monkeypatch.chdir(tmp_path)
    found = command("run", out / "config.toml", "--out", tmp_path / "again")
    assert found.exit_code == 2
    assert found.output.rstrip().endswith(f"bare_problem.py is looked for in {tmp_path}")


def test_the_page_says_where_a_run_can_be_resumed(tmp_path, module):
    file, out = argued(tmp_path), tmp_path / "run"
    assert command("run", file, "--out", out).exit_code == 0
    assert not read_row("run", out, 0.0).own
    config = out / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("made_by")))
    assert read_row("run", out, 0.0).own


def test_other_data_is_noticed(tmp_path, module, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    assert command("run", argued(tmp_path), "--out", out, "--updates").exit_code == 0
    config = out / "config.toml"
    loses(tmp_path)
    (tmp_path / "bare_problem.py").write_text(MODULE.replace("seed(3)", "seed(4)") + ARGUED)
    assert "data of clients 0, 1, 2 differs" in command("contributions", out).output
    assert command("run", config, "--out", out, "--resume").exit_code == 2


def test_a_run_folder_that_names_no_function_says_what_helps(tmp_path, module):
    problem = ft.read_toml(written(tmp_path)).problem
    made = ft.Custom(problem.loss, problem.init, problem.client_data)
    e = ft.Experiment(made, ft.Power(0.1, 0.8), rounds=3, local_epochs=1, batch_size=9)
    ft.run(e, out=tmp_path / "run", updates=True, progress=False)
    found = command("contributions", tmp_path / "run")
    assert found.exit_code == 2 and "ft.load(folder, problem=...)" in found.output
    again = command("run", tmp_path / "run" / "config.toml", "--out", tmp_path / "again")
    assert again.exit_code == 2 and "ft.load(folder, problem=...)" in again.output


def test_a_wrong_module_name_is_told_with_the_nearest(tmp_path, module):
    with pytest.raises(ft.FedtaperError, match="did you mean 'bare_problem'") as trouble:
        ft.read_toml(written(tmp_path, "bare_problam:make_problem"))
    assert "ft.load" not in str(trouble.value)


def test_data_beside_a_file_stays_named_in_its_plan(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        f"{n}{i}": rng.normal(size=(30, 3) if n == "x" else 30) for i in range(2) for n in "xy"
    }
    np.savez(tmp_path / "d.npz", **arrays)
    file, out = tmp_path / "e.toml", tmp_path / "p.toml"
    file.write_text('[problem]\nkind = "linear"\ndata = "d.npz"\n' + TABLES.format(rounds=3))
    assert command("plan", 1, 0.5, "--rounds", 5, "--file", file, "--out", out).exit_code == 0
    assert ft.read_toml(out).problem.x[0].shape == (30, 3)
    (tmp_path / "sub").mkdir()
    away = command("plan", 1, 0.5, "--rounds", 5, "--file", file, "--out", tmp_path / "sub/p.toml")
    assert "would not find d.npz" in away.output
