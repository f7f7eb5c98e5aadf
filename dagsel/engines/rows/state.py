"""A fold's state in a search: its factors carried from subset to subset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import LabelBinarizer

from dagsel.backend import Array, namespace, to_device_of, to_host
from dagsel.engines.rows.fold import (
    FoldRows,
    RowsSetting,
    RowsStart,
    check_growth,
    refreshed,
    start_rows,
    with_fewer_test_rows,
)
from dagsel.engines.rows.metrics import TestRowsFacts
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.factor_updates import toggle
from dagsel.kernels.factors import DUAL, Factors, columns_kept, present_growth

__all__ = ["FoldStart", "FoldState", "moved_fold", "start_fold_rows", "without_columns"]

# Factors are built anew when their rounding, which is that of the worst subset since they were
# built, is so many times what the present subset's would be.
_STALE = 4.0
# Or when so many columns change at a time that building is no more work than changing.
_FAR = 0.25


@dataclass(frozen=True)
class FoldStart:
    """Resident data of a fold, or of all rows where each is left out in turn.

    Attributes
    ----------
    setting : RowsSetting
    rows : RowsStart
    facts : TestRowsFacts
    folds : tuple of int
        The folds that are scored from it.
    variation : ndarray of shape (T,)
        Sum of squares of the test targets about their own mean, weighted.
    left_out : ndarray of shape (q, T) or None
        Targets, coded, of rows each left out in turn.
    """

    setting: RowsSetting
    rows: RowsStart
    facts: TestRowsFacts
    folds: tuple[int, ...]
    variation: NDArray[np.float64]
    left_out: NDArray[np.float64] | None = None

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays: by it Dask places tasks and watches memory."""
        return self.rows.__sizeof__()

    def opened(self) -> FoldState:
        """Return the state at the starting subset; it lets go of these factors as it moves on."""
        assert self.rows.factors is not None, "resident data have factors"
        start = replace(self, rows=replace(self.rows, factors=None))
        return FoldState(start, self.rows.factors, self.rows.noise)


@dataclass(frozen=True)
class FoldState:
    """A fold at a subset.

    Attributes
    ----------
    start : FoldStart
        Without its factors.
    factors : Factors
    noise : ndarray of shape (m,)
        See `RowsStart`; of the factors' columns.
    owned : bool
        Whether the factors' arrays may be written to: not while they are the resident data.
    """

    start: FoldStart
    factors: Factors
    noise: NDArray[np.float64]
    owned: bool = False


def start_fold_rows(
    setting: RowsSetting, fold: FoldRows, features: Any, target: NDArray[Any]
) -> FoldStart:
    """Build a fold; see `dagsel.engines.rows.fold.start_rows`.

    Parameters
    ----------
    setting : RowsSetting
    fold : FoldRows
    features : ndarray of shape (n_rows, p)
    target : ndarray of shape (n_rows,) or (n_rows, t)
        As given.
    """
    targets, classes = coded_targets(setting, fold.fold, target, fold.train)
    start = start_rows(setting, fold, features, targets)
    facts, variation = test_facts(fold, target, targets, classes, start.centre)
    return FoldStart(setting, start, facts, (fold.fold,), variation)


def coded_targets(
    setting: RowsSetting, fold: int, target: NDArray[Any], train: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[Any] | None]:
    """Return targets as numbers, and the classes that are coded in them if any are."""
    if not setting.model.classifier:
        return np.asarray(target, dtype=np.float64).reshape(len(target), -1), None
    binarizer = LabelBinarizer(neg_label=-1, pos_label=1)
    coded = binarizer.fit_transform(target[train])
    if len(binarizer.classes_) < 2:
        msg = f"the training rows of fold {fold} are of one class; use stratified folds"
        raise NotCertifiedError(msg)
    targets = np.zeros((len(target), coded.shape[1]))
    targets[train] = coded
    return targets, binarizer.classes_


def test_facts(
    fold: FoldRows,
    target: NDArray[Any],
    targets: NDArray[np.float64],
    classes: NDArray[Any] | None,
    centre: NDArray[np.float64],
) -> tuple[TestRowsFacts, NDArray[np.float64]]:
    """Return what metrics know of the test rows, and the variation of their targets."""
    rows, weight = targets[fold.test], fold.score_weight
    if weight is not None and not np.any(weight):
        msg = f"no test row of fold {fold.fold} has a weight above 0"
        raise NotCertifiedError(msg)
    mean = np.average(rows, axis=0, weights=weight)
    each = np.ones(len(rows)) if weight is None else weight
    variation = np.sum(each[:, None] * (rows - mean) ** 2, axis=0)
    scale = 1.0 if classes is not None else float(np.sqrt(np.mean((rows - centre) ** 2)))
    return TestRowsFacts(target[fold.test], weight, classes, scale), variation


def moved_fold(
    state: FoldState, positions: NDArray[np.intp], active: NDArray[np.bool_]
) -> FoldState:
    """Carry a fold to another subset.

    Parameters
    ----------
    state : FoldState
        Used up if its arrays are owned.
    positions : ndarray of int
        Columns of the factors to toggle, one after the other.
    active : ndarray of bool of shape (m,)
        Which are active after that.

    Raises
    ------
    NotCertifiedError
        If rounding could show.
    """
    if not len(positions):
        return state
    factors = state.factors
    xp = namespace(factors.train)
    setting = state.start.setting
    fold = state.start.rows.rows.fold
    if len(positions) > 8 + _FAR * factors.n_columns:
        factors = replace(factors, active=to_device_of(factors.train, active))
        return _rebuilt(state, factors)
    owned = state.owned
    for position in positions:
        factors = toggle(
            xp, factors, int(position), overwrite=owned, keep_inactive=not setting.shrinks
        )
        owned = True
    moved = replace(state, factors=factors, owned=True)
    if factors.unclear or factors.growth > _STALE * present_growth(xp, factors):
        moved = _rebuilt(moved, factors)
    check_growth(fold, moved.factors)
    return moved


def _rebuilt(state: FoldState, factors: Factors) -> FoldState:
    setting = state.start.setting
    if setting.test_rows == "compressed":
        factors = with_fewer_test_rows(factors)
    fold = state.start.rows.rows.fold
    return replace(state, factors=refreshed(setting, fold, factors), owned=True)


def without_columns(state: FoldState, keep: NDArray[np.intp]) -> FoldState:
    """Let go of columns that can never be toggled again, and of rows that are then too many."""
    factors = state.factors
    xp = namespace(factors.train)
    factors = columns_kept(xp, factors, to_device_of(factors.train, keep))
    kept = replace(state, factors=factors, noise=state.noise[keep], owned=True)
    m, r = factors.train.shape
    # A ridge in dual form may be better off in the primal one.
    return _rebuilt(kept, factors) if r > 1.1 * m or factors.mode == DUAL else kept


def rows_equal(factors: Factors, active: NDArray[np.bool_], members: NDArray[np.intp]) -> bool:
    """Tell whether test rows are the same in the active columns."""
    chosen = np.flatnonzero(active)
    test: Array = factors.test
    xp = namespace(test)
    part = to_host(xp.take(test, to_device_of(test, members), axis=1))[chosen]
    return bool(np.all(part == part[:, :1]))
