"""A fold's tableau made from moments, and the certificate that it may be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import EPSILON, Array, namespace, to_host
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR, TINY, explain_centre
from dagsel.engines.linear_model import LinearModel
from dagsel.engines.moments.certificate import certified_growth, explain_cancellation
from dagsel.engines.moments.dependent_start import dependent_start
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.moments import (
    ColumnSums,
    Moments,
    add_column_sums,
    centred,
    subtract_moments,
    sum_moments,
)
from dagsel.kernels.nullspace import NullSpace, no_null_space, nullity
from dagsel.kernels.tableau import Tableau, empty_tableau, full_tableau

__all__ = [
    "FoldFacts",
    "FoldStart",
    "FullFit",
    "TrainingSums",
    "start_fold",
]

# Variance inflation from which a column may be dependent on others, and is looked at as such.
_DEPENDENT = 1e7


class FoldFacts(NamedTuple):
    """What the client knows about a fold: its number and its test targets."""

    fold: int
    n_test: int
    weight: float  # of the test rows in scores; their number where they have none
    variation: NDArray[np.float64]  # (T,): sum of squares of test targets about their own mean


class TrainingSums(NamedTuple):
    """A fold's training moments: those of `whole` less `parts`, or the sum of `parts` without it.

    Rounding is relative to what the moments are made from. What must be known to the last digit
    is told by the sums of the training rows' columns, which are never a difference.
    """

    whole: Moments | None
    parts: Sequence[Moments | None]
    columns: Sequence[ColumnSums | None]

    def total(self) -> Moments | None:
        """Add up; `None` if there are no rows."""
        summed = sum_moments(self.parts)
        if self.whole is None:
            return summed
        return self.whole if summed is None else subtract_moments(self.whole, summed)


class FullFit(NamedTuple):
    """The model on all columns, in the training rows of a fold.

    What criteria that judge by the fit to all rows need to know of it.
    """

    errors: NDArray[np.float64]  # (T,): sums of squared errors in the test rows
    rank: int
    inflation: float  # trace of the inverse on a basis of the columns, scaled to unit length
    constant: NDArray[np.bool_]  # (p,): columns that the rank does not count


class FoldStart(NamedTuple):
    """A fold's tableau at the start of a search, and what is known about its accuracy."""

    facts: FoldFacts
    columns: tuple[int, ...]  # the subset to start from
    full: bool  # whether all columns are active in the tableau, or none
    tableau: Tableau
    spread: NDArray[np.float64]  # (T,): sum of squares of test targets, or of what it is made from
    growth: NDArray[np.float64]  # (T,): error of coefficients in ε, conditioning and cancellation
    products: Array  # (p, T): scaled training products of the columns with the targets
    scale: Array  # (p,): lengths of columns, in units of the model, that the tableau divides by
    everything: FullFit
    null: NullSpace | None = None  # where the columns of the training matrix are dependent


