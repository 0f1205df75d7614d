"""What every quadratic problem can compute from its moments: fields, losses, equilibria."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtaper.core.checks import as_numbers
from fedtaper.core.errors import FedtaperError
from fedtaper.core.sums import norms

Array = NDArray[np.float64]
Moments = tuple[Array, Array, Array]


def equilibrium(moments: Moments, p: ArrayLike) -> Array:
    """Where sum p_i h_i(w) = 0 (REG8): (..., d) for influences (..., L).

    The moments are A (L, d, d), b (L, d) and c (L,), or have leading axes as p has.
    """
    a, b, _ = moments
    p = checked_influences(p, a.shape[-3])
    if a.ndim == 3:
        return solved(weighted(p, a), weighted(p, b))
    return solved(np.einsum("...l,...lij->...ij", p, a), np.einsum("...l,...lj->...j", p, b))


def losses(moments: Moments, w: ArrayLike) -> Array:
    """Each client's loss w'A w / 2 - b'w + c / 2: (..., L) for models (..., d)."""
    a, b, c = moments
    w = np.asarray(w, dtype=np.float64)
    return np.asarray(0.5 * (np.einsum("...i,lij,...j->...l", w, a, w) + c) - w @ b.T)


def weighted(p: Array, terms: Array) -> Array:
    """The sum over clients of p_i times term i: (..., *shape) for terms (L, *shape).

    Row by row, so that a row's bits do not depend on how many rows there are: a product of whole
    matrices is computed differently for one row and for many, and a resumed or watched run is
    measured in other blocks of rounds.
    """
    found = p[..., None, :] @ terms.reshape(len(terms), -1)
    return np.asarray(found.reshape(*p.shape[:-1], *terms.shape[1:]))


def checked_influences(p: ArrayLike, count: int) -> Array:
    """Influences as numbers, one per client, at least 0 and not all 0."""
    found = np.asarray(as_numbers("p", p))
    if found.shape[-1:] != (count,):
        raise FedtaperError(
            f"p has {found.shape[-1] if found.ndim else 1} values for {count} clients"
        )
    finite = np.all(found >= 0) and np.all(np.isfinite(found))
    if not (finite and np.all(found.sum(axis=-1) > 0)):
        raise FedtaperError("influences must be finite, at least 0, and not all 0")
    return found


def solved(left: Array, right: Array) -> Array:
    """The solution of left w = right, or an error if there are several."""
    try:
        return np.asarray(np.linalg.solve(left, right[..., None])[..., 0])
    except np.linalg.LinAlgError:
        raise FedtaperError(
            "the clients that count have too few independent samples for one equilibrium: "
            "give them more samples, or influence to more clients"
        ) from None


class Quadratic:
    """Mean fields, losses and equilibria of a problem that has ``moments``."""

    @property
    @abstractmethod
    def moments(self) -> Moments:
        """A (L, d, d), b (L, d) and c (L,): client i's loss is w'A w / 2 - b'w + c / 2."""

    @property
    def curvature(self) -> Array:
        """Each client's largest curvature (its Lipschitz constant K_1 of A1)."""
        return np.asarray(np.linalg.eigvalsh(self.moments[0])[:, -1], dtype=np.float64)

    def mean_field(self, w: Array) -> Array:
        """h_i(w) of every client: shape (..., L, d) for w of shape (..., d)."""
        a, b, _ = self.moments
        return np.asarray(b - np.einsum("lij,...j->...li", a, np.asarray(w)))

    def losses(self, w: Array) -> Array:
        """Each client's loss: shape (..., L)."""
        return losses(self.moments, w)

    def metrics(self, w: Array, p_n: Array, p: Array) -> dict[str, Array]:
        """What is tracked along trajectories w (seeds, rounds, d), influences p_n (rounds, L)."""
        a, b, c = self.moments
        # products of the same numbers that lie differently in memory differ in their last bits
        w, p_n = np.array(w, order="C"), np.array(p_n, order="C")
        if (p_n == p_n[0]).all():  # equal schedules: one equilibrium serves every round
            p_n = p_n[:1]
        p_n = checked_influences(p_n, len(b))
        left, right = weighted(p_n, a), weighted(p_n, b)
        pull = right - (left @ w[..., None])[..., 0]
        mean_pull = 2 * b.mean(axis=0) - weighted(w, a.mean(axis=0))
        return {
            "error": norms(w - solved(left, right)),
            "error_limit": norms(w - self.equilibrium(p)),
            "gradient_norm": norms(pull),
            "train_loss": 0.5 * (c.mean() - np.einsum("srd,srd->sr", w, mean_pull)),
        }

    def equilibrium(self, p: ArrayLike) -> Array:
        """Where sum p_i h_i(w) = 0 (REG8): shape (..., d) for influences of shape (..., L)."""
        return equilibrium(self.moments, p)
