r"""What a server with its own data expects each client to send.

The server replays the declared local updates from the shared model of a round on held-out data
of the client's classes. The resulting size reflects whatever a network does in a round: that a
class has been learned, or that it is learned within the round, so that the size hardly depends on
the step sizes. A second replay with step sizes that taper faster shows how much it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing.robust import middle, row_median
from fedtaper.auditing.taper import EXCESS_SPREAD, Declared, Fit
from fedtaper.core import draws
from fedtaper.core.errors import FedtaperError
from fedtaper.core.tables import Brief
from fedtaper.problems.custom import Custom
from fedtaper.results import Run, check_recorded

Array = NDArray[np.float64]
FASTER = 0.24  # the second replay's excess: delta 1 for 0.76
ROUNDS = 24  # replayed at most, evenly in log n
ALIKE = 0.5  # clients whose data overlap by this much learn alike
LEAST = 0.02  # deviation of an excess that replays leave out
UNKNOWN = 5.0  # the line for a model and data that nobody has measured error rates on
_REPLAY = 31  # place of the draws


@dataclass(frozen=True, repr=False)
class HeldOut(Brief):
    """What the server expects, by replays on its own data.

    ``sizes`` (2, rounds, L): as declared, and with a taper that is ``FASTER``; NaN where a
    round was not replayed. ``alike`` (L, L): how much the clients' data overlap, 0 to 1.
    """

    sizes: Array
    alike: Array
    line: float = 3.2  # standard errors from which on an excess is an accusation

    @classmethod
    def of_losses(cls, losses: Array, declared: Declared) -> HeldOut:
        """From the held-out loss of each client's class, (rounds, L), without any replay.

        At loss l the class has probability exp(-l), and a softmax's gradient has a size
        proportional to 1 - exp(-l); the size sent is proportional to that times the step sum.
        """
        if losses.shape != declared.sums.T.shape:
            raise FedtaperError(
                f"held_out has losses of shape {losses.shape}; it must be {declared.sums.T.shape}"
            )
        if np.any(losses < 0):
            raise FedtaperError("held_out has a negative loss, but a cross-entropy is at least 0")
        plain = declared.sums.T * -np.expm1(-losses)
        faster = plain * np.exp(-FASTER * declared.log_n.T)
        return cls(np.stack([plain, faster]), np.eye(losses.shape[1]))

    @classmethod
    def replayed(cls, run: Run, data: Any, seed: int | None = None) -> HeldOut:
        """Replays of a run on :class:`fedtaper.Custom`, on data that the server holds itself.

        Args:
            run: a run that keeps its trajectory.
            data: one entry of ``client_data``, for all clients; or a list with one per client,
                if the server knows what each of them holds.
            seed: which seed of a run over many.
        """
        return replay_own(run, data, seed)

    def among(self, clients: NDArray[Any]) -> HeldOut:
        """Some of the clients."""
        return replace(self, sizes=self.sizes[..., clients], alike=self.alike[clients][:, clients])

    def until(self, rounds: int) -> HeldOut:
        """The first rounds."""
        return replace(self, sizes=self.sizes[:, :rounds])


def replay(experiment: Any, w: Array, seed: int) -> HeldOut:
    """Replay rounds of an experiment on images; w (rounds, d) are the models they started from."""
    import torch

    from fedtaper.problems.network import bind, one_thread

    problem, rounds = experiment.problem, len(w)
    mix = problem.holdings / problem.holdings.sum(axis=1, keepdims=True)
    x, y = problem.test
    held = np.bincount(y.numpy(), minlength=mix.shape[1])
    order = np.argsort(y.numpy(), kind="stable")
    a, clock = experiment.step_sizes(0, rounds), experiment.clock_values(0, rounds)
    taper = (clock + np.array([s.offset for s in experiment.schedules])) ** -FASTER
    module = problem.module()
    model = torch.zeros(w.shape[1])
    gradient = torch.zeros_like(model)
    bind(module, model, gradient)
    sizes = np.full((2, rounds, len(mix)), np.nan)
    with one_thread():
        for k in _chosen(rounds):
            anchor = torch.from_numpy(np.asarray(w[k], dtype=np.float32))
            for i, share in enumerate(mix):
                steps = int(experiment.steps[i])
                rng = draws.generator(seed, _REPLAY, i, int(k))
                size = int(experiment.batch_sizes[i])
                picks = [order[_batch(rng, share, held, size)] for _ in range(steps)]
                for way, table in enumerate((a, a * taper)):
                    model.copy_(anchor)
                    for pick, step in zip(picks, table[k, :, i], strict=False):
                        gradient.zero_()
                        problem.batch_loss(module, x[pick], y[pick])[0].backward()
                        with torch.no_grad():
                            move = experiment.local.direction(gradient, model, anchor)
                            model.sub_(move, alpha=float(step))
                    sizes[way, k, i] = float((model - anchor).norm())
    return HeldOut(sizes, np.minimum(mix[:, None], mix[None]).sum(axis=2))


def replay_own(run: Run, data: Any, seed: int | None = None) -> HeldOut:
    """Replay rounds of a run on a user's own problem, on the server's data."""
    from fedtaper.engines.network_client import Client
    from fedtaper.problems.network import one_thread

    e = run.experiment
    if not isinstance(e.problem, Custom):
        raise FedtaperError(f"replays on your own data need Custom(...), not {e.problem!r:.60}")
    check_recorded(run)
    if run.w is None or run.w0 is None or len(run.round) < int(run.round[-1]):
        raise FedtaperError(
            "replays need the model of every round: use a smaller model, or run with thin=1"
        )
    if run.many and seed not in run.seeds:
        raise FedtaperError(f"this run has {len(run.seeds)} seeds: choose one to replay with seed=")
    pick: Any = run.seeds.index(int(seed)) if run.many and seed is not None else slice(None)
    w = np.concatenate([run.w0[pick][None], run.w[pick][:-1]])
    clients, rounds = e.num_clients, len(w)
    each = isinstance(data, list)
    if each and len(data) != clients:
        raise FedtaperError(f"the server's data has {len(data)} entries for {clients} clients")
    held = replace(e.problem, client_data=data if each else [data] * clients)
    server = replace(
        e, problem=held, behaviours=(), challenges=None, local_epochs=None, clock="update",
        local_steps=tuple(int(n) for n in e.steps), batch_size=min(e.batch_size, *held.sizes),
    )  # fmt: skip
    a, clock = e.step_sizes(0, rounds), e.clock_values(0, rounds)
    taper = (clock + np.array([s.offset for s in e.schedules])) ** -FASTER
    sizes = np.full((2, rounds, clients), np.nan)
    client, place = Client(server), int(run.seeds[0] if seed is None else seed) + _REPLAY
    with one_thread():
        for k in _chosen(rounds):
            anchor = client.w.new_tensor(w[k])
            for way, i in product(range(2), range(clients)):
                steps = (a, a * taper)[way][k, : int(e.steps[i]), i]
                sizes[way, k, i] = client.train(i, place, int(k), anchor, steps)[2]
    return HeldOut(sizes, np.eye(clients) if each else np.ones((clients, clients)), UNKNOWN)


def _chosen(rounds: int) -> NDArray[np.int64]:
    """The rounds (from 0) that are replayed."""
    return np.unique(np.geomspace(1, rounds, 2 * ROUNDS).round().astype(int))[-ROUNDS:] - 1


def _batch(rng: Any, share: Array, held: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Places among samples sorted by class, drawn with the client's mix of classes."""
    chance = share * (held > 0)
    classes = rng.choice(len(share), size=size, p=chance / chance.sum())
    first = np.cumsum(held) - held
    return first[classes] + (rng.random(size) * held[classes]).astype(np.int64)


