"""The scripts and settings of a deployment, as text. Words between @ signs are filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping

HEAD = """\
#!/usr/bin/env bash
# @what@
set -euo pipefail
umask 077
cd "$(dirname "$0")"
fail() { echo "$*" >&2; exit 1; }
needs() { command -v "$1" > /dev/null || fail "there is no program $1 here: $2"; }
"""
QUIET = """\
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# what the app needs is installed already: no package is fetched at run time
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
"""
FREE_PORT = """\
if (exec 3<>/dev/tcp/127.0.0.1/@own_port@) 2>/dev/null; then
  fail "port @own_port@ is taken on this machine: stop what listens there, or choose another"
fi
"""
CERTIFICATES = """\
# usage: certificates.sh            the authority and the server's certificate, once
#        certificates.sh renew      a new server certificate by the same authority (397 days)
#        certificates.sh renew-ca   the same authority for another 825 days: a new ca.crt
authority() {
  openssl req -new -x509 -sha384 -days 825 -key ca.key -out ca.new \\
    -subj "/CN=federation CA" -addext "basicConstraints=critical,CA:TRUE" \\
    -addext "keyUsage=critical,keyCertSign,cRLSign"
  mv ca.new ca.crt
  chmod 644 ca.crt
}
server() {
  [ -f server.key ] || openssl ecparam -name secp384r1 -genkey -noout -out server.key
  openssl req -new -sha384 -key server.key -out server.csr -subj '/CN=@host@'
  printf 'subjectAltName=%s\\nextendedKeyUsage=serverAuth\\n' '@names@' > server.ext
  openssl x509 -req -sha384 -days 397 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial \\
    -extfile server.ext -out server.new
  mv server.new server.pem
  chmod 644 server.pem
}
case "${1:-}" in
  "")
    for file in ca.key ca.crt server.key server.pem; do
      [ ! -e "$file" ] || fail "$file exists already, and a new authority would lock every site" \\
        "out: use certificates.sh renew"
    done
    openssl ecparam -name secp384r1 -genkey -noout -out ca.key
    authority
    server
    echo "give ca.crt to every site; keep ca.key and server.key here" ;;
  renew | renew-ca)
    [ -f ca.key ] && [ -f ca.crt ] || fail "ca.key or ca.crt is missing: certificates.sh first"
    if [ "$1" = renew-ca ]; then authority; echo "give the new ca.crt to every site"; fi
    server
    echo "restart superlink.sh and nginx: they read the certificate when they start" ;;
  *) fail "usage: certificates.sh [renew | renew-ca]" ;;
esac
chmod 600 ca.key server.key
"""
SUPERLINK = """\
for file in ca.crt server.pem server.key; do
  [ -r "$file" ] || fail "$file is missing: run certificates.sh first"
done
openssl x509 -checkend 0 -noout -in server.pem > /dev/null ||
  fail "server.pem has expired: run certificates.sh renew"
needs flower-superlink 'pip install "fedtaper[flower]", or activate its environment'
exec flower-superlink --host 127.0.0.1 --port @own_port@ \\
  --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key \\
  --enable-supernode-auth --database federation.db
"""
SITES = 'sites="@sites@"\n'
REGISTER = """\
# usage: register.sh SITE PUBLIC_KEY; writes the node id from the answer to the file nodes
[ $# -eq 2 ] || fail "usage: register.sh SITE PUBLIC_KEY"
case " $sites " in *" $1 "*) ;; *) fail "there is no site $1 in this federation: $sites" ;; esac
[ -r "$2" ] || fail "there is no public key $2"
export FLWR_HOME="$PWD/operator"
answer=$(flwr supernode register "$2" federation --name "$1" --format json) || fail "$answer"
node=$(printf '%s' "$answer" | grep -oE '"node-id": *"?[0-9]+' | grep -oE '[0-9]+' | head -n 1) ||
  true
