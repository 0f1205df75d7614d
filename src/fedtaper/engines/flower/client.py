"""What a site does: report who it is, and make a round's local updates."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedtaper.core.errors import FedtaperError, quietly
from fedtaper.core.protocols import Memory, is_network
from fedtaper.core.scaled import Scaled
from fedtaper.core.schedules import Constant, Power, Schedule
from fedtaper.core.version import __version__
from fedtaper.engines import reference
from fedtaper.engines.flower import memory as memories
from fedtaper.engines.flower import wire
from fedtaper.engines.flower.source import Source
from fedtaper.engines.steered import client_losses, network_loss
from fedtaper.experiment import Experiment

ORDER, MODEL, UPDATE, METRICS, TOLD = "order", "model", "update", "metrics", "told"
ALONG = "along"  # vectors that the server rule sends with the model: along-0, along-1, ...
START, END = "memory_start", "memory_end"  # stamps, in a message to a site that remembers
LOST = "lost_memory"
FACTOR = "factor"  # what a controller multiplies the site's scale by in this round
LOSS = "loss"


def describe(message: Message, context: Context, source: Source) -> Message:
    """Who this site is: its name, its samples if only it knows them, its own schedule if any."""
    site = site_name(context, source.federation.sites)
    told: dict[str, Any] = {"site": site, "version": __version__}
    try:
        samples = source.samples(site)
        if samples is not None:
            told["samples"] = samples
        own = own_schedule(context)
        if own is not None:
            told |= as_numbers(own)
    except Exception as trouble:  # the user's own code may break in any way: report it
        traceback.print_exc()
        told["trouble"] = f"{type(trouble).__name__}: {trouble}"
    return Message(RecordDict({TOLD: ConfigRecord(told)}), reply_to=message)


def train(message: Message, context: Context, source: Source) -> Message:
    """One round's local updates from the shared model; the answer is the update alone.

    The clock n and the round come with the message, and so does the stamp of the memory to start
    from, if the local rule keeps one; the mini-batches are drawn by (seed, client, round). So a
    restart of anything here changes nothing.
    """
    order: Any = message.content[ORDER]
    site, client, e = _asked(message, context, source)
    sent = unscaled(e.schedules[client])
    simple = isinstance(sent, (Power, Constant))  # others do not fit into a message
    schedule = own_schedule(context) or (as_schedule(order) if simple else sent)
    factor = float(order.get(FACTOR, 1.0))
    used = schedule if factor == 1.0 else Scaled(schedule, ((1.0, factor),))
    with quietly():
        mine = [used if i == client else s for i, s in enumerate(e.schedules)]
        e = replace(e, schedules=tuple(mine))
    told: dict[str, Any] = {"round": int(order["round"]), "site": site, FACTOR: factor}
    told |= as_numbers(schedule)
    try:
        content = _round(message, e, client, memories.vault_of(context, source.folder(site)))
    except memories.LostError as lost:
        content = {}
        told[LOST] = str(lost)
    return Message(RecordDict(content | {TOLD: ConfigRecord(told)}), reply_to=message)


def judge(message: Message, context: Context, source: Source) -> Message:
    """This site's loss at the shared model, on all its samples: what a controller looks at."""
    site, client, e = _asked(message, context, source)
    order: Any = message.content[ORDER]
    w = wire.joined(message.content[MODEL])
    if is_network(e.problem):
        import torch

        from fedtaper.engines.network_client import Client
        from fedtaper.problems.network import one_thread

        own = Client(e)
        own.w.copy_(torch.from_numpy(w))
        with one_thread():
            loss = network_loss(e.problem, own.module, client)
    else:
        loss = float(client_losses(e.problem, w)[client])
    told = ConfigRecord({"round": int(order["round"]), "site": site, LOSS: loss})
    return Message(RecordDict({TOLD: told}), reply_to=message)


def _asked(message: Message, context: Context, source: Source) -> tuple[str, int, Experiment]:
    """Who this site is, and its experiment."""
    order: Any = message.content[ORDER]
    site = site_name(context, source.federation.sites)
    client = source.federation.sites.index(site)
    return site, client, _experiment(source, client, int(order["samples"]))


