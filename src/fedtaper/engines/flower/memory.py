"""What a site remembers from round to round, for local rules that keep a memory.

It never leaves the site. Flower starts a process for each message, so the memory is kept in files
of the site's own folder (node config ``folder``), where it survives a restart of the SuperNode
and of the server; or, if a site names no folder, in Flower's context, which does not.

Each memory has a stamp: the run, the server's session and the round that left it. A message
names the one to start from: that of the site's last update that counted. So an update that came
too late or was rejected leaves no trace, a resumed server continues from the memories that fit
its model, and a site that has lost the one it needs reports that instead of mixing two.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from flwr.app import Context

from fedtaper.core.errors import FedtaperError
from fedtaper.core.protocols import LocalRule, Memory, State
from fedtaper.engines.flower import wire

KEPT = 5  # memories of a run: a resumed server may be some rounds behind
RUNS = 3  # runs whose memories stay in a folder
IN_CONTEXT = 3  # Flower sends its context back and forth with each message
PREFIX = "memory"


class Stamp(NamedTuple):
    """Which memory: of which run, made under which session of its server, after which round.

    Round 0 is the empty memory before a site's first update. Sessions and runs are random
    numbers, so that rounds that a killed server did not save are never mistaken for those that
    were made again.
    """

    run: int
    session: int
    round: int

    @property
    def name(self) -> str:
        """As the name of a file or a record."""
        return f"{PREFIX}-{self.run:x}-{self.session:x}-{self.round}"


class LostError(Exception):
    """The site does not have the memory that the server asked it to start from."""


class Vault(Protocol):
    """Where a site keeps its memories."""

    def load(self, stamp: Stamp) -> Memory:
        """The memory of that stamp, or a :class:`LostError`."""
        ...

    def save(self, stamp: Stamp, memory: Memory) -> None:
        """Keep a memory, and remove the oldest ones."""
        ...


class FileVault:
    """A folder with one file per memory, each complete or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, stamp: Stamp) -> Memory:
        """From its file."""
        path = self.folder / f"{stamp.name}.npz"
        try:
            with np.load(path, allow_pickle=False) as found:
                return tuple(found[str(i)] for i in range(len(found.files)))
        except FileNotFoundError:
            why = f"this site has no memory of round {stamp.round}"
        except Exception as trouble:  # zip, struct and numpy each have errors of their own
            why = f"this site's memory of round {stamp.round} is damaged ({trouble})"
        raise LostError(f"{why}: {self._held(stamp)}") from None

    def save(self, stamp: Stamp, memory: Memory) -> None:
        """Written completely, and to the disk, before the answer is sent."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = self.folder / f".{uuid.uuid4().hex[:12]}.part"
            with beside.open("xb") as file:
                parts: dict[str, Any] = {str(i): np.asarray(p) for i, p in enumerate(memory)}
                np.savez(file, **parts)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.folder / f"{stamp.name}.npz")
        except OSError as trouble:
            raise FedtaperError(
                f"the site's memory cannot be kept in {self.folder}: {trouble.strerror or trouble}"
            ) from None
        self._sweep(stamp)

    def _held(self, stamp: Stamp) -> str:
        own = self._files(f"{PREFIX}-{stamp.run:x}-*.npz")
        rounds = sorted({int(path.stem.rpartition("-")[2]) for path in own})
        return (
            f"{self.folder} has rounds {rounds}" if own else f"{self.folder} has none of this run"
        )

    def _files(self, pattern: str) -> list[Path]:
        """The newest first."""
        dated = []
        for path in self.folder.glob(pattern):
            with suppress(OSError):  # another process of this site may remove it
                dated.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(dated, reverse=True)]

    def _sweep(self, stamp: Stamp) -> None:
        """Memories that no server asks for any more."""
        runs: dict[str, list[Path]] = {}
        for path in self._files(f"{PREFIX}-*.npz"):
            runs.setdefault(path.stem.split("-")[1], []).append(path)
        for place, own in enumerate(runs.values()):
            for path in own[KEPT:] if place < RUNS else own:
                with suppress(OSError):
                    path.unlink()


class ContextVault:
    """Flower's own context: lost when the SuperNode restarts, and with the next run."""

    def __init__(self, context: Context) -> None:
        self.state = context.state

    def load(self, stamp: Stamp) -> Memory:
        """From its records, one per part."""
        parts: list[Any] = []
        while (key := f"{stamp.name}-{len(parts)}") in self.state:
            parts.append(wire.joined(self.state[key]))
        if not parts:
            raise LostError(
                f"this site has no memory of round {stamp.round}: without a folder in its node "
                "config it forgets when the SuperNode or the server restarts"
            )
        return tuple(parts)

    def save(self, stamp: Stamp, memory: Memory) -> None:
        """As records, one per part."""
        for i, part in enumerate(memory):
            self.state[f"{stamp.name}-{i}"] = wire.packed(np.asarray(part))
        names = dict.fromkeys(
            key.rpartition("-")[0] for key in self.state if key.startswith(f"{PREFIX}-")
        )
        for name in list(names)[:-IN_CONTEXT]:
            for key in [key for key in self.state if key.rpartition("-")[0] == name]:
                del self.state[key]


