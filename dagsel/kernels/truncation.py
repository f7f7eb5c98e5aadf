"""Smallest singular values of candidate subsets, and what cutting them off does to residuals.

Where removing a redundant column leaves a singular value below an estimator's cutoff, the refit of
that candidate does without it. With U S V' the decomposition of the remaining columns, the matrix
of their pseudo-inverse has the eigenvectors U and the eigenvalues 1/s²: the ones that are cut off
are the largest, apart from the others, and found by a few products.
"""

from __future__ import annotations

from typing import Any

from dagsel.backend import Array
from dagsel.kernels.factors import Factors

__all__ = [
    "largest_inverse_values",
    "largest_value",
    "truncated_change",
]

_MOST_STEPS = 60
# The first vector is accepted when it is an eigenvector up to this part of its eigenvalue.
_SETTLED = 1e-13


def _start(xp: Any, like: Array, size: int, width: int) -> Array:
    """Return some vectors that are not likely to be orthogonal to others."""
    grid = xp.arange(size * width, dtype=like.dtype, device=like.device)
    return xp.reshape(xp.sin(12.9898 * (grid + 1.0)), (size, width))


def largest_inverse_values(
    xp: Any, state: Factors, removed: int | None, width: int
) -> tuple[Array, Array, float]:
    """Return the largest eigenvalues of the pseudo-inverse's products after a removal.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
        In least-squares mode.
    removed : int or None
        A redundant column that is removed; `None` for the state itself.
    width : int
        How many, if there are as many rows.

    Returns
    -------
    values : array of shape (width,)
        Descending; the inverse squares of the smallest singular values.
    vectors : array of shape (r, width)
        Orthonormal.
    float
        How far the first is from an eigenvector, relative to its eigenvalue.
    """
    active = xp.astype(state.active, state.norms.dtype)[:, None]
    r = int(state.duals.shape[1])
    vectors = xp.linalg.qr(_start(xp, state.duals, r, min(width, r)))[0]
    for _ in range(_MOST_STEPS):
        image = xp.matmul(state.duals.T, active * xp.matmul(state.duals, vectors))
        if removed is not None:
            dual = state.duals[removed, :]
            along = xp.matmul(dual, vectors) / state.null[removed]
            image = image + dual[:, None] * along[None, :]
        inner = xp.matmul(vectors.T, image)
        found, rotation = xp.linalg.eigh((inner + inner.T) / 2)
        values, rotation = xp.flip(found), xp.flip(rotation, axis=1)
        vectors, image = xp.matmul(vectors, rotation), xp.matmul(image, rotation)
        left = image[:, 0] - values[0] * vectors[:, 0]
        error = float(xp.linalg.vecdot(left, left)) ** 0.5 / float(values[0])
        if error < _SETTLED:
            break
        last, vectors = vectors, xp.linalg.qr(image)[0]
    else:
        vectors = last
    return values, vectors, error


def largest_value(xp: Any, state: Factors, removed: int | None) -> float:
    """Return the largest squared singular value of the active columns but for `removed`.

    To some digits, from below: enough to compare a ratio with a cutoff that it is not very near.
    """
    active = xp.astype(state.active, state.norms.dtype)
    if removed is not None:
        active[removed] = 0.0
    r = int(state.train.shape[1])
    vectors = xp.linalg.qr(_start(xp, state.train, r, min(4, r)))[0]
    value = 0.0
    for _ in range(_MOST_STEPS):
        image = xp.matmul(state.train.T, active[:, None] * xp.matmul(state.train, vectors))
        inner = xp.matmul(vectors.T, image)
        before, value = value, float(xp.max(xp.linalg.eigvalsh((inner + inner.T) / 2)))
        if value - before <= 1e-9 * value:
            break
        vectors = xp.linalg.qr(image)[0]
    return value


def truncated_change(xp: Any, state: Factors, removed: int | None, vectors: Array) -> Array:
    """Return what leaving out singular vectors adds to the residuals of a redundant removal.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
    removed : int or None
        The redundant column; `None` for the residuals of the state itself.
    vectors : array of shape (r, d)
        Left singular vectors that are cut off.

    Returns
    -------
    array of shape (q, t)
    """
    active = xp.astype(state.active, state.norms.dtype)[:, None]
    coefficients = active * xp.matmul(state.duals, vectors)
    images = xp.matmul(state.test.T, coefficients)
    if removed is not None:
        along = xp.matmul(state.duals[removed, :], vectors) / state.null[removed]
        images = images - state.images[removed, :][:, None] * along[None, :]
    return xp.matmul(images, xp.matmul(vectors.T, state.targets))
