"""The kernels against plain formulas and refits, over several array libraries."""

from __future__ import annotations

import array_api_compat.numpy as numpy_xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import NUMPY, on_host
from problems import LeastSquaresProblem
from sklearn.linear_model import LinearRegression
from sklearn.metrics import get_scorer

from dagsel import backend
from dagsel.kernels import metrics, moments, tableau

SETTINGS = settings(max_examples=40, deadline=None)


def check_all_toggles(problem, library, state, active):
    found = on_host(tableau.toggled_errors(library.xp, state))
    for fold in range(problem.n_folds):
        np.testing.assert_allclose(
            on_host(state.errors)[fold], problem.refit_errors(fold, active), rtol=1e-9
        )
        for column in range(problem.X.shape[1]):
            expected = problem.refit_errors(fold, active ^ {column})
            np.testing.assert_allclose(found[fold, column], expected, rtol=1e-9)


@pytest.mark.parametrize("full", [True, False])
def test_any_sequence_of_toggles_scores_like_refits(library, full):
    problem = LeastSquaresProblem.random(0)
    p = problem.X.shape[1]
    state = problem.tableau(library, full)
    active = set(range(p)) if full else set()
    for column in (3, 0, 5, 3, 1, 0, 6, 2, 3):
        check_all_toggles(problem, library, state, active)
        state = tableau.toggle(library.xp, state, column, column in active)
        active ^= {column}
        if not state.room:
            state = tableau.apply_pending(library.xp, state)
    check_all_toggles(problem, library, state, active)


@SETTINGS
@given(
    seed=st.integers(0, 2**32 - 1),
    n_targets=st.integers(1, 3),
    full=st.booleans(),
    room=st.integers(1, 5),
    toggles=st.lists(st.integers(0, 5), max_size=10),
)
def test_random_walks_score_like_refits(seed, n_targets, full, room, toggles):
    library = NUMPY
    problem = LeastSquaresProblem.random(seed, n=60, p=6, n_targets=n_targets)
    state = problem.tableau(library, full, room)
    active = set(range(6)) if full else set()
    for column in toggles:
        state = tableau.toggle(numpy_xp, state, column, column in active)
        active ^= {column}
        if not state.room:
            state = tableau.apply_pending(numpy_xp, state)
    check_all_toggles(problem, library, state, active)


def test_dropping_columns_keeps_the_others_scores(library):
    problem = LeastSquaresProblem.random(1)
    xp = library.xp
    state = problem.tableau(library, full=True)
    for column in (2, 4):
        state = tableau.toggle(xp, state, column, active=True)
    kept = [0, 1, 3, 5, 6]
    before = on_host(tableau.toggled_errors(xp, state))
    state = tableau.apply_pending(xp, state, library.asarray(np.array(kept)))
    assert state.n_columns == len(kept)
    after = on_host(tableau.toggled_errors(xp, state))
    np.testing.assert_allclose(after, before[:, kept], rtol=1e-12)
    state = tableau.toggle(xp, state, kept.index(5), active=True)
    after = on_host(tableau.toggled_errors(xp, state))
    expected = problem.refit_errors(0, {0, 1, 3, 6} - {3})
    np.testing.assert_allclose(after[0, kept.index(3)], expected, rtol=1e-9)


@pytest.mark.parametrize("keep", [None, [0, 2, 3]])
def test_applying_changes_writes_to_no_matrix_but_lets_go_of_them(library, keep):
    problem = LeastSquaresProblem.random(2)
    state = problem.tableau(library, full=True)
    matrices = [*state.swept, *state.gram]
    before = [on_host(matrix).copy() for matrix in matrices]
    moved = tableau.toggle(library.xp, state, 1, active=True)
    keep = None if keep is None else library.asarray(np.array(keep))
    tableau.apply_pending(library.xp, moved, keep)
    assert moved.swept == moved.gram == []
    for old, matrix in zip(before, matrices, strict=True):
        np.testing.assert_array_equal(old, on_host(matrix))


@pytest.mark.parametrize("definite", [True, False])
def test_sandwich(library, definite):
    rng = np.random.default_rng(0)
    root, middle = rng.normal(size=(5, 20)), rng.normal(size=(5, 9 if definite else 3))
    inverse, middle = np.linalg.inv(root @ root.T), middle @ middle.T
    found = backend.sandwich(library.xp, library.asarray(inverse), library.asarray(middle))
    np.testing.assert_allclose(on_host(found), inverse @ middle @ inverse, rtol=1e-9, atol=1e-12)


def test_indefinite_matrix_has_no_tableau(library):
    matrix = library.asarray(np.diag([1.0, -1.0]))
    vector, scalar = library.asarray(np.ones((2, 1))), library.asarray(np.ones(1))
    arguments = (matrix, vector, matrix, vector, scalar)
    assert tableau.full_tableau(library.xp, *arguments) is None
    assert backend.cholesky_inverse(library.xp, matrix) is None


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 600])
def test_cholesky_inverse_is_symmetric_and_right(size):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, 2 * size))
    matrix = root @ root.T
    inverse = backend.cholesky_inverse(numpy_xp, matrix)
    np.testing.assert_array_equal(inverse, inverse.T)
    np.testing.assert_allclose(inverse @ matrix, np.eye(size), atol=1e-8)


