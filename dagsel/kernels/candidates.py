"""Test residuals of every candidate of a request, from the factors of a fold.

A candidate's residuals are e + g z, with its image z and its gain g for every target; see
`dagsel.kernels.factors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagsel.backend import Array
from dagsel.kernels.factor_updates import dependence
from dagsel.kernels.factors import DUAL, Factors, is_independent

__all__ = ["Steps", "candidate_residuals", "candidate_steps", "toggled_errors"]

# Sums of squares that are a smaller part of what they are made from are computed anew.
_CANCELLED = 1e-2


@dataclass(frozen=True)
class Steps:
    """Where toggling each of m columns moves the test residuals.

    Attributes
    ----------
    gain : array of shape (m, t)
        Multiplies the image; meaningful for the requested columns alone.
    by_steps : array of bool of shape (m,)
        Whether the image is in `Factors.steps`, and not in `Factors.images`.
    pivot : array of shape (m,)
        What the gain was divided by.
    unclear : bool
        Whether it cannot be told if a column depends on others.
    """

    gain: Array
    by_steps: Array
    pivot: Array
    unclear: bool = False


def candidate_steps(xp: Any, state: Factors, candidates: Array, *, removal: bool) -> Steps:
    """Return the steps of removing active columns, or of adding inactive ones.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
    candidates : array of int of shape (c,)
        All active for a removal, none for an addition.
    removal : bool
    """
    nowhere = xp.zeros_like(state.active)
    if removal:
        if state.mode == DUAL:
            pivot, by_steps = 1 - state.norms, nowhere
        else:
            by_steps = state.active & (state.null == 0)
            pivot = xp.where(by_steps, state.norms, state.null)
        pivot = xp.where(pivot > 0, pivot, xp.ones_like(pivot))
        return Steps(state.coefficients / pivot[:, None], by_steps, pivot)
    products = xp.matmul(state.duals, state.targets)
    if state.mode == DUAL:
        pivot = 1 + state.norms
        return Steps(-products / pivot[:, None], nowhere, pivot)
    independent = is_independent(state)
    pivot = xp.where(independent, state.norms, xp.ones_like(state.norms))
    gain = -products / pivot[:, None]
    among = xp.take(candidates, xp.nonzero(~xp.take(independent, candidates))[0])
    if not among.shape[0]:
        return Steps(gain, nowhere, pivot)
    gain, pivot, unclear = _dependent_steps(xp, state, among, gain, pivot)
    return Steps(gain, nowhere, pivot, unclear)


def _dependent_steps(
    xp: Any, state: Factors, among: Array, gain: Array, pivot: Array
) -> tuple[Array, Array, bool]:
    onto, unclear = dependence(xp, state, xp.take(state.train, among, axis=0))
    eta = 1 + xp.linalg.vecdot(onto, onto)
    found = -xp.matmul(onto, state.coefficients) / eta[:, None]
    index = xp.arange(pivot.shape[0], device=pivot.device)
    order = xp.argsort(among)
    among = xp.take(among, order)
    place = xp.searchsorted(among, index)
    place = xp.where(place < among.shape[0], place, xp.zeros_like(place))
    here = xp.take(among, place) == index
    sorted_gain = xp.take(xp.take(found, order, axis=0), place, axis=0)
    gain = xp.where(here[:, None], sorted_gain, gain)
    pivot = xp.where(here, xp.take(xp.take(eta, order), place), pivot)
    return gain, pivot, unclear


def toggled_errors(xp: Any, state: Factors, steps: Steps, candidates: Array) -> tuple[Array, Array]:
    """Return the sums of squared test residuals of every candidate.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
    steps : Steps
        Of `candidate_steps`.
    candidates : array of int of shape (c,)

    Returns
    -------
    errors : array of shape (c, t)
        Not negative.
    reach : array of shape (c, t)
        Squared norm of the step: what rounding of `errors` is relative to, besides themselves.
    """
    products, squares = _image_products(xp, state, steps, candidates)
    gain = xp.take(steps.gain, candidates, axis=0)
    now = xp.sum(state.residuals * state.residuals, axis=0)
    reach = gain * gain * xp.take(squares, candidates)[:, None]
    errors = now[None, :] + 2 * gain * xp.take(products, candidates, axis=0) + reach
    cancelled = xp.any(errors < _CANCELLED * (now[None, :] + reach), axis=1)
    again = xp.nonzero(cancelled)[0]
    if not again.shape[0]:
        return errors, reach
    exact = _direct_errors(xp, state, steps, xp.take(candidates, again))
    others = xp.nonzero(~cancelled)[0]
    order = xp.argsort(xp.concat([again, others]))
    return xp.take(xp.concat([exact, xp.take(errors, others, axis=0)]), order, axis=0), reach


def _image_products(
    xp: Any, state: Factors, steps: Steps, candidates: Array
) -> tuple[Array, Array]:
    """Return z'e and |z|² for all columns, each kind of image read only where it is needed."""
    chosen = xp.take(steps.by_steps, candidates)
    parts = []
    if bool(xp.any(chosen)):
        parts.append(state.steps)
    if not bool(xp.all(chosen)):
        parts.append(state.images)
    found = [(xp.matmul(part, state.residuals), xp.linalg.vecdot(part, part)) for part in parts]
    if len(found) == 1:
        return found[0]
    (one, one_squares), (other, other_squares) = found
    here = steps.by_steps
    return xp.where(here[:, None], one, other), xp.where(here, one_squares, other_squares)


# Residuals computed at once: q times as many numbers exist meanwhile.
_AT_ONCE = 64


def _direct_errors(xp: Any, state: Factors, steps: Steps, candidates: Array) -> Array:
    parts = []
    for start in range(0, candidates.shape[0], _AT_ONCE):
        residuals = candidate_residuals(xp, state, steps, candidates[start : start + _AT_ONCE])
        parts.append(xp.sum(residuals * residuals, axis=2))
    return xp.concat(parts)


def candidate_residuals(xp: Any, state: Factors, steps: Steps, candidates: Array) -> Array:
    """Return the test residuals of some candidates.

    Returns
    -------
    array of shape (c, t, q)
        For as many candidates as the caller has memory for.
    """
    gain = xp.take(steps.gain, candidates, axis=0)
    images = candidate_images(xp, state, steps, candidates)
    return state.residuals.T[None, :, :] + gain[:, :, None] * images[:, None, :]


def candidate_images(xp: Any, state: Factors, steps: Steps, candidates: Array) -> Array:
    """Return the images of some candidates; shape (c, q)."""
    chosen = xp.take(steps.by_steps, candidates)
    if bool(xp.all(chosen)):
        return xp.take(state.steps, candidates, axis=0)
    images = xp.take(state.images, candidates, axis=0)
    if not bool(xp.any(chosen)):
        return images
    return xp.where(chosen[:, None], xp.take(state.steps, candidates, axis=0), images)
