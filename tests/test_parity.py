"""Same features, same order, same fold scores as mlxtend and scikit-learn refits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from mlxtend.feature_selection import SequentialFeatureSelector as Mlxtend
from problems import PROBLEMS, SPLITTERS, groups_of, product_of
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_linnerud
from sklearn.feature_selection import SequentialFeatureSelector as ScikitLearn
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import KFold, LeaveOneOut, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dagsel import DagselWarning, SequentialFeatureSelector
from dagsel.kernels.metrics import METRICS
from dagsel.mlxtend import SequentialFeatureSelector as LikeMlxtend

RTOL = 1e-9
# Constant pixels tie exactly, and mlxtend's order among them is decided by rounding.
REGULAR = [problem for problem in PROBLEMS if problem.name != "digits"]
DIGITS = next(problem for problem in PROBLEMS if problem.name == "digits")
DIRECTIONS = {
    "backward": {"forward": False, "floating": False},
    "forward": {"forward": True, "floating": False},
    "floating_backward": {"forward": False, "floating": True},
    "floating_forward": {"forward": True, "floating": True},
}


def fitted(selector, X, y, groups=None):
    """Fit, and return what a fall back to refits announced; any other warning is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector.fit(X, y, groups=groups)
    others = [w for w in caught if not issubclass(w.category, DagselWarning)]
    assert not others, others[0]
    return [str(w.message) for w in caught]


def fitted_by_mlxtend(X, y, **parameters):
    # The checks of parameters and of finite numbers are a third of what its many fits take.
    with config_context(assume_finite=True, skip_parameter_validation=True):
        return Mlxtend(**parameters).fit(X, y)


def check_same(ours, theirs):
    assert ours.k_feature_idx_ == theirs.k_feature_idx_
    assert list(ours.subsets_) == list(theirs.subsets_)
    for size, entry in theirs.subsets_.items():
        assert ours.subsets_[size]["feature_idx"] == entry["feature_idx"]
        np.testing.assert_allclose(ours.subsets_[size]["cv_scores"], entry["cv_scores"], rtol=RTOL)
        assert ours.subsets_[size]["avg_score"] == pytest.approx(entry["avg_score"], rel=RTOL)


def check_path_against_refits(selector, X, y, folds):
    """Every round's fold scores against scikit-learn's own cross-validation of its subset."""
    for done in selector.selection_.rounds:
        expected = cross_val_score(
            selector.estimator,
            X[:, list(done.subset)],
            y,
            scoring=selector.scoring,
            cv=folds,
        )
        np.testing.assert_allclose(done.fold_scores, expected, rtol=RTOL)


