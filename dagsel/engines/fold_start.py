"""A fold's tableau made from moments, and the certificate that it may be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import Array, namespace, to_host
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.moments import (
    Moments,
    absolute_row_sums,
    centred,
    subtract_moments,
    sum_moments,
)
from dagsel.kernels.tableau import Tableau, empty_tableau, full_tableau

__all__ = [
    "EPSILON",
    "MAX_RELATIVE_ERROR",
    "TINY",
    "FoldFacts",
    "FoldStart",
    "LeastSquares",
    "start_fold",
]

# Scores must agree with those of refits to 1e-9. An estimate of the relative error above this
# hands the run over to refits.
MAX_RELATIVE_ERROR = 1e-9
EPSILON = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny) / EPSILON
# With W the inverse of the scaled training products, the relative error of scores on the way down
# from the full set is about ε (1 + c |W|²): the inverse has an error of ε |G| |W|, normwise, which
# stays when the removal of a near-duplicate takes W itself back to order one. Measured c with the
# ∞-norm: up to 1.7e-4 for near-duplicate columns, 6e-4 for many pairs of them.
_GROWTH = 1e-3


@dataclass(frozen=True)
class LeastSquares:
    """A linear least-squares model, as far as it matters to its scores.

    Attributes
    ----------
    fit_intercept : bool
        Whether columns are centred.
    penalty : float
        Ridge penalty, in the units of the sums of squares; 0 for ordinary least squares.
    cutoff : float or None
        Relative size below which the estimator drops singular values; `None` if it never does.
    """

    fit_intercept: bool
    penalty: float = 0.0
    cutoff: float | None = None


class FoldFacts(NamedTuple):
    """What the client knows about a fold: its number and its test targets."""

    fold: int
    n_test: int
    variation: NDArray[np.float64]  # (T,): sum of squares of test targets about their own mean


class FoldStart(NamedTuple):
    """A fold's tableau at the start of a search, and what is known about its accuracy."""

    facts: FoldFacts
    columns: tuple[int, ...]  # the subset to start from
    full: bool  # whether all columns are active in the tableau, or none
    tableau: Tableau
    spread: NDArray[np.float64]  # (T,): sum of squares of test targets, or of what it is made from
    growth: NDArray[np.float64]  # (T,): error of coefficients in ε, conditioning and cancellation


def start_fold(
    model: LeastSquares,
    facts: FoldFacts,
    columns: tuple[int, ...],
    whole: Moments | None,
    parts: Sequence[Moments | None],
    test_parts: Sequence[Moments | None],
) -> FoldStart:
    """Build a fold's tableau from moments, and certify it.

    Parameters
    ----------
    model : LeastSquares
        What is fitted.
    facts : FoldFacts
        Of this fold.
    columns : tuple of int
        Columns of the subset to start from.
    whole : Moments or None
        If given, the training moments are these less `parts`; otherwise the sum of `parts`.
    parts, test_parts : sequence of Moments
        Of disjoint sets of rows.

    Raises
    ------
    NotCertifiedError
        If the training matrix is rank-deficient or too ill-conditioned for scores from moments to
        be right to 1e-9, or has singular values that the estimator would cut off.
    """
    summed, test = sum_moments(parts), sum_moments(test_parts)
    train = summed if whole is None else _difference(whole, summed)
    if train is None or test is None:
        msg = f"fold {facts.fold} has no training or no test rows"
        raise NotCertifiedError(msg)
    xp = namespace(train.cross)
    p = train.cross.shape[0] - len(facts.variation)
    mean = train.total / train.n_rows if model.fit_intercept else xp.zeros_like(train.total)
    made_from = xp.linalg.diagonal((train if whole is None else whole).cross) * 1.0  # not a view
    test_made_from = xp.linalg.diagonal(test.cross) * 1.0
    products, scale = _scaled_products(
        xp, model, facts, train, mean, overwrite=_is_new(train, [whole, *parts])
    )
    tests = centred(test, mean)
    unit = xp.concat([1 / scale, xp.ones_like(mean[p:])])
    tests *= unit[:, None]
    tests *= unit[None, :]
    train_rows, test_rows = train.n_rows, test.n_rows
    # Matrices of that size count: at most two sets of them are alive at a time.
    del train, test, summed
    arguments = (
        products[:p, :p],
        products[:p, p:],
        tests[:p, :p],
        tests[:p, p:],
        xp.linalg.diagonal(tests)[p:],
    )
    full = full_tableau(xp, *arguments)
    if full is None:
        raise NotCertifiedError(_explain_deficient(facts.fold))
    lost = _digits_lost(xp, train_rows / test_rows, products, scale, made_from, test_made_from)
    growth = _certified_growth(xp, model, facts.fold, full, arguments[0], scale, lost[:p])
    # Test products that break a near-dependence of the training rows: Q falls back from there.
    growth += float(xp.max(full.gram_diagonal)) * train_rows / test_rows
    growth_by_target = growth * np.maximum(1.0, to_host(lost[p:]) / float(xp.max(lost[:p])))
    starts_full = 2 * len(columns) > p
    tableau = full if starts_full else empty_tableau(xp, *arguments)
    spread = np.maximum(to_host(arguments[4]), to_host(test_made_from[p:]))
    return FoldStart(facts, columns, starts_full, tableau, spread, growth_by_target)


def _is_new(train: Moments, sources: Sequence[Moments | None]) -> bool:
    """Tell whether moments were made here, and so may be written to: a sum of one part was not."""
    return all(source is None or source.cross is not train.cross for source in sources)