def start_fold(
    model: LinearModel,
    facts: FoldFacts,
    columns: tuple[int, ...],
    shift: Array,
    training: Sequence[Any],
    test_parts: Sequence[Moments | None],
    unweighted: Sequence[Any] | None = None,
) -> FoldStart:
    """Build a fold's tableau from moments, and certify it.

    Parameters
    ----------
    model : LinearModel
        What is fitted.
    facts : FoldFacts
        Of this fold.
    columns : tuple of int
        Columns of the subset to start from.
    shift : array of shape (p + T,)
        What was subtracted from every row before moments were summed.
    training : sequence
        Fields of `TrainingSums`, with the weights of the fit.
    test_parts : sequence of Moments
        Of disjoint sets of rows, with the weights of the score.
    unweighted : sequence, optional
        Fields of `TrainingSums` without weights, by which a scaler before the model scales; by
        default `training`.

    Raises
    ------
    NotCertifiedError
        If the training matrix is too ill-conditioned for scores from moments to be right to 1e-9,
        or has singular values, other than zeros, that the estimator would cut off.
    """
    scaled = _scaled(model, facts, shift, training, test_parts, unweighted)
    xp = namespace(scaled.scale)
    p = scaled.scale.shape[0]
    arguments, constant = scaled.arguments, scaled.constant
    starts_full = 2 * len(columns) > p
    in_units = xp.where(constant, xp.zeros_like(scaled.scale), scaled.scale / scaled.units)
    full = full_tableau(xp, *arguments, least=1 / _DEPENDENT)
    null = None
    if full is not None and _well_conditioned(xp, full):
        growth = certified_growth(
            xp, model, facts.fold, full, arguments[0], in_units, scaled.lost[:p]
        )
    else:
        full, null, growth = dependent_start(
            xp, model, facts.fold, arguments, in_units, scaled.target_lengths, scaled.lost[:p]
        )
    tableau = full if starts_full else empty_tableau(xp, *arguments)
    unused = to_host(constant)
    rank = p - int(np.count_nonzero(unused)) - (0 if null is None else nullity(null))
    if null is not None and not starts_full:
        null = no_null_space(xp, tableau, null.metric)
    # Test products that break a near-dependence of the training rows: Q falls back from there.
    growth += float(xp.max(full.gram_diagonal)) * scaled.ratio
    lost = to_host(scaled.lost)
    inflation = -float(xp.sum(xp.where(full.pivots < 0, full.pivots, 0 * full.pivots)))
    return FoldStart(
        facts=facts,
        columns=columns,
        full=starts_full,
        tableau=tableau,
        spread=np.maximum(to_host(arguments[4]), to_host(scaled.test_made_from[p:])),
        growth=growth * np.maximum(1.0, lost[p:] / np.max(lost[:p])),
        products=arguments[1] * 1.0,  # not a view: the matrix is let go of
        scale=xp.where(constant, xp.ones_like(in_units), in_units),
        everything=FullFit(to_host(full.errors)[0], rank, inflation, unused),
        null=null,
    )


class _Scaled(NamedTuple):
    """A fold's products, with features scaled to unit length, and what they were made from."""

    arguments: tuple[Array, Array, Array, Array, Array]  # of `full_tableau`
    scale: Array  # (p,): lengths in the table's units, 1 for constants
    units: Array  # (p,): see `_units`
    constant: Array  # (p,): see `_constant_columns`
    target_lengths: Array  # (T,)
    lost: Array  # (p + T,): see `_digits_lost`
    test_made_from: Array  # (p + T,): sums of squares that those of the test rows are made from
    ratio: float  # weight of the training rows over that of the test rows


def _scaled(
    model: LinearModel,
    facts: FoldFacts,
    shift: Array,
    training: Sequence[Any],
    test_parts: Sequence[Moments | None],
    unweighted: Sequence[Any] | None,
) -> _Scaled:
    """Centre and scale a fold's moments; parameters as of `start_fold`."""
    sums = TrainingSums(*training)
    train, test = sums.total(), sum_moments(test_parts)
    if train is None or test is None or not train.weight > 0:
        msg = f"fold {facts.fold} has no training or no test rows"
        raise NotCertifiedError(msg)
    xp = namespace(train.cross)
    p = train.cross.shape[0] - len(facts.variation)
    columns = add_column_sums(sums.columns)
    plain = columns if unweighted is None else add_column_sums(TrainingSums(*unweighted).columns)
    assert columns is not None, "there are training rows"
    mean = _means(xp, model, p, train, plain)
    made_from = xp.linalg.diagonal((sums.whole or train).cross) * 1.0  # not a view
    test_made_from = xp.linalg.diagonal(test.cross) * 1.0
    units = _units(xp, model, facts.fold, p, shift, plain)
    products = centred(train, mean, overwrite=_is_new(train, [sums.whole, *sums.parts]))
    level = (shift + mean)[:p] if model.centres_features else xp.zeros_like(units)
    constant = _constant_columns(xp, model, facts.fold, products, columns, level, units)
    if model.centres_features and not model.fit_intercept:
        _check_centre(xp, facts.fold, level, products, constant, train.weight)
    if model.penalty:
        _add_to_diagonal(xp, products, model.penalty * units * units)
    scale = _scale(xp, facts.fold, products[:p, :p], constant)
    _rescale(xp, products, scale, constant, 1.0)
    tests = centred(test, mean)
    _rescale(xp, tests, scale, constant, 0.0)
    ratio = train.weight / test.weight if test.weight > 0 else 1.0
    target_squares = xp.linalg.diagonal(products)[p:]
    # Matrices of that size count: at most two sets of them are alive at a time.
    del train, test, plain, sums
    return _Scaled(
        arguments=(
            products[:p, :p],
            products[:p, p:],
            tests[:p, :p],
            tests[:p, p:],
            xp.linalg.diagonal(tests)[p:],
        ),
        scale=scale,
        units=units,
        constant=constant,
        target_lengths=xp.sqrt(xp.where(target_squares > 0, target_squares, 0 * target_squares)),
        lost=_digits_lost(xp, ratio, products, scale, constant, made_from, test_made_from),
        test_made_from=test_made_from,
        ratio=ratio,
    )


