"""The certificate that scores from a fold's moments may be trusted."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagsel.backend import EPSILON, Array
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR, explain_cutoff
from dagsel.engines.linear_model import LinearModel
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.moments import absolute_row_sums
from dagsel.kernels.tableau import Tableau

__all__ = ["certified_growth", "explain_cancellation"]

# With W the inverse of the scaled training products, the relative error of scores on the way down
# from the full set is about ε (1 + c |W|²): the inverse has an error of ε |G| |W|, normwise, which
# stays when the removal of a near-duplicate takes W itself back to order one. Measured c with the
# ∞-norm: up to 1.7e-4 for near-duplicate columns, 6e-4 for many pairs of them.
_GROWTH = 1e-3


def certified_growth(
    xp: Any,
    model: LinearModel,
    fold: int,
    full: Tableau,
    products: Array,
    lengths: Array,
    lost: Array,
    *,
    full_rank: bool = True,
) -> float:
    """Return the growth of rounding errors, or raise if scores could be wrong.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    model : LinearModel
        What is fitted.
    fold : int
        For messages.
    full : Tableau
        Of the fold, swept on all columns, or on a basis of them.
    products : array of shape (p, p)
        Training products of the columns scaled to unit length.
    lengths : array of shape (p,)
        Lengths of the columns in the units that the model sees; 0 for constants.
    lost : array of shape (p,)
        How much larger the sums are than what is left of them after centring.
    full_rank : bool
        Whether the tableau is swept on all columns, so that singular values can be bounded by it.

    Raises
    ------
    NotCertifiedError
        Saying which column of which fold, and what to do.
    """
    inverse = full.swept[0]  # its sign does not matter here
    norm = float(xp.max(absolute_row_sums(xp, inverse, xp.ones_like(lengths))))
    cancellation = float(xp.max(lost))
    growth = (1 + _GROWTH * norm**2) * cancellation
    # Not `>`: a norm that is not a number certifies nothing.
    if not growth * EPSILON <= MAX_RELATIVE_ERROR:
        if cancellation > _GROWTH * norm**2:
            raise NotCertifiedError(explain_cancellation(fold), int(xp.argmax(lost)))
        column = int(xp.argmax(-full.pivots[0, :]))
        inflation = -float(full.pivots[0, column])
        raise NotCertifiedError(_explain_condition(fold, inflation), column)
    if model.cutoff is not None and full_rank:
        _check_cutoff(xp, model.cutoff, fold, products, inverse, lengths)
    return growth


def _check_cutoff(
    xp: Any, cutoff: float, fold: int, products: Array, inverse: Array, lengths: Array
) -> None:
    """Make sure that the estimator drops no singular value, in the units that it sees.

    With s the lengths of the columns in these units, G_ij s_i s_j are the products. σ_max² is at
    most their ∞-norm and 1/σ_min² at most that of the inverse; only where these bounds do not
    settle it are eigenvalues computed. A factor of two keeps clear of the cutoff's neighbourhood.
    Columns of no length are constants, which the estimator does drop, and to no effect.
    """
    there = lengths > 0
    if not bool(xp.any(there)):
        return
    over = xp.where(there, 1 / xp.where(there, lengths, xp.ones_like(lengths)), 0 * lengths)
    largest = float(xp.max(lengths * absolute_row_sums(xp, products, lengths)))
    least = 1 / float(xp.max(absolute_row_sums(xp, inverse, over) * over))
    allowed = (2 * cutoff) ** 2
    if least > allowed * largest:
        return
    values = xp.linalg.eigvalsh(products * lengths[:, None] * lengths[None, :])
    n_constant = int(xp.sum(xp.astype(~there, xp.int64)))
    ratio = float(values[n_constant]) / float(values[-1])
    if ratio > allowed:
        return
    raise NotCertifiedError(explain_cutoff(fold, np.sqrt(max(ratio, 0.0)), cutoff))


def _explain_condition(fold: int, inflation: float) -> str:
    return (
        f"in the training rows of fold {fold} column {{column}} is almost a linear combination of "
        f"the others (variance inflation {inflation:.0e}), so that scores from moments may not be "
        "right to 1e-9; drop it to stay on the fast engine"
    )


def explain_cancellation(fold: int) -> str:
    """Say that a fold's sums have lost too many digits of a column."""
    return (
        f"column {{column}} varies much less in the training rows of fold {fold} than over all "
        "rows (outliers, or a trend), so that scores from moments may not be right to 1e-9"
    )
