"""One fold of least squares held as factors of its rows: any rank, any condition that can be had.

Where the moments of the rows would lose digits or have no inverse, the rows themselves (or a
triangular factor of them) still give every candidate's test residuals. Notation, for one fold:
X are the training rows (centred, weighted), Y their targets, T and E the test rows and targets
about the training means, S the active columns, W = (X_S'X_S)⁺ and N = I − X_S⁺X_S. Arrays are
stored with a row for each column of X, so that a column is contiguous. They hold

* `duals`, V: for an active l the column of (X_S⁺)', for an inactive one its residual on X_S;
* `steps`, B: for an active l the test image T W e_l;
* `images`, C: T (e_l − X_S⁺ x_l), for an active l the test image of N e_l;
* `coefficients` β and test `residuals` e = E − T_S β_S.

Toggling column j moves the test residuals by e + g_j z_j:

    removal of an essential column (N_jj = 0)     z = B_j    g = β_j / W_jj
    removal of a redundant one                    z = C_j    g = β_j / N_jj
    addition of an independent one                z = C_j    g = −u_j'Y / ρ_j,  u = V_j, ρ = |u|²
    addition of a dependent one                   z = C_j    g = −s'β_S / (1 + |s|²),  s = V_S'x_j

The updates of V are those of Greville (1960) and Meyer (1973) for the pseudo-inverse of a matrix
that gains or loses a column; those of B and C follow. So solutions are those of minimum norm, as
LAPACK's least-squares drivers return them.

Ridge needs no ranks. With fewer columns than rows it is least squares with √α I below the rows.
With more, the "dual" mode holds V = K⁻¹X with K = X_S X_S' + α I, and C_l = T(e_l − X_S'V_l):
memory stays that of the rows, and every toggle has the one form with pivot 1 ∓ v_j'x_j.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from dagsel.backend import EPSILON, Array, is_numpy
from dagsel.kernels.pseudo_inverse import PseudoInverse

__all__ = [
    "DUAL",
    "LEAST_SQUARES",
    "Factors",
    "Places",
    "columns_kept",
    "dual_factors",
    "is_independent",
    "least_squares_factors",
    "measured",
    "owned",
    "present_growth",
    "removal_growth",
]

Mode = Literal["least squares", "dual"]
LEAST_SQUARES: Mode = "least squares"
DUAL: Mode = "dual"

# An inactive column whose residual is shorter than this part of it depends on the active ones.
_DEPENDENT = 1e-10
# Where residuals have shrunk to less than this part of what they were, they are computed anew.
_SHRUNK = 0.1


@dataclass(frozen=True)
class Factors:
    """State of one fold over m columns, r training rows, q test rows and t targets.

    Attributes
    ----------
    mode : {"least squares", "dual"}
        See the module's text.
    train : array of shape (m, r)
        X'. Never written to.
    targets : array of shape (r, t)
        Y.
    test : array of shape (m, q)
        T'. Never written to.
    test_targets : array of shape (q, t)
        E.
    duals, steps, images : array of shape (m, r), (m, q) and (m, q)
        V', B' and C'. In dual mode `steps` has no rows.
    coefficients : array of shape (m, t)
        β, zero where a column is inactive.
    residuals : array of shape (q, t)
        e.
    active : array of bool of shape (m,)
        Which columns are in the model.
    null : array of shape (m,)
        Diagonal of N for active columns, exactly zero for those that are essential.
    norms : array of shape (m,)
        Squared norms of the rows of `duals`; in dual mode v_l'x_l.
    squares : array of shape (m,)
        Squared norms of the columns of X.
    nullity : int
        Number of active columns less their rank.
    inverse_norm, norm : float
        Upper bounds of the largest eigenvalues of W and of X_S'X_S.
    growth : float
        Largest norm, since the state was built, of the pseudo-inverse of the active columns
        scaled to unit length: by it relative rounding errors grow.
    size : array of shape (t,)
        Largest norm of the residuals since the state was built.
    unclear : bool
        Whether it could not be told, at some point, if a column is essential.
    complete : bool
        Whether all columns of the model are among the m, and not just a group of them.
    penalty : float
        Of the dual mode; 0 otherwise.
    """

    mode: Mode
    train: Array
    targets: Array
    test: Array
    test_targets: Array
    duals: Array
    steps: Array
    images: Array
    coefficients: Array
    residuals: Array
    active: Array
    null: Array
    norms: Array
    squares: Array
    nullity: int
    inverse_norm: float
    norm: float
    growth: float
    size: Array
    unclear: bool = False
    complete: bool = True
    penalty: float = 0.0

    def __sizeof__(self) -> int:
        """Return the bytes of the arrays: by it Dask places tasks and watches memory."""
        return sum(int(a.size) * 8 for a in vars(self).values() if hasattr(a, "size"))

    @property
    def n_columns(self) -> int:
        """Number of columns, m."""
        return int(self.train.shape[0])


_BY_COLUMN = (
    "train",
    "test",
    "duals",
    "steps",
    "images",
    "coefficients",
    "active",
    "null",
    "norms",
    "squares",
)


def least_squares_factors(
    xp: Any,
    train: Array,
    targets: Array,
    test: Array,
    test_targets: Array,
    chosen: Array,
    inverse: PseudoInverse,
) -> Factors:
    """Build the state of a least-squares fold.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    train, targets, test, test_targets : array of shape (m, r), (r, t), (m, q) and (q, t)
        X', Y, T' and E; kept by the state.
    chosen : array of int of shape (k,)
        The active columns.
    inverse : PseudoInverse
        Of ``train[chosen, :]``, see `dagsel.kernels.pseudo_inverse.pseudo_inverse`.
    """
    places = Places.of(xp, train, chosen)
    active_train, active_test = places.inside(train), places.inside(test)
    duals = inverse.duals
    beta = xp.matmul(duals, targets)
    other_train = places.outside(train)
    residual = other_train
    for _ in range(2):  # once more for the digits that the first time leaves
        residual = residual - xp.matmul(xp.matmul(residual, inverse.basis), inverse.basis.T)
    spanned = _images_of(xp, other_train, duals, active_test)
    redundant = Places.of(xp, active_test, xp.nonzero(inverse.null > 0)[0])
    kept = _images_of(xp, redundant.inside(active_train), duals, active_test)
    null_images = redundant.merged(redundant.inside(active_test) - kept, None)
    state = Factors(
        mode=LEAST_SQUARES,
        train=train,
        targets=targets,
        test=test,
        test_targets=test_targets,
        duals=places.merged(duals, residual),
        steps=places.merged(xp.matmul(duals, xp.matmul(duals.T, active_test)), None),
        images=places.merged(null_images, places.outside(test) - spanned),
        coefficients=places.merged(beta, None),
        residuals=test_targets - xp.matmul(active_test.T, beta),
        active=places.mask,
        null=places.merged(inverse.null, None),
        norms=train[:, 0],
        squares=xp.linalg.vecdot(train, train),
        nullity=int(chosen.shape[0]) - inverse.rank,
        inverse_norm=inverse.inverse_norm,
        norm=inverse.norm,
        growth=1.0,
        size=xp.zeros_like(test_targets[0, :]),
        unclear=inverse.unclear,
    )
    return measured(xp, state)


# From so many columns to a row on, coefficients of all columns on all others are not written down.
_WIDE = 4


def _images_of(xp: Any, columns: Array, duals: Array, active_test: Array) -> Array:
    """Return the images in the test rows of columns' projections on the span of the active ones.

    By their coefficients on the active columns; where these are many more than rows, in an order
    that takes memory in proportion to the rows and not to the columns.
    """
    if duals.shape[0] > _WIDE * duals.shape[1]:
        return xp.matmul(columns, xp.matmul(duals.T, active_test))
    return xp.matmul(xp.matmul(columns, duals.T), active_test)


def dual_factors(
    xp: Any,
    train: Array,
    targets: Array,
    test: Array,
    test_targets: Array,
    chosen: Array,
    penalty: float,
) -> Factors:
    """Build the state of a ridge fold in dual mode; parameters as in `least_squares_factors`."""
    places = Places.of(xp, train, chosen)
    active_train, active_test = places.inside(train), places.inside(test)
    kernel = xp.matmul(active_train.T, active_train)
    kernel = kernel + penalty * xp.eye(train.shape[1], dtype=train.dtype, device=train.device)
    duals = xp.linalg.solve(kernel, train.T)
    # One step of refinement.
    duals = (duals + xp.linalg.solve(kernel, train.T - xp.matmul(kernel, duals))).T
    beta = xp.matmul(places.inside(duals), targets)
    squares = xp.linalg.vecdot(train, train)
    state = Factors(
        mode=DUAL,
        train=train,
        targets=targets,
        test=test,
        test_targets=test_targets,
        duals=owned(xp, duals),
        steps=test[:0, :],
        images=test - xp.matmul(duals, xp.matmul(active_train.T, active_test)),
        coefficients=places.merged(beta, None),
        residuals=test_targets - xp.matmul(active_test.T, beta),
        active=places.mask,
        null=xp.zeros_like(squares),
        norms=squares,
        squares=squares,
        nullity=0,
        inverse_norm=1 / penalty,
        norm=float(xp.sum(places.inside(squares))),
        growth=1.0,
        size=xp.zeros_like(test_targets[0, :]),
        penalty=penalty,
    )
    return measured(xp, state)


def owned(xp: Any, array: Array) -> Array:
    """Return a copy in C order, which may be written to."""
    return xp.array(array, order="C") if is_numpy(xp) else xp.asarray(array, copy=True)


@dataclass(frozen=True)
class Places:
    """Some of m rows and the others. The array API has no assignment to index arrays."""

    xp: Any
    chosen: Array
    others: Array
    order: Array
    mask: Array

    @classmethod
    def of(cls, xp: Any, like: Array, chosen: Array) -> Places:
        """Choose rows, by their indices, of arrays with as many rows as `like`."""
        index = xp.arange(like.shape[0], device=like.device)
        mask = _mask(xp, index, chosen)
        others = xp.nonzero(~mask)[0]
        return cls(xp, chosen, others, xp.argsort(xp.concat([chosen, others])), mask)

    def inside(self, array: Array) -> Array:
        """Return the chosen rows."""
        return self.xp.take(array, self.chosen, axis=0)

    def outside(self, array: Array) -> Array:
        """Return the other rows, in their order."""
        return self.xp.take(array, self.others, axis=0)

    def merged(self, inside: Array, outside: Array | None) -> Array:
        """Return rows at their places; zeros where none are given for the others."""
        xp = self.xp
        if outside is None:
            shape = (self.others.shape[0], *inside.shape[1:])
            outside = xp.zeros(shape, dtype=inside.dtype, device=inside.device)
        return xp.take(xp.concat([inside, outside]), self.order, axis=0)


def _mask(xp: Any, index: Array, chosen: Array) -> Array:
    if not chosen.shape[0]:
        return xp.zeros(index.shape, dtype=xp.bool, device=index.device)
    sorted_ = xp.sort(chosen)
    found = xp.searchsorted(sorted_, index)
    found = xp.where(found < sorted_.shape[0], found, xp.zeros_like(found))
    return xp.take(sorted_, found) == index


def columns_kept(xp: Any, state: Factors, keep: Array, *, complete: bool = True) -> Factors:
    """Return the state with the columns `keep` (array of int) alone, in that order.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
        Not written to.
    keep : array of int
    complete : bool
        Whether all active columns are kept. A group of columns without the other active ones can
        be removed, one after the other, but a dependent column cannot be added to it.
    """
    names = [name for name in _BY_COLUMN if name != "steps" or state.mode == LEAST_SQUARES]
    kept = {name: xp.take(getattr(state, name), keep, axis=0) for name in names}
    return replace(state, complete=state.complete and complete, **kept)


def is_independent(state: Factors) -> Array:
    """Return which columns, if inactive, are independent of the active ones; shape (m,)."""
    return state.norms > _DEPENDENT**2 * state.squares


def measured(xp: Any, state: Factors, **changed: Array) -> Factors:
    """Return the state with its norms and bounds brought up to date."""
    before = state.size
    state = replace(state, **changed)
    other = state.train if state.mode == DUAL else state.duals
    norms = xp.linalg.vecdot(state.duals, other)
    active = xp.astype(state.active, norms.dtype)
    norm = min(state.norm, float(xp.sum(active * state.squares)))
    if state.mode == DUAL:
        # The condition number of K bounds the relative error of K⁻¹X. Its inverse's trace is known
        # from that of the smoother K⁻¹X_S X_S'.
        left = max(float(state.train.shape[1] - xp.sum(active * norms)), EPSILON)
        inverse_norm = (left + EPSILON * state.train.shape[1]) / state.penalty
        growth = 1 + norm * inverse_norm
    else:
        growth = float(xp.sum(active * state.squares * norms)) ** 0.5
        inverse_norm = min(state.inverse_norm, float(xp.sum(active * norms)))
    size = xp.sqrt(xp.sum(state.residuals * state.residuals, axis=0))
    state = replace(
        state,
        norms=norms,
        norm=norm,
        inverse_norm=inverse_norm,
        growth=max(state.growth, growth),
        size=xp.where(before > size, before, size),
    )
    shrunk = state.complete and bool(xp.any(size < _SHRUNK * before))
    return _with_new_residuals(xp, state) if shrunk else state


def present_growth(xp: Any, state: Factors) -> float:
    """Return the growth of rounding errors that the present columns would have if built anew."""
    if state.mode == DUAL:
        return 1 + state.norm * state.inverse_norm
    active = xp.astype(state.active, state.norms.dtype)
    growth: float = max(1.0, float(xp.sum(active * state.squares * state.norms)) ** 0.5)
    return growth


# Errors of images as a part of their bound: the largest that was measured is 1/170.
_IMAGE_PART = 1 / 30


def removal_growth(xp: Any, state: Factors, redundant: Array) -> Array:
    """Return the growth of rounding errors of the steps of redundant columns' removals.

    The entries of the column N e_j of the null-space projector are known to ε |v_k| |x_j|, with v_k
    the rows of X_S⁺. A step has the image T N e_j, of which little can be left where test rows are
    far from zero, and is divided by N_jj, the sum of the squares of N e_j.

    Parameters
    ----------
    xp : namespace
        Array API namespace of the state.
    state : Factors
        In least-squares mode.
    redundant : array of int of shape (c,)

    Returns
    -------
    array of shape (c,)
        Relative to the step.
    """
    images = xp.take(state.images, redundant, axis=0)
    left = xp.linalg.vecdot(images, images)
    active = xp.astype(state.active, state.norms.dtype)
    made_from = xp.sum(active * state.norms * xp.linalg.vecdot(state.test, state.test))
    lost = _IMAGE_PART**2 * made_from / xp.where(left > 0, left, made_from + 1.0)
    divided = state.inverse_norm / xp.take(state.null, redundant)
    return (xp.take(state.squares, redundant) * xp.maximum(lost, divided)) ** 0.5


def _with_new_residuals(xp: Any, state: Factors) -> Factors:
    """Return the state with coefficients and residuals free of what was larger before."""
    beta = xp.matmul(state.duals, state.targets)
    beta = xp.where(state.active[:, None], beta, xp.zeros_like(beta))
    residuals = state.test_targets - xp.matmul(state.test.T, beta)
    size = xp.sqrt(xp.sum(residuals * residuals, axis=0))
    return replace(state, coefficients=beta, residuals=residuals, size=size)
