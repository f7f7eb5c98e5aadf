"""A fold's factors made from its rows, certified: what the rows engine starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from dagsel.backend import EPSILON, namespace, to_compute, to_device_of, to_host
from dagsel.data.blocks import Block
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR, explain_centre
from dagsel.engines.linear_model import LinearModel
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.factors import DUAL, Factors, dual_factors, least_squares_factors
from dagsel.kernels.pseudo_inverse import PseudoInverse, pseudo_inverse, triangular_rows

__all__ = [
    "CLEAR_OF_CUTOFF",
    "ERROR_FACTOR",
    "FoldRows",
    "RowsSetting",
    "RowsStart",
    "joined_rows",
    "refreshed",
    "start_rows",
]

Floats = NDArray[np.float64]
TestRows = Literal["compressed", "predicted", "left out"]

# Relative errors of test residuals are about ε times the growth of rounding errors: measured
# factors are up to 7.
ERROR_FACTOR = 10.0
# Singular values are known to rounding: those above the cutoff by this factor are kept by every
# refit.
CLEAR_OF_CUTOFF = 1.01
# Singular values that are rounding are smaller, relative to the largest. Those that an estimator
# drops must be, or every refit would decide anew what to drop.
_ZERO = 1e-13
# A combination of columns that is dropped has this much of the length that it would have if they
# were orthogonal, or less. Else they are not dependent, and are back when larger columns leave.
_DEPENDENT = 1e-9
# Squares of smaller or larger numbers leave the range of double precision.
_SMALLEST, _LARGEST = 1e-140, 1e140
_SLAB_ROWS = 65536


class FoldRows(NamedTuple):
    """Which rows a fold has.

    Attributes
    ----------
    fold : int
        Its number, for messages.
    train, test : ndarray of int
        Row indices.
    weight : ndarray or None
        Weights of the training rows.
    score_weight : ndarray or None
        Weights of the test rows.
    """

    fold: int
    train: NDArray[np.intp]
    test: NDArray[np.intp]
    weight: Floats | None
    score_weight: Floats | None


@dataclass(frozen=True)
class RowsSetting:
    """What is the same for all folds.

    Attributes
    ----------
    model : LinearModel
        What is fitted.
    columns : tuple of int
        The subset to start from.
    test_rows : {"compressed", "predicted", "left out"}
        "compressed": only sums of squared residuals matter, so that fewer rows with the same
        products do. "predicted": residuals of the state are predictions with their sign changed.
        "left out": the test rows are the training rows, each to be left out in turn.
    shrinks : bool
        Whether columns only leave the model (backward elimination that does not float).
    """

    model: LinearModel
    columns: tuple[int, ...]
    test_rows: TestRows
    shrinks: bool


@dataclass(frozen=True)
class RowsStart:
    """A fold at the start of a search.

    Attributes
    ----------
    rows : FoldRows
    factors : Factors or None
        At the starting subset, over all columns of the table. `None` where a state has them.
    noise : ndarray of shape (p,)
        Lengths of columns that are zero but for rounding, and are not so in the test rows; 0 for
        all others.
    spread : ndarray of shape (T,)
        Sum of squares of the test targets about the training mean, or of predictions' scale.
    centre : ndarray of shape (T,)
        Mean of the training targets.
    safe : bool
        Whether every subset that a search can get to is certified by the start.
    """

    rows: FoldRows
    factors: Factors | None
    noise: Floats
    spread: Floats
    centre: Floats
    safe: bool

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays: by it Dask places tasks and watches memory."""
        return 0 if self.factors is None else self.factors.__sizeof__()


def joined_rows(blocks: Sequence[Block], payloads: Sequence[Any]) -> Floats:
    """Return the feature matrix in double precision; a view where there is one already."""
    slabs = [
        slab.features
        for block, payload in zip(blocks, payloads, strict=True)
        for slab in block.slabs(payload, max(_SLAB_ROWS, block.n_rows))
    ]
    if len(slabs) == 1:
        return np.asarray(slabs[0], dtype=np.float64)
    return np.concatenate([np.asarray(slab, dtype=np.float64) for slab in slabs])


