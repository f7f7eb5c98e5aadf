"""Scores by a criterion from the tableau of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import EPSILON, namespace, to_device_of, to_host
from dagsel.criterion import Criterion
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR, TINY, explain_cutoff
from dagsel.engines.base import ScoreTable
from dagsel.engines.criteria.scores import Fits, RowFacts, criterion_scores
from dagsel.engines.moments.fold_start import FullFit
from dagsel.engines.moments.part_errors import Candidates, part_errors
from dagsel.engines.moments.tableau_part import Part, growth_of
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.nullspace import NullSpace, nullity, redundancy
from dagsel.kernels.tableau import Tableau, current_rows

__all__ = ["CriterionFacts", "score_by_criterion", "with_full_model"]

# Between what `part_errors` takes for dependent and what it takes for independent; it refuses
# what is in between.
_REDUNDANT, _DEPENDENT = 1e-13, 1e-8
# Columns have unit length, so pivots of those in the basis are -1 or less; of others they are what
# is left of the squared length, which rounding can make a little less than 0.
_BASIC = -0.5
# What is left of the squared length of a column that depends on others, and of one that does not.
_NOTHING, _SOMETHING = 3e-14, 1e-6


@dataclass(frozen=True)
class CriterionFacts:
    """What scores by a criterion need besides the tableau.

    Attributes
    ----------
    criterion : Criterion
        Which.
    rows : RowFacts
        Of the rows; with the variance of the full model where the criterion asks for it.
    constant : ndarray of bool of shape (n_columns,)
        Columns that are constant: the rank of a model does not count them.
    spread : float
        Sum of squares of the target, or of what it is made from.
    """

    criterion: Criterion
    rows: RowFacts
    constant: NDArray[np.bool_]
    spread: float


def score_by_criterion(
    facts: CriterionFacts,
    part: Part,
    candidates: Sequence[tuple[int, ...]],
    active: NDArray[np.bool_],
    growth: float,
) -> ScoreTable:
    """Score a request; see `MomentsEngine.score`.

    Parameters
    ----------
    facts : CriterionFacts
        See there.
    part : Part
        Of the only fold, in which all rows are training and test rows.
    candidates : sequence of tuple of int
        Columns that move as one.
    active : ndarray of bool of shape (n_columns,)
        The columns in the model.
    growth : float
        Error of coefficients in ε at the start.

    Raises
    ------
    NotCertifiedError
        If sums of squared errors may not be right to 1e-9.
    """
    rank = float(np.count_nonzero(active & ~facts.constant))
    growth *= float(growth_of(part)[0])
    if part.null is not None:
        rank -= nullity(part.null)
        _check_dependence(part, active)
    if not candidates:
        now = part_errors(part, Candidates.of([]), active).errors[0, :, 0]
        fits = _fits(facts, now, np.array([rank]), growth)
        return ScoreTable(*criterion_scores(facts.criterion, facts.rows, fits))
    removal = bool(active[candidates[0][0]])
    single = all(len(columns) == 1 for columns in candidates)
    moves = (_single_moves if single else _group_moves)(facts, part, candidates, active)
    ranks = rank - moves.ranks if removal else rank + moves.ranks
    fits = _fits(facts, moves.errors, ranks, growth)
    doubt = 4 * EPSILON * growth * np.sqrt(facts.spread)
    scores, rounding = criterion_scores(
        facts.criterion,
        facts.rows,
        fits,
        current=_fits(facts, moves.current, np.array([rank]), growth),
        removal=removal,
        changes=moves.changes,
        change_doubts=doubt * (2 * np.sqrt(moves.terms) + doubt),
    )
    best = float(np.max(np.where(np.isfinite(scores), np.abs(scores), 0.0)))
    if facts.criterion.scores_moves and not rounding <= MAX_RELATIVE_ERROR * max(1.0, best):
        raise NotCertifiedError(_CONDITIONING)
    return ScoreTable(scores, rounding)


def _check_dependence(part: Part, active: NDArray[np.bool_]) -> None:
    """Make sure that the minimum-norm solution fits the rows as the one on the basis does.

    It does where columns are dependent, and not where they are only nearly so.
    """
    basic = float(to_host(part.tableau.errors)[0, 0])
    minimum_norm = float(part_errors(part, Candidates.of([]), active).errors[0, 0, 0])
    if not abs(minimum_norm - basic) <= MAX_RELATIVE_ERROR * abs(basic):
        raise NotCertifiedError(_CONDITIONING)


def with_full_model(rows: RowFacts, everything: FullFit, spread: float, growth: float) -> RowFacts:
    """Return the facts of the rows with the variance of the full model, if that is certain.

    Parameters
    ----------
    rows : RowFacts
        Without it.
    everything : FullFit
        The model on all columns.
    spread, growth : float
        See `CriterionFacts` and `score_by_criterion`.
    """
    _doubts(everything.errors[:1], spread, growth)
    return rows.with_full_model(float(everything.errors[0]), everything.rank)


def _fits(
    facts: CriterionFacts, errors: NDArray[np.float64], ranks: NDArray[np.float64], growth: float
) -> Fits:
    return Fits(errors, ranks, _doubts(errors, facts.spread, growth))


def _doubts(errors: NDArray[np.float64], spread: float, growth: float) -> NDArray[np.float64]:
    """Return by how much sums of squared errors can be wrong, if that is little."""
    conditioning = 4 * growth * np.sqrt(spread * np.maximum(errors, 0.0))
    closeness = 10 * spread
    doubts = TINY + EPSILON * (conditioning + closeness)
    smallest = int(np.argmin(errors))
    # Not `>`: what is not a number is not certain.
    if not doubts[smallest] <= MAX_RELATIVE_ERROR * errors[smallest]:
        raise NotCertifiedError(_CONDITIONING if conditioning[smallest] > closeness else _CLOSENESS)
    return doubts


_CONDITIONING = (
    "with columns as near to linearly dependent as these, the criterion would not be right to 1e-9 "
    "from moments"
)
_CLOSENESS = (
    "the model fits the rows almost exactly, so that its residual sum of squares from moments "
    "would be rounding noise; is the target, or a copy of it, among the features?"
)


class _Moves(NamedTuple):
    """What the candidates do to the residual sum of squares and the rank, each of shape (m,)."""

    current: NDArray[np.float64]  # (1,): the sum before
    errors: NDArray[np.float64]  # the sums after
    changes: NDArray[np.float64]  # by how much they differ, to all digits
    terms: NDArray[np.float64]  # what the changes are sums of
    ranks: NDArray[np.float64]  # by how much the rank changes


def _single_moves(
    facts: CriterionFacts,
    part: Part,
    candidates: Sequence[tuple[int, ...]],
    active: NDArray[np.bool_],
) -> _Moves:
    """Return what moves of one column do.

    With A the swept matrix, an active column's change is β²/W_jj = A_jy²/|A_jj|, and that of an
    inactive one as well: the squared product of its residual with the target's, over its length.
    """
    xp = namespace(part.tableau.pivots)
    columns = [each[0] for each in candidates]
    positions = part.positions[columns]
    errors = part_errors(part, Candidates.of(candidates), active).errors[0, :, 0]
    current = part_errors(part, Candidates.of([]), active).errors[0, :, 0]
    pivots = to_host(part.tableau.pivots)[0]
    moves = ~facts.constant[columns]
    if part.null is not None:
        redundant = np.zeros_like(pivots)
        if nullity(part.null):
            redundant = to_host(redundancy(xp, part.null))
        nothing = (redundant > _REDUNDANT) | ((pivots > _BASIC) & (pivots < _DEPENDENT))
        moves &= ~nothing[positions]
    targets = to_host(part.tableau.swept_targets)[0, positions, 0]
    pivots = np.where(moves, np.abs(pivots[positions]), 1.0)
    changes = np.where(moves, targets**2 / pivots, 0.0)
    return _Moves(current, errors, changes, changes, moves.astype(np.float64))


def _group_moves(
    facts: CriterionFacts,
    part: Part,
    candidates: Sequence[tuple[int, ...]],
    active: NDArray[np.bool_],
) -> _Moves:
    """Return what moves of groups do, by sweeping their columns in a copy of their block.

    Only the fit to the training rows counts, not its coefficients, so that dependent columns need
    no more than this: where a group leaves, a redundant column that stays may take its place.
    """
    if part.null is not None:
        _check_cutoff(part, part.null, active)
    xp = namespace(part.tableau.pivots)
    current = np.maximum(to_host(part.tableau.errors)[0, :], 0.0)
    targets = to_host(part.tableau.swept_targets)[0, :, 0]
    redundant = () if part.null is None else part.null.redundant
    rows = []
    for columns in candidates:
        counted = [column for column in columns if not facts.constant[column]]
        inside = [int(each) for each in part.positions[counted]]
        if any(position < 0 for position in inside):
            msg = "a candidate is no longer in the tableau"
            raise RuntimeError(msg)
        removal = bool(active[columns[0]])
        leaving = [each for each in inside if each not in redundant] if removal else []
        entering = [each for each in redundant if each not in inside] if removal else inside
        block = _block(xp, part.tableau, [*leaving, *entering])
        swept = _Block(block, targets[[*leaving, *entering]])
        lost = swept.remove(range(len(leaving)))
        gained, number = swept.add(range(len(leaving), len(block)), part.numbers[0])
        rows.append((lost - gained, lost + gained, len(leaving) - number))
    changes, terms, ranks = np.array(rows, dtype=np.float64).T
    errors = np.maximum(current + changes, 0.0)
    return _Moves(current, errors, np.abs(changes), terms, np.abs(ranks))


def _block(xp: Any, tableau: Tableau, positions: Sequence[int]) -> NDArray[np.float64]:
    """Return the rows and columns of the swept matrix at some positions."""
    if not positions:
        return np.zeros((0, 0))
    there = to_device_of(tableau.pivots, np.array(positions))
    swept, _ = current_rows(xp, tableau, 0, there)
    return np.array(to_host(xp.take(swept, there, axis=1)))


class _Block:
    """Rows and columns of a swept matrix, and their target entries, that are swept further."""

    def __init__(self, swept: NDArray[np.float64], targets: NDArray[np.float64]) -> None:
        self.swept = swept
        self.targets = targets

    def remove(self, columns: Iterable[int]) -> float:
        """Remove active columns; return what they took off the residual sum of squares."""
        return sum((self._toggle(column) for column in columns), 0.0)

    def add(self, columns: Iterable[int], fold: int) -> tuple[float, int]:
        """Add the independent ones of some columns; return what they explain, and their number."""
        left = list(columns)
        explained, number = 0.0, 0
        while left:
            column = max(left, key=lambda each: float(self.swept[each, each]))
            length = self.swept[column, column]
            if length <= _NOTHING:
                break
            if length < _SOMETHING:
                msg = (
                    f"in the training rows of fold {fold} the columns of a group are almost, but "
                    "not quite, linear combinations of others, so that the rank of the model "
                    "cannot be told"
                )
                raise NotCertifiedError(msg)
            left.remove(column)
            explained += self._toggle(column)
            number += 1
        return explained, number

    def _toggle(self, column: int) -> float:
        pivot = float(self.swept[column, column])
        gain = float(self.targets[column]) / pivot
        u = self.swept[column] / pivot
        u[column] = 1 + 1 / pivot if pivot < 0 else 1 - 1 / pivot
        self.swept -= pivot * np.outer(u, u)
        self.swept[column, column] = -1 / pivot
        self.targets = self.targets - pivot * gain * u
        return abs(pivot) * gain * gain


def _check_cutoff(part: Part, null: NullSpace, active: NDArray[np.bool_]) -> None:
    """Make sure that no refit finds a singular value near the estimator's cutoff.

    Columns added to a basis of their span make its singular values greater only, and columns
    removed from the basis make none smaller.
    """
    if part.cutoff is None:
        return
    there = np.zeros(part.tableau.n_columns, dtype=np.bool_)
    there[part.positions[active & (part.positions >= 0)]] = True
    metric = to_host(null.metric)
    there &= metric > 0
    inverse = np.maximum(-to_host(part.tableau.pivots)[0], 0.0) * metric
    trace, largest = float(np.sum(inverse[there])), float(np.sum(1 / metric[there]))
    if trace > 0 and not 1 / np.sqrt(trace * largest) > 2 * part.cutoff:
        size = 1 / np.sqrt(trace * largest)
        raise NotCertifiedError(explain_cutoff(part.numbers[0], float(size), part.cutoff))
