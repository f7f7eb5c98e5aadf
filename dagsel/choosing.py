"""Choosing from a table of scores: which candidates are best, by rule where they are tied."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.moves import Request

__all__ = ["MeanScore", "Picked", "checked_table", "explain_no_score", "pick_in_order"]


class MeanScore(NamedTuple):
    """A mean score and the size of the error it may carry."""

    mean: float
    rounding: float

    def lead(self, other: MeanScore) -> float:
        """How much greater this score is, less what rounding could account for."""
        return self.mean - other.mean - max(self.rounding, other.rounding)

    def beats(self, other: MeanScore) -> bool:
        """Whether this score is greater, and not by rounding only."""
        return self.lead(other) > 0.0


class Picked(NamedTuple):
    """A row of the table, and the rows tied with it when it was picked, itself among them."""

    row: int
    tied: list[int]


def pick_in_order(
    means: NDArray[np.float64], rounding: float, count: int, *, last: bool
) -> list[Picked]:
    """Return the best rows of a table, best first.

    Parameters
    ----------
    means : ndarray of shape (n_candidates,)
        NaN: never picked.
    rounding : float
        Means within this of the best of those not yet picked are tied.
    count : int
        How many rows to pick; fewer are returned where the others have no score.
    last : bool
        Of tied rows pick the last, not the first.
    """
    left = means.copy()
    picked: list[Picked] = []
    while len(picked) < count:
        usable = left[~np.isnan(left)]
        if not usable.size:
            break
        tied = np.flatnonzero(left >= usable.max() - rounding).tolist()
        picked.append(Picked(tied[-1] if last else tied[0], tied))
        left[picked[-1].row] = np.nan
    return picked


def checked_table(scores: NDArray[Any], request: Request) -> NDArray[np.float64]:
    """Return scores as a contiguous table of float.

    Raises
    ------
    ValueError
        If it has another shape than the request asks for.
    """
    # Contiguous, so that a row is summed in the same order whatever the layout it came in.
    table = np.ascontiguousarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != request.n_rows or not table.shape[1]:
        msg = (
            f"the score table must have shape ({request.n_rows}, n_folds) for "
            f"{len(request.candidates)} candidates; got {np.shape(scores)}"
        )
        raise ValueError(msg)
    return table


def explain_no_score(table: NDArray[np.float64], request: Request) -> str:
    """Say in which folds a table without any mean score has none, and what to do."""
    missing = np.isnan(table)
    folds = np.flatnonzero(missing.all(axis=0)).tolist()
    if not folds:
        folds = np.flatnonzero(missing.any(axis=0)).tolist()
    if folds:
        where = f"NaN in fold{'s' if len(folds) > 1 else ''} {', '.join(map(str, folds))}"
    else:
        where = "infinite in folds with opposite signs, so it has no mean"
    if request.candidates:
        verb = "removing from" if request.candidates[0] in request.subset else "adding to"
        what = f"each of the {len(request.candidates)} candidates for {verb} the subset"
    else:
        what = "the starting subset"
    return (
        f"no usable score: {what} ({len(request.subset)} of the features) is {where} "
        f"(folds are counted from 0, of {table.shape[1]}). Fit and score the estimator on such a "
        "subset and fold by itself to see why; usual reasons are a fold whose test rows hold one "
        "class or one row, values that overflow, and an estimator that failed to fit. Change the "
        "folds (cv), the scoring or the data."
    )
