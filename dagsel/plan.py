"""Which engine, which axis, how many shards, and what it will cost; known before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dagsel.engines.base import Axis, Engine, Executor, Problem
from dagsel.engines.moments import MomentsEngine
from dagsel.engines.refit import RefitEngine
from dagsel.exceptions import DagselError
from dagsel.search import Search

__all__ = ["EngineName", "Plan", "make_plan"]

EngineName = Literal["auto", "moments", "refit"]
ENGINES: tuple[EngineName, ...] = ("auto", "moments", "refit")


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
    n_shards : int
        Pieces that the resident data are divided into.
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
    n_shards: int
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
            "where": "in process" if self.in_process else f"cluster of {self.n_workers} workers",
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
    engine : {"auto", "moments", "refit"}
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
    if engine not in ENGINES:
        msg = f"engine must be one of {', '.join(ENGINES)}; got {engine!r}"
        raise ValueError(msg)
    declined = MomentsEngine.declines(problem)
    refused = MomentsEngine.refuses(problem) if declined is None else None
    why = declined or refused
    if engine == "moments" and why is not None:
        msg = f"engine='moments' cannot score this: {why}. Use engine='auto'"
        raise ValueError(msg)
    if engine == "refit":
        return _refit_plan(problem, search, executor, "asked for", memory_per_worker)
    if why is not None:
        reason = f"{why}; candidates are scored by refits"
        plan = _refit_plan(problem, search, executor, reason, memory_per_worker)
        # Where the data stand in the way of the fast engine, users want to know and to mend it.
        return plan if refused is None else replace(plan, warning=f"{reason}, which is slower.")
    return _moments_plan(
        problem, search, executor, fallback=engine == "auto", memory=memory_per_worker
    )


def _moments_plan(
    problem: Problem, search: Search, executor: Executor, *, fallback: bool, memory: int | None
) -> Plan:
    n_folds, p = problem.folds.n_folds, problem.table.n_columns
    # Swept matrix and test Gram of every fold, and while they are made the moments of its rows. On
    # a cluster the first two exist twice: as made, and as carried on.
    per_fold = (3 if executor.in_process else 4) * 8 * p * p
    n_shards = _shards_that_fit(per_fold, n_folds, executor, memory)
    n_passes = len(problem.folds.layers)
    moments = 2.0 * problem.table.n_rows * p * p * n_passes
    sizes = range(min(search.target_size, p), p + 1)
    sweeps = n_folds * sum(6.0 * m * m for m in sizes)
    main = MomentsEngine.for_problem(problem, search)
    fallback = fallback and _refits_do_not_fit(problem, executor, memory) is None
    engines: tuple[Engine, ...] = (main, RefitEngine()) if fallback else (main,)
    return Plan(
        engines=engines,
        reason="least squares scored from one pass over the rows, no refits",
        n_shards=n_shards,
        resident_bytes=per_fold * n_folds,
        operations=moments + n_folds * 5.0 * p**3 + sweeps,
        **_size(problem, search, executor, main),
    )


def _shards_that_fit(per_fold: int, n_folds: int, executor: Executor, memory: int | None) -> int:
    if memory is None or per_fold * n_folds <= memory:
        return 1
    folds_per_worker = memory // per_fold
    n_shards = math.ceil(n_folds / folds_per_worker) if folds_per_worker else n_folds + 1
    if executor.in_process or n_shards > min(n_folds, executor.n_workers):
        msg = (
            f"the moments of {n_folds} folds need {_bytes(per_fold * n_folds)} "
            f"({_bytes(per_fold)} a fold), but there are {executor.n_workers} workers of "
            f"{_bytes(memory)}: use more workers or memory, fewer folds or fewer columns"
        )
        raise DagselError(msg)
    return n_shards


def _refit_plan(
    problem: Problem, search: Search, executor: Executor, reason: str, memory: int | None
) -> Plan:
    engine = RefitEngine()
    too_large = _refits_do_not_fit(problem, executor, memory)
    if too_large is not None:
        msg = f"{reason}, but {too_large}"
        raise DagselError(msg)
    copies = 1 if executor.in_process else executor.n_workers
    return Plan(
        engines=(engine,),
        reason=reason,
        n_shards=1,
        resident_bytes=problem.table.nbytes * copies,
        operations=math.nan,
        **_size(problem, search, executor, engine),
    )


def _refits_do_not_fit(problem: Problem, executor: Executor, memory: int | None) -> str | None:
    """Say why a worker cannot hold the table that refits need; `None` if it can."""
    there_already = executor.in_process and problem.table.native is not None
    if memory is None or there_already or problem.table.nbytes <= memory:
        return None
    return (
        f"refits need the whole table of {_bytes(problem.table.nbytes)} in the memory of every "
        f"worker, which is {_bytes(memory)}: use workers with more memory, or fewer rows or columns"
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
