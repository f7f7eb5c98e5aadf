"""A selection job: what every front door turns its own parameters into, and then runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from sklearn import config_context
from sklearn.base import is_classifier
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import check_scoring, get_scorer
from sklearn.pipeline import Pipeline

from dagsel.criterion import INFERENCE_NOTE, Criterion, CriterionName
from dagsel.data.arrays import split_blocks
from dagsel.data.blocks import Table
from dagsel.data.columns import checked_weights, take_weights
from dagsel.data.folds import draw_folds
from dagsel.data.one_hot import Coding, Columns, one_hot_coded
from dagsel.data.sources import open_table, scan_of_paths
from dagsel.engines.base import Executor, Problem, Scoring
from dagsel.engines.linear_model import final_step, linear_model
from dagsel.engines.registry import EngineName
from dagsel.exceptions import DagselWarning, DataError
from dagsel.executors.cluster import ClusterExecutor, active_client
from dagsel.executors.local import LocalExecutor
from dagsel.monitor import LogMonitor, Monitor, PrintMonitor
from dagsel.plan import Plan, make_plan, refits_fit
from dagsel.results import Selection
from dagsel.scheduler import Decided, audit_rounds, run_search
from dagsel.scorers import explain_unknown_scorer
from dagsel.search import Search
from dagsel.versions import versions

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Categories",
    "Job",
    "choose_executor",
    "feature_columns",
    "memory_per_worker",
    "monitor_for",
    "open_job",
    "resolve_columns",
    "resolve_criterion",
    "resolve_scoring",
    "runner",
]

Categories = Literal["error", "one-hot"]

# What the `score` of models is, also at the end of a pipeline.
_OWN_SCORES = {LinearRegression: "r2", Ridge: "r2", RidgeClassifier: "accuracy"}

# An audit that finds more is a reason to warn.
_AUDIT_PASSES = 1e-8


@dataclass
class Job:
    """A problem, a search, a plan and a place to run.

    Attributes
    ----------
    problem : Problem
        What to select from.
    search : Search
        At its start.
    executor : Executor
        Where tasks run.
    plan : Plan
        What will be done.
    audit : int
        How many decided rounds are scored again by refits at the end.
    coding : Coding or None
        Which columns of the table stand for the user's own, where some were coded.
    routing : bool or None
        Whether scikit-learn's metadata routing is enabled while the job runs; `None`: as it is.
    selection : Selection
        Filled round by round, so that what was decided outlives any failure.
    """

    problem: Problem
    search: Search
    executor: Executor
    plan: Plan
    audit: int = 0
    coding: Coding | None = None
    routing: bool | None = None
    selection: Selection = field(init=False)

    def __post_init__(self) -> None:
        self.selection = Selection(
            n_features_in=self.columns.n_columns,
            names=self.columns.names,
            groups=_groups(self.features),
            scoring=self.problem.scoring.name,
            direction=self.search.direction,
            plan=str(self.plan),
            versions=dict(versions()),
        )
        criterion = self.problem.scoring.criterion
        if criterion is not None and criterion.scores_moves:
            self.selection.notes.append(INFERENCE_NOTE)

    @property
    def columns(self) -> Columns:
        """The user's own columns: how many there are, and their names."""
        return self.problem.table if self.coding is None else self.coding

    @property
    def features(self) -> tuple[tuple[int, ...], ...]:
        """The user's own columns of each feature."""
        coded = self.problem.features
        return coded if self.coding is None else self.coding.own(coded)

    def columns_of(self, subset: Sequence[int]) -> tuple[int, ...]:
        """Return the user's own columns of a subset of features, ascending."""
        return tuple(sorted(column for feature in subset for column in self.features[feature]))

    def run(self, monitor: Monitor, max_seconds: float | None = None) -> Selection:
        """Run the search to its end, or until so many seconds have passed.

        Raises
        ------
        DagselError
            With everything decided before it in `selection`.
        """
        routing = self.routing
        with nullcontext() if routing is None else config_context(enable_metadata_routing=routing):
            return self._run(monitor, max_seconds)

    def _run(self, monitor: Monitor, max_seconds: float | None) -> Selection:

        def record(decided: Decided, rounds_left: int) -> None:
            done = self.selection.record(decided.move, decided.seconds, decided.engine)
            monitor.round(done, rounds_left)

        notes = _NotingMonitor(monitor, self.selection.notes)
        self.executor.progress.listener = monitor.progress
        if self.plan.warning is not None:
            notes.note(self.plan.warning)
            warnings.warn(self.plan.warning, DagselWarning, stacklevel=2)
        self.selection.stop_reason = run_search(
            self.problem,
            self.search,
            self.plan.engines,
            self.executor,
            record,
            notes,
            shards=self.plan.shards,
            max_seconds=max_seconds,
        )
        self.selection.complete = True
        if self.audit:
            self._audit(notes)
        return self.selection

    def _audit(self, monitor: Monitor) -> None:
        monitor.phase(f"auditing {self.audit} rounds")
        found = audit_rounds(
            self.problem,
            self.selection.rounds,
            self.audit,
            self.executor,
            monitor,
            self.search,
        )
        self.selection.audit = found
        self.selection.notes.append(str(found))
        monitor.phase(str(found))
        if found.overturned or not found.difference <= _AUDIT_PASSES:
            warnings.warn(f"{found}. Use engine='refit'.", DagselWarning, stacklevel=3)


