"""A fold's tableau where columns of the training matrix are linearly dependent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import (
    EPSILON,
    Array,
    cholesky_inverse,
    independent_columns,
    sandwich,
    to_device_of,
)
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR, explain_cutoff
from dagsel.engines.linear_model import LinearModel
from dagsel.engines.moments.certificate import certified_growth
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.nullspace import NullSpace, inverse_trace, null_space
from dagsel.kernels.tableau import Tableau, swept_tableau

__all__ = ["dependent_start"]

# A column of which less than this is left, of its squared length, is taken for dependent...
_DEPENDENT = 1e-10
# ...and must be dependent to this: what is left then changes scores by much less than rounding.
_LEFT = 1e-12


def dependent_start(
    xp: Any,
    model: LinearModel,
    fold: int,
    arguments: tuple[Array, Array, Array, Array, Array],
    lengths: Array,
    target_lengths: Array,
    lost: Array,
) -> tuple[Tableau, NullSpace, float]:
    """Build the tableau of a fold on a basis of its columns, and the null space of all.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    model : LinearModel
        What is fitted.
    fold : int
        For messages.
    arguments : tuple of arrays
        As of `full_tableau`, of columns scaled to unit length.
    lengths : array of shape (p,)
        Lengths of the columns in the units that the model sees; 0 for constants.
    target_lengths : array of shape (T,)
        Lengths of the training targets.
    lost : array of shape (p,)
        See `certified_growth`.

    Returns
    -------
    tableau : Tableau
        Swept on the basis.
    null : NullSpace
        Of all columns.
    growth : float
        See `certified_growth`.

    Raises
    ------
    NotCertifiedError
        If it cannot be told which columns are dependent, if those in the basis are too near to
        it, or if a singular value is near the estimator's cutoff.
    """
    if model.cutoff is None:
        # A penalty leaves no dependent columns; what there is of them is rounding.
        raise NotCertifiedError(_explain_penalty(fold, model.penalty))
    basic = independent_columns(arguments[0], _DEPENDENT)
    others = np.setdiff1d(np.arange(lengths.shape[0]), basic)
    tableau, rest = _swept_on(xp, arguments, basic, others)
    growth = certified_growth(
        xp, model, fold, tableau, arguments[0], lengths, lost, full_rank=len(others) == 0
    )
    dropped = to_device_of(lengths, others)
    if len(others):
        _check_dropped(xp, model.cutoff, fold, rest.length, lengths, others)
        growth += _growth_by_rest(xp, fold, tableau, rest, target_lengths, others)
    safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    metric = xp.where(lengths > 0, 1 / (safe * safe), xp.zeros_like(lengths))
    null = null_space(xp, tableau, metric, dropped)
    trace, _ = inverse_trace(xp, tableau, null, xp.ones_like(lengths) > 0)
    largest = float(xp.sum(lengths * lengths))
    size = 1 / float(xp.sqrt(trace * largest))
    if not size > 2 * model.cutoff:
        raise NotCertifiedError(explain_cutoff(fold, size, model.cutoff))
    return tableau, null, growth


class _Rest(NamedTuple):
    """What is left of dependent columns, of unit length, after their regression on the basis."""

    length: Array  # (d,): an upper bound of the square
    with_targets: Array  # (d, T): products with the targets


def _swept_on(
    xp: Any, arguments: Sequence[Array], basic: NDArray[np.intp], others: NDArray[np.intp]
) -> tuple[Tableau, _Rest]:
    """Return the tableau swept on the basis, and what is left of the other columns."""
    train, train_targets, test, test_targets, targets = arguments
    inside, outside = (to_device_of(train, each) for each in (basic, others))
    products = _block(xp, train, inside, inside)
    inverse = cholesky_inverse(xp, products)
    if inverse is None:
        msg = "columns that Cholesky with pivoting found independent are not"
        raise NotCertifiedError(msg)
    crossed = _block(xp, train, inside, outside)
    basic_targets = xp.take(train_targets, inside, axis=0)
    within = _refined(xp, inverse, products, crossed)
    coefficients = _refined(xp, inverse, products, basic_targets)
    rest = _rest(xp, train, train_targets, outside, crossed, basic_targets, within)
    # Test products with the residual directions e_k − W G_Sk of the other columns.
    test_inside, test_crossed = (_block(xp, test, inside, each) for each in (inside, outside))
    residual_crossed = test_crossed - xp.matmul(test_inside, within)
    gram_outside = (
        _block(xp, test, outside, outside)
        - xp.matmul(xp.matrix_transpose(test_crossed), within)
        - xp.matmul(xp.matrix_transpose(within), residual_crossed)
    )
    predicted = xp.matmul(test_inside, coefficients)
    basic_tests = xp.take(test_targets, inside, axis=0)
    gram_other_targets = (
        xp.take(test_targets, outside, axis=0)
        - xp.matmul(xp.matrix_transpose(within), basic_tests)
        - xp.matmul(xp.matrix_transpose(residual_crossed), coefficients)
    )
    back = to_device_of(train, np.argsort(np.concatenate([basic, others])))

    def placed(top: Array, side: Array, corner: Array) -> Array:
        above = xp.concat([top, side], axis=1)
        below = xp.concat([xp.matrix_transpose(side), corner], axis=1)
        return _block(xp, xp.concat([above, below]), back, back)

    gram_targets = xp.concat([xp.matmul(inverse, basic_tests - predicted), gram_other_targets])
    no_gain = xp.zeros_like(gram_other_targets)
    tableau = swept_tableau(
        xp,
        placed(-inverse, within, xp.zeros_like(gram_outside)),
        placed(
            sandwich(xp, inverse, test_inside), xp.matmul(inverse, residual_crossed), gram_outside
        ),
        xp.take(xp.concat([coefficients, no_gain]), back, axis=0),
        xp.take(gram_targets, back, axis=0),
        targets + xp.sum(coefficients * (predicted - 2 * basic_tests), axis=0),
    )
    return tableau, rest


def _block(xp: Any, matrix: Array, rows: Array, columns: Array) -> Array:
    return xp.take(xp.take(matrix, rows, axis=0), columns, axis=1)


def _refined(xp: Any, inverse: Array, products: Array, right: Array) -> Array:
    """Return the solution for a right-hand side, after one step of iterative refinement."""
    solution = xp.matmul(inverse, right)
    return solution + xp.matmul(inverse, right - xp.matmul(products, solution))


def _rest(
    xp: Any,
    train: Array,
    train_targets: Array,
    outside: Array,
    crossed: Array,
    basic_targets: Array,
    within: Array,
) -> _Rest:
    left = xp.take(xp.linalg.diagonal(train), outside) - xp.sum(within * crossed, axis=0)
    rounding = 8 * EPSILON * (1 + xp.sum(xp.abs(within), axis=0))
    explained = xp.matmul(xp.matrix_transpose(within), basic_targets)
    return _Rest(xp.abs(left) + rounding, xp.take(train_targets, outside, axis=0) - explained)


def _check_dropped(
    xp: Any, cutoff: float, fold: int, left: Array, lengths: Array, others: NDArray[np.intp]
) -> None:
    """Make sure that what is left of the dependent columns is nothing, and dropped as such.

    A singular value that belongs to a dependence is at most the length that is left of the
    column, which is compared with half the cutoff times the column's own length: as long as the
    column is in the model the largest singular value is at least that.
    """
    ours = xp.take(lengths, to_device_of(lengths, others))
    bad = (ours > 0) & ~(left <= min(_LEFT, (cutoff / 2) ** 2))
    if not bool(xp.any(bad)):
        return
    worst = int(xp.argmax(xp.where(ours > 0, left, xp.zeros_like(left))))
    size = float(xp.sqrt(left[worst]) * ours[worst] / xp.max(lengths))
    raise NotCertifiedError(_explain_unsure(fold, f"{size:.0e}"), int(others[worst]))


def _growth_by_rest(
    xp: Any,
    fold: int,
    tableau: Tableau,
    rest: _Rest,
    target_lengths: Array,
    others: NDArray[np.intp],
) -> float:
    """Return the error, in ε, of taking what is left of dependent columns for nothing.

    It enters the coefficients through its products with the targets; otherwise by its square only.
    """
    safe = xp.where(target_lengths > 0, target_lengths, xp.ones_like(target_lengths))
    share = xp.max(xp.abs(rest.with_targets) / safe[None, :], axis=1)
    growth = float(xp.max(share)) / EPSILON * float(xp.max(-tableau.pivots))
    if growth * EPSILON <= MAX_RELATIVE_ERROR:
        return growth
    worst = int(xp.argmax(share))
    raise NotCertifiedError(_explain_unsure(fold, f"{float(share[worst]):.0e}"), int(others[worst]))


def _explain_unsure(fold: int, size: str) -> str:
    return (
        f"in the training rows of fold {fold} column {{column}} is a linear combination of the "
        f"others but for a part of the size {size}, too small for moments to work with and too "
        "large for rounding"
    )


def _explain_penalty(fold: int, penalty: float) -> str:
    return (
        f"the columns of fold {fold} are so nearly dependent that a penalty of {penalty:g} is lost "
        "in the rounding of their moments"
    )
