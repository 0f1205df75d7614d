"""The examples are the tutorial: each runs as it stands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedtaper as ft

EXAMPLES = Path(__file__).parent.parent / "examples"
README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("script", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_script(script, tmp_path):
    if "lora" in script:
        pytest.importorskip("peft")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("file", sorted(p.name for p in EXAMPLES.glob("*.toml")))
def test_file_describes_an_experiment(file):
    if "\ntask = " in (EXAMPLES / file).read_text(encoding="utf-8"):
        pytest.importorskip("flwr")
        from fedtaper.deploy.source import FileSource

        source = FileSource(str(EXAMPLES / file), str(EXAMPLES))
        sizes = [source.samples(site) for site in source.federation.sites]
        assert source.experiment(sizes).rounds > 0
        return
    assert ft.read_toml(EXAMPLES / file).rounds > 0


def test_readme_code_runs_and_its_numbers_are_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(code.replace("range(1000)", "range(3)"), names)
    assert names["run"].metrics["error"][-1] < 0.3
    assert (tmp_path / "report.html").is_file()
    assert names["ft"].influence([names["slow"], names["fast"]], n=25_000)[1].round(3) == 0.088
