"""Real Flower processes on loopback: simulation, TLS and keys, and what happens when they die."""

import json
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedtaper as ft
from fedtaper.deploy import keeper, processes
from fedtaper.deploy.local import LocalFederation
from fedtaper.deploy.progress import last_line
from fedtaper.deploy.source import FileSource
from fedtaper.storage import store

EXAMPLES = Path(__file__).parent.parent / "examples"
REGRESSION = """
[experiment]
rounds = {rounds}
local_steps = 5
batch_size = 20
[problem]
kind = "linear"
num_clients = 3
samples = 200
[server]
kind = "adam"
[[schedules]]
c = 0.02
delta = 0.76
[[schedules]]
c = 0.02
delta = 1.0
clients = 2
[federation]
sites = ["north", "south", "west"]
deadline = 240.0
{more}
"""
SCAFFOLD = """
[local]
kind = "scaffold"
[server]
kind = "controlled"
"""
DIGITS = """
[experiment]
rounds = 2
local_epochs = 1
batch_size = 32
[problem]
kind = "images"
data_set = "digits"
model = "cnn"
num_clients = 3
[[schedules]]
c = 0.1
delta = 0.76
clients = 3
"""


def written(tmp_path, text, **words):
    file = tmp_path / "case.toml"
    file.write_text(text.format(**({"rounds": 2, "more": ""} | words)))
    return file


def same_models(mine, theirs, tolerance):
    assert np.abs(mine.w - theirs.w).max() < tolerance
    assert np.abs(mine.update_norms - theirs.update_norms).max() < tolerance
    for name in set(mine.metrics) - {"seconds"}:
        np.testing.assert_allclose(theirs.metrics[name], mine.metrics[name], atol=10 * tolerance)


def test_flowers_simulation_gives_the_same_models(tmp_path):
    e = ft.read_toml(written(tmp_path, REGRESSION, rounds=10))
    run = ft.run(e, engine="flower", out=tmp_path / "run")
    same_models(ft.run(e, engine="reference"), run, 1e-6)
    assert ft.load(tmp_path / "run").engine == "flower"


def test_a_deployment_with_tls_and_keys_gives_the_same_models(tmp_path):
    file = written(tmp_path, REGRESSION, rounds=2)
    with LocalFederation(file, tmp_path / "local") as local:
        for key in (local.server / "server.key", local.folder / "sites" / "north" / "north"):
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
        refused = unregistered(local)
        run = local.run(seconds=900)
        assert "Failed to activate SuperNode" in refused
    same_models(ft.run(ft.read_toml(file), engine="reference"), run, 1e-6)
    left = [p for p in processes.descendants(os.getpid()) if "flower-" in processes.command_line(p)]
    assert not left, "everything that was started is gone"


def unregistered(local):
    """Start a node whose key nobody registered; what became of it."""
    place = local.folder / "sites" / "stranger"
    place.mkdir()
    (port,) = processes.free_ports(1)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(place / "key")],
        check=True,
    )
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{local.port}"]
    command += ["--root-certificates", str(local.server / "ca.crt"), "--host", "127.0.0.1"]
    command += ["--auth-supernode-private-key", str(place / "key"), "--port", str(port)]
    command += ["--node-config", 'site="north"', "--max-wait-time", "5"]
    process = processes.start(command, place / "log", local._env(), place)
    try:
        process.wait(timeout=60)
        assert process.returncode != 0
        return processes.tail(place / "log")
    finally:
        processes.stop(process)


@pytest.mark.federation
def test_digits_on_deployed_sites(tmp_path):
    file = written(tmp_path, DIGITS)
    with LocalFederation(file, tmp_path / "local") as local:
        run = local.run(seconds=900)
    same_models(ft.run(ft.read_toml(file)), run, 1e-5)


@pytest.mark.federation
def test_the_server_app_killed_five_times_and_resumed(tmp_path):
    file = written(tmp_path, REGRESSION, rounds=8)
    rng = np.random.default_rng(0)
    stops = sorted(rng.choice(np.arange(1, 8), size=5, replace=False).tolist())
    with LocalFederation(file, tmp_path / "local") as local:
        for stop in stops:
            local.submit()
            wait_for_round(local, stop)
            time.sleep(float(rng.uniform(0, 3)))
            kill_server_app(local)
        run = local.run(seconds=900)
    assert np.array_equal(run.w, ft.run(ft.read_toml(file), engine="reference").w)


