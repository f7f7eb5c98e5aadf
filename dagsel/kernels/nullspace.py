"""Minimum-norm least squares on top of a tableau: what redundant columns change.

Where the active columns S of a fold are linearly dependent, scikit-learn takes the solution of
minimum norm, in the units that the estimator sees. The tableau then is swept on a *basis* of S
only: it describes the basic solution, in which the other, redundant columns of S have coefficient
zero. With Z an orthonormal basis of the null space of the columns S (Z'ΛZ = I, where Λ carries the
tableau's columns to the estimator's units), every direction D of the tableau has the minimum-norm
one D − Z Z'ΛD, so all that scoring needs besides the tableau are the linear functionals

    F = Z'ΛD    E = Z'HD    of all directions, targets included, and    Z'HZ,

which a toggle changes like everything else that is linear in the directions: F ← F − F_j u'.
There are as many rows in them as redundant columns: the null space is thin.

A column with Z_j = 0 is essential, and leaves along its direction as ever. One with Z_j ≠ 0 is
redundant in the wide sense: the fit to the training rows does not need it. It leaves along the
null vector Z Z_j', which Z then loses (Meyer, 1973, for the pseudo-inverse without a column), and
if it was in the basis a redundant column takes its place there. A column that depends on S is
added along its residual direction, which Z then gains (Greville, 1960).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dagsel.backend import Array
from dagsel.kernels.tableau import Tableau, current_rows, swept_times, toggle

__all__ = [
    "NullSpace",
    "exchange_partner",
    "inverse_trace",
    "minimum_norm_errors",
    "no_null_space",
    "null_space",
    "nullity",
    "redundancy",
    "take_columns",
    "toggled_with",
    "with_null_vector",
    "without_column",
]


@dataclass(frozen=True)
class NullSpace:
    """Null space of a fold's active columns; see the module's text for the letters.

    Attributes
    ----------
    metric : array of shape (m,)
        Diagonal of Λ: one over the squared length of each training column in the estimator's
        units; the tableau's columns have unit length. Zero for columns that take no part.
    basis : array of shape (m, d)
        Z.
    inner, outer : array of shape (d, m)
        F and E of the columns' directions.
    inner_targets, outer_targets : array of shape (d, T)
        F and E of the targets' directions.
    gram : array of shape (d, d)
        Z'HZ.
    redundant : tuple of int
        Positions of the active columns that are not in the tableau's basis, d of them.
    """

    metric: Array
    basis: Array
    inner: Array
    outer: Array
    inner_targets: Array
    outer_targets: Array
    gram: Array
    redundant: tuple[int, ...]

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays."""
        arrays = [value for value in vars(self).values() if hasattr(value, "dtype")]
        return sum(int(array.size) * 8 for array in arrays)


def no_null_space(xp: Any, tableau: Tableau, metric: Array) -> NullSpace:
    """Return the null space of a tableau whose active columns are independent: no vector."""
    columns = xp.zeros((0, metric.shape[0]), dtype=metric.dtype, device=metric.device)
    targets = xp.zeros((0, tableau.errors.shape[1]), dtype=metric.dtype, device=metric.device)
    return NullSpace(
        metric=metric,
        basis=columns.T,
        inner=columns,
        outer=columns,
        inner_targets=targets,
        outer_targets=targets,
        gram=columns[:, :0],
        redundant=(),
    )


def nullity(null: NullSpace) -> int:
    """Return the dimension d of the null space."""
    return int(null.basis.shape[1])


