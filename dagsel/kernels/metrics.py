"""Scores that are functions of a fold's sum of squared errors."""

from __future__ import annotations

from typing import Any, Literal

from dagsel.backend import Array

__all__ = ["METRICS", "Metric", "score_from_errors"]

Metric = Literal["neg_mean_squared_error", "neg_root_mean_squared_error", "r2"]

METRICS: tuple[Metric, ...] = (
    "neg_mean_squared_error",
    "neg_root_mean_squared_error",
    "r2",
)


def score_from_errors(
    xp: Any,
    metric: Metric,
    errors: Array,
    n_rows: Array,
    variation: Array,
    weight: Array | None = None,
) -> Array:
    """Turn sums of squared test errors into scores, as scikit-learn's scorers would.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    metric : str
        One of `METRICS`.
    errors : array of shape (K, m, T)
        Sum of squared errors of every fold, candidate and target; not negative.
    n_rows : array of shape (K,)
        Test rows of each fold, as floating point numbers.
    variation : array of shape (K, T)
        Sum of squares of the test targets about their own mean, in each fold.
    weight : array of shape (K,), optional
        Sum of the test rows' weights, if they have any; the sums above are then weighted sums.

    Returns
    -------
    array of shape (K, m)
        Greater is better. Several targets are averaged with equal weights.

    Notes
    -----
    R² follows `sklearn.metrics.r2_score` in its corner cases: fewer than two test rows give NaN;
    a constant test target gives 1 for no error and 0 otherwise.
    """
    divisor = n_rows if weight is None else weight
    if metric == "neg_mean_squared_error":
        return -xp.mean(errors, axis=2) / divisor[:, None]
    if metric == "neg_root_mean_squared_error":
        return -xp.mean(xp.sqrt(errors / divisor[:, None, None]), axis=2)
    spread = variation[:, None, :]
    constant = spread == 0
    ratio = 1.0 - errors / xp.where(constant, xp.ones_like(spread), spread)
    undetermined = xp.where(errors == 0, xp.ones_like(errors), xp.zeros_like(errors))
    score = xp.mean(xp.where(constant, undetermined, ratio), axis=2)
    return xp.where(n_rows[:, None] < 2, xp.full_like(score, xp.nan), score)