@pytest.mark.federation
def test_memories_outlive_the_server_and_the_nodes(tmp_path):
    """SCAFFOLD: the ServerApp killed, a SuperNode restarted, the run gone on with."""
    text = REGRESSION.replace('[server]\nkind = "adam"', SCAFFOLD)
    file = written(tmp_path, text, rounds=5, more="quorum = 3\nretries = 20\n")
    with LocalFederation(file, tmp_path / "local") as local:
        local.submit()
        wait_for_round(local, 2)
        kill_server_app(local)
        processes.stop(local.supernodes["west"])
        local.start_site("west")
        run = local.run(seconds=900)
        kept = list((local.folder / "sites" / "west" / "memory").iterdir())
    assert kept, "the memory is in the site's own folder"
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    assert not list(local.server.rglob("memory-*")), "and not at the server"
    assert np.abs(run.w - ft.run(ft.read_toml(file), engine="reference").w).max() < 1e-12


@pytest.mark.federation
def test_the_superlink_killed_and_started_again_on_its_database(tmp_path):
    file = written(tmp_path, REGRESSION, rounds=4)
    with LocalFederation(file, tmp_path / "local") as local:
        local.submit()
        wait_for_round(local, 1)
        processes.kill(local.superlink)
        time.sleep(2)
        local.start_superlink()
        run = local.run(seconds=900)
    assert np.array_equal(run.w, ft.run(ft.read_toml(file), engine="reference").w)


@pytest.mark.federation
def test_a_supernode_killed_in_mid_round_and_started_again(tmp_path):
    more = "quorum = 2\n"
    file = written(tmp_path, REGRESSION, rounds=6, more=more)
    with LocalFederation(file, tmp_path / "local") as local:
        local.submit()
        wait_for_round(local, 1)
        processes.kill(local.supernodes["west"])
        wait_for_round(local, 3)
        local.start_site("west")
        run = finished(local)
    lost = [e for e in events(local.run_folder) if e["site"] == "west"]
    assert lost
    assert {e["kind"] for e in lost} <= {"lost", "late"}
    assert (run.update_norms[:, :2] > 0).all(), "the others went on"
    assert np.isnan(run.update_norms[:, 2]).any()


FAULTY = """
import os, time
import numpy as np
import torch
from fedtaper import Task
from fedtaper.engines.flower import client

fault = os.environ.get("FAULT_OF_THIS_SITE", "")
honest = client._updates

def spoiled(*words):
    update, measured, kept = honest(*words)
    if fault == "nan":
        update = update * np.float32("nan")
    if fault == "shape":
        update = update[:1]
    if fault == "late":
        time.sleep(100)
    return update, measured, kept

client._updates = spoiled

def data(site):
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    return x, x.sum(1, keepdim=True)

def loss(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)

task = Task(loss=loss, init=lambda: torch.nn.Linear(3, 1), data=data)
"""
FAULTY_FEDERATION = """
[experiment]
rounds = 2
local_epochs = 1
batch_size = 5
[problem]
kind = "custom"
[[schedules]]
c = 0.1
delta = 0.8
clients = 5
[federation]
sites = ["good-1", "good-2", "nan", "shape", "late"]
task = "faulty.task:task"
deadline = 60.0
quorum = 2
"""


@pytest.mark.federation
def test_sites_that_send_nonsense_or_are_late(tmp_path):
    from fedtaper.deploy.scaffold import new_app

    app = new_app("faulty", tmp_path)
    (app / "faulty" / "task.py").write_text(FAULTY)
    file = app / "faulty" / "federation.toml"
    file.write_text(FAULTY_FEDERATION)
    with Faulty(file, tmp_path / "local") as local:
        run = local.run(seconds=900)
    found = {(e["site"], e["kind"]) for e in events(local.run_folder)}
    assert found == {("nan", "rejected"), ("shape", "rejected"), ("late", "late")}
    assert (run.update_norms > 0).tolist() == [[True, True, False, False, False]] * 2
    assert np.isfinite(run.w).all()


class Faulty(LocalFederation):
    """Each site's environment names its fault."""

    site = ""

    def start_site(self, site):
        self.site = site
        super().start_site(site)

    def _env(self):
        return super()._env() | {"FAULT_OF_THIS_SITE": self.site}


@pytest.mark.federation
def test_a_new_app_rehearses_as_it_is(tmp_path):
    from fedtaper.deploy.scaffold import new_app

    app = new_app("first-try", tmp_path)
    with LocalFederation(app / "first_try" / "federation.toml", tmp_path / "local") as local:
        run = local.run(seconds=900)
    assert run.metrics["test_accuracy"][-1] > 0.7
    assert run.metrics["answered"].tolist() == [3] * 5