def _well_conditioned(xp: Any, full: Tableau) -> bool:
    """Tell whether no column is so nearly dependent that it may be dependent altogether.

    Pivots of the factorisation tell most such columns, before the inverse is made; not all.
    """
    return bool(xp.all(-full.pivots < _DEPENDENT))


def _means(xp: Any, model: LinearModel, p: int, train: Moments, plain: ColumnSums | None) -> Array:
    """Return what features and targets are centred by, relative to the shift."""
    mean = train.total / train.weight
    if model.fit_intercept:
        return mean
    features = xp.zeros_like(mean[:p])
    if model.centres_features and plain is not None:
        features = plain.total[:p] / plain.weight
    return xp.concat([features, xp.zeros_like(mean[p:])])


def _units(
    xp: Any, model: LinearModel, fold: int, p: int, shift: Array, plain: ColumnSums | None
) -> Array:
    """Return the length, in the table's units, of a unit in which the model sees each feature."""
    ones = xp.ones_like(shift[:p])
    if not model.scales_features or plain is None:
        return ones
    n, mean = plain.weight, plain.total[:p] / plain.weight
    made_from = plain.squares[:p] / n
    variance = made_from - mean * mean
    lost = ~(EPSILON * made_from <= MAX_RELATIVE_ERROR * variance)
    lost = lost & (plain.high[:p] > plain.low[:p])
    if bool(xp.any(lost)):
        raise NotCertifiedError(
            explain_cancellation(fold), int(xp.argmax(xp.astype(lost, xp.int64)))
        )
    # What scikit-learn's scaler takes for constant, and leaves as it is: rounding of the variance
    # computed in one pass about the mean (`sklearn.preprocessing._data._is_constant_feature`).
    bound = n * EPSILON * variance + (n * (shift[:p] + mean) * EPSILON) ** 2
    return xp.where(variance > bound, xp.sqrt(xp.where(variance > 0, variance, ones)), ones)


def _add_to_diagonal(xp: Any, products: Array, values: Array) -> None:
    """Add to the first entries of the diagonal, in place, without another matrix of that size."""
    size, panel = values.shape[0], 512
    for start in range(0, size, panel):
        stop = min(start + panel, size)
        part = values[start:stop]
        eye = xp.eye(stop - start, dtype=products.dtype, device=products.device)
        products[start:stop, start:stop] += eye * part[:, None]


