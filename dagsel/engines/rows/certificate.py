"""What vouches for a candidate: clear singular values, and rounding that does not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import EPSILON, Array, to_device_of, to_host
from dagsel.engines.accuracy import explain_cutoff
from dagsel.engines.linear_model import LinearModel
from dagsel.engines.rows.fold import CLEAR_OF_CUTOFF, ERROR_FACTOR
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.candidates import Steps
from dagsel.kernels.factors import DUAL, Factors, is_independent, removal_growth
from dagsel.kernels.pseudo_inverse import singular_values
from dagsel.kernels.truncation import (
    largest_inverse_values,
    largest_value,
    truncated_change,
)

__all__ = [
    "Candidates",
    "candidate_growth",
    "check_noise",
    "check_subsets",
    "relative_error",
    "step_growth",
]

Floats = NDArray[np.float64]
# A bound of relative errors that is good enough as it is.
_NEGLIGIBLE = 1e-12
# What a column that is added contributes to the growth of rounding, as measured: a random case with
# columns about 1e4 and no intercept needs 2.5 times what the algebra says.
_ADDED = 3.0
# Subsets of one round whose singular values are computed before the engine gives up.
_MOST_DECOMPOSED = 16
# A singular value that is cut off is smaller than the others by this factor at least, and its
# vector is right to this.
_APART = 4.0
_VECTOR_ERROR = 1e-11
# How many of a subset's smallest singular values are looked at.
_WIDTH = 4


class Candidates(NamedTuple):
    """Candidates of a request in a fold.

    Attributes
    ----------
    positions : ndarray of int of shape (c,)
        In the factors.
    removal : bool
    pivot : ndarray of shape (c,)
        See `Steps`.
    by_steps : ndarray of bool of shape (c,)
        Whether they are essential.
    norms, squares : ndarray of shape (c,)
        See `Factors`.
    independent : ndarray of bool of shape (c,)
        Whether they can be added without making the columns dependent.
    """

    positions: NDArray[np.intp]
    removal: bool
    pivot: Floats
    by_steps: NDArray[np.bool_]
    norms: Floats
    squares: Floats
    independent: NDArray[np.bool_]

    @classmethod
    def of(
        cls, factors: Factors, steps: Steps, positions: NDArray[np.intp], *, removal: bool
    ) -> Candidates:
        """Take the candidates' entries out of the arrays over all columns."""
        pivot, by_steps, norms, squares = (
            to_host(part)[positions]
            for part in (steps.pivot, steps.by_steps, factors.norms, factors.squares)
        )
        independent = to_host(is_independent(factors))[positions]
        return cls(positions, removal, pivot, by_steps, norms, squares, independent)


def candidate_growth(xp: Any, factors: Factors, candidates: Candidates) -> Floats:
    """Return the growth of rounding errors in each candidate's residuals; shape (c,).

    Adding a column brings the pseudo-inverse closer to singularity by as much as it was dependent.
    For what the removal of a redundant column adds, see `step_growth`.
    """
    growth = np.full(len(candidates.positions), factors.growth)
    if factors.mode == DUAL:
        return growth / np.minimum(candidates.pivot, 1.0)
    if candidates.removal:
        return growth
    new = candidates.independent
    ratio = np.ones_like(growth)
    ratio[new] = candidates.squares[new] / candidates.norms[new]
    bound: Floats = growth * np.sqrt(ratio)
    coarse = np.flatnonzero(new & (relative_error(bound) > _NEGLIGIBLE))
    if len(coarse):
        chosen = to_device_of(factors.train, candidates.positions[coarse])
        spread = to_host(_coefficients(xp, factors, xp.take(factors.train, chosen, axis=0)))
        exact = (1 + spread / candidates.squares[coarse]) * ratio[coarse]
        bound[coarse] = np.sqrt(growth[coarse] ** 2 + _ADDED**2 * exact)
    return bound


def step_growth(xp: Any, factors: Factors, candidates: Candidates) -> Floats:
    """Return the growth of rounding errors of each candidate's step by itself; shape (c,).

    That of redundant columns; see `removal_growth`.
    """
    growth = np.zeros(len(candidates.positions))
    redundant = np.flatnonzero(~candidates.by_steps)
    if candidates.removal and factors.mode != DUAL and len(redundant):
        chosen = to_device_of(factors.train, candidates.positions[redundant])
        growth[redundant] = to_host(removal_growth(xp, factors, chosen))
    return growth


def _coefficients(xp: Any, factors: Factors, rows: Any) -> Any:
    """Return the squared norms of columns' coefficients on the active ones of unit length."""
    weight = xp.astype(factors.active, factors.squares.dtype) * factors.squares
    found = xp.matmul(rows, factors.duals.T)
    return xp.sum(found * found * weight[None, :], axis=1)