def null_space(xp: Any, tableau: Tableau, metric: Array, redundant: Array) -> NullSpace:
    """Return the null space of the basis of a tableau and further, redundant columns.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    tableau : Tableau
        Of one fold, without pending changes.
    metric : array of shape (m,)
        See `NullSpace`.
    redundant : array of int of shape (d,)
        Positions of the columns that depend on those in the basis.
    """
    swept, gram = tableau.swept[0], tableau.gram[0]
    basic = _basic(tableau)
    on_basis = xp.where(basic, xp.ones_like(metric), xp.zeros_like(metric))
    rows = xp.take(swept, redundant, axis=0)
    raw = -rows * on_basis[None, :] + _unit_rows(xp, redundant, rows)
    # Orthonormal in the metric: raw' has the QR factors Λ^½ raw' = Λ^½ Z R.
    root = xp.sqrt(metric)
    _, upper = xp.linalg.qr(xp.matrix_transpose(raw * root[None, :]))
    change = xp.linalg.inv(upper)  # Z = raw' change
    basis = xp.matmul(xp.matrix_transpose(raw), change)
    carried = xp.matrix_transpose(change)
    gram_rows = xp.take(gram, redundant, axis=0)
    weighted = xp.matrix_transpose(basis * metric[:, None])
    # Directions: W e_j = −A_j for a basic j, e_j − (coefficients) for another.
    inner = -xp.matmul(weighted * on_basis[None, :], swept) + weighted * (1 - on_basis)[None, :]
    coefficients = tableau.swept_targets[0, :, :] * on_basis[:, None]
    within = xp.take(gram_rows, redundant, axis=1)
    return NullSpace(
        metric=metric,
        basis=basis,
        inner=inner,
        outer=xp.matmul(carried, gram_rows),
        inner_targets=-xp.matmul(weighted, coefficients),
        outer_targets=xp.matmul(carried, xp.take(tableau.gram_targets[0, :, :], redundant, axis=0)),
        gram=xp.matmul(xp.matmul(carried, within), change),
        redundant=tuple(int(position) for position in redundant),
    )


def _basic(tableau: Tableau) -> Array:
    """Return which columns the tableau is swept on.

    With columns of unit length their pivots are −1 or less. Those of dependent columns are zero
    but for rounding, of either sign.
    """
    return tableau.pivots[0, :] < -0.5


def _unit_rows(xp: Any, positions: Array, like: Array) -> Array:
    columns = xp.arange(like.shape[1], dtype=positions.dtype, device=like.device)
    return xp.where(columns[None, :] == positions[:, None], xp.ones_like(like), xp.zeros_like(like))


def redundancy(xp: Any, null: NullSpace) -> Array:
    """Return how redundant each column is: N_jj in the estimator's units, of shape (m,).

    N = I − G⁺G projects on the null space. Zero for columns that the fit needs and for inactive
    ones; one for a column that adds nothing at all.
    """
    return null.metric * xp.sum(null.basis * null.basis, axis=1)


def inverse_trace(xp: Any, tableau: Tableau, null: NullSpace, active: Array) -> tuple[Array, Array]:
    """Return trace(G⁺) in the estimator's units, and what it becomes without each column.

    With G⁺ the pseudo-inverse over the active columns, 1/trace(G⁺) bounds the smallest non-zero
    eigenvalue from below. Removing a redundant column j makes it trace(G⁺) + (G⁺)_jj / N_jj.

    Parameters
    ----------
    active : array of bool of shape (m,)
        The columns in the model.

    Returns
    -------
    trace : array of shape ()
    without : array of shape (m,)
        Meaningful for redundant columns only.
    """
    basic = _basic(tableau)
    zeros = xp.zeros_like(null.metric)
    generalised = xp.where(basic, -tableau.pivots[0, :], zeros)
    inner = xp.where(basic, null.inner, xp.zeros_like(null.inner))
    middle = xp.matmul(inner, null.basis * null.metric[:, None])
    squared = xp.sum(xp.matmul(null.basis, middle) * null.basis, axis=1)
    crossed = xp.sum(null.basis * xp.matrix_transpose(inner), axis=1)
    diagonal = xp.where(active, generalised - 2 * crossed + squared, zeros)
    trace = xp.sum(diagonal * null.metric)
    length = xp.sum(null.basis * null.basis, axis=1)
    safe = xp.where(length > 0, length, xp.ones_like(length))
    return trace, trace + diagonal / safe