def _constant_columns(
    xp: Any,
    model: LinearModel,
    fold: int,
    products: Array,
    columns: ColumnSums,
    level: Array,
    units: Array,
) -> Array:
    """Return which features are constant in the training rows, to the last digit.

    Least squares gives them no weight, with or without a penalty, so they take part as columns
    that are orthogonal to everything and do nothing. Told by the columns' bounds: sums can have
    lost the digits of what is left of a column, which can matter in the test rows.

    Parameters
    ----------
    products : array of shape (p + T, p + T)
        About what the features are centred by, without a penalty.
    columns : ColumnSums
        Of the training rows.
    level : array of shape (p,)
        What the features are centred by, which tells the rounding of a constant's rows.
    units : array of shape (p,)
        See `_units`.
    """
    p = level.shape[0]
    low, high = columns.low[:p], columns.high[:p]
    width = high - low if model.centres_features else xp.maximum(xp.abs(low), xp.abs(high))
    noise = 8 * EPSILON * xp.abs(level)
    constant = width <= noise
    if model.cutoff is not None and bool(xp.any(constant)):
        # What is left of a constant after centring must be too small for the estimator to keep.
        remains = xp.where(constant, noise * columns.weight**0.5 / units, xp.zeros_like(noise))
        largest = xp.sqrt(xp.max(xp.linalg.diagonal(products)[:p] / (units * units)))
        if not bool(xp.all(remains <= model.cutoff / 2 * largest)):
            column = int(xp.argmax(remains))
            msg = (
                f"column {{column}} is constant in the training rows of fold {fold}, at a value so "
                "large that its rounding is as large as other columns; drop it"
            )
            raise NotCertifiedError(msg, column)
    return constant


def _check_centre(
    xp: Any, fold: int, level: Array, products: Array, constant: Array, n: float
) -> None:
    """Make sure that the rounding of a scaler's mean does not show; no intercept makes up for it.

    A mean is known to ε times its size; see `_constant_columns` for the parameters.
    """
    squares = xp.linalg.diagonal(products)[: level.shape[0]] / n
    rounding = (EPSILON * level) ** 2
    shows = ~constant & ~(rounding <= MAX_RELATIVE_ERROR**2 * squares)
    if bool(xp.any(shows)):
        raise NotCertifiedError(explain_centre(fold), int(xp.argmax(xp.astype(shows, xp.int64))))


def _scale(xp: Any, fold: int, products: Array, constant: Array) -> Array:
    """Return the lengths of the features; 1 for constants."""
    diagonal = xp.where(constant, xp.ones_like(products[0, :]), xp.linalg.diagonal(products))
    # Below this, sums of squares are denormal numbers that have lost digits.
    if not bool(xp.all(diagonal > TINY)):
        column = int(xp.argmin(diagonal))
        msg = (
            f"column {{column}} is almost constant in the training rows of fold {fold}; drop it to "
            "stay on the fast engine"
        )
        raise NotCertifiedError(msg, column)
    return xp.sqrt(diagonal)


def _rescale(xp: Any, products: Array, scale: Array, constant: Array, diagonal: float) -> None:
    """Scale features to unit length in place; constants get zeros, and `diagonal` on theirs."""
    unit = xp.where(constant, xp.zeros_like(scale), 1 / scale)
    ones = xp.ones(
        (products.shape[0] - scale.shape[0],), dtype=products.dtype, device=products.device
    )
    unit = xp.concat([unit, ones])
    products *= unit[:, None]
    products *= unit[None, :]
    if diagonal:
        _add_to_diagonal(
            xp, products, xp.where(constant, xp.ones_like(scale), xp.zeros_like(scale))
        )


def _is_new(train: Moments, sources: Sequence[Moments | None]) -> bool:
    """Tell whether moments were made here, and so may be written to: a sum of one part was not."""
    return all(source is None or source.cross is not train.cross for source in sources)


def _digits_lost(
    xp: Any,
    rows_ratio: float,
    products: Array,
    scale: Array,
    constant: Array,
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
    matters = xp.concat([~constant, xp.ones_like(lost[p:], dtype=constant.dtype)])
    return xp.where(matters & (lost > 1), lost, xp.ones_like(lost))
