"""Which clients contribute as declared? Judged from what they send, with stated certainty.

``audit`` judges a whole run, or plain arrays; ``Auditor`` takes one round at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.auditing.challenges import Asked
from fedtaper.auditing.judge import Trace, judge, notes, since
from fedtaper.auditing.records import Audit, ClientAudit
from fedtaper.auditing.replay import HeldOut
from fedtaper.auditing.taper import Declared
from fedtaper.auditing.traces import declared_round, from_run, trace_of
from fedtaper.core.checks import as_numbers, check_flag, check_number, optional_numbers
from fedtaper.core.errors import FedtaperError, warn
from fedtaper.core.influence import checked_schedules, influence
from fedtaper.core.schedules import Schedule
from fedtaper.core.sketch import sketch
from fedtaper.results import Run

Array = NDArray[np.float64]

__all__ = ["Audit", "Auditor", "ClientAudit", "HeldOut", "audit", "trace_of"]


def audit(
    source: Run | ArrayLike,
    *,
    n: ArrayLike | None = None,
    schedules: Sequence[Schedule] | None = None,
    step_sums: ArrayLike | None = None,
    updates: ArrayLike | None = None,
    w: ArrayLike | None = None,
    held_out: HeldOut | ArrayLike | None = None,
    quadratic: bool = False,
    seed: int | None = None,
    level: float = 0.95,
) -> Audit:
    """Judge each client: as declared, fading, rising, idle, noise, copying, or cannot tell (yet).

    Updates alone show how fast a client tapers only if the losses are quadratic. For any other
    model the verdict on the taper is "cannot tell" unless there are challenges or replays.

    Args:
        source: a Run, or the sizes of the updates, (rounds, L): NaN where a client was
            absent, 0 where it sent nothing.
        n: the clock at the end of each round (arrays only).
        schedules: what the clients declared; for a Run, its experiment's.
        step_sums: declared sums of step sizes, (rounds, L), if they do not follow from the
            schedules at an update clock.
        updates: the updates themselves, (rounds, L, d), NaN where absent: directions show
            noise and copying, which sizes cannot, and sharpen the rest. A Run made with
            ``updates=True`` has them.
        w: the model that each round started from, (rounds, d). By default the running sum of
            the mean update, which is what a server that averages makes of them.
        held_out: what the server expects each client to send, from replays of the declared
            training on data of its own (``HeldOut``). On networks the estimate is based on it. For
            a Run on images that keeps its trajectory it is computed automatically. With arrays,
            the held-out loss of each client's class, (rounds, L), can be given instead: cruder.
        quadratic: whether the clients' losses are quadratic, as in linear regression (arrays
            only; a Run knows its problem).
        seed: which seed of a Run over many.
        level: of the intervals.

    >>> import fedtaper as ft
    >>> federation = ft.LinearRegression(num_clients=5, seed=1)
    >>> e = ft.Experiment(federation, ft.Power(0.1, 0.76, offset=4), rounds=60, local_steps=5,
    ...                   behaviours={3: ft.Idle(), 4: ft.OtherSchedule(ft.Power(0.1, 1, 4))})
    >>> [c.verdict for c in ft.audit(ft.run(e, updates=True)).clients]
    ['as declared', 'as declared', 'as declared', 'idle', 'fading']
    """
    if isinstance(source, Run):
        own = {"n": n, "step_sums": step_sums, "updates": updates, "w": w}
        for name, given in own.items():
            if given is not None:
                raise FedtaperError(f"{name}= is for arrays: a Run has its own")
        if held_out is not None and not isinstance(held_out, HeldOut):
            raise FedtaperError("held-out losses are for arrays; for a Run pass a HeldOut")
        _check_in_step(source)
        trace, declared_p, deltas, rounds, clock = from_run(source, schedules, seed, held_out)
    else:
        if n is None or schedules is None:
            raise FedtaperError(
                "an audit of arrays needs n=, the clock at the end of each round, and "
                "schedules=, what the clients declared"
            )
        auditor = Auditor(schedules, quadratic=quadratic)
        sizes, clock = as_numbers("the sizes", source), as_numbers("n", n)
        sums = optional_numbers("step_sums", step_sums)
        moves, models = optional_numbers("updates", updates), optional_numbers("w", w)
        _check_shapes(sizes, clock, sums, moves, models, len(auditor.schedules))
        auditor.extend(sizes, clock, sums, moves, models)
        if held_out is not None:
            if not isinstance(held_out, HeldOut):
                losses = as_numbers("held_out", held_out)
                held_out = HeldOut.of_losses(losses, auditor.declared)
            wanted = (2, *sizes.shape)
            if held_out.sizes.shape != wanted:
                raise FedtaperError(
                    f"held_out has sizes of shape {held_out.sizes.shape}; it must be {wanted}"
                )
            auditor.held_out, auditor.alike = list(held_out.sizes.swapaxes(0, 1)), held_out.alike
        return auditor.result(level)
    found = _assemble(trace, declared_p, deltas, rounds, clock, level)
    return replace(found, names=source.experiment.names or ())


class Auditor:
    """The audit, one round at a time: keeps O(clients) numbers per round seen.

    >>> import fedtaper as ft
    >>> auditor = Auditor([ft.Power(0.1, 0.76)] * 3, quadratic=True)
    >>> for k in range(1, 6):
    ...     auditor.add([1.0 / k, 0.9 / k, 0.0], n=5 * k)
    >>> [c.verdict for c in auditor.result().clients]
    ['cannot tell yet', 'cannot tell yet', 'idle']
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        alike: ArrayLike | None = None,
        *,
        quadratic: bool = False,
    ) -> None:
        check_flag("quadratic", quadratic)
        self.schedules, self.quadratic = checked_schedules(schedules), quadratic
        none = np.eye(len(self.schedules))  # nobody's data are known to be like another's
        self.alike = none if alike is None else as_numbers("alike", alike)
        self.n: list[float] = []
        self.held_out: list[Array] = []
        self._norms: list[Array] = []
        self._declared: list[Array] = []  # (4, L) per round
        self._updates: list[Array] = []
        self._w: list[Array] = []
        # round, q, log n, sums, lengths
        self._asked: list[tuple[int, Array, Array, Array, Array | None]] = []

    @property
    def declared(self) -> Declared:
        """The declared step sizes of the rounds so far."""
        return Declared(*np.stack(self._declared, axis=2))

    def add(
        self,
        norms: ArrayLike | None = None,
        *,
        n: float,
        updates: ArrayLike | None = None,
        w: ArrayLike | None = None,
        step_sums: ArrayLike | None = None,
        held_out: ArrayLike | None = None,
    ) -> None:
        """One round: its sizes (L,), or its updates (L, d), and the clock at its end.

        ``held_out`` (2, L) are the round's replayed sizes, NaN where it was not replayed.
        """
        moves = optional_numbers("updates", updates)
        if norms is None:
            if moves is None:
                raise FedtaperError("a round needs norms= or updates=")
            norms = np.linalg.norm(moves, axis=-1) if moves.ndim == 2 else moves
        check_number("n", n)
        n = float(n)
        sizes, sums = as_numbers("norms", norms), optional_numbers("step_sums", step_sums)
        count, before = len(self.schedules), self.n[-1] if self.n else 0.0
        flat = [array for array in (sizes, sums) if array is not None]
        flat += [] if moves is None else [moves[..., 0] if moves.ndim == 2 else moves[None]]
        if any(array.shape != (count,) for array in flat):
            raise FedtaperError(
                f"a round needs one size, sum and update for each of {count} clients"
            )
        if not n > before:
            raise FedtaperError(f"the clock must increase: n = {n:g} after {before:g}")
        self._norms.append(sizes)
        self._declared.append(declared_round(self.schedules, before, n, sums))
        self.n.append(n)
        if held_out is not None:
            self.held_out.append(as_numbers("held_out", held_out))
        if moves is not None:
            self._keep(moves, optional_numbers("w", w))

    def extend(
        self,
        norms: Array,
        n: Array,
        step_sums: Array | None = None,
        updates: Array | None = None,
        w: Array | None = None,
    ) -> None:
        """Add many rounds at once, each argument with a leading axis of rounds."""
        for k, clock in enumerate(n):
            self.add(
                norms[k],
                n=float(clock),
                updates=None if updates is None else updates[k],
                w=None if w is None else w[k],
                step_sums=None if step_sums is None else step_sums[k],
            )

    def challenge(
        self, products: ArrayLike, share: float = 1.0, sizes: ArrayLike | None = None
    ) -> None:
        """Add the answers to a challenge in the round added last, NaN where there is none.

        ``products`` (L,) are the inner products of the answers with what the same clients sent
        in the base round, ``sizes`` (L,) the norms of the answers: without them, networks with
        large steps can make honest clients look as if they faded. ``share`` is the share of a
        round's local updates that was asked for.
        """
        if not self.n:
            raise FedtaperError("add the round first, then its challenge")
        check_number("share", share, above=0)
        before = self.n[-2] if len(self.n) > 1 else 0.0
        end = before + max(1.0, round(share * (self.n[-1] - before)))
        sums, _, log_n, _ = declared_round(self.schedules, before, end, None)
        each = {"products": products} | ({} if sizes is None else {"sizes": sizes})
        found = {name: as_numbers(name, values) for name, values in each.items()}
        for name, values in found.items():
            if values.shape != sums.shape:
                raise FedtaperError(f"{name} has shape {values.shape}; it must be {sums.shape}")
        if self._asked and (self._asked[-1][-1] is None) != (sizes is None):
            raise FedtaperError("give the sizes of all answers, or of none")
        length = found["sizes"] / sums if "sizes" in found else None
        self._asked.append((len(self.n), found["products"] / sums, log_n, sums, length))

    @property
    def _answers(self) -> Asked | None:
        if not self._asked:
            return None
        rounds, *parts = zip(*self._asked, strict=True)
        q, log_n, sums = (np.stack(part, axis=1) for part in parts[:3])
        length = None if parts[3][0] is None else np.stack(parts[3], axis=1)
        return Asked(np.array(rounds), q, log_n, sums, length)

    def _keep(self, moves: Array, w: Array | None) -> None:
        small = sketch(moves)
        if w is None and self._w:
            self._w.append(self._w[-1] + np.nan_to_num(self._updates[-1]).mean(axis=0))
        else:
            self._w.append(np.zeros(small.shape[1]) if w is None else sketch(w))
        self._updates.append(small)

    def result(self, level: float = 0.95) -> Audit:
        """The verdicts so far."""
        if not self.n:
            raise FedtaperError("nothing to audit yet: add rounds first")
        whole = len(self._updates) == len(self.n)
        trace = Trace(
            np.stack(self._norms, axis=1),
            self.declared,
            np.stack(self._updates, axis=1) if whole else None,
            np.stack(self._w) if whole else None,
            HeldOut(np.stack(self.held_out, axis=1), self.alike)
            if len(self.held_out) == len(self.n)
            else None,
            self.quadratic,
            self._answers,
        )
        p = influence(self.schedules, n=self.n[-1])
        deltas = np.array([s.delta for s in self.schedules])
        return _assemble(trace, p, deltas, np.arange(1, len(self.n) + 1), np.array(self.n), level)


