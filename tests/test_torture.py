"""Short versions of ``make torture``: fuzzers, kills and faults, a few of each."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from torture import calls, commands, faults, files, folders

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _away(tmp_path, monkeypatch):
    """What is written goes to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_the_right_calls_are_right():
    """What the fuzzer makes wrong, one argument at a time, is right to begin with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short batches
        for call, given in calls.calls():
            call(**given)


def test_wrong_calls_are_one_line():
    assert calls.fuzz(250, seed=1) == []


def test_fuzzed_files_are_read_or_refused_in_one_line():
    assert files.fuzz(250, seed=1) == []


def test_damaged_folders_are_refused_or_right():
    bad, ends = folders.fuzz(25, seed=1)
    assert bad == [] and ends["refused"] > 30


def test_wrong_commands_are_one_line():
    assert commands.fuzz(40, seed=1, apart=0) == []


def test_faults_of_the_disk_are_one_line_and_lose_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count, bad = faults.fuzz(works=["run", "extend"], step=9)
    assert bad == [] and count > 8


def test_kills_leave_the_same_bits():
    """In a process of its own, since it forks."""
    chosen = ["reference, momentum", "run_many"]
    code = f"from torture import kills; raise SystemExit(kills.main(6, 0, {chosen}, 0))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert found.returncode == 0, found.stdout.decode() + found.stderr.decode()
