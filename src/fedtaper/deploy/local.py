"""``fedtaper deploy --local``: the whole federation on loopback, with the written scripts.

Real SuperLink and SuperNode processes, with TLS and with every site's own key: a rehearsal of
the deployment on many machines.
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
from fedtaper.deploy.app import app_of
from fedtaper.deploy.federation_file import read_federation
from fedtaper.deploy.files import write_deployment
from fedtaper.deploy.finished import finished
from fedtaper.deploy.places import Ports, checked_port
from fedtaper.deploy.progress import last_line, why_stopped
from fedtaper.deploy.source import FileSource
from fedtaper.results import Run
from fedtaper.storage import store

START_SECONDS = 90.0
COMMAND_SECONDS = 120.0
STATUS_EVERY = 5.0  # seconds between two questions to Flower, each a process
LOOK = 0.2
LOG_LINES = 20


class LocalFederation:
    """A federation's processes on this machine; leaving the context stops them all.

    ``sites`` is how many sites the file is expected to have, ``port`` the SuperLink's (by default
    a free one). ``resume`` continues the rehearsal in ``out``: its certificates, keys, nodes and
    run. A start that is refused writes nothing.

    >>> with LocalFederation("federation.toml", "rehearsal") as local:  # doctest: +SKIP
    ...     run = local.run()
    """

    def __init__(
        self,
        file: str | Path,
        out: str | Path,
        say: Callable[[str], None] = lambda text: None,
        *,
        sites: int | None = None,
        port: int | None = None,
        resume: bool = False,
    ) -> None:
        self.folder, self.say = Path(out).resolve(), say
        for program in ("openssl", "ssh-keygen", "bash"):
            if shutil.which(program) is None:
                raise FedtaperError(f"the program {program} is not installed")
        if not (Path(sys.executable).parent / "flower-superlink").is_file():
            raise FedtaperError('Flower is not installed: pip install "fedtaper[flower]"')
        count = len(read_federation(file).federation.sites)
        if sites is not None and count != sites:
            raise FedtaperError(f"{file} has {count} sites, not {sites}: nothing was written")
        if resume and store.is_complete(self.run_folder):
            path = Path(file).resolve()
            finished(FileSource(str(path), str(app_of(path) or path.parent)), self.run_folder)
        self.ports = _ports(count, port)
        self.port = self.ports.superlink
        made = write_deployment(
            file, self.folder, "localhost", self.ports, direct=True, resume=resume
        )
        self.federation = made.federation
        self.nodes: dict[str, str] = {}
        self.before: Any = None
        self.superlink: subprocess.Popen[bytes] | None = None
        self.supernodes: dict[str, subprocess.Popen[bytes]] = {}
        self.keeper: processes.Keeper | None = None

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
            self.keeper = processes.Keeper(f"FLWR_HOME={self.folder / 'flower'}")
            self.say("certificates and keys")
            if not (self.server / "server.pem").is_file():
                self._do("server", "certificates.sh")
            for site in self.federation.sites:
                self.make_key(site)
            self.say("SuperLink")
            self.start_superlink()
            self.nodes = self._registered()
            for site in self.federation.sites:
                self.say(f"{site}: key registered, SuperNode started")
                if site not in self.nodes:
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
        if self.keeper is not None:
            self.keeper.close()

    def make_key(self, site: str) -> None:
        """The site's key pair, if it has none, and the operator's certificate beside it."""
        place = self.folder / "sites" / site
        if not (place / site).is_file():
            self._do(f"sites/{site}", "key.sh")
        shutil.copy(self.server / "ca.crt", place)

    def register(self, site: str) -> str:
        """Register a site; returns its node id."""
        key = self.folder / "sites" / site / f"{site}.pub"
        self._do("server", "register.sh", site, str(key))
        return self._registered()[site]

    def _registered(self) -> dict[str, str]:
        """Site to node id, as register.sh wrote them."""
        file = self.server / "nodes"
        lines = file.read_text(encoding="utf-8").split() if file.is_file() else []
        return {site: node for site, _, node in (line.partition("=") for line in lines)}

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again on its database."""
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
        """Submit the run (again: it continues where it stopped); returns its number."""
        bound = ",".join(f"{site}={node}" for site, node in self.nodes.items())
        config = f'out="{self.run_folder}" nodes="{bound}"'
        answer = _json(
            self._flwr("run", "../app", "federation", "--run-config", config, "--format", "json")
        )
        if not answer.get("success", True) or "run-id" not in answer:
            raise FedtaperError(f"Flower did not accept the run: {answer}")
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        """A run's status in Flower, such as "running" or "finished:completed"."""
        answer = _json(self._flwr("list", "federation", "--run-id", run_id, "--format", "json"))
        rows = answer.get("runs") or [{}]
        return str(rows[0].get("status", "unknown"))

    def run(self, seconds: float = 600.0) -> Run:
        """Submit the run, wait for it while reporting its progress, and load it."""
        if store.is_complete(self.run_folder):
            return self.load()
        run_id = self.submit()
        end = time.monotonic() + seconds
        asked = time.monotonic()
        while time.monotonic() < end:
            if store.is_complete(self.run_folder):
                return self.load()
            self.say(last_line(self.run_folder) or "the server starts")
            if time.monotonic() - asked > STATUS_EVERY:
                state, asked = self.status(run_id), time.monotonic()
                if state.startswith("finished") and not store.is_complete(self.run_folder):
                    why = self.trouble(run_id)
                    if why == "Stopped()":  # by a signal, or from the live page
                        raise FedtaperError("the run was stopped; continue it with --resume")
                    raise FedtaperError(f"the run failed: {why}")
            time.sleep(LOOK)
        where = last_line(self.run_folder) or "it did not start"
        raise FedtaperError(
            f"the run is not finished after {seconds:g} s ({where}): give it more time with "
            "--seconds, and continue it with --resume"
        )

    def load(self) -> Run:
        """The finished run."""
        return store.load(self.run_folder)

    def trouble(self, run_id: str) -> str:
        """Why the run ended: its own message, or the end of its log."""
        found = why_stopped(self.run_folder)
        if found:
            return found
        log = self._flwr("log", run_id, "federation", "--show")
        return "\n".join(log.splitlines()[-LOG_LINES:])

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
        """The environment: this interpreter's programs first, and one thread per process."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        home = {"FLWR_HOME": str(self.folder / "flower")}
        return os.environ | quiet | home | {"PATH": path, "OMP_NUM_THREADS": "1"}


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _ports(count: int, wanted: int | None) -> Ports:
    """Free ports; the SuperNodes use a range of them."""
    if wanted is not None and not processes.is_free(checked_port("--port", wanted)):
        raise FedtaperError(f"port {wanted} is taken on this machine: choose another --port")
    for _ in range(50):
        free, public, first = processes.free_ports(3)
        link = free if wanted is None else wanted
        nodes = range(first, first + count)
        if all(map(processes.is_free, nodes)) and not {link, public} & set(nodes):
            return Ports(link, public, first)
    raise FedtaperError("no free ports on 127.0.0.1")


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        raise FedtaperError(f"Flower's answer cannot be read: {text[:300]}") from None
    return dict(found)
