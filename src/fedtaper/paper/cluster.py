"""The ledger on a Ray cluster: a claim is a job; its figures are sent back with its row."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedtaper.core.errors import FedtaperError
from fedtaper.paper import ledger_file
from fedtaper.paper.claim import Claim, Study, reproduce
from fedtaper.simulation.jobs import finished
from fedtaper.storage import store
from fedtaper.storage.loading import CLAIMS


def reproduce_on_ray(
    claims: Iterable[Claim],
    out: str | Path,
    address: str,
    *,
    seeds: int = 100,
    options: dict[str, Any] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """As :func:`fedtaper.paper.reproduce`, claims side by side.

    Runs that several claims share are made by each of them, which costs time and changes
    nothing. If a worker dies, its claim starts again.
    """
    folder = store.prepare(out, resume=True)
    wanted = [claim.id for claim in claims]
    study = Study(folder, seeds, options or {}, say)
    gpus = 1.0 if study.options.get("device") == "cuda" else 0.0
    made = ledger_file.made_with(seeds, study.options)
    rows = ledger_file.known(folder, made) if resume else {}
    ledger_file.write(folder, [], made, wanted)
    jobs = {one: (_judged, (one, seeds, study.options)) for one in wanted if one not in rows}
    failed: dict[str, Exception] = {}
    for one, found in finished(jobs, address, {"num_cpus": 1, "num_gpus": gpus, "max_retries": 3}):
        if isinstance(found, Exception):
            failed[one] = found
            continue
        rows[one], files = found
        for name, content in files.items():
            (folder / name).write_bytes(content)
        say(f"{one}: {rows[one]['verdict']} ({len(rows)} of {len(wanted)})")
        ledger_file.write(folder, [rows[one]], made)
    if failed:
        told = "; ".join(f"{one}: {problem}" for one, problem in failed.items())
        raise FedtaperError(f"{len(failed)} claims failed: {told}")
    return [rows[one] for one in wanted]


def _judged(
    one: str, seeds: int, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    from fedtaper.paper import LEDGER

    with tempfile.TemporaryDirectory(prefix="fedtaper-") as folder:
        (row,) = reproduce([LEDGER[one]], folder, seeds=seeds, options=options)
        files = [path for path in Path(folder).iterdir() if path.name != CLAIMS]
        return row, {path.name: path.read_bytes() for path in files if path.is_file()}
