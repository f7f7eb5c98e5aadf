"""Recursive elimination of one fold: the least important columns leave, step by step.

How a model on the remaining columns comes about is the business of an `Elimination`: a tableau that
is swept (`dagsel.engines.paths.tableau`), or a refit (`dagsel.engines.paths.refit`). What leaves is
decided here, by the same rule for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dagsel.exceptions import NotCertifiedError

# Importances are equal if they differ by no more than the first, relatively; and all are nothing
# that are smaller than the second, relative to the greatest: of a coefficient, 1e-10.
_EQUAL = 1e-9
_NOTHING = 1e-20

__all__ = [
    "Elimination",
    "EliminationPath",
    "Importances",
    "Score",
    "eliminate",
    "least_important",
    "squared",
    "step_sizes",
]


class Importances(NamedTuple):
    """How much each remaining column matters.

    Attributes
    ----------
    values : ndarray of shape (m,)
        Of the remaining columns, ascending; not negative, not NaN.
    rounding : ndarray of shape (m,)
        By how much each can be wrong.
    """

    values: NDArray[np.float64]
    rounding: NDArray[np.float64]


class Score(NamedTuple):
    """Score of a model on the test rows of its fold, and by how much it can be wrong."""

    value: float
    rounding: float


class Elimination(Protocol):
    """A fold's model on the columns that remain."""

    def importances(self) -> Importances:
        """Return the importances of the remaining columns, in ascending order of the columns."""
        ...

    def score(self) -> Score:
        """Score the model on the fold's test rows."""
        ...

    def remove(self, columns: Sequence[int]) -> None:
        """Let columns of the table, all of which remain, leave the model."""
        ...


@dataclass(frozen=True)
class EliminationPath:
    """What left, and when.

    Attributes
    ----------
    n_columns : int
        Columns at the start.
    removed : tuple of ndarray of int
        Columns that left in each step, ascending.
    scores : tuple of Score
        Of the model before each step and after the last; empty if not asked for.
    engine : str
        What the importances came from.
    seconds : float
        Wall-clock time.
    """

    n_columns: int
    removed: tuple[NDArray[np.intp], ...]
    scores: tuple[Score, ...]
    engine: str
    seconds: float

    @property
    def sizes(self) -> NDArray[np.intp]:
        """Numbers of columns, before each step and after the last; descending."""
        gone = np.cumsum([0, *map(len, self.removed)])
        return np.asarray(self.n_columns - gone, dtype=np.intp)

    def support(self) -> NDArray[np.bool_]:
        """Return the mask of the columns that remain at the end."""
        mask = np.ones(self.n_columns, dtype=np.bool_)
        for columns in self.removed:
            mask[columns] = False
        return mask

    def ranking(self) -> NDArray[np.int64]:
        """Return the ranks: 1 for the columns that remain, the more the earlier one left."""
        ranks = np.ones(self.n_columns, dtype=np.int64)
        for later, columns in enumerate(reversed(self.removed)):
            ranks[columns] = later + 2
        return ranks

    def until(self, size: int) -> EliminationPath:
        """Return the part of the path that ends at a size, which is one of `sizes`."""
        n_steps = int(np.flatnonzero(self.sizes == size)[0])
        return replace(self, removed=self.removed[:n_steps], scores=self.scores[: n_steps + 1])


def step_sizes(n_columns: int, target: int, step: int) -> list[int]:
    """Return the numbers of columns on the way from all of them to `target`, in steps."""
    sizes = list(range(n_columns, target, -step))
    return [*sizes, target] if target < n_columns else [n_columns]


def squared(coefficients: NDArray[np.float64], errors: NDArray[np.float64] | float) -> Importances:
    """Return the importances of linear models: squared coefficients, summed over targets.

    Parameters
    ----------
    coefficients : ndarray of shape (m, T)
        One row a column.
    errors : ndarray of shape (m, T), or float
        By how much each can be wrong.
    """
    with np.errstate(over="ignore"):
        values = np.sum(coefficients**2, axis=1)
        rounding = np.sum((2 * np.abs(coefficients) + errors) * errors, axis=1)
    return Importances(values, rounding)


def least_important(
    importances: Importances, n: int, protected: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Return the positions of the `n` least important columns, ascending.

    Where rounding does not tell apart which of several columns is the last to be taken, those of
    the lowest index are.

    Parameters
    ----------
    importances : Importances
        Of m columns.
    n : int
        At least 1, and at most the number of columns that are not protected.
    protected : ndarray of bool of shape (m,)
        Columns that stay whatever their importance.

    Raises
    ------
    NotCertifiedError
        If rounding is so large that it decides.
    """
    values, rounding = importances
    free = np.flatnonzero(~protected)
    last = free[np.argpartition(values[free], n - 1)[n - 1]]
    below = values[free] + rounding[free] < values[last] - rounding[last]
    near = ~below & (values[free] - rounding[free] <= values[last] + rounding[last])
    certain = free[below]
    if np.count_nonzero(near) > n - len(certain):
        _check_tie(values, rounding, free[near], last)
    return np.sort(np.concatenate([certain, free[near][: n - len(certain)]]))


def _check_tie(
    values: NDArray[np.float64], rounding: NDArray[np.float64], tied: NDArray[np.intp], last: int
) -> None:
    """Make sure that importances which cannot be told apart are equal, and not just unknown."""
    differ = np.abs(values[tied] - values[last]) > _EQUAL * values[last]
    # Next to the greatest importance they may all be nothing.
    unknown = rounding[tied] > _NOTHING * np.max(values)
    if np.any(differ & unknown):
        column = int(tied[np.argmax(differ & unknown)])
        msg = (
            "the coefficients of several columns differ by less than the rounding that they can "
            f"have (position {column} of those left, by {rounding[column]:.0e} of its square), so "
            "that it cannot be told which of them is least important"
        )
        raise NotCertifiedError(msg)


def eliminate(
    elimination: Elimination,
    sizes: Sequence[int],
    fixed: Iterable[int],
    *,
    scored: bool,
    engine: str,
) -> EliminationPath:
    """Remove the least important columns until the last size is reached.

    Parameters
    ----------
    elimination : Elimination
        With all ``sizes[0]`` columns.
    sizes : sequence of int
        As from `step_sizes`.
    fixed : iterable of int
        Columns that stay.
    scored : bool
        Whether to score every size.
    engine : str
        Its name.
    """
    began = perf_counter()
    columns = np.arange(sizes[0])
    protected = np.zeros(sizes[0], dtype=np.bool_)
    protected[list(fixed)] = True
    removed: list[NDArray[np.intp]] = []
    scores: list[Score] = []
    for before, after in pairwise(sizes):
        if scored:
            scores.append(elimination.score())
        out = least_important(elimination.importances(), before - after, protected[columns])
        removed.append(columns[out])
        elimination.remove(columns[out].tolist())
        columns = np.delete(columns, out)
    if scored:
        scores.append(elimination.score())
    return EliminationPath(sizes[0], tuple(removed), tuple(scores), engine, perf_counter() - began)
