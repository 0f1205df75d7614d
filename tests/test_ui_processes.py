"""The command ``fedtaper ui``, and the runs that are started from its page."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ui_client import opened, small

import fedtaper as ft
from fedtaper.cli.main import app as command
from fedtaper.simulation import drive
from fedtaper.storage import checkpoints
from fedtaper.ui import jobs, serve


@pytest.fixture
def page(tmp_path):
    return opened(tmp_path)


def test_names_seeds_and_strangers(page, tmp_path):
    for name in ("", "a b", "-x", ".x", "x" * 65):
        answer = page.post("/api/start", json={"name": name, "settings": small()})
        assert answer.status_code == 400
    for seeds in (0, 1001, 1.5, True, "3"):
        asked = {"name": "x", "settings": small(), "seeds": seeds}
        assert page.post("/api/start", json=asked).status_code == 400
    for path in ("stop", "resume"):
        assert page.post(f"/api/{path}", json={"id": "none"}).status_code == 400


def test_port_in_use_and_missing_folder(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ft.FedtaperError, match=f"port {port} is in use"):
            serve.bound(port)
        with pytest.raises(SystemExit) as ended:
            command(["ui", str(tmp_path), "--port", str(port), "--no-browser"])
    assert ended.value.code == 2 and "--port" in capsys.readouterr().err
    with pytest.raises(ft.FedtaperError, match="no folder"):
        serve.serve(tmp_path / "none", 0, False, print)


def test_missing_extra_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ft.FedtaperError, match=r'pip install "fedtaper\[ui\]"'):
        serve.serve(tmp_path, 0, False, print)


def test_the_door_to_the_browser_is_private():
    door = serve._door("http://127.0.0.1:1/#token=x")
    try:
        assert door.stat().st_mode & 0o077 == 0 and "#token=x" in door.read_text()
    finally:
        door.unlink()


def test_the_command_serves_this_machine_only(tmp_path):
    words = [sys.executable, "-m", "fedtaper", "ui", str(tmp_path), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[1]
            port = int(address.split(":")[2].split("/")[0])
            token = address.split("#token=")[1]
            assert len(token) > 40
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(b"GET / HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n")
                assert b" 403 " in line.recv(100)
            table = Path("/proc/net/tcp")
            assert not table.exists() or f"0100007F:{port:04X}" in table.read_text()
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0


def test_a_stopped_run_says_what_it_is_and_goes_on_to_the_same_bits(page, tmp_path, monkeypatch):
    problem = ft.LinearRegression(num_clients=2, dim=2, samples=40, feature_spread=1.0)
    e = ft.Experiment(problem, ft.Power(0.1, 0.8), rounds=40, local_steps=2, batch_size=10)
    real, calls = checkpoints.save_checkpoint, []

    def stop(*words):
        real(*words)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(drive, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr("fedtaper.engines.BLOCK_SAMPLES", 200)
        patch.setattr(checkpoints, "save_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            ft.run(e, out=tmp_path / "stopped")
    (row,) = page.get("/api/runs").json()["runs"]
    assert row["state"] == "unfinished" and 0 < row["round"] < row["rounds"] == 40
    whole = ft.run(e)
    shown = page.get("/api/run", params={"id": "stopped"}).json()
    assert shown["round"] == list(range(1, row["round"] + 1))
    assert shown["metrics"]["error"]["values"] == pytest.approx(
        whole.metrics["error"][: row["round"]], rel=1e-6
    )
    assert shown["influence"]["groups"][0]["who"] == "clients 0 and 1"
    assert page.post("/api/resume", json={"id": "stopped"}).status_code == 200
    end = time.monotonic() + 60
    while not (tmp_path / "stopped/run.npz").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    np.testing.assert_array_equal(ft.load(tmp_path / "stopped").w, whole.w)


def test_jobs_know_how_a_run_was_made(tmp_path):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, seeds=np.arange(4), round=np.array([5, 10, 12]), updates=np.zeros(1))
    assert jobs._flags(path) == ["--updates", "--seeds", "4", "--thin", "5"]
    np.savez(path, seeds=np.array([7, 9]), round=np.arange(1, 4))
    with pytest.raises(ft.FedtaperError, match="seeds are not 0, 1, 2"):
        jobs._flags(path)
    path.write_bytes(b"PK")
    with pytest.raises(ft.FedtaperError, match="cannot be read"):
        jobs._flags(path)
