"""The factors of a fold against refits and plain pseudo-inverses, over several array libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat.numpy as numpy_xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import NUMPY, on_host
from problems import product_of
from sklearn import metrics
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import PolynomialFeatures

from dagsel import backend
from dagsel.kernels import (
    candidates,
    factor_updates,
    factors,
    predictions,
    pseudo_inverse,
    truncation,
)


@dataclass
class Fold:
    """Training and test rows, and plain refits on them."""

    X: np.ndarray
    Y: np.ndarray
    alpha: float | None = None
    mode: str = "primal"

    def __post_init__(self):
        self.Y = self.Y.reshape(len(self.Y), -1)
        n = len(self.X) // 3
        self.test, self.train = np.arange(n), np.arange(n, len(self.X))

    def state(self, library, active):
        mean, centre = self.X[self.train].mean(axis=0), self.Y[self.train].mean(axis=0)
        train, goal = (self.X[self.train] - mean).T, self.Y[self.train] - centre
        train[np.abs(train).max(axis=1) <= 1e-14 * np.abs(mean)] = 0.0
        test, test_goal = (self.X[self.test] - mean).T, self.Y[self.test] - centre
        p, t = len(train), goal.shape[1]
        if self.alpha is not None and self.mode == "primal":
            train = np.hstack([train, np.sqrt(self.alpha) * np.eye(p)])
            goal = np.vstack([goal, np.zeros((p, t))])
        arrays = [library.asarray(each) for each in (train, goal, test, test_goal)]
        xp = library.xp
        chosen = library.asarray(np.array(sorted(active), dtype=np.int64))
        if self.mode == "dual":
            return factors.dual_factors(xp, *arrays, chosen, self.alpha)
        arrays[0], arrays[1] = pseudo_inverse.triangular_rows(xp, arrays[0], arrays[1])
        cutoff = 1e-9 if self.alpha is None else None
        inverse = pseudo_inverse.pseudo_inverse(xp, xp.take(arrays[0], chosen, axis=0), cutoff)
        return factors.least_squares_factors(xp, *arrays, chosen, inverse)

    def refit(self, active):
        train, test = self.Y[self.train], self.Y[self.test]
        if not active:
            return test - train.mean(axis=0)
        columns = sorted(active)
        ridge = self.alpha is not None
        model: Any = Ridge(self.alpha) if ridge else LinearRegression(tol=1e-9)
        model.fit(self.X[self.train][:, columns], train)
        return test - model.predict(self.X[self.test][:, columns]).reshape(test.shape)


def check_state(fold, library, state, active, rtol):
    expected = fold.refit(active)
    scale = np.abs(expected).max()
    rtol = within(state, rtol)
    np.testing.assert_allclose(on_host(state.residuals), expected, rtol=0, atol=rtol * scale)


def within(state, rtol):
    """How near: what has been near to singularity on the way has lost digits for good."""
    return min(1e-8, max(rtol, 1e-14 * state.growth**2))


def check_candidates(fold, library, state, active, chosen, rtol):
    """Errors and residuals of candidates of both kinds against refits."""
    xp, rtol = library.xp, within(state, rtol)
    for removal in (True, False):
        positions = np.array([j for j in chosen if (j in active) == removal], dtype=np.int64)
        if not len(positions):
            continue
        places = library.asarray(positions)
        steps = candidates.candidate_steps(xp, state, places, removal=removal)
        assert not steps.unclear
        errors, reach = candidates.toggled_errors(xp, state, steps, places)
        residuals = on_host(candidates.candidate_residuals(xp, state, steps, places))
        assert (on_host(reach) >= 0).all()
        for row, position in enumerate(positions):
            expected = fold.refit(active ^ {int(position)})
            scale = np.abs(expected).max()
            np.testing.assert_allclose(residuals[row].T, expected, rtol=0, atol=rtol * scale)
            np.testing.assert_allclose(
                on_host(errors)[row], (expected**2).sum(axis=0), rtol=20 * rtol
            )


def walk(fold, library, start, moves, rtol=1e-10, every=1, **options):
    """Toggle columns one by one, comparing all candidates with refits on the way."""
    state, active = fold.state(library, start), set(start)
    p = fold.X.shape[1]
    check_state(fold, library, state, active, rtol)
    for number, column in enumerate(moves):
        if number % every == 0:
            chosen = range(p) if p < 15 else moves[number : number + 5]
            check_candidates(fold, library, state, active, chosen, rtol)
        state = factor_updates.toggle(library.xp, state, column, **options)
        active ^= {column}
        check_state(fold, library, state, active, rtol)
    assert set(np.flatnonzero(on_host(state.active))) == active
    assert not state.unclear
    assert float(np.sum(on_host(state.null))) == pytest.approx(state.nullity, abs=1e-8)
    return state


def independent(seed=0, n=60, p=7, t=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.3 * rng.normal(size=(p, p))) + 3
    return X, X[:, :2] @ rng.normal(size=(2, t)) + rng.normal(size=(n, t))


def one_hot(seed=0, n=60):
    rng = np.random.default_rng(seed)
    sets = [np.eye(4)[rng.integers(4, size=n)], np.eye(3)[rng.integers(3, size=n)]]
    X = np.hstack([*sets, rng.normal(size=(n, 2))])
    return X, X @ rng.normal(size=9) + rng.normal(size=n)


def duplicates(seed=0, n=60):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    X = np.hstack([X, X[:, :2], 2 * X[:, :1], X[:, :1] + X[:, 1:2], np.full((n, 1), 4.1)])
    return X, X[:, :4] @ rng.normal(size=4) + rng.normal(size=n)


def wide(seed=0, n=21, p=18):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, X[:, :3].sum(axis=1) + rng.normal(size=n)


DATA = {"independent": independent, "one-hot": one_hot, "duplicates": duplicates, "wide": wide}


@pytest.mark.parametrize("start", ["all", "none"])
@pytest.mark.parametrize("data", DATA)
def test_any_sequence_of_toggles_gives_the_refits_residuals(library, data, start):
    X, y = DATA[data]()
    p = X.shape[1]
    moves = [3, 0, 5, 3, 1, 0, 6, 2, 3, *range(p), 4, 4]
    fold = Fold(X, y)
    every = 1 if library is NUMPY else 6
    walk(fold, library, range(p) if start == "all" else (), moves, every=every)


@pytest.mark.parametrize(
    ("data", "start", "mode"),
    product_of(DATA, ["all", "none"], ["primal", "dual"], plain=lambda i, j, k: (i + j) % 2 == k),
)
def test_ridge(library, data, start, mode):
    X, y = DATA[data]()
    p = X.shape[1]
    moves = [3, 0, 5, 3, 1, 0, 6, *range(p)]
    every = 1 if library is NUMPY else 6
    fold = Fold(X, y, alpha=0.7, mode=mode)
    walk(fold, library, range(p) if start == "all" else (), moves, every=every)


@settings(max_examples=40, deadline=None)
@given(
    data=st.sampled_from(sorted(DATA)),
    seed=st.integers(0, 2**32 - 1),
    full=st.booleans(),
    overwrite=st.booleans(),
    toggles=st.lists(st.integers(0, 6), max_size=12),
)
def test_random_walks(data, seed, full, overwrite, toggles):
    X, y = DATA[data](seed)
    start = range(X.shape[1]) if full else ()
    fold = Fold(X, y)
    state, active = fold.state(NUMPY, start), set(start)
    for number, column in enumerate(toggles):
        state = factor_updates.toggle(numpy_xp, state, column, overwrite=overwrite and number > 0)
        active ^= {column}
    growth = max(1.0, state.growth)
    check_state(fold, NUMPY, state, active, 1e-13 * growth**2)


@pytest.mark.parametrize("n", [30, 60, 90])
def test_down_through_the_interpolation_threshold(n):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 60))
    fold = Fold(X, X[:, :5].sum(axis=1) + rng.normal(size=n))
    order = rng.permutation(60)[:58].tolist()
    walk(fold, NUMPY, range(60), order, rtol=1e-9, every=7, overwrite=False, keep_inactive=True)


@pytest.mark.parametrize("start", ["all", "none"])
def test_second_order_terms_and_constant_pixels(start):
    X, y = load_diabetes(return_X_y=True)
    pixels, digit = load_digits(return_X_y=True)
    for columns, target in (
        (PolynomialFeatures(2).fit_transform(X)[:150], y[:150]),
        (pixels[:150], digit[:150].astype(float)),
    ):
        p = columns.shape[1]
        order = np.random.default_rng(0).permutation(p)[: p - 2].tolist()
        walk(Fold(columns, target), NUMPY, range(p) if start == "all" else (), order, every=9)


def test_in_place_and_not_agree_and_nothing_else_is_written_to():
    for data in DATA.values():
        X, y = data()
        state = Fold(X, y).state(NUMPY, range(X.shape[1]))
        arrays = {name: np.array(value) for name, value in vars(state).items() if _is(value)}
        pure = state
        for column in (2, 0, 2, 4):
            pure = factor_updates.toggle(numpy_xp, pure, column)
        for name, value in arrays.items():
            np.testing.assert_array_equal(getattr(state, name), value)
        train, test = state.train.copy(), state.test.copy()
        owned = state
        for column in (2, 0, 2, 4):
            owned = factor_updates.toggle(numpy_xp, owned, column, overwrite=True)
        np.testing.assert_array_equal(train, state.train)
        np.testing.assert_array_equal(test, state.test)
        for name in arrays:
            np.testing.assert_array_equal(getattr(pure, name), getattr(owned, name))


def _is(value):
    return isinstance(value, np.ndarray)


def test_backward_alone_gives_the_same_without_the_inactive_columns(library):
    X, y = duplicates()
    fold = Fold(X, y)
    state, active = fold.state(library, range(9)), set(range(9))
    for column in (8, 0, 5, 7):
        state = factor_updates.toggle(library.xp, state, column, keep_inactive=False)
        active ^= {column}
    keep = sorted(active)
    state = factors.columns_kept(library.xp, state, library.asarray(np.array(keep)))
    assert state.n_columns == len(keep)
    places = library.asarray(np.arange(len(keep)))
    steps = candidates.candidate_steps(library.xp, state, places, removal=True)
    errors = on_host(candidates.toggled_errors(library.xp, state, steps, places)[0])
    for row, column in enumerate(keep):
        expected = (fold.refit(active ^ {column}) ** 2).sum(axis=0)
        np.testing.assert_allclose(errors[row], expected, rtol=1e-10)


def test_a_group_of_columns_is_removed_as_one(library):
    X, y = independent()
    fold = Fold(X, y)
    state = fold.state(library, range(7))
    group = factors.columns_kept(
        library.xp, state, library.asarray(np.array([1, 4, 6])), complete=False
    )
    for place in range(3):
        group = factor_updates.toggle(library.xp, group, place, keep_inactive=False)
    np.testing.assert_allclose(on_host(group.residuals), fold.refit({0, 2, 3, 5}), rtol=1e-10)


# --------------------------------------------------------------------------------------------------
# Pseudo-inverses


@pytest.mark.parametrize("data", DATA)
def test_pseudo_inverse(library, data):
    X, _ = DATA[data]()
    X = X - X.mean(axis=0)
    X[:, np.abs(X).max(axis=0) < 1e-14] = 0.0
    found = pseudo_inverse.pseudo_inverse(library.xp, library.asarray(X.T), 1e-9)
    expected = np.linalg.pinv(X, rcond=1e-9)
    np.testing.assert_allclose(on_host(found.duals), expected, atol=1e-12)
    null = np.diag(np.eye(X.shape[1]) - expected @ X)
    np.testing.assert_allclose(on_host(found.null), null, atol=1e-13)
    assert (on_host(found.null)[null < 1e-12] == 0).all()
    values = np.linalg.svd(X, compute_uv=False)
    assert found.rank == np.count_nonzero(values > 1e-9 * values[0])
    assert found.norm >= values[0] ** 2 * (1 - 1e-12)
    assert found.inverse_norm >= values[found.rank - 1] ** -2 * (1 - 1e-9)
    basis = on_host(found.basis)
    np.testing.assert_allclose(basis.T @ basis, np.eye(found.rank), atol=1e-12)
    assert not found.unclear
    assert found.dropped < 1e-14


def test_no_columns_and_what_is_dropped():
    nothing = pseudo_inverse.pseudo_inverse(numpy_xp, np.zeros((0, 5)), 1e-6)
    assert nothing.rank == 0
    assert nothing.duals.shape == (0, 5)
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(4, 9))
    columns[3] = columns[0] + 1e-9 * columns[3]
    found = pseudo_inverse.pseudo_inverse(numpy_xp, columns, 1e-6)
    assert found.rank == 3
    assert 1e-11 < found.dropped < 1e-8


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6])
def test_small_parts_of_the_null_space_have_all_their_digits(library, size):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 4))
    # The null vector is (size, 1, 0, 0, -1), normalised.
    X = np.column_stack([X, size * X[:, 0] + X[:, 1]])
    found = pseudo_inverse.pseudo_inverse(library.xp, library.asarray(X.T), 1e-9)
    vector = np.array([size, 1, 0, 0, -1])
    expected = vector**2 / (vector @ vector)
    np.testing.assert_allclose(on_host(found.null), expected, rtol=1e-8)
    assert on_host(found.null)[2] == 0


def test_triangular_rows_keep_the_products(library):
    rng = np.random.default_rng(0)
    columns, targets = rng.normal(size=(4, 30)), rng.normal(size=(30, 2))
    train, goal = pseudo_inverse.triangular_rows(
        library.xp, library.asarray(columns), library.asarray(targets)
    )
    train, goal = on_host(train), on_host(goal)
    assert train.shape == (4, 6)
    np.testing.assert_allclose(train @ train.T, columns @ columns.T, atol=1e-12)
    np.testing.assert_allclose(train @ goal, columns @ targets, atol=1e-12)
    np.testing.assert_allclose(goal.T @ goal, targets.T @ targets, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 30), (30, 4), (6, 7)])
def test_singular_values(library, shape):
    rows = np.random.default_rng(0).normal(size=shape)
    found = on_host(pseudo_inverse.singular_values(library.xp, library.asarray(rows)))
    np.testing.assert_allclose(found, np.linalg.svd(rows, compute_uv=False), rtol=1e-12)


def test_bounds_hold_on_the_way():
    for data in DATA.values():
        X, y = data()
        fold = Fold(X, y)
        p = X.shape[1]
        state, active = fold.state(NUMPY, range(p)), set(range(p))
        for column in [0, 3, 5, 0, 2, 1, 4]:
            state = factor_updates.toggle(numpy_xp, state, column)
            active ^= {column}
            values = np.linalg.svd(state.train[sorted(active)], compute_uv=False)
            kept = values[values > 1e-9 * values[0]]
            assert len(active) - len(kept) == state.nullity
            assert state.norm >= kept[0] ** 2 * (1 - 1e-9)
            assert state.inverse_norm >= kept[-1] ** -2 * (1 - 1e-9)


# --------------------------------------------------------------------------------------------------
# Cut-off singular values


def test_what_a_cutoff_takes_from_a_candidate(library):
    """Of two columns that share a direction the one that is small alone is cut off."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 6))
    X[:, 4] *= 1e-7
    X[:, 5] = X[:, 4] + X[:, 0]
    y = X[:, 0] + rng.normal(size=60)
    fold = Fold(X, y)
    state = fold.state(library, range(6))
    assert state.nullity == 1
    xp = library.xp
    values, vectors, error = truncation.largest_inverse_values(xp, state, 5, 3)
    assert error < 1e-12
    train = on_host(state.train)
    singular = np.linalg.svd(train[:5], compute_uv=False)
    np.testing.assert_allclose(on_host(values)[0] ** -0.5, singular[-1], rtol=1e-7)
    np.testing.assert_allclose(
        truncation.largest_value(xp, state, 5) ** 0.5, singular[0], rtol=1e-9
    )
    places = library.asarray(np.array([5]))
    steps = candidates.candidate_steps(xp, state, places, removal=True)
    residuals = on_host(candidates.candidate_residuals(xp, state, steps, places))[0].T
    change = on_host(truncation.truncated_change(xp, state, 5, vectors[:, :1]))
    model = LinearRegression(tol=1e-6).fit(X[fold.train][:, :5], y[fold.train])
    expected = y[fold.test] - model.predict(X[fold.test][:, :5])
    np.testing.assert_allclose((residuals + change)[:, 0], expected, rtol=1e-7)
    assert np.abs(change).max() > 1e-3