def start_rows(
    setting: RowsSetting, fold: FoldRows, features: Floats, targets: Floats
) -> RowsStart:
    """Build a fold's factors and certify them.

    Parameters
    ----------
    setting : RowsSetting
    fold : FoldRows
    features : ndarray of shape (n_rows, p)
        Of the whole table.
    targets : ndarray of shape (n_rows, T)
        Of the whole table; classes are coded.

    Raises
    ------
    NotCertifiedError
        If the singular values have no clear gap at the estimator's cutoff, or the columns are so
        near to dependence that scores may not be right to 1e-9.
    """
    matrices = _centred(setting, fold, features, targets)
    train, goal, test, test_goal = _fewer_rows(setting, matrices)
    xp = namespace(train)
    chosen = to_device_of(train, np.asarray(setting.columns, dtype=np.int64))
    model = setting.model
    if model.penalty and _dual_serves(setting.shrinks, train):
        factors = dual_factors(xp, train, goal, test, test_goal, chosen, model.penalty)
        safe = True
    else:
        if model.penalty:
            train, goal = _augmented(xp, train, goal, model.penalty)
        inverse = pseudo_inverse(xp, xp.take(train, chosen, axis=0), model.cutoff, _ZERO)
        check_inverse(model, fold.fold, inverse)
        factors = least_squares_factors(xp, train, goal, test, test_goal, chosen, inverse)
        safe = model.cutoff is None or _always_safe(xp, setting, factors, inverse)
    start = RowsStart(
        rows=fold,
        factors=factors,
        noise=matrices.noise,
        spread=to_host(xp.sum(test_goal * test_goal, axis=0)),
        centre=matrices.centre,
        safe=safe,
    )
    check_growth(fold.fold, factors)
    return start


class _Matrices(NamedTuple):
    """Rows of a fold as the model sees them; features with a row for each column."""

    train: Floats
    goal: Floats
    test: Floats
    test_goal: Floats
    noise: Floats
    centre: Floats


def _centred(setting: RowsSetting, fold: FoldRows, features: Floats, targets: Floats) -> _Matrices:
    model = setting.model
    rows = features[fold.train]
    moved, scale = np.zeros(features.shape[1]), np.ones(features.shape[1])
    if model.standardise is not None:
        with_mean, with_std = model.standardise
        scaler = StandardScaler(with_mean=with_mean, with_std=with_std).fit(rows)
        moved = scaler.mean_ if with_mean else moved
        scale = scaler.scale_ if with_std else scale
    goal = targets[fold.train]
    size = np.max(np.abs(rows), axis=0)
    weight = fold.weight
    if weight is not None:
        there = weight > 0
        rows, goal, weight = rows[there], goal[there], weight[there]
    train = (rows - moved) / scale
    _check_size(fold.fold, train)
    if model.standardise is not None and not model.fit_intercept:
        _check_centre(fold.fold, moved / scale, train)
    offset, centre = np.zeros(features.shape[1]), np.zeros(targets.shape[1])
    if model.fit_intercept:
        offset = np.average(train, axis=0, weights=weight)
        train -= offset
        centre = np.average(goal, axis=0, weights=weight)
        goal = goal - centre
    if weight is not None:
        root = np.sqrt(weight)[:, None]
        train *= root
        goal = goal * root
    test = (features[fold.test] - moved) / scale - offset
    # Constant columns differ from their mean by its rounding; the estimator sees no more in them.
    length = np.linalg.norm(train, axis=0)
    nothing = length <= 8 * EPSILON * size / scale * np.sqrt(len(train))
    if not model.centres_features:
        nothing &= length == 0
    noise = np.where(nothing & (np.max(np.abs(test), axis=0) > 1e-12 * size / scale), length, 0.0)
    train[:, nothing] = 0.0
    if model.fit_intercept and 1 < len(train) <= train.shape[1]:
        train, goal = _without_mean(train, goal, weight)
    test_goal = targets[fold.test] - centre
    if setting.test_rows == "predicted":
        test_goal = np.broadcast_to(-centre, test_goal.shape)
    elif setting.test_rows == "compressed" and fold.score_weight is not None:
        root = np.sqrt(fold.score_weight)[:, None]
        test, test_goal = test * root, test_goal * root
    columns = (np.ascontiguousarray(part.T) for part in (train, test))
    train, test = columns
    return _Matrices(train, goal, test, np.ascontiguousarray(test_goal), noise, centre)


