"""Rounds that a fast engine leaves undecided: who contends, and what refits make of it.

A fast engine says how far its mean scores can be off. Candidates nearer to the best than that could
each be the one that refits would choose. Where they are equal to the last digits that refits
themselves have, it is a tie, which the search breaks by rule. Otherwise the contenders, and only
they, are scored by refits, whose scores decide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dagsel.engines.base import ScoreTable
from dagsel.engines.refit import tie_width
from dagsel.moves import Request

__all__ = ["contenders", "contest", "resolved"]


def contenders(table: ScoreTable) -> NDArray[np.intp]:
    """Return the rows of a score table between which its engine cannot decide.

    Parameters
    ----------
    table : ScoreTable
        Of a round.

    Returns
    -------
    ndarray of int
        Ascending; none if there is one winner, or if those who could win are tied for refits too.
    """
    none = np.empty(0, dtype=np.intp)
    means = np.mean(table.scores, axis=1)
    usable = np.isfinite(means)
    tie = tie_width(table.scores)
    if len(means) < 2 or not usable.any() or not table.rounding > tie:
        return none
    behind = np.where(usable, np.max(means[usable]) - means, np.inf)
    near = np.flatnonzero(behind <= table.rounding)
    return near if np.any(behind[near] > tie) else none


def contest(request: Request, rows: NDArray[np.intp]) -> Request:
    """Return the request for the contenders alone."""
    return replace(request, candidates=tuple(request.candidates[row] for row in rows))


def resolved(table: ScoreTable, rows: NDArray[np.intp], refits: ScoreTable) -> ScoreTable:
    """Return a score table in which the contenders have the scores of refits."""
    scores = table.scores.copy()
    scores[rows] = refits.scores
    return ScoreTable(scores, refits.rounding, refits.failures)