[ -n "$node" ] || fail "$1 could not be registered: $answer"
touch nodes
awk -F= -v site="$1" '$1 "" != site ""' nodes > nodes.new
printf '%s=%s\\n' "$1" "$node" >> nodes.new
mv nodes.new nodes
printf '%s is node %s\\n' "$1" "$node"
"""
NODES = """\
# which site is which node, and whether it is connected
[ -s nodes ] || fail "no site is registered yet: register.sh SITE PUBLIC_KEY"
export FLWR_HOME="$PWD/operator"
flwr supernode list federation --format json | python3 -c '
import json, sys
text = sys.stdin.read()
rows = json.loads(text[text.index("{"):]).get("nodes", [])
found = {str(row.get("node-id")): row.get("status", "") for row in rows}
for line in open("nodes"):
    site, _, node = line.strip().partition("=")
    status = found.get(node, "not registered")
    print(f"{site:24} {node:22} {status}")
'
"""
RUN = """\
# run this again after any stop: it continues from the last complete round in the run folder
# usage: run.sh; every site must be in the file nodes, which register.sh writes
[ $# -eq 0 ] || fail "usage: run.sh (the node ids come from the file nodes)"
case "$PWD" in *[\\"\\\\]*) fail "$PWD has a quote or a backslash: move the folder" ;; esac
touch nodes
missing=""
bound=""
for site in $sites; do
  line=$(awk -F= -v site="$site" '$1 "" == site "" && $2 ~ /^[0-9]+$/' nodes | tail -n 1)
  if [ -n "$line" ]; then bound="$bound${bound:+,}$line"; else missing="$missing $site"; fi
done
[ -z "$missing" ] || fail "no node id for:$missing; get it with register.sh SITE PUBLIC_KEY"
export FLWR_HOME="$PWD/operator"
exec flwr run ../app federation --stream \\
  --run-config "out=\\"$PWD/run\\" nodes=\\"$bound\\""
"""
FIREWALL = """\
# usage: sudo ./firewall.sh [PROXY_USER]    only you and nginx's account reach the SuperLink
# Any other account on this machine could give orders to every site. Uses nftables, and does not
# survive a restart of the machine: add it to your own rules.
operator=${SUDO_USER:?run it with sudo, from the account that runs superlink.sh}
proxy=${1:-www-data}
needs nft "install nftables, or use a machine without other accounts"
id "$operator" > /dev/null && id "$proxy" > /dev/null || fail "no such account"
nft -f - <<RULES
table inet fedtaper_@own_port@
delete table inet fedtaper_@own_port@
table inet fedtaper_@own_port@ {
  chain output {
    type filter hook output priority 0; policy accept;
    oifname "lo" tcp dport @own_port@ meta skuid { "$operator", "$proxy" } accept
    oifname "lo" tcp dport @own_port@ reject with tcp reset
  }
}
RULES
echo "127.0.0.1:@own_port@ answers only to $operator and $proxy"
"""
KEY = """\
# the private key stays here; send @site@.pub to the operator
[ ! -e '@site@' ] || fail "the key @site@ exists already; the server knows its public half"
ssh-keygen -q -t ecdsa -b 384 -N "" -C '@site@' -f '@site@'
chmod 600 '@site@'
"""
SUPERNODE = """\
# needs here: ca.crt (from the operator) and the private key @site@ (from key.sh)
# The server's app runs here, with this account's rights: use a separate account.
# To set your own step size: add  c=0.1 delta=0.76  to the node config.
[ -r ca.crt ] || fail "ca.crt is missing: ask the operator for it"
[ -r '@site@' ] || fail "the private key @site@ is missing: run key.sh first"
needs flower-supernode 'pip install "fedtaper[flower]", or activate its environment'
# What the local rule remembers from round to round is kept in the folder memory, and stays here.
case "$PWD" in *[\\"\\\\]*) fail "$PWD has a quote or a backslash: move the folder" ;; esac
trusted=()
if [ -f trusted-entities.yaml ]; then  # run only apps that one of these keys has signed
  trusted=(--trusted-entities trusted-entities.yaml)
fi
set -m  # each attempt is a process group of its own, so that nothing of it is left
node=0
trap 'trap - TERM INT HUP; kill -TERM -- "-$node" 2>/dev/null; wait; exit 143' TERM INT HUP
attempt=0
while true; do
  began=$SECONDS
  flower-supernode --superlink '@address@' --root-certificates ca.crt \\
    --auth-supernode-private-key '@site@' --host 127.0.0.1 --port @own_port@ \\
    --node-config "site=\\"@site@\\" folder=\\"$PWD/memory\\"" ${trusted[@]+"${trusted[@]}"} &
  node=$!
  code=0
  wait "$node" || code=$?
  kill -KILL -- "-$node" 2>/dev/null || true
  [ "$code" -ne 0 ] || exit 0
  [ $((SECONDS - began)) -lt 120 ] || attempt=0
  attempt=$((attempt + 1))
  [ "$attempt" -le 8 ] || fail "the SuperNode ended $attempt times: is its key registered?"
  # the server accepts a lost node again once it has noticed the loss, which takes a minute
  echo "the SuperNode ended ($code): attempt $attempt of 8, again in 15 s" >&2
  sleep 15 &
  wait $!
done
"""
OPERATOR = """\
[superlink.federation]
address = "127.0.0.1:@own_port@"
root-certificates = "@ca@"
"""
PROXY = """\
# nginx in front of the SuperLink: sites reach the fleet paths and nothing else. Whoever
# reaches the other paths can send code to every site, so the SuperLink itself listens only on
# 127.0.0.1 and only the operator, on the server's machine, talks to it.
server {
    listen @public_port@ ssl;
    server_name @host@;
    ssl_certificate     "@folder@/server.pem";
    ssl_certificate_key "@folder@/server.key";
    ssl_protocols       TLSv1.2 TLSv1.3;
    client_max_body_size 0;          # models are large
    proxy_request_buffering off;
    location /v1/fleet/ {
        proxy_pass https://127.0.0.1:@own_port@;
        proxy_http_version 1.1;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_trusted_certificate "@folder@/ca.crt";
        proxy_read_timeout 300s;
    }
    location / { return 403; }
}
"""
README = """\
# A federation of @count@ sites: @names_of_sites@

Every machine needs Python >= 3.11 and `pip install "fedtaper[flower]"` (and what your task
needs), with the same versions everywhere.

**Sites run the server's app.** Whoever can give orders to the SuperLink decides what code runs
at every site, with the rights of the account that runs `supernode.sh`. So sites must trust the
operator; give the SuperNode an account (or a container) that can read only the data of this
federation.

On the server's machine, in `server/`:

1. `./certificates.sh` makes the certificates. Give `ca.crt` to every site. Later
   `./certificates.sh renew` makes a new server certificate; sites keep their `ca.crt`.
2. Start `./superlink.sh` and leave it running. It listens only on 127.0.0.1:@own_port@. Every
   account of this machine can reach that port, and Flower does not authenticate them: use a
   machine without other accounts, or `sudo ./firewall.sh` (nftables).
3. Put `proxy.conf` into nginx: sites reach @host@:@public_port@, the fleet paths and no others.
4. For each site: `./register.sh SITE SITE.pub`. The node ids go into the file `nodes`;
   `./nodes.sh` shows who is connected.
5. Start `./run.sh`. If anything stops, the same command continues from the last complete round.
   The run folder is `server/run`: `fedtaper report server/run`.

At each site, with its own folder of `sites/`:

1. `./key.sh` makes the key pair. Send the `.pub` file to the operator; nothing else leaves.
2. Put the operator's `ca.crt` beside it; start `./supernode.sh` and leave it running.
3. With a file `trusted-entities.yaml` here the node runs only apps that one of its keys has
   signed. Flower signs apps that are published on its hub; an app that the operator sends from
   a folder, as `run.sh` does, is then refused.
4. If the local rule keeps a memory (momentum, SCAFFOLD, ...), it is in the folder `memory`
   here and stays here. Keep that folder until the run is finished: a site without it is left out.

A node without a registered key is refused; a registered node that claims another site's name
is refused by the node ids in `nodes`.

The folder `app/` is sent to the sites: @travels@.
"""


def filled(text: str, words: Mapping[str, object]) -> str:
    """The text with its @words@ filled in; an unknown one is an error.

    >>> filled("port @port@", {"port": 8000})
    'port 8000'
    """
    return re.sub(r"@([a-z_]+)@", lambda found: str(words[found[1]]), text)
