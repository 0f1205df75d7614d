"""Who may give orders on the server's machine: what Flower offers, and the firewall in its place.

The firewall is tried with real rules, in a network namespace of its own: root and nftables.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_file import TWO_SITES

from fedtaper.deploy import processes
from fedtaper.deploy.files import write_deployment
from fedtaper.deploy.places import Ports

CAN_TRY = os.geteuid() == 0 and all(map(shutil.which, ("nft", "unshare", "setpriv", "ip")))
needs_nftables = pytest.mark.skipif(not CAN_TRY, reason="needs root, nftables and util-linux")
OPEN = "exec 3<>/dev/tcp/127.0.0.1/{port}"  # fails unless something answers
INSIDE = """
set -eu
ip link set lo up
{server} & server=$!
trap 'kill $server' EXIT
for attempt in $(seq 600); do (""" + OPEN + """) 2>/dev/null && break; sleep 0.1; done
reach() {{
  for account in root www-data nobody daemon; do
    if setpriv --reuid="$account" --clear-groups {asks} 2>/dev/null
    then echo "$1 $account in"; else echo "$1 $account out"; fi
  done
}}
reach before
./firewall.sh > /dev/null
reach after
./firewall.sh daemon > /dev/null
reach changed
"""  # fmt: skip
BEFORE = {f"before {who} in" for who in ("root", "www-data", "nobody", "daemon")}
AFTER = {"after root in", "after www-data in", "after nobody out", "after daemon out"}
CHANGED = {"changed root in", "changed www-data out", "changed nobody out", "changed daemon in"}


@pytest.fixture
def deployment(tmp_path):
    file, (port, public) = tmp_path / "case.toml", processes.free_ports(2)
    file.write_text(f'{TWO_SITES}[federation]\nsites = ["north", "south"]\n')
    write_deployment(file, tmp_path / "out", "localhost", Ports(port, public))
    return tmp_path / "out" / "server", port


def reached(folder, port, server, asks):
    """Who reached the port before the firewall, with it, and with another proxy account."""
    inside = INSIDE.format(port=port, server=server, asks=asks)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"SUDO_USER": "root", "PATH": programs}
    found = subprocess.run(["unshare", "--net", "bash", "-c", inside], cwd=folder, env=env,
                           capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert found.returncode == 0, found.stderr
    return {line for line in found.stdout.splitlines() if line.endswith((" in", " out"))}


@needs_nftables
def test_the_firewall_stops_every_account_but_the_operators_and_nginxs(deployment):
    folder, port = deployment
    server = f"{sys.executable} -m http.server {port} --bind 127.0.0.1 > /dev/null 2>&1"
    asks = f"bash -c '{OPEN.format(port=port)}'"
    assert reached(folder, port, server, asks) == BEFORE | AFTER | CHANGED


@needs_nftables
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_nobody_else_lists_the_runs_of_a_real_superlink(deployment):
    """Without the firewall Flower lists its runs for any account of the machine."""
    folder, port = deployment
    subprocess.run(["./certificates.sh"], cwd=folder, check=True, capture_output=True)
    asks = "curl --fail --silent --insecure --output /dev/null --data-binary '' "
    asks += (
        f"--header content-type:application/protobuf https://127.0.0.1:{port}/v1/control/list-runs"
    )
    found = reached(folder, port, "./superlink.sh > log 2>&1", asks)
    assert found == BEFORE | AFTER | CHANGED
    assert "POST /v1/control/list-runs" in (folder / "log").read_text()


def test_flower_itself_asks_no_account_who_it_is(monkeypatch):
    """Why the firewall is needed. Once Flower has accounts, the scripts can use them."""
    loader = pytest.importorskip("flwr.superlink.config_loader")
    valid, account = loader.load_control_authn_plugin().validate_tokens_in_metadata([])
    assert valid and account is not None, "orders without a token are taken"
    monkeypatch.setenv("FLWR_OIDC_ENABLED", "1")
    with pytest.raises(SystemExit, match="unavailable in this Flower distribution"):
        loader.load_control_authn_plugin()
