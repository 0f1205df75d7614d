"""What a resume finds: a finished run, a stopped one, or one to which rounds are added.

A run is resumed only as the same experiment: every setting is compared, and the data too. If only
the number of rounds is larger, the run is extended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.core.errors import FedtaperError, warn
from fedtaper.experiment import Experiment
from fedtaper.results import Run, seeds_in_words
from fedtaper.storage import durable
from fedtaper.storage.checkpoints import load_checkpoint
from fedtaper.storage.fingerprint import Fingerprint, checked, differences, in_words
from fedtaper.storage.loading import ARRAYS, STATE, check_files, load, stored_fingerprint


def standing(
    out: str | Path,
    experiment: Experiment,
    seeds: NDArray[np.int64],
    many: bool,
    now: Fingerprint,
) -> Run | dict[str, Any] | None:
    """The finished run, or the state of a stopped one (as in a checkpoint), or None.

    An error that names the differences if the folder holds another experiment.
    """
    out = Path(out)
    saved = load_checkpoint(out)
    if saved is not None:
        compare(out, saved["fingerprint"], now, saved["failed"])
        _same_seeds(out, saved["seeds"].tolist(), seeds.tolist())
    if not (out / ARRAYS).is_file():
        return saved
    stored = stored_fingerprint(out, experiment)
    compare(out, stored, now)
    before, after = int(stored["settings"]["rounds"]), experiment.rounds
    if before != after:
        return saved if saved is not None else _extension(out, before, seeds, many)
    run = load(out, experiment=experiment)
    _same_seeds(out, list(run.seeds), seeds.tolist(), run.many, many)
    return run


MENDED = {  # by the part of the user's code that failed: the settings that may have changed
    "loss": "problem: loss",
    "evaluate": "problem: evaluate",
    "collate": "problem: collate",
    "gradient": "problem: class",
    "data set": "data of ",
}


def compare(
    out: Path, stored: Fingerprint | None, now: Fingerprint, failed: str | None = None
) -> None:
    """Refuse another experiment; checkpoints of older versions do not describe theirs.

    If the user's own code ended the run, that part may have been fixed since.
    """
    if stored is None:
        return
    found = differences(checked(stored, out), now, ignore=("rounds",))
    parts = MENDED.get(str(failed), "\n")
    mended = [text for text in found if failed and text.startswith(parts)]
    if mended and len(mended) == len(found):
        warn(f"{out}: {failed} failed and has changed since; the run continues with the new one")
        found = []
    before, after = int(stored["settings"]["rounds"]), int(now["settings"]["rounds"])
    if after < before:
        found.insert(0, f"rounds: {before} -> {after}, which is fewer")
    if found:
        raise FedtaperError(
            f"{out} holds another experiment: {in_words(found)} (stored -> now). Resume with the "
            "stored settings, or name another folder"
        )


def _same_seeds(
    out: Path, before: list[int], now: list[int], was_many: bool = False, many: bool = False
) -> None:
    if before != now or was_many != many:
        old, new = seeds_in_words(before), seeds_in_words(now)
        kind = " as a batch" if before == now else ""
        raise FedtaperError(
            f"{out} holds a run of other seeds: {old} -> {new}{kind} (stored -> now). Resume with "
            "the stored seeds"
        )


def _extension(out: Path, rounds: int, seeds: NDArray[np.int64], many: bool) -> dict[str, Any]:
    """A finished run as a checkpoint, to continue from where it ended."""
    if not (out / STATE).is_file():
        raise FedtaperError(
            f"{out} holds a finished run of {rounds} rounds, but not the state that more rounds "
            "need (it was stored without it, or by an older version): name another folder"
        )
    arrays, about = durable.read_arrays(out / ARRAYS)
    state, _ = durable.read_arrays(out / STATE)
    if about is not None:
        check_files(out, arrays, about)
    if about is None or STATE not in about["files"]:
        raise FedtaperError(
            f"{out} is damaged: {STATE} is not the file that was stored with the run"
        )
    _same_seeds(out, state["seeds"].tolist(), seeds.tolist())
    lead = (lambda array: array) if many else (lambda array: array[None])
    kept = {name: lead(a) for name, a in arrays.items() if name.startswith("metric_")}
    kept |= {name: lead(arrays[name]) for name in ("w", "updates") if name in arrays}
    return state | kept | {"round": arrays["round"], "norms": lead(arrays["update_norms"])}
