"""Who takes part in a deployed federation, and how the server treats the sites.

An experiment says what is learned; a :class:`Federation` says by whom, and what the server
does about a site that is late, lost or sends nonsense. It is the table ``[federation]`` of
the experiment's TOML file.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtaper.core.checks import check_flag, check_number, check_whole
from fedtaper.core.errors import FedtaperError, nearest

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
SERVERS_OWN = ("round", "n", "t", "change", "answered", "seconds", "staleness")  # metrics
MOST_SAMPLES = 10**8  # a site may claim, where nothing else is said


@dataclass(frozen=True)
class Task:
    """A federation's own model and data, as code that every site has.

    Args:
        loss: a function of (model, *batch), as in :class:`fedtaper.Custom`.
        init: a function without arguments that makes a fresh ``torch.nn.Module``.
        data: a function of the site's name that gives this site's data: a tensor, a tuple of
            tensors or arrays of equal length, or a Dataset. It is called only at the site.
        evaluate: a function of the shared model that returns named numbers, at the server.
    """

    loss: Callable[..., Any]
    init: Callable[[], Any]
    data: Callable[[str], Any]
    evaluate: Callable[[Any], dict[str, Any]] | None = None

    def problem(self, sizes: Sequence[int], own: dict[int, Any] | None = None) -> Any:
        """The problem as one party sees it: its own data, and only the sizes of the others'."""
        import torch

        from fedtaper.problems.custom import Custom

        data = [torch.zeros(1).expand(int(size)) for size in sizes]  # a length, and no memory
        for client, entry in (own or {}).items():
            data[client] = entry
        return Custom(self.loss, self.init, data, self.evaluate)


