"""Plain refits scored by a criterion: the reference for every other way to get such scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from dagsel.criterion import Criterion
from dagsel.engines.criteria.scores import Fits, RowFacts, criterion_scores, row_facts
from dagsel.engines.linear_model import final_step

__all__ = ["CriterionRefits", "Fitted"]

# Predictions of two fits that are equal in exact arithmetic differ by rounding: by this, relative
# to the length of the target.
_TIE = 1e-13


class Fitted(NamedTuple):
    """A fit to all rows: residuals of shape (n_rows,), and the rank of the columns."""

    residuals: NDArray[np.float64]
    rank: float


@dataclass(frozen=True)
class CriterionRefits:
    """Fits to all rows, and what is needed to score them.

    Attributes
    ----------
    criterion : Criterion
        Which.
    estimator : estimator object
        A `LinearRegression`, or a pipeline that ends in one; clones of it are fitted.
    target : ndarray of shape (n_rows,)
        Target.
    weight : ndarray of shape (n_rows,) or None
        Weights.
    fit_params : mapping
        Passed to `fit`.
    facts : RowFacts
        Of the rows.
    empty : Fitted
        The model of no columns, which the estimator itself cannot fit.
    constant : frozenset of int
        Columns that do not vary next to an intercept. A model of nothing else is the empty one,
        but to the estimator the rounding of their means would be a column.
    """

    criterion: Criterion
    estimator: Any
    target: NDArray[np.float64]
    weight: NDArray[np.float64] | None
    fit_params: Mapping[str, Any]
    facts: RowFacts
    empty: Fitted
    constant: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        criterion: Criterion,
        estimator: Any,
        features: Any,
        target: Any,
        fit_params: Mapping[str, Any],
    ) -> CriterionRefits:
        """Collect what scores need; for Mallows' Cp that takes a fit of all columns.

        Raises
        ------
        DataError
            If the data do not allow the criterion.
        """
        prefix, model = final_step(estimator)
        weight = fit_params.get(f"{prefix}sample_weight")
        weight = None if weight is None else np.asarray(weight, dtype=np.float64)
        target = np.asarray(target, dtype=np.float64).reshape(-1)
        facts, residuals = row_facts(target, weight, fit_intercept=bool(model.fit_intercept))
        made = cls(
            criterion,
            estimator,
            target,
            weight,
            fit_params,
            facts,
            Fitted(residuals, 0.0),
            _constant_columns(features, weight) if model.fit_intercept else frozenset(),
        )
        if criterion.name != "mallows_cp":
            return made
        full = made.fit(features, range(features.shape[1]))
        error = made.sum_of_squares(full.residuals)
        return replace(made, facts=facts.with_full_model(error, full.rank))

    def fit(self, features: Any, columns: Sequence[int]) -> Fitted:
        """Fit a clone of the estimator to some columns of all rows."""
        if self.constant.issuperset(columns):
            return self.empty
        chosen = _safe_indexing(features, list(columns), axis=1)
        estimator = clone(self.estimator).fit(chosen, self.target, **self.fit_params)
        predicted = np.asarray(estimator.predict(chosen), dtype=np.float64).reshape(-1)
        return Fitted(self.target - predicted, float(final_step(estimator)[1].rank_))

    def sum_of_squares(self, values: NDArray[np.float64]) -> float:
        """Return the (weighted) sum of squares over the rows."""
        return float(values @ (values if self.weight is None else self.weight * values))

    def scores(
        self, fits: Sequence[Fitted | None], current: Fitted | None, *, removal: bool
    ) -> tuple[NDArray[np.float64], float]:
        """Score the fits of a round; see `criterion_scores`.

        Parameters
        ----------
        fits : sequence of Fitted or None
            Of the candidates; `None` for one that could not be fitted, which gets NaN.
        current : Fitted or None
            Of the subset that candidates are one move away from, where the criterion scores moves.
        removal : bool
            Whether that move is a removal.
        """
        table = np.full((len(fits), 1), np.nan)
        usable = [row for row, fit in enumerate(fits) if fit is not None]
        good = [fit for fit in fits if fit is not None]
        if not good:
            return table, 0.0
        if current is None:
            table[usable], rounding = criterion_scores(
                self.criterion, self.facts, self._fits(good), removal=removal
            )
            return table, rounding
        # The models are nested, so their predictions differ by a vector orthogonal to the larger
        # one's residuals. Its length has the digits that the difference of two sums has lost.
        lengths = np.sqrt([self.sum_of_squares(fit.residuals - current.residuals) for fit in good])
        doubt = _TIE * np.sqrt(self.sum_of_squares(self.target))
        table[usable], rounding = criterion_scores(
            self.criterion,
            self.facts,
            self._fits(good),
            current=self._fits([current]),
            removal=removal,
            changes=lengths**2,
            change_doubts=doubt * (2 * lengths + doubt),
        )
        return table, rounding

    def _fits(self, fits: Sequence[Fitted]) -> Fits:
        errors = np.array([self.sum_of_squares(fit.residuals) for fit in fits])
        doubt = _TIE * np.sqrt(self.sum_of_squares(self.target))
        ranks = np.array([fit.rank for fit in fits])
        return Fits(errors, ranks, doubt * (2 * np.sqrt(errors) + doubt))


def _constant_columns(features: Any, weight: NDArray[np.float64] | None) -> frozenset[int]:
    """Return the columns with one value only in the rows that count."""
    used = slice(None) if weight is None else weight > 0
    found = []
    for column in range(features.shape[1]):
        values = np.asarray(_safe_indexing(features, column, axis=1))[used]
        if np.all(values == values[0]):
            found.append(column)
    return frozenset(found)
