"""Runs a search over an engine: partition, submit, reduce, choose.

A round is one map and one reduce over the shards of the engine's axis. Where one shard holds all
folds, the loop travels to the data instead: one task plays as many rounds as take about a second,
because a round trip through a cluster costs more than a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dagsel.audit import Audit, audited_rounds, relative_difference
from dagsel.contest import contenders, contest, resolved
from dagsel.engines.base import Engine, Executor, Handle, Problem, ScoreTable
from dagsel.engines.refit import RefitEngine
from dagsel.exceptions import (
    DagselError,
    DriftedError,
    NotCertifiedError,
    ScoringError,
)
from dagsel.monitor import Monitor
from dagsel.rounds import Round
from dagsel.search import Move, Request, Search, StopReason
from dagsel.tasks import Lease, Played, StateKey, holds, play_rounds, score_request
from dagsel.warning import warn
from dagsel.worker_loss import through_losses

__all__ = ["Decided", "across_folds", "audit_rounds", "run_search"]

# Seconds of rounds in one task: long against a round trip, short against a user's patience.
_TASK_SECONDS = 1.0
# In process there is no round trip, only the wish to report.
_REPORT_SECONDS = 0.25
_MOST_ROUNDS = 4096
# Candidates of a round that an audit refits.
_AUDITED = 8


@dataclass(frozen=True)
class Decided:
    """A decided round, and how it came about."""

    move: Move
    seconds: float
    engine: str


@dataclass
class Session:
    """One engine at work on one problem."""

    engine: Engine
    problem: Problem
    executor: Executor
    n_shards: int
    run: str = field(default_factory=lambda: uuid4().hex)
    seconds_per_request: float | None = None
    seconds_per_candidate: float | None = None
    told_failures: bool = False
    deadline: float | None = None  # of `perf_counter`
    referee: Session | None = None  # refits, which decide rounds that the engine cannot
    one_by_one: bool = False  # whether rounds are told of one at a time where that costs nothing
    n_contests: int = 0
    _shards: list[Handle | None] | None = None
    _refreshed_at: tuple[int, ...] | None = None
    _lease: Handle | None = None

    def shards(self, subset: tuple[int, ...]) -> list[Handle | None]:
        """Return the resident data, prepared for a search that starts at `subset`."""
        if self._shards is None:
            self._lease = self.executor.submit(Lease, self.run, label="dagsel_lease")
            self._shards = list(
                self.engine.prepare(self.problem, self.executor, subset, self.n_shards)
            )
        return self._shards

    @property
    def prepared(self) -> bool:
        """Whether there are resident data."""
        return self._shards is not None

    @property
    def travels(self) -> bool:
        """Whether rounds are played where the data are."""
        return self.engine.axis == "folds" and self.n_shards == 1

    def play(self, search: Search) -> Played:
        """Play some rounds."""
        resident = self.shards(search.subset)
        if not self.travels:
            return self._play_here(search)
        played = self._play_there(search, resident)
        if played.contested is not None:
            self._decide(played, played.contested)
        return played

    def _decide(self, played: Played, table: ScoreTable) -> None:
        """Have a contested round decided by refits of its contenders."""
        began = perf_counter()
        request = played.search.request()
        assert request is not None, "a finished search has no contest"
        table = self._refereed(request, table)
        try:
            move = played.search.answer(table.scores, table.rounding)
        except ScoringError as error:
            played.error = error
            played.failures = table.failures
            return
        played.contested = None
        if move is not None:
            played.moves.append((move, perf_counter() - began))

    def _refereed(self, request: Request, table: ScoreTable) -> ScoreTable:
        """Return a round's scores with those of the contenders, if there are any, by refits."""
        rows = contenders(table)
        if self.referee is None or not len(rows):
            return table
        self.n_contests += 1
        return resolved(table, rows, self.referee.score(contest(request, rows)))

    def play_through_losses(self, search: Search, monitor: Monitor) -> Played:
        """Play some rounds; if workers take data with them, send those again and go on."""
        return through_losses(
            self.executor,
            lambda: self.play(search),
            forget=self._forget_data,
            note=monitor.note,
            what="rounds",
        )

    def _forget_data(self) -> None:
        self._shards = None
        if self.referee is not None:
            self.referee._forget_data()

    def _play_there(self, search: Search, resident: list[Handle | None]) -> Played:
        key = StateKey(self.run, 0)
        if resident[0] is None and not holds(key):
            self._shards = None
            resident = self.shards(search.subset)
        n_requests = self._n_requests()
        began = perf_counter()
        task = self.executor.submit(
            play_rounds,
            self.engine,
            resident[0],
            search,
            n_requests,
            key,
            self.referee is not None,
            self._lease,
            label="dagsel_rounds",
            worker=0,
        )
        (played,) = self.executor.gather([task])
        at_work = played.refusal is None and played.error is None and played.contested is None
        if not played.n_answered and at_work:
            msg = "a task of rounds made no progress; was its run ended by somebody else?"
            raise RuntimeError(msg)
        self.seconds_per_request = (perf_counter() - began) / max(1, played.n_answered)
        if self.executor.in_process:
            # The state now has what it needs of it. Keeping both would double the memory.
            resident[0] = None
        return played  # type: ignore[no-any-return]

    def _n_requests(self) -> int:
        if self.one_by_one and self.executor.in_process:
            return 1
        if self.seconds_per_request is None:
            # The first task also opens the state; in process it must be short to report soon. With
            # a deadline it is there to measure.
            return 1 if self.executor.in_process or self.deadline is not None else 16
        aim = _REPORT_SECONDS if self.executor.in_process else _TASK_SECONDS
        if self.deadline is not None:
            aim = min(aim, self.deadline - perf_counter())
        return max(1, min(_MOST_ROUNDS, round(aim / max(self.seconds_per_request, 1e-6))))

    def _play_here(self, search: Search) -> Played:
        began = perf_counter()
        played = Played(search, [])
        while (request := search.request()) is not None:
            try:
                table = self._refereed(request, self.score(request))
            except NotCertifiedError as error:
                played.refusal = error
                break
            played.failures = played.failures or table.failures
            try:
                move = search.answer(table.scores, table.rounding)
            except ScoringError as error:
                played.error = error
                break
            if move is not None:
                played.moves.append((move, perf_counter() - began))
            if not search.mid_round:
                break
        return played

    def score(self, request: Request) -> ScoreTable:
        """Score one request, its candidates or folds divided between the workers."""
        resident = self.shards(request.subset)
        if self.engine.axis == "folds":
            calls: list[tuple[Any, ...]] = [
                (self.engine, shard, request, StateKey(self.run, number), self._lease)
                for number, shard in enumerate(resident)
            ]
            return across_folds(self.executor.map(score_request, calls, label="dagsel_score"))
        calls = [(self.engine, resident[0], batch, None) for batch in self._batches(request)]
        began = perf_counter()
        tables = self.executor.map(score_request, calls, label="dagsel_refit")
        busy = (perf_counter() - began) * min(self.executor.n_workers, len(calls))
        self.seconds_per_candidate = busy / request.n_rows
        return _across_candidates(tables)

    def _batches(self, request: Request) -> Iterator[Request]:
        """Cut a round's candidates into tasks of about a second, several for every worker."""
        n_workers = self.executor.n_workers
        n_candidates = len(request.candidates)
        if n_candidates < 2 or (n_workers == 1 and self.executor.in_process):
            yield request
            return
        size = math.ceil(n_candidates / (4 * n_workers))
        if self.seconds_per_candidate is not None:
            fits = max(1, round(_TASK_SECONDS / max(self.seconds_per_candidate, 1e-6)))
            # Never fewer tasks than workers, never so many that overheads show.
            size = min(math.ceil(n_candidates / n_workers), max(1, fits))
        for start in range(0, n_candidates, size):
            yield Request(request.subset, request.candidates[start : start + size])

    def refresh(self, subset: tuple[int, ...]) -> bool:
        """Have states made anew from the rows; false if that was no help at this subset before."""
        if self._refreshed_at == subset:
            return False
        self.close()
        self.run = uuid4().hex
        self._refreshed_at = subset
        return True

    def close(self) -> None:
        """Drop what workers hold for this session."""
        self._shards = self._lease = None
        self.executor.forget(self.run)
        if self.referee is not None:
            self.referee.close()


