"""The functions that run on workers, and the states that workers keep between them.

A task is a function of its arguments alone. The states here only make it cheap: a task that finds
the state its predecessor left carries on from it, one that does not makes it anew from the
resident data. A task takes a state out before it works on it, so two tasks never share one.
"""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from dagsel.contest import contenders
from dagsel.engines.base import Engine, ScoreTable
from dagsel.exceptions import NotCertifiedError, ScoringError
from dagsel.search import Move, Request, Search

__all__ = ["Lease", "Played", "StateKey", "forget", "holds", "play_rounds", "score_request"]


class StateKey(NamedTuple):
    """Whose state: the run's and the shard's."""

    run: str
    shard: int


_states: dict[StateKey, Any] = {}
# Runs that have ended while a task of theirs was at work: it must leave no state behind.
_ended: deque[str] = deque(maxlen=256)


def forget(run: str) -> int:
    """Drop the states of a run that has ended; return how many there were."""
    _ended.append(run)
    return _drop(run)


class Lease:
    """Lets a process keep the states of a run, for as long as it has one.

    It travels with every task, so that all workers that keep states have one. When the run lets go
    of it, or the process that runs it is gone, Dask drops it from the workers, and the states go.

    Parameters
    ----------
    run : str
        The run's name.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        # It dies after the task that it came with: no task puts back a state afterwards.
        weakref.finalize(self, _drop, run).atexit = False

    def __reduce__(self) -> tuple[type[Lease], tuple[str]]:
        return Lease, (self.run,)


def _drop(run: str) -> int:
    """Drop the states of a run; return how many there were."""
    keys = [key for key in list(_states) if key.run == run]
    return sum(_states.pop(key, None) is not None for key in keys)


def holds(key: StateKey) -> bool:
    """Tell whether this process keeps a state for `key`."""
    return key in _states


def _state_for(engine: Engine, resident: Any, key: StateKey, subset: tuple[int, ...]) -> Any:
    held = _states.pop(key, None)
    state = None if held is None else engine.moved(held, subset)
    if state is not None:
        return state
    if resident is None:
        msg = "the state of a run in this process is gone, and what it was made from as well"
        raise RuntimeError(msg)
    return engine.moved(engine.open(resident), subset)


def score_request(
    engine: Engine,
    resident: Any,
    request: Request,
    key: StateKey | None,
    lease: Lease | None = None,
) -> ScoreTable:
    """Score one request; `key` is `None` where an engine has no state worth keeping."""
    del lease  # the caller has it until this ends
    if key is None:
        return engine.score(engine.open(resident), request)
    state = _state_for(engine, resident, key, request.subset)
    try:
        return engine.score(state, request)
    finally:
        if key.run not in _ended:
            _states[key] = state


@dataclass
class Played:
    """Rounds played in one task.

    Attributes
    ----------
    search : Search
        As it is after them.
    moves : list of (Move, float)
        Decided rounds, and the seconds each took.
    refusal : NotCertifiedError or None
        Why the engine could not vouch for the next round, if it could not.
    error : ScoringError or None
        What ended the search before its time.
    failures : tuple of str
        Texts of errors behind NaN scores.
    n_answered : int
        Requests answered; not every answer is a move.
    contested : ScoreTable or None
        Scores of the next round, if the engine cannot decide between candidates.
    """

    search: Search
    moves: list[tuple[Move, float]]
    refusal: NotCertifiedError | None = None
    error: ScoringError | None = None
    failures: tuple[str, ...] = ()
    n_answered: int = 0
    contested: ScoreTable | None = None


def play_rounds(
    engine: Engine,
    resident: Any,
    search: Search,
    n_requests: int,
    key: StateKey,
    has_referee: bool = False,
    lease: Lease | None = None,
) -> Played:
    """Answer up to `n_requests` requests of a search, and end its round, where the data are.

    The number of requests is an argument and not a time limit, so that a task that Dask runs a
    second time returns the same. With a referee, a round that the engine cannot decide is left to
    it.
    """
    del lease  # the caller has it until this ends
    # In process the caller's object would be changed by a task that is then interrupted.
    search = pickle.loads(pickle.dumps(search))
    played = Played(search, [])
    began = perf_counter()
    # A move of several features takes two requests: none is left half done.
    while played.n_answered < n_requests or search.mid_round:
        if not search.mid_round:
            began = perf_counter()
        request = search.request()
        if request is None or key.run in _ended:
            break
        try:
            table = score_request(engine, resident, request, key)
        except NotCertifiedError as error:
            played.refusal = error
            break
        if has_referee and len(contenders(table)):
            played.contested = table
            break
        try:
            move = search.answer(table.scores, table.rounding)
        except ScoringError as error:
            # Returned and not raised, so that the rounds decided before it are not lost.
            played.error = error
            break
        played.n_answered += 1
        if move is not None:
            played.moves.append((move, perf_counter() - began))
    return played
