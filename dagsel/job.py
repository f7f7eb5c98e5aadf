"""A selection job: what every front door turns its own parameters into, and then runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sklearn import config_context
from sklearn.base import is_classifier

from dagsel.criterion import INFERENCE_NOTE, Criterion, CriterionName
from dagsel.criterion_rules import (
    check_criterion,
    check_search_of_moves,
    check_target,
    criterion_scoring,
    resolve_criterion,
    weights_in_scores,
)
from dagsel.data.folds import draw_folds
from dagsel.data.one_hot import Coding, Columns
from dagsel.engines.base import Engine, Executor, Problem
from dagsel.engines.registry import EngineName
from dagsel.exact_fit import explain_exact_fit
from dagsel.exceptions import CheckpointError
from dagsel.executors.choice import choose_executor
from dagsel.executors.local import LocalExecutor
from dagsel.features import feature_columns, groups_of
from dagsel.identity import identity
from dagsel.journal import Journal
from dagsel.monitor import Monitor
from dagsel.opening import Categories, open_rows
from dagsel.plan import Plan, make_plan, refits_fit
from dagsel.results import Selection
from dagsel.scheduler import Decided, audit_rounds, run_search
from dagsel.scoring import check_suits, resolve_scoring
from dagsel.search import Search
from dagsel.versions import versions
from dagsel.warning import warn

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Job", "open_job"]

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
    checkpoint : path, URL or None
        The folder of its journal.
    command : mapping or None
        The command line's options, which the journal keeps for `dagsel resume`.
    anew : bool
        Whether a journal that is there is deleted.
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
    checkpoint: str | os.PathLike[str] | None = None
    command: Mapping[str, Any] | None = None
    anew: bool = False
    selection: Selection = field(init=False)
    _journal: Journal | None = field(default=None, init=False)
    _told_exact_fit: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.selection = Selection(
            n_features_in=self.columns.n_columns,
            names=self.columns.names,
            groups=groups_of(self.features),
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

    def open_journal(self) -> None:
        """Open the journal, if there is to be one, and go to where it ends.

        Raises
        ------
        CheckpointError
            If it is that of another selection, or cannot be used.
        """
        if self.checkpoint is None or self._journal is not None:
            return
        # Before the search is moved.
        known = identity(self.problem, self.search)
        journal = Journal.open(self.checkpoint, known, anew=self.anew)
        try:
            if journal.record is not None:
                self._go_on(journal.record.selection)
            journal.begin(self.selection, known, self.command)
        except BaseException:
            journal.close()
            raise
        self._journal = journal

    def _go_on(self, before: Selection) -> None:
        """Take over what was decided before."""
        for done in before.rounds:
            try:
                self.search.replay(done.move)
            except ValueError as error:
                msg = (
                    f"round {done.number} of the journal in {self.checkpoint} cannot be made by "
                    f"this search, which goes to {self.search.target_size} features: {error}"
                )
                raise CheckpointError(msg) from error
            self.selection.record(done.move, done.seconds, done.engine)
        self.selection.audit = before.audit
        if before.complete and before.stop_reason is not None:
            self.search.stop(before.stop_reason)

    def run(self, monitor: Monitor, max_seconds: float | None = None) -> Selection:
        """Run the search to its end, or until so many seconds have passed.

        Raises
        ------
        DagselError
            With everything decided before it in `selection`.
        """
        routing = self.routing
        with nullcontext() if routing is None else config_context(enable_metadata_routing=routing):
            self.open_journal()
            try:
                return self._run(monitor, max_seconds)
            finally:
                if self._journal is not None:
                    self._journal.close()

    def _run(self, monitor: Monitor, max_seconds: float | None) -> Selection:
        notes = _NotingMonitor(monitor, self.selection.notes)

        def record(decided: Decided, rounds_left: int) -> None:
            if self._journal is not None:
                self._journal.append((decided.move, decided.seconds, decided.engine))
            done = self.selection.record(decided.move, decided.seconds, decided.engine)
            monitor.round(done, rounds_left)
            # Told once, and as soon as it shows.
            if not self._told_exact_fit and (odd := explain_exact_fit(self.problem, done)):
                self._told_exact_fit = True
                notes.note(odd)
                warn(odd)

        self.executor.progress.listener = monitor.progress
        if self.plan.warning is not None:
            notes.note(self.plan.warning)
            warn(self.plan.warning)
        engines, shards = self._engines()
        if self.selection.rounds:
            monitor.phase(f"{len(self.selection.rounds)} rounds were decided before")
        self.selection.stop_reason = run_search(
            self.problem,
            self.search,
            engines,
            self.executor,
            record,
            notes,
            shards=shards,
            max_seconds=max_seconds,
            one_by_one=self._journal is not None,
        )
        self.selection.complete = True
        if self.audit and self.selection.audit is None:
            self._audit(notes)
        if self._journal is not None:
            try:
                self._journal.end(self.selection)
            except CheckpointError as error:
                # The selection is complete: that it cannot be noted down is no reason to lose it.
                notes.note(str(error))
        return self.selection

    def _engines(self) -> tuple[Sequence[Engine], Sequence[int]]:
        """Return the engines, from the one on that scored the last round, and their shards."""
        names = [engine.name for engine in self.plan.engines]
        last = self.selection.rounds[-1].engine if self.selection.rounds else None
        first = names.index(last) if last in names else 0
        return self.plan.engines[first:], self.plan.shards[first:]

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
            warn(f"{found}. Use engine='refit'.")


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
    checkpoint: str | os.PathLike[str] | None = None,
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
    groups : array-like of shape (n_rows,) or str, optional
        For splitters that need them; may be the label of a column of X.
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
    checkpoint : path or URL, optional
        See `Job`.

    Raises
    ------
    ValueError
        For parameters that contradict each other.
    """
    if isinstance(audit, bool) or audit != int(audit) or audit < 0:
        msg = f"audit must be a number of rounds, 0 or more; got {audit!r}"
        raise ValueError(msg)
    chosen = None if criterion is None else resolve_criterion(criterion, alpha)
    if chosen is not None:
        check_criterion(chosen, estimator, scoring, cv, groups, clone_estimator=clone_estimator)
    # One object cannot be fitted by several tasks at once.
    executor = choose_executor(client, n_jobs) if clone_estimator else LocalExecutor(1)
    if monitor is not None:
        executor.progress.listener = monitor.progress
    opened = open_rows(
        X,
        y,
        executor,
        groups=groups,
        fit_params=fit_params,
        score_params=score_params,
        categories=categories,
    )
    table, coding = opened.table, opened.coding
    classifier = is_classifier(estimator)
    if chosen is not None:
        check_target(table)
        cv = "none"
        opened = opened._replace(score_params=weights_in_scores(estimator, opened.fit_params))
    folds = draw_folds(cv, table.n_rows, table.target, opened.groups, classifier=classifier)
    features = feature_columns(feature_groups, opened.columns)
    score = resolve_scoring(estimator, scoring) if chosen is None else criterion_scoring(chosen)
    check_suits(score, estimator, table.target)
    problem = Problem(
        table=table,
        folds=folds,
        estimator=estimator,
        scoring=score,
        features=features if coding is None else coding.coded(features),
        fit_params=opened.fit_params,
        score_params=opened.score_params,
        clone_estimator=clone_estimator,
    )
    search = make_search(opened.columns, features)
    if chosen is not None and chosen.scores_moves:
        check_search_of_moves(search)
    memory = executor.memory_per_worker()
    plan = make_plan(problem, search, executor, engine=engine, memory_per_worker=memory)
    if audit and not refits_fit(problem, search, executor, memory):
        msg = f"audit={audit} scores rounds again by refits, and the table is too large for them"
        raise ValueError(msg)
    return Job(problem, search, executor, plan, audit, coding, routing, checkpoint)
