"""Which array library, which device, and the few functions that the array API lacks.

Kernels are written against the array API standard. What the standard has no function for, and
what one library can do much faster than the standard's own vocabulary allows, is here and
nowhere else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

__all__ = [
    "EPSILON",
    "Array",
    "add_outer",
    "add_product",
    "cholesky_inverse",
    "gpu_available",
    "independent_columns",
    "is_numpy",
    "namespace",
    "sandwich",
    "to_compute",
    "to_device_of",
    "to_host",
]

# Of double precision, in which all sums are.
EPSILON = 2.0**-52

# The array API standard defines no base class to annotate with.
Array = Any


def namespace(*arrays: Array) -> Any:
    """Return the array API namespace shared by `arrays`."""
    return array_api_compat.array_namespace(*arrays)


def is_numpy(xp: Any) -> bool:
    """Tell whether `xp` is NumPy, whose BLAS and LAPACK can be called directly."""
    return bool(array_api_compat.is_numpy_namespace(xp))


@cache
def gpu_available() -> bool:
    """Tell whether CuPy is installed and sees a device.

    Notes
    -----
    Importing CuPy proves nothing: it imports without a GPU. Only its own probe does.
    """
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.is_available())


def to_compute(array: NDArray[Any]) -> Array:
    """Return a NumPy array where this process computes: on its GPU if it has one."""
    if gpu_available() and isinstance(array, np.ndarray):
        import cupy

        return cupy.asarray(array)
    return array


def to_host(array: Array) -> NDArray[Any]:
    """Return `array` as a NumPy array, copying it off its device if it is on one."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    # Of other libraries the default device is the host's memory.
    default = namespace(array).__array_namespace_info__().default_device()
    return np.asarray(array_api_compat.to_device(array, default))


def to_device_of(reference: Array, array: NDArray[Any]) -> Array:
    """Return the NumPy array `array` in the library and on the device of `reference`."""
    if isinstance(reference, np.ndarray):
        return array
    xp = namespace(reference)
    return xp.asarray(array, device=array_api_compat.device(reference))


def cholesky_inverse(xp: Any, matrix: Array, least: float = 0.0) -> Array | None:
    """Invert a symmetric positive definite matrix; `None` if it is not positive definite.

    Parameters
    ----------
    xp : namespace
        Array API namespace of `matrix`.
    matrix : array of shape (m, m)
        Symmetric; not written to.
    least : float
        A matrix of which a pivot is no greater than this counts as not positive definite.

    Returns
    -------
    array of shape (m, m) or None
        The symmetric inverse, to the last digit the same above and below the diagonal.
    """
    if is_numpy(xp):
        return _inverse_lapack(matrix, least)
    return _inverse_standard(xp, matrix, least)


def _inverse_lapack(matrix: NDArray[np.float64], least: float) -> NDArray[np.float64] | None:
    # A symmetric matrix in C order is the same matrix in Fortran order, so no copy is made on the
    # way in but the one that LAPACK works on.
    work = np.array(matrix.T, order="F")
    _, failed = lapack.dpotrf(work, lower=1, overwrite_a=1, clean=0)
    if failed or np.min(work.diagonal() ** 2, initial=np.inf) <= least:
        return None
    _, failed = lapack.dpotri(work, lower=1, overwrite_c=1)
    if failed:
        return None
    return _mirror_lower(work)


def _mirror_lower(work: NDArray[np.float64], width: int = 256) -> NDArray[np.float64]:
    """Copy the lower triangle over the upper one, in panels so that no second matrix is needed."""
    size = work.shape[0]
    for start in range(0, size, width):
        stop = min(start + width, size)
        work[start:stop, stop:] = work[stop:, start:stop].T
        corner = work[start:stop, start:stop]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
    # As C order: rows are what the tableau reads.
    return work.T


def _inverse_standard(xp: Any, matrix: Array, least: float) -> Array | None:
    try:
        factor = xp.linalg.cholesky(matrix)
    except Exception as error:
        # Each library has its own class for "not positive definite"; anything else is not ours.
        if "LinAlg" not in type(error).__name__:
            raise
        return None
    pivots = xp.linalg.diagonal(factor)
    # CuPy does not check the solver's status (it would synchronise): a failure shows as NaN.
    if not bool(xp.all(pivots > 0)) or bool(xp.any(pivots * pivots <= least)):
        return None
    identity = xp.eye(matrix.shape[0], dtype=matrix.dtype, device=array_api_compat.device(matrix))
    half = xp.linalg.solve(factor, identity)
    return xp.matmul(half.T, half)


def independent_columns(matrix: Array, least: float) -> NDArray[np.intp]:
    """Return columns that span a positive semi-definite matrix, by Cholesky with pivoting.

    Parameters
    ----------
    matrix : array of shape (m, m)
        Symmetric, with a unit diagonal; factorised on the host.
    least : float
        A column is left out where less than this is left of its diagonal entry after the columns
        before it.

    Returns
    -------
    ndarray of int
        Ascending.
    """
    work = np.array(to_host(matrix).T, order="F", dtype=np.float64)
    _, order, rank, _ = lapack.dpstrf(work, tol=least, lower=1, overwrite_a=1)
    return np.sort(order[:rank] - 1).astype(np.intp)


def sandwich(xp: Any, inverse: Array, middle: Array) -> Array:
    """Return `inverse @ middle @ inverse` for symmetric matrices of shape (m, m).

    If `middle` is positive definite, which test products are when there are more test rows than
    columns, two triangular products do it with about half the operations of two full ones.
    """
    if is_numpy(xp):
        root = np.array(middle.T, order="F", dtype=np.float64)
        _, failed = lapack.dpotrf(root, lower=1, overwrite_a=1, clean=0)
        if not failed:
            half = blas.dtrmm(1.0, root, inverse.T, side=1, lower=1)
            # The result takes the root's place: fresh memory of that size costs as much as a
            # product.
            return _mirror_lower(blas.dsyrk(1.0, half, c=root, lower=1, overwrite_c=1))
    return xp.matmul(inverse, xp.matmul(middle, inverse))


def add_product(
    xp: Any, matrix: Array, left: Array, right: Array, *, overwrite: bool = False
) -> Array:
    """Return `matrix + left.T @ right`.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    matrix : array of shape (m, m)
        Not written to, unless `overwrite`.
    left, right : array of shape (r, m)
        Factors.
    overwrite : bool
        Whether the result may take the place of `matrix`.
    """
    if is_numpy(xp):
        # One pass of BLAS with the sum folded in. In Fortran's eyes the C-ordered arrays are
        # their transposes, hence right' left.
        out = matrix if overwrite else np.array(matrix, order="C", dtype=np.float64)
        summed = blas.dgemm(1.0, right.T, left.T, beta=1.0, c=out.T, trans_b=1, overwrite_c=1)
        return summed.T
    total = xp.matmul(left.T, right)
    total += matrix
    return total


def add_outer(
    xp: Any, matrix: Array, left: Array, right: Array, *, overwrite: bool = False
) -> Array:
    """Return `matrix + left[:, None] * right[None, :]`.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    matrix : array of shape (m, r)
        Not written to, unless `overwrite`.
    left, right : array of shape (m,) and (r,)
        Factors.
    overwrite : bool
        Whether the result may take the place of `matrix`.
    """
    if is_numpy(xp) and matrix.size and matrix.flags.c_contiguous:
        # In place this is several times as fast as with a temporary of the matrix's size.
        out = matrix if overwrite else matrix.copy()
        blas.dger(1.0, right, left, a=out.T, overwrite_a=1)
        return out
    return matrix + left[:, None] * right[None, :]