# --------------------------------------------------------------------------------------------------
# Predictions and outer products


def test_scores_of_many_predictions(library):
    rng = np.random.default_rng(0)
    truth, found, weight = (
        rng.normal(size=(2, 9)),
        rng.normal(size=(5, 2, 9)),
        rng.uniform(size=9),
    )
    arrays = [library.asarray(each) for each in (truth, found, weight)]
    xp = library.xp
    plain = on_host(predictions.mean_absolute_error(xp, *arrays[:2]))
    weighted = on_host(predictions.mean_absolute_error(xp, *arrays))
    median = on_host(predictions.median_absolute_error(xp, *arrays[:2]))
    largest = on_host(predictions.max_error(xp, *arrays[:2]))
    for row, each in enumerate(found):
        assert plain[row] == pytest.approx(metrics.mean_absolute_error(truth.T, each.T))
        assert weighted[row] == pytest.approx(
            metrics.mean_absolute_error(truth.T, each.T, sample_weight=weight)
        )
        assert median[row] == pytest.approx(metrics.median_absolute_error(truth.T, each.T))
        assert largest[row] == pytest.approx(np.abs(truth - each).max())


@pytest.mark.parametrize("n_classes", [2, 4])
def test_chosen_classes_and_accuracy(library, n_classes):
    rng = np.random.default_rng(0)
    t = 1 if n_classes == 2 else n_classes
    decisions, weight = rng.normal(size=(3, t, 20)), rng.uniform(size=20)
    truth = rng.integers(n_classes, size=20)
    xp = library.xp
    classes, margin = predictions.chosen_classes(xp, library.asarray(decisions))
    expected = (decisions[:, 0] > 0) if t == 1 else decisions.argmax(axis=1)
    np.testing.assert_array_equal(on_host(classes), expected)
    assert (on_host(margin) >= 0).all()
    shares = on_host(predictions.accuracy(xp, library.asarray(truth), classes))
    np.testing.assert_allclose(shares, (expected == truth).mean(axis=1))
    shares = on_host(
        predictions.accuracy(xp, library.asarray(truth), classes, library.asarray(weight))
    )
    np.testing.assert_allclose(shares, (expected == truth) @ weight / weight.sum())


@pytest.mark.parametrize("overwrite", [True, False])
def test_add_outer(library, overwrite):
    overwrite = overwrite and not library.read_only
    rng = np.random.default_rng(0)
    matrix, left, right = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3)
    given_ = library.asarray(matrix)
    found = backend.add_outer(
        library.xp, given_, library.asarray(left), library.asarray(right), overwrite=overwrite
    )
    np.testing.assert_allclose(on_host(found), matrix + np.outer(left, right))
    if not overwrite:
        np.testing.assert_array_equal(on_host(given_), matrix)
