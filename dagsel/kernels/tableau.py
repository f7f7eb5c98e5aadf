"""The tableau: scores of every one-column change of a least-squares model, without a refit.

Notation, for one fold: the training rows' centred products are G (features) and b (features with
targets), those of the test rows about the training mean are H, c and s. S is the set of active
columns and W the inverse of G over S. The tableau holds two symmetric matrices:

* the swept matrix A: −W where both columns are active, the coefficients W G of the regression of
  an inactive column on the active ones where one is, residual products where neither is. Its
  target columns are the coefficients β (active) and residual products (inactive);
* the test Gram Q = D'HD of the directions D: for an active j D_j = W e_j, for an inactive one
  D_j = e_j − W G_Sj, and for a target its residual.

Toggling column j (removing it if it is active, adding it if not) moves every direction along D_j
only: D_k ← D_k − u_k D_j with u = A_j / A_jj, except u_j = 1 − 1/|A_jj|. Hence, with g the target
entries of u, the test error after the toggle is Q_yy − 2 g Q_jy + g² Q_jj, and committing it is

    A ← A − A_jj u u'   (then A_jj ← −1/A_jj)
    Q ← Q − u z' − z u',   z = Q_j − (Q_jj / 2) u

The same formulas hold for both directions of a toggle. Removal from the full set by these is the
backward recursion of Reeves (1999) and the sweep of Goodnight (1979), carried over to test errors.

Changes are kept as factors (rows of `u`, `z`) and applied many at a time by one matrix product,
so the loop runs at the speed of the product and not of memory; diagonals and target columns, which
are all that scoring reads, are always up to date. All K folds of a tableau move together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dagsel.backend import Array, add_product, cholesky_inverse, sandwich

__all__ = [
    "Tableau",
    "apply_pending",
    "current_rows",
    "empty_tableau",
    "full_tableau",
    "stack_folds",
    "swept_tableau",
    "swept_times",
    "target_drift",
    "toggle",
    "toggled_errors",
    "toggled_group_errors",
    "with_room",
]


@dataclass(frozen=True)
class Tableau:
    """State of K folds over the same m columns; see the module's text for the letters.

    Attributes
    ----------
    swept, gram : list of K arrays of shape (m, m)
        A and Q without the pending changes. Diagonals are stale: read `pivots`, `gram_diagonal`.
    pivots, gram_diagonal : array of shape (K, m)
        Diagonals of A and Q.
    swept_targets, gram_targets : array of shape (K, m, T)
        Target columns of A and Q.
    errors : array of shape (K, T)
        Q_yy: the test sum of squared errors of the model on the active columns.
    pending_u, pending_z : array of shape (K, R, m)
        Factors of the pending changes, with room for R of them. `toggle` writes into the next free
        row, which no older tableau reads; so of two continuations of one tableau the second must
        start from a copy (`with_room`).
    pending_pivots : array of shape (K, R)
        A_jj at the time of each pending change.
    n_pending : int
        How many of the R rows are in use.
    """

    swept: list[Array]
    gram: list[Array]
    pivots: Array
    gram_diagonal: Array
    swept_targets: Array
    gram_targets: Array
    errors: Array
    pending_u: Array
    pending_z: Array
    pending_pivots: Array
    n_pending: int = 0

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays: by it Dask places tasks and watches memory."""
        arrays = [value for value in vars(self).values() if hasattr(value, "size")]
        return sum(int(array.size) * 8 for array in (*arrays, *self.swept, *self.gram))

    @property
    def n_columns(self) -> int:
        """Number of columns, m."""
        return int(self.pivots.shape[1])

    @property
    def room(self) -> int:
        """How many more changes fit before `apply_pending` is due."""
        return int(self.pending_u.shape[1]) - self.n_pending