def check_subsets(
    xp: Any, model: LinearModel, fold: int, factors: Factors, candidates: Candidates | None
) -> dict[int, Array]:
    """Make sure that every candidate's singular values are clear of the estimator's cutoff.

    Traces bound them for nothing; where they do not settle it, a few are computed. Where the
    removal of a redundant column alone leaves a singular value below the cutoff, its refit does
    without, and so does its score here; but a search that goes there leaves this engine.

    Returns
    -------
    dict
        For such candidates, what that adds to their residuals.

    Raises
    ------
    NotCertifiedError
        If a subset is not certified.
    """
    assert model.cutoff is not None, "ridge drops no singular values"
    cutoff = model.cutoff
    allowed = (CLEAR_OF_CUTOFF * cutoff) ** -2
    if not factors.inverse_norm * factors.norm < allowed:
        values, _, _ = largest_inverse_values(xp, factors, None, _WIDTH)
        norm = largest_value(xp, factors, None)
        ratio = (float(values[0]) * norm) ** -0.5
        if not ratio > CLEAR_OF_CUTOFF * cutoff:
            raise NotCertifiedError(explain_cutoff(fold, ratio, cutoff))
        factors = replace(factors, inverse_norm=float(values[0]), norm=norm)
    if candidates is None:
        return {}
    inverses, norms = _bounds(factors, candidates)
    doubtful = np.flatnonzero(~(inverses * norms < allowed))
    if len(doubtful) > _MOST_DECOMPOSED:
        worst = float(np.max(inverses[doubtful] * norms[doubtful])) ** -0.5
        raise NotCertifiedError(explain_cutoff(fold, worst, cutoff))
    changes: dict[int, Array] = {}
    for which in map(int, doubtful):
        if candidates.removal:
            change = _cut_off(xp, cutoff, fold, factors, int(candidates.positions[which]))
            if change is not None:
                changes[which] = change
        else:
            _check_addition(xp, cutoff, fold, factors, candidates, which)
    return changes


def _cut_off(xp: Any, cutoff: float, fold: int, factors: Factors, position: int) -> Array | None:
    """Return the change of residuals by what a redundant column's removal cuts off, if any is.

    A singular value that is cut off must be alone and far apart from those that are not, or its
    vector is not known.
    """
    values, vectors, error = largest_inverse_values(xp, factors, position, _WIDTH)
    spread = to_host(values) * largest_value(xp, factors, position)
    # No value is left where what remains are columns of zeros.
    ratios = np.sqrt(np.divide(1.0, spread, out=np.full_like(spread, np.inf), where=spread > 0))
    if ratios[0] > CLEAR_OF_CUTOFF * cutoff:
        return None
    alone = len(ratios) == 1 or ratios[1] > max(_APART * ratios[0], CLEAR_OF_CUTOFF * cutoff)
    if ratios[0] * CLEAR_OF_CUTOFF > cutoff or not alone or error > _VECTOR_ERROR:
        raise NotCertifiedError(explain_cutoff(fold, float(ratios[0]), cutoff))
    return truncated_change(xp, factors, position, vectors[:, :1])


def _check_addition(
    xp: Any, cutoff: float, fold: int, factors: Factors, candidates: Candidates, which: int
) -> None:
    mask = to_host(factors.active).copy()
    mask[candidates.positions[which]] = True
    chosen = to_device_of(factors.train, np.flatnonzero(mask))
    values = to_host(singular_values(xp, xp.take(factors.train, chosen, axis=0)))
    nullity = factors.nullity + (0 if candidates.independent[which] else 1)
    ratio = float(values[int(np.count_nonzero(mask)) - nullity - 1] / values[0])
    if not ratio > CLEAR_OF_CUTOFF * cutoff:
        raise NotCertifiedError(explain_cutoff(fold, ratio, cutoff))


def _bounds(factors: Factors, candidates: Candidates) -> tuple[Floats, Floats]:
    """Return bounds of 1/σ_min² and σ_max² of every candidate's subset."""
    inverse = np.full(len(candidates.positions), factors.inverse_norm)
    norm = np.full(len(candidates.positions), factors.norm)
    if candidates.removal:
        redundant = ~candidates.by_steps
        inverse[redundant] += candidates.norms[redundant] / candidates.pivot[redundant]
        return inverse, norm
    new = candidates.independent
    # |s|² ≤ |x|² |W|
    longer = 1 + candidates.squares[new] * factors.inverse_norm
    inverse[new] += longer / candidates.norms[new]
    return inverse, norm + candidates.squares


def check_noise(
    model: LinearModel,
    fold: int,
    noise: Floats,
    factors: Factors,
    candidates: Candidates | None,
) -> None:
    """Make sure that columns that are constant but for rounding do not make up a subset.

    Where nothing else is in the model an estimator fits that rounding, and its scores mean
    nothing. `noise` has an entry for each column of the factors.
    """
    if model.cutoff is None or not np.any(noise):
        return
    active, lengths = to_host(factors.active), np.sqrt(to_host(factors.squares))
    subsets: list[NDArray[np.bool_]] = [active]
    # A candidate differs in one column: that matters where there are few.
    if candidates is not None and np.count_nonzero(active & (lengths > 0)) <= 2:
        subsets = [active ^ (np.arange(len(active)) == j) for j in candidates.positions]
    for subset in subsets:
        largest = float(np.max(lengths[subset], initial=0.0))
        column = int(np.argmax(np.where(subset, noise, 0.0)))
        if subset[column] and noise[column] > 0.5 * model.cutoff * largest:
            msg = (
                f"a column is constant in the training rows of fold {fold} but not in its test "
                "rows, and nothing else is in the model: what an estimator makes of it is "
                "rounding; drop the column to stay on the fast engine"
            )
            raise NotCertifiedError(msg)


def relative_error(growth: Any) -> Any:
    """Return the relative error that residuals can have."""
    return ERROR_FACTOR * EPSILON * growth
