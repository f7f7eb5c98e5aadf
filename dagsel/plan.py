"""Which engine, which axis, how many shards, and what it will cost; known before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dagsel.engines.base import Axis, Cost, Engine, Executor, Problem
from dagsel.engines.refit import RefitEngine
from dagsel.engines.registry import ENGINE_NAMES, EngineName, engine_classes
from dagsel.exceptions import DagselError
from dagsel.search import Search

__all__ = ["Plan", "make_plan", "refits_fit", "shortfall", "workers"]


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes
    ----------
    engines : tuple of Engine
        The one that is used, then those that take over if it cannot vouch for its numbers.
    reason : str
        Why this engine.
    axis : str
        What the work is divided along.
    shards : tuple of int
        Pieces that the resident data of each engine are divided into.
    n_workers : int
        Workers at the time of planning.
    in_process : bool
        Whether there is no cluster.
    n_rows, n_columns, n_folds : int
        Size of the problem.
    n_candidates, n_rounds : int
        Subsets to be scored and rounds to be decided; estimates for floating search and `tol`.
    resident_bytes : int
        Bytes of resident data and states, summed over workers.
    data_bytes : int
        Bytes of the feature matrix in double precision.
    operations : float
        Estimated floating point operations; NaN where the engine cannot tell.
    warning : str or None
        What to tell the user before the run begins.
    """

    engines: tuple[Engine, ...] = field(repr=False)
    reason: str
    axis: Axis
    shards: tuple[int, ...]
    n_workers: int
    in_process: bool
    n_rows: int
    n_columns: int
    n_folds: int
    n_candidates: int
    n_rounds: int
    resident_bytes: int
    data_bytes: int
    operations: float
    warning: str | None = None

    @property
    def n_shards(self) -> int:
        """Pieces that the resident data of the first engine are divided into."""
        return self.shards[0]

    @property
    def engine(self) -> str:
        """Name of the engine that is used first."""
        return self.engines[0].name

    def to_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return {
            "engine": self.engine,
            "reason": self.reason,
            "falls back to": [engine.name for engine in self.engines[1:]],
            "axis": self.axis,
            "shards": self.n_shards,
            "where": "in process" if self.in_process else f"cluster of {workers(self.n_workers)}",
            "rows": self.n_rows,
            "columns": self.n_columns,
            "folds": self.n_folds,
            "rounds": self.n_rounds,
            "candidates": self.n_candidates,
            "refits avoided" if self.engine != "refit" else "refits": self.n_candidates
            * self.n_folds,
            "data": _bytes(self.data_bytes),
            "resident": _bytes(self.resident_bytes),
            "operations": "unknown" if math.isnan(self.operations) else f"{self.operations:.2g}",
        }

    def __str__(self) -> str:
        """Return one line a figure."""
        rows = self.to_dict()
        width = max(map(len, rows))
        return "\n".join(
            f"{name:<{width}}  {', '.join(value) if isinstance(value, list) else value}"
            for name, value in rows.items()
            if value != []
        )


def workers(number: int) -> str:
    """Return so many workers in words."""
    return f"{number} worker{'' if number == 1 else 's'}"


def make_plan(
    problem: Problem,
    search: Search,
    executor: Executor,
    *,
    engine: EngineName = "auto",
    memory_per_worker: int | None = None,
) -> Plan:
    """Choose an engine and say what the run will cost.

    Parameters
    ----------
    problem : Problem
        What to select from.
    search : Search
        At its start.
    executor : Executor
        Where it will run.
    engine : {"auto", "moments", "rows", "refit"}
        The fastest one that gives the refits' scores, or one by name.
    memory_per_worker : int, optional
        Bytes that a worker can use; no check is made without it.

    Raises
    ------
    ValueError
        If the named engine does not cover the problem.
    DagselError
        If what must be resident does not fit.
    """
    if engine not in ENGINE_NAMES:
        msg = f"engine must be one of {', '.join(ENGINE_NAMES)}; got {engine!r}"
        raise ValueError(msg)
    verdicts = [
        _verdict(kind, problem, search, executor, memory_per_worker) for kind in engine_classes()
    ]
    if engine != "auto":
        verdict = next(each for each in verdicts if each.kind.name == engine)
        if verdict.why_not is not None:
            msg = f"engine={engine!r} cannot score this: {verdict.why_not}. Use engine='auto'"
            raise ValueError(msg)
        return _plan(problem, search, executor, [verdict], "asked for")
    able = _in_order(problem, [each for each in verdicts if each.why_not is None])
    main = next((each for each in able if each.too_large is None), None)
    if main is None:
        raise DagselError(able[0].too_large or "no engine applies")
    passed = [each for each in verdicts[: verdicts.index(main)] if each.why_not is not None]
    passed += [each for each in able[: able.index(main)] if each.too_large is not None]
    reason = _why_not(passed)
    reason = f"{main.kind.summary} ({reason})" if reason else main.kind.summary
    plan = _plan(problem, search, executor, able[able.index(main) :], reason)
    refused = next((each.refused or each.too_large for each in passed if not each.declined), None)
    # Where data or memory stand in the way of the fast engines, users want to know and to mend it.
    if refused is None or main.kind.name != "refit":
        return plan
    return replace(plan, warning=f"{refused}; candidates are scored by refits, which is slower.")


