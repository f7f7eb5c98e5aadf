"""p-values of partial F-tests, as logarithms, which do not underflow.

Let a model of d residual degrees of freedom leave R, and R + c without q of its coefficients. Then
F = (c/q) / (R/d), and with x = d / (d + q F) = R / (R + c) the p-value is the regularised
incomplete beta function I_x(d/2, q/2). For q = 1 F is the square of the coefficient's t.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dagsel.backend import EPSILON

__all__ = ["log_p_value"]

# p-values below this are taken from their continued fraction: soon after, they are no numbers.
_LEAST = 1e-250
_MOST_TERMS = 100_000


def log_p_value(
    errors: NDArray[np.float64],
    changes: NDArray[np.float64],
    degrees: NDArray[np.float64],
    residual_degrees: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the logarithm of the p-value of the F-test of two nested least-squares models.

    Parameters
    ----------
    errors : ndarray
        Residual sum of squares of the larger model, not negative.
    changes : ndarray
        By how much that of the smaller one is larger; not negative.
    degrees : ndarray
        By how much their ranks differ.
    residual_degrees : ndarray
        Rows less coefficients of the larger model, intercept included.

    Returns
    -------
    ndarray
        0, that is p = 1, where the ranks are equal or the change is 0: what the smaller model lacks
        explains nothing. Minus infinity where the larger model leaves no error and the smaller
        does. NaN where there are no residual degrees of freedom: nothing can be tested.
    """
    arrays = np.broadcast_arrays(errors, changes, degrees, residual_degrees)
    errors, changes, degrees, residual_degrees = (np.asarray(each, np.float64) for each in arrays)
    found = np.zeros(errors.shape)
    found[residual_degrees <= 0] = np.nan
    tested = (residual_degrees > 0) & (degrees > 0) & (changes > 0)
    found[tested & (errors == 0)] = -np.inf
    tested &= errors > 0
    sums = errors[tested] + changes[tested]
    found[tested] = _log_incomplete_beta(
        residual_degrees[tested] / 2,
        degrees[tested] / 2,
        errors[tested] / sums,
        changes[tested] / sums,
    )
    return found


def _log_incomplete_beta(
    a: NDArray[np.float64], b: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log I_x(a, b) with y = 1 - x, each given to all its digits."""
    # Of x and y the smaller one has the digits.
    lower = np.where(y < 0.5, special.betaincc(b, a, y), special.betainc(a, b, x))
    upper = special.betainc(b, a, y)
    found = np.empty_like(x)
    near_one = upper < 0.5
    found[near_one] = np.log1p(-upper[near_one])
    plain = ~near_one & (lower > _LEAST)
    found[plain] = np.log(lower[plain])
    tiny = ~near_one & ~plain
    if np.any(tiny):
        found[tiny] = _log_tail(a[tiny], b[tiny], x[tiny], y[tiny])
    return found


def _log_tail(
    a: NDArray[np.float64], b: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log I_x(a, b) far below the mean of the beta distribution."""
    log_x = np.where(y < 0.5, np.log1p(-np.minimum(y, 0.5)), np.log(x))
    log_y = np.where(y < 0.5, np.log(y), np.log1p(-np.minimum(x, 0.5)))
    front = a * log_x + b * log_y - np.log(a) - special.betaln(a, b)
    found: NDArray[np.float64] = front - np.log(_continued_fraction(a, b, x))
    return found


def _continued_fraction(
    a: NDArray[np.float64], b: NDArray[np.float64], x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Evaluate 1 + d₁/(1 + d₂/(1 + …)) of DLMF 8.17.22 from the front, by Lentz's method."""
    tiny = np.finfo(np.float64).tiny / EPSILON
    value = np.ones_like(x)
    numerator, denominator = np.ones_like(x), np.zeros_like(x)
    for term in range(1, _MOST_TERMS):
        half = term // 2
        if term % 2:
            factor = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            factor = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / _away_from_zero(1 + factor * denominator, tiny)
        numerator = _away_from_zero(1 + factor / numerator, tiny)
        step = numerator * denominator
        value *= step
        if np.all(np.abs(step - 1) < 4 * EPSILON):
            return value
    msg = "the continued fraction of the incomplete beta function does not converge"
    raise ArithmeticError(msg)


def _away_from_zero(values: NDArray[np.float64], tiny: float) -> NDArray[np.float64]:
    return np.where(np.abs(values) < tiny, math.copysign(tiny, 1.0), values)
