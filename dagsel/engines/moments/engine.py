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

from dagsel.backend import EPSILON
from dagsel.criterion import Criterion
from dagsel.data.blocks import runs
from dagsel.data.folds import Layer
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR, TINY
from dagsel.engines.base import Axis, Cost, Executor, Handle, Problem, ScoreTable
from dagsel.engines.criteria.scores import RowFacts, row_facts
from dagsel.engines.linear_model import (
    LinearModel,
    declines_parameters,
    linear_model,
    squared_metric,
)
from dagsel.engines.moments.accumulate import submit_moments
from dagsel.engines.moments.criterion import CriterionFacts, score_by_criterion, with_full_model
from dagsel.engines.moments.fold_start import FoldFacts, FoldStart, start_fold
from dagsel.engines.moments.part_errors import Candidates, part_errors
from dagsel.engines.moments.tableau_part import Part, joined, make_parts, toggled
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.metrics import METRICS, Metric, score_from_errors
from dagsel.kernels.moments import column_sums, sum_moments
from dagsel.search import Request, Search

__all__ = ["MomentsEngine"]

# Test sets of no more rows are measured together with the others; see `MomentsEngine._size`.
_FEW_ROWS = 10


@dataclass(frozen=True)
class MomentsState:
    """Tableaux of a shard's folds.

    Attributes
    ----------
    parts : tuple of Part
        Which hold the folds between them.
    active : ndarray of bool of shape (n_columns,)
        The columns in the model.
    n_test, weight : ndarray of shape (K,)
        See `FoldFacts`.
    variation, spread, growth : ndarray of shape (K, T)
        See `FoldFacts` and `FoldStart`.
    by_criterion : CriterionFacts or None
        Where a criterion takes the place of test errors.
    """

    parts: tuple[Part, ...]
    active: NDArray[np.bool_]
    n_test: NDArray[np.float64]
    weight: NDArray[np.float64]
    variation: NDArray[np.float64]
    spread: NDArray[np.float64]
    growth: NDArray[np.float64]
    by_criterion: CriterionFacts | None = None


