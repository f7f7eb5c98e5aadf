"""Tables that once gave wrong numbers without a word, or a traceback; each against refits."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.feature_selection as theirs
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.model_selection import KFold, cross_val_score

from dagsel import RFE, RFECV, ScoringError, SequentialFeatureSelector


def table(seed=0, n=60, p=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, X @ np.geomspace(3, 0.3, p) + 0.3 * rng.normal(size=n)


def both(estimator, X, y, fit=None, **parameters):
    """Return the selections of the fast engines, refits taking over where they must, and refits."""
    found = []
    for engine in ("auto", "refit"):
        selector = SequentialFeatureSelector(estimator, engine=engine, **parameters)
        found.append(selector.fit(X, y, **(fit or {})).selection_)
    return found


def assert_same(found, expected):
    assert [done.subset for done in found.rounds] == [done.subset for done in expected.rounds]
    for one, other in zip(found.rounds, expected.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=1e-8)


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("step", [1, 2])
def test_recursive_elimination_that_starts_beyond_the_cutoff(scale, step):
    """The coefficients of all columns have singular values cut off."""
    X, y = table()
    X[:, 3] *= scale
    ours = RFE(LinearRegression(), n_features_to_select=1, step=step).fit(X, y)
    expected = theirs.RFE(LinearRegression(), n_features_to_select=1, step=step).fit(X, y)
    np.testing.assert_array_equal(ours.ranking_, expected.ranking_)
    assert (ours.engine_ == "refit") == (scale > 1e5)


@pytest.mark.parametrize("outlier", [1e3, 1e5, 1e6, 1e8])
def test_recursive_elimination_with_an_outlier_that_does_not_count(outlier):
    """Sums that an outlier was in have lost the digits that importances are told apart by."""
    X, y = table()
    weight = np.ones(len(y))
    y[7], weight[7] = outlier, 0
    ours = RFE(LinearRegression(), n_features_to_select=1).fit(X, y, sample_weight=weight)
    expected = theirs.RFE(LinearRegression(), n_features_to_select=1).fit(
        X, y, sample_weight=weight
    )
    np.testing.assert_array_equal(ours.ranking_, expected.ranking_)
    by_size = RFECV(LinearRegression(), min_features_to_select=1).fit(X, y, sample_weight=weight)
    assert by_size.engine_ in ("moments", "rows")


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
@pytest.mark.parametrize("scoring", ["neg_mean_absolute_error", "neg_mean_squared_error"])
@pytest.mark.parametrize("scale", [1e5, 1e10, 1e13, 1e14, 1e20])
def test_columns_that_are_back_when_a_larger_one_leaves(scale, scoring):
    X, y = table()
    X[:, 3] *= scale
    parameters = {"n_features_to_select": 2, "direction": "backward", "scoring": scoring}
    found, expected = both(LinearRegression(), X, y, **parameters)
    assert_same(found, expected)
    last = found.rounds[-1]
    scores = cross_val_score(LinearRegression(), X[:, list(last.subset)], y, scoring=scoring)
    np.testing.assert_allclose(last.fold_scores, scores, rtol=1e-8)


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
def test_a_fixed_column_that_is_next_to_nothing():
    X, y = table()
    X[:, 0] *= 1e-15
    parameters = {"n_features_to_select": 2, "fixed_features": [0], "direction": "forward"}
    assert_same(*both(LinearRegression(), X, y, scoring="neg_mean_absolute_error", **parameters))


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
@pytest.mark.filterwarnings("ignore:Scoring failed")
@pytest.mark.parametrize(
    "scoring",
    ["neg_mean_squared_log_error", "neg_mean_poisson_deviance"],
)
def test_a_metric_that_fails_for_some_candidates(scoring):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 4))
    y = np.exp(X[:, 0]) + 0.01
    X = np.column_stack([X, y + 0.01 * rng.uniform(size=60)])
    for direction, size in (("forward", 4), ("backward", 1)):
        parameters = {"n_features_to_select": size, "direction": direction, "scoring": scoring}
        assert_same(*both(LinearRegression(), X, y, **parameters))


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
@pytest.mark.parametrize("scoring", ["f1", "roc_auc"])
def test_a_metric_that_fails_for_all(scoring):
    """Of two classes, for three."""
    X, _ = table()
    selector = SequentialFeatureSelector(RidgeClassifier(), scoring=scoring)
    with pytest.raises(ScoringError, match=r"no usable score.*(average|multi_?class)"):
        selector.fit(X, np.arange(len(X)) % 3)


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "neg_mean_absolute_error", "r2"])
def test_test_rows_without_weight(scoring):
    X, y = table()
    weight = np.ones(len(y))
    weight[:12] = 0
    selector = SequentialFeatureSelector(
        LinearRegression(), scoring=scoring, cv=KFold(5), weighted_scores=True
    )
    with pytest.raises(ScoringError, match="fold 0"):
        selector.fit(X, y, sample_weight=weight)


@pytest.mark.filterwarnings("ignore::dagsel.DagselWarning")
@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "neg_mean_absolute_error"])
@pytest.mark.parametrize("estimator", [LinearRegression(), Ridge()], ids=str)
def test_training_rows_without_weight(estimator, scoring):
    X, y = table()
    weight = np.zeros(len(y))
    weight[:20] = 1
    selector = SequentialFeatureSelector(estimator, scoring=scoring, cv=KFold(3))
    with pytest.raises(ScoringError, match="fold 0"):
        selector.fit(X, y, sample_weight=weight)


def test_a_cutoff_below_zero_is_refused_by_refits():
    X, y = table()
    with pytest.raises(ScoringError, match="'tol' parameter"):
        SequentialFeatureSelector(LinearRegression(tol=-1)).fit(X, y)


@pytest.mark.parametrize("engine", ["auto", "refit"])
@pytest.mark.parametrize("criterion", ["aic", "bic", "adjusted_r2"])
def test_what_adds_nothing_is_not_added(criterion, engine):
    """And what takes nothing away is removed."""
    X, y = table(3, p=5)
    y = X[:, :2] @ [2.0, 1.0] + np.random.default_rng(1).normal(size=60)
    X[:, 4] = X[:, 0]
    X = np.column_stack([X, np.ones(60)])
    options = {"criterion": criterion, "engine": engine}
    forward = SequentialFeatureSelector(LinearRegression(), **options).fit(X, y)
    added = set(forward.get_support(indices=True).tolist())
    assert {0, 1} <= added
    assert not {4, 5} & added
    backward = SequentialFeatureSelector(LinearRegression(), direction="backward", **options)
    left = set(backward.fit(X, y).get_support(indices=True).tolist())
    assert len(left & {0, 4}) == 1
    assert 5 not in left


@pytest.mark.parametrize("scoring", ["r2", "neg_mean_squared_error", "neg_root_mean_squared_error"])
def test_the_target_among_the_features_is_asked_about(scoring):
    X, y = table()
    leaking = np.column_stack([X, 2 * y])
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=2, direction="backward", scoring=scoring
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        selector.fit(leaking, y)
    odd = [str(each.message) for each in told if "exactly (" in str(each.message)]
    assert len(odd) == 1
    assert "is the target, or a copy of it, among the features?" in odd[0]
    assert all(each.filename == __file__ for each in told)
    assert any("is the target" in note for note in selector.selection_.notes)
    selector.fit(X, y)  # and no warning here


def test_a_perfect_classifier_is_nothing_odd():
    X, y = load_breast_cancer(return_X_y=True)
    X = np.column_stack([X[:, :3], y])
    SequentialFeatureSelector(RidgeClassifier(), n_features_to_select=2).fit(X, y)


@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_one_hot_columns_beside_an_intercept_stay_on_the_fast_engine(direction):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 6)), columns=list("abcdef"))
    frame["town"] = rng.choice(["x", "y", "z", "w"], 300)
    frame["kind"] = rng.choice(["p", "q", "r"], 300)
    y = frame["a"] + 2 * frame["b"] + 1.5 * (frame["town"] == "x") + rng.normal(size=300)
    parameters = {
        "n_features_to_select": 3,
        "direction": direction,
        "scoring": "neg_mean_squared_error",
        "categories": "one-hot",
    }
    found, expected = both(LinearRegression(), frame, y, **parameters)
    assert found.engines == ("moments",)
    assert_same(found, expected)