@dataclass
class _NotingMonitor:
    """Also keeps notes in the selection."""

    inner: Monitor
    notes: list[str]

    def phase(self, name: str) -> None:
        self.inner.phase(name)

    def progress(self, what: str, done: int, total: int) -> None:
        self.inner.progress(what, done, total)

    def round(self, done: Any, rounds_left: int) -> None:
        self.inner.round(done, rounds_left)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.inner.note(text)


def open_job(
    X: Any,
    y: Any,
    *,
    estimator: Any,
    scoring: Any,
    cv: Any,
    make_search: Callable[[Columns, tuple[tuple[int, ...], ...]], Search],
    groups: Any = None,
    feature_groups: Sequence[Sequence[Any]] | None = None,
    fit_params: Mapping[str, Any] | None = None,
    score_params: Mapping[str, Any] | None = None,
    routing: bool | None = None,
    categories: Categories = "error",
    engine: EngineName = "auto",
    client: Client | None = None,
    n_jobs: int | None = None,
    clone_estimator: bool = True,
    monitor: Monitor | None = None,
    criterion: CriterionName | Criterion | None = None,
    alpha: float = 0.05,
    audit: int = 0,
) -> Job:
    """Turn a front door's parameters into a job.

    Parameters
    ----------
    X, y
        See `dagsel.data.sources.open_table`.
    estimator : estimator object
        Cloned, never fitted itself.
    scoring : str, callable or None
        As in scikit-learn.
    cv
        See `dagsel.data.folds.draw_folds`.
    make_search : callable
        Called with the user's own columns and those of each feature; returns the search.
    groups : array-like of shape (n_rows,), optional
        For splitters that need them.
    feature_groups : list of list, optional
        Columns, by position or name, that are moved as one.
    fit_params : mapping, optional
        Passed to the estimator's `fit`. Weights in it may be the label of a column of X.
    score_params : mapping, optional
        Passed to the scorer, likewise. With a criterion it is the weights of the fit.
    routing : bool, optional
        See `Job`.
    categories : {"error", "one-hot"}
        What to do with columns of text or categories.
    engine, client, n_jobs
        See `dagsel.SequentialFeatureSelector`.
    clone_estimator : bool
        Whether refits fit clones, or the estimator itself, which they then do in this process.
    monitor : Monitor, optional
        Told how far the scan of files has come.
    criterion : str or Criterion, optional
        Scores fits to all rows in place of cross-validation; `cv` and `scoring` are then left at 5
        and `None`.
    alpha : float
        Level of the test with the criterion "p_value".
    audit : int
        How many decided rounds to score again by refits.

    Raises
    ------
    ValueError
        For parameters that contradict each other.
    """
    if categories not in get_args(Categories):
        msg = f"categories must be 'error' or 'one-hot'; got {categories!r}"
        raise ValueError(msg)
    if isinstance(audit, bool) or audit != int(audit) or audit < 0:
        msg = f"audit must be a number of rounds, 0 or more; got {audit!r}"
        raise ValueError(msg)
    chosen = None if criterion is None else resolve_criterion(criterion, alpha)
    if chosen is not None:
        _check_criterion(chosen, estimator, scoring, cv, groups, clone_estimator=clone_estimator)
    # One object cannot be fitted by several tasks at once.
    executor = choose_executor(client, n_jobs) if clone_estimator else LocalExecutor(1)
    if monitor is not None:
        executor.progress.listener = monitor.progress
    run = runner(executor)
    X, y = scan_of_paths(X, y)
    X, (fit_params, score_params) = take_weights(
        X, fit_params or {}, score_params or {}, run=run, compute=executor.compute
    )
    coding = None
    if categories != "error":
        X, y, coding = one_hot_coded(X, y, run)
    table = open_table(X, y, run=run, compute=executor.compute)
    fit_params, score_params = (
        checked_weights(params, table.n_rows) for params in (fit_params, score_params)
    )
    if not executor.in_process:
        table = split_blocks(table, executor.n_workers)
    classifier = is_classifier(estimator)
    if chosen is not None:
        _check_target(table)
        cv = "none"
        score_params = _weights_in_scores(estimator, fit_params)
    folds = draw_folds(cv, table.n_rows, table.target, groups, classifier=classifier)
    columns: Columns = table if coding is None else coding
    features = feature_columns(feature_groups, columns)
    problem = Problem(
        table=table,
        folds=folds,
        estimator=estimator,
        scoring=resolve_scoring(estimator, scoring)
        if chosen is None
        else Scoring(chosen.name, _no_scorer, chosen),
        features=features if coding is None else coding.coded(features),
        fit_params=fit_params,
        score_params=score_params,
        clone_estimator=clone_estimator,
    )
    search = make_search(columns, features)
    if chosen is not None and chosen.scores_moves:
        _check_search_of_moves(search)
    memory = memory_per_worker(executor)
    plan = make_plan(problem, search, executor, engine=engine, memory_per_worker=memory)
    if audit and not refits_fit(problem, search, executor, memory):
        msg = f"audit={audit} scores rounds again by refits, and the table is too large for them"
        raise ValueError(msg)
    return Job(problem, search, executor, plan, audit, coding, routing)


