import json
import os
import signal
import subprocess
import sys
import time

import pytest
from small_file import FILE

COMMAND = [sys.executable, "-c", "from fedtaper.cli.main import main; main()"]


def fedtaper(*words, cwd, **how):
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        check=False, cwd=cwd, capture_output=True, text=True, timeout=300,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}, **how,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "e.toml").write_text(FILE)
    return tmp_path


def test_run_report_and_resume(folder):
    done = fedtaper("run", "e.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Distance to w*(p)" in done.stdout and "Influence" in done.stdout
    assert (folder / "runs/e/config.toml").is_file()
    again = fedtaper("run", "e.toml", cwd=folder)
    assert again.returncode == 2 and "exists" in again.stderr and "Traceback" not in again.stderr
    assert fedtaper("run", "e.toml", "--resume", cwd=folder).returncode == 0
    page = fedtaper("report", "runs/e", "--out", "page.html", "--figures", "drawn", cwd=folder)
    assert page.returncode == 0
    text = (folder / "page.html").read_text()
    assert '"title":"Distance to the optimum"' in text
    assert "the optimum of the influences at that n and in the limit" in text  # p_n = p
    assert "default-src 'none'" in text  # nothing can be fetched
    assert {f.suffix for f in (folder / "drawn").iterdir()} == {".png", ".svg"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rounds", "ronuds", ("unknown key 'ronuds'", "did you mean 'rounds'")),
        ("\nclients = 3\n", "\nclients = 2\n", ("schedules for 3 clients",)),
        ("delta = 0.8", "delta = -1", ("delta must be",)),
        ("samples = 50", "samples = [50, 0, 50]", ("client 1 has 0 samples",)),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(folder, old, new, words):
    (folder / "e.toml").write_text(FILE.replace(old, new))
    done = fedtaper("run", "e.toml", cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_nan_in_the_user_s_data(folder):
    (folder / "data").mkdir()
    for i in range(3):
        (folder / f"data/{i}.csv").write_text("1,2\n3,nan\n" if i == 1 else "1,2\n3,4\n")
    text = FILE.replace("num_clients = 3\nsamples = 50\nfeature_spread = 1.0", 'data = "data"')
    (folder / "e.toml").write_text(text.replace("batch_size = 5", "batch_size = 1"))
    done = fedtaper("run", "e.toml", cwd=folder)
    assert done.returncode == 2 and "client 1: y[1] is nan" in done.stderr


def test_missing_file_unwritable_folder_unknown_claim(folder):
    for words in (
        ("run", "none.toml"),
        ("run", "e.toml", "--out", "/proc/none/here"),
        ("report", "nowhere"),
        ("reproduce", "R77"),
        ("run", "e.toml", "--engine", "magic"),
    ):
        done = fedtaper(*words, cwd=folder)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_delta_of_a_half_warns_and_runs(folder):
    (folder / "e.toml").write_text(FILE.replace("delta = 0.8", "delta = 0.5"))
    done = fedtaper("run", "e.toml", cwd=folder)
    assert done.returncode == 0 and "warning:" in done.stderr and "A2" in done.stderr


def test_a_diverged_run_is_stored_and_reported(folder):
    (folder / "e.toml").write_text(
        FILE.replace("c = 0.1\ndelta = 0.8", "a = 50.0").replace("rounds = 30", "rounds = 3000")
    )
    done = fedtaper("run", "e.toml", cwd=folder)
    assert done.returncode == 1
    assert "diverged in round" in done.stderr and "warning: the first step size" in done.stderr
    assert json.loads((folder / "runs/e/provenance.json").read_text())["diverged"]
    assert fedtaper("report", "runs/e", cwd=folder).returncode == 0


def test_claims_by_command(folder):
    listed = fedtaper("reproduce", "--list", cwd=folder)
    assert listed.returncode == 0 and all(f"R{i}" in listed.stdout for i in range(1, 10))
    done = fedtaper("reproduce", "R1", "--seeds", 10, "--out", "claims", cwd=folder)
    assert done.returncode == 0, done.stderr
    row = json.loads((folder / "claims/claims.json").read_text())["claims"][0]
    wanted = {"id", "statement", "verdict", "numbers", "nearest", "figures", "seconds", "measure"}
    assert wanted <= set(row) and row["id"] == "R1" and row["verdict"] == "reproduced"
    assert row["figures"]
    assert all((folder / "claims" / name).is_file() for name in row["figures"])
    assert fedtaper("report", "claims", cwd=folder).returncode == 0


def test_help_teaches(folder):
    assert "fedtaper demo" in fedtaper("--help", cwd=folder).stdout
    assert "Example" in fedtaper("run", "--help", cwd=folder).stdout


def test_ctrl_c_leaves_a_checkpoint(folder):
    (folder / "e.toml").write_text(FILE.replace("rounds = 30", "rounds = 50000000"))
    process = subprocess.Popen(
        [*COMMAND, "run", "e.toml", "--thin", "1000000"],
        cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (folder / "runs/e").is_dir() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)  # well into the run
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped" in errors and "Traceback" not in errors
    assert (folder / "runs/e/checkpoint.npz").is_file()


def test_import_is_quick():
    code = (
        "import sys, fedtaper; heavy = ('torch', 'numba', 'matplotlib', 'sklearn', 'rich'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_argument_and_option_has_its_help():
    from typer.main import get_command

    from fedtaper.cli.main import app

    for name, command in get_command(app).commands.items():
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


def test_help_shows_arguments_and_suggestions_come_once(tmp_path):
    shown = fedtaper("audit", "--help", cwd=tmp_path).stdout
    assert "A run folder." in shown and "Usage: fedtaper audit" in shown
    wrong = fedtaper("rnu", cwd=tmp_path).stderr
    assert wrong.count("Did you mean 'run'?") == 1
    assert "--install-completion" in fedtaper("--help", cwd=tmp_path).stdout
