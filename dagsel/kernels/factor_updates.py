"""Toggling a column of a fold's factors: the updates of `dagsel.kernels.factors`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagsel.backend import EPSILON, Array, add_outer
from dagsel.kernels.factors import (
    DUAL,
    Factors,
    Places,
    is_independent,
    measured,
    owned,
    present_growth,
)
from dagsel.kernels.pseudo_inverse import null_diagonal

__all__ = ["dependence", "toggle"]

# Coefficients of a dependent column on the active ones are zero below this many times ε |v| |x|
# and the growth of rounding errors, and unclear up to a thousand times that.
_ZERO_COEFFICIENT = 100.0
_UNCLEAR = 1e3
# A null diagonal that was reduced to less than this part of itself is computed anew.
_REDUCED = 1e-2
# An added column's residual is orthogonal to the active ones only as far as their duals are, so
# that the error of coefficients takes the condition once more: by measurement the growth times
# the root of the largest variance inflation, times up to 0.1 in units of other errors.
_ADDED = 0.2


def toggle(
    xp: Any,
    state: Factors,
    position: int,
    *,
    overwrite: bool = False,
    keep_inactive: bool = True,
) -> Factors:
    """Toggle the column at `position`.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
        Its `duals`, `steps` and `images` are written to if `overwrite`.
    position : int
        Which of the m columns.
    overwrite : bool
        Whether the state is no longer needed.
    keep_inactive : bool
        Whether inactive columns may be added again. If not, their rows are no longer meaningful.
    """
    if state.mode == DUAL:
        return _toggle_dual(xp, state, position, overwrite)
    if bool(state.active[position]):
        if float(state.null[position]) > 0:
            return _remove_redundant(xp, state, position, overwrite, keep_inactive)
        return _remove_essential(xp, state, position, overwrite, keep_inactive)
    independent = bool(is_independent(state)[position])
    add = _add_independent if independent else _add_dependent
    return add(xp, state, position, overwrite)


def _masks(xp: Any, state: Factors, position: int) -> tuple[Array, Array]:
    """Return the active and the inactive columns but for one, as numbers."""
    active = xp.astype(state.active, state.norms.dtype)
    inactive = 1 - active
    active[position] = 0.0
    inactive[position] = 0.0
    return active, inactive


def _remove_essential(
    xp: Any, state: Factors, j: int, overwrite: bool, keep_inactive: bool
) -> Factors:
    active, inactive = _masks(xp, state, j)
    dual, step = state.duals[j, :] * 1.0, state.steps[j, :] * 1.0
    size = float(xp.linalg.vecdot(dual, dual))
    down = active * xp.matmul(state.duals, dual) / size
    across = inactive * xp.matmul(state.train, dual) / size if keep_inactive else None
    duals = add_outer(
        xp, state.duals, -down if across is None else across - down, dual, overwrite=overwrite
    )
    steps = add_outer(xp, state.steps, -down, step, overwrite=overwrite)
    images = _shifted(xp, state.images, across, step, overwrite)
    duals[j, :], steps[j, :], images[j, :] = dual / size, 0.0 * step, step / size
    beta = state.coefficients[j, :]
    coefficients = state.coefficients - down[:, None] * beta[None, :]
    coefficients[j, :] = 0.0 * beta
    return measured(
        xp,
        _with_active(xp, state, j, False),
        duals=duals,
        steps=steps,
        images=images,
        coefficients=coefficients,
        residuals=state.residuals + step[:, None] * (beta / size)[None, :],
    )


def _shifted(xp: Any, matrix: Array, left: Array | None, right: Array, overwrite: bool) -> Array:
    """Return `matrix + left right'`, or an array to write to that equals `matrix`."""
    if left is not None:
        return add_outer(xp, matrix, left, right, overwrite=overwrite)
    return matrix if overwrite else owned(xp, matrix)


def _remove_redundant(
    xp: Any, state: Factors, j: int, overwrite: bool, keep_inactive: bool
) -> Factors:
    active, inactive = _masks(xp, state, j)
    dual, step, image = (part[j, :] * 1.0 for part in (state.duals, state.steps, state.images))
    null = float(state.null[j])
    products = xp.matmul(state.train, dual)
    # Essential columns have no part in the null space, whatever rounding says.
    essential = xp.astype(state.null > 0, active.dtype)
    along = active * essential * products / null
    across = inactive * products / null if keep_inactive else None
    size = float(xp.linalg.vecdot(dual, dual))
    down = active * xp.matmul(state.duals, dual)
    duals = add_outer(xp, state.duals, along, dual, overwrite=overwrite)
    steps = add_outer(xp, state.steps, along, step, overwrite=overwrite)
    steps = add_outer(xp, steps, -(down + along * size) / null, image, overwrite=True)
    spread = along if across is None else along + across
    images = add_outer(xp, state.images, spread, image, overwrite=overwrite)
    duals[j, :], steps[j, :], images[j, :] = 0.0 * dual, 0.0 * step, image / null
    beta = state.coefficients[j, :]
    coefficients = state.coefficients + along[:, None] * beta[None, :]
    coefficients[j, :] = 0.0 * beta
    moved = replace(
        _with_active(xp, state, j, False),
        nullity=state.nullity - 1,
        inverse_norm=state.inverse_norm + size / null,
    )
    reduced = state.null - along * along * null
    reduced[j] = 0.0
    moved = _with_null(xp, moved, duals, state.null, reduced)
    return measured(
        xp,
        moved,
        duals=duals,
        steps=steps,
        images=images,
        coefficients=coefficients,
        residuals=state.residuals + image[:, None] * (beta / null)[None, :],
    )


def _with_null(xp: Any, state: Factors, duals: Array, before: Array, null: Array) -> Factors:
    """Return the state with a reduced null diagonal, digits lost on the way computed anew."""
    if not state.nullity:
        return replace(state, null=xp.zeros_like(null))
    lost = xp.nonzero(state.active & (before > 0) & (null < _REDUCED * before))[0]
    if not lost.shape[0]:
        return replace(state, null=null)
    chosen = xp.nonzero(state.active)[0]
    place = xp.searchsorted(chosen, lost)
    exact, unclear = null_diagonal(
        xp,
        xp.take(state.train, chosen, axis=0),
        xp.take(duals, chosen, axis=0),
        place,
        state.growth,
    )
    places = Places.of(xp, null, lost)
    null = places.merged(exact, places.outside(null))
    return replace(state, null=null, unclear=state.unclear or unclear)


def _add_independent(xp: Any, state: Factors, k: int, overwrite: bool) -> Factors:
    active, inactive = _masks(xp, state, k)
    column = state.train[k, :]
    dual, image = state.duals[k, :] * 1.0, state.images[k, :] * 1.0
    # What updates have left of the residual in the span of the active columns.
    left = active * xp.matmul(state.duals, dual)
    dual = dual - xp.matmul(state.train.T, left)
    image = image - xp.matmul(state.test.T, left)
    size = float(xp.linalg.vecdot(dual, dual))
    onto = active * xp.matmul(state.duals, column)
    across = inactive * xp.matmul(state.train, dual) / size
    beta = xp.matmul(dual, state.targets) / size
    duals = add_outer(xp, state.duals, -(onto / size + across), dual, overwrite=overwrite)
    steps = add_outer(xp, state.steps, -onto / size, image, overwrite=overwrite)
    images = add_outer(xp, state.images, -across, image, overwrite=overwrite)
    duals[k, :], steps[k, :], images[k, :] = dual / size, image / size, 0.0 * image
    coefficients = state.coefficients - onto[:, None] * beta[None, :]
    coefficients[k, :] = beta
    longer = (1 + float(xp.linalg.vecdot(onto, onto))) / size
    moved = replace(
        _with_active(xp, state, k, True),
        inverse_norm=state.inverse_norm + longer,
        norm=state.norm + float(state.squares[k]),
    )
    grown = measured(
        xp,
        moved,
        duals=duals,
        steps=steps,
        images=images,
        coefficients=coefficients,
        residuals=state.residuals - image[:, None] * beta[None, :],
    )
    there = xp.astype(grown.active, grown.norms.dtype)
    inflation = float(xp.max(there * grown.squares * grown.norms))
    return replace(
        grown, growth=max(grown.growth, _ADDED * present_growth(xp, grown) * inflation**0.5)
    )


def dependence(xp: Any, state: Factors, rows: Array) -> tuple[Array, bool]:
    """Return the coefficients X_S⁺x of dependent columns on the active ones.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
    rows : array of shape (c, r)
        The columns.

    Returns
    -------
    array of shape (c, m)
        Exactly zero where a coefficient is rounding, and where a column is inactive.
    bool
        Whether one of them may be or may not be rounding.
    """
    found = xp.matmul(rows, state.duals.T)
    lengths = xp.linalg.vecdot(rows, rows)[:, None] * state.norms[None, :]
    noise = _ZERO_COEFFICIENT * EPSILON * state.growth * xp.sqrt(lengths)
    size = xp.abs(found)
    zero = ~state.active[None, :] | (size <= noise)
    unclear = bool(xp.any(~zero & (size < _UNCLEAR * noise)))
    return xp.where(zero, xp.zeros_like(found), found), unclear


def _add_dependent(xp: Any, state: Factors, k: int, overwrite: bool) -> Factors:
    active, inactive = _masks(xp, state, k)
    onto, unclear = dependence(xp, state, state.train[k : k + 1, :])
    onto = onto[0, :]
    image = state.images[k, :] * 1.0
    eta = 1 + float(xp.linalg.vecdot(onto, onto))
    dual = xp.matmul(state.duals.T, onto) / eta
    omega = active * eta * xp.matmul(state.duals, dual)
    sigma = float(xp.linalg.vecdot(onto, omega))
    step = xp.matmul(state.steps.T, onto)
    beta = xp.matmul(onto, state.coefficients) / eta
    steps = add_outer(xp, state.steps, -onto / eta, step, overwrite=overwrite)
    mixed = (omega - onto * (sigma / eta)) / eta
    steps = add_outer(xp, steps, mixed, image, overwrite=True)
    duals = add_outer(xp, state.duals, -onto, dual, overwrite=overwrite)
    spread = onto / eta + inactive * xp.matmul(state.train, dual)
    images = add_outer(xp, state.images, -spread, image, overwrite=overwrite)
    duals[k, :], images[k, :] = dual, image / eta
    steps[k, :] = step / eta + image * (sigma / eta**2)
    coefficients = state.coefficients - onto[:, None] * beta[None, :]
    coefficients[k, :] = beta
    null = state.null + onto * onto / eta
    null[k] = 1 / eta
    moved = replace(
        _with_active(xp, state, k, True),
        null=null,
        nullity=state.nullity + 1,
        norm=state.norm + float(state.squares[k]),
        unclear=state.unclear or unclear,
    )
    return measured(
        xp,
        moved,
        duals=duals,
        steps=steps,
        images=images,
        coefficients=coefficients,
        residuals=state.residuals - image[:, None] * beta[None, :],
    )


def _toggle_dual(xp: Any, state: Factors, j: int, overwrite: bool) -> Factors:
    removal = bool(state.active[j])
    dual, image = state.duals[j, :] * 1.0, state.images[j, :] * 1.0
    products = xp.matmul(state.train, dual)
    pivot = 1 - float(products[j]) if removal else 1 + float(products[j])
    change = products / pivot if removal else -products / pivot
    duals = add_outer(xp, state.duals, change, dual, overwrite=overwrite)
    images = add_outer(xp, state.images, change, image, overwrite=overwrite)
    duals[j, :], images[j, :] = dual / pivot, image / pivot
    active, _ = _masks(xp, state, j)
    if removal:
        beta = state.coefficients[j, :]
        gain = beta / pivot
        moved = replace(_with_active(xp, state, j, False))
        own = 0.0 * beta
    else:
        gain = -xp.matmul(dual, state.targets) / pivot
        moved = _with_active(xp, state, j, True)
        moved = replace(moved, norm=state.norm + float(state.squares[j]))
        own = -gain
    # β_l + t_l β_j / n_j or β_l − t_l b: both are the products times the gain.
    coefficients = state.coefficients + (active * products)[:, None] * gain[None, :]
    coefficients[j, :] = own
    return measured(
        xp,
        moved,
        duals=duals,
        images=images,
        coefficients=coefficients,
        residuals=state.residuals + image[:, None] * gain[None, :],
    )


def _with_active(xp: Any, state: Factors, position: int, value: bool) -> Factors:
    active = xp.asarray(state.active, copy=True)
    active[position] = value
    return replace(state, active=active)
