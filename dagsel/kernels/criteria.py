"""Criteria that are functions of a fit's residual sum of squares, its rank and the number of rows.

With n rows, R the (weighted) residual sum of squares, k the rank of the columns in the model, i = 1
with an intercept and 0 without, and m = k + i, or m = k + i + 1 where the variance is counted as a
parameter, the Gaussian log-likelihood at its maximum is (for weights w, in the precision of a row)

    L = −(n/2) (log(2π R/n) + 1) + (1/2) Σ log w

and

    AIC  = −2 L + 2 m                      (Akaike, 1974)
    AICc = −2 L + 2 m n / (n − m − 1)      (Hurvich and Tsai, 1989)
    BIC  = −2 L + m log n                  (Schwarz, 1978)
    Cp   = R / s² − n + 2 (k + i)          (Mallows, 1973), s² the variance in the full model
    adjusted R² = 1 − (R / (n − k − i)) / (T / (n − i)), T the total sum of squares.

All functions are elementwise: errors and ranks are arrays of one shape, and so are results.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from dagsel.backend import Array

__all__ = [
    "InformationName",
    "adjusted_r2",
    "information_criterion",
    "log_likelihood",
    "mallows_cp",
]

InformationName = Literal["aic", "aicc", "bic"]


def log_likelihood(xp: Any, errors: Array, n_rows: int, log_weights: float = 0.0) -> Array:
    """Return the Gaussian log-likelihood of least-squares fits, at the maximum over the variance.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    errors : array
        Residual sums of squares, weighted if there are weights; not negative. 0 gives infinity.
    n_rows : int
        Number of rows, those of weight 0 not counted.
    log_weights : float
        Sum of the logarithms of the weights.
    """
    exact = errors == 0
    mean = xp.where(exact, xp.ones_like(errors), errors) / n_rows
    value = -0.5 * n_rows * (xp.log(2 * math.pi * mean) + 1) + 0.5 * log_weights
    return xp.where(exact, xp.full_like(errors, math.inf), value)


def information_criterion(
    xp: Any,
    name: InformationName,
    errors: Array,
    ranks: Array,
    n_rows: int,
    *,
    intercept: bool,
    variance_counted: bool = False,
    log_weights: float = 0.0,
) -> Array:
    """Return AIC, AICc or BIC; smaller is better.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    name : {"aic", "aicc", "bic"}
        Which.
    errors, n_rows, log_weights
        See `log_likelihood`.
    ranks : array
        Rank of the columns in the model (less one for every mean that centring takes out), as
        floating point numbers; of the shape of `errors`.
    intercept : bool
        Whether there is one, which counts as a parameter.
    variance_counted : bool
        Whether the variance counts as one as well, as in R; in statsmodels it does not.

    Returns
    -------
    array
        AICc is infinite, and so never best, for a model with no more than one row per parameter
        and one to spare.
    """
    parameters = ranks + (int(intercept) + int(variance_counted))
    deviance = -2 * log_likelihood(xp, errors, n_rows, log_weights)
    if name == "bic":
        return deviance + math.log(n_rows) * parameters
    if name == "aic":
        return deviance + 2 * parameters
    left = n_rows - parameters - 1
    none = left <= 0
    penalty = 2 * parameters * n_rows / xp.where(none, xp.ones_like(left), left)
    # Where the fit is exact as well, two infinities of opposite signs would meet.
    return xp.where(none, xp.full_like(deviance, math.inf), deviance + penalty)


def mallows_cp(
    xp: Any, errors: Array, ranks: Array, n_rows: int, *, intercept: bool, variance: float
) -> Array:
    """Return Mallows' Cp; smaller is better, and the full model has its number of parameters.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    errors, ranks, n_rows, intercept
        See `information_criterion`.
    variance : float
        Of the errors, as the full model estimates it: its residual sum of squares over its
        residual degrees of freedom. Positive.
    """
    del xp
    return errors / variance - n_rows + 2 * (ranks + int(intercept))


def adjusted_r2(
    xp: Any, errors: Array, ranks: Array, n_rows: int, *, intercept: bool, total: float
) -> Array:
    """Return adjusted R²; greater is better.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    errors, ranks, n_rows, intercept
        See `information_criterion`.
    total : float
        (Weighted) sum of squares of the target, about its (weighted) mean if there is an
        intercept, about zero if not. Positive.

    Returns
    -------
    array
        Minus infinity where no residual degrees of freedom are left.
    """
    left = n_rows - int(intercept) - ranks
    none = left <= 0
    variance = errors / xp.where(none, xp.ones_like(left), left)
    value = 1 - variance * ((n_rows - int(intercept)) / total)
    return xp.where(none, xp.full_like(value, -math.inf), value)