def sizes(problem):
    """How far to go back and forth: mlxtend takes its time on wide tables."""
    n_columns = problem.load()[0].shape[1]
    return (n_columns - 2 if n_columns > 15 else 1), min(n_columns, 5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_like_mlxtend_in_every_direction(problem, direction):
    backward_to, forward_to = sizes(problem)
    options = DIRECTIONS[direction]
    parameters = {
        "estimator": LinearRegression(),
        "k_features": forward_to if options["forward"] else backward_to,
        "scoring": "neg_mean_squared_error",
        "cv": 3,
        **options,
    }
    ours = LikeMlxtend(**parameters)
    told = fitted(ours, *problem.load())
    check_same(ours, fitted_by_mlxtend(*problem.load(), **parameters))
    # Small subsets of a table that needs refits as a whole may be certified.
    assert ours.selection_.engines[-1] == problem.engine or options["forward"]
    assert bool(told) == ("refit" in ours.selection_.engines)


@pytest.mark.parametrize(
    ("problem", "splitter", "direction"),
    # Half of the pairs of problem and splitter, each in one direction.
    product_of(
        REGULAR,
        SPLITTERS,
        DIRECTIONS,
        plain=lambda i, j, k: (i + j) % 4 == k and j % 2 == i // 2 % 2,
    ),
    ids=str,
)
def test_like_mlxtend_with_every_splitter(problem, splitter, direction):
    backward_to, forward_to = sizes(problem)
    options = DIRECTIONS[direction]
    X, y = problem.load()
    groups = groups_of(len(y)) if splitter == "group" else None
    cv = SPLITTERS[splitter]()
    folds = list(cv.split(X, y, groups))
    parameters = {
        "estimator": LinearRegression(),
        "k_features": min(3, forward_to) if options["forward"] else max(backward_to, 6),
        "scoring": "r2" if splitter == "shuffled" else "neg_root_mean_squared_error",
        **options,
    }
    parameters["k_features"] = min(parameters["k_features"], X.shape[1])
    ours = LikeMlxtend(cv=cv, **parameters)
    fitted(ours, X, y, groups)
    check_same(ours, fitted_by_mlxtend(X, y, cv=folds, **parameters))


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_like_scikit_learn(problem, direction):
    backward_to, forward_to = sizes(problem)
    X, y = problem.load()
    parameters = {
        "n_features_to_select": max(1, backward_to) if direction == "backward" else forward_to - 1,
        "direction": direction,
        "scoring": "neg_mean_squared_error",
        "cv": KFold(3, shuffle=True, random_state=3),
    }
    theirs = ScikitLearn(LinearRegression(), **parameters).fit(X, y)
    ours = SequentialFeatureSelector(LinearRegression(), **parameters)
    fitted(ours, X, y)
    np.testing.assert_array_equal(ours.get_support(), theirs.get_support())
    check_path_against_refits(ours, X, y, list(parameters["cv"].split(X)))


ESTIMATORS = {
    "ols": LinearRegression(),
    "ols_without_intercept": LinearRegression(fit_intercept=False),
    "ridge": Ridge(alpha=3.0),
    "ridge_without_intercept": Ridge(alpha=0.5, fit_intercept=False),
    "ridge_svd": Ridge(alpha=1e-3, solver="svd"),
}


@pytest.mark.parametrize("scoring", METRICS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_linear_model_and_metric(estimator, scoring):
    X, y = REGULAR[0].load()
    X = X + 0.02  # so that an intercept matters
    for direction in ("backward", "forward"):
        selector = SequentialFeatureSelector(
            clone(ESTIMATORS[estimator]),
            n_features_to_select=3,
            direction=direction,
            scoring=scoring,
            cv=3,
            engine="moments",
        ).fit(X, y)
        check_path_against_refits(selector, X, y, list(KFold(3).split(X)))
        refits = clone(selector).set_params(engine="refit").fit(X, y)
        assert features(selector) == features(refits)


def features(selector):
    return [done.feature for done in selector.selection_.rounds]


def test_several_targets():
    X, Y = load_linnerud(return_X_y=True)
    for scoring in METRICS:
        selector = SequentialFeatureSelector(
            LinearRegression(),
            n_features_to_select=1,
            direction="backward",
            scoring=scoring,
            cv=3,
            engine="moments",
        ).fit(X, Y)
        check_path_against_refits(selector, X, Y, 3)


@pytest.mark.parametrize("scoring", METRICS)
def test_targets_of_very_different_scale(scoring):
    """Each target has its own rounding: the large one's must not make ties of the small one's."""
    X, y = REGULAR[0].load()
    Y = np.column_stack([1e6 * y, y[::-1] / y.std(), 1e-5 * np.roll(y, 9)])
    selector = SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=1,
        direction="backward",
        scoring=scoring,
        cv=3,
        engine="moments",
    ).fit(X, Y)
    check_path_against_refits(selector, X, Y, 3)
    refits = clone(selector).set_params(engine="refit").fit(X, Y)
    assert features(selector) == features(refits)
    assert not any(done.tied for done in selector.selection_.rounds)


@pytest.mark.parametrize("size", [1e-158, 1e-140, 1e-30, 1e30, 1e140])
def test_targets_and_columns_of_extreme_size(size):
    X, y = REGULAR[0].load()
    for features_, target in ((X * size, y), (X, y * size)):
        selector = LikeMlxtend(LinearRegression(), k_features=7, forward=False, scoring="r2")
        fitted(selector, features_, target)
        check_path_against_refits(selector, features_, target, 5)


def test_scored_on_the_training_rows_as_mlxtend_does_without_cv():
    X, y = REGULAR[0].load()
    for cv in (0, None, False):
        parameters = {"k_features": 4, "forward": False, "scoring": "r2", "cv": cv}
        ours = LikeMlxtend(LinearRegression(), **parameters)
        fitted(ours, X, y)
        check_same(ours, Mlxtend(LinearRegression(), **parameters).fit(X, y))


def test_leave_one_out():
    X, y = REGULAR[0].load()
    X, y = X[:80], y[:80]
    selector = SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=4,
        direction="backward",
        scoring="neg_mean_squared_error",
        cv=LeaveOneOut(),
        engine="moments",
    ).fit(X, y)
    for done in selector.selection_.rounds:
        expected = cross_val_score(
            LinearRegression(), X[:, list(done.subset)], y, scoring=selector.scoring, cv=80
        )
        # A single row's error can be nearly nothing, so relative errors say little.
        np.testing.assert_allclose(done.fold_scores, expected, rtol=RTOL, atol=RTOL * y.var())
        assert done.mean == pytest.approx(expected.mean(), rel=RTOL)


