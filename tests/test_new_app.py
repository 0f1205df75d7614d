"""`fedtaper new` and what its README says, word for word, in an environment of its own."""

import os
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import fedtaper as ft
from fedtaper.deploy import processes
from fedtaper.deploy.scaffold import new_app

SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({name}())
"""


def fresh_environment(folder):
    """A virtual environment that sees the packages of this one, and has their commands."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    found = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    seen = [sysconfig.get_paths()["purelib"], str(Path(ft.__file__).parents[1])]
    (Path(found["purelib"]) / "seen.pth").write_text("\n".join(seen) + "\n")
    words = ("fedtaper", "flwr", "flower-", "pip")
    for command in entry_points(group="console_scripts"):
        if command.name.startswith(words):
            script = folder / "bin" / command.name
            words_of = {"module": command.module, "name": command.attr.split(".")[0]}
            script.write_text(SCRIPT.format(python=folder / "bin" / "python", **words_of))
            script.chmod(0o755)
    return folder / "bin"


def commands(readme):
    """The indented lines of a README as one script."""
    lines = [line[4:] for line in readme.splitlines() if line.startswith("    ")]
    text = "\n".join(lines)
    assert "pip install -e ." in text
    # what the app depends on is there already: nothing is fetched
    return text.replace("pip install -e .", "pip install -q --no-deps --no-build-isolation -e .")


def end(home):
    """Stop what `flwr run` leaves behind: every process that was given our Flower home."""
    mark = f"FLWR_HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def test_a_site_that_the_task_does_not_know_is_named(tmp_path, monkeypatch):
    app = new_app("clinics", tmp_path) / "clinics"
    assert "the same as SITES in task.py" in (app / "federation.toml").read_text()
    known: dict = {}
    exec((app / "task.py").read_text(), known)
    with pytest.raises(ValueError, match="site east is not in SITES: north, south, west"):
        known["data"]("east")


@pytest.mark.federation
def test_the_readme_of_a_new_app_word_for_word(tmp_path):
    where = fresh_environment(tmp_path / "environment")
    (link,) = processes.free_ports(1)
    home = tmp_path / "flower"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"PATH": f"{where}{os.pathsep}{env['PATH']}", "FLWR_HOME": str(home)}
    env |= {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(link), "OMP_NUM_THREADS": "1"}
    env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def bash(script, cwd):
        done = subprocess.run(
            ["bash", "-euxc", script], cwd=cwd, env=env, capture_output=True, text=True,
            timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    try:
        bash("fedtaper new first-try", tmp_path)
        app = tmp_path / "first-try"
        bash(commands((app / "README.md").read_text(encoding="utf-8")), app)
    finally:
        end(home)
    runs = [ft.load(app / place) for place in ("runs/first", "runs/flwr", "rehearsal/server/run")]
    for run in runs:
        assert run.metrics["answered"].tolist() == [3] * 5
        assert run.metrics["test_accuracy"][-1] > 0.7
        assert abs(run.w - runs[0].w).max() < 1e-5, "the same models by all three roads"
    assert (app / "deployment" / "server" / "proxy.conf").is_file()
    assert list(app.glob("**/report*.html")) or list(app.glob("*.html"))
