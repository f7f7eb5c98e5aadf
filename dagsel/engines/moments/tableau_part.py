"""The tableaux of some folds, in terms of the table's columns: toggled, scored, tidied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import Array, namespace, to_device_of, to_host
from dagsel.engines.moments.fold_start import FoldStart
from dagsel.exceptions import DriftedError
from dagsel.kernels.nullspace import (
    NullSpace,
    exchange_partner,
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
    with_room,
)

__all__ = [
    "DEPENDENT",
    "REDUNDANT",
    "Part",
    "changed",
    "growth_of",
    "joined",
    "make_parts",
    "toggled",
]

# Changes kept as factors before they are applied: more make reading a row slower, fewer apply the
# matrix product more often. Flat between 96 and 192 for 1,000 to 5,000 columns.
_PENDING = 128
#: Redundancy N_jj from which a column leaves along the null space.
REDUNDANT = 1e-8
#: What an inactive column adds to the active ones, of its squared length, up to which it depends on
#: them.
DEPENDENT = 1e-11
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
    reserve : int
        Changes that there must be room for: those of the largest group, which where columns are
        dependent is scored by being toggled.
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
    reserve: int = 2

    def columns_at(self, positions: Sequence[int] | NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the table's columns at positions of the tableau."""
        there = np.flatnonzero(self.positions >= 0)
        order = there[np.argsort(self.positions[there])]
        found: NDArray[np.intp] = order[np.asarray(positions)]
        return found


def make_parts(
    resident: Sequence[FoldStart], n_columns: int, cutoff: float | None, largest: int = 1
) -> tuple[Part, ...]:
    """Return the parts of a shard's folds at their start: all columns active, or none.

    Parameters
    ----------
    resident : sequence of FoldStart
        The folds.
    n_columns : int
        Columns of the table.
    cutoff : float or None
        See `LinearModel`.
    largest : int
        Columns of the largest group.
    """
    # An exchange makes two changes of the tableau.
    reserve = 2 * largest
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
                tableau=with_room(xp, stacked, min(_PENDING, 2 * n_columns) + reserve),
                positions=np.arange(n_columns),
                folds=folds,
                numbers=tuple(start.facts.fold for start in starts),
                products=xp.stack([start.products for start in starts]),
                null=starts[0].null,
                cutoff=cutoff,
                inflation=starts[0].everything.inflation,
                growth=(1.0,) * len(folds),
                reserve=reserve,
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
    part = changed(xp, part, column, was_active)
    return part if part.tableau.room >= part.reserve else _tidied(xp, part, gone)


def changed(xp: Any, part: Part, column: int, was_active: bool) -> Part:
    """Return the part after the toggle of a column; there must be room for two changes."""
    position = int(part.positions[column])
    null = part.null
    if null is None:
        return replace(part, tableau=toggle(xp, part.tableau, position, was_active))
    if was_active and _is_redundant(xp, null, position):
        return _without_redundant(xp, part, null, position)
    if not was_active and float(part.tableau.pivots[0, position]) <= DEPENDENT:
        return replace(part, null=with_null_vector(xp, part.tableau, null, position))
    tableau, null = toggled_with(xp, part.tableau, null, position)
    return replace(part, tableau=tableau, null=null)


def _is_redundant(xp: Any, null: NullSpace, position: int) -> bool:
    return nullity(null) > 0 and float(redundancy(xp, null)[position]) >= REDUNDANT


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
