"""``fedtaper deploy --local``: the whole federation on loopback, by the scripts as written.

Real SuperLink and SuperNode processes, with TLS and with every site's own key: a rehearsal of
what will happen on many machines.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.deploy import processes
from fedtaper.deploy.files import Ports, write_deployment
from fedtaper.results import Run
from fedtaper.storage import store

START_SECONDS = 90.0
COMMAND_SECONDS = 120.0


class LocalFederation:
    """A federation's processes on this machine; leaving it stops them all.

    >>> with LocalFederation("federation.toml", "rehearsal") as local:  # doctest: +SKIP
    ...     run = local.run()
    """

    def __init__(
        self, file: str | Path, out: str | Path, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.folder, self.say = Path(out).resolve(), say
        for program in ("openssl", "ssh-keygen", "bash"):
            if shutil.which(program) is None:
                raise FedtaperError(f"the program {program} is not installed")
        if not (Path(sys.executable).parent / "flower-superlink").is_file():
            raise FedtaperError('Flower is not installed: pip install "fedtaper[flower]"')
        self.ports = _ports(file)
        self.port = self.ports.superlink
        self.federation = write_deployment(file, self.folder, "localhost", self.ports, direct=True)
        self.nodes: dict[str, str] = {}
        self.before: Any = None
        self.superlink: subprocess.Popen[bytes] | None = None
        self.supernodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.folder / "server"

    @property
    def run_folder(self) -> Path:
        """Where the run is stored."""
        return self.server / "run"

    def __enter__(self) -> LocalFederation:
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, _leave)  # so that a kill cleans up too
        try:
            self.say("certificates and keys")
            self._do("server", "certificates.sh")
            for site in self.federation.sites:
                self.make_key(site)
            self.say("SuperLink")
            self.start_superlink()
            for site in self.federation.sites:
                self.say(f"{site}: key registered, SuperNode started")
                self.nodes[site] = self.register(site)
                self.start_site(site)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *trouble: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
            self.before = None
        for process in (*self.supernodes.values(), self.superlink):
            if process is not None:
                processes.stop(process)

    def make_key(self, site: str) -> None:
        """The site's key pair, and the operator's certificate beside it."""
        self._do(f"sites/{site}", "key.sh")
        shutil.copy(self.server / "ca.crt", self.folder / "sites" / site)

    def register(self, site: str) -> str:
        """Let a site in; its node id."""
        key = self.folder / "sites" / site / f"{site}.pub"
        answer = _json(self._do("server", "register.sh", site, str(key)))
        node = next((v for k, v in answer.items() if "node" in k and "id" in k), None)
        if node is None:
            raise FedtaperError(f"{site} could not be registered: {answer}")
        return str(node)

    def start_superlink(self) -> None:
        """Start it, or start it again on its database."""
        log = self.folder / "superlink.log"
        self.superlink = processes.start(["./superlink.sh"], log, self._env(), self.server)
        processes.wait_for_port(self.port, self.superlink, log, START_SECONDS)

    def start_site(self, site: str) -> None:
        """Start a site's SuperNode."""
        place = self.folder / "sites" / site
        self.supernodes[site] = processes.start(
            ["./supernode.sh"], place / "supernode.log", self._env(), place
        )

    def submit(self) -> str:
        """Hand the run in (again: it goes on where it stopped); its number."""
        bound = ",".join(f"{site}={node}" for site, node in self.nodes.items())
        config = f'out="{self.run_folder}" nodes="{bound}"'
        answer = _json(
            self._flwr("run", "../app", "federation", "--run-config", config, "--format", "json")
        )
        if not answer.get("success", True) or "run-id" not in answer:
            raise FedtaperError(f"the run was not taken: {answer}")
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        """What Flower says of a run, such as "running" or "finished:completed"."""
        answer = _json(self._flwr("list", "federation", "--run-id", run_id, "--format", "json"))
        rows = answer.get("runs") or [{}]
        return str(rows[0].get("status", "unknown"))

    def run(self, seconds: float = 600.0) -> Run:
        """Hand the run in, wait for it, load it."""
        run_id = self.submit()
        self.say(f"run {run_id}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if store.is_complete(self.run_folder):
                return self.load()
            state = self.status(run_id)
            if state.startswith("finished") and not store.is_complete(self.run_folder):
                raise FedtaperError(f"the run failed ({state}); {self.trouble(run_id)}")
        raise FedtaperError(f"the run is not done after {seconds:g} s; {self.trouble(run_id)}")

    def load(self) -> Run:
        """The finished run."""
        return store.load(self.run_folder)

    def trouble(self, run_id: str) -> str:
        """The end of the run's log."""
        return processes.tail(self.folder / "superlink.log", 30)

    def _do(self, place: str, script: str, *words: str) -> str:
        return self._call(["./" + script, *words], self.folder / place, self._env())

    def _flwr(self, *words: str) -> str:
        env = self._env() | {"FLWR_HOME": str(self.server / "operator")}
        return self._call(["flwr", *words], self.server, env)

    def _call(self, command: list[str], cwd: Path, env: dict[str, str]) -> str:
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=env,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FedtaperError(f"{' '.join(command)[:80]} took too long") from None
        if done.returncode:
            raise FedtaperError(f"{' '.join(command)[:80]} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _env(self) -> dict[str, str]:
        """This interpreter's programs first; one thread each: the sites share the machine."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        home = {"FLWR_HOME": str(self.folder / "flower")}
        return os.environ | quiet | home | {"PATH": path, "OMP_NUM_THREADS": "1"}


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _ports(file: str | Path) -> Ports:
    """Free ports; the SuperNodes take a stretch of them."""
    from fedtaper.deploy.federation_file import read_federation

    count = len(read_federation(file).federation.sites)
    for _ in range(50):
        link, public, first = processes.free_ports(3)
        nodes = range(first, first + count)
        if all(map(processes.is_free, nodes)) and link not in nodes and public not in nodes:
            return Ports(link, public, first)
    raise FedtaperError("no free ports on 127.0.0.1")


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        raise FedtaperError(f"Flower's answer is not understood: {text[:300]}") from None
    return dict(found)