def choose_executor(client: Client | None, n_jobs: int | None) -> Executor:
    """Return where to run: the given client's cluster, the active one's, or this process.

    Inside a Dask task (a GridSearchCV run on a cluster, say) work stays in the task's process: a
    task that waits for tasks of its own could wait for ever.
    """
    if client is None and not _inside_task():
        client = active_client()
    return LocalExecutor(n_jobs) if client is None else ClusterExecutor(client)


def _inside_task() -> bool:
    import sys

    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def runner(executor: Executor) -> Callable[[Callable[..., Any], Iterable[Any]], list[Any]]:
    """Return the `run` of `open_table` that scans files on an executor."""

    def run(function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        return executor.map(function, [(item,) for item in items], label="dagsel_scan")

    return run


def memory_per_worker(executor: Executor) -> int | None:
    """Return the bytes that one worker may use for resident data, `None` if nobody knows."""
    if isinstance(executor, ClusterExecutor):
        return executor.memory_per_worker()
    import psutil

    return int(psutil.virtual_memory().available)


def monitor_for(verbose: int) -> Monitor:
    """Return the monitor of a `verbose` level: a log, or lines on standard error."""
    return PrintMonitor() if verbose else LogMonitor()


def resolve_scoring(estimator: Any, scoring: Any) -> Scoring:
    """Return the scorer that scikit-learn would use."""
    own = _OWN_SCORES.get(type(final_step(estimator)[1])) if scoring is None else None
    if own is not None and type(estimator) in (*_OWN_SCORES, Pipeline):
        # By its name the fast engines know it.
        return Scoring(own, get_scorer(own))
    if isinstance(scoring, (list, tuple, set, dict)):
        msg = f"scoring must be a single metric, by which features are chosen; got {scoring!r}"
        raise ValueError(msg)
    unknown = explain_unknown_scorer(scoring) if isinstance(scoring, str) else None
    if unknown is not None:
        raise ValueError(unknown)
    scorer = check_scoring(estimator, scoring=scoring)
    if isinstance(scoring, str):
        return Scoring(scoring, scorer)
    name = "score" if scoring is None else getattr(scoring, "__name__", str(scoring))
    return Scoring(name, scorer)


def resolve_criterion(criterion: CriterionName | Criterion, alpha: float) -> Criterion:
    """Return the criterion of a name; one that is given ready-made has its own level."""
    return criterion if isinstance(criterion, Criterion) else Criterion(criterion, alpha=alpha)


def _no_scorer(*args: Any, **kwargs: Any) -> float:
    """Stand where a scorer would be: nothing is scored on test rows."""
    msg = "a criterion is no scorer: it needs a fit to all rows"
    raise TypeError(msg)


def _check_criterion(
    criterion: Criterion,
    estimator: Any,
    scoring: Any,
    cv: Any,
    groups: Any,
    *,
    clone_estimator: bool,
) -> None:
    """Refuse what a criterion cannot be combined with."""
    name = f"criterion={criterion.name!r}"
    if scoring is not None:
        msg = f"{name} takes the place of a metric: leave scoring at None; got {scoring!r}"
        raise ValueError(msg)
    if not (cv is None or (isinstance(cv, int) and cv == 5)) or groups is not None:
        what = "cv at its default" if groups is None else "out groups"
        msg = f"{name} takes the place of cross-validation: leave {what}"
        raise ValueError(msg)
    _, model = final_step(estimator)
    if type(model) is not LinearRegression or isinstance(linear_model(estimator), str):
        msg = (
            f"{name} needs LinearRegression(positive=False), by itself or after a StandardScaler; "
            f"got {estimator!r}. It counts the parameters of a least-squares fit, and a penalty, a "
            "constraint or another model has no such number: use cross-validation (cv, scoring)"
        )
        raise ValueError(msg)
    if not clone_estimator:
        msg = f"{name} needs clones of the estimator: use clone_estimator=True"
        raise ValueError(msg)


def _check_search_of_moves(search: Search) -> None:
    """Refuse searches that compare subsets, which have no p-value."""
    odd = {
        "floating=True": search.floating,
        "step": search.step != 1,
        "tol": search.tol is not None,
        "patience": search.patience is not None,
        "score_start=True": search.score_start,
    }
    clashes = [name for name, given in odd.items() if given]
    if clashes:
        msg = (
            "a p-value belongs to the move of one feature and not to a subset, so that subsets "
            f"cannot be compared by it: leave out {', '.join(clashes)}, or use a criterion such as "
            "'bic'"
        )
        raise ValueError(msg)


def _weights_in_scores(estimator: Any, fit_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fit's weights as those of scores: a criterion sums the errors of the fit."""
    prefix, _ = final_step(estimator)
    weight = fit_params.get(f"{prefix}sample_weight")
    return {} if weight is None else {"sample_weight": weight}


def _check_target(table: Table) -> None:
    """Refuse targets that have no residual sum of squares."""
    target = np.asarray(table.target)
    if target.ndim > 1 and target.shape[1] != 1:
        msg = f"a criterion judges the fit of one target; got {target.shape[1]} of them"
        raise DataError(msg)
    if target.dtype.kind not in "fiub":
        msg = f"a criterion needs a numeric target; got one of dtype {target.dtype}"
        raise DataError(msg)


def feature_columns(
    feature_groups: Sequence[Sequence[Any]] | None, table: Columns
) -> tuple[tuple[int, ...], ...]:
    """Return the columns of each feature.

    Raises
    ------
    ValueError
        If groups are given that do not hold every column exactly once.
    """
    if feature_groups is None:
        return tuple((column,) for column in range(table.n_columns))
    groups = tuple(resolve_columns(group, table, what="feature_groups") for group in feature_groups)
    if not groups or not all(groups):
        msg = f"feature_groups {'has an empty group' if groups else 'is empty'}: leave it out"
        raise ValueError(msg)
    counts = np.bincount(np.concatenate(groups), minlength=table.n_columns)
    if np.any(counts != 1):
        column = int(np.flatnonzero(counts != 1)[0])
        times = "in no group" if counts[column] == 0 else f"in {counts[column]} groups"
        msg = f"feature_groups must hold every column exactly once; column {column} is {times}"
        raise ValueError(msg)
    return groups


def resolve_columns(
    chosen: Iterable[Hashable] | None, table: Columns, *, what: str
) -> tuple[int, ...]:
    """Return the positions of columns given by name or position; none for `None`.

    Raises
    ------
    ValueError
        For a column that the table does not have.
    """
    if chosen is None:
        return ()
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        msg = f"{what}: give a list of columns, by name or position, instead of {chosen!r}"
        raise ValueError(msg)
    names = table.names or ()
    columns = []
    for item in chosen:
        position = _position(item, names, table.n_columns)
        if position is None:
            known = f"columns 0 to {table.n_columns - 1}"
            if names:
                known += f" or names such as {', '.join(map(repr, names[:3]))}"
            msg = f"{what}: the table has no column {item!r} (it has {known})"
            raise ValueError(msg)
        columns.append(position)
    return tuple(columns)


def _position(item: Hashable, names: Sequence[Hashable], n_columns: int) -> int | None:
    if isinstance(item, str):
        with suppress(ValueError):
            return list(names).index(item)
        return None
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item) if 0 <= int(item) < n_columns else None
    return None


def features_of_columns(
    columns: Iterable[int], features: Sequence[tuple[int, ...]], *, what: str
) -> tuple[int, ...]:
    """Return the features that some columns make up.

    Raises
    ------
    ValueError
        If a group is in the columns only in part.
    """
    wanted = set(columns)
    chosen = []
    for number, group in enumerate(features):
        inside = wanted.intersection(group)
        if inside and len(inside) < len(group):
            missing = sorted(set(group) - inside)
            msg = f"{what} holds only a part of a feature group: columns {missing} are missing"
            raise ValueError(msg)
        if inside:
            chosen.append(number)
    return tuple(chosen)


def _groups(features: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...] | None:
    simple = all(columns == (number,) for number, columns in enumerate(features))
    return None if simple else features
