"""Recursive elimination of linear least-squares models: the path of a fold without a refit.

The engines that score such models keep, for every fold, a state from which the coefficients on the
remaining columns can be read. What is known of them here is that they make these states (`prepare`,
`open`), carry them from one set of columns to another (`moved`), and say what they can vouch for
(`score`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from dagsel.engines.base import Cost, Engine, Executor, Problem
from dagsel.engines.linear_model import final_step, linear_model
from dagsel.engines.paths.elimination import (
    EliminationPath,
    Importances,
    Score,
    eliminate,
    squared,
)
from dagsel.engines.paths.refit import ImportanceGetter
from dagsel.search import Request, Search

__all__ = ["Floats", "LinearElimination", "linear_path"]

Floats = NDArray[np.float64]


class LinearElimination(ABC):
    """The model of one fold on the columns that remain, carried by an engine's state.

    Parameters
    ----------
    engine : Engine
        Of the problem.
    resident : sequence
        Resident data of a shard that is this fold alone.
    scored : bool
        Whether sizes are scored, which certifies them.
    """

    engine_class: ClassVar[Any]

    def __init__(self, engine: Any, resident: Sequence[Any], *, scored: bool) -> None:
        self._engine = engine
        self._state: Any = engine.open(resident)
        self._columns = np.arange(engine.n_columns)
        self._scored = scored

    @classmethod
    def declines(cls, problem: Problem, getter: ImportanceGetter) -> str | None:
        """Say why a problem has no paths of this kind; `None` if it has, data permitting."""
        model = linear_model(problem.estimator)
        if isinstance(model, str):
            return model
        if getter not in _coefficient_names(problem):
            return f"importance_getter={getter!r} is not the coefficients"
        why: str | None = cls.engine_class.declines(problem)
        return why

    @classmethod
    def refuses(cls, problem: Problem) -> str | None:
        """Say why they cannot be had for a problem that has them, as far as sizes tell."""
        why: str | None = cls.engine_class.refuses(problem)
        return why

    @classmethod
    def cost(cls, problem: Problem, executor: Executor) -> Cost:
        """Say what must be resident; see `Engine.cost`."""
        cost: Cost = cls.engine_class.cost(problem, _search(problem, 1), executor)
        return cost

    @classmethod
    def engine_for(cls, problem: Problem, target_size: int) -> Engine:
        """Return the engine that makes and moves the states of a problem."""
        engine: Engine = cls.engine_class.for_problem(problem, _search(problem, target_size))
        return engine

    @abstractmethod
    def coefficients(self) -> tuple[Floats, Floats]:
        """Return the coefficients of the remaining columns, and by how much each can be wrong.

        Returns
        -------
        coefficients, errors : ndarray of shape (m, T)
            In the units that the estimator sees.
        """

    @abstractmethod
    def remove(self, columns: Sequence[int]) -> None:
        """See `Elimination.remove`.

        Raises
        ------
        NotCertifiedError
            If columns are so nearly dependent that it is not certain what a removal does.
        """

    def importances(self) -> Importances:
        """See `Elimination.importances`."""
        return squared(*self.coefficients())

    def score(self) -> Score:
        """See `Elimination.score`."""
        table = self._engine.score(self._state, Request(self._subset, ()))
        return Score(float(table.scores[0, 0]), float(table.rounding))

    def _move(self, columns: Sequence[int]) -> None:
        self._columns = self._columns[~np.isin(self._columns, columns)]
        self._state = self._engine.moved(self._state, self._subset)
        assert self._state is not None, "removals need nothing that has left the state"

    @property
    def _subset(self) -> tuple[int, ...]:
        return tuple(self._columns.tolist())


def _coefficient_names(problem: Problem) -> tuple[str, ...]:
    """Return how the coefficients of the estimator can be asked for."""
    if not isinstance(problem.estimator, Pipeline):
        return ("auto", "coef_")
    prefix, _ = final_step(problem.estimator)
    return (f"named_steps.{prefix.removesuffix('__')}.coef_",)


def _search(problem: Problem, target_size: int) -> Search:
    return Search(problem.table.n_columns, target_size=target_size, direction="backward")


def linear_path(
    kind: type[LinearElimination],
    engine: Engine,
    resident: Sequence[Any],
    sizes: Sequence[int],
    fixed: Sequence[int],
    scored: bool,
) -> EliminationPath:
    """Play the whole elimination of a fold; see `eliminate`.

    Raises
    ------
    NotCertifiedError
        If a number could be wrong by more than rounding.
    """
    elimination = kind(engine, resident, scored=scored)
    return eliminate(elimination, sizes, fixed, scored=scored, engine=engine.name)