def test_an_unseeded_splitter_is_drawn_once():
    X, y = REGULAR[0].load()
    for engine in ("moments", "refit"):
        selector = LikeMlxtend(
            LinearRegression(), 3, forward=False, cv=Counting(3, shuffle=True), engine=engine
        ).fit(X, y)
        assert len(selector.selection_.rounds) == 8
        assert selector.cv.n_splits_made == 1
    generator = (pair for pair in KFold(3).split(X))
    from_generator = LikeMlxtend(LinearRegression(), 3, forward=False, cv=generator).fit(X, y)
    from_list = LikeMlxtend(LinearRegression(), 3, forward=False, cv=list(KFold(3).split(X)))
    check_same(from_generator, from_list.fit(X, y))


class Counting(KFold):
    """Counts how often folds are drawn."""

    n_splits_made = 0

    def split(self, X, y=None, groups=None):
        self.n_splits_made += 1
        return super().split(X, y, groups)


# --------------------------------------------------------------------------------------------------
# Tables on which fast implementations go wrong


def assert_right(X, y, engines, reason=None, estimator=None, **parameters):
    """Whatever is wrong with the data, the path is that of refits, by the engines expected.

    Where refits take over, the user is told why.
    """
    selector = SequentialFeatureSelector(
        estimator or LinearRegression(), scoring="neg_mean_squared_error", cv=3, **parameters
    )
    told = fitted(selector, X, y)
    assert set(selector.selection_.engines) <= set(engines)
    if reason is None:
        assert not told
    else:
        assert len(told) == 1
        assert reason in told[0]
        assert "refits" in told[0]
        assert told[0] in selector.selection_.notes
    refits = clone(selector).set_params(engine="refit").fit(X, y)
    assert features(selector) == features(refits)
    for ours, theirs in zip(selector.selection_.rounds, refits.selection_.rounds, strict=True):
        np.testing.assert_allclose(ours.fold_scores, theirs.fold_scores, rtol=RTOL)
    return selector


@pytest.fixture
def clean():
    rng = np.random.default_rng(11)
    X = rng.normal(size=(90, 6))
    return X, X[:, 0] - X[:, 3] + 0.5 * rng.normal(size=90)


