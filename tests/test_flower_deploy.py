"""What `fedtaper deploy` writes: quoted, checked, and nothing that was not asked for."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_file import TWO_SITES
from typer.testing import CliRunner

import fedtaper as ft
from fedtaper.cli.main import app as command
from fedtaper.deploy import keeper, processes
from fedtaper.deploy.files import write_deployment
from fedtaper.deploy.local import LocalFederation
from fedtaper.deploy.places import Ports
from fedtaper.deploy.progress import Progress, last_line, why_stopped
from fedtaper.deploy.scaffold import new_app

FILE = f"""{TWO_SITES}[federation]
sites = ["a.b", "axb"]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "case.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def deployment(file, tmp_path):
    write_deployment(file, tmp_path / "out", "federation.example.org", Ports())
    return tmp_path / "out"


def script(path, *words, programs=None, **env):
    """Run a script; ``programs`` is a folder of stand-ins that come first."""
    found = f"{programs}{os.pathsep}{os.environ['PATH']}" if programs else os.environ["PATH"]
    return subprocess.run(
        [str(path), *words], env=os.environ | {"PATH": found} | env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def stand_in(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)
    return folder


# ------------------------------------------------------------------ hosts, ports, paths


@pytest.mark.parametrize(
    "host",
    ["x$(touch P)y", "a b", "a\nlisten 80;", "a;b", "'", '"', "", "-x", "a..b", "x" * 300, "a/b",
     "fe80::1%$(touch P)", "fe80::1%x\nlisten 80;", "fe80::1%eth0", "999.1.1.1"],
)  # fmt: skip
def test_a_host_that_could_be_more_than_a_host_is_refused(file, tmp_path, host):
    with pytest.raises(ft.FedtaperError, match="is not a host"):
        write_deployment(file, tmp_path / "out", host, Ports())
    assert not (tmp_path / "out").exists(), "and nothing is written"


@pytest.mark.parametrize("ports", [(0, 9443), (8000, 70_000), (8000, 8000), (True, 9443)])
def test_ports_are_checked(ports):
    with pytest.raises(ft.FedtaperError, match=r"port"):
        Ports(*ports)


@pytest.mark.parametrize("name", ['a"b', "a$b", "a\nb", "a\\b"])
def test_a_folder_that_cannot_be_quoted_is_refused(file, tmp_path, name):
    with pytest.raises(ft.FedtaperError, match="choose another folder"):
        write_deployment(file, tmp_path / name, "localhost", Ports())


def test_a_folder_with_spaces_and_signs_works(file, tmp_path):
    out = tmp_path / "it's a [folder]; really & so"
    write_deployment(file, out, "::1", Ports())
    assert f'"{out}/server/server.pem"' in (out / "server" / "proxy.conf").read_text()
    assert script(out / "server" / "certificates.sh").returncode == 0
    assert "[::1]:9443" in (out / "sites" / "axb" / "supernode.sh").read_text()
    for path in out.rglob("*.sh"):
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert "@" not in path.read_text().replace("[@]", ""), "every word is filled in"


# ------------------------------------------------------------------ certificates and keys


def verified(server, ca="ca.crt"):
    done = subprocess.run(
        ["openssl", "verify", "-CAfile", ca, "server.pem"], cwd=server, capture_output=True,
        check=False,
    )  # fmt: skip
    return done.returncode == 0


def test_an_authority_is_never_replaced_and_certificates_renew(deployment):
    server = deployment / "server"
    assert script(server / "certificates.sh").returncode == 0
    assert verified(server)
    before = {name: (server / name).read_bytes() for name in ("ca.key", "ca.crt", "server.pem")}
    again = script(server / "certificates.sh")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert before == {name: (server / name).read_bytes() for name in before}
    assert script(server / "certificates.sh", "renew").returncode == 0
    assert (server / "server.pem").read_bytes() != before["server.pem"]
    assert (server / "ca.crt").read_bytes() == before["ca.crt"]
    assert verified(server)
    (server / "old.crt").write_bytes(before["ca.crt"])
    assert script(server / "certificates.sh", "renew-ca").returncode == 0
    assert (server / "ca.crt").read_bytes() != before["ca.crt"]
    assert verified(server)
    assert verified(server, "old.crt"), "sites that have the old one still know the server"
    assert script(server / "certificates.sh", "anything").returncode == 1


def test_a_key_is_never_replaced(deployment):
    place = deployment / "sites" / "a.b"
    assert script(place / "key.sh").returncode == 0
    before = (place / "a.b").read_bytes()
    again = script(place / "key.sh")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert (place / "a.b").read_bytes() == before


# ------------------------------------------------------------------ what is missing or taken


def one_line(done, *words):
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_missing_certificate_or_key_is_one_line(deployment):
    one_line(script(deployment / "server" / "superlink.sh"), "ca.crt is missing", "certificates.sh")
    place = deployment / "sites" / "axb"
    one_line(script(place / "supernode.sh"), "ca.crt is missing")
    (place / "ca.crt").touch()
    one_line(script(place / "supernode.sh"), "private key axb is missing", "key.sh")


def test_a_missing_program_is_one_line(deployment, tmp_path):
    few = tmp_path / "few"
    few.mkdir()
    for name in ("bash", "dirname"):
        (few / name).symlink_to(shutil.which(name))
    place = deployment / "sites" / "axb"
    for name in ("ca.crt", "axb"):
        (place / name).touch()
    told = "there is no program flower-supernode here"
    one_line(script(place / "supernode.sh", PATH=str(few)), told, "pip install")


def test_a_taken_port_is_one_line(file, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        write_deployment(file, tmp_path / "out", "localhost", Ports(port, 9443, port))
        one_line(script(tmp_path / "out" / "server" / "superlink.sh"), f"port {port} is taken")
        one_line(script(tmp_path / "out" / "sites" / "axb" / "supernode.sh"), "is taken")
        with pytest.raises(ft.FedtaperError, match=f"port {port} is taken"):
            LocalFederation(file, tmp_path / "local", port=port)
    assert not (tmp_path / "local").exists()


def test_an_expired_certificate_is_one_line(deployment, tmp_path):
    server = deployment / "server"
    for name in ("ca.crt", "server.pem", "server.key"):
        (server / name).write_text("x")
    fake = stand_in(tmp_path / "bin", "openssl", "exit 1")
    one_line(script(server / "superlink.sh", programs=fake), "has expired", "renew")


# ------------------------------------------------------------------ who is who


def test_a_run_needs_the_node_id_of_every_site_and_registering_notes_it(deployment, tmp_path):
    server = deployment / "server"
    fake = stand_in(
        tmp_path / "bin", "flwr",
        'if [ "$1" = supernode ]; then echo registered; echo "{\\"node-id\\": \\"$NODE\\"}"\n'
        'else printf "%s\\n" "$@" > "$LOG"; fi',
    )  # fmt: skip
    log = tmp_path / "log"
    one_line(script(server / "run.sh", programs=fake), "no node id for: a.b axb")
    key = tmp_path / "axb.pub"
    key.touch()
    register = server / "register.sh"
    assert script(register, "axb", str(key), programs=fake, NODE="7").returncode == 0
    one_line(script(server / "run.sh", programs=fake), "no node id for: a.b;")
    assert script(register, "a.b", str(key), programs=fake, NODE="5").returncode == 0
    assert script(register, "axb", str(key), programs=fake, NODE="9").returncode == 0
    assert sorted((server / "nodes").read_text().split()) == ["a.b=5", "axb=9"]
    assert script(server / "run.sh", programs=fake, LOG=str(log)).returncode == 0
    assert f'out="{server}/run" nodes="a.b=5,axb=9"' in log.read_text().splitlines()
    one_line(script(register, "stranger", str(key), programs=fake), "no site stranger")
    one_line(script(register, "axb", "nowhere.pub", programs=fake), "no public key")
    one_line(script(server / "run.sh", "axb=1", programs=fake), "usage")


def test_the_node_table_has_the_names_of_the_sites(deployment, tmp_path):
    server = deployment / "server"
    one_line(script(server / "nodes.sh"), "no site is registered")
    (server / "nodes").write_text("a.b=5\naxb=9\n")
    listed = '{"nodes": [{"node-id": "5", "status": "online"}]}'
    fake = stand_in(tmp_path / "bin", "flwr", f"echo '{listed}'")
    rows = [row.split() for row in script(server / "nodes.sh", programs=fake).stdout.splitlines()]
    assert rows == [["a.b", "5", "online"], ["axb", "9", "not", "registered"]]


def test_a_site_may_ask_for_signed_apps_alone(deployment, tmp_path):
    place = deployment / "sites" / "axb"
    fake = stand_in(tmp_path / "bin", "flower-supernode", 'printf "%s\\n" "$@"')
    for name in ("ca.crt", "axb"):
        (place / name).touch()
    assert "--trusted-entities" not in script(place / "supernode.sh", programs=fake).stdout
    (place / "trusted-entities.yaml").touch()
    words = script(place / "supernode.sh", programs=fake).stdout.splitlines()
    assert words[-2:] == ["--trusted-entities", "trusted-entities.yaml"]


def test_a_sites_memory_is_in_its_own_folder(deployment, tmp_path):
    place = deployment / "sites" / "axb"
    fake = stand_in(tmp_path / "bin", "flower-supernode", 'printf "%s\\n" "$@"')
    for name in ("ca.crt", "axb"):
        (place / name).touch()
    words = script(place / "supernode.sh", programs=fake).stdout.splitlines()
    settings = words[words.index("--node-config") + 1]
    assert settings == f'site="axb" folder="{place}/memory"'


def test_the_firewall_lets_the_operator_and_the_proxy_through(deployment, tmp_path):
    rules = tmp_path / "rules"
    fake = stand_in(tmp_path / "bin", "nft", f"cat > '{rules}'")
    firewall = deployment / "server" / "firewall.sh"
    owner = getpass.getuser()
    done = script(firewall, owner, programs=fake, SUDO_USER=owner)
    assert done.returncode == 0, done.stderr
    assert f"answers only to {owner} and {owner}" in done.stdout
    text = rules.read_text()
    allowed = f'oifname "lo" tcp dport 8000 meta skuid {{ "{owner}", "{owner}" }} accept'
    assert text.index(allowed) < text.index('oifname "lo" tcp dport 8000 reject')
    refused = script(firewall, "no-such-account", programs=fake, SUDO_USER=owner)
    assert refused.returncode == 1
    assert "no such account" in refused.stderr
    assert script(firewall, programs=fake, SUDO_USER="").returncode != 0


def test_a_rehearsal_takes_the_port_that_is_asked_for(file, tmp_path):
    (port,) = processes.free_ports(1)
    local = LocalFederation(file, tmp_path / "local", port=port)
    assert local.port == port
    assert f"--port {port}" in (local.server / "superlink.sh").read_text()
    assert f"127.0.0.1:{port}" in (local.folder / "sites" / "axb" / "supernode.sh").read_text()


# ------------------------------------------------------------------ what travels, what stays


def test_data_beside_the_code_does_not_travel(tmp_path):
    app = new_app("mine", tmp_path)
    (app / "data").mkdir()
    for name in ("data/patients.csv", "mine/patients.json", "mine/labels.json", ".env", "notes.md"):
        (app / name).write_text("secret")
    (app / "environment").mkdir()
    (app / "environment" / "pyvenv.cfg").touch()
    (app / "environment" / "module.py").touch()
    (app / "link.py").symlink_to("/etc/hostname")
    settings = (app / "pyproject.toml").read_text() + '[tool.fedtaper]\ninclude = ["labels.json"]\n'
    (app / "pyproject.toml").write_text(settings)
    made = write_deployment(
        app / "mine" / "federation.toml", tmp_path / "out", "localhost", Ports()
    )
    there = {
        str(path.relative_to(tmp_path / "out" / "app"))
        for path in (tmp_path / "out" / "app").rglob("*")
        if path.is_file()
    }
    assert there == set(made.app.travels) == {
        "README.md", "pyproject.toml", "mine/__init__.py", "mine/task.py", "mine/federation.toml",
        "mine/labels.json",
    }  # fmt: skip
    assert set(made.app.left_out) == {"data/patients.csv", "mine/patients.json", "notes.md"}
    assert "`mine/labels.json`" in (tmp_path / "out" / "README.md").read_text()


def test_a_deployment_can_be_written_again_and_keeps_what_is_secret(deployment, file, tmp_path):
    server = deployment / "server"
    assert script(server / "certificates.sh").returncode == 0
    (server / "nodes").write_text("axb=9\n")
    (deployment / "app" / "stale.py").touch()
    kept = {p: p.read_bytes() for p in (server / "ca.key", server / "server.pem", server / "nodes")}
    with pytest.raises(ft.FedtaperError, match="--resume"):
        write_deployment(file, deployment, "localhost", Ports())
    write_deployment(file, deployment, "other.example.org", Ports(), resume=True)
    assert kept == {path: path.read_bytes() for path in kept}
    assert "other.example.org" in (server / "proxy.conf").read_text()
    assert not (deployment / "app" / "stale.py").exists()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(ft.FedtaperError, match="holds no deployment"):
        write_deployment(file, tmp_path / "else", "localhost", Ports(), resume=True)


def test_a_refused_rehearsal_writes_nothing(file, tmp_path):
    with pytest.raises(ft.FedtaperError, match="has 2 sites, not 3: nothing was written"):
        LocalFederation(file, tmp_path / "local", sites=3)
    assert not (tmp_path / "local").exists()


def test_the_command_takes_paths_as_they_are(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["deploy", str(file), "--out", "x[red]y"])
    assert done.exit_code == 0, done.output
    assert "x[red]y/README.md" in done.output
    assert "Sent to every site: pyproject.toml" in done.output
    assert (tmp_path / "x[red]y" / "server" / "run.sh").is_file()


# ------------------------------------------------------------------ progress and processes


def test_progress_is_said_once_and_kept(tmp_path, capsys):
    progress = Progress(tmp_path, rounds=5)
    progress("waiting for west")
    progress("waiting for west")
    progress.round(3, {"answered": 3.0, "test_accuracy": 0.8214, "change": 0.1})
    lines = ["waiting for west", "round 3/5, 3 answered, test accuracy 0.821"]
    assert capsys.readouterr().out.splitlines() == lines
    assert last_line(tmp_path) == lines[-1]
    assert last_line(tmp_path / "nowhere") == ""


def test_the_reason_of_a_failed_run_is_its_own_error(tmp_path, capsys):
    progress = Progress(tmp_path)
    progress("round 1/5")
    assert why_stopped(tmp_path) == ""
    progress.stopped(ft.FedtaperError("west:\nno data"))
    assert why_stopped(tmp_path) == "west: no data"
    Progress(tmp_path).stopped(KeyError("x"))
    assert why_stopped(tmp_path) == "KeyError('x')"


PARENT = """
import os, signal, subprocess, sys, time
from fedtaper.deploy import processes
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
mark = sys.argv[1]
name, _, value = mark.partition("=")
kept = processes.Keeper(mark)
inner = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", inner], env=os.environ | {name: value},
                         start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_killed_parent_leaves_no_process(tmp_path, number):
    mark = f"FLWR_HOME={tmp_path}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, mark], stdout=subprocess.PIPE)
    try:
        assert parent.stdout.readline() == b"ready\n"
        end = time.monotonic() + 30
        while len(keeper.marked(mark)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        assert len(keeper.marked(mark)) == 2
        os.kill(parent.pid, number)
        end = time.monotonic() + 30
        while keeper.marked(mark) and time.monotonic() < end:
            time.sleep(0.1)
        assert not keeper.marked(mark)
    finally:
        processes.stop(parent)
        keeper.end_marked(mark)


def test_the_hospitals_example_travels_as_it_is(tmp_path):
    """Model, loss and data of the example, over sites in this process: the simulation's models."""
    from flower_loop import LoopGrid
    from test_flower_processes import hospitals

    from fedtaper.deploy.server import serve
    from fedtaper.deploy.source import FileSource

    file, e = hospitals(tmp_path, rounds=2)
    made = write_deployment(file, tmp_path / "out", "localhost", Ports(8000, 9443))
    assert "hospitals.py" in made.app.travels
    example = Path(__file__).parent.parent / "examples" / "hospitals.py"
    assert (tmp_path / "out" / "app" / "hospitals.py").read_bytes() == example.read_bytes()
    source = FileSource(str(file), str(tmp_path))
    run = serve(LoopGrid(source), source, None, progress=False)
    theirs = ft.run(e, engine="cpu")
    np.testing.assert_allclose(run.w, theirs.w, atol=1e-7)
    np.testing.assert_allclose(run.metrics["auc"], theirs.metrics["auc"], atol=1e-6)


def test_a_task_that_is_not_there_is_one_line(tmp_path):
    file = tmp_path / "hospitals.toml"
    example = Path(__file__).parent.parent / "examples" / "hospitals.toml"
    file.write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ft.FedtaperError, match=r"no hospitals.py beside it"):
        write_deployment(file, tmp_path / "out", "localhost", Ports(8000, 9443))
