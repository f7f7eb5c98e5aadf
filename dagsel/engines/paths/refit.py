"""Recursive elimination by refits: any estimator that tells how much its columns matter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from dagsel.data.frames import to_numpy
from dagsel.data.values import listing
from dagsel.engines.paths.elimination import (
    EliminationPath,
    Importances,
    Score,
    eliminate,
)
from dagsel.engines.refit import RefitData
from dagsel.exceptions import ScoringError

__all__ = ["ImportanceGetter", "RefitElimination", "importances_of", "refit_path"]

ImportanceGetter = str | Callable[[Any], Any]

# Importances that are equal in exact arithmetic (of duplicate columns, say) differ by rounding:
# relatively by this, and where they are zero by the square of a few units in the last place of the
# largest coefficient.
_TIE = 1e-11
_ZERO = 1e-30
# Scores of refits that differ by less are equal.
_SCORE_TIE = 1e-12


class RefitElimination:
    """A model that is fitted anew whenever its columns have changed.

    Parameters
    ----------
    data : RefitData
        The table and what to fit.
    fold : int
        Which fold's training rows.
    getter : str or callable
        See `importances_of`.
    """

    def __init__(self, data: RefitData, fold: int, getter: ImportanceGetter) -> None:
        train, test = data.folds[fold]
        self.data, self.fold, self.getter = data, fold, getter
        self._test = test
        self._columns = np.arange(data.features.shape[1])
        self._features = _rows(data.features, train)
        self._target = _rows(data.target, train)
        self._fit_params = _sliced(data.fit_params, train, data.folds.n_rows)
        self._fitted: Any = None

    def importances(self) -> Importances:
        """See `Elimination.importances`."""
        values = importances_of(self._model(), self.getter)
        self._check(values)
        return Importances(values, _TIE * values + _ZERO * float(np.max(values, initial=0.0)))

    def score(self) -> Score:
        """See `Elimination.score`."""
        model, data = self._model(), self.data
        features = _safe_indexing(_rows(data.features, self._test), self._columns, axis=1)
        params = _sliced(data.score_params, self._test, data.folds.n_rows)
        try:
            value = float(data.scorer(model, features, _rows(data.target, self._test), **params))
        except Exception as error:
            error.add_note(f"while scoring fold {self.fold} with {len(self._columns)} columns")
            raise
        return Score(value, _SCORE_TIE * abs(value))

    def remove(self, columns: Sequence[int]) -> None:
        """See `Elimination.remove`."""
        self._columns = self._columns[~np.isin(self._columns, columns)]
        self._fitted = None

    def _model(self) -> Any:
        if self._fitted is None:
            everything = len(self._columns) == self._features.shape[1]
            features = (
                self._features
                if everything
                else _safe_indexing(self._features, self._columns, axis=1)
            )
            model = clone(self.data.estimator)
            try:
                model.fit(features, self._target, **self._fit_params)
            except Exception as error:
                error.add_note(f"while fitting fold {self.fold} with {len(self._columns)} columns")
                raise
            self._fitted = model
        return self._fitted

    def _check(self, values: NDArray[np.float64]) -> None:
        estimator = type(self.data.estimator).__name__
        if values.shape != self._columns.shape:
            msg = (
                f"importance_getter={self.getter!r} gives {values.size} importances of shape "
                f"{values.shape} for the {len(self._columns)} columns that {estimator} was fitted "
                "on; it must give one for every column, in their order"
            )
            raise ScoringError(msg)
        bad = np.flatnonzero(np.isnan(values))
        if len(bad):
            labels = _labels(self.data.names, self._columns[bad])
            msg = (
                f"{estimator}, fitted on {len(self._columns)} columns, gives NaN as the importance "
                f"of {listing(labels)}; check these columns, or importance_getter"
            )
            raise ScoringError(msg)


def importances_of(estimator: Any, getter: ImportanceGetter) -> NDArray[np.float64]:
    """Return a fitted estimator's importances, squared and summed over classes or targets.

    Parameters
    ----------
    estimator : estimator object
        Fitted.
    getter : str or callable
        "auto": `coef_`, or `feature_importances_` where there is none. Any other text is the path
        to an attribute ("regressor_.coef_"). A callable gets the estimator.

    Raises
    ------
    ValueError
        If the estimator has none.
    """
    values = _raw_importances(estimator, getter)
    values = values.toarray() if issparse(values) else to_numpy(values)
    values = np.asarray(values, dtype=np.float64)
    return values**2 if values.ndim == 1 else np.sum(values**2, axis=0)


def _raw_importances(estimator: Any, getter: ImportanceGetter) -> Any:
    if not isinstance(getter, str):
        return getter(estimator)
    if getter != "auto":
        return attrgetter(getter)(estimator)
    for name in ("coef_", "feature_importances_"):
        if hasattr(estimator, name):
            return getattr(estimator, name)
    msg = (
        f"when importance_getter='auto', the estimator {type(estimator).__name__} should have "
        "`coef_` or `feature_importances_` once it is fitted; give the path to the attribute as "
        "importance_getter, such as 'named_steps.model.coef_', or a callable"
    )
    raise ValueError(msg)


def refit_path(
    data: RefitData,
    fold: int,
    getter: ImportanceGetter,
    sizes: Sequence[int],
    fixed: Sequence[int],
    scored: bool,
) -> EliminationPath:
    """Play the whole elimination of a fold; see `eliminate`."""
    elimination = RefitElimination(data, fold, getter)
    return eliminate(elimination, sizes, fixed, scored=scored, engine="refit")


def _rows(values: Any, rows: NDArray[np.intp]) -> Any:
    """Return some rows; without a copy if these are all of them, in order."""
    if len(rows) == values.shape[0] and bool(np.all(rows == np.arange(len(rows)))):
        return values
    return _safe_indexing(values, rows)


def _sliced(params: Any, rows: NDArray[np.intp], n_rows: int) -> dict[str, Any]:
    """Slice what has one entry a row; leave anything else as it is."""
    return {
        name: _safe_indexing(value, rows)
        if not isinstance(value, str) and np.shape(value)[:1] == (n_rows,)
        else value
        for name, value in params.items()
    }


def _labels(names: Sequence[Hashable] | None, columns: NDArray[np.intp]) -> list[Hashable]:
    if names is None:
        return [f"column {column}" for column in columns]
    return [names[column] for column in columns]