def _check_centre(fold: int, mean: Floats, train: Floats) -> None:
    """Make sure that the rounding of a scaler's mean does not show.

    Refits add rows up in another order, and no intercept makes up for what is different then.
    """
    shows = EPSILON * np.abs(mean) > MAX_RELATIVE_ERROR * np.sqrt(np.mean(train**2, axis=0))
    shows &= np.any(train != train[:1], axis=0)
    if np.any(shows):
        raise NotCertifiedError(explain_centre(fold), int(np.argmax(shows)))


def _check_size(fold: int, train: Floats) -> None:
    if not len(train):
        msg = f"fold {fold} has no training rows with a weight above 0"
        raise NotCertifiedError(msg)
    size = np.max(np.abs(train), axis=0)
    outside = (size > 0) & ((size < _SMALLEST) | (size > _LARGEST))
    if np.any(outside):
        column = int(np.argmax(outside))
        msg = (
            f"column {{column}} is of the size {size[column]:.0e} in the training rows of fold "
            f"{fold}, the square of which leaves the range of double precision; rescale it to "
            "stay on the fast engine"
        )
        raise NotCertifiedError(msg, column)


def _without_mean(train: Floats, goal: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
    """Reflect centred rows so that the direction which centring has emptied is the first row.

    That row is left out. The columns' products stay the same, and the rows can have full rank.
    """
    mirror = np.ones(len(train)) if weight is None else np.sqrt(weight)
    mirror = mirror / np.linalg.norm(mirror)
    mirror[0] += 1.0
    mirror /= np.linalg.norm(mirror)
    train, goal = (part - 2 * np.outer(mirror, mirror @ part) for part in (train, goal))
    return train[1:], goal[1:]


def _fewer_rows(setting: RowsSetting, matrices: _Matrices) -> tuple[Any, Any, Any, Any]:
    """Bring the matrices to the device, with as few rows as do."""
    train, goal, test, test_goal = map(to_compute, matrices[:4])
    xp = namespace(train)
    m, r = train.shape
    if r > m:
        train, goal = triangular_rows(xp, train, goal)
        train, goal = _cut(xp, train, goal)
    if setting.test_rows == "compressed" and test.shape[1] > m + goal.shape[1]:
        test, test_goal = triangular_rows(xp, test, test_goal)
    return train, goal, test, test_goal


def _cut(xp: Any, train: Any, goal: Any) -> tuple[Any, Any]:
    """Leave out the rows below the triangle, where the features are zero."""
    m = train.shape[0]
    return xp.asarray(train[:, :m], copy=True), goal[:m, :]


# Ridge's dual form is for columns of at least this number, so many times the rows. With fewer of
# them in the model its kernel has eigenvalues as small as the penalty, and the primal form, which
# has as many rows as columns, takes little memory. A search that adds columns begins with few.
_DUAL_LEAST = 512
_DUAL_RATIO = 2.0
_PRIMAL_MOST = 2048


def _dual_serves(shrinks: bool, train: Any) -> bool:
    m, r = train.shape
    least = max(_DUAL_LEAST, _DUAL_RATIO * r) if shrinks else max(r, _PRIMAL_MOST)
    return bool(m > least)


def _augmented(xp: Any, train: Any, goal: Any, penalty: float) -> tuple[Any, Any]:
    """Return the rows with the penalty's below them, brought back to a triangle."""
    m, t = train.shape[0], goal.shape[1]
    options = {"dtype": train.dtype, "device": train.device}
    train = xp.concat([train, penalty**0.5 * xp.eye(m, **options)], axis=1)
    goal = xp.concat([goal, xp.zeros((m, t), **options)], axis=0)
    return _cut(xp, *triangular_rows(xp, train, goal))


def check_inverse(model: LinearModel, fold: int, inverse: PseudoInverse) -> None:
    """Make sure that what is taken as zero is dropped by the estimator, too."""
    if inverse.unclear:
        raise NotCertifiedError(_explain_unclear(fold))
    deficient = inverse.rank < inverse.duals.shape[0]
    if model.cutoff is None:
        return
    if deficient and model.cutoff < 2 * _ZERO:
        raise NotCertifiedError(_explain_small_cutoff(fold, model.cutoff))
    if inverse.dropped > min(_DEPENDENT, model.cutoff / 10):
        raise NotCertifiedError(_explain_units(fold))


def _is_clear(model: LinearModel, inverse: PseudoInverse) -> bool:
    """Tell whether all singular values that are not zero are above the estimator's cutoff."""
    if model.cutoff is None or inverse.unclear:
        return not inverse.unclear
    return inverse.inverse_norm * inverse.norm * (CLEAR_OF_CUTOFF * model.cutoff) ** 2 < 1


def check_growth(fold: int, factors: Factors) -> None:
    """Make sure that rounding stays below what scores may differ by."""
    if factors.unclear:
        raise NotCertifiedError(_explain_unclear(fold))
    # Not `>`: what is not a number is not certain.
    if not ERROR_FACTOR * EPSILON * factors.growth <= MAX_RELATIVE_ERROR:
        raise NotCertifiedError(_explain_growth(fold, factors.growth))


def _always_safe(xp: Any, setting: RowsSetting, factors: Factors, inverse: PseudoInverse) -> bool:
    """Tell whether all subsets within reach have full rank and clear singular values.

    By interlacing they have if the largest of them has.
    """
    there = factors.squares > 0
    if setting.shrinks:
        missing = factors.nullity - int(xp.count_nonzero(factors.active & ~there))
        return missing == 0 and _is_clear(setting.model, inverse)
    columns = xp.nonzero(there)[0]
    if columns.shape[0] > factors.train.shape[1]:
        return False
    rows = xp.take(factors.train, columns, axis=0)
    whole = pseudo_inverse(xp, rows, setting.model.cutoff, _ZERO)
    return whole.rank == columns.shape[0] and _is_clear(setting.model, whole)


def refreshed(setting: RowsSetting, fold: int, factors: Factors) -> Factors:
    """Build the factors of the same subset anew, free of the rounding of past updates.

    Rows are compressed again where columns have left.
    """
    xp = namespace(factors.train)
    chosen = xp.nonzero(factors.active)[0]
    train, goal = factors.train, factors.targets
    model, shrinks = setting.model, setting.shrinks
    if factors.mode == DUAL and _dual_serves(shrinks, train):
        return dual_factors(
            xp, train, goal, factors.test, factors.test_targets, chosen, factors.penalty
        )
    if factors.mode == DUAL:
        train, goal = _augmented(xp, train, goal, factors.penalty)
    elif train.shape[1] > 1.1 * train.shape[0] + 1:
        train, goal = _cut(xp, *triangular_rows(xp, train, goal))
    test, test_goal = factors.test, factors.test_targets
    inverse = pseudo_inverse(xp, xp.take(train, chosen, axis=0), model.cutoff, _ZERO)
    check_inverse(model, fold, inverse)
    return least_squares_factors(xp, train, goal, test, test_goal, chosen, inverse)


def with_fewer_test_rows(factors: Factors) -> Factors:
    """Return factors that are about to be built anew, with their test rows compressed again."""
    xp = namespace(factors.test)
    m, q = factors.test.shape
    if q <= 1.1 * (m + factors.targets.shape[1]) + 1:
        return factors
    test, goal = triangular_rows(xp, factors.test, factors.test_targets)
    return replace(factors, test=test, test_targets=goal)


def _explain_unclear(fold: int) -> str:
    return (
        f"in the training rows of fold {fold} some columns are so near to linear dependence that "
        "rounding decides whether they are; drop or standardise them to stay on the fast engine"
    )


def _explain_units(fold: int) -> str:
    return (
        f"in the training rows of fold {fold} some columns are so small next to others that the "
        "estimator drops them, as long as those others are in the model; standardise the columns "
        "to stay on the fast engine"
    )


def _explain_growth(fold: int, growth: float) -> str:
    return (
        f"the training columns of fold {fold} are so near to linear dependence (condition about "
        f"{growth:.0e}) that scores may not be right to 1e-9; drop some of them, or use a larger "
        "penalty, to stay on the fast engine"
    )


def _explain_small_cutoff(fold: int, cutoff: float) -> str:
    return (
        f"the training matrix of fold {fold} is rank-deficient, and the estimator's cutoff "
        f"(tol={cutoff:g}) is so small that rounding decides which singular values it drops; "
        "drop dependent columns or set a larger `tol`"
    )
