"""Least squares scored from moments: one pass over the rows, then no row is looked at again.

Covers `LinearRegression` and `Ridge` with scores that are functions of the sum of squared errors.
Everything is decided per fold from the fold's own training and test moments. An engine that could
return a number spoilt by conditioning must not: each fold is certified before the search starts
(interlacing: no subset is worse conditioned than the full set), and every round's errors are
compared with the rounding they can have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import get_scorer

from dagsel.backend import namespace, to_device_of, to_host
from dagsel.data.folds import Layer
from dagsel.engines.accumulate import runs, submit_moments
from dagsel.engines.base import Axis, Executor, Handle, Problem, ScoreTable
from dagsel.engines.fold_start import (
    EPSILON,
    MAX_RELATIVE_ERROR,
    TINY,
    FoldFacts,
    FoldStart,
    LeastSquares,
    start_fold,
)
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.metrics import METRICS, Metric, score_from_errors
from dagsel.kernels.moments import sum_moments
from dagsel.kernels.tableau import (
    Tableau,
    apply_pending,
    stack_folds,
    toggle,
    toggled_errors,
    with_room,
)
from dagsel.search import Request, Search

__all__ = ["MomentsEngine"]

# Changes kept as factors before they are applied: more make reading a row slower, fewer apply the
# matrix product more often. Flat between 96 and 192 for 1,000 to 5,000 columns.
_PENDING = 128
# Test sets of no more rows are measured together with the others; see `MomentsEngine._size`.
_FEW_ROWS = 10


@dataclass(frozen=True)
class MomentsState:
    """Tableau of a shard's folds, and where in it each column is.

    Attributes
    ----------
    tableau : Tableau
        Of the shard's folds.
    positions : ndarray of shape (n_columns,)
        Position of each column of the table in the tableau, -1 for columns dropped from it.
    active : ndarray of bool of shape (n_columns,)
        The columns in the model.
    n_test : ndarray of shape (K,)
        See `FoldFacts`.
    variation, spread, growth : ndarray of shape (K, T)
        See `FoldFacts` and `FoldStart`.
    """

    tableau: Tableau
    positions: NDArray[np.intp]
    active: NDArray[np.bool_]
    n_test: NDArray[np.float64]
    variation: NDArray[np.float64]
    spread: NDArray[np.float64]
    growth: NDArray[np.float64]


@dataclass(frozen=True)
class MomentsEngine:
    """Scores from moments.

    Attributes
    ----------
    metric : str
        One of `dagsel.kernels.metrics.METRICS`.
    model : LeastSquares
        What is fitted.
    n_columns : int
        Columns of the table.
    columns : tuple of int
        Column of each feature.
    out_of_reach : {"active", "inactive"} or None
        Which columns a search that does not float can never toggle again: in backward elimination
        those that are not in the model, in forward selection those that are. They leave the
        tableau.
    """

    metric: Metric
    model: LeastSquares
    n_columns: int
    columns: tuple[int, ...]
    out_of_reach: Literal["active", "inactive"] | None

    name: ClassVar[str] = "moments"
    axis: ClassVar[Axis] = "folds"

    @staticmethod
    def declines(problem: Problem) -> str | None:
        """Say why this engine is not made for a problem; `None` if it is, data permitting."""
        return _declines_estimator(problem) or _declines_data(problem)

    @staticmethod
    def refuses(problem: Problem) -> str | None:
        """Say why it cannot score a problem that it is made for, as far as sizes tell."""
        return _too_few_rows(problem)

    @classmethod
    def for_problem(cls, problem: Problem, search: Search) -> MomentsEngine:
        """Make the engine for a problem that it does not decline."""
        metric = _metric_of(problem.scoring.scorer)
        assert metric is not None, "declined problems have no engine"
        return cls(
            metric=metric,
            model=_model_of(problem.estimator),
            n_columns=problem.table.n_columns,
            columns=tuple(columns[0] for columns in problem.features),
            out_of_reach=None
            if search.floating
            else ("inactive" if search.direction == "backward" else "active"),
        )

    def prepare(
        self, problem: Problem, executor: Executor, subset: tuple[int, ...], n_shards: int
    ) -> list[Handle]:
        """Read the rows once and build every fold's tableau; see `Engine.prepare`."""
        columns = problem.columns_of(subset)
        facts = _fold_facts(problem)
        shards = runs(problem.folds.n_folds, n_shards)
        workers = _fold_workers(shards, problem.folds.n_folds, executor.n_workers)
        executor.progress.expect("dagsel_fold", problem.folds.n_folds)
        starts: list[Handle] = []
        sums = submit_moments(problem, executor, fit_intercept=self.model.fit_intercept)
        for layer, atoms in zip(problem.folds.layers, sums, strict=True):
            whole = executor.submit(sum_moments, list(atoms), label="dagsel_sum")
            recipes = [_recipe(layer, fold) for fold in layer.folds]
            for position, (fold, recipe) in enumerate(zip(layer.folds, recipes, strict=True)):
                starts.append(
                    executor.submit(
                        start_fold,
                        self.model,
                        facts[fold],
                        columns,
                        whole if recipe.by_difference else None,
                        [atoms[atom] for atom in recipe.parts],
                        [atoms[atom] for atom in recipe.test],
                        label="dagsel_fold",
                        worker=workers[fold],
                    )
                )
                # Let go of moments that no later fold needs: they are as large as the tableaux.
                later = {atom for each in recipes[position + 1 :] for atom in each.atoms}
                for atom in recipe.atoms - later:
                    atoms[atom] = None
        return [starts[run.start : run.stop] for run in shards]

    def open(self, resident: Sequence[FoldStart]) -> MomentsState:
        """Stack the folds' tableaux and go to the starting subset."""
        first = resident[0]
        xp = namespace(first.tableau.pivots)
        tableau = stack_folds(xp, [start.tableau for start in resident])
        active = np.full(self.n_columns, first.full)
        state = MomentsState(
            tableau=with_room(xp, tableau, min(_PENDING, max(1, 2 * self.n_columns))),
            positions=np.arange(self.n_columns),
            active=active,
            n_test=np.array([start.facts.n_test for start in resident], dtype=np.float64),
            variation=np.stack([start.facts.variation for start in resident]),
            spread=np.stack([start.spread for start in resident]),
            growth=np.stack([start.growth for start in resident]),
        )
        there = np.zeros_like(active)
        there[list(first.columns)] = True
        return self._toggled(state, there)

    def moved(self, state: MomentsState, subset: tuple[int, ...]) -> MomentsState | None:
        """Toggle what differs; see `Engine.moved`."""
        wanted = np.zeros_like(state.active)
        wanted[[self.columns[feature] for feature in subset]] = True
        if np.any(state.positions[wanted != state.active] < 0):
            return None
        return self._toggled(state, wanted)

    def _toggled(self, state: MomentsState, wanted: NDArray[np.bool_]) -> MomentsState:
        for column in np.flatnonzero(wanted != state.active):
            state = self._toggle(state, int(column), wanted)
        return state

    def _toggle(self, state: MomentsState, column: int, wanted: NDArray[np.bool_]) -> MomentsState:
        xp = namespace(state.tableau.pivots)
        was_active = bool(state.active[column])
        tableau = toggle(xp, state.tableau, int(state.positions[column]), was_active)
        active = state.active.copy()
        active[column] = not was_active
        state = replace(state, tableau=tableau, active=active)
        return state if tableau.room else _tidied(xp, state, self._gone(active, wanted))

    def _gone(self, active: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which columns the search cannot toggle again, on its way to `wanted` included."""
        if self.out_of_reach is None:
            return np.zeros_like(active)
        return active & wanted if self.out_of_reach == "active" else ~(active | wanted)

    def score(self, state: MomentsState, request: Request) -> ScoreTable:
        """Score from diagonals and target columns; see `Engine.score`."""
        xp = namespace(state.tableau.pivots)
        if request.candidates:
            columns = [self.columns[feature] for feature in request.candidates]
            positions = state.positions[columns]
            if np.any(positions < 0):
                msg = "a candidate is no longer in the tableau"
                raise RuntimeError(msg)
            errors = to_host(toggled_errors(xp, state.tableau))[:, positions, :]
        else:
            errors = np.maximum(to_host(state.tableau.errors), 0.0)[:, None, :]
        rounding = self._certify(state, errors)
        scores = score_from_errors(np, self.metric, errors, state.n_test, state.variation)
        return ScoreTable(scores.T, rounding)

    def _certify(self, state: MomentsState, errors: NDArray[np.float64]) -> float:
        """Return the rounding that mean scores can have, or raise NotCertifiedError."""
        if not np.all(np.isfinite(errors)):
            msg = "a sum of squared errors is not finite"
            raise NotCertifiedError(msg)
        smallest = np.min(errors, axis=1)  # (K, T): of the candidates that can win
        # The model's error e enters as 2 e'δe with δe from conditioning; and where the model fits
        # closely the sum of squares is a small difference of large sums. Factors as measured.
        conditioning = 4 * state.growth * np.sqrt(state.spread) * np.sqrt(smallest)
        closeness = 10 * state.spread
        doubt = TINY + EPSILON * (conditioning + closeness)
        scores, doubtful = (
            score_from_errors(np, self.metric, sums[:, None, :], state.n_test, state.variation)[
                :, 0
            ]
            for sums in (smallest, smallest + doubt)
        )
        change = np.abs(doubtful - scores)
        # Not `>`: what is not a number is not certain.
        if not np.all(change <= MAX_RELATIVE_ERROR * self._size(state, scores)):
            raise NotCertifiedError(_explain_doubt(bool(np.any(conditioning > closeness))))
        return float(np.mean(change))

    def _size(self, state: MomentsState, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what errors of fold scores are measured by."""
        size = np.abs(scores)
        if self.metric == "r2":
            return np.maximum(size, 1.0)
        if self.metric == "neg_mean_squared_error":
            # The error of a row or a few can vanish by luck, as in leave-one-out, where refits do
            # not have the digits either: such folds are measured by the mean.
            return np.where(state.n_test > _FEW_ROWS, size, np.maximum(size, np.mean(size)))
        return size


def _explain_doubt(conditioning: bool) -> str:
    if conditioning:
        return (
            "with columns as near to linearly dependent as these, sums of squared errors from "
            "moments would not be right to 1e-9"
        )
    return (
        "the model fits the test rows of a fold almost exactly, so that sums of squared errors "
        "from moments would be rounding noise; is the target, or a copy of it, among the features?"
    )


def _tidied(xp: Any, state: MomentsState, gone: NDArray[np.bool_]) -> MomentsState:
    """Apply the pending changes, and let go of columns that are gone."""
    present = np.flatnonzero(state.positions >= 0)
    order = present[np.argsort(state.positions[present])]
    kept = order[~gone[order]]
    if len(kept) in (0, len(order)):
        return replace(state, tableau=apply_pending(xp, state.tableau))
    keep = to_device_of(state.tableau.pivots, state.positions[kept])
    positions = np.full_like(state.positions, -1)
    positions[kept] = np.arange(len(kept))
    return replace(state, tableau=apply_pending(xp, state.tableau, keep), positions=positions)


class _Recipe(NamedTuple):
    """How a fold's moments are made from atoms."""

    by_difference: bool  # training moments: those of all rows less the parts, or the parts' sum
    parts: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def atoms(self) -> set[int]:
        return {*self.parts, *self.test}


def _recipe(layer: Layer, fold: int) -> _Recipe:
    train = layer.train_atoms(fold)
    others = tuple(sorted(set(range(layer.n_atoms)).difference(train)))
    by_difference = len(others) < len(train)
    return _Recipe(by_difference, others if by_difference else train, layer.test_atoms(fold))


def _fold_facts(problem: Problem) -> list[FoldFacts]:
    target = np.asarray(problem.table.target, dtype=np.float64)
    target = target.reshape(len(target), -1)
    facts = []
    for fold, (_, test) in enumerate(problem.folds):
        rows = target[test]
        # The same operations as scikit-learn's r2_score, so that a constant target is exactly 0.
        variation = np.sum((rows - np.average(rows, axis=0)) ** 2, axis=0)
        facts.append(FoldFacts(fold, len(rows), variation))
    return facts


def _fold_workers(shards: Sequence[range], n_folds: int, n_workers: int) -> list[int]:
    """Say which worker builds each fold: its shard's if there are several, else all take part."""
    if len(shards) == 1:
        return [fold % n_workers for fold in range(n_folds)]
    return [shard % n_workers for shard, run in enumerate(shards) for _ in run]


def _declines_estimator(problem: Problem) -> str | None:
    estimator = problem.estimator
    if type(estimator) not in (LinearRegression, Ridge):
        return f"{type(estimator).__name__} is not LinearRegression or Ridge"
    if estimator.positive:
        return "positive=True is not a linear solve"
    if isinstance(estimator, Ridge):
        if estimator.solver not in ("auto", "cholesky", "svd"):
            return f"Ridge(solver={estimator.solver!r}) is iterative, its scores are approximate"
        alpha = np.ravel(estimator.alpha)
        if len(alpha) != 1 or not alpha[0] > 0:
            return "Ridge with several or zero penalties"
    if _metric_of(problem.scoring.scorer) is None:
        return f"scoring {problem.scoring.name!r} is not a function of the squared error"
    return None


def _declines_data(problem: Problem) -> str | None:
    if problem.fit_params:
        return "parameters are passed to fit"
    if any(len(columns) != 1 for columns in problem.features):
        return "features are groups of several columns"
    if problem.table.target.dtype.kind not in "fiub":
        return "the target is not numeric"
    if problem.folds.has_repeats:
        return "a fold has a row more than once"
    return None


def _too_few_rows(problem: Problem) -> str | None:
    estimator = problem.estimator
    if not isinstance(estimator, LinearRegression):
        return None
    sizes = problem.folds.train_sizes
    fold = int(np.argmin(sizes))
    if sizes[fold] - estimator.fit_intercept >= problem.table.n_columns:
        return None
    return (
        f"fold {fold} has {sizes[fold]} training rows for {problem.table.n_columns} columns, so "
        "its training matrix is rank-deficient"
    )


def _metric_of(scorer: Any) -> Metric | None:
    """Return the metric that a scorer computes, if it is one that is a function of errors."""
    return next((metric for metric in METRICS if _same_scorer(scorer, get_scorer(metric))), None)


def _same_scorer(one: Any, other: Any) -> bool:
    """Tell whether two scikit-learn scorers apply the same function with the same arguments."""
    names = ("_score_func", "_sign", "_kwargs", "_response_method")
    return type(one) is type(other) and all(
        getattr(one, name, None) == getattr(other, name, None) for name in names
    )


def _model_of(estimator: LinearRegression | Ridge) -> LeastSquares:
    intercept = bool(estimator.fit_intercept)
    if isinstance(estimator, Ridge):
        return LeastSquares(intercept, penalty=float(np.ravel(estimator.alpha)[0]))
    # Handed to `scipy.linalg.lstsq`. Before scikit-learn 1.7 there was no `tol`, and LAPACK's
    # default was used.
    return LeastSquares(intercept, cutoff=float(getattr(estimator, "tol", EPSILON)))