def _digits_lost(
    xp: Any,
    rows_ratio: float,
    products: Array,
    scale: Array,
    made_from: Array,
    test_made_from: Array,
) -> Array:
    """Return, for every column and target, by how much sums exceed what is left after centring.

    Rounding is relative to the sums that centred products are made from: those about the pilot
    mean, of all rows where a training set is made by difference. Test sums are measured by what the
    training rows would give for as many rows.
    """
    p = scale.shape[0]
    left = xp.concat([scale * scale, xp.linalg.diagonal(products)[p:]])
    test_made_from = test_made_from * rows_ratio
    # All digits can be gone: not more than that, so that nothing overflows.
    floor = TINY + 1e-30 * (made_from + test_made_from)
    left = xp.where(left > floor, left, floor)
    train, test = made_from / left, test_made_from / left
    lost = xp.where(train > test, train, test)
    return xp.where(lost > 1, lost, xp.ones_like(lost))


def _certified_growth(
    xp: Any,
    model: LeastSquares,
    fold: int,
    full: Tableau,
    products: Array,
    scale: Array,
    lost: Array,
) -> float:
    """Return the growth of rounding errors, or raise if scores could be wrong."""
    inverse = full.swept[0]  # its sign does not matter here
    norm = float(xp.max(absolute_row_sums(xp, inverse, xp.ones_like(scale))))
    cancellation = float(xp.max(lost))
    growth = (1 + _GROWTH * norm**2) * cancellation
    # Not `>`: a norm that is not a number certifies nothing.
    if not growth * EPSILON <= MAX_RELATIVE_ERROR:
        if cancellation > _GROWTH * norm**2:
            raise NotCertifiedError(_explain_cancellation(fold), int(xp.argmax(lost)))
        column = int(xp.argmax(-full.pivots[0, :]))
        inflation = -float(full.pivots[0, column])
        raise NotCertifiedError(_explain_condition(fold, inflation), column)
    if model.cutoff is not None:
        _check_cutoff(xp, model.cutoff, fold, products, inverse, scale)
    return growth


def _difference(whole: Moments, part: Moments | None) -> Moments:
    return whole if part is None else subtract_moments(whole, part)


def _scaled_products(
    xp: Any,
    model: LeastSquares,
    facts: FoldFacts,
    train: Moments,
    mean: Array,
    *,
    overwrite: bool,
) -> tuple[Array, Array]:
    """Centred training products with the penalty, features scaled to a unit diagonal."""
    p = train.cross.shape[0] - len(facts.variation)
    products = centred(train, mean, overwrite=overwrite)
    if model.penalty:
        ridge = xp.zeros_like(mean)
        ridge[:p] = model.penalty
        products += xp.eye(mean.shape[0], dtype=mean.dtype, device=mean.device) * ridge
    diagonal = xp.linalg.diagonal(products)[:p]
    # Below this, sums of squares are denormal numbers that have lost digits.
    if not bool(xp.all(diagonal > TINY)):
        column = int(xp.argmin(diagonal))
        msg = (
            f"column {{column}} is constant in the training rows of fold {facts.fold}; drop it to "
            "stay on the fast engine"
        )
        raise NotCertifiedError(msg, column)
    scale = xp.sqrt(diagonal)
    unit = xp.concat([1 / scale, xp.ones_like(mean[p:])])
    products *= unit[:, None]
    products *= unit[None, :]
    return products, scale


def _check_cutoff(
    xp: Any, cutoff: float, fold: int, products: Array, inverse: Array, scale: Array
) -> None:
    """Make sure that the estimator drops no singular value, in the units that it sees.

    With s the scales, G_ij s_i s_j are the products in the estimator's units. σ_max² is at most
    their ∞-norm and 1/σ_min² at most that of the inverse; only where these bounds do not settle it
    are eigenvalues computed. A factor of two keeps clear of the cutoff's neighbourhood.
    """
    largest = float(xp.max(scale * absolute_row_sums(xp, products, scale)))
    least = 1 / float(xp.max(absolute_row_sums(xp, inverse, 1 / scale) / scale))
    allowed = (2 * cutoff) ** 2
    if least > allowed * largest:
        return
    values = xp.linalg.eigvalsh(products * scale[:, None] * scale[None, :])
    ratio = float(values[0]) / float(values[-1])
    if ratio > allowed:
        return
    size = f"{np.sqrt(max(ratio, 0.0)):.1e}"
    msg = (
        f"in fold {fold} the smallest singular value of the training matrix is {size} of the "
        f"largest, too near the cutoff (tol={cutoff:g}) below which the estimator drops it; "
        "standardise the columns or set a smaller `tol`"
    )
    raise NotCertifiedError(msg)


def _explain_deficient(fold: int) -> str:
    return (
        f"the training matrix of fold {fold} is rank-deficient (constant, duplicate or linearly "
        "dependent columns)"
    )


def _explain_condition(fold: int, inflation: float) -> str:
    return (
        f"in the training rows of fold {fold} column {{column}} is almost a linear combination of "
        f"the others (variance inflation {inflation:.0e}), so that scores from moments may not be "
        "right to 1e-9; drop it to stay on the fast engine"
    )


def _explain_cancellation(fold: int) -> str:
    return (
        f"column {{column}} varies much less in the training rows of fold {fold} than over all "
        "rows (outliers, or a trend), so that scores from moments may not be right to 1e-9"
    )