def _round(message: Message, e: Experiment, client: int, vault: memories.Vault) -> dict[str, Any]:
    """The update and what was measured on the way, as records."""
    order: Any = message.content[ORDER]
    w = wire.joined(message.content[MODEL])
    along = tuple(wire.joined(message.content[f"{ALONG}-{i}"]) for i in range(e.server.travels))
    a = e.round_step_sizes(float(order["n"]))[:, client]
    place = (int(order["seed"]), client, int(order.get("draw", order["round"])))
    keeps = e.local.keeps == "run"
    start = memories.Stamp(*order[START]) if keeps else None
    kept = memories.started(vault, start, e.local, w) if start is not None else ()
    update, measured, kept = _updates(e, w, a, place, kept, along)
    if keeps:
        vault.save(memories.Stamp(*order[END]), kept)
    numbers = MetricRecord({k: v for k, v in measured.items() if not math.isnan(v)})
    return {UPDATE: wire.packed(update), METRICS: numbers}


def _updates(
    e: Experiment, w: Any, a: Any, place: tuple[int, int, int], kept: Memory, along: Memory
) -> tuple[Any, dict[str, float], Memory]:
    """The update, what was measured, and the memory after it."""
    seed, client, round_ = place
    if not is_network(e.problem):
        with np.errstate(over="ignore", invalid="ignore"):
            mine, kept = reference.local_model(e, place, w, a, kept, along)
        return mine - w, {}, kept
    import torch

    from fedtaper.engines.network_client import Client
    from fedtaper.problems.network import one_thread

    own = Client(e)
    anchor = torch.from_numpy(w)
    rooms, extra = (
        tuple(torch.from_numpy(np.array(part)) for part in parts) for parts in (kept, along)
    )
    with one_thread():
        loss, accuracy, _ = own.train(client, seed, round_, anchor, a, rooms, extra)
    measured = {"train_loss": loss, "train_accuracy": accuracy}
    return (own.w - anchor).numpy(), measured, tuple(room.numpy() for room in rooms)


@lru_cache(maxsize=1)
def _experiment(source: Source, client: int, samples: int) -> Experiment:
    """The experiment as this site sees it. It does not know the others' sizes: they get its own."""
    e = source.experiment([samples] * len(source.federation.sites), client)
    if int(e.problem.sizes[client]) != samples:
        raise FedtaperError(
            f"this site has {e.problem.sizes[client]} samples now, and had {samples} when the "
            "run began: restore the data, or start a new run"
        )
    return e


def site_name(context: Context, sites: Sequence[str]) -> str:
    """This node's site: by name (node config ``site``), else by ``partition-id``."""
    node = context.node_config
    if "site" in node:
        return str(node["site"])
    if "partition-id" in node:
        number = int(node["partition-id"])
        return sites[number] if 0 <= number < len(sites) else f"partition {number}"
    raise FedtaperError(
        "this node does not say which site it is: start the SuperNode with "
        "--node-config 'site=\"NAME\"'"
    )


def own_schedule(context: Context) -> Schedule | None:
    """The site's own schedule (node config c, delta, offset), if it has one."""
    node = context.node_config
    return as_schedule(node) if "c" in node else None


def as_schedule(numbers: Any) -> Schedule:
    """A schedule from numbers c, delta and offset; delta 0 is a constant."""
    c, delta = float(numbers["c"]), float(numbers.get("delta", 0.0))
    return Power(c, delta, float(numbers.get("offset", 0.0))) if delta else Constant(c)


def unscaled(schedule: Schedule) -> Schedule:
    """A schedule as it was before a controller moved its scale."""
    return schedule.schedule if isinstance(schedule, Scaled) else schedule


def factor_of(schedule: Schedule, n: float) -> float:
    """The controller's factor on a schedule in the round after clock n."""
    return float(schedule.factor(n + 1)) if isinstance(schedule, Scaled) else 1.0


def as_numbers(schedule: Schedule) -> dict[str, float]:
    """A schedule, or its limit, as numbers that a message can hold."""
    parts = {"c": schedule.c, "delta": schedule.delta, "offset": schedule.offset}
    return {name: float(value) for name, value in parts.items()}
