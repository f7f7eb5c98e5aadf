"""Pseudo-inverses of a few columns of a training matrix, with what certifies them.

Matrices come with a row for each column, as everywhere in `dagsel.kernels.factors`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dagsel.backend import EPSILON, Array, is_numpy

__all__ = ["PseudoInverse", "null_diagonal", "pseudo_inverse", "singular_values", "triangular_rows"]

# Columns scaled to unit length that are further from dependence than this have an inverse by a QR
# decomposition, which is exact to rounding column by column; nearer ones need singular values.
_WELL_INDEPENDENT = 1e7
# Entries of the null-space projector carry an error of a few hundred ε |X| |X⁺| after as many
# updates: below a thousand times that a diagonal entry, which is a sum of their squares, is taken
# as zero, and up to a hundred times that again it is unclear whether it is.
_NULL_NOISE = 1e3 * EPSILON
_UNCLEAR = 1e2


class PseudoInverse(NamedTuple):
    """Pseudo-inverse of k columns of length r.

    Attributes
    ----------
    duals : array of shape (k, r)
        Its rows.
    basis : array of shape (r, rank)
        Orthonormal basis of the columns' span.
    null : array of shape (k,)
        Diagonal of the projector onto the null space; exactly zero for essential columns.
    rank : int
        Number of singular values kept.
    inverse_norm, norm : float
        Upper bounds of 1/σ_min² of the kept and σ_max²; zero where there is no column.
    dropped : float
        Length of the longest combination of columns that was dropped, relative to what it would be
        if they were orthogonal: rounding for dependent columns, and more for columns that are
        merely small next to others. Zero if none was dropped.
    unclear : bool
        Whether it cannot be told which columns are essential.
    """

    duals: Array
    basis: Array
    null: Array
    rank: int
    inverse_norm: float
    norm: float
    dropped: float = 0.0
    unclear: bool = False


def pseudo_inverse(
    xp: Any, rows: Array, cutoff: float | None, zero: float | None = None
) -> PseudoInverse:
    """Return the pseudo-inverse of the matrix whose columns are `rows`.

    Parameters
    ----------
    xp : namespace
        Array API namespace of `rows`.
    rows : array of shape (k, r)
        The columns.
    cutoff : float or None
        Where an estimator cuts singular values off, relative to the largest: bounds are sharp
        enough to tell. `None` for columns that are known to be independent.
    zero : float, optional
        Singular values up to this fraction of the largest are dropped; `cutoff` by default.
    """
    zero = cutoff if zero is None else zero
    squares = xp.linalg.vecdot(rows, rows)
    present = xp.nonzero(squares > 0)[0]
    if present.shape[0] < rows.shape[0]:
        return _with_zero_columns(xp, rows, present, cutoff, zero)
    k, r = rows.shape
    if k == 0:
        empty = xp.zeros((r, 0), dtype=rows.dtype, device=rows.device)
        return PseudoInverse(rows, empty, squares, 0, 0.0, 0.0)
    found = _by_triangle(xp, rows, squares, cutoff) if k <= r else None
    return found if found is not None else _by_singular_values(xp, rows, squares, zero or 0.0)


def _with_zero_columns(
    xp: Any, rows: Array, present: Array, cutoff: float | None, zero: float | None
) -> PseudoInverse:
    """Set columns of zeros aside: they are redundant, and nothing depends on them."""
    found = pseudo_inverse(xp, xp.take(rows, present, axis=0), cutoff, zero)
    mask = xp.linalg.vecdot(rows, rows) > 0
    others = xp.nonzero(~mask)[0]
    order = xp.argsort(xp.concat([present, others]))
    zeros = xp.zeros((others.shape[0], rows.shape[1]), dtype=rows.dtype, device=rows.device)
    ones = xp.ones((others.shape[0],), dtype=rows.dtype, device=rows.device)
    return found._replace(
        duals=xp.take(xp.concat([found.duals, zeros]), order, axis=0),
        null=xp.take(xp.concat([found.null, ones]), order, axis=0),
    )


def _by_triangle(
    xp: Any, rows: Array, squares: Array, cutoff: float | None
) -> PseudoInverse | None:
    """Use a QR decomposition; `None` if the columns are too near to dependence for it."""
    lengths = xp.sqrt(squares)
    basis, triangle = xp.linalg.qr((rows / lengths[:, None]).T)
    smallest = float(xp.min(xp.abs(xp.linalg.diagonal(triangle))))
    if not smallest > 0 or (cutoff is not None and smallest * _WELL_INDEPENDENT < 1):
        return None
    identity = xp.eye(rows.shape[0], dtype=rows.dtype, device=rows.device)
    inverse = xp.linalg.solve(triangle, identity)
    inverse_squares = xp.linalg.vecdot(inverse, inverse)
    if cutoff is not None and not float(xp.sum(inverse_squares)) < _WELL_INDEPENDENT**2:
        return None
    inverse_norm, norm = float(xp.sum(inverse_squares / squares)), float(xp.sum(squares))
    if cutoff is not None and inverse_norm * norm * (2 * cutoff) ** 2 >= 1:
        values = xp.linalg.svdvals(triangle * lengths[None, :])
        largest, least = float(xp.max(values)), float(xp.min(values))
        if not least > cutoff * largest:
            return None
        inverse_norm, norm = 1 / least**2, largest**2
    return PseudoInverse(
        duals=xp.matmul(inverse, basis.T) / lengths[:, None],
        basis=basis,
        null=xp.zeros_like(squares),
        rank=int(rows.shape[0]),
        inverse_norm=inverse_norm,
        norm=norm,
    )


def _by_singular_values(xp: Any, rows: Array, squares: Array, zero: float) -> PseudoInverse:
    left, values, right = xp.linalg.svd(rows, full_matrices=False)
    largest = float(xp.max(values))
    rank = int(xp.count_nonzero(values > zero * largest))
    dropped = _dropped(xp, left[:, rank:], values[rank:], squares)
    left, kept = left[:, :rank], values[:rank]
    basis = right[:rank, :].T
    duals = xp.matmul(left / kept[None, :], basis.T)
    null, unclear = xp.zeros_like(squares), False
    if rank < rows.shape[0]:
        null = 1 - xp.linalg.vecdot(left, left)
        small = xp.nonzero(null < 1e-2)[0]
        if small.shape[0]:
            exact, unclear = null_diagonal(xp, rows, duals, small)
            large = xp.nonzero(null >= 1e-2)[0]
            order = xp.argsort(xp.concat([small, large]))
            null = xp.take(xp.concat([exact, xp.take(null, large, axis=0)]), order, axis=0)
    return PseudoInverse(
        duals=duals,
        basis=basis,
        null=null,
        rank=rank,
        inverse_norm=1 / float(kept[-1]) ** 2,
        norm=largest**2,
        dropped=dropped,
        unclear=unclear,
    )


def _dropped(xp: Any, left: Array, values: Array, squares: Array) -> float:
    """Return `PseudoInverse.dropped` of singular vectors and values."""
    if not values.shape[0]:
        return 0.0
    apart = xp.sqrt(xp.sum(left * left * squares[:, None], axis=0))
    return float(xp.max(values / xp.where(apart > 0, apart, xp.ones_like(apart))))


def null_diagonal(
    xp: Any, rows: Array, duals: Array, chosen: Array, growth: float = 1.0
) -> tuple[Array, bool]:
    """Return small entries of the diagonal of N = I − X⁺X without cancellation.

    N is a projector, so N_jj − N_jj² is the sum of the squares of the other entries of its column.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    rows, duals : array of shape (k, r)
        Columns of X and rows of X⁺.
    chosen : array of int of shape (c,)
        Which entries; below 1/2.
    growth : float
        Norm of a pseudo-inverse from which this one was updated, its columns of unit length.

    Returns
    -------
    array of shape (c,)
        Exactly zero where it is rounding.
    bool
        Whether one of them may be or may not be.
    """
    columns = xp.take(rows, chosen, axis=0)
    products = xp.matmul(columns, duals.T)
    # Subtracting the own entry's square would lose the digits of small sums: leave it out instead.
    index = xp.arange(rows.shape[0], device=rows.device)
    products = xp.where(index[None, :] == chosen[:, None], xp.zeros_like(products), products)
    others = xp.linalg.vecdot(products, products)
    inside = 1 - 4 * others
    inside = xp.where(inside > 0, inside, xp.zeros_like(inside))
    null = 2 * others / (1 + xp.sqrt(inside))
    scale = xp.sum(xp.linalg.vecdot(duals, duals))
    spread = 1 + xp.linalg.vecdot(columns, columns) * scale
    spread = xp.where(spread > growth**2, spread, xp.full_like(spread, growth**2))
    noise = _NULL_NOISE**2 * spread
    zero = null <= noise
    unclear = bool(xp.any(~zero & (null < _UNCLEAR**2 * noise)))
    return xp.where(zero, xp.zeros_like(null), null), unclear


def singular_values(xp: Any, rows: Array) -> Array:
    """Return the singular values of the matrix whose columns are `rows`, descending."""
    k, r = rows.shape
    if 2 * min(k, r) < max(k, r):
        tall = rows.T if r > k else rows
        rows = _triangle(xp, tall)
    return xp.linalg.svdvals(rows)


def triangular_rows(xp: Any, columns: Array, targets: Array) -> tuple[Array, Array]:
    """Return fewer rows with the same products: the triangular factor of [columns, targets].

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    columns : array of shape (m, n)
        A row for each column.
    targets : array of shape (n, t)
        More columns, the usual way round.

    Returns
    -------
    array of shape (m, r), array of shape (r, t)
        With r = min(n, m + t), and the same products of every two columns.
    """
    m = columns.shape[0]
    triangle = _triangle(xp, xp.concat([columns.T, targets], axis=1))
    return xp.asarray(triangle[:, :m].T, copy=True), triangle[:, m:]


def _triangle(xp: Any, matrix: Array) -> Array:
    if is_numpy(xp):
        # Without the orthogonal factor, which costs more than the triangle.
        return np.linalg.qr(matrix, mode="r")
    return xp.linalg.qr(matrix)[1]