def test_inverse_in_the_standard_alone(library):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 20))
    matrix = library.asarray(root @ root.T)
    inverse = on_host(backend.cholesky_inverse(library.xp, matrix))
    np.testing.assert_allclose(inverse @ (root @ root.T), np.eye(6), atol=1e-12)


# --------------------------------------------------------------------------------------------------
# Moments


@SETTINGS
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    cut=st.floats(0, 1),
    offset=st.sampled_from([0.0, 10.0, 1e6]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_moments_add_up_over_rows(seed, n, cut, offset, dtype):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, 3)) + offset).astype(dtype)
    Y = rng.normal(size=(n, 1))
    shift = np.concatenate([X[0], Y[0]]).astype(np.float64)
    cut = int(cut * n)
    parts = [
        moments.row_moments(numpy_xp, X[rows], Y[rows], shift)
        for rows in (slice(0, cut), slice(cut, n))
    ]
    whole = moments.sum_moments(parts)
    assert whole.n_rows == n
    rows = np.column_stack([X, Y]).astype(np.float64)
    about = rows - rows.mean(axis=0)
    found = moments.centred(whole, whole.total / n)
    np.testing.assert_allclose(found, about.T @ about, rtol=1e-9, atol=1e-9 * n)


def test_moments_on_every_library(library):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 3)) + 7, rng.normal(size=(20, 2))
    shift = library.asarray(np.zeros(5))
    first = moments.row_moments(library.xp, library.asarray(X), library.asarray(Y), shift)
    second = moments.row_moments(library.xp, library.asarray(X[:8]), library.asarray(Y[:8]), shift)
    rest = moments.subtract_moments(first, second)
    rows = np.column_stack([X, Y])[8:]
    np.testing.assert_allclose(on_host(rest.cross), rows.T @ rows, rtol=1e-10)
    mean = library.asarray(rows.mean(axis=0))
    about = rows - rows.mean(axis=0)
    found = on_host(moments.centred(rest, mean))
    np.testing.assert_allclose(found, about.T @ about, rtol=1e-9, atol=1e-9)


def test_sum_of_no_rows_is_none():
    assert moments.sum_moments([None, None]) is None
    assert moments.add_moments(None, None) is None


def test_shift_saves_the_digits_of_large_columns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 1)) + 1e8
    Y = np.zeros((1000, 1))
    exact = ((X - X.mean()) ** 2).sum()
    shifted = moments.row_moments(numpy_xp, X, Y, np.array([1e8, 0.0]))
    plain = moments.row_moments(numpy_xp, X, Y, np.zeros(2))
    good = moments.centred(shifted, shifted.total / 1000)[0, 0]
    bad = moments.centred(plain, plain.total / 1000)[0, 0]
    assert abs(good / exact - 1) < 1e-10
    assert abs(bad / exact - 1) > 1e-6


@pytest.mark.parametrize("size", [1, 255, 256, 513])
def test_absolute_row_sums(library, size):
    rng = np.random.default_rng(size)
    matrix, weights = rng.normal(size=(size, size)), rng.uniform(size=size)
    found = moments.absolute_row_sums(library.xp, library.asarray(matrix), library.asarray(weights))
    np.testing.assert_allclose(on_host(found), np.abs(matrix) @ weights)


# --------------------------------------------------------------------------------------------------
# Metrics


@pytest.mark.parametrize("metric", metrics.METRICS)
@pytest.mark.parametrize("n_targets", [1, 3])
def test_scores_equal_scikit_learn(library, metric, n_targets):
    rng = np.random.default_rng(0)
    Y, predicted = rng.normal(size=(2, 11, n_targets))
    errors = ((Y - predicted) ** 2).sum(axis=0)[None, None, :]
    variation = ((Y - Y.mean(axis=0)) ** 2).sum(axis=0)[None, :]
    found = metrics.score_from_errors(
        library.xp,
        metric,
        library.asarray(errors),
        library.asarray(np.array([11.0])),
        library.asarray(variation),
    )

    class Fixed:
        def predict(self, X):
            return predicted

        def fit(self, X, y):
            return self

        def __sklearn_tags__(self):
            return LinearRegression().__sklearn_tags__()

    expected = get_scorer(metric)(Fixed(), np.zeros((11, 1)), Y)
    np.testing.assert_allclose(on_host(found), [[expected]], rtol=1e-12)


def test_r2_in_its_corner_cases():
    errors = np.array([[[0.0], [2.0]], [[1.0], [0.0]]])
    found = metrics.score_from_errors(
        np, "r2", errors, np.array([5.0, 1.0]), np.array([[0.0], [0.0]])
    )
    np.testing.assert_array_equal(found, [[1.0, 0.0], [np.nan, np.nan]])