def minimum_norm_errors(
    xp: Any,
    tableau: Tableau,
    null: NullSpace,
    removed_as_redundant: Array,
    added_as_dependent: Array,
) -> tuple[Array, Array]:
    """Return the test errors after toggling each column, of minimum-norm solutions.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    tableau : Tableau
        Of one fold.
    null : NullSpace
        Of the active columns.
    removed_as_redundant : array of bool of shape (m,)
        Active columns that leave along the null space.
    added_as_dependent : array of int of shape (n,)
        Positions of the inactive columns that depend on the active ones.

    Returns
    -------
    errors : array of shape (1, m, T)
        After toggling each column; not negative.
    current : array of shape (1, T)
        Of the active columns.
    """
    inner, outer = null.inner, null.outer
    inner_y, outer_y = null.inner_targets, null.outer_targets
    gram_inner = xp.matmul(null.gram, inner)
    gram_inner_y = xp.matmul(null.gram, inner_y)
    current = tableau.errors[0, :] + xp.sum(inner_y * (gram_inner_y - 2 * outer_y), axis=0)
    # The tableau's Q, of minimum-norm directions.
    diagonal = tableau.gram_diagonal[0, :] + xp.sum(inner * (gram_inner - 2 * outer), axis=0)
    with_target = (
        tableau.gram_targets[0, :, :]
        - xp.matmul(xp.matrix_transpose(outer), inner_y)
        - xp.matmul(xp.matrix_transpose(inner), outer_y - gram_inner_y)
    )
    pivots = tableau.pivots[0, :]
    safe = xp.where(pivots == 0, xp.ones_like(pivots), pivots)
    gain = tableau.swept_targets[0, :, :] / safe[:, None]
    # Along the null space: the direction Z Z_j', the gain −β_j / |Z_j|².
    basic = _basic(tableau)[:, None]
    coefficients = xp.where(basic, tableau.swept_targets[0, :, :], xp.zeros_like(gain))
    coefficients = coefficients + xp.matmul(null.basis, inner_y)
    length = xp.sum(null.basis * null.basis, axis=1)
    null_gain = -coefficients / xp.where(length > 0, length, xp.ones_like(length))[:, None]
    null_diagonal = xp.sum(xp.matmul(null.basis, null.gram) * null.basis, axis=1)
    null_with_target = xp.matmul(null.basis, outer_y - gram_inner_y)
    along = removed_as_redundant[:, None]
    gain = xp.where(along, null_gain, gain)
    diagonal = xp.where(removed_as_redundant, null_diagonal, diagonal)
    with_target = xp.where(along, null_with_target, with_target)
    if added_as_dependent.shape[0]:
        gain = _with_dependent_gains(xp, tableau, null, added_as_dependent, gain)
    change = gain * (gain * diagonal[:, None] - 2 * with_target)
    errors = current[None, :] + change
    zeros = xp.zeros_like(errors)
    current = xp.where(current < 0, xp.zeros_like(current), current)
    return xp.where(errors < 0, zeros, errors)[None, :, :], current[None, :]


def _with_dependent_gains(
    xp: Any, tableau: Tableau, null: NullSpace, positions: Array, gain: Array
) -> Array:
    """Put in the gains of columns that depend on the active ones: −(D_k'Λβ) / D_k'ΛD_k."""
    rows = _directions(xp, tableau, positions)
    weighted = rows * null.metric[None, :]
    inner = xp.take(null.inner, positions, axis=1)
    length = xp.sum(weighted * rows, axis=1) - xp.sum(inner * inner, axis=0)
    basic = _basic(tableau)[:, None]
    coefficients = tableau.swept_targets[0, :, :]
    coefficients = xp.where(basic, coefficients, xp.zeros_like(coefficients))
    overlap = xp.matmul(weighted, coefficients) + xp.matmul(
        xp.matrix_transpose(inner), null.inner_targets
    )
    found = -overlap / length[:, None]
    spread = _unit_rows(xp, positions, rows)
    chosen = xp.sum(spread, axis=0)[:, None] > 0
    return xp.where(chosen, xp.matmul(xp.matrix_transpose(spread), found), gain)


def _directions(xp: Any, tableau: Tableau, positions: Array) -> Array:
    """Directions e_k − W G_Sk of inactive columns, as rows of shape (n, m)."""
    swept, _ = current_rows(xp, tableau, 0, positions)
    basic = _basic(tableau)[None, :]
    return xp.where(basic, -swept, _unit_rows(xp, positions, swept))


def toggled_with(
    xp: Any, tableau: Tableau, null: NullSpace, position: int
) -> tuple[Tableau, NullSpace]:
    """Commit a toggle of the tableau's basis, and carry the null space's functionals along.

    The null space itself stays: the column is essential, or independent of the active ones, or
    this is half of an exchange between the basis and the redundant columns.
    """
    gain = tableau.swept_targets[0, position, :] / tableau.pivots[0, position]
    active = bool(_basic(tableau)[position])
    after = toggle(xp, tableau, position, active)
    u = after.pending_u[0, after.n_pending - 1, :]
    inner, outer = null.inner[:, position], null.outer[:, position]
    return after, replace(
        null,
        inner=null.inner - inner[:, None] * u[None, :],
        outer=null.outer - outer[:, None] * u[None, :],
        inner_targets=null.inner_targets - inner[:, None] * gain[None, :],
        outer_targets=null.outer_targets - outer[:, None] * gain[None, :],
    )