def full_tableau(
    xp: Any,
    train: Array,
    train_targets: Array,
    test: Array,
    test_targets: Array,
    targets: Array,
    least: float = 0.0,
) -> Tableau | None:
    """Build the tableau of one fold with every column active.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    train : array of shape (m, m)
        G, with a penalty on its diagonal if there is one.
    train_targets : array of shape (m, T)
        b.
    test, test_targets, targets : array of shape (m, m), (m, T) and (T,)
        H, c and s.
    least : float
        See `cholesky_inverse`.

    Returns
    -------
    Tableau or None
        With no room for changes yet; `None` if G is not positive definite.
    """
    inverse = cholesky_inverse(xp, train, least)
    if inverse is None:
        return None
    coefficients = xp.matmul(inverse, train_targets)
    # One step of iterative refinement; it costs next to nothing.
    coefficients += xp.matmul(inverse, train_targets - xp.matmul(train, coefficients))
    gram = sandwich(xp, inverse, test)
    predicted = xp.matmul(test, coefficients)
    residual_targets = xp.matmul(inverse, test_targets - predicted)
    errors = targets + xp.sum(coefficients * (predicted - 2 * test_targets), axis=0)
    inverse *= -1
    return swept_tableau(xp, inverse, gram, coefficients, residual_targets, errors)


def empty_tableau(
    xp: Any, train: Array, train_targets: Array, test: Array, test_targets: Array, targets: Array
) -> Tableau:
    """Build the tableau of one fold with no active column; parameters as in `full_tableau`."""
    return swept_tableau(xp, train, test, train_targets, test_targets, targets)


def swept_tableau(
    xp: Any, swept: Array, gram: Array, swept_targets: Array, gram_targets: Array, errors: Array
) -> Tableau:
    """Return the tableau of one fold from its parts; see `Tableau`, without the folds' axis."""
    no_room = xp.empty((1, 0, swept.shape[0]), dtype=swept.dtype, device=swept.device)
    return Tableau(
        swept=[swept],
        gram=[gram],
        pivots=xp.linalg.diagonal(swept)[None, :],
        gram_diagonal=xp.linalg.diagonal(gram)[None, :],
        swept_targets=swept_targets[None, :, :],
        gram_targets=gram_targets[None, :, :],
        errors=errors[None, :],
        pending_u=no_room,
        pending_z=no_room,
        pending_pivots=no_room[:, :, 0],
    )


def stack_folds(xp: Any, tableaux: list[Tableau]) -> Tableau:
    """Join tableaux over the same columns, none with pending changes, into one over all folds."""

    def joined(name: str) -> Array:
        return xp.concat([getattr(each, name) for each in tableaux], axis=0)

    return Tableau(
        swept=[matrix for each in tableaux for matrix in each.swept],
        gram=[matrix for each in tableaux for matrix in each.gram],
        pivots=joined("pivots"),
        gram_diagonal=joined("gram_diagonal"),
        swept_targets=joined("swept_targets"),
        gram_targets=joined("gram_targets"),
        errors=joined("errors"),
        pending_u=joined("pending_u"),
        pending_z=joined("pending_z"),
        pending_pivots=joined("pending_pivots"),
    )


def toggled_errors(xp: Any, tableau: Tableau) -> Array:
    """Return the test errors after toggling each column on its own.

    Returns
    -------
    array of shape (K, m, T)
        Sums of squared errors, not negative.
    """
    gain = tableau.swept_targets / tableau.pivots[:, :, None]
    change = gain * (gain * tableau.gram_diagonal[:, :, None] - 2 * tableau.gram_targets)
    errors = tableau.errors[:, None, :] + change
    return xp.where(errors < 0, xp.zeros_like(errors), errors)


def toggled_group_errors(
    xp: Any, tableau: Tableau, groups: Array, overlap: float = 1e-10
) -> tuple[Array, Array]:
    """Return the test errors after toggling each group of columns as one.

    The block form of `toggled_errors`: with J a group, g = A_JJ⁻¹ A_Jy and the error
    Q_yy − 2 g'Q_Jy + g'Q_JJ g.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the tableau.
    tableau : Tableau
        With or without pending changes.
    groups : array of int of shape (n_groups, size)
        Positions; a group's columns are all active, or none is.
    overlap : float
        A group of which some column has less than this fraction of its pivot left after the
        others have been toggled is reported as dependent.

    Returns
    -------
    errors : array of shape (K, n_groups, T)
        Sums of squared errors, not negative; meaningless for dependent groups.
    dependent : array of bool of shape (K, n_groups)
        Whether a group's columns are linearly dependent on each other, given the active ones.
    """
    errors, dependent = [], []
    for fold in range(tableau.pivots.shape[0]):
        blocks = _current_blocks(xp, tableau, fold, groups)
        gains, alone = _block_gains(xp, blocks)
        change = gains * (xp.matmul(blocks.gram, gains) - 2 * blocks.gram_targets)
        errors.append(tableau.errors[fold, :] + xp.sum(change, axis=1))
        dependent.append(~(alone > overlap))
    found = xp.stack(errors)
    return xp.where(found < 0, xp.zeros_like(found), found), xp.stack(dependent)


