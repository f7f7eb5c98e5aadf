"""Least squares scored from the rows: any metric of (y, prediction), and any rank.

Covers `LinearRegression`, `Ridge` and `RidgeClassifier`, and a `StandardScaler` before them. A fold
keeps factors of its training rows and the images of its test rows (`dagsel.kernels.factors`), from
which the predictions of every candidate are one rank-one change away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dagsel.data.blocks import runs
from dagsel.engines.base import Axis, Cost, Executor, Handle, Problem, ScoreTable
from dagsel.engines.linear_model import LinearModel, declines_parameters, linear_model
from dagsel.engines.rows.fold import FoldRows, RowsSetting, TestRows, joined_rows
from dagsel.engines.rows.leave_one_out import leaves_one_out, score_left_out, start_left_out
from dagsel.engines.rows.metrics import Measure, measure_of
from dagsel.engines.rows.score import (
    FoldRequest,
    FoldScores,
    certified_table,
    score_fold,
    with_shaken_doubt,
)
from dagsel.engines.rows.state import (
    FoldStart,
    FoldState,
    moved_fold,
    start_fold_rows,
    without_columns,
)
from dagsel.search import Request, Search

__all__ = ["RowsEngine"]

# Columns that are out of reach leave the arrays when they are this part of them, and this many.
_GONE_PART = 0.1
_GONE_LEAST = 8


@dataclass(frozen=True)
class RowsState:
    """Folds of a shard at a subset.

    Attributes
    ----------
    folds : tuple of FoldState
    positions : ndarray of int of shape (n_columns,)
        Position of each column of the table in the factors, -1 for columns dropped from them.
    active : ndarray of bool of shape (n_columns,)
        The columns in the model.
    columns : ndarray of int of shape (n_features,) or None
        The column of each feature, if all have one.
    """

    folds: tuple[FoldState, ...]
    positions: NDArray[np.intp]
    active: NDArray[np.bool_]
    columns: NDArray[np.intp] | None

    def places_of(
        self, features: Sequence[int], columns: Sequence[tuple[int, ...]]
    ) -> NDArray[np.intp] | list[NDArray[np.intp]]:
        """Return the positions of features: an array if all have one column, else a list."""
        if self.columns is not None:
            found: NDArray[np.intp] = self.positions[self.columns[list(features)]]
            return found
        return [self.positions[list(columns[feature])] for feature in features]

    @property
    def fold_numbers(self) -> list[int]:
        """Return the number of the fold of every column of scores."""
        return [number for fold in self.folds for number in fold.start.folds]

    @property
    def present(self) -> NDArray[np.intp]:
        """Columns of the table in the order of the factors."""
        there = np.flatnonzero(self.positions >= 0)
        return there[np.argsort(self.positions[there])]


@dataclass(frozen=True)
class RowsEngine:
    """Scores from the rows.

    Attributes
    ----------
    measure : Measure
        The metric.
    model : LinearModel
        What is fitted.
    n_columns : int
        Columns of the table.
    columns : tuple of tuple of int
        Columns of each feature.
    shrinks : bool
        Whether features only leave the model: backward elimination that does not float.
    left_out : bool
        Whether every fold leaves one row out, and all are scored from one state.
    """

    measure: Measure
    model: LinearModel
    n_columns: int
    columns: tuple[tuple[int, ...], ...]
    shrinks: bool
    left_out: bool

    name: ClassVar[str] = "rows"
    axis: ClassVar[Axis] = "folds"
    summary: ClassVar[str] = "linear models scored from factors of the rows, no refits"

    @staticmethod
    def declines(problem: Problem) -> str | None:
        """Say why this engine is not made for a problem; `None` if it is, data permitting."""
        model = linear_model(problem.estimator)
        if isinstance(model, str):
            return model
        measure = measure_of(problem, model)
        if isinstance(measure, str):
            return measure
        target = problem.table.target
        if model.classifier and target.ndim == 2:
            return "the target has several columns of classes"
        if target.dtype.kind not in "fiub":
            return "the target is not numeric"
        return declines_parameters(problem)

    @staticmethod
    def refuses(problem: Problem) -> None:
        """Refuse nothing that is not declined: any number of rows and columns will do."""
        del problem

    @classmethod
    def for_problem(cls, problem: Problem, search: Search) -> RowsEngine:
        """Make the engine for a problem that it does not decline."""
        model = linear_model(problem.estimator)
        assert isinstance(model, LinearModel), "declined problems have no engine"
        measure = measure_of(problem, model)
        assert isinstance(measure, Measure), "declined problems have no engine"
        shrinks = search.direction == "backward" and not search.floating
        return cls(
            measure=measure,
            model=model,
            n_columns=problem.table.n_columns,
            columns=problem.features,
            shrinks=shrinks,
            left_out=leaves_one_out(problem, model, _largest(problem, search, shrinks=shrinks)),
        )

    @staticmethod
    def cost(problem: Problem, search: Search, executor: Executor) -> Cost:
        """Count four matrices of a fold's rows; see `Engine.cost`."""
        n_folds, p, n = problem.folds.n_folds, problem.table.n_columns, problem.table.n_rows
        model = linear_model(problem.estimator)
        assert isinstance(model, LinearModel), "declined problems have no engine"
        shrinks = search.direction == "backward" and not search.floating
        left_out = leaves_one_out(problem, model, _largest(problem, search, shrinks=shrinks))
        n_folds = 1 if left_out else n_folds
        train = min(float(np.max(problem.folds.train_sizes)), p)
        test = n if left_out else float(np.max(problem.folds.test_sizes))
        # Training rows and their duals; test rows, steps and images. Twice on a cluster: as
        # made, and as carried on.
        fold = 8 * p * (2 * train + 3 * test) * (1.5 if executor.in_process else 2.0)
        sizes = range(min(search.target_size, p), p + 1)
        rounds = sum(6.0 * m * (min(train, m) + test) for m in sizes)
        return Cost(
            n_pieces=n_folds,
            piece_bytes=int(fold),
            everywhere_bytes=8 * n * p,
            operations=n_folds * (4.0 * n * p * min(n, p) + rounds),
            what="the rows' factors" + ("" if left_out else f" of {n_folds} folds"),
            remedy="use more workers or memory, fewer folds or fewer columns",
        )

    def prepare(
        self, problem: Problem, executor: Executor, subset: tuple[int, ...], n_shards: int
    ) -> list[Handle]:
        """Bring the rows together and build every fold's factors; see `Engine.prepare`."""
        blocks = problem.table.blocks
        rows = executor.submit(
            joined_rows,
            [block.bare() for block in blocks],
            [executor.load(block) for block in blocks],
            label="dagsel_data",
        )
        setting = RowsSetting(
            model=self.model,
            columns=problem.columns_of(subset),
            test_rows=self._test_rows(),
            shrinks=self.shrinks,
        )
        shards = runs(problem.folds.n_folds, n_shards)
        target = problem.table.target
        if self.left_out:
            return [
                [
                    executor.submit(
                        start_left_out,
                        setting,
                        _left_out_rows(problem, shard),
                        tuple(shard),
                        rows,
                        target,
                        label="dagsel_fold",
                        worker=number % executor.n_workers,
                    )
                ]
                for number, shard in enumerate(shards)
            ]
        executor.progress.expect("dagsel_fold", problem.folds.n_folds)
        return [
            [
                executor.submit(
                    start_fold_rows,
                    setting,
                    _fold_rows(problem, fold),
                    rows,
                    target,
                    label="dagsel_fold",
                    worker=(number if len(shards) > 1 else fold) % executor.n_workers,
                )
                for fold in shard
            ]
            for number, shard in enumerate(shards)
        ]

    def _test_rows(self) -> TestRows:
        if self.left_out:
            return "left out"
        return "compressed" if self.measure.kind == "squared" else "predicted"

    def open(self, resident: Sequence[FoldStart]) -> RowsState:
        """Take the folds as they are: they are at the starting subset."""
        active = np.zeros(self.n_columns, dtype=np.bool_)
        active[list(resident[0].setting.columns)] = True
        return RowsState(
            folds=tuple(start.opened() for start in resident),
            positions=np.arange(self.n_columns),
            active=active,
            columns=np.array([columns[0] for columns in self.columns], dtype=np.intp)
            if all(len(columns) == 1 for columns in self.columns)
            else None,
        )

    def moved(self, state: RowsState, subset: tuple[int, ...]) -> RowsState | None:
        """Toggle what differs; see `Engine.moved`."""
        wanted = np.zeros_like(state.active)
        if state.columns is None:
            wanted[[column for feature in subset for column in self.columns[feature]]] = True
        else:
            wanted[state.columns[list(subset)]] = True
        changed = np.flatnonzero(wanted != state.active)
        # Where features only leave, columns that have left are not kept up to date.
        if np.any(state.positions[changed] < 0) or (self.shrinks and np.any(wanted[changed])):
            return None
        positions, there = state.positions[changed], wanted[state.present]
        folds = tuple(moved_fold(fold, positions, there) for fold in state.folds)
        state = replace(state, folds=folds, active=wanted)
        return _without_gone(state) if self.shrinks else state

    def score(self, state: RowsState, request: Request) -> ScoreTable:
        """Score every fold from its factors; see `Engine.score`."""
        wanted = FoldRequest(
            candidates=state.places_of(request.candidates, self.columns),
            removal=bool(request.candidates) and request.candidates[0] in request.subset,
        )
        score = score_left_out if self.left_out else score_fold
        parts = [score(self.measure, fold, wanted) for fold in state.folds]
        found = FoldScores(*(np.concatenate(each, axis=1) for each in zip(*parts, strict=True)))
        if self.measure.kind == "numbers" and not self.left_out:
            found = with_shaken_doubt(self.measure, found, state.folds, wanted)
        scores, rounding = certified_table(self.measure, found, state.fold_numbers)
        return ScoreTable(scores, rounding)