def across_folds(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Return the scores of shards, each with some of the folds, as one table."""
    scores = np.concatenate([table.scores for table in tables], axis=1)
    # Of a mean over folds: it must not depend on how the folds were divided.
    n_folds = [table.scores.shape[1] for table in tables]
    rounding = np.average([table.rounding for table in tables], weights=n_folds)
    return ScoreTable(scores, float(rounding))


def _across_candidates(tables: Sequence[ScoreTable]) -> ScoreTable:
    scores = np.concatenate([table.scores for table in tables], axis=0)
    failures = tuple(text for table in tables for text in table.failures)[:1]
    # How far scores can be told apart is a matter of the best one, in whichever batch it was; so
    # it does not depend on how candidates were divided.
    best = max(tables, key=lambda table: _best_mean(table.scores))
    return ScoreTable(scores, best.rounding, failures)


def _best_mean(scores: NDArray[np.float64]) -> float:
    means = np.mean(scores, axis=1)
    means = means[~np.isnan(means)]
    return float(np.max(means)) if len(means) else -np.inf


def run_search(
    problem: Problem,
    search: Search,
    engines: Sequence[Engine],
    executor: Executor,
    record: Callable[[Decided, int], None],
    monitor: Monitor,
    *,
    shards: Sequence[int] = (),
    max_seconds: float | None = None,
    one_by_one: bool = False,
) -> StopReason | None:
    """Run a search to its end, or until its time is up.

    Parameters
    ----------
    problem : Problem
        What to select from.
    search : Search
        At its start, or part of the way.
    engines : sequence of Engine
        The first is used until it cannot vouch for its numbers, then the next.
    executor : Executor
        Where tasks run.
    record : callable
        Called with every decided round, as soon as it is known, and the number of rounds left.
    monitor : Monitor
        Told about phases and changes of engine.
    shards : sequence of int
        How many shards each engine is divided into, if its axis is "folds"; one by default.
    max_seconds : float, optional
        No round is begun after so many seconds, except the first. Reading the rows counts.
    one_by_one : bool
        Whether `record` is called between any two rounds, in this process. Rounds that one task
        plays on a worker, of about a second, are told of together all the same.

    Returns
    -------
    str or None
        Why the search ended.

    Raises
    ------
    ScoringError
        A round in which no candidate has a score.
    """
    deadline = None if max_seconds is None else perf_counter() + max_seconds
    refusals: dict[str, str] = {}
    for number, engine in enumerate(engines):
        session = Session(
            engine,
            problem,
            executor,
            shards[number] if shards else 1,
            deadline=deadline,
            one_by_one=one_by_one,
        )
        if engine.name != engines[-1].name == "refit":
            session.referee = Session(engines[-1], problem, executor, 1)
        try:
            refusal = None
            while not search.finished and refusal is None:
                if deadline is not None and search.may_stop and perf_counter() >= deadline:
                    search.stop("time")
                    break
                search, refusal = _play(session, search, record, monitor)
        finally:
            session.close()
        if session.n_contests:
            monitor.note(_explain_contests(session.n_contests, engine.name))
        if refusal is None:
            break
        if number + 1 == len(engines):
            raise DagselError(_no_engine_left(engine.name, refusal))
        refusals[engine.name] = refusal
        _announce(refusals, engines[number + 1], monitor)
    return search.stop_reason


def audit_rounds(
    problem: Problem,
    rounds: Sequence[Round],
    n_rounds: int,
    executor: Executor,
    monitor: Monitor,
    search: Search,
) -> Audit:
    """Score decided rounds again by plain refits.

    Of each the winner, the runner-up and a few more candidates: all of them would take as long as
    what the fast engine avoids.

    Parameters
    ----------
    problem : Problem
        What was selected from.
    rounds : sequence of Round
        The path.
    n_rounds : int
        How many of them to audit.
    executor : Executor
        Where refits run.
    monitor : Monitor
        Told how far the audit has come.
    search : Search
        Which made them.
    """
    began = perf_counter()
    chosen = audited_rounds(len(rounds), n_rounds)
    session = Session(RefitEngine(), problem, executor, 1)
    largest, n_refits, overturned = 0.0, 0, []
    try:
        for position, number in enumerate(chosen):
            monitor.progress("rounds audited", position, len(chosen))
            done = rounds[number]
            request = _audit_request(done, rounds[number - 1] if number else None, search)
            table = session.score(request)
            n_refits += table.scores.size
            winner = 0
            if request.candidates:
                winner = request.candidates.index(done.move.feature)
                means = np.mean(table.scores, axis=1)
                allowed = max(done.move.rounding, table.rounding)
                if np.max(means) - means[winner] > allowed:
                    overturned.append(number)
            difference = relative_difference(done, table.scores[winner], problem.scoring.name)
            largest = max(largest, difference)
    finally:
        session.close()
    monitor.progress("rounds audited", len(chosen), len(chosen))
    return Audit(chosen, n_refits, largest, tuple(overturned), perf_counter() - began)


def _audit_request(done: Round, before: Round | None, search: Search) -> Request:
    """Ask for a round's winner, runner-up and some others; for its subset if it moved several."""
    move = done.move
    if move.feature is None or len(move.features) > 1:
        return Request(move.subset, ())
    parent = set(move.subset) ^ {move.feature} if before is None else set(before.move.subset)
    chosen = {move.feature}
    if move.runner_up is not None:
        chosen.add(move.runner_up)
    # The opposite moves of a floating search have candidates that the path does not tell.
    if not search.floating:
        side = parent if move.feature in parent else set(range(search.n_features)) - parent
        rest = sorted(side - chosen - set(search.fixed))
        n_more = min(len(rest), _AUDITED - len(chosen))
        chosen.update(rest[int(place)] for place in np.linspace(0, len(rest) - 1, n_more).round())
    return Request(tuple(sorted(parent)), tuple(sorted(chosen)))


def _explain_contests(n_contests: int, name: str) -> str:
    rounds = "one round was" if n_contests == 1 else f"{n_contests} rounds were"
    return f"{rounds} too close for the {name} engine to call and decided by refits"


def _announce(refusals: dict[str, str], successor: Engine, monitor: Monitor) -> None:
    """Say that another engine goes on; a warning only where it costs the user much time.

    The warning has the reasons of all engines that gave up: the first one may be the plainest.
    """
    *before, last = refusals
    refusal = refusals[last]
    end = "" if refusal.endswith("?") else "."
    if successor.name != "refit":
        monitor.note(f"{refusal}{end} The {successor.name} engine goes on.")
        return
    text = f"{refusal}{end} Candidates are scored by refits instead, which is slower."
    for name in before:
        text += f" (The {name} engine had given up because {refusals[name]})"
    monitor.note(text)
    warn(text)


def _play(
    session: Session, search: Search, record: Callable[[Decided, int], None], monitor: Monitor
) -> tuple[Search, str | None]:
    if not session.prepared:
        monitor.phase(f"preparing the {session.engine.name} engine")
    names = session.problem.table.names
    try:
        played = session.play_through_losses(search, monitor)
    except NotCertifiedError as error:
        return search, error.told(names)
    for position, (move, seconds) in enumerate(played.moves):
        ahead = len(played.moves) - position - 1
        record(Decided(move, seconds, session.engine.name), played.search.rounds_left() + ahead)
    if played.error is not None:
        raise _with_failures(played.error, played.failures)
    if played.failures and not session.told_failures:
        # Once: a column that fails to fit fails in every round.
        session.told_failures = True
        monitor.note(f"candidates that fail to fit or score are not chosen; {played.failures[0]}")
    if played.refusal is None:
        return played.search, None
    told = played.refusal.told(names)
    if isinstance(played.refusal, DriftedError) and session.refresh(played.search.subset):
        monitor.note(f"{told}. It is made anew from the rows.")
        return played.search, None
    return played.search, told


def _with_failures(error: ScoringError, failures: Sequence[str]) -> ScoringError:
    return ScoringError(f"{error} The first error was: {failures[0]}") if failures else error


def _no_engine_left(name: str, refusal: str) -> str:
    return (
        f"engine {name!r} cannot go on: {refusal}. Use engine='auto' or engine='refit', which "
        "refit the candidates; that needs the whole table in the memory of every worker."
    )
