"""Plain refits: any estimator, any scorer. The reference that every other engine is held to."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context, get_config
from sklearn.base import clone
from sklearn.utils import _safe_indexing

from dagsel.data.blocks import Block
from dagsel.data.folds import Fold, Folds
from dagsel.engines.base import Axis, Cost, Executor, Handle, Problem, ScoreTable
from dagsel.engines.criteria.refits import CriterionRefits, Fitted
from dagsel.search import Request, Search

__all__ = ["RefitData", "RefitEngine", "tie_width"]

# Refits of subsets that are equal in exact arithmetic (one of two duplicate columns left out, say)
# differ by rounding. Mean scores this near each other, relatively, are a tie.
_TIE = 1e-12


@dataclass(frozen=True)
class RefitData:
    """What a worker needs to refit: sent once, kept for the run.

    Attributes
    ----------
    features, target : array-like or frame
        The whole table in the caller's own types.
    folds : Folds
        Training and test rows.
    estimator : estimator object
        Cloned for every fit, unless `clone_estimator` is false.
    scorer : callable
        `scorer(estimator, X, y) -> float`.
    columns : tuple of tuple of int
        Columns of each feature.
    names : tuple or None
        Column labels, for messages.
    fit_params : mapping
        See `Problem`.
    clone_estimator : bool
        See `Problem`.
    score_params : mapping
        See `Problem`.
    by_criterion : CriterionRefits or None
        Scores fits to all rows, where there is a criterion in place of a scorer.
    routing : bool
        Whether scikit-learn's metadata routing is enabled where the selection was started; other
        threads and processes do not know.
    """

    features: Any
    target: Any
    folds: Folds
    estimator: Any
    scorer: Callable[..., float]
    columns: tuple[tuple[int, ...], ...]
    names: tuple[Hashable, ...] | None
    fit_params: Mapping[str, Any]
    clone_estimator: bool
    score_params: Mapping[str, Any]
    by_criterion: CriterionRefits | None = None
    routing: bool = False

    def __sizeof__(self) -> int:
        """Return the bytes of the rows: by it Dask places tasks and watches memory."""
        from dask.sizeof import sizeof

        return int(sizeof(self.features)) + int(sizeof(self.target))


class RefitState(NamedTuple):
    """The data, and its folds as row indices, which take a while to unpack."""

    data: RefitData
    splits: list[Fold]


@dataclass(frozen=True)
class RefitEngine:
    """Scores by fitting a clone of the estimator for every candidate and fold."""

    name: ClassVar[str] = "refit"
    axis: ClassVar[Axis] = "candidates"
    summary: ClassVar[str] = "candidates are scored by refits"

    @staticmethod
    def declines(problem: Problem) -> None:
        """Decline nothing."""
        del problem

    @staticmethod
    def refuses(problem: Problem) -> None:
        """Refuse nothing."""
        del problem

    @classmethod
    def for_problem(cls, problem: Problem, search: Search) -> RefitEngine:
        """Make the engine; it is the same for every problem."""
        del problem, search
        return cls()

    @staticmethod
    def cost(problem: Problem, search: Search, executor: Executor) -> Cost:
        """Count the whole table once for every worker; see `Engine.cost`."""
        del search
        there_already = executor.in_process and problem.table.native is not None
        return Cost(
            n_pieces=1,
            piece_bytes=0,
            everywhere_bytes=0 if there_already else problem.table.nbytes,
            operations=float("nan"),
            what="refits have the whole table in the memory of every worker, and",
            remedy="use workers with more memory, or fewer rows or columns",
        )

    def prepare(
        self, problem: Problem, executor: Executor, subset: tuple[int, ...], n_shards: int
    ) -> list[Handle]:
        """Bring the whole table together once; see `Engine.prepare`."""
        del subset, n_shards
        blocks = problem.table.blocks
        payloads = [executor.load(block) for block in blocks]
        bare = [block.bare() for block in blocks]
        return [
            executor.submit(assemble, problem_facts(problem), bare, payloads, label="dagsel_data")
        ]

    def open(self, resident: RefitData) -> RefitState:
        """Unpack the folds; refits need no other state."""
        return RefitState(resident, resident.folds.splits)

    def moved(self, state: RefitState, subset: tuple[int, ...]) -> RefitState:
        """Return the same state: it serves any subset."""
        del subset
        return state

    def score(self, state: RefitState, request: Request) -> ScoreTable:
        """Fit and score every variant on every fold; see `Engine.score`.

        A fit or a score that raises counts as NaN; where it was and why is kept of the first.
        """
        with config_context(enable_metadata_routing=state.data.routing):
            return self._score(state, request)

    def _score(self, state: RefitState, request: Request) -> ScoreTable:
        if state.data.by_criterion is not None:
            return _score_by_criterion(state.data, state.data.by_criterion, request)
        rows: list[list[float]] = []
        failures: list[str] = []
        candidates = request.candidates or (None,)
        for candidate, subset in zip(candidates, request.variants(), strict=True):
            scores, failure = _score_subset(state, subset)
            rows.append(scores)
            if failure is not None and not failures:
                failures.append(f"{_variant(state.data, request, candidate)}, {failure}")
        table = np.array(rows, dtype=np.float64).reshape(request.n_rows, len(state.splits))
        return ScoreTable(table, tie_width(table), tuple(failures))


def problem_facts(problem: Problem) -> dict[str, Any]:
    """Return all of a problem that refits need but the rows."""
    return {
        "folds": problem.folds,
        "estimator": problem.estimator,
        "scorer": problem.scoring.scorer,
        "columns": problem.features,
        "names": problem.table.names,
        "fit_params": dict(problem.fit_params),
        "clone_estimator": problem.clone_estimator,
        "score_params": dict(problem.score_params),
        "criterion": problem.scoring.criterion,
        "routing": get_config()["enable_metadata_routing"],
    }


def assemble(facts: dict[str, Any], blocks: Sequence[Block], payloads: Sequence[Any]) -> RefitData:
    """Join the blocks' rows, in the caller's own types, with what else refits need."""
    parts = [block.native(payload) for block, payload in zip(blocks, payloads, strict=True)]
    features = concatenated([part[0] for part in parts])
    target = concatenated([part[1] for part in parts])
    rest = {name: value for name, value in facts.items() if name != "criterion"}
    by_criterion = None
    if facts["criterion"] is not None:
        by_criterion = CriterionRefits.of(
            facts["criterion"], facts["estimator"], features, target, facts["fit_params"]
        )
    return RefitData(features=features, target=target, by_criterion=by_criterion, **rest)


def concatenated(parts: Sequence[Any]) -> Any:
    """Join consecutive rows of one kind: arrays, pandas or polars objects."""
    if len(parts) == 1:
        return parts[0]
    library = type(parts[0]).__module__.partition(".")[0]
    if library == "pandas":
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    if library == "polars":
        import polars as pl

        return pl.concat(parts)
    return np.concatenate(parts)


def _score_subset(state: RefitState, subset: tuple[int, ...]) -> tuple[list[float], str | None]:
    """Return a score for every fold, and what was wrong with the first that has none."""
    data = state.data
    columns = sorted(column for feature in subset for column in data.columns[feature])
    features = _safe_indexing(data.features, columns, axis=1)
    scores: list[float] = []
    failure = None
    for fold, (train, test) in enumerate(state.splits):
        try:
            score = _fit_and_score(data, features, train, test)
            reason = "the score is NaN"
        except Exception as error:
            # The candidate is out of the running, the run goes on.
            score, reason = np.nan, _reason(error)
        scores.append(score)
        if failure is None and np.isnan(score):
            failure = f"fold {fold}: {reason}"
    return scores, failure


def _fit_and_score(
    data: RefitData, features: Any, train: NDArray[np.intp], test: NDArray[np.intp]
) -> float:
    estimator = clone(data.estimator) if data.clone_estimator else data.estimator
    params = {key: _of_rows(value, train, data) for key, value in data.fit_params.items()}
    in_score = {key: _of_rows(value, test, data) for key, value in data.score_params.items()}
    train_target, test_target = (_safe_indexing(data.target, rows) for rows in (train, test))
    estimator.fit(_safe_indexing(features, train), train_target, **params)
    return float(data.scorer(estimator, _safe_indexing(features, test), test_target, **in_score))


def _score_by_criterion(data: RefitData, refits: CriterionRefits, request: Request) -> ScoreTable:
    """Score a request by fits to all rows."""

    def fit(subset: tuple[int, ...]) -> Fitted:
        columns = sorted(column for feature in subset for column in data.columns[feature])
        return refits.fit(data.features, columns)

    fits: list[Fitted | None] = []
    failures: list[str] = []
    candidates = request.candidates or (None,)
    for candidate, subset in zip(candidates, request.variants(), strict=True):
        try:
            fits.append(fit(subset))
        except Exception as error:
            fits.append(None)
            failures.append(f"{_variant(data, request, candidate)}: {_reason(error)}")
    moved = refits.criterion.scores_moves and request.candidates
    current = fit(request.subset) if moved else None
    removal = bool(request.candidates) and request.candidates[0] in request.subset
    scores, rounding = refits.scores(fits, current, removal=removal)
    return ScoreTable(scores, rounding, tuple(failures[:1]))


def _variant(data: RefitData, request: Request, candidate: int | None) -> str:
    """Say which subset was scored."""
    if candidate is None:
        return "starting subset"
    columns = data.columns[candidate]
    labels = ", ".join(
        repr(column if data.names is None else data.names[column]) for column in columns
    )
    verb = "without" if candidate in request.subset else "with"
    return f"{verb} column{'s' if len(columns) > 1 else ''} {labels}"


def _reason(error: Exception) -> str:
    """Return an error's class and text, and the line that raised it, which names the cause."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {last.name}, {last.filename}:{last.lineno})"


def _of_rows(value: Any, rows: NDArray[np.intp], data: RefitData) -> Any:
    """Slice a fit parameter that has one entry a row; leave any other as it is."""
    shape = np.shape(value) if not isinstance(value, str) else ()
    return _safe_indexing(value, rows) if shape[:1] == (data.folds.n_rows,) else value


def tie_width(scores: NDArray[np.float64]) -> float:
    """Return how near to the best mean score another counts as tied with it, for refits."""
    means = np.mean(scores, axis=1)
    if not np.any(np.isfinite(means)):
        return 0.0
    best = scores[int(np.nanargmax(np.where(np.isfinite(means), means, np.nan)))]
    return _TIE * float(np.mean(np.abs(best)))
