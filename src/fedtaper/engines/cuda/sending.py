"""What clients send in place of their updates, made on the device: simulated misbehaviour.

The same as ``rules.behaviours.sent``, in single precision.
"""

from __future__ import annotations

from typing import Any

import torch

from fedtaper.core import draws
from fedtaper.core.protocols import State
from fedtaper.experiment import Experiment
from fedtaper.rules.behaviours import MATCHED_COPY, NOISE, SCALED, tables


class Sending:
    """The clients' behaviours, and their last updates where somebody copies them."""

    def __init__(self, experiment: Experiment, state: State, device: str) -> None:
        self.e, self.state, self.device = experiment, state, device
        kept = [] if state.last is None else [torch.from_numpy(one).float() for one in state.last]
        self.last = [one.to(device) for one in kept]  # of each seed, (L, d)
        self.now: dict[tuple[int, int], torch.Tensor] = {}  # those of the seed and round under way

    def replace(self, s: int, round_: int, members: Any, moved: torch.Tensor) -> None:
        """Put what each member sends in the place of what it should, (members, d), in place."""
        kinds, scales = (table[0] for table in tables(self.e, round_, round_ + 1))
        seed = int(self.state.seeds[s])
        for row, i in enumerate(members.tolist()):
            kind, scale = int(kinds[i]), float(scales[i])
            if kind == NOISE:
                drawn = draws.normals(seed, i, round_, moved.shape[1])
                other = torch.from_numpy(drawn).float().to(self.device)
                moved[row] = other * (scale * moved[row].norm() / other.norm())
            elif kind != SCALED:
                moved[row] = self._copied(s, i, scale, kind == MATCHED_COPY)
            elif scale != 1.0:
                moved[row] *= scale
        if self.last:
            if (s, round_) not in self.now:
                self.now = {(s, round_): torch.zeros_like(self.last[s])}
            self.now[s, round_][torch.from_numpy(members)] = moved

    def _copied(self, s: int, client: int, scale: float, matched: bool) -> torch.Tensor:
        """The mean of the others' last updates, scaled or brought to their mean size."""
        others = [i for i in range(self.e.num_clients) if i != client]
        last = self.last[s][others]
        mean = last.mean(0)
        if matched:
            size = mean.norm()
            scale = float(last.norm(dim=1).mean() / size) if float(size) > 0 else 0.0
        return scale * mean

    def end(self, s: int) -> None:
        """The round is over: its updates are the last ones now."""
        if self.last:
            self.last[s] = self.now.pop((s, self.state.round), torch.zeros_like(self.last[s]))

    def sync(self) -> None:
        """Bring the State up to date."""
        if self.state.last is not None:
            for room, one in zip(self.state.last, self.last, strict=True):
                room[...] = one.cpu().numpy()