class _Blocks(NamedTuple):
    """Entries of A and Q within groups, for one fold; (n_groups, size, size) and (…, size, T)."""

    swept: Array
    gram: Array
    swept_targets: Array
    gram_targets: Array


def _current_blocks(xp: Any, tableau: Tableau, fold: int, groups: Array) -> _Blocks:
    n_groups, size = groups.shape
    flat = xp.reshape(groups, (-1,))
    m = tableau.n_columns
    cells = xp.reshape(groups[:, :, None] * m + groups[:, None, :], (-1,))
    shape = (n_groups, size, size)
    swept, gram = (
        xp.reshape(xp.take(xp.reshape(each[fold], (-1,)), cells), shape)
        for each in (tableau.swept, tableau.gram)
    )
    if tableau.n_pending:
        used = slice(0, tableau.n_pending)
        u, z = (
            xp.permute_dims(
                xp.reshape(xp.take(each[fold, used, :], flat, axis=1), (-1, n_groups, size)),
                (1, 0, 2),
            )
            for each in (tableau.pending_u, tableau.pending_z)
        )
        weighted = u * tableau.pending_pivots[fold, used][None, :, None]
        swept = swept - xp.matmul(xp.matrix_transpose(weighted), u)
        crossed = xp.matmul(xp.matrix_transpose(u), z)
        gram = gram - crossed - xp.matrix_transpose(crossed)
    on_diagonal = xp.eye(size, dtype=swept.dtype, device=swept.device)
    pivots, gram_diagonal = (
        xp.reshape(xp.take(each[fold, :], flat), (n_groups, size, 1))
        for each in (tableau.pivots, tableau.gram_diagonal)
    )
    swept_targets, gram_targets = (
        xp.reshape(xp.take(each[fold, :, :], flat, axis=0), (n_groups, size, -1))
        for each in (tableau.swept_targets, tableau.gram_targets)
    )
    return _Blocks(
        swept * (1 - on_diagonal) + pivots * on_diagonal,
        gram * (1 - on_diagonal) + gram_diagonal * on_diagonal,
        swept_targets,
        gram_targets,
    )


def _block_gains(xp: Any, blocks: _Blocks) -> tuple[Array, Array]:
    """Solve A_JJ g = A_Jy, scaled to a unit diagonal; also the least pivot left, of 1."""
    size = blocks.swept.shape[1]
    diagonal = xp.linalg.diagonal(blocks.swept)
    sign = xp.where(diagonal < 0, -xp.ones_like(diagonal), xp.ones_like(diagonal))
    length = xp.sqrt(xp.abs(diagonal))
    scaled = blocks.swept * sign[:, :, None] / (length[:, :, None] * length[:, None, :])
    # Gaussian elimination of all groups at once: pivots of a correlation matrix are what is left
    # of a column's variance after the columns before it.
    rows = xp.concat([scaled, blocks.swept_targets * (sign / length)[:, :, None]], axis=2)
    alone = xp.ones_like(diagonal[:, 0])
    for step in range(size):
        pivot = rows[:, step, step]
        alone = xp.where(pivot < alone, pivot, alone)
        safe = xp.where(pivot > 0, pivot, xp.ones_like(pivot))
        normal = rows[:, step, :] / safe[:, None]
        factor = rows[:, :, step][:, :, None] * normal[:, None, :]
        rows = rows - factor
        rows[:, step, :] = normal
    return rows[:, :, size:] / length[:, :, None], alone