def hospitals(tmp_path, rounds):
    """The example's two files as they are, but for the number of rounds; its experiment."""
    for name in ("hospitals.py", "hospitals.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    file = tmp_path / "hospitals.toml"
    file.write_text(file.read_text().replace("rounds = 40", f"rounds = {rounds}"))
    source = FileSource(str(file), str(tmp_path))
    sites = source.federation.sites
    task = source.federation.load_task() if source.samples("north") else None
    own = dict(enumerate(map(task.data, sites)))
    sizes = [len(data[0]) for data in own.values()]
    return file, source.file.experiment(task.problem(sizes, own))


@pytest.mark.federation
def test_the_hospitals_example_is_deployed_as_it_is(tmp_path):
    file, e = hospitals(tmp_path, rounds=3)
    done = subprocess.run(
        [sys.executable, "-m", "fedtaper", "deploy", str(file), "--local", "4", "--out",
         str(tmp_path / "out"), "--seconds", "1500"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = ft.load(tmp_path / "out" / "server" / "run")
    assert run.metrics["answered"].tolist() == [4] * 3
    same_models(ft.run(e, engine="cpu"), run, 1e-6)


FADING = """
import os
import fedtaper.engines.flower.client as client
from sklearn.datasets import load_breast_cancer
import torch
from fedtaper import Task

SITES = ("north", "south", "west")
honest = client._updates

def fading(e, w, a, place, kept, along):
    n = place[2] + 1.0  # one update per round; declared 0.3 / n^0.76, made 0.3 / n
    faster = n**-0.24 if os.environ.get("FAULT_OF_THIS_SITE") == "south" else 1.0
    return honest(e, w, a * faster, place, kept, along)

client._updates = fading

def data(site):
    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype("float32")
    i = SITES.index(site)
    return x[i:540:3], y[i:540:3].astype("float32")

def loss(model, x, y):
    return torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)

task = Task(loss=loss, init=lambda: torch.nn.Linear(30, 1), data=data)
"""
FADING_FEDERATION = """
[experiment]
rounds = 14
local_epochs = 1
batch_size = 180
[problem]
kind = "custom"
[[schedules]]
c = 0.3
delta = 0.76
clients = 3
[challenges]
every = 2
base = 2
[federation]
sites = ["north", "south", "west"]
task = "fading:task"
deadline = 120.0
"""


@pytest.mark.federation
def test_one_of_three_sites_fades_and_is_found(tmp_path):
    (tmp_path / "fading.py").write_text(FADING)
    file = tmp_path / "fading.toml"
    file.write_text(FADING_FEDERATION)
    with Faulty(file, tmp_path / "local") as local:
        run = local.run(seconds=1800)
    audit = ft.audit(run)
    assert [client.accused for client in audit.clients] == [False, True, False]
    assert audit.clients[1].delta == pytest.approx(1.0, abs=0.1)


@pytest.mark.federation
def test_buffered_rounds_over_real_processes(tmp_path):
    text = REGRESSION.replace('kind = "adam"', 'kind = "average"')
    file = written(tmp_path, text, rounds=8, more="buffer = 2\n")
    with LocalFederation(file, tmp_path / "local") as local:
        run = local.run(seconds=900)
    assert ((run.metrics["answered"] == 1) | (run.metrics["answered"] == 2)).all()
    assert run.metrics["staleness"].max() > 0, "the third site's update was based on an older model"
    assert (np.nansum(run.update_norms, axis=0) > 0).all(), "everybody counted at some time"
    steps = np.diff(np.vstack([run.w0, run.w]), axis=0)
    np.testing.assert_allclose(steps, np.nansum(run.updates, axis=1) / 3, atol=1e-12)


PROXY = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {server}/proxy.conf;
}}
"""


class Proxied(LocalFederation):
    """Sites go through nginx with the proxy.conf that is written for the server."""

    def start_superlink(self):
        super().start_superlink()
        folder = self.folder / "nginx"
        folder.mkdir()
        user = "user root;" if os.geteuid() == 0 else ""
        conf = PROXY.format(folder=folder, server=self.server, user=user)
        (folder / "nginx.conf").write_text(conf)
        command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        self.nginx = processes.start(command, folder / "out.log", self._env(), folder)
        processes.wait_for_port(self.ports.public, self.nginx, folder / "nginx.log", 30)

    def start_site(self, site):
        script = self.folder / "sites" / site / "supernode.sh"
        text = script.read_text().replace(
            f"127.0.0.1:{self.port}", f"localhost:{self.ports.public}"
        )
        assert f"localhost:{self.ports.public}" in text
        script.write_text(text)
        super().start_site(site)

    def __exit__(self, *trouble):
        super().__exit__(*trouble)
        processes.stop(self.nginx)

    def answer(self, path):
        """The HTTP status of a request through the proxy."""
        trusted = ssl.create_default_context(cafile=str(self.server / "ca.crt"))
        where = f"https://localhost:{self.ports.public}{path}"
        request = urllib.request.Request(where, data=b"", method="POST")
        try:
            return urllib.request.urlopen(request, context=trusted, timeout=30).status
        except urllib.error.HTTPError as refused:
            return refused.code


@pytest.mark.federation
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_sites_reach_the_fleet_paths_through_the_proxy_and_nothing_else(tmp_path):
    file = written(tmp_path, REGRESSION, rounds=2)
    with Proxied(file, tmp_path / "local") as local:
        run = local.run(seconds=900)
        for path in ("/v1/control/start-run", "/v1/runtime/push-messages", "/", "/v1"):
            assert local.answer(path) == 403, path
        assert local.answer("/v1/fleet/pull-messages") != 403
        operator = local.server / "operator" / "config.toml"
        there = operator.read_text().replace(f":{local.port}", f":{local.ports.public}")
        operator.write_text(there.replace("127.0.0.1", "localhost"))
        with pytest.raises(ft.FedtaperError, match="403"):
            local.submit()
    same_models(ft.run(ft.read_toml(file), engine="reference"), run, 1e-6)


def events(out):
    file = out / "events.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [json.loads(line) for line in lines]


def wait_for_round(local, wanted, seconds=900):
    """Until the run folder says that so many rounds are whole."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if store.is_complete(local.run_folder):
            return
        with warnings.catch_warnings():  # it may be read while the server replaces it
            warnings.simplefilter("ignore", ft.FedtaperWarning)
            found = store.load_checkpoint(local.run_folder)
        if found is not None and int(found["state_round"]) >= wanted:
            return
        time.sleep(0.2)
    raise AssertionError(f"round {wanted} was not reached: {last_line(local.run_folder)}")


def finished(local, seconds=900):
    """The run, once it is stored."""
    end = time.monotonic() + seconds
    while not store.is_complete(local.run_folder) and time.monotonic() < end:
        time.sleep(0.2)
    return local.load()


def kill_server_app(local):
    """Kill -9 the process that runs the ServerApp."""
    pids = [
        pid
        for pid in processes.descendants(local.superlink.pid)
        if "flwr-serverapp" in processes.command_line(pid)
    ]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert pids or store.is_complete(local.run_folder)


@pytest.mark.federation
def test_a_killed_rehearsal_leaves_nothing_and_is_resumed(tmp_path):
    file = written(tmp_path, REGRESSION, rounds=4)
    command = [sys.executable, "-m", "fedtaper", "deploy", str(file), "--local", "3", "--out"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    out = tmp_path / "local"
    first = subprocess.Popen([*command, str(out)], env=env)
    mark = f"FLWR_HOME={out / 'flower'}"
    try:
        end = time.monotonic() + 300
        while "round 1/4" not in last_line(out / "server" / "run") and time.monotonic() < end:
            time.sleep(0.2)
        assert len(keeper.marked(mark)) >= 4
        first.kill()
        first.wait(timeout=10)
        end = time.monotonic() + 30
        while keeper.marked(mark) and time.monotonic() < end:
            time.sleep(0.2)
        assert not keeper.marked(mark)
    finally:
        first.kill()
        keeper.end_marked(mark)
    again = [*command, str(out), "--resume", "--seconds", "900"]
    done = subprocess.run(again, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "flower engine" in done.stdout
    run = ft.load(out / "server" / "run")
    assert np.array_equal(run.w, ft.run(ft.read_toml(file), engine="reference").w)


NO_DATA = """
def data(site):
    if site == "west":
        raise FileNotFoundError("no /data/west.csv")
"""
TRUST = """
one: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl key"
"""


@pytest.mark.federation
def test_a_site_without_its_data_is_named_at_once_and_one_that_trusts_nobody_refuses(tmp_path):
    from fedtaper.deploy.scaffold import new_app

    app = new_app("first-try", tmp_path)
    file = app / "first_try" / "federation.toml"
    task = app / "first_try" / "task.py"
    task.write_text(
        task.read_text().replace("def data(site: str):", NO_DATA + "    x, y = digits()")
    )
    with LocalFederation(file, tmp_path / "local") as local:
        began = time.monotonic()
        with pytest.raises(ft.FedtaperError, match=r"west: FileNotFoundError: no /data/west.csv"):
            local.run(seconds=200)
        assert time.monotonic() - began < 150
        assert [e["kind"] for e in events(local.run_folder)].count("failed") == 1
        processes.stop(local.supernodes["west"])
        (local.folder / "sites" / "west" / "trusted-entities.yaml").write_text(TRUST)
        sent = local.folder / "app" / "first_try" / "federation.toml"
        sent.write_text(sent.read_text() + "wait = 90.0\n")
        local.start_site("west")
        with pytest.raises(ft.FedtaperError, match="missing: west"):
            local.run(seconds=900)
    unclear = [e["site"] for e in events(local.run_folder) if e["kind"] == "unclear"]
    assert "west" in unclear, "its node refuses what nobody signed"
