"""Minimum-norm scores from a tableau and a thin null space, against scikit-learn's lstsq."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from libraries import NUMPY, on_host
from problems import LeastSquaresProblem
from sklearn.linear_model import LinearRegression

from dagsel.backend import independent_columns
from dagsel.engines.linear_model import LinearModel
from dagsel.engines.moments.dependent_start import dependent_start
from dagsel.engines.moments.fold_start import FoldFacts, start_fold
from dagsel.engines.moments.part_errors import Candidates, part_errors
from dagsel.engines.moments.tableau_part import joined, make_parts, toggled
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels import nullspace, tableau
from dagsel.kernels.moments import column_sums, row_moments

SETTINGS = settings(max_examples=60, deadline=None)
MODEL = LinearModel(fit_intercept=True, cutoff=1e-6)


def table(seed, kind, n=70, n_targets=2):
    """Return features of which some are dependent, in units of their own, and targets."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8))
    if kind == "duplicates":
        X = np.column_stack([X, X[:, 2], -3 * X[:, 5], X[:, 2]])
    elif kind == "one-hot":
        levels = rng.integers(0, 4, n)
        X = np.column_stack([X[:, :4], np.eye(4)[levels], np.eye(3)[rng.integers(0, 3, n)]])
    elif kind == "sums":
        X = np.column_stack([X, X[:, 0] + X[:, 1], X[:, 2] - 2 * X[:, 3] + X[:, 4]])
        X = np.column_stack([X, X[:, 8] + X[:, 9]])
    elif kind == "constants":
        X = np.column_stack([X, np.full(n, 3.3), np.zeros(n), X[:, 1]])
    X = X * rng.permutation(np.geomspace(0.3, 30, X.shape[1]))
    Y = X[:, :3] @ rng.normal(size=(3, n_targets)) + 4 * rng.normal(size=(n, n_targets))
    return X, Y


KINDS = ("duplicates", "one-hot", "sums", "constants")


class Fold:
    """One fold of a table, its refits, and its part as the engine makes it."""

    def __init__(self, X, Y, full, library):
        self.X, self.Y = X, Y
        self.train = np.arange(len(X)) >= 15
        shift = library.asarray(np.zeros(X.shape[1] + Y.shape[1]))
        train, test = (
            row_moments(library.xp, library.asarray(X[rows]), library.asarray(Y[rows]), shift)
            for rows in (self.train, ~self.train)
        )
        facts = FoldFacts(0, 15, 15.0, np.ones(Y.shape[1]))
        columns = tuple(range(X.shape[1])) if full else ()
        start = start_fold(
            MODEL, facts, columns, shift, [None, [train], [column_sums(train)]], [test]
        )
        assert start.null is not None
        (self.part,) = make_parts([start], X.shape[1], MODEL.cutoff, largest=4)
        self.active = np.full(X.shape[1], full)

    def toggle(self, column, gone=None):
        was_active = bool(self.active[column])
        self.active = self.active.copy()
        self.active[column] = not was_active
        gone = np.zeros_like(self.active) if gone is None else gone
        self.part = toggled(self.part, column, was_active, gone)

    def refit_errors(self, active):
        columns = np.flatnonzero(active)
        if len(columns) == 0:
            return ((self.Y[~self.train] - self.Y[self.train].mean(0)) ** 2).sum(0)
        model = LinearRegression().fit(self.X[self.train][:, columns], self.Y[self.train])
        predicted = model.predict(self.X[~self.train][:, columns])
        return ((self.Y[~self.train] - predicted) ** 2).sum(0)

    def check(self):
        """Compare the subset's error, and that after every toggle of either direction."""
        own = part_errors(self.part, Candidates.of([]), self.active).errors[0, 0]
        np.testing.assert_allclose(own, self.refit_errors(self.active), rtol=1e-9)
        for asked in (self.active, ~self.active):
            columns = [int(j) for j in np.flatnonzero(asked) if self.part.positions[j] >= 0]
            if not columns:
                continue
            found = part_errors(
                self.part, Candidates.of([(j,) for j in columns]), self.active
            ).errors[0]
            for column, errors in zip(columns, found, strict=True):
                changed = self.active.copy()
                changed[column] ^= True
                expected = self.refit_errors(changed)
                np.testing.assert_allclose(errors, expected, rtol=1e-9, err_msg=f"{column}")


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_dependent_columns(kind, full, library):
    fold = Fold(*table(5, kind), full, library)
    last = fold.X.shape[1] - 1
    groups = [(last, last - 1), (0,), (1, 2, last - 2, 3), (4, last), (5,)]
    for toggles in ([], [6], [2, last]):
        for column in toggles:
            fold.toggle(column)
        asked = [group for group in groups if len(set(fold.active[list(group)])) == 1]
        for active in (True, False):
            chosen = [group for group in asked if fold.active[group[0]] == active]
            if not chosen:
                continue
            before = fold.part
            found = part_errors(fold.part, Candidates.of(chosen), fold.active)
            for group, errors in zip(chosen, found.errors[0], strict=True):
                changed = fold.active.copy()
                changed[list(group)] = not active
                expected = fold.refit_errors(changed)
                np.testing.assert_allclose(errors, expected, rtol=1e-9, err_msg=f"{group}")
            assert fold.part is before
            # Scoring groups leaves no trace.
            fold.check()