def with_room(xp: Any, tableau: Tableau, room: int) -> Tableau:
    """Return the tableau, which must have no pending changes, with room for `room` of them."""
    n_folds, m = tableau.pivots.shape
    options = {"dtype": tableau.pivots.dtype, "device": tableau.pivots.device}
    return replace(
        tableau,
        pending_u=xp.empty((n_folds, room, m), **options),
        pending_z=xp.empty((n_folds, room, m), **options),
        pending_pivots=xp.empty((n_folds, room), **options),
        n_pending=0,
    )


def toggle(xp: Any, tableau: Tableau, position: int, active: bool) -> Tableau:
    """Commit the toggle of the column at `position`, leaving the matrix update pending.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the tableau.
    tableau : Tableau
        With room for a change. Only the free rows of its pending factors are written to.
    position : int
        Which of the m columns.
    active : bool
        Whether that column is active before the toggle.
    """
    pivot = tableau.pivots[:, position]
    half_diagonal = tableau.gram_diagonal[:, position] / 2
    swept, gram = _current_rows(xp, tableau, position)
    u = swept / pivot[:, None]
    # 1 − 1/|A_jj|: pivots of active columns are negative.
    u[:, position] = 1 + 1 / pivot if active else 1 - 1 / pivot
    z = gram - u * half_diagonal[:, None]
    z[:, position] = half_diagonal * (2 - u[:, position])
    gain = tableau.swept_targets[:, position, :] / pivot[:, None]
    z_targets = tableau.gram_targets[:, position, :] - gain * half_diagonal[:, None]
    scaled = u * pivot[:, None]
    pivots = tableau.pivots - scaled * u
    pivots[:, position] = -1 / pivot
    row = tableau.n_pending
    tableau.pending_u[:, row, :] = u
    tableau.pending_z[:, row, :] = z
    tableau.pending_pivots[:, row] = pivot
    return replace(
        tableau,
        pivots=pivots,
        gram_diagonal=tableau.gram_diagonal - 2 * u * z,
        swept_targets=tableau.swept_targets - scaled[:, :, None] * gain[:, None, :],
        gram_targets=tableau.gram_targets
        - u[:, :, None] * z_targets[:, None, :]
        - z[:, :, None] * gain[:, None, :],
        errors=tableau.errors - 2 * gain * z_targets,
        n_pending=row + 1,
    )


def _current_rows(xp: Any, tableau: Tableau, position: int) -> tuple[Array, Array]:
    """Rows `position` of A and Q with the pending changes; shape (K, m) each."""
    swept = xp.stack([matrix[position, :] for matrix in tableau.swept])
    gram = xp.stack([matrix[position, :] for matrix in tableau.gram])
    if tableau.n_pending == 0:
        return swept, gram
    used = slice(0, tableau.n_pending)
    u, z = tableau.pending_u[:, used, :], tableau.pending_z[:, used, :]
    u_here, z_here = u[:, :, position], z[:, :, position]
    # Two combinations of the rows of u at once, so that u is read once.
    weights = xp.stack([tableau.pending_pivots[:, used] * u_here, z_here], axis=1)
    from_u = xp.matmul(weights, u)
    from_z = xp.matmul(u_here[:, None, :], z)
    return swept - from_u[:, 0, :], gram - from_u[:, 1, :] - from_z[:, 0, :]


def current_rows(xp: Any, tableau: Tableau, fold: int, positions: Array) -> tuple[Array, Array]:
    """Return rows of A and Q of one fold, with the pending changes and right diagonals.

    Parameters
    ----------
    positions : array of int of shape (n,)
        Which rows.

    Returns
    -------
    tuple of arrays of shape (n, m)
    """
    swept = xp.take(tableau.swept[fold], positions, axis=0)
    gram = xp.take(tableau.gram[fold], positions, axis=0)
    if tableau.n_pending:
        used = slice(0, tableau.n_pending)
        u, z = tableau.pending_u[fold, used, :], tableau.pending_z[fold, used, :]
        u_here = xp.matrix_transpose(xp.take(u, positions, axis=1))
        z_here = xp.matrix_transpose(xp.take(z, positions, axis=1))
        swept = swept - xp.matmul(u_here * tableau.pending_pivots[fold, used], u)
        gram = gram - xp.matmul(u_here, z) - xp.matmul(z_here, u)
    columns = xp.arange(swept.shape[1], dtype=positions.dtype, device=swept.device)
    diagonal = columns[None, :] == positions[:, None]
    return (
        xp.where(diagonal, tableau.pivots[fold, :][None, :], swept),
        xp.where(diagonal, tableau.gram_diagonal[fold, :][None, :], gram),
    )


