"""The test errors after toggling columns or groups of them, for the folds of a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import namespace, to_device_of, to_host
from dagsel.engines.accuracy import explain_cutoff
from dagsel.engines.moments.tableau_part import DEPENDENT, REDUNDANT, Part, changed, growth_of
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.nullspace import (
    NullSpace,
    inverse_trace,
    minimum_norm_errors,
    nullity,
    redundancy,
)
from dagsel.kernels.tableau import toggled_errors, toggled_group_errors

__all__ = ["Candidates", "Errors", "part_errors"]

# Redundancy N_jj of a column up to which it is rounding; from REDUNDANT on it can be divided by.
# Between them it cannot be told along which direction refits would remove the column. The same for
# what an inactive column adds to the active ones, of its squared length, from DEPENDENT on.
_ESSENTIAL = 1e-18
_INDEPENDENT = 1e-6


class Candidates(NamedTuple):
    """What a request asks to toggle.

    Attributes
    ----------
    groups : sequence of tuple of int
        Columns that move as one.
    columns : ndarray of int
        All of these columns, one after the other: of each candidate one, unless they are groups.
    """

    groups: Sequence[tuple[int, ...]]
    columns: NDArray[np.intp]

    @classmethod
    def of(cls, groups: Sequence[tuple[int, ...]]) -> Candidates:
        """Return the candidates that consist of groups of columns, or of single ones."""
        return cls(groups, np.array([j for group in groups for j in group], dtype=np.intp))

    @property
    def single(self) -> bool:
        """Whether every candidate is one column."""
        return len(self.columns) == len(self.groups)


class Errors(NamedTuple):
    """Test errors of a request, for the folds of a part.

    Attributes
    ----------
    errors : ndarray of shape (K, n_candidates, T)
        Sums of squares after each candidate's toggle; of the subset itself if there is none.
    growth : ndarray of shape (K, 1)
        By how much rounding has grown since the start.
    """

    errors: NDArray[np.float64]
    growth: NDArray[np.float64]


def part_errors(part: Part, candidates: Candidates, active: NDArray[np.bool_]) -> Errors:
    """Return the test errors after toggling each candidate; without any, of the subset itself.

    Parameters
    ----------
    part : Part
        At the subset.
    candidates : Candidates
        Which.
    active : ndarray of bool of shape (n_columns,)
        The columns in the model.

    Raises
    ------
    NotCertifiedError
        If the errors could be wrong.
    """
    xp = namespace(part.tableau.pivots)
    positions = part.positions[candidates.columns]
    if np.any(positions < 0):
        msg = "a candidate is no longer in the tableau"
        raise RuntimeError(msg)
    if part.null is not None:
        if candidates.single:
            return _dependent_errors(xp, part, candidates, active)
        return _dependent_group_errors(xp, part, candidates, active)
    if not candidates.groups:
        errors = np.maximum(to_host(part.tableau.errors), 0.0)[:, None, :]
    elif candidates.single:
        errors = to_host(toggled_errors(xp, part.tableau))[:, positions, :]
    else:
        errors = _group_errors(xp, part, candidates.groups)
    return Errors(errors, growth_of(part)[:, None])


def _group_errors(
    xp: Any, part: Part, candidates: Sequence[tuple[int, ...]]
) -> NDArray[np.float64]:
    n_targets = part.tableau.errors.shape[1]
    errors = np.empty((len(part.folds), len(candidates), n_targets))
    sizes = np.array([len(columns) for columns in candidates])
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        positions = part.positions[np.array([candidates[int(row)] for row in rows])]
        groups = to_device_of(part.tableau.pivots, positions)
        found, dependent = toggled_group_errors(xp, part.tableau, groups)
        _refuse_dependent_groups(part, to_host(dependent), positions)
        errors[:, rows, :] = to_host(found)
    return errors


def _refuse_dependent_groups(
    part: Part, dependent: NDArray[np.bool_], positions: NDArray[np.intp]
) -> None:
    if not dependent.any():
        return
    fold, group = (int(each[0]) for each in np.nonzero(dependent))
    column = int(part.columns_at(positions[group])[0])
    msg = (
        f"in the training rows of fold {part.numbers[fold]} the columns of the group that "
        "column {column} belongs to are almost linearly dependent"
    )
    raise NotCertifiedError(msg, column)


def _dependent_errors(
    xp: Any, part: Part, candidates: Candidates, active: NDArray[np.bool_]
) -> Errors:
    """Return minimum-norm errors, if it is certain which columns are redundant or dependent."""
    null = part.null
    assert null is not None, "folds of full rank have no null space"
    there = _in_tableau(part, active)
    chosen = part.positions[candidates.columns]
    wanted = np.zeros_like(there)
    wanted[chosen] = True
    pivots, redundant = _check_certain(xp, part, there, wanted)
    along = there & (redundant >= REDUNDANT)
    dependent = np.flatnonzero(wanted & ~there & (pivots <= DEPENDENT))
    errors, current = minimum_norm_errors(
        xp,
        part.tableau,
        null,
        to_device_of(part.tableau.pivots, along),
        to_device_of(part.tableau.pivots, dependent),
    )
    _check_cutoff(xp, part, null, there, wanted & along)
    found = to_host(errors)[:, chosen, :] if candidates.groups else to_host(current)[:, None, :]
    return Errors(found, growth_of(part)[:, None])


def _dependent_group_errors(
    xp: Any, part: Part, candidates: Candidates, active: NDArray[np.bool_]
) -> Errors:
    """Return minimum-norm errors of groups: those of columns at once, the others one by one.

    A group is toggled, a column after the other, and forgotten again.
    """
    groups = candidates.groups
    errors = np.empty((1, len(groups), part.tableau.errors.shape[1]))
    growth = np.ones((1, 1))
    alone = [row for row, group in enumerate(groups) if len(group) == 1]
    if alone:
        singles = Candidates.of([groups[row] for row in alone])
        found = _dependent_errors(xp, part, singles, active)
        errors[:, alone], growth = found.errors, found.growth
    for row, group in enumerate(groups):
        if len(group) > 1:
            found = _dependent_errors(xp, *_after_group(xp, part, group, active))
            errors[:, row] = found.errors[:, 0]
            growth = np.maximum(growth, found.growth)
    return Errors(errors, growth)


def _after_group(
    xp: Any, part: Part, group: tuple[int, ...], active: NDArray[np.bool_]
) -> tuple[Part, Candidates, NDArray[np.bool_]]:
    """Return the part after the toggle of a group, no candidates, and the active columns."""
    active = active.copy()
    for column in group:
        there, wanted = (
            _in_tableau(part, active),
            _in_tableau(part, np.arange(len(active)) == column),
        )
        _check_certain(xp, part, there, wanted)
        part = changed(xp, part, column, bool(active[column]))
        active[column] = not active[column]
    return part, Candidates.of([]), active


def _in_tableau(part: Part, columns: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which positions of the tableau some of the table's columns have."""
    found = np.zeros(part.tableau.n_columns, dtype=np.bool_)
    found[part.positions[columns & (part.positions >= 0)]] = True
    return found