@pytest.mark.parametrize("direction", ["backward", "forward"])
class TestHardTables:
    def test_constant_column(self, clean, direction):
        X, y = clean
        X[:, 2] = 4.0
        assert_right(X, y, ["moments"], direction=direction)
        assert_right(X, y, ["moments"], estimator=Ridge(2.0), direction=direction)

    def test_column_constant_in_one_training_set(self, clean, direction):
        X, y = clean
        X[30:, 2] = 4.1  # it varies in the first fold's test rows alone
        assert_right(X, y, ["moments"], direction=direction)

    def test_column_that_is_almost_constant_in_one_training_set(self, clean, direction):
        X, y = clean
        X[30:, 2] = 4.1 + 1e-9 * X[30:, 2]
        X[:30, 2] *= 1e4
        assert_right(X, y, ["rows", "refit"], "fold 0", direction=direction)

    def test_constant_of_enormous_size(self, clean, direction):
        X, y = clean
        X[:, 2] = 1e14  # its rounding is as large as the other columns
        selector = SequentialFeatureSelector(LinearRegression(), direction=direction, cv=3)
        fitted(selector, X, y)
        assert selector.selection_.engines != ("moments",)

    @pytest.mark.parametrize("floating", [False, True])
    def test_duplicate_columns(self, clean, direction, floating):
        X, y = clean
        X[:, 4] = X[:, 1]
        X = np.column_stack([X, -2 * X[:, 3]])
        size = 2 if direction == "backward" else 6
        assert_right(
            X, y, ["moments"], direction=direction, floating=floating, n_features_to_select=size
        )

    @pytest.mark.parametrize("floating", [False, True])
    def test_full_one_hot_sets(self, clean, direction, floating):
        X, y = clean
        X[:, :3] = np.eye(3)[np.arange(90) % 3]
        X = np.column_stack([X, np.eye(4)[np.arange(90) % 4]])
        size = 2 if direction == "backward" else 9
        assert_right(
            X, y, ["moments"], direction=direction, floating=floating, n_features_to_select=size
        )

    @pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-5, 1e-6, 1e-8])
    def test_near_duplicate_column(self, clean, direction, size):
        X, y = clean
        X[:, 5] = X[:, :5].sum(axis=1) + size * X[:, 5]
        compare_with_refits(X, y, scoring="neg_mean_squared_error", cv=3, direction=direction)

    def test_units_a_million_apart(self, clean, direction):
        X, y = clean
        X *= 10.0 ** np.array([-4, 4, 0, -3, 3, 0])
        assert_right(X, y, ["rows", "refit"], "singular value", direction=direction)
        assert_right(X, y, ["moments"], estimator=Ridge(1e-3), direction=direction)
        scaled = make_pipeline(StandardScaler(), LinearRegression())
        assert_right(X, y, ["moments"], estimator=scaled, direction=direction)

    def test_more_columns_than_rows(self, direction):
        rng = np.random.default_rng(3)
        X, y = rng.normal(size=(12, 9)), rng.normal(size=12)
        assert_right(X, y, ["rows"], direction=direction)

    def test_target_without_noise(self, clean, direction):
        X, _ = clean
        y = X[:, 0] - 2 * X[:, 3]
        selector = SequentialFeatureSelector(
            LinearRegression(),
            n_features_to_select=2,
            scoring="neg_mean_squared_error",
            direction=direction,
        )
        fitted(selector, X, y)
        np.testing.assert_array_equal(selector.get_support(indices=True), [0, 3])
        assert selector.selection_.engines[-1] == "refit" or direction == "forward"
        for done in selector.selection_.rounds:
            assert max(done.fold_scores) <= 0
            if {0, 3} <= set(done.subset):
                assert abs(done.mean) < 1e-25


def test_a_run_that_starts_fast_can_end_with_refits(clean):
    """Forward: nothing is known to fit too well until it does."""
    X, _ = clean
    y = X[:, 0] - 2 * X[:, 3] + 0.5 * X[:, 1]
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=5, scoring="neg_mean_squared_error"
    )
    told = fitted(selector, X, y)
    assert selector.selection_.engines[0] == "moments"
    assert selector.selection_.engines[-1] == "refit"
    assert "almost exactly" in selector.selection_.notes[0]
    assert told[0] in selector.selection_.notes
    assert features(selector)[:3] == [3, 0, 1]


def compare_with_refits(X, y, **parameters):
    """Whatever engine is chosen, the path is that of refits, fold by fold."""
    selector = SequentialFeatureSelector(LinearRegression(), **parameters)
    fitted(selector, X, y)
    refits = clone(selector).set_params(engine="refit").fit(X, y)
    for one, other in zip(selector.selection_.rounds, refits.selection_.rounds, strict=True):
        assert one.feature == other.feature
        scale = np.maximum(np.abs(other.fold_scores), parameters["scoring"] == "r2")
        assert np.max(np.abs(one.fold_scores - other.fold_scores) / scale) < RTOL
    return selector