@pytest.mark.parametrize("kind", KINDS)
def test_folds_without_redundant_columns_left_are_joined(kind, library):
    folds = [Fold(*table(seed, kind), True, library) for seed in (3, 4)]
    n_columns = folds[0].X.shape[1]
    parts = ()
    for column in reversed(range(2, n_columns)):
        if len(parts) == 1:
            break
        for fold in folds:
            fold.toggle(column, gone=np.zeros(n_columns, dtype=bool))
        parts = joined(tuple(fold.part for fold in folds), ~folds[0].active)
    assert len(parts) == 1
    assert parts[0].null is None
    for fold in folds:
        kept = fold.X[fold.train][:, fold.active]
        n_constant = np.count_nonzero(np.ptp(kept, axis=0) == 0)
        assert np.linalg.matrix_rank(kept - kept.mean(0)) == kept.shape[1] - n_constant
    columns = np.flatnonzero(folds[0].active)
    for left in (len(columns), len(columns) - 1):
        active = np.zeros(n_columns, dtype=bool)
        active[columns[:left]] = True
        if left < len(columns):
            parts = (toggled(parts[0], int(columns[-1]), True, ~active),)
        asked = Candidates.of([(int(j),) for j in columns[:left]])
        found = part_errors(parts[0], asked, active)
        assert np.all(found.growth >= 1)
        for fold, errors in zip(folds, found.errors, strict=True):
            for column, each in zip(columns[:left], errors, strict=True):
                without = active.copy()
                without[column] = False
                np.testing.assert_allclose(each, fold.refit_errors(without), rtol=1e-9)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_refits_on_a_random_walk(kind, full, library):
    fold = Fold(*table(3, kind), full, library)
    rng = np.random.default_rng(8)
    fold.check()
    for column in rng.integers(0, fold.X.shape[1], size=25):
        fold.toggle(int(column))
        fold.check()
    assert on_host(fold.part.tableau.errors).shape == (1, 2)


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), full=st.booleans())
@SETTINGS
def test_errors_are_those_of_refits_for_any_order_of_toggles(seed, kind, full):
    try:
        fold = Fold(*table(seed, kind, n=50 + seed % 30), full, NUMPY)
    except NotCertifiedError:
        reject()
    rng = np.random.default_rng(seed)
    for column in rng.permutation(fold.X.shape[1])[: int(rng.integers(1, fold.X.shape[1]))]:
        fold.toggle(int(column))
    fold.check()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_leave_the_arrays_once_they_are_gone(kind, full, library):
    fold = Fold(*table(5, kind), full, library)
    before = fold.part.tableau.n_columns
    for column in range(fold.X.shape[1] - 2):
        room = fold.part.tableau.room
        gone = fold.active != full
        gone[column] = True
        fold.part = replace(fold.part, tableau=_almost_full(library.xp, fold.part.tableau, room))
        fold.toggle(column, gone)
        fold.check()
    # Forward, dependent columns need the active ones.
    assert (fold.part.tableau.n_columns < before) == full


