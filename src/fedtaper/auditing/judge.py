"""From traces to verdicts.

For quadratic losses an accusation is made where the estimate leaves a confidence sequence: the
normal-mixture boundary of Robbins (1970), used with estimated errors as in Waudby-Smith et al.
(2021), from round LEAST_ROUNDS on. It holds for all rounds at once, so looking after every round
does not add up to wrong accusations. Its one free number, the excess for which it is tightest, and
the first round were set on separate seeds (see docs/audit.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaper.auditing import directions, own_check, robust, sizes, taper
from fedtaper.auditing.challenges import Asked, examine
from fedtaper.auditing.records import (
    ACCUSATIONS,
    DIVERGED,
    MISFIT,
    NO_WITNESS,
    SATURATED,
    SIZES_ONLY,
    TURNED,
    Verdict,
)
from fedtaper.auditing.replay import HeldOut, fit_replayed
from fedtaper.auditing.taper import Declared, Fit

Array = NDArray[np.float64]
EVER = 0.005  # chance that an honest client is ever called fading; the same for rising
TIGHTEST = 0.05  # excess for which the confidence sequence is tightest
PEERS_LINE = 5.0  # standard errors, at least, where clients are only compared with one another
RULED_OUT = 0.14  # "as declared" says that an excess of this much is ruled out
LEAST_ROUNDS = 12
IDLE_ROUNDS, IDLE_SIZE = 3, 1e-9
PEERS = 100


@dataclass(frozen=True)
class Trace:
    """What a server saw: (L, rounds) sizes, NaN where absent, and the updates if known."""

    norms: Array
    declared: Declared
    updates: Array | None = None  # (L, rounds, d)
    w: Array | None = None  # (rounds, d), the model each round started from
    held_out: HeldOut | None = None  # what the server expects from data of its own
    quadratic: bool = True  # whether the losses are, so that updates alone show a taper
    asked: Asked | None = None  # the answers to challenges
    even: bool = True  # whether curvatures are known, or said, to be alike in all directions
    lost: int | None = None  # the round in which the run diverged

    def among(self, clients: NDArray[np.int64]) -> Trace:
        """Some of the clients."""
        held = None if self.held_out is None else self.held_out.among(clients)
        moves = None if self.updates is None else self.updates[clients]
        declared = self.declared.pick(clients)
        asked = None if self.asked is None else self.asked.among(clients)
        known = (self.quadratic, asked, self.even, self.lost)
        return Trace(self.norms[clients], declared, moves, self.w, held, *known)

    def without_tapers(self) -> Trace:
        """What shows only idle clients, noise and copies, and nothing about how fast one tapers."""
        return Trace(self.norms, self.declared, self.updates, self.w, quadratic=False)

    def until(self, rounds: int) -> Trace:
        """The first rounds."""
        return Trace(
            self.norms[:, :rounds],
            self.declared.pick(slice(None), slice(rounds)),
            None if self.updates is None else self.updates[:, :rounds],
            None if self.w is None else self.w[:rounds],
            None if self.held_out is None else self.held_out.until(rounds),
            self.quadratic,
            None if self.asked is None else self.asked.until(rounds),
            self.even,
            self.lost,
        )


@dataclass(frozen=True)
class Finding:
    """Verdicts on all clients and the numbers behind them."""

    verdicts: tuple[Verdict, ...]
    excess: Array
    error: Array
    curvature: Array  # relative to the middle client's
    witness: str  # what the taper was estimated from
    freedom: Array  # degrees of freedom of the error
    found: NDArray[np.int64]  # challenges: the round from which on it is accused, else 0
    unexplained: NDArray[np.bool_]  # challenges: slower than declared, and nothing says why
    turned: NDArray[np.bool_]  # challenges: its answers point elsewhere as its steps shrink


def judge(trace: Trace) -> Finding:
    """The verdict on each client."""
    idle = _idle(trace)
    copying = noise = np.zeros(len(idle), dtype=bool)
    if trace.updates is not None:
        copying = directions.copying(trace.updates)
        noise = directions.noise(trace.updates, trace.declared.sums) & ~copying
    plain = ~(idle | copying | noise)
    excess, error = np.full(len(idle), np.nan), np.full(len(idle), np.nan)
    curvature, explained = np.ones(len(idle)), np.ones(len(idle))
    freedom, since_round = np.full(len(idle), np.inf), np.zeros(len(idle), dtype=np.int64)
    unexplained = turned = np.zeros(len(idle), dtype=bool)
    witness = "norms" if trace.quadratic or trace.held_out is not None else "none"
    if trace.quadratic and not trace.even and trace.held_out is None:
        witness = "misfit"
    if trace.lost is not None:
        witness = "diverged"
    if trace.asked is not None:
        said, witness = examine(trace.asked), "challenges"
        excess, error, freedom, since_round = said.excess, said.error, said.freedom, said.found
        unexplained, turned = said.unexplained, said.turned
    elif plain.any() and trace.norms.shape[1] >= LEAST_ROUNDS and witness == "norms":
        fit, witness = _fit(trace, plain)
        if witness != "misfit":
            excess[plain], error[plain], explained[plain] = fit.excess, fit.error, fit.explained
            curvature[plain] = np.exp(fit.log_curvature - np.median(fit.log_curvature))
    verdicts: list[Verdict] = []
    for i in range(len(idle)):
        if witness == "challenges":
            found = _challenge_verdict(excess[i], error[i], freedom[i], int(since_round[i]))
        else:
            line = trace.held_out.line if trace.held_out is not None else PEERS_LINE
            found = _taper_verdict(excess[i], error[i], witness, line)
        if found == "as declared" and (explained[i] < 0.5 or witness == "peers"):
            found = "cannot tell yet"  # it follows no model that would say so
        verdicts.append(
            "idle" if idle[i] else "copying" if copying[i] else "noise" if noise[i] else found
        )
    since_round = np.where(plain, since_round, 0)
    seen = (excess, error, curvature, witness, freedom, since_round, unexplained, turned)
    return Finding(tuple(verdicts), *seen)


def notes(verdict: str, found: Finding, i: int, trace: Trace) -> tuple[str, ...]:
    """What has to be said beside the verdict on client i."""
    said = []
    if trace.lost is not None and verdict.startswith("cannot tell"):
        said.append(DIVERGED.format(trace.lost))
    elif verdict == "cannot tell":
        said.append(MISFIT if found.witness == "misfit" else NO_WITNESS)
    if verdict == "cannot tell yet" and (found.turned[i] or found.unexplained[i]):
        said.append(TURNED if found.turned[i] else SATURATED)
    if trace.updates is None and verdict == "as declared" and trace.asked is None:
        said.append(SIZES_ONLY)
    if found.witness == "updates" and not 0.5 < found.curvature[i] < 2:
        said.append(
            f"pulls {found.curvature[i]:.2g} times as hard as the median client at the same "
            "declared step: other data, or another c than declared; updates cannot tell which"
        )
    return tuple(said)


def since(trace: Trace, final: Finding) -> list[int | None]:
    """The round (counted from 1) since which each accusation has held, looked at now and then.

    The past is judged among the accused and at most PEERS others, which is enough to compare.
    """
    accused = np.array([verdict in ACCUSATIONS for verdict in final.verdicts])
    chosen = np.flatnonzero(accused | (np.cumsum(~accused) <= PEERS))
    past, last = trace.among(chosen), trace.norms.shape[1]
    if trace.asked is not None:  # who fades is known by the round of its answer
        past = past.without_tapers()
    standing = {j: i for j, i in enumerate(chosen) if accused[i] and not final.found[i]}
    out: list[int | None] = [last if flag else None for flag in accused]
    looks = np.unique(np.geomspace(min(LEAST_ROUNDS, last), last, 12).round().astype(int))[:-1]
    for look in looks[::-1]:
        if not standing:
            break
        then = judge(past.until(int(look))).verdicts
        standing = {j: i for j, i in standing.items() if then[j] == final.verdicts[i]}
        for i in standing.values():
            out[i] = int(look)
    return [int(known) if known else past for known, past in zip(final.found, out, strict=True)]


def _taper_verdict(excess: float, error: float, witness: str, line: float) -> Verdict:
    if witness in ("none", "misfit", "diverged"):
        return "cannot tell"
    if not np.isfinite(error):
        return "cannot tell yet"
    accuse, score = threshold(error, witness, line), excess / error
    if score > accuse:
        return "fading"
    if score < -accuse - (1 if witness == "updates" else 3):  # peers that fade look like this
        # a network may learn its own samples more slowly than held-out ones, honestly
        return "cannot tell yet" if witness == "held-out" else "rising"
    sure = score > -accuse and excess + 1.96 * error < RULED_OUT
    return "as declared" if sure else "cannot tell yet"


def threshold(error: float, witness: str, line: float = 0.0) -> float:
    """How many standard errors make an excess an accusation, at any number of looks.

    ``line``: replays use this one, for a single look; clients that are only compared with one
    another use at least this one.
    """
    if witness == "held-out":
        return line
    information = (TIGHTEST / error) ** 2
    always = (1 + 1 / information) * (2 * np.log(0.5 / EVER) + np.log1p(information))
    return max(float(np.sqrt(always)), line if witness == "peers" else 0.0)


def _challenge_verdict(excess: float, error: float, freedom: float, found: int) -> Verdict:
    """Once accused, always accused: the guarantee is about ever being accused.

    Nobody is called rising, because saturation makes honest clients look slower than they are.
    """
    if found:
        return "fading"
    if not np.isfinite(error):
        return "cannot tell yet"
    from scipy.special import stdtrit

    sure = excess + float(stdtrit(freedom, 0.975)) * error < RULED_OUT
    return "as declared" if sure else "cannot tell yet"


def _fit(trace: Trace, plain: NDArray[np.bool_]) -> tuple[Fit, str]:
    """The taper from replays, from updates if their model explains them, or from sizes."""
    if trace.held_out is not None:
        found = trace.held_out.among(np.flatnonzero(plain))
        return fit_replayed(trace.norms[plain], found), "held-out"
    declared = trace.declared.pick(plain)
    stretch = robust.bins(declared.log_n[0])
    merged = Declared(
        *(robust.averaged(f, stretch, 1) for f in (
            declared.sums, declared.squares, declared.log_n, declared.largest
        ))
    )  # fmt: skip
    norms = trace.norms[plain]
    there = np.isfinite(norms)
    each = np.zeros((len(norms), int(stretch[-1]) + 1))
    np.add.at(each.T, stretch, there.T)
    if trace.updates is not None and trace.w is not None:
        u = robust.averaged(trace.updates[plain], stretch, 1)
        w = robust.averaged(trace.w, stretch, 0)
        fit = taper.fit_updates(u, w, merged, each)
        if np.median(fit.explained) > 0.8:
            return _believed(fit, own_check.p_values(np.nan_to_num(u), w, merged, each, fit))
    logs = np.log(np.where(there & (norms > 0), norms, np.nan))
    merged_norms = np.exp(robust.averaged(logs, stretch, 1))
    fit = sizes.fit_sizes(merged_norms, merged, each)
    if sizes.plausible(fit):
        return fit, "norms"
    return taper.fit_peers(merged_norms, merged, each), "peers"


def _believed(fit: Fit, p: Array) -> tuple[Fit, str]:
    """The fit of the updates, if the clients that are not suspected follow its model.

    A client that starts to fade later does not follow it, and must not protect itself by that.
    """
    line = np.array([threshold(error, "updates") for error in fit.error])
    follows = own_check.holds(p, np.abs(fit.excess) < line * fit.error)
    return fit, "updates" if follows else "misfit"


def _idle(trace: Trace) -> NDArray[np.bool_]:
    """Clients whose last updates, whenever they took part, were negligible next to the others'."""
    relative = trace.norms / trace.declared.sums
    positive = relative[np.isfinite(relative) & (relative > 0)]
    usual = float(np.median(positive)) if positive.size else 1.0
    out = np.zeros(len(relative), dtype=bool)
    for i, row in enumerate(relative):
        seen = row[np.isfinite(row)][-IDLE_ROUNDS:]
        out[i] = len(seen) == IDLE_ROUNDS and bool(np.all(seen <= IDLE_SIZE * usual))
    return out
