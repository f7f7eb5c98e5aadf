"""Runs recursive eliminations: every fold's path is a task, from moments or by refits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import psutil
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils import _safe_indexing

from dagsel.data.blocks import Block, Table
from dagsel.data.folds import Folds, draw_folds
from dagsel.engines.base import Executor, Handle, Problem, Scoring
from dagsel.engines.paths.elimination import EliminationPath
from dagsel.engines.paths.linear import LinearElimination, linear_path
from dagsel.engines.paths.refit import ImportanceGetter, refit_path
from dagsel.engines.paths.rows import RowsElimination
from dagsel.engines.paths.tableau import TableauElimination
from dagsel.engines.refit import RefitEngine, concatenated
from dagsel.exceptions import DagselError, NotCertifiedError, ScoringError
from dagsel.executors.choice import choose_executor
from dagsel.opening import open_rows
from dagsel.plan import shortfall
from dagsel.scoring import check_suits
from dagsel.search import Search
from dagsel.warning import warn
from dagsel.worker_loss import through_losses

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "EliminationEngine",
    "EliminationJob",
    "best_size",
    "cv_results",
    "open_elimination",
]

EliminationEngine = Literal["auto", "moments", "rows", "refit"]

# The fastest first.
_KINDS: tuple[type[LinearElimination], ...] = (TableauElimination, RowsElimination)

logger = getLogger("dagsel")

Result = TypeVar("Result")


@dataclass
class EliminationJob:
    """What to eliminate from, by what importances, and where.

    Attributes
    ----------
    problem : Problem
        Its last fold has all rows on both sides; those before it are the cross-validation's.
    executor : Executor
        Where tasks run.
    getter : str or callable
        Where importances come from; see `dagsel.engines.paths.refit`.
    engine : {"auto", "moments", "rows", "refit"}
        What the front door was asked for.
    fixed : tuple of int
        Columns that are never removed.
    verbose : int
        1 prints a line a path to standard error.
    used : str or None
        The engine that gave the paths.
    """

    problem: Problem
    executor: Executor
    getter: ImportanceGetter
    engine: EliminationEngine
    fixed: tuple[int, ...] = ()
    verbose: int = 0
    used: str | None = field(default=None, init=False)
    _data: Handle | None = field(default=None, init=False)

    def paths(
        self, sizes: Sequence[int], choose: Callable[[Sequence[EliminationPath]], int]
    ) -> tuple[list[EliminationPath], EliminationPath]:
        """Return the path of each fold, and that of all rows, which ends at the chosen size.

        Parameters
        ----------
        sizes : sequence of int
            Numbers of columns on the way; see `step_sizes`.
        choose : callable
            Called with the paths of the folds; returns one of the sizes.

        Raises
        ------
        DagselError
            If the engine that was asked for cannot vouch for its numbers, or nothing fits.
        """
        last = self.problem.folds.n_folds - 1
        found = self._fast_paths(sizes)
        if found is not None:
            return found[:last], found[last].until(choose(found[:last]))
        self._check_refits_fit()
        by_fold = self._through_losses(lambda: self._refit_paths(range(last), sizes))
        chosen = choose(by_fold)
        rest = [size for size in sizes if size >= chosen]
        (whole,) = self._through_losses(lambda: self._refit_paths([last], rest))
        return by_fold, whole

    def _fast_paths(self, sizes: Sequence[int]) -> list[EliminationPath] | None:
        """Return all paths without refits; `None` where refits must do it."""
        refused = None
        for kind in _KINDS:
            name = kind.engine_class.name
            if self.engine not in ("auto", name):
                continue
            why = kind.declines(self.problem, self.getter)
            if why is None:
                if refused is not None:
                    logger.info("%s; the %s engine takes over", refused, name)
                found = self._paths_of(kind, sizes)
                if not isinstance(found, str):
                    return found
                refused = found
            elif self.engine == name:
                msg = f"engine={name!r} cannot do this: {why}. Use engine='auto'"
                raise ValueError(msg)
        if refused is None:
            return None
        if self.engine != "auto":
            msg = f"engine={self.engine!r} cannot go on: {refused}. Use engine='auto'"
            raise DagselError(msg)
        end = "" if refused.endswith("?") else "."
        text = f"{refused}{end} The models are refitted instead, which is slower."
        logger.warning("%s", text)
        warn(text)
        return None

    def _paths_of(
        self, kind: type[LinearElimination], sizes: Sequence[int]
    ) -> list[EliminationPath] | str:
        """Return all paths of a kind, or why they cannot be had."""
        refused = kind.refuses(self.problem) or shortfall(
            kind.cost(self.problem, self.executor), self.executor, self.executor.memory_per_worker()
        )
        if refused is not None:
            return refused
        try:
            return self._through_losses(lambda: self._linear_paths(kind, sizes))
        except NotCertifiedError as error:
            return error.told(self.problem.table.names)

    def _linear_paths(
        self, kind: type[LinearElimination], sizes: Sequence[int]
    ) -> list[EliminationPath]:
        problem, executor = self.problem, self.executor
        engine = kind.engine_for(problem, sizes[-1])
        n_folds = problem.folds.n_folds
        everything = tuple(range(problem.table.n_columns))
        resident = engine.prepare(problem, executor, everything, n_folds)
        handles: list[Handle] = []
        for fold in range(n_folds):
            scored = fold < n_folds - 1
            handles.append(
                executor.submit(
                    linear_path,
                    kind,
                    engine,
                    resident[fold],
                    sizes,
                    self.fixed,
                    scored,
                    label="dagsel_path",
                    worker=fold,
                )
            )
            # In this process the task has ended: its state is let go of.
            resident[fold] = None
        return self._told(executor.gather(handles), range(n_folds))

    def _refit_paths(self, folds: Sequence[int], sizes: Sequence[int]) -> list[EliminationPath]:
        if not folds:
            return []
        if self._data is None:
            (self._data,) = RefitEngine().prepare(self.problem, self.executor, (), 1)
        last = self.problem.folds.n_folds - 1
        calls = [(self._data, fold, self.getter, sizes, self.fixed, fold < last) for fold in folds]
        return self._told(self.executor.map(refit_path, calls, label="dagsel_refit"), folds)

    def _told(self, paths: list[EliminationPath], folds: Sequence[int]) -> list[EliminationPath]:
        last = self.problem.folds.n_folds - 1
        for fold, path in zip(folds, paths, strict=True):
            where = f"fold {fold}" if fold < last else "all rows"
            text = (
                f"{where}: {path.sizes[0]} to {path.sizes[-1]} columns in {len(path.removed)} "
                f"steps, {path.seconds:.2g} s ({path.engine})"
            )
            logger.info("%s", text)
            if self.verbose:
                print(f"[dagsel] {text}", file=sys.stderr, flush=True)
            self.used = path.engine
        return paths

    def _check_refits_fit(self) -> None:
        search = Search(self.problem.table.n_columns, target_size=1)
        cost = RefitEngine.cost(self.problem, search, self.executor)
        too_large = shortfall(cost, self.executor, self.executor.memory_per_worker())
        if too_large is not None:
            raise DagselError(too_large)

    def _through_losses(self, run: Callable[[], Result]) -> Result:
        return through_losses(
            self.executor, run, forget=self._forget_data, note=logger.warning, what="paths"
        )

    def _forget_data(self) -> None:
        self._data = None

    def selected(self, columns: Sequence[int]) -> tuple[Any, Any] | None:
        """Return the rows of some columns, and the target, in the caller's own types.

        Returns
        -------
        (features, target) or None
            `None` if they are not in this process's memory and do not fit into it.
        """
        table = self.problem.table
        if table.native is not None:
            features, target = table.native
            return _safe_indexing(features, list(columns), axis=1), target
        needed = 2 * 8 * table.n_rows * len(columns)  # the parts, and what they are joined to
        if needed > psutil.virtual_memory().available:
            return None
        return self._through_losses(lambda: self._collected(list(columns)))

    def _collected(self, columns: list[int]) -> tuple[Any, Any]:
        executor, blocks = self.executor, self.problem.table.blocks
        parts: list[tuple[Any, Any]] = []
        at_once = 1 if executor.in_process else 2 * executor.n_workers
        for start in range(0, len(blocks), at_once):
            handles = [
                executor.submit(
                    selected_columns,
                    block.bare(),
                    executor.load(block),
                    columns,
                    label="dagsel_columns",
                )
                for block in blocks[start : start + at_once]
            ]
            parts += executor.gather(handles)
        return concatenated([part[0] for part in parts]), concatenated([part[1] for part in parts])


def selected_columns(block: Block, payload: Any, columns: list[int]) -> tuple[Any, Any]:
    """Return some columns of a block, and its target."""
    features, target = block.native(payload)
    return _safe_indexing(features, columns, axis=1), target


def open_elimination(
    X: Any,
    y: Any,
    *,
    estimator: Any,
    scoring: Scoring,
    cv: Any,
    getter: ImportanceGetter,
    engine: EliminationEngine = "auto",
    groups: Any = None,
    fit_params: Mapping[str, Any] | None = None,
    score_params: Mapping[str, Any] | None = None,
    client: Client | None = None,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> EliminationJob:
    """Turn a front door's parameters into a job.

    Parameters
    ----------
    X, y
        See `dagsel.data.sources.open_table`.
    estimator : estimator object
        Cloned, never fitted itself.
    scoring : Scoring
        What sizes are compared by.
    cv
        See `dagsel.data.folds.draw_folds`; "none" for no folds but the one of all rows.
    getter, engine, client, n_jobs, verbose
        See `dagsel.RFECV`.
    groups : array-like of shape (n_rows,) or str, optional
        For splitters that need them; may be the label of a column of X.
    fit_params, score_params : mapping, optional
        Passed to the estimator's `fit` and to the scorer, sliced by rows; weights in them may be
        the label of a column of X.
    """
    if engine not in get_args(EliminationEngine):
        msg = f"engine must be one of {', '.join(get_args(EliminationEngine))}; got {engine!r}"
        raise ValueError(msg)
    executor = choose_executor(client, n_jobs)
    opened = open_rows(
        X, y, executor, groups=groups, fit_params=fit_params, score_params=score_params
    )
    table = opened.table
    check_suits(scoring, estimator, table.target)
    problem = Problem(
        table=table,
        folds=_with_all_rows(cv, table, opened.groups, classifier=is_classifier(estimator)),
        estimator=estimator,
        scoring=scoring,
        features=tuple((column,) for column in range(table.n_columns)),
        fit_params=opened.fit_params,
        score_params=opened.score_params,
    )
    return EliminationJob(problem, executor, getter, engine, verbose=verbose)


def _with_all_rows(cv: Any, table: Table, groups: Any, *, classifier: bool) -> Folds:
    """Draw the folds, and append one that has all rows on both sides.

    From moments it costs no second pass: its sums are those of all atoms.
    """
    everything = draw_folds("none", table.n_rows)
    if isinstance(cv, str) and cv == "none":
        return everything
    drawn = draw_folds(cv, table.n_rows, table.target, groups, classifier=classifier)
    return Folds([*drawn, everything[0]], table.n_rows)


def best_size(paths: Sequence[EliminationPath]) -> int:
    """Return the size whose scores have the greatest sum over folds; of equal ones the smallest.

    Raises
    ------
    ScoringError
        If every size has a score that is NaN in some fold.
    """
    scores = np.array([[score.value for score in path.scores] for path in paths])
    rounding = np.array([[score.rounding for score in path.scores] for path in paths])
    sums, widths = np.sum(scores, axis=0), np.sum(rounding, axis=0)
    if np.all(np.isnan(sums)):
        fold = int(np.argmax(np.any(np.isnan(scores), axis=1)))
        msg = (
            f"the score is NaN in fold {fold}, for every number of columns: check the scoring and "
            "the folds (r2, for instance, needs at least two test rows)"
        )
        raise ScoringError(msg)
    best = int(np.nanargmax(sums))
    equal = np.flatnonzero(sums + widths >= sums[best] - widths[best])
    return int(paths[0].sizes[equal[-1]])


def cv_results(paths: Sequence[EliminationPath]) -> dict[str, NDArray[Any]]:
    """Return the scores, ranks and masks of every size, ascending."""
    scores = np.array([[score.value for score in path.scores] for path in paths])[:, ::-1]
    sizes = paths[0].sizes[::-1]
    results: dict[str, NDArray[Any]] = {
        "mean_test_score": np.mean(scores, axis=0),
        "std_test_score": np.std(scores, axis=0),
    }
    rankings = [np.stack([path.until(size).ranking() for size in sizes]) for path in paths]
    results |= {f"split{fold}_test_score": values for fold, values in enumerate(scores)}
    results |= {f"split{fold}_ranking": ranks for fold, ranks in enumerate(rankings)}
    results |= {f"split{fold}_support": ranks == 1 for fold, ranks in enumerate(rankings)}
    results["n_features"] = sizes
    return results
