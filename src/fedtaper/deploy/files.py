"""``fedtaper deploy``: the exact commands of a federation, as scripts that are safe by default.

TLS everywhere, every site known by its key, private keys readable by their owner alone, and
the port that takes orders from the operator kept apart from the one that sites can reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedtaper.deploy.app import write_app
from fedtaper.deploy.federation_file import read_federation
from fedtaper.engines.flower.federation import Federation
from fedtaper.storage import store

HEAD = '#!/usr/bin/env bash\n# {what}\nset -euo pipefail\numask 077\ncd "$(dirname "$0")"\n'
QUIET = """\
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# what the app needs is installed already: no package is fetched at run time
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
"""
CERTIFICATES = """\
# a certificate authority of the federation's own, and the server's certificate for {host}
openssl ecparam -name secp384r1 -genkey -noout -out ca.key
openssl req -new -x509 -sha384 -days 825 -key ca.key -out ca.crt \\
  -subj "/CN=federation CA" -addext "basicConstraints=critical,CA:TRUE" \\
  -addext "keyUsage=critical,keyCertSign,cRLSign"
openssl ecparam -name secp384r1 -genkey -noout -out server.key
openssl req -new -sha384 -key server.key -out server.csr -subj "/CN={host}"
printf 'subjectAltName=%s\\nextendedKeyUsage=serverAuth\\n' '{names}' > server.ext
openssl x509 -req -sha384 -days 397 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial \\
  -extfile server.ext -out server.pem
chmod 600 ca.key server.key
chmod 644 ca.crt server.pem
echo "give ca.crt to every site; keep ca.key and server.key here"
"""
SUPERLINK = """\
exec flower-superlink --host 127.0.0.1 --port {port} \\
  --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key \\
  --enable-supernode-auth --database federation.db
"""
REGISTER = """\
# usage: register.sh SITE PUBLIC_KEY; the answer holds the node id that goes into nodes=
export FLWR_HOME="$PWD/operator"
exec flwr supernode register "$2" federation --name "$1" --format json
"""
RUN = """\
# run again after any stop: it goes on from the last whole round in the run folder
# usage: run.sh 'SITE=NODE_ID,SITE=NODE_ID,...'
export FLWR_HOME="$PWD/operator"
exec flwr run ../app federation --stream \\
  --run-config "out=\\"$PWD/run\\" nodes=\\"${{1:-}}\\""
"""
KEY = """\
# the private key stays here; send {site}.pub to the operator
ssh-keygen -q -t ecdsa -b 384 -N "" -C "{site}" -f {site}
chmod 600 {site}
"""
SUPERNODE = """\
# needs here: ca.crt (from the operator) and the private key {site}
# to keep a step size of your own: add  c=0.1 delta=0.76  to the node config
exec flower-supernode --superlink {address} --root-certificates ca.crt \\
  --auth-supernode-private-key {site} --host 127.0.0.1 --port {own_port} \\
  --node-config 'site="{site}"'
"""
OPERATOR = '[superlink.federation]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{ca}"\n'
PROXY = """\
# nginx in front of the SuperLink: sites reach the fleet paths and nothing else. Whoever
# reaches the other paths can send code to every site, so the SuperLink itself listens on
# 127.0.0.1 alone and only the operator, on the server's machine, talks to it.
server {{
    listen {public_port} ssl;
    server_name {host};
    ssl_certificate     {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    ssl_protocols       TLSv1.2 TLSv1.3;
    client_max_body_size 0;          # models are large
    proxy_request_buffering off;
    location /v1/fleet/ {{
        proxy_pass https://127.0.0.1:{port};
        proxy_http_version 1.1;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_trusted_certificate {folder}/ca.crt;
        proxy_read_timeout 300s;
    }}
    location / {{ return 403; }}
}}
"""
README = """\
# A federation of {count} sites: {sites}

Every machine needs Python >= 3.11 and `pip install "fedtaper[flower]"` (with what your task
needs), the same versions everywhere.

On the server's machine, in `server/`:

1. `./certificates.sh` makes the certificates. Give `ca.crt` to every site.
2. `./superlink.sh` and leave it running. It listens on 127.0.0.1:{port} alone.
3. Put `proxy.conf` into nginx: sites reach {host}:{public_port}, the fleet paths and no others.
4. For each site: `./register.sh SITE SITE.pub`; note the node id in the answer.
5. `./run.sh 'SITE=NODE_ID,...'`. After a stop of anything, the same command again goes on from
   the last whole round. The run folder is `server/run`: `fedtaper report server/run`.

At each site, with its own folder of `sites/`:

1. `./key.sh` makes the key pair. Send the `.pub` file to the operator; nothing else leaves.
2. Put the operator's `ca.crt` beside it; `./supernode.sh` and leave it running.

A node without a registered key is refused; a registered node that claims another site's name
is refused by the node ids of step 5.
"""


@dataclass(frozen=True)
class Ports:
    """Where things listen."""

    superlink: int = 8000
    public: int = 9443
    supernode: int = 9094


def write_deployment(
    file: str | Path, out: str | Path, host: str, ports: Ports, direct: bool = False
) -> Federation:
    """Write app, scripts and a guide for a federation file into ``out``.

    ``direct`` lets sites reach the SuperLink's own port, for a rehearsal on one machine.
    """
    federation = read_federation(file).federation
    folder = store.prepare(out)
    write_app(Path(file), folder / "app")
    server = folder / "server"
    (server / "operator").mkdir(parents=True, mode=0o700)
    names = f"DNS:localhost,IP:127.0.0.1,{'IP' if _is_ip(host) else 'DNS'}:{host}"
    where = {"host": host, "port": ports.superlink, "public_port": ports.public, "names": names}
    where |= {"folder": str(server.resolve())}
    address = f"127.0.0.1:{ports.superlink}" if direct else f"{host}:{ports.public}"
    _script(server / "certificates.sh", "Once, on the server's machine.", CERTIFICATES, where)
    _script(server / "superlink.sh", "The federation's server.", QUIET + SUPERLINK, where)
    _script(server / "register.sh", "Let a site in, by its public key.", QUIET + REGISTER, where)
    _script(server / "run.sh", "Run the experiment.", QUIET + RUN, where)
    ca = (server / "ca.crt").resolve()
    store.write_text(
        server / "operator" / "config.toml", OPERATOR.format(port=ports.superlink, ca=ca)
    )
    store.write_text(server / "proxy.conf", PROXY.format(**where))
    for i, site in enumerate(federation.sites):
        place = folder / "sites" / site
        place.mkdir(parents=True, mode=0o700)
        own = {"site": site, "address": address, "own_port": ports.supernode + i * direct}
        _script(place / "key.sh", f"Once, at {site}.", KEY, own)
        _script(place / "supernode.sh", f"The node of {site}.", QUIET + SUPERNODE, own)
    sites = ", ".join(federation.sites)
    store.write_text(
        folder / "README.md", README.format(count=len(federation.sites), sites=sites, **where)
    )
    return federation


def _script(path: Path, what: str, body: str, words: dict[str, object]) -> None:
    store.write_text(path, HEAD.format(what=what) + body.format(**words))
    path.chmod(0o700)


def _is_ip(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