def _assemble(
    trace: Trace,
    declared_p: Array,
    deltas: Array,
    rounds: NDArray[np.int64],
    n: Array,
    level: float,
) -> Audit:
    check_number("level", level, above=0, below=1)
    from scipy.special import ndtri, stdtrit

    found = judge(trace)
    excess = np.where(np.isfinite(found.error), found.excess, np.nan)  # no guess without an error
    held = since(trace, found)
    exact = np.where(np.isfinite(found.freedom), stdtrit(found.freedom, 0.5 + level / 2), 0.0)
    width = np.where(exact > 0, exact, ndtri(0.5 + level / 2)) * found.error
    low, high = excess - width, excess + width
    log_n = trace.declared.log_n[:, -1]
    records = []
    for i, verdict in enumerate(found.verdicts):
        none = 0.0 if verdict == "idle" else float("nan")
        ratios = np.exp(-np.array([excess[i], high[i], low[i]]) * log_n[i])
        p = declared_p[i] * np.where(np.isnan(ratios), none, ratios)
        crossed = held[i]
        records.append(
            ClientAudit(
                client=i,
                verdict=verdict,
                declared_delta=float(deltas[i]),
                delta=float(deltas[i] + excess[i]),
                delta_low=float(deltas[i] + low[i]),
                delta_high=float(deltas[i] + high[i]),
                declared_p=float(declared_p[i]),
                p=float(p[0]),
                p_low=float(p[1]),
                p_high=float(p[2]),
                evidence=float(excess[i] / found.error[i]),
                since=None if crossed is None else int(rounds[crossed - 1]),
                notes=notes(verdict, found, i, trace),
            )
        )
    witness = "norms" if trace.updates is None else "updates"
    witness = "challenges" if trace.asked is not None else witness
    return Audit(tuple(records), int(rounds[-1]), float(n[-1]), witness, level)  # type: ignore[arg-type]  # one of three words