@pytest.mark.parametrize("scoring", METRICS)
class TestDigitsLostInSums:
    """Sums over all rows can be much larger than what a fold is about."""

    def test_late_outlier_in_the_target(self, scoring):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 4))
        y = X[:, 0] + rng.normal(size=300)
        for size in (1e4, 1e6, 1e8, 1e10):
            y[295] = size
            compare_with_refits(X, y, scoring=scoring, cv=TimeSeriesSplit(5), direction="backward")

    def test_target_that_grows(self, scoring):
        for seed in range(4):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(300, 6))
            y = np.exp(np.arange(300) / 10) * (X[:, 0] + rng.normal(size=300))
            compare_with_refits(X, y, scoring=scoring, cv=TimeSeriesSplit(5), direction="backward")

    def test_outlier_that_no_fold_uses(self, scoring):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(120, 5))
        y = X[:, 1] + rng.normal(size=120)
        y[0] = 1e9
        cv = [(np.arange(1, 80), np.arange(80, 120)), (np.arange(0, 80), np.arange(80, 120))]
        compare_with_refits(X, y, scoring=scoring, cv=cv, direction="backward")

    @pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-5])
    def test_one_quiet_fold(self, scoring, noise):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(400, 6))
        quiet = np.arange(400) < 100
        X[quiet, 0], X[quiet, 1:], X[~quiet, 0] = 100, 0, 0
        y = np.where(quiet, 100 + noise * rng.normal(size=400), X[:, 1] + rng.normal(size=400))
        cv = [
            (np.r_[0:50, 100:250], np.r_[50:100]),
            (np.r_[0:100, 250:400], np.r_[100:250]),
            (np.r_[0:250], np.r_[250:400]),
        ]
        selector = SequentialFeatureSelector(
            LinearRegression(), n_features_to_select=3, scoring=scoring, cv=cv
        )
        fitted(selector, X, y)
        folds = list(cv)
        for done in selector.selection_.rounds:
            expected = cross_val_score(
                LinearRegression(), X[:, list(done.subset)], y, scoring=scoring, cv=folds
            )
            # Refits themselves resolve the quiet fold's scores to about 1e-16 (100 / noise)².
            resolved = max(RTOL, 1e-14 * (100 / noise) ** 2)
            np.testing.assert_allclose(done.fold_scores, expected, rtol=resolved)

    @pytest.mark.parametrize("seed", [0, 5, 18])
    def test_test_rows_that_break_a_near_dependence(self, scoring, seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(500, 8))
        X[:, 7] = X[:, 0] + 1e-2 * rng.normal(size=500)
        X[:100, 7] = rng.normal(size=100)
        y = X[:, 0] + X[:, 1] + rng.normal(size=500)
        compare_with_refits(
            X, y, scoring=scoring, cv=5, direction="backward", n_features_to_select=1
        )


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_more_columns_than_changes_are_kept_for(direction, floating):
    """Over 128 toggles: changes are applied and columns let go of, at the start and on the way."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(500, 150 if floating else 300))
    y = X[:, :40] @ rng.normal(size=40) + 2 * rng.normal(size=500)
    fixed = list(range(0, X.shape[1], 2))
    first = len(fixed) + 6 if direction == "forward" else X.shape[1] - 140
    selector = SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=max(first, len(fixed)),
        direction=direction,
        floating=floating,
        fixed_features=fixed,
        scoring="neg_mean_squared_error",
        cv=3,
        engine="moments",
    ).fit(X, y)
    rounds = selector.selection_.rounds
    for done in [*rounds[:3], *rounds[-3:]]:
        expected = cross_val_score(
            LinearRegression(), X[:, list(done.subset)], y, scoring=selector.scoring, cv=3
        )
        np.testing.assert_allclose(done.fold_scores, expected, rtol=RTOL)
    # The last choice is the best there was, by refits of every candidate.
    before, last = rounds[-2].subset, rounds[-1]
    if last.action == "add":
        others = [(*before, j) for j in range(X.shape[1]) if j not in before]
    else:
        others = [tuple(set(before) - {j}) for j in before if j not in fixed]
    best = max(
        cross_val_score(
            LinearRegression(), X[:, sorted(each)], y, scoring=selector.scoring, cv=3
        ).mean()
        for each in others
    )
    assert last.mean == pytest.approx(best, rel=RTOL)


def test_right_where_columns_are_constant():
    X, y = DIGITS.load()
    assert (X.std(axis=0) == 0).any()
    selector = assert_right(X, y, ["moments"], direction="backward")
    check_path_against_refits(selector, X, y, 3)


def test_ties_are_broken_by_each_front_doors_rule(clean):
    X, y = clean
    X[:, 4] = X[:, 1]
    X[:, 5] = X[:, 1]
    orders = {}
    for name, selector in {
        "mlxtend": LikeMlxtend(LinearRegression(), k_features=2, forward=False, cv=3),
        "scikit-learn": SequentialFeatureSelector(
            LinearRegression(), n_features_to_select=2, direction="backward", cv=3
        ),
    }.items():
        fitted(selector, X, y)
        orders[name] = [feature for feature in features(selector) if feature in (1, 4, 5)]
        assert any(done.tied for done in selector.selection_.rounds)
    # Of three equal columns one front door removes the last first, the other the first.
    assert orders == {"mlxtend": [5, 4, 1], "scikit-learn": [1, 4, 5]}
