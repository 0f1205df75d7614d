"""The engine for networks on one GPU: which session an experiment gets."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.protocols import Options, State, is_combining
from fedtaper.engines import cpu, late
from fedtaper.engines.cuda.session import PRECISIONS, CudaSession
from fedtaper.experiment import Experiment
from fedtaper.problems.images import ImageClassification


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
        why = _in_general(experiment)
        if why and options.precision not in (None, "float32"):
            raise FedtaperError(
                f"{why} in float32 on a GPU, not in {options.precision}: leave precision out"
            )
        if why or options.way is not None or state.way:
            return _general(experiment, state, options.way, options.precision == "float32")
        return CudaSession(experiment, state, PRECISIONS[options.precision or "bf16"])


ENGINE = Cuda()


def _in_general(e: Experiment) -> str:
    """What the captured steps for images cannot do of this experiment, or nothing."""
    found = {
        f"{type(e.problem).__name__} runs": not isinstance(e.problem, ImageClassification),
        f"{e.local!r} runs": e.local.keeps != "nothing",
        f"{e.server!r} runs": is_combining(e.server),
        "delays and asynchronous servers run": not e.in_step,
    }
    return next((words for words, true in found.items() if true), "")


def _general(e: Experiment, state: State, way: str | None, exact: bool) -> cpu.CpuSession:
    """Any network, the way that is asked for or is quickest; client by client where it fails."""
    kind = cpu.CpuSession if e.in_step else late.LateSession
    try:
        return kind(e, state, workers=1, device="cuda", way=way, exact=exact)
    except FedtaperError:
        raise
    except Exception as trouble:
        warn(f"stacking failed on this GPU ({type(trouble).__name__}): going client by client")
        state.way = ""
        return kind(e, state, workers=1, device="cuda", way="per-client", exact=exact)
