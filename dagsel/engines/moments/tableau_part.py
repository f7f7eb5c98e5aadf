"""The tableaux of some folds, in terms of the table's columns: toggled, scored, tidied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import Array, namespace, to_device_of, to_host
from dagsel.engines.accuracy import explain_cutoff
from dagsel.engines.moments.fold_start import FoldStart
from dagsel.exceptions import DriftedError, NotCertifiedError
from dagsel.kernels.nullspace import (
    NullSpace,
    exchange_partner,
    inverse_trace,
    minimum_norm_errors,
    nullity,
    redundancy,
    take_columns,
    toggled_with,
    with_null_vector,
    without_column,
)
from dagsel.kernels.tableau import (
    Tableau,
    apply_pending,
    stack_folds,
    target_drift,
    toggle,
    toggled_errors,
    toggled_group_errors,
    with_room,
)

__all__ = [
    "Candidates",
    "Errors",
    "Part",
    "growth_of",
    "joined",
    "make_parts",
    "part_errors",
    "toggled",
]

# Changes kept as factors before they are applied: more make reading a row slower, fewer apply the
# matrix product more often. Flat between 96 and 192 for 1,000 to 5,000 columns.
_PENDING = 128
# Redundancy N_jj of a column: up to the first it is rounding, from the second on it can be divided
# by. Between them it cannot be told along which direction refits would remove the column.
_ESSENTIAL, _REDUNDANT = 1e-18, 1e-8
# The same for what an inactive column adds to the active ones, of its squared length.
_DEPENDENT, _INDEPENDENT = 1e-11, 1e-6
# Coefficients that two ways of carrying them along give must agree to this, relatively. In long
# runs on certified tables they do so to 1e-12 and better.
_MAX_DRIFT = 1e-10


@dataclass(frozen=True)
class Part:
    """Folds whose tableaux are swept alike: all of full rank, or a single one that is not.

    Attributes
    ----------
    tableau : Tableau
        Of K folds.
    positions : ndarray of int of shape (n_columns,)
        Position of each column of the table in the tableau, -1 for columns dropped from it.
    folds : tuple of int
        Which of the shard's folds.
    numbers : tuple of int
        The folds' numbers in the problem, for messages.
    products : array of shape (K, m, T)
        Training products of the columns with the targets, to watch the tableau by; of what is left
        of both after columns that have been dropped while active.
    null : NullSpace or None
        Where the columns are dependent; K is 1 then.
    cutoff : float or None
        See `LinearModel`.
    inflation : float
        See `FoldStart`: where columns are dependent, growth of rounding is relative to it.
    growth : tuple of float
        By how much rounding had grown in each fold when its last redundant column left.
    """

    tableau: Tableau
    positions: NDArray[np.intp]
    folds: tuple[int, ...]
    numbers: tuple[int, ...]
    products: Array
    null: NullSpace | None = None
    cutoff: float | None = None
    inflation: float = 1.0
    growth: tuple[float, ...] = (1.0,)

    def columns_at(self, positions: Sequence[int] | NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the table's columns at positions of the tableau."""
        there = np.flatnonzero(self.positions >= 0)
        order = there[np.argsort(self.positions[there])]
        found: NDArray[np.intp] = order[np.asarray(positions)]
        return found


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


def make_parts(
    resident: Sequence[FoldStart], n_columns: int, cutoff: float | None
) -> tuple[Part, ...]:
    """Return the parts of a shard's folds at their start: all columns active, or none."""
    regular = [fold for fold, start in enumerate(resident) if start.null is None]
    others = [(fold,) for fold, start in enumerate(resident) if start.null is not None]
    parts = []
    for folds in [tuple(regular), *others]:
        if not folds:
            continue
        starts = [resident[fold] for fold in folds]
        xp = namespace(starts[0].tableau.pivots)
        stacked = stack_folds(xp, [start.tableau for start in starts])
        parts.append(
            Part(
                tableau=with_room(xp, stacked, min(_PENDING, max(2, 2 * n_columns))),
                positions=np.arange(n_columns),
                folds=folds,
                numbers=tuple(start.facts.fold for start in starts),
                products=xp.stack([start.products for start in starts]),
                null=starts[0].null,
                cutoff=cutoff,
                inflation=starts[0].everything.inflation,
                growth=(1.0,) * len(folds),
            )
        )
    return tuple(parts)


def joined(parts: tuple[Part, ...], gone: NDArray[np.bool_]) -> tuple[Part, ...]:
    """Join folds whose columns have become independent for good; else return the parts as given.

    In backward elimination columns that are independent stay so. Without null spaces a round costs
    what it costs at full rank, whatever the columns were at the start.

    Parameters
    ----------
    parts : tuple of Part
        All of a shard.
    gone : ndarray of bool of shape (n_columns,)
        Columns that can be let go of; those that stay are to be active in every fold.
    """
    if all(part.null is None for part in parts):
        return parts
    if any(part.null is not None and nullity(part.null) > 0 for part in parts):
        return parts
    for part in parts:
        stay = part.positions[~gone & (part.positions >= 0)]
        # Pivots of columns that are not swept can be zero, and would be divided by.
        if not np.all(to_host(part.tableau.pivots)[:, stay] < -0.5):
            return parts
    xp = namespace(parts[0].tableau.pivots)
    settled = [
        replace(_tidied(xp, replace(part, null=None), gone), growth=tuple(growth_of(part)))
        for part in parts
    ]
    first = settled[0]
    # Columns are in ascending order everywhere, and the same ones.
    whole = stack_folds(xp, [part.tableau for part in settled])
    return (
        replace(
            first,
            tableau=with_room(xp, whole, first.tableau.pending_u.shape[1]),
            folds=tuple(fold for part in settled for fold in part.folds),
            numbers=tuple(number for part in settled for number in part.numbers),
            products=xp.concat([part.products for part in settled]),
            growth=tuple(growth for part in settled for growth in part.growth),
        ),
    )