def swept_times(xp: Any, tableau: Tableau, fold: int, vector: Array) -> Array:
    """Return A v of one fold, with the pending changes and the right diagonal; shape (m,)."""
    stale = xp.linalg.diagonal(tableau.swept[fold])
    product = xp.matmul(tableau.swept[fold], vector)
    if tableau.n_pending:
        used = slice(0, tableau.n_pending)
        u, pivots = tableau.pending_u[fold, used, :], tableau.pending_pivots[fold, used]
        product = product - xp.matmul(pivots * xp.matmul(u, vector), u)
        stale = stale - xp.matmul(pivots, u * u)
    return product + (tableau.pivots[fold, :] - stale) * vector


def target_drift(xp: Any, tableau: Tableau, products: Array) -> float:
    """Return how far the target columns of A are from what A itself makes of the products.

    The target columns are changed at every toggle, the matrix many toggles at a time, and each by
    its own arithmetic: where rounding has built up in one of them they disagree.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the tableau.
    tableau : Tableau
        Without pending changes, of columns of unit length.
    products : array of shape (K, m, T)
        Training products with the targets, b.

    Returns
    -------
    float
        The largest difference, relative to the largest entry of its target's column.
    """
    worst = 0.0
    for fold in range(tableau.pivots.shape[0]):
        held = tableau.swept_targets[fold, :, :]
        active = (tableau.pivots[fold, :] < -0.5)[:, None]
        on_active = xp.where(active, products[fold, :, :], xp.zeros_like(held))
        product = xp.matmul(tableau.swept[fold], on_active)
        # The diagonal in the matrix is stale.
        stale = tableau.pivots[fold, :] - xp.linalg.diagonal(tableau.swept[fold])
        product = product + stale[:, None] * on_active
        rest = xp.where(active, -product, products[fold, :, :] - product)
        size = xp.max(xp.abs(held), axis=0)
        difference = xp.max(xp.abs(rest - held), axis=0)
        worst = max(worst, float(xp.max(difference / xp.where(size > 0, size, size + 1))))
    return worst


def apply_pending(xp: Any, tableau: Tableau, keep: Array | None = None) -> Tableau:
    """Apply the pending changes to the matrices, dropping columns that are no longer needed.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the tableau.
    tableau : Tableau
        Used up: its lists of matrices are emptied one by one, so that there never are two sets of
        them. The matrices themselves are not written to.
    keep : array of int, optional
        Positions of the columns to keep; all by default.
    """
    swept, gram = [], []
    tableau.swept.reverse()
    tableau.gram.reverse()
    for fold in range(tableau.pivots.shape[0]):
        u = tableau.pending_u[fold, : tableau.n_pending, :]
        z = tableau.pending_z[fold, : tableau.n_pending, :]
        pivots = tableau.pending_pivots[fold, : tableau.n_pending]
        if keep is not None:
            u, z = xp.take(u, keep, axis=1), xp.take(z, keep, axis=1)
        swept.append(_changed(xp, tableau.swept.pop(), keep, u * -pivots[:, None], u))
        gram.append(_changed(xp, tableau.gram.pop(), keep, xp.concat([-u, -z]), xp.concat([z, u])))
    applied = replace(tableau, swept=swept, gram=gram, n_pending=0)
    if keep is None:
        return applied
    applied = replace(
        applied,
        **{name: xp.take(getattr(tableau, name), keep, axis=1) for name in _BY_COLUMN},
    )
    return with_room(xp, applied, tableau.pending_u.shape[1])


def _changed(xp: Any, matrix: Array, keep: Array | None, left: Array, right: Array) -> Array:
    """Return the kept part of `matrix` plus `left.T @ right`."""
    if keep is None:
        return add_product(xp, matrix, left, right)
    part = xp.take(xp.take(matrix, keep, axis=0), keep, axis=1)
    return add_product(xp, part, left, right, overwrite=True)


_BY_COLUMN = ("pivots", "gram_diagonal", "swept_targets", "gram_targets")
