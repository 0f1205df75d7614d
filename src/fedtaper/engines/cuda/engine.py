"""The engine for networks on one GPU: which session an experiment gets."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import Options, State, Way, is_combining
from fedtaper.core.rules import Memoryless
from fedtaper.engines import cpu, late
from fedtaper.engines.cuda.session import PRECISIONS, CudaSession
from fedtaper.engines.cuda.trial import objection
from fedtaper.experiment import Experiment
from fedtaper.problems.images import ImageClassification
from fedtaper.problems.trial import trial

KERNELS = "kernels"  # the way of the steps for images, as a State keeps it


class Cuda:
    """Networks on one GPU: captured steps for images, the CPU engine's sessions for all else.

    Those run in single precision: losses of the user's own, local rules with memory, robust means
    and delays, client after client or with all clients' models as one, whichever is quicker, their
    steps captured.
    """

    name = "cuda"
    capabilities = replace(cpu.ENGINE.capabilities, precisions=tuple(PRECISIONS), devices=("cuda",))

    def check(self) -> None:
        """Refuse where there is no CUDA device."""
        if not torch.cuda.is_available():
            raise FedtaperError(
                'there is no CUDA device here: use device="cpu", or install a torch build with CUDA'
            )

    def block_rounds(self, experiment: Experiment, seeds: int) -> int:
        """One: metrics come back once per round."""
        return 1

    def open(
        self, experiment: Experiment, state: State, options: Options
    ) -> CudaSession | cpu.CpuSession:
        """Get ready to move the state on."""
        way, precision = state.way, _precision(state.way, options.precision)
        if way is not None and way.name == KERNELS:  # a resumed run keeps its steps
            if options.way is not None:
                raise FedtaperError(
                    f'the stopped run is trained by the steps for images, not way="{options.way}": '
                    "resume without way="
                )
            return CudaSession(experiment, state, PRECISIONS[precision or "bf16"])
        dtype = PRECISIONS[precision or "bf16"]
        why = _in_general(experiment, options.way or ("" if way is None else way.name))
        found = "" if why else _of_network(experiment, dtype)
        if not why and not found:
            state.way = Way(KERNELS, experiment.num_clients, "images", precision or "bf16")
            return CudaSession(experiment, state, dtype)
        if precision == "bf16":
            raise FedtaperError(
                f"{why or found} in float32 on a GPU, not in bf16: leave precision out"
            )
        if found:
            warn(f"{found} in float32 on a GPU, and not by the steps for images")
        session = _general(experiment, state, options.way, precision == "float32")
        if precision == "float32" and state.way is not None:
            state.way = replace(state.way, precision=precision)
        return session


ENGINE = Cuda()


def _precision(way: Way | None, asked: str | None) -> str | None:
    """The precision of a run: a resumed one computes as it began."""
    if way is None:
        return asked
    kept = way.precision or None
    if asked not in (None, kept):
        raise FedtaperError(
            f'the stopped run did not begin with precision="{asked}": resume without precision=, '
            "so that it ends as it would have"
        )
    return kept


def _in_general(e: Experiment, way: str) -> str:
    """What the steps for images cannot do of this experiment, or nothing."""
    found = {
        f"{type(e.problem).__name__} runs": not isinstance(e.problem, ImageClassification),
        f'way="{way}" runs': bool(way),
        f"{e.local!r} runs": not isinstance(e.local, Memoryless),
        f"{e.server!r} runs": is_combining(e.server),
        "delays and asynchronous servers run": not e.in_step,
    }
    return next((words for words, true in found.items() if true), "")


def _of_network(e: Experiment, dtype: torch.dtype) -> str:
    """What they cannot do of a network of the user's own, or nothing: it is tried."""
    assert isinstance(e.problem, ImageClassification)
    if isinstance(e.problem.model, str):
        return ""
    if trial(e.problem, device="cuda"):
        return "a model that draws random numbers (dropout) runs"
    trouble = objection(e, "cuda", dtype)
    return "" if trouble is None else f"this model ({trouble}) runs"


def _general(e: Experiment, state: State, way: str | None, exact: bool) -> cpu.CpuSession:
    """Any network, the way that is asked for or is quickest; client by client where it fails."""
    kind = cpu.CpuSession if e.in_step else late.LateSession
    try:
        return kind(e, state, workers=1, device="cuda", way=way, exact=exact)
    except FedtaperError:
        raise
    except Exception as trouble:
        warn(f"stacking failed on this GPU ({type(trouble).__name__}): going client by client")
        state.way = None
        return kind(e, state, workers=1, device="cuda", way="per-client", exact=exact)