def without_column(xp: Any, null: NullSpace, position: int) -> NullSpace:
    """Return the null vectors that do not touch a column: one less.

    A Householder reflection turns Z so that only its first vector touches it.
    """
    row = null.basis[position, :]
    length = xp.sqrt(xp.sum(row * row))
    first = row[0]
    sign = xp.where(first < 0, -xp.ones_like(first), xp.ones_like(first))
    unit = xp.zeros_like(row)
    unit[0] = 1.0
    normal = row + sign * length * unit
    normal = normal / xp.sqrt(xp.sum(normal * normal))

    def turned(functionals: Array) -> Array:
        along = xp.matmul(normal[None, :], functionals)
        return (functionals - 2 * normal[:, None] * along)[1:, :]

    basis = xp.matrix_transpose(turned(xp.matrix_transpose(null.basis)))
    basis[position, :] = 0.0
    return replace(
        null,
        basis=basis,
        inner=turned(null.inner),
        outer=turned(null.outer),
        inner_targets=turned(null.inner_targets),
        outer_targets=turned(null.outer_targets),
        gram=turned(xp.matrix_transpose(turned(null.gram))),
    )


def exchange_partner(xp: Any, tableau: Tableau, null: NullSpace, position: int) -> int:
    """Return the redundant column that can best take a basic one's place in the basis.

    It is the one whose pivot after the basic column has left, A_jk² / |A_jj|, is greatest.
    """
    here = xp.asarray([position], device=tableau.pivots.device)
    swept, _ = current_rows(xp, tableau, 0, here)
    candidates = xp.asarray(list(null.redundant), device=tableau.pivots.device)
    sizes = xp.abs(xp.take(swept[0, :], candidates))
    return null.redundant[int(xp.argmax(sizes))]


def with_null_vector(xp: Any, tableau: Tableau, null: NullSpace, position: int) -> NullSpace:
    """Return the null space with a column that depends on the active ones made active."""
    here = xp.asarray([position], device=tableau.pivots.device)
    direction = _directions(xp, tableau, here)[0, :]
    _, gram = current_rows(xp, tableau, 0, here)
    weighted = direction * null.metric
    basic = _basic(tableau)
    on_basis = xp.where(basic, weighted, xp.zeros_like(weighted))
    products = weighted - on_basis - swept_times(xp, tableau, 0, on_basis)
    coefficients = tableau.swept_targets[0, :, :]
    coefficients = xp.where(basic[:, None], coefficients, xp.zeros_like(coefficients))
    overlap = -xp.matmul(on_basis[None, :], coefficients)[0, :]
    # Less what lies in the null space already.
    inner, outer = null.inner[:, position], null.outer[:, position]
    length = xp.sqrt(products[position] - xp.sum(inner * inner))
    vector = (direction - xp.matmul(null.basis, inner)) / length

    def added(above: Array, row: Array) -> Array:
        return xp.concat([above, row[None, :] / length])

    gram_inner = xp.matmul(null.gram, inner)
    crossed = (outer - gram_inner) / length
    corner = (gram[0, position] - xp.sum(inner * (2 * outer - gram_inner))) / length**2
    above = xp.concat([null.gram, crossed[:, None]], axis=1)
    below = xp.concat([crossed, corner[None]])[None, :]
    return replace(
        null,
        basis=xp.concat([null.basis, vector[:, None]], axis=1),
        inner=added(null.inner, products - xp.matmul(inner, null.inner)),
        outer=added(null.outer, gram[0, :] - xp.matmul(inner, null.outer)),
        inner_targets=added(null.inner_targets, overlap - xp.matmul(inner, null.inner_targets)),
        outer_targets=added(
            null.outer_targets,
            tableau.gram_targets[0, position, :] - xp.matmul(inner, null.outer_targets),
        ),
        gram=xp.concat([above, below]),
        redundant=(*null.redundant, position),
    )


def take_columns(xp: Any, null: NullSpace, keep: Array) -> NullSpace:
    """Return the null space over some of the columns, the active ones among them."""
    order = {int(position): number for number, position in enumerate(keep)}
    return replace(
        null,
        metric=xp.take(null.metric, keep),
        basis=xp.take(null.basis, keep, axis=0),
        inner=xp.take(null.inner, keep, axis=1),
        outer=xp.take(null.outer, keep, axis=1),
        redundant=tuple(order[position] for position in null.redundant),
    )
