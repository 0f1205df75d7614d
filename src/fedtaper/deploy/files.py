"""``fedtaper deploy``: the exact commands of a federation, as scripts that are safe by default.

TLS everywhere, every site known by its key, private keys readable only by their owner, and
the port for the operator's commands separate from the one that sites can reach.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy import scripts
from fedtaper.deploy.app import SERVER_SCRIPT, Written, write_app
from fedtaper.deploy.federation_file import read_federation
from fedtaper.deploy.places import Ports, checked_host, is_address, quotable, with_port
from fedtaper.engines.flower.federation import Federation
from fedtaper.storage import store


@dataclass(frozen=True)
class Deployment:
    """What was written: for whom, and what is sent to them."""

    federation: Federation
    app: Written


def write_deployment(
    file: str | Path,
    out: str | Path,
    host: str,
    ports: Ports,
    direct: bool = False,
    resume: bool = False,
) -> Deployment:
    """Write app, scripts and a guide for a federation file into ``out``.

    ``direct`` lets sites reach the SuperLink's own port, for a rehearsal on one machine.
    ``resume`` writes app and scripts again into an existing deployment, and keeps
    certificates, keys, registered nodes and the run.
    """
    federation = read_federation(file).federation
    checked_host(host)
    server = Path(out).resolve() / "server"
    quotable(server)
    folder = _prepared(Path(out), resume)
    app = write_app(Path(file), folder / "app")
    (server / "operator").mkdir(parents=True, mode=0o700, exist_ok=True)
    names = f"DNS:localhost,IP:127.0.0.1,{'IP' if is_address(host) else 'DNS'}:{host}"
    words = {"host": host, "own_port": ports.superlink, "public_port": ports.public}
    words |= {"names": names, "folder": str(server), "ca": str(server / "ca.crt")}
    words |= {"sites": " ".join(federation.sites), "count": len(federation.sites)}
    words |= {"names_of_sites": ", ".join(federation.sites)}
    words |= {"travels": ", ".join(f"`{name}`" for name in app.travels)}
    _write_server(server, words)
    address = with_port("127.0.0.1", ports.superlink) if direct else with_port(host, ports.public)
    for i, site in enumerate(federation.sites):
        own = {"site": site, "address": address, "own_port": ports.supernode + i * direct}
        _write_site(folder / "sites" / site, own)
    store.write_text(folder / "README.md", scripts.filled(scripts.README, words))
    return Deployment(federation, app)


def _prepared(out: Path, resume: bool) -> Path:
    """The folder, new or of an existing deployment."""
    there = (out / SERVER_SCRIPT).is_file()
    if resume and out.is_dir() and any(out.iterdir()) and not there:
        raise FedtaperError(f"{out} holds no deployment: name its folder, or leave out --resume")
    folder = store.prepare(out, resume=resume and there)
    if there:
        shutil.rmtree(folder / "app", ignore_errors=True)
    return folder


def _write_server(server: Path, words: dict[str, object]) -> None:
    port = scripts.FREE_PORT
    for name, what, body in (
        ("certificates.sh", "Once, on the server's machine.", scripts.CERTIFICATES),
        ("superlink.sh", "The federation's server.", scripts.QUIET + port + scripts.SUPERLINK),
        ("register.sh", "Let a site in.", scripts.QUIET + scripts.SITES + scripts.REGISTER),
        ("nodes.sh", "The sites and their nodes.", scripts.QUIET + scripts.NODES),
        ("run.sh", "Run the experiment.", scripts.QUIET + scripts.SITES + scripts.RUN),
        ("firewall.sh", "Keep other accounts out.", scripts.FIREWALL),
    ):
        _script(server / name, what, body, words)
    store.write_text(server / "operator" / "config.toml", scripts.filled(scripts.OPERATOR, words))
    store.write_text(server / "proxy.conf", scripts.filled(scripts.PROXY, words))


def _write_site(place: Path, words: dict[str, object]) -> None:
    place.mkdir(parents=True, mode=0o700, exist_ok=True)
    body = scripts.QUIET + scripts.FREE_PORT + scripts.SUPERNODE
    _script(place / "key.sh", f"Once, at {words['site']}.", scripts.KEY, words)
    _script(place / "supernode.sh", f"The node of {words['site']}.", body, words)


def _script(path: Path, what: str, body: str, words: dict[str, object]) -> None:
    store.write_text(path, scripts.filled(scripts.HEAD + body, {"what": what, **words}))
    path.chmod(0o700)