def _almost_full(xp, state, room):
    """Leave room for one exchange only, so that the next toggle is followed by a tidying up."""
    if room <= 2:
        return state
    applied = tableau.apply_pending(xp, state)
    return tableau.with_room(xp, applied, 2)


def test_the_null_space_shrinks_and_grows_by_one_vector():
    fold = Fold(*table(1, "duplicates"), True, NUMPY)
    assert nullspace.nullity(fold.part.null) == 3
    fold.toggle(2)
    assert nullspace.nullity(fold.part.null) == 2
    fold.toggle(2)
    assert nullspace.nullity(fold.part.null) == 3
    fold.toggle(0)  # essential
    assert nullspace.nullity(fold.part.null) == 3
    basis = fold.part.null.basis
    weighted = basis * fold.part.null.metric[:, None]
    np.testing.assert_allclose(basis.T @ weighted, np.eye(3), atol=1e-12)
    assert len(fold.part.null.redundant) == 3


def test_independent_columns_are_a_basis():
    X, _ = table(2, "sums")
    X = X - X.mean(axis=0)
    X /= np.linalg.norm(X, axis=0)
    chosen = independent_columns(X.T @ X, 1e-10)
    assert len(chosen) == np.linalg.matrix_rank(X) == 8
    assert np.linalg.matrix_rank(X[:, chosen]) == 8


def near_duplicates(noise, seed):
    X, Y = table(seed, "duplicates")
    X[:, 8] = X[:, 2] + noise * np.std(X[:, 2]) * np.random.default_rng(0).normal(size=len(X))
    X[:, 10] = 2 * X[:, 3]
    return X, Y


@pytest.mark.parametrize("noise", [1e-3, 1e-5, 1e-6, 3e-7, 1e-7])
def test_near_dependence_is_refused(noise):
    for seed in range(4):
        with pytest.raises(NotCertifiedError, match="fold 0"):
            Fold(*near_duplicates(noise, seed), True, NUMPY)


@pytest.mark.parametrize("noise", [1e-2, 1e-8, 1e-9, 1e-10, 1e-12])
def test_near_dependence_is_right_where_it_is_not_refused(noise):
    n_refused = 0
    for seed in range(4):
        try:
            Fold(*near_duplicates(noise, seed), True, NUMPY).check()
        except NotCertifiedError:
            n_refused += 1
    assert n_refused == 0 or noise in (1e-8, 1e-9)


def test_a_penalty_lost_in_rounding_is_refused():
    products = np.ones((2, 2)) + 1e-17
    arguments = (products, np.ones((2, 1)), products, np.ones((2, 1)), np.ones(1))
    model = LinearModel(fit_intercept=True, penalty=1e-30)
    with pytest.raises(NotCertifiedError, match="penalty of 1e-30"):
        dependent_start(NUMPY.xp, model, 0, arguments, np.ones(2), np.ones(1), np.ones(2))


@pytest.mark.parametrize("active", [True, False])
def test_groups_toggle_as_one(active, library):
    problem = LeastSquaresProblem.random(11)
    state = problem.tableau(library, full=active, room=6)
    members = set(range(7)) if active else set()
    for column in (1, 4):
        state = tableau.toggle(library.xp, state, column, active)
        members ^= {column}
    for size, groups in {1: [[0], [5]], 2: [[0, 2], [5, 6]], 3: [[0, 3, 6]]}.items():
        positions = library.asarray(np.array(groups))
        errors, dependent = tableau.toggled_group_errors(library.xp, state, positions)
        assert not on_host(dependent).any()
        for number, group in enumerate(groups):
            assert len(group) == size
            for fold in range(problem.n_folds):
                expected = problem.refit_errors(fold, members ^ set(group))
                np.testing.assert_allclose(on_host(errors)[fold, number], expected, rtol=1e-9)


def test_a_dependent_group_is_reported(library):
    problem = LeastSquaresProblem.random(12)
    problem.X[:, 3] = problem.X[:, 2]
    state = problem.tableau(library, full=False)
    groups = library.asarray(np.array([[0, 1], [2, 3]]))
    _, dependent = tableau.toggled_group_errors(library.xp, state, groups)
    np.testing.assert_array_equal(on_host(dependent), [[False, True]] * problem.n_folds)