def _largest(problem: Problem, search: Search, *, shrinks: bool) -> int:
    """Return how many columns the largest subset that can be scored has."""
    return len(problem.columns_of(search.subset)) if shrinks else problem.table.n_columns


def _without_gone(state: RowsState) -> RowsState:
    """Let go of columns that have left the model for good, once there are some."""
    present = state.present
    there = state.active[present]
    n_gone = len(present) - np.count_nonzero(there)
    if n_gone < max(_GONE_LEAST, _GONE_PART * len(present)) or not np.any(there):
        return state
    keep = np.flatnonzero(there)
    positions = np.full_like(state.positions, -1)
    positions[present[keep]] = np.arange(len(keep))
    folds = tuple(without_columns(fold, keep) for fold in state.folds)
    return replace(state, folds=folds, positions=positions)


def _fold_rows(problem: Problem, fold: int) -> FoldRows:
    train, test = problem.folds[fold]
    fit, score = problem.sample_weight, problem.score_weight
    return FoldRows(
        fold=fold,
        train=train,
        test=test,
        weight=None if fit is None else fit[train],
        score_weight=None if score is None else score[test],
    )


def _left_out_rows(problem: Problem, shard: range) -> FoldRows:
    test = np.array([problem.folds[fold].test[0] for fold in shard])
    train = np.arange(problem.table.n_rows)
    return FoldRows(shard.start, train, test, problem.sample_weight, None)
