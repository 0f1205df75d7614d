"""``problem = "my_module:make_problem"`` in a file: the command works on it, mistakes are told."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app

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