def fit_replayed(norms: Array, held_out: HeldOut) -> Fit:
    r"""Excess taper from sizes (L, rounds) beside the expected ones.

    .. math:: \log(|u_{ik}| / E_{ik}) = \ell_i + e_i \rho_{ik},
       \qquad \rho_{ik} = \log(E'_{ik} / E_{ik}) / 0.24

    with E and E' the two replays. Clients fit their own samples better than held-out ones, so
    honest ones shrink a little faster than expected. How much is estimated from the clients with
    similar data; for a client without such peers it may be anything from 0 to what others show.
    """
    plain, faster = held_out.sizes.transpose(0, 2, 1)
    there = np.isfinite(norms) & (np.nan_to_num(norms) > 0) & (np.nan_to_num(plain) > 0)
    ratio = np.where(there, np.log(np.where(there, norms, 1) / np.where(there, plain, 1)), 0.0)
    reply = np.where(there, np.log(np.where(there, faster / plain, 1.0)) / FASTER, 0.0)
    raw, own = _slopes(ratio, reply, there)
    excess, error = np.zeros(len(raw)), np.zeros(len(raw))
    for i in range(len(raw)):
        others = np.arange(len(raw)) != i
        peers = others & (held_out.alike[i] >= ALIKE)
        if peers.sum() >= 3:
            usual = middle(raw[peers])
            unsure = 1.4826 * middle(np.abs(raw[peers] - usual))
        else:
            usual = 0.5 * max(middle(raw[others]), 0.0)
            unsure = usual / np.sqrt(3)  # evenly from nothing to what the others show
        excess[i], error[i] = raw[i] - usual, np.sqrt(own[i] ** 2 + unsure**2 + LEAST**2)
    level = row_median(ratio, there)
    blank = np.zeros(len(raw))
    return Fit(excess, error, blank, np.exp(level), np.ones(len(raw)), np.zeros(norms.shape[1]))


def _slopes(y: Array, x: Array, there: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Slope of each row of y over x with its error, robustly."""
    weight = there.astype(np.float64)
    for _ in range(8):
        total = np.maximum(weight.sum(axis=1), 1e-300)[:, None]
        centred = x - (weight * x).sum(axis=1)[:, None] / total
        matrix = (weight * centred**2).sum(axis=1)
        slope = (weight * centred * y).sum(axis=1) / np.maximum(matrix, 1e-300)
        residual = y - slope[:, None] * centred
        residual = residual - (weight * residual).sum(axis=1)[:, None] / total
        scale = np.maximum(1.4826 * row_median(np.abs(residual), there), 1e-6)[:, None]
        weight = there / np.maximum(1, np.abs(residual) / (2 * scale))
    precision = matrix / scale[:, 0] ** 2 + 1 / EXCESS_SPREAD**2
    return slope, 1 / np.sqrt(precision)