def vault_of(context: Context, folder: Path | None) -> Vault:
    """Where this site keeps its memories: its own folder first, then ``folder``."""
    named = context.node_config.get("folder")
    if named is not None:
        return FileVault(Path(str(named)))
    return ContextVault(context) if folder is None else FileVault(folder)


def started(vault: Vault, stamp: Stamp, rule: LocalRule, w: Any) -> Memory:
    """The memory to start a round from: the one that the server names, or an empty one."""
    fresh = rule.init(w)
    if stamp.round == 0:
        return fresh
    found = vault.load(stamp)
    if [(p.shape, p.dtype) for p in found] != [(p.shape, p.dtype) for p in fresh]:
        raise LostError(f"this site's memory of round {stamp.round} does not fit {rule!r}")
    return found


class Stamps:
    """The server's side: for each site the memory that its next update starts from.

    They are in the checkpoint; a resumed server names those of its last complete round.
    """

    def __init__(self, clients: int, state: State) -> None:
        if state.sites is None and state.round > 0:
            raise FedtaperError(
                "the sites have no memories of this run's earlier rounds, which another engine "
                "made: continue with that engine, or start a new run"
            )
        self.session = secrets.randbits(52)
        self.table = np.zeros((clients, 3), dtype=np.int64)
        self.table[:, 0] = self.session
        if state.sites is not None:
            self.table = state.sites[0].copy()

    def start(self, client: int) -> list[int]:
        """The stamp to start from, as a message holds it."""
        return [int(part) for part in self.table[client]]

    def end(self, client: int, round_: int) -> list[int]:
        """The stamp of what this round (from 0) leaves."""
        return [int(self.table[client, 0]), self.session, round_ + 1]

    def counted(self, clients: Any, round_: int) -> None:
        """These sites' updates counted: their next ones start from this round's memory."""
        for client in clients:
            self.table[client] = self.end(int(client), round_)

    def forget(self, client: int) -> None:
        """Let the site start again, without a memory."""
        self.table[client, 1:] = 0

    def saved(self) -> Any:
        """The stamps, as the State keeps them."""
        return self.table[None].copy()


def hand_out(state: State, vaults: Sequence[Vault], dtype: Any) -> None:
    """Give simulated sites the memories of a State, for as long as the simulation lasts."""
    if not state.clients or state.round == 0:
        return
    run = secrets.randbits(52)
    stamp = Stamp(run, run, state.round)
    for client, vault in enumerate(vaults):
        vault.save(stamp, tuple(part[0, client].astype(dtype) for part in state.clients))
    state.sites = np.tile(np.array(stamp, dtype=np.int64), (1, len(vaults), 1))


def bring_in(state: State, vaults: Sequence[Vault]) -> None:
    """The memories of simulated sites, into the State."""
    if state.sites is None:
        return
    for client, vault in enumerate(vaults):
        stamp = Stamp(*(int(part) for part in state.sites[0, client]))
        if stamp.round:
            for array, part in zip(state.clients, vault.load(stamp), strict=True):
                array[0, client] = part
    state.sites = None
