"""From residual sums of squares to scores by a criterion, with the rounding they can have."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import array_api_compat.numpy as xp
import numpy as np
from numpy.typing import NDArray

from dagsel.criterion import Criterion
from dagsel.engines.criteria.f_test import log_p_value
from dagsel.exceptions import DataError
from dagsel.kernels.criteria import adjusted_r2, information_criterion, mallows_cp

__all__ = ["Fits", "RowFacts", "criterion_scores", "row_facts"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class RowFacts:
    """What criteria need to know of the rows, whichever columns are in the model.

    Attributes
    ----------
    n_rows : int
        Rows of positive weight.
    fit_intercept : bool
        Whether models have an intercept.
    total : float
        (Weighted) sum of squares of the target, about its mean if there is an intercept.
    log_weights : float
        Sum of the logarithms of the positive weights.
    variance : float
        Of the errors, as the model on all columns estimates it; NaN where no criterion asks.
    """

    n_rows: int
    fit_intercept: bool
    total: float
    log_weights: float = 0.0
    variance: float = math.nan

    def with_full_model(self, error: float, rank: float) -> RowFacts:
        """Return the facts with the variance that the model on all columns estimates.

        Parameters
        ----------
        error : float
            Its residual sum of squares.
        rank : float
            Rank of all columns.

        Raises
        ------
        DataError
            If it leaves no residual degrees of freedom, or no error.
        """
        left = self.n_rows - rank - self.fit_intercept
        if left <= 0 or not error > 0:
            what = "error" if left > 0 else "residual degrees of freedom"
            msg = (
                f"Mallows' Cp needs the error variance of the model on all columns, but with rank "
                f"{rank:.0f} and {self.n_rows} rows that leaves no {what}: use criterion='bic' or "
                "'aicc', or start from fewer columns"
            )
            raise DataError(msg)
        return replace(self, variance=error / left)


def row_facts(
    target: FloatArray, weight: FloatArray | None, *, fit_intercept: bool
) -> tuple[RowFacts, FloatArray]:
    """Return what criteria need to know of the rows, and the error of the empty model in each.

    Parameters
    ----------
    target : ndarray of shape (n_rows,)
        Target.
    weight : ndarray of shape (n_rows,) or None
        Weights; rows of weight 0 count for nothing.
    fit_intercept : bool
        Whether models have an intercept.

    Returns
    -------
    facts : RowFacts
        Without the variance.
    residuals : ndarray of shape (n_rows,)
        Target less its mean, or less nothing.

    Raises
    ------
    DataError
        If weights are no weights, or the target leaves nothing to explain.
    """
    used = np.ones(len(target), dtype=np.bool_) if weight is None else _used_rows(weight, target)
    known = target[used]
    if np.all(known == (known[0] if fit_intercept else 0.0)):
        what = "constant" if fit_intercept else "zero"
        msg = f"the target is {what} in all rows that count: there is nothing to explain"
        raise DataError(msg)
    mean = np.average(target, weights=weight) if fit_intercept else 0.0
    residuals = target - mean
    if weight is None:
        return RowFacts(len(target), fit_intercept, float(residuals @ residuals)), residuals
    facts = RowFacts(
        n_rows=int(np.count_nonzero(used)),
        fit_intercept=fit_intercept,
        total=float(weight @ residuals**2),
        log_weights=float(np.sum(np.log(weight[used]))),
    )
    return facts, residuals


def _used_rows(weight: FloatArray, target: FloatArray) -> NDArray[np.bool_]:
    used = weight > 0
    if weight.shape != target.shape or not np.all(np.isfinite(weight) & (weight >= 0)):
        msg = "sample_weight must be one finite number of at least 0 for every row"
        raise DataError(msg)
    if not np.any(used):
        msg = "sample_weight is 0 in every row"
        raise DataError(msg)
    return used


class Fits(NamedTuple):
    """Least-squares fits to all rows.

    Attributes
    ----------
    errors : ndarray of shape (m,)
        Residual sums of squares, weighted if there are weights.
    ranks : ndarray of shape (m,)
        Ranks of the columns in the models, the intercept not counted.
    doubts : ndarray of shape (m,)
        By how much `errors` can be wrong.
    """

    errors: FloatArray
    ranks: FloatArray
    doubts: FloatArray


def criterion_scores(
    criterion: Criterion,
    facts: RowFacts,
    fits: Fits,
    *,
    current: Fits | None = None,
    removal: bool = True,
    changes: FloatArray | None = None,
    change_doubts: FloatArray | None = None,
) -> tuple[FloatArray, float]:
    """Score fits by a criterion.

    Parameters
    ----------
    criterion : Criterion
        Which.
    facts : RowFacts
        Of the rows.
    fits : Fits
        Of the m candidates of a round, or of a subset by itself.
    current : Fits, optional
        Of the subset that the candidates are one move away from, of shape (1,). Only the criteria
        that score moves ask for it.
    removal : bool
        Whether the candidates have one feature less than the current subset, or one more.
    changes : ndarray of shape (m,), optional
        |errors of the candidates - error of the current subset|, where they are known to more
        digits than the difference has: a column that explains next to nothing changes the error by
        less than rounding.
    change_doubts : ndarray of shape (m,), optional
        By how much `changes` can be wrong.

    Returns
    -------
    scores : ndarray of shape (m, 1)
        Greater is better.
    rounding : float
        Scores that differ from the best by no more than this cannot be told apart from it.

    Raises
    ------
    DataError
        If a test is asked for and the larger models leave no residual degrees of freedom.
    """
    if criterion.scores_moves:
        if current is None:
            msg = "a p-value belongs to a move; a subset by itself has none"
            raise ValueError(msg)
        if changes is None or change_doubts is None:
            changes = np.abs(fits.errors - current.errors)
            change_doubts = fits.doubts + current.doubts
        return _scored_moves(facts, fits, current, removal, changes, change_doubts)
    scores = _scored_models(criterion, facts, fits.errors, fits.ranks)
    best = [_best(scores)]
    shifted = _scored_models(
        criterion, facts, fits.errors[best] + fits.doubts[best], fits.ranks[best]
    )
    return scores[:, None], _distance(scores[best], shifted)


def _scored_models(
    criterion: Criterion, facts: RowFacts, errors: FloatArray, ranks: FloatArray
) -> FloatArray:
    n_rows, intercept = facts.n_rows, facts.fit_intercept
    scores: FloatArray
    if criterion.name == "adjusted_r2":
        scores = adjusted_r2(xp, errors, ranks, n_rows, intercept=intercept, total=facts.total)
    elif criterion.name == "mallows_cp":
        variance = facts.variance
        scores = -mallows_cp(xp, errors, ranks, n_rows, intercept=intercept, variance=variance)
    else:
        assert criterion.name != "p_value", "p-values belong to moves"
        scores = -information_criterion(
            xp,
            criterion.name,
            errors,
            ranks,
            n_rows,
            intercept=intercept,
            variance_counted=criterion.variance_counted,
            log_weights=facts.log_weights,
        )
    return scores


def _scored_moves(
    facts: RowFacts,
    fits: Fits,
    current: Fits,
    removal: bool,
    changes: FloatArray,
    change_doubts: FloatArray,
) -> tuple[FloatArray, float]:
    """Score removals by log p, additions by -log p."""
    larger, smaller = (current, fits) if removal else (fits, current)
    degrees = larger.ranks - smaller.ranks
    left = facts.n_rows - facts.fit_intercept - larger.ranks
    if not np.any(left > 0):
        msg = (
            f"no test is possible: {facts.n_rows} rows leave no residual degrees of freedom to a "
            f"model of rank {np.min(larger.ranks):.0f}. Start from fewer columns, or select "
            "forward, or use criterion='bic'"
        )
        raise DataError(msg)
    sign = 1.0 if removal else -1.0

    def scored(errors: FloatArray, moved: FloatArray) -> FloatArray:
        return sign * log_p_value(errors, np.maximum(moved, 0.0), degrees, left) + 0.0  # no -0

    scores = scored(larger.errors, changes)
    best = _best(scores)
    rounding = 0.0
    for direction in (-1.0, 1.0):
        errors = np.maximum(larger.errors - direction * larger.doubts, 0.0)
        shifted = scored(errors, changes + direction * change_doubts)
        rounding = max(rounding, _distance(scores[best], shifted[best]))
    return scores[:, None], rounding


def _best(scores: FloatArray) -> int:
    usable = ~np.isnan(scores)
    return int(np.argmax(np.where(usable, scores, -np.inf))) if np.any(usable) else 0


def _distance(scores: FloatArray, shifted: FloatArray) -> float:
    """Return how far scores move, 0 for those that are not finite: they are not rounded."""
    with np.errstate(invalid="ignore"):
        distance = float(np.max(np.abs(shifted - scores)))
    return distance if math.isfinite(distance) else 0.0