@dataclass(frozen=True)
class Federation:
    """Sites by name, and how the server treats them.

    Args:
        sites: the names, in the order of the experiment's clients and schedules.
        task: "module:name" of a :class:`Task`, if the problem is your own code.
        deadline: seconds a site has to answer in a round; a later answer is not used.
        quorum: how many sites must answer a round for it to count [default: more than half].
        retries: how often a round without quorum is asked again before the run stops.
        wait: seconds to wait at the start for all sites to connect.
        own_schedules: whether a site may have its own step-size schedule and only declare it;
            otherwise the server sends each site its schedule.
        buffer: aggregate whenever this many updates have arrived, without waiting for the
            rest (asynchronous); None waits for all sites that were asked.
        clipping_norm: central differential privacy: an update larger than this is scaled down
            to this size. It caps influence: see docs/flower.md.
        noise_multiplier: how much noise the server adds to a round's sum, in clipping norms.
        nodes: site to node id, if a site is bound to its key: a node that claims a site's
            name with another id is refused.
        samples: site to the number of samples that it must have, or to a pair of bounds. A
            site's own claim sets its influence and the clock, so a claim outside is refused.
        max_size_ratio: how many times the median size of the others a site may claim, if
            ``samples`` does not name it.
        max_growth: reject an update that is this many times larger than the median of the
            site's last ten. None accepts it, with an event from 100 times on.
        metrics: further names that sites may measure, besides the training loss and accuracy.
        restart_memory: whether a site that has lost the memory of its local rule starts again
            without one. Otherwise it is left out, with an event, until its memory is back.

    >>> Federation(("north", "south", "west")).enough
    2
    """

    sites: tuple[str, ...]
    task: str | None = None
    deadline: float = 600.0
    quorum: int | None = None
    retries: int = 3
    wait: float = 300.0
    own_schedules: bool = False
    buffer: int | None = None
    clipping_norm: float | None = None
    noise_multiplier: float = 0.0
    nodes: dict[str, str] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    max_size_ratio: float = 100.0
    max_growth: float | None = None
    metrics: tuple[str, ...] = ()
    restart_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("sites", "metrics"):
            if not isinstance(getattr(self, name), (list, tuple)):
                raise FedtaperError(f'{name} must be a list of names, such as ["north", "south"]')
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.sites:
            raise FedtaperError("a federation needs at least one site")
        for name in self.sites:
            if not (isinstance(name, str) and SITE_NAME.fullmatch(name)):
                raise FedtaperError(
                    f"{name!r} is not a valid site name: use letters, digits, dot, hyphen, "
                    "underscore"
                )
            if self.sites.count(name) > 1:
                raise FedtaperError(f"the site {name!r} is listed twice in sites")
        for name in ("deadline", "wait"):
            check_number(name, getattr(self, name), above=0.0, hint="; it is in seconds")
        self._check_privacy()
        check_whole("retries", self.retries, low=0)
        for name in ("quorum", "buffer"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
                if value > len(self.sites):
                    raise FedtaperError(f"{name} {value} is more than the {len(self.sites)} sites")
        self._check_by_site()
        self._check_trust()

    def _check_by_site(self) -> None:
        for table in ("nodes", "samples"):
            found = getattr(self, table)
            if not isinstance(found, dict):
                raise FedtaperError(f"{table} must be a table with one entry per site")
            for name in found:
                if name not in self.sites:
                    hint = nearest(str(name), self.sites)
                    raise FedtaperError(f"{table}: there is no site {name!r}{hint}")
        for name, node in self.nodes.items():
            if not (isinstance(node, str) and node.isdigit()):
                raise FedtaperError(
                    f'nodes: the node id of {name} must be a number in quotes such as "123", not '
                    f"{node!r}"
                )
        for name in self.samples:
            self.bounds(name)

    def _check_trust(self) -> None:
        for name in ("own_schedules", "restart_memory"):
            check_flag(name, getattr(self, name))
        if self.task is not None and not isinstance(self.task, str):
            raise FedtaperError(f'task must be "module:name", not {self.task!r}')
        for name in ("max_size_ratio", "max_growth"):
            if getattr(self, name) is not None or name == "max_size_ratio":
                check_number(name, getattr(self, name), above=1.0)
        for name in self.metrics:
            if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)):
                raise FedtaperError(
                    f"metrics: {name!r} is not a valid name: use letters, digits, dot, hyphen, "
                    "underscore"
                )
            if name in SERVERS_OWN:
                raise FedtaperError(
                    f"metrics: {name} is the server's own metric: choose another name"
                )

    def bounds(self, site: str) -> tuple[int, int]:
        """The least and the most samples that a site may have."""
        found = self.samples.get(site, (1, MOST_SAMPLES))
        low, high = found if isinstance(found, (list, tuple)) and len(found) == 2 else [found] * 2
        for value in (low, high):
            if isinstance(value, bool) or not isinstance(value, int):
                raise FedtaperError(
                    f"samples: {site} needs a number of samples or a pair [least, most], "
                    f"not {found!r}"
                )
        if not 1 <= low <= high:
            raise FedtaperError(
                f"samples: {site} has the bounds {low} and {high}; give 1 <= least <= most"
            )
        return low, high

    def _check_privacy(self) -> None:
        for name in ("clipping_norm", "noise_multiplier"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, low=0)
        if self.clipping_norm == 0 or (self.noise_multiplier and self.clipping_norm is None):
            raise FedtaperError("noise_multiplier needs a clipping_norm, which must be above 0")

    @property
    def enough(self) -> int:
        """Answers that make a round count."""
        return self.quorum if self.quorum is not None else len(self.sites) // 2 + 1

    def load_task(self) -> Task | None:
        """The task, imported by its name."""
        if self.task is None:
            return None
        module, _, name = self.task.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as trouble:
            raise FedtaperError(f"the task {self.task!r} cannot be loaded: {trouble}") from None
        if not isinstance(found, Task):
            raise FedtaperError(f"{self.task} must be a fedtaper.Task, not {type(found).__name__}")
        return found


def numbered(count: int) -> tuple[str, ...]:
    """Names for sites that have none: site-0, site-1, ..."""
    return tuple(f"site-{i}" for i in range(count))