def _check_in_step(run: Run) -> None:
    e = run.experiment
    if e.asynchronous is not None or e.own_clock:
        raise FedtaperError(
            "an audit compares each round's updates with that round's step sizes: it cannot judge "
            "asynchronous servers and own clocks yet"
        )
    if e.delays is not None:
        warn(
            "updates are late: they were made with earlier step sizes than those that the audit "
            "compares them with, so early rounds look larger than declared"
        )


def _check_shapes(
    norms: Array, n: Array, sums: Array | None, updates: Array | None, w: Array | None, count: int
) -> None:
    if norms.ndim != 2 or norms.shape[1] != count:
        raise FedtaperError(
            f"the sizes have shape {norms.shape}; with {count} schedules it must be "
            f"(rounds, {count})"
        )
    rounds = len(norms)
    wanted = {"n": (n, (rounds,)), "step_sums": (sums, (rounds, count))}
    for name, (array, shape) in wanted.items():
        if array is not None and array.shape != shape:
            raise FedtaperError(f"{name} has shape {array.shape}; it must be {shape}")
    if updates is not None and (updates.ndim != 3 or updates.shape[:2] != (rounds, count)):
        raise FedtaperError(f"updates has shape {updates.shape}; it must be ({rounds}, {count}, d)")
    if w is not None and (updates is None or w.shape != (rounds, updates.shape[2])):
        raise FedtaperError("w needs updates=, and must have one model per round, as long as they")
    if np.any(norms < 0):
        raise FedtaperError("a size is negative; sizes must be norms of updates")
