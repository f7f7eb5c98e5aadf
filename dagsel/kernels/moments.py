"""Sums of products over rows: everything that least squares needs to know about the data.

The moments of some rows are their number, the sums of their columns, the sums of all products of
two columns, with the target columns appended to the features, and the columns' bounds; rows may
have weights. They add up over disjoint rows, so one pass over the data serves every fold: a fold's
training moments are the sum over the atoms (rows that share their role in all folds) it trains on.

Columns are shifted by a pilot mean before they are multiplied. The centred products do not depend
on the shift, but their rounding does: without it, a column such as a year would lose most digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from dagsel.backend import Array, add_product, namespace

__all__ = [
    "ColumnSums",
    "Moments",
    "absolute_row_sums",
    "add_column_sums",
    "add_moments",
    "centred",
    "column_sums",
    "row_moments",
    "subtract_moments",
    "sum_moments",
]


class Moments(NamedTuple):
    """Moments of some rows of [features, targets] - shift.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    total : array of shape (p + T,)
        Column sums, each row times its weight.
    cross : array of shape (p + T, p + T)
        Sums of products of two columns, each row times its weight; symmetric.
    weight : float
        Sum of the rows' weights; their number where they have none.
    low, high : array of shape (p + T,)
        Bounds of the columns, over rows of positive weight: exact, as sums are not. Those of a
        difference are those of the rows that it was made from.
    """

    n_rows: int
    total: Array
    cross: Array
    weight: float
    low: Array
    high: Array


def row_moments(
    xp: Any,
    features: Array,
    targets: Array,
    shift: Array,
    before: Moments | None = None,
    weights: Array | None = None,
) -> Moments:
    """Compute the moments of rows in memory, or add them to others.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    features : array of shape (n, p)
        Any floating dtype; sums are in double precision.
    targets : array of shape (n, T)
        Target columns.
    shift : array of shape (p + T,)
        Subtracted from every row first.
    before : Moments, optional
        Of other rows, to add to; used up.
    weights : array of shape (n,), optional
        Weight of each row, not negative.
    """
    n_features = features.shape[1]
    rows = xp.empty(
        (features.shape[0], n_features + targets.shape[1]), dtype=xp.float64, device=shift.device
    )
    rows[:, :n_features] = features
    rows[:, n_features:] = targets
    rows -= shift
    low, high = _bounds(xp, rows, weights)
    weight = float(rows.shape[0])
    total = xp.sum(rows, axis=0)
    if weights is not None:
        weight, total = float(xp.sum(weights)), xp.matmul(weights, rows)
        rows *= xp.sqrt(weights)[:, None]
    # NumPy recognises A'A and computes one triangle only.
    found = Moments(rows.shape[0], total, xp.matmul(rows.T, rows), weight, low, high)
    return found if before is None else _added(before, found, overwrite=True)


def _bounds(xp: Any, rows: Array, weights: Array | None) -> tuple[Array, Array]:
    """Return the smallest and the largest value of every column; infinite where there is no row."""
    if weights is not None and not bool(xp.all(weights > 0)):
        rows = xp.take(rows, xp.nonzero(weights > 0)[0], axis=0)
    if rows.shape[0] == 0:
        nowhere = xp.full((rows.shape[1],), xp.inf, dtype=rows.dtype, device=rows.device)
        return nowhere, -nowhere
    return xp.min(rows, axis=0), xp.max(rows, axis=0)


def _added(first: Moments, second: Moments, *, overwrite: bool = False) -> Moments:
    xp = namespace(first.cross)
    cross = first.cross
    if overwrite:
        cross += second.cross
    else:
        cross = cross + second.cross
    return Moments(
        first.n_rows + second.n_rows,
        first.total + second.total,
        cross,
        first.weight + second.weight,
        xp.minimum(first.low, second.low),
        xp.maximum(first.high, second.high),
    )


def add_moments(first: Moments | None, second: Moments | None) -> Moments | None:
    """Return the moments of the union of two disjoint sets of rows; `None` is the empty set."""
    if first is None or second is None:
        return second if first is None else first
    return _added(first, second)


def sum_moments(parts: Sequence[Moments | None]) -> Moments | None:
    """Add up the moments of disjoint sets of rows, in the given order."""
    return reduce(add_moments, parts, None)


def subtract_moments(whole: Moments, part: Moments) -> Moments:
    """Return the moments of the rows of `whole` that are not in `part`."""
    return Moments(
        whole.n_rows - part.n_rows,
        whole.total - part.total,
        whole.cross - part.cross,
        whole.weight - part.weight,
        whole.low,
        whole.high,
    )


class ColumnSums(NamedTuple):
    """Sums over rows column by column: what moments say without their cross products.

    Attributes
    ----------
    weight : float
        See `Moments`.
    total, squares : array of shape (p + T,)
        Column sums, and sums of squares.
    low, high : array of shape (p + T,)
        See `Moments`.
    """

    weight: float
    total: Array
    squares: Array
    low: Array
    high: Array


def column_sums(moments: Moments | None) -> ColumnSums | None:
    """Return what moments say column by column; `None` if there are no rows."""
    if moments is None:
        return None
    squares = namespace(moments.cross).linalg.diagonal(moments.cross) * 1.0  # not a view
    return ColumnSums(moments.weight, moments.total, squares, moments.low, moments.high)


def add_column_sums(parts: Sequence[ColumnSums | None]) -> ColumnSums | None:
    """Add up the column sums of disjoint sets of rows."""
    found = [part for part in parts if part is not None]
    return reduce(_added_columns, found) if found else None


def _added_columns(first: ColumnSums, second: ColumnSums) -> ColumnSums:
    xp = namespace(first.total)
    return ColumnSums(
        first.weight + second.weight,
        first.total + second.total,
        first.squares + second.squares,
        xp.minimum(first.low, second.low),
        xp.maximum(first.high, second.high),
    )


def centred(moments: Moments, mean: Array, *, overwrite: bool = False) -> Array:
    """Return the sums of products of the columns, each taken about `mean`.

    With C the products, s the sums and n the weight of the rows about the old origin, the products
    about m are C − s m' − m s' + n m m'.

    Parameters
    ----------
    moments : Moments
        Of some rows.
    mean : array of shape (p + T,)
        New origin, relative to the shift in `moments`. Need not be these rows' own mean: test
        rows are centred by the mean of the training rows.
    overwrite : bool
        Whether the result may take the place of the moments' products.

    Returns
    -------
    array of shape (p + T, p + T)
    """
    xp = namespace(moments.cross)
    # (s − n m/2) m' and its transpose add up to the correction.
    half = moments.total - mean * (moments.weight / 2)
    left, right = xp.stack([-half, -mean]), xp.stack([mean, half])
    return add_product(xp, moments.cross, left, right, overwrite=overwrite)


def absolute_row_sums(xp: Any, matrix: Array, weights: Array, panel: int = 256) -> Array:
    """Return Σ_j |matrix_ij| weights_j for every row i, without a second matrix of that size.

    With unit weights the largest entry is the matrix's ∞-norm, an upper bound of its largest
    eigenvalue if it is symmetric.
    """
    size = matrix.shape[0]
    sums = [
        xp.matmul(xp.abs(matrix[start : min(start + panel, size), :]), weights)
        for start in range(0, size, panel)
    ]
    return xp.concat(sums)