@dataclass(frozen=True)
class MomentsEngine:
    """Scores from moments.

    Attributes
    ----------
    metric : str
        One of `dagsel.kernels.metrics.METRICS`.
    model : LinearModel
        What is fitted.
    n_columns : int
        Columns of the table.
    columns : tuple of tuple of int
        Columns of each feature.
    out_of_reach : {"active", "inactive"} or None
        Which columns a search that does not float can never toggle again: in backward elimination
        those that are not in the model, in forward selection those that are. They leave the
        tableau.
    criterion : tuple of Criterion and RowFacts, or None
        Takes the place of the metric.
    """

    metric: Metric
    model: LinearModel
    n_columns: int
    columns: tuple[tuple[int, ...], ...]
    out_of_reach: Literal["active", "inactive"] | None
    criterion: tuple[Criterion, RowFacts] | None = None

    name: ClassVar[str] = "moments"
    axis: ClassVar[Axis] = "folds"
    summary: ClassVar[str] = "least squares scored from one pass over the rows, no refits"

    @staticmethod
    def declines(problem: Problem) -> str | None:
        """Say why this engine is not made for a problem; `None` if it is, data permitting."""
        return _declines_model(problem) or declines_parameters(problem) or _declines_data(problem)

    @staticmethod
    def refuses(problem: Problem) -> str | None:
        """Say why it cannot score a problem that it is made for, as far as sizes tell."""
        return _too_few_rows(problem)

    @classmethod
    def for_problem(cls, problem: Problem, search: Search) -> MomentsEngine:
        """Make the engine for a problem that it does not decline."""
        criterion = problem.scoring.criterion
        metric = squared_metric(problem.scoring.scorer) or METRICS[0]
        model = linear_model(problem.estimator)
        assert isinstance(model, LinearModel), "declined problems have no engine"
        return cls(
            metric=metric,
            model=model,
            n_columns=problem.table.n_columns,
            columns=problem.features,
            out_of_reach=None
            if search.floating
            else ("inactive" if search.direction == "backward" else "active"),
            criterion=None if criterion is None else (criterion, _row_facts(problem, model)),
        )

    @staticmethod
    def cost(problem: Problem, search: Search, executor: Executor) -> Cost:
        """Count two matrices a fold, and a third while they are made; see `Engine.cost`."""
        n_folds, p = problem.folds.n_folds, problem.table.n_columns
        n_passes = len(problem.folds.layers) * len(_weightings(problem))
        sizes = range(min(search.target_size, p), p + 1)
        sweeps = n_folds * sum(6.0 * m * m for m in sizes)
        moments = 2.0 * problem.table.n_rows * p * p * n_passes
        return Cost(
            n_pieces=n_folds,
            # On a cluster the first two exist twice: as made, and as carried on.
            piece_bytes=(3 if executor.in_process else 4) * 8 * p * p,
            everywhere_bytes=0,
            operations=moments + n_folds * 5.0 * p**3 + sweeps,
            what=f"the moments of {n_folds} folds",
            remedy="use more workers or memory, fewer folds or fewer columns",
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
        fit, score, plain = _roles(problem, self.model)
        shift, sums = submit_moments(
            problem,
            executor,
            centred=(self.model.centres_features, self.model.fit_intercept),
            weightings=_weightings(problem),
        )
        for number, layer in enumerate(problem.folds.layers):
            atoms = [weighting[number] for weighting in sums]
            wholes = {
                role: executor.submit(sum_moments, list(atoms[role]), label="dagsel_sum")
                for role in {fit, fit if plain is None else plain}
            }
            # Sums of columns are small, and are not got by difference.
            columns_of = {
                role: [
                    executor.submit(column_sums, atom, label="dagsel_sum") for atom in atoms[role]
                ]
                for role in wholes
            }
            recipes = [_recipe(layer, fold) for fold in layer.folds]
            for position, (fold, recipe) in enumerate(zip(layer.folds, recipes, strict=True)):
                training, unweighted = (
                    None
                    if role is None
                    else _training(recipe, wholes[role], atoms[role], columns_of[role])
                    for role in (fit, plain)
                )
                starts.append(
                    executor.submit(
                        start_fold,
                        self.model,
                        facts[fold],
                        columns,
                        shift,
                        training,
                        [atoms[score][atom] for atom in recipe.test],
                        unweighted,
                        label="dagsel_fold",
                        worker=workers[fold],
                    )
                )
                # Let go of moments that no later fold needs: they are as large as the tableaux.
                later = {atom for each in recipes[position + 1 :] for atom in each.atoms}
                for atom in recipe.atoms - later:
                    for each in atoms:
                        each[atom] = None
        return [starts[run.start : run.stop] for run in shards]

    def open(self, resident: Sequence[FoldStart]) -> MomentsState:
        """Stack the folds' tableaux and go to the starting subset."""
        # Folds of full rank are either swept on all columns, or on none; so are the others.
        first = resident[0]
        active = np.full(self.n_columns, first.full)
        facts = [start.facts for start in resident]
        state = MomentsState(
            parts=make_parts(resident, self.n_columns, self.model.cutoff, self._largest_group),
            active=active,
            n_test=np.array([each.n_test for each in facts], dtype=np.float64),
            weight=np.array([each.weight for each in facts], dtype=np.float64),
            variation=np.stack([each.variation for each in facts]),
            spread=np.stack([start.spread for start in resident]),
            growth=np.stack([start.growth for start in resident]),
            by_criterion=self._criterion_facts(first),
        )
        there = np.zeros_like(active)
        there[list(first.columns)] = True
        return self._toggled(state, there)

    @property
    def _largest_group(self) -> int:
        return max(len(columns) for columns in self.columns)

    def _criterion_facts(self, start: FoldStart) -> CriterionFacts | None:
        """Return what the criterion needs; its only fold has all rows on both sides."""
        if self.criterion is None:
            return None
        criterion, rows = self.criterion
        everything = start.everything
        if criterion.name == "mallows_cp":
            rows = with_full_model(rows, everything, float(start.spread[0]), float(start.growth[0]))
        return CriterionFacts(criterion, rows, everything.constant, float(start.spread[0]))

    def moved(self, state: MomentsState, subset: tuple[int, ...]) -> MomentsState | None:
        """Toggle what differs; see `Engine.moved`."""
        wanted = np.zeros_like(state.active)
        wanted[[column for feature in subset for column in self.columns[feature]]] = True
        changed = wanted != state.active
        if any(np.any(part.positions[changed] < 0) for part in state.parts):
            return None
        return self._toggled(state, wanted)

    def _toggled(self, state: MomentsState, wanted: NDArray[np.bool_]) -> MomentsState:
        for column in np.flatnonzero(wanted != state.active):
            was_active = bool(state.active[column])
            active = state.active.copy()
            active[column] = not was_active
            gone = self._gone(active, wanted)
            parts = tuple(toggled(part, int(column), was_active, gone) for part in state.parts)
            if self.out_of_reach == "inactive":
                parts = joined(parts, gone)
            state = replace(state, parts=parts, active=active)
        return state

    def _gone(self, active: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which columns the search cannot toggle again, on its way to `wanted` included."""
        if self.out_of_reach is None:
            return np.zeros_like(active)
        return active & wanted if self.out_of_reach == "active" else ~(active | wanted)

    def score(self, state: MomentsState, request: Request) -> ScoreTable:
        """Score from diagonals and target columns; see `Engine.score`."""
        candidates = Candidates.of([self.columns[feature] for feature in request.candidates])
        if state.by_criterion is not None:
            growth_there = float(state.growth[0, 0])
            return score_by_criterion(
                state.by_criterion, state.parts[0], candidates.groups, state.active, growth_there
            )
        n_targets = state.spread.shape[1]
        errors = np.empty((len(state.n_test), request.n_rows, n_targets))
        growth = state.growth.copy()
        for part in state.parts:
            found = part_errors(part, candidates, state.active)
            errors[list(part.folds)] = found.errors
            growth[list(part.folds)] *= found.growth
        rounding = self._certify(state, errors, growth)
        return ScoreTable(self._scores(state, errors).T, rounding)

    def _scores(self, state: MomentsState, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = score_from_errors(
            np, self.metric, errors, state.n_test, state.variation, state.weight
        )
        return scores

    def _certify(
        self, state: MomentsState, errors: NDArray[np.float64], growth: NDArray[np.float64]
    ) -> float:
        """Return the rounding that mean scores can have, or raise NotCertifiedError."""
        if not np.all(np.isfinite(errors)):
            msg = (
                "a sum of squared errors is not finite: squares of these values leave the range "
                "of double precision; rescale the columns or the target"
            )
            raise NotCertifiedError(msg)
        smallest = np.min(errors, axis=1)  # (K, T): of the candidates that can win
        # The model's error e enters as 2 e'δe with δe from conditioning; and where the model fits
        # closely the sum of squares is a small difference of large sums. Factors as measured.
        conditioning = 4 * growth * np.sqrt(state.spread) * np.sqrt(smallest)
        closeness = 10 * state.spread
        doubt = TINY + EPSILON * (conditioning + closeness)
        scores, doubtful = (
            self._scores(state, sums[:, None, :])[:, 0] for sums in (smallest, smallest + doubt)
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


class _Recipe(NamedTuple):
    """How a fold's moments are made from atoms."""

    by_difference: bool  # training moments: those of all rows less the parts, or the parts' sum
    parts: tuple[int, ...]
    test: tuple[int, ...]
    train: tuple[int, ...]

    @property
    def atoms(self) -> set[int]:
        return {*self.parts, *self.test}


def _recipe(layer: Layer, fold: int) -> _Recipe:
    train = layer.train_atoms(fold)
    others = tuple(sorted(set(range(layer.n_atoms)).difference(train)))
    by_difference = len(others) < len(train)
    return _Recipe(by_difference, others if by_difference else train, layer.test_atoms(fold), train)


def _training(
    recipe: _Recipe, whole: Handle, atoms: Sequence[Handle], columns: Sequence[Handle]
) -> list[Any]:
    """Return the fields of a fold's `TrainingSums`."""
    return [
        whole if recipe.by_difference else None,
        [atoms[atom] for atom in recipe.parts],
        [columns[atom] for atom in recipe.train],
    ]


def _weightings(problem: Problem) -> list[NDArray[np.float64] | None]:
    """Return the weights for which moments are summed; equal ones once, `None` for no weights."""
    fit, score = problem.sample_weight, problem.score_weight
    found = [fit]
    if not _same_weights(fit, score):
        found.append(score)
    model = linear_model(problem.estimator)
    scales = isinstance(model, LinearModel) and model.standardise is not None
    if scales and all(each is not None for each in found):
        found.append(None)
    return found


def _roles(problem: Problem, model: LinearModel) -> tuple[int, int, int | None]:
    """Return which weighting fits, which scores, and which the scaler takes if not the first."""
    weightings = _weightings(problem)
    score = 0 if _same_weights(problem.sample_weight, problem.score_weight) else 1
    if model.standardise is None or weightings[0] is None:
        return 0, score, None
    return 0, score, next(i for i, each in enumerate(weightings) if each is None)


def _same_weights(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other))


def _row_facts(problem: Problem, model: LinearModel) -> RowFacts:
    target = np.asarray(problem.table.target, dtype=np.float64).reshape(-1)
    facts, _ = row_facts(target, problem.sample_weight, fit_intercept=model.fit_intercept)
    return facts


def _fold_facts(problem: Problem) -> list[FoldFacts]:
    target = np.asarray(problem.table.target, dtype=np.float64)
    target = target.reshape(len(target), -1)
    facts = []
    for fold, (_, test) in enumerate(problem.folds):
        rows = target[test]
        weight = None if problem.score_weight is None else problem.score_weight[test]
        # The same operations as scikit-learn's r2_score, so that a constant target is exactly 0.
        deviations = (rows - np.average(rows, axis=0, weights=weight)) ** 2
        if weight is not None:
            deviations *= weight[:, None]
        total = float(len(rows) if weight is None else np.sum(weight))
        facts.append(FoldFacts(fold, len(rows), total, np.sum(deviations, axis=0)))
    return facts


def _fold_workers(shards: Sequence[range], n_folds: int, n_workers: int) -> list[int]:
    """Say which worker builds each fold: its shard's if there are several, else all take part."""
    if len(shards) == 1:
        return [fold % n_workers for fold in range(n_folds)]
    return [shard % n_workers for shard, run in enumerate(shards) for _ in run]


def _declines_model(problem: Problem) -> str | None:
    model = linear_model(problem.estimator)
    if isinstance(model, str):
        return model
    if model.classifier:
        return "classes are predicted, and squared errors do not count"
    if problem.scoring.criterion is None and squared_metric(problem.scoring.scorer) is None:
        return f"scoring {problem.scoring.name!r} is not a function of the squared error"
    return None


def _declines_data(problem: Problem) -> str | None:
    if problem.table.target.dtype.kind not in "fiub":
        return "the target is not numeric"
    if problem.folds.has_repeats:
        return "a fold has a row more than once"
    weight = problem.score_weight
    if weight is not None and not all(np.any(weight[test] > 0) for _, test in problem.folds):
        return "all test rows of a fold have the weight 0"
    return None


def _too_few_rows(problem: Problem) -> str | None:
    model = linear_model(problem.estimator)
    assert isinstance(model, LinearModel), "declined before"
    sizes = problem.folds.train_sizes
    if problem.sample_weight is not None:
        counted = problem.sample_weight > 0
        sizes = np.array([np.count_nonzero(counted[train]) for train, _ in problem.folds])
    fold = int(np.argmin(sizes))
    if model.penalty or sizes[fold] - model.fit_intercept >= problem.table.n_columns:
        return None
    return (
        f"fold {fold} has {sizes[fold]} training rows for {problem.table.n_columns} columns, so "
        "its training matrix is rank-deficient"
    )