def refits_fit(
    problem: Problem, search: Search, executor: Executor, memory_per_worker: int | None
) -> bool:
    """Tell whether the table fits where refits need it."""
    return (
        shortfall(RefitEngine.cost(problem, search, executor), executor, memory_per_worker) is None
    )


def shortfall(cost: Cost, executor: Executor, memory_per_worker: int | None) -> str | None:
    """Say that what must be resident does not fit, and what to do; `None` if it fits."""
    if memory_per_worker is None or _shards_that_fit(cost, executor, memory_per_worker):
        return None
    return _explain_size(cost, executor, memory_per_worker)


class _Verdict(NamedTuple):
    """What an engine says of a problem, and what it costs where it applies."""

    kind: type[Engine]
    declined: str | None
    refused: str | None
    cost: Cost | None = None
    n_shards: int | None = None
    too_large: str | None = None

    @property
    def why_not(self) -> str | None:
        return self.declined or self.refused


def _verdict(
    kind: type[Engine], problem: Problem, search: Search, executor: Executor, memory: int | None
) -> _Verdict:
    declined = kind.declines(problem)
    refused = None if declined else kind.refuses(problem)
    if declined or refused:
        return _Verdict(kind, declined, refused)
    cost = kind.cost(problem, search, executor)
    n_shards = _shards_that_fit(cost, executor, memory)
    too_large = None if n_shards else _explain_size(cost, executor, memory or 0)
    return _Verdict(kind, None, None, cost, n_shards, too_large)


def _in_order(problem: Problem, able: Sequence[_Verdict]) -> list[_Verdict]:
    """Order engines as the registry does, but first those that have one state for all folds.

    As for leave-one-out: others have a state for every row.
    """

    def later(verdict: _Verdict) -> bool:
        cost = verdict.cost
        assert cost is not None, "engines that apply have a cost"
        one_state = cost.n_pieces == 1 and problem.folds.n_folds > 1
        return not one_state or math.isnan(cost.operations)  # refits have the table, and no state

    return sorted(able, key=later)


def _why_not(passed: Sequence[_Verdict]) -> str:
    """Say why engines are passed over; what holds for several of them is said once."""
    names: dict[str | None, list[str]] = {}
    for each in passed:
        names.setdefault(each.why_not or each.too_large, []).append(each.kind.name)
    return "; ".join(f"not {' or '.join(those)}, because {why}" for why, those in names.items())


def _plan(
    problem: Problem,
    search: Search,
    executor: Executor,
    able: Sequence[_Verdict],
    reason: str,
) -> Plan:
    """Plan with those of the engines that fit into memory."""
    fitting = [each for each in able if each.too_large is None]
    if not fitting:
        raise DagselError(able[0].too_large or "no engine applies")
    cost = fitting[0].cost
    assert cost is not None, "engines that apply have a cost"
    engines = tuple(each.kind.for_problem(problem, search) for each in fitting)
    copies = 1 if executor.in_process else executor.n_workers
    return Plan(
        engines=engines,
        reason=reason,
        shards=tuple(each.n_shards or 1 for each in fitting),
        resident_bytes=cost.piece_bytes * cost.n_pieces + cost.everywhere_bytes * copies,
        operations=cost.operations,
        **_size(problem, search, executor, engines[0]),
    )


def _shards_that_fit(cost: Cost, executor: Executor, memory: int | None) -> int | None:
    """Return how many shards the resident data must be divided into; `None` if none will do."""
    if memory is None:
        return 1
    room = memory - cost.everywhere_bytes
    if room < 0:
        return None
    if cost.piece_bytes * cost.n_pieces <= room:
        return 1
    pieces_per_worker = room // cost.piece_bytes
    if executor.in_process or not pieces_per_worker:
        return None
    n_shards = math.ceil(cost.n_pieces / pieces_per_worker)
    return n_shards if n_shards <= min(cost.n_pieces, executor.n_workers) else None


def _explain_size(cost: Cost, executor: Executor, memory: int) -> str:
    total = cost.piece_bytes * cost.n_pieces + cost.everywhere_bytes
    n_workers = executor.n_workers
    where = "the worker" if n_workers == 1 else f"each of {n_workers} workers"
    where = "this process" if executor.in_process else where
    each = f" ({_bytes(cost.piece_bytes)} a piece)" if cost.n_pieces > 1 else ""
    return (
        f"{cost.what} need {_bytes(total)}{each}, but {where} has {_bytes(memory)}: {cost.remedy}"
    )


def _size(problem: Problem, search: Search, executor: Executor, engine: Engine) -> dict[str, Any]:
    return {
        "axis": engine.axis,
        "n_workers": executor.n_workers,
        "in_process": executor.in_process,
        "n_rows": problem.table.n_rows,
        "n_columns": problem.table.n_columns,
        "n_folds": problem.folds.n_folds,
        "n_candidates": search.candidates_left(),
        "n_rounds": search.rounds_left(),
        "data_bytes": problem.table.nbytes,
    }


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