def _check_certain(
    xp: Any, part: Part, there: NDArray[np.bool_], wanted: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the pivots and redundancies by which columns to be toggled are told apart."""
    pivots = to_host(part.tableau.pivots)[0]
    redundant = np.zeros_like(pivots)
    if part.null is not None and nullity(part.null):
        redundant = to_host(redundancy(xp, part.null))
    _check_told_apart(part, redundant, wanted & there, _ESSENTIAL, REDUNDANT)
    _check_told_apart(part, pivots, wanted & ~there, DEPENDENT, _INDEPENDENT)
    return pivots, redundant


def _check_told_apart(
    part: Part, values: NDArray[np.float64], asked: NDArray[np.bool_], low: float, high: float
) -> None:
    unsure = asked & (values > low) & (values < high)
    if not unsure.any():
        return
    column = int(part.columns_at([int(np.flatnonzero(unsure)[0])])[0])
    msg = (
        f"in the training rows of fold {part.numbers[0]} column {{column}} is almost, but not "
        "quite, a linear combination of the others, so that it cannot be told what the estimator "
        "makes of it"
    )
    raise NotCertifiedError(msg, column)


def _check_cutoff(
    xp: Any, part: Part, null: NullSpace, there: NDArray[np.bool_], leaving: NDArray[np.bool_]
) -> None:
    """Make sure that no candidate's refit finds a singular value near the estimator's cutoff.

    Without redundant columns in the model removals only make conditioning better. A redundant
    column that leaves can make it worse.
    """
    if part.cutoff is None or nullity(null) == 0:
        return
    device = part.tableau.pivots
    trace, without = inverse_trace(xp, part.tableau, null, to_device_of(device, there))
    metric = to_host(null.metric)
    largest = float(np.sum(1 / metric[there & (metric > 0)]))
    worst = float(trace)
    if leaving.any():
        worst = max(worst, float(np.max(to_host(without)[leaving])))
    size = 1 / np.sqrt(max(worst, 0.0) * largest) if worst > 0 and largest > 0 else 1.0
    if not size > 2 * part.cutoff:
        raise NotCertifiedError(explain_cutoff(part.numbers[0], float(size), part.cutoff))