def growth_of(part: Part) -> NDArray[np.float64]:
    """Return by how much rounding has grown in each fold since the start."""
    if part.null is None:
        return np.array(part.growth)
    inflation = float(np.sum(np.maximum(-to_host(part.tableau.pivots), 0.0)))
    return np.array([max(1.0, inflation / part.inflation) ** 2])


def toggled(part: Part, column: int, was_active: bool, gone: NDArray[np.bool_]) -> Part:
    """Commit the toggle of a column.

    Parameters
    ----------
    part : Part
        Before.
    column : int
        Of the table.
    was_active : bool
        Whether it is in the model before.
    gone : ndarray of bool of shape (n_columns,)
        Columns that can be let go of when matrices are next worked on, the toggled one not
        among them.
    """
    xp = namespace(part.tableau.pivots)
    position = int(part.positions[column])
    null = part.null
    if null is None:
        part = replace(part, tableau=toggle(xp, part.tableau, position, was_active))
    elif was_active and _is_redundant(xp, null, position):
        part = _without_redundant(xp, part, null, position)
    elif not was_active and float(part.tableau.pivots[0, position]) <= _DEPENDENT:
        part = replace(part, null=with_null_vector(xp, part.tableau, null, position))
    else:
        tableau, null = toggled_with(xp, part.tableau, null, position)
        part = replace(part, tableau=tableau, null=null)
    # An exchange makes two changes of the tableau.
    return part if part.tableau.room >= 2 else _tidied(xp, part, gone)


def _is_redundant(xp: Any, null: NullSpace, position: int) -> bool:
    return nullity(null) > 0 and float(redundancy(xp, null)[position]) >= _REDUNDANT


def _without_redundant(xp: Any, part: Part, null: NullSpace, position: int) -> Part:
    tableau = part.tableau
    partner = position
    if position not in null.redundant:
        partner = exchange_partner(xp, tableau, null, position)
    null = without_column(xp, null, position)
    if partner != position:
        tableau, null = toggled_with(xp, tableau, null, position)
        tableau, null = toggled_with(xp, tableau, null, partner)
    left = tuple(each for each in null.redundant if each != partner)
    return replace(part, tableau=tableau, null=replace(null, redundant=left))


def _tidied(xp: Any, part: Part, gone: NDArray[np.bool_]) -> Part:
    """Apply the pending changes, let go of columns that are gone, and look for drift."""
    order = part.columns_at(np.arange(part.tableau.n_columns))
    going = gone[order]
    if part.null is not None:
        # What columns that depend on the active ones do is told by these.
        going &= to_host(part.tableau.pivots)[0] >= -0.5
        going[list(part.null.redundant)] = False
    kept = order[~going]
    if len(kept) in (0, len(order)):
        part = replace(part, tableau=apply_pending(xp, part.tableau))
    else:
        keep = to_device_of(part.tableau.pivots, part.positions[kept])
        positions = np.full_like(part.positions, -1)
        positions[kept] = np.arange(len(kept))
        n_active = int(xp.sum(xp.astype(part.tableau.pivots[0, :] < -0.5, xp.int64)))
        tableau = apply_pending(xp, part.tableau, keep)
        products = xp.take(part.products, keep, axis=1)
        if int(xp.sum(xp.astype(tableau.pivots[0, :] < -0.5, xp.int64))) < n_active:
            # Forward selection: all active columns are dropped, and what is left starts anew.
            products = tableau.swept_targets
        part = replace(
            part,
            null=None if part.null is None else take_columns(xp, part.null, keep),
            products=products,
            tableau=tableau,
            positions=positions,
        )
    drift = target_drift(xp, part.tableau, part.products)
    # Not `>`: what is not a number has drifted.
    if not drift <= _MAX_DRIFT:
        msg = f"rounding has built up in the tableau of a fold, to {drift:.0e} of its coefficients"
        raise DriftedError(msg)
    return part


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
        return _dependent_errors(xp, part, part.null, candidates, active)
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
    xp: Any,
    part: Part,
    null: NullSpace,
    candidates: Candidates,
    active: NDArray[np.bool_],
) -> Errors:
    """Return minimum-norm errors, if it is certain which columns are redundant or dependent."""
    there = np.zeros(part.tableau.n_columns, dtype=np.bool_)
    there[part.positions[active & (part.positions >= 0)]] = True
    chosen = part.positions[candidates.columns]
    wanted = np.zeros_like(there)
    wanted[chosen] = True
    pivots = to_host(part.tableau.pivots)[0]
    redundant = np.zeros_like(pivots) if nullity(null) == 0 else to_host(redundancy(xp, null))
    _check_told_apart(part, redundant, wanted & there, _ESSENTIAL, _REDUNDANT)
    _check_told_apart(part, pivots, wanted & ~there, _DEPENDENT, _INDEPENDENT)
    if not candidates.single:
        msg = (
            f"groups of several columns are to be moved where columns of fold {part.numbers[0]} "
            "are linearly dependent"
        )
        raise NotCertifiedError(msg)
    along = there & (redundant >= _REDUNDANT)
    dependent = np.flatnonzero(wanted & ~there & (pivots <= _DEPENDENT))
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
