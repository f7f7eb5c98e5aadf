"""scikit-learn's contract is kept, and the path is that of refits."""

from __future__ import annotations

import pickle
import threading
import time
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import t as student
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SequentialFeatureSelector as ScikitLearn
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_estimator

from dagsel import (
    DagselWarning,
    DataError,
    Plan,
    ScoringError,
    Selection,
    SequentialFeatureSelector,
)
from dagsel.engines.moments.engine import MomentsEngine
from dagsel.engines.registry import engine_classes
from dagsel.exceptions import NotCertifiedError
from dagsel.executors.local import LocalExecutor
from dagsel.monitor import Monitor
from dagsel.plan import make_plan
from dagsel.scheduler import Session, run_search
from dagsel.tasks import StateKey, forget, play_rounds

NAMES = ["age", "sex", "bmi", "bp", "chol", "sugar"]


@pytest.fixture
def table():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(80, 6)) @ (np.eye(6) + 0.15 * rng.normal(size=(6, 6)))
    return X, 1.5 * X[:, 0] - 2 * X[:, 3] + 0.5 * X[:, 4] + rng.normal(size=80)


@pytest.fixture
def frame(table):
    return pd.DataFrame(table[0], columns=NAMES), table[1]


def mean_score(estimator, X, y, columns, **options):
    return cross_val_score(clone(estimator), X[:, sorted(columns)], y, **options).mean()


def greedy(
    estimator, X, y, target, *, backward, features=None, fixed=(), tol=None, cv=5, scoring="r2"
):
    """The search written down plainly: a round is (moved, its mean, runner-up, its mean)."""
    features = features or [[column] for column in range(X.shape[1])]
    inside = list(range(len(features))) if backward else list(fixed)

    def score(subset):
        columns = [column for feature in subset for column in features[feature]]
        return mean_score(estimator, X, y, columns, cv=cv, scoring=scoring)

    current = score(inside) if inside else -np.inf
    rounds = []
    while len(inside) != target:
        candidates = inside if backward else range(len(features))
        means = {
            feature: score(sorted(set(inside) ^ {feature}))
            for feature in candidates
            if feature not in fixed and (backward or feature not in inside)
        }
        best, *others = sorted(means, key=means.get, reverse=True)
        if tol is not None and means[best] - current < tol:
            break
        current = means[best]
        inside = sorted(set(inside) ^ {best})
        second = others[0] if others else None
        rounds.append((best, means[best], second, means.get(second)))
    return inside, rounds


def selected(selector):
    return selector.get_support(indices=True).tolist()


# --------------------------------------------------------------------------------------------------
# scikit-learn's contract

# Everything that scikit-learn checks and this class does otherwise, and why.
EXPECTED_FAILED = {
    "check_dtype_object": (
        "A cell that is no number is a DataError, which says in which column and row it is; "
        "scikit-learn expects NumPy's TypeError, which does not."
    )
}


@pytest.mark.parametrize(
    "selector",
    [
        SequentialFeatureSelector(LinearRegression(), n_features_to_select=1),
        SequentialFeatureSelector(
            LinearRegression(), n_features_to_select=1, direction="backward", floating=True
        ),
        SequentialFeatureSelector(LinearRegression(), tol=0.0, direction="backward", cv=2),
        SequentialFeatureSelector(DecisionTreeRegressor(max_depth=1, random_state=0), cv=2),
    ],
    ids=["forward", "backward", "tol", "refit"],
)
def test_scikit_learns_own_checks(selector):
    results = check_estimator(
        selector, expected_failed_checks=EXPECTED_FAILED, on_fail=None, on_skip=None
    )
    by_status = {}
    for result in results:
        by_status.setdefault(result["status"], {})[result["check_name"]] = result["exception"]
    assert not by_status.get("failed")
    assert set(by_status["xfail"]) == set(EXPECTED_FAILED)
    # That one runs only where the environment variable SCIPY_ARRAY_API is set.
    assert set(by_status.get("skipped", {})) <= {"check_array_api_input"}
    assert len(by_status["passed"]) > 35


def test_a_clone_has_everything_but_what_was_fitted(table):
    client = threading.Lock()  # can be neither copied nor pickled, like a connection
    selector = SequentialFeatureSelector(Ridge(alpha=2.0), n_features_to_select=2, engine="refit")
    selector.fit(*table).set_params(client=client)
    selector.set_output(transform="pandas")
    with config_context(enable_metadata_routing=True):
        selector.estimator.set_fit_request(sample_weight="w")
        twin = clone(selector)
        assert twin.get_metadata_routing().consumes("fit", {"w", "sample_weight"}) == {"w"}
    assert twin.client is client
    assert twin.estimator is not selector.estimator
    assert twin.estimator.alpha == 2.0
    assert twin.n_features_to_select == 2
    assert not hasattr(twin, "selection_")
    assert isinstance(twin.set_params(client=None).fit_transform(*table), pd.DataFrame)


def test_parameters_are_those_of_the_constructor_and_settable(table):
    selector = SequentialFeatureSelector(Ridge())
    names = set(selector.get_params(deep=False))
    assert names == {
        *("estimator", "n_features_to_select", "tol", "direction", "scoring", "cv", "n_jobs"),
        *("floating", "fixed_features", "feature_groups", "engine", "client", "verbose"),
        *("step", "patience", "max_seconds", "criterion", "alpha", "audit"),
        *("weighted_scores", "categories", "checkpoint"),
    }
    selector.set_params(estimator__alpha=5.0, direction="backward", n_features_to_select=5)
    assert selector.estimator.alpha == 5.0
    assert "estimator__alpha" in selector.get_params()
    selector.fit(*table)
    folds = cross_val_score(Ridge(alpha=5.0), *table)
    np.testing.assert_allclose(selector.selection_.rounds[0].fold_scores, folds, rtol=1e-9)
    with pytest.raises(ValueError, match="Invalid parameter 'k_features'"):
        selector.set_params(k_features=3)


@pytest.mark.parametrize("engine", ["moments", "refit"])
def test_fit_changes_no_parameter_and_no_argument(table, engine):
    X, y = table
    X.flags.writeable = y.flags.writeable = False
    estimator = LinearRegression()
    fixed, cv = [2], KFold(3, shuffle=True, random_state=1)
    selector = SequentialFeatureSelector(
        estimator, n_features_to_select=0.5, fixed_features=fixed, cv=cv, engine=engine
    )
    before, values = selector.get_params(deep=False), joblib.hash(selector.get_params())
    selector.fit(X, y)
    assert joblib.hash(selector.get_params()) == values
    after = selector.get_params(deep=False)
    assert all(after[name] is value for name, value in before.items())
    assert not hasattr(estimator, "coef_")
    first = selected(selector)
    assert selected(selector.fit(X, y)) == first
    assert 2 in first


def test_pickled_before_and_after_fit(table):
    X, y = table
    bare = SequentialFeatureSelector(Ridge(), n_features_to_select=2, client=threading.Lock())
    loaded = pickle.loads(pickle.dumps(bare))
    assert loaded.client is None
    loaded.fit(X, y)
    again = pickle.loads(pickle.dumps(loaded.set_params(client=threading.Lock())))
    assert again.client is None
    assert again.n_features_to_select_ == 2
    np.testing.assert_array_equal(again.transform(X), X[:, selected(loaded)])
    assert again.selection_.to_json() == loaded.selection_.to_json()
    assert str(again.plan_) == str(loaded.plan_)


def test_support_and_names(frame, table):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2).fit(X, y)
    assert selector.get_support().tolist() == [True, False, False, True, False, False]
    assert selector.get_support().dtype == bool
    assert selected(selector) == [0, 3]
    assert selector.n_features_to_select_ == 2
    assert selector.n_features_in_ == 6
    assert selector.feature_names_in_.tolist() == NAMES
    assert selector.feature_names_in_.dtype == object
    assert selector.get_feature_names_out().tolist() == ["age", "bp"]
    selector.fit(*table)
    assert not hasattr(selector, "feature_names_in_")
    assert selector.get_feature_names_out().tolist() == ["x0", "x3"]
    assert selector.get_feature_names_out(NAMES).tolist() == ["age", "bp"]


def test_transform_and_back(frame):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2)
    reduced = selector.fit_transform(X, y)
    np.testing.assert_array_equal(reduced, X[["age", "bp"]].to_numpy())
    full = selector.inverse_transform(reduced)
    np.testing.assert_array_equal(full[:, [0, 3]], reduced)
    assert not full[:, [1, 2, 4, 5]].any()


def test_output_containers(frame):
    X, y = frame
    X.index = X.index[::-1]
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2)
    out = selector.set_output(transform="pandas").fit(X, y).transform(X)
    pd.testing.assert_frame_equal(out, X[["age", "bp"]])
    out = selector.set_output(transform="polars").transform(X)
    assert isinstance(out, pl.DataFrame)
    assert out.columns == ["age", "bp"]
    kept = X.astype({"bp": np.float32, "sex": np.float32})
    out = selector.set_output(transform="pandas").fit(kept, y).transform(kept)
    assert out.dtypes.tolist() == [np.float64, np.float32]


def test_a_polars_frame_is_as_good(frame):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2)
    selector.fit(pl.from_pandas(X), pl.Series(y)).set_output(transform="polars")
    assert selector.feature_names_in_.tolist() == NAMES
    assert selector.transform(pl.from_pandas(X)).columns == ["age", "bp"]


def test_the_target_can_be_a_column(frame):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2)
    selector.fit(X.assign(target=y), "target")
    assert selector.feature_names_in_.tolist() == NAMES
    assert selected(selector) == [0, 3]


def test_transform_refuses_other_columns_as_scikit_learn_does(frame):
    X, y = frame
    ours = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2).fit(X, y)
    theirs = ScikitLearn(LinearRegression(), n_features_to_select=2).fit(X, y)
    for other in (X[NAMES[::-1]], X.drop(columns="age"), X.rename(columns={"age": "years"})):
        with pytest.raises(ValueError, match="feature names should match") as expected:
            theirs.transform(other)
        with pytest.raises(ValueError, match="feature names should match") as found:
            ours.transform(other)
        assert str(found.value) == str(expected.value)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        ours.transform(X.to_numpy())
    nameless = ours.fit(X.to_numpy(), y)
    with pytest.raises(ValueError, match="X has 5 features, but SequentialFeatureSelector is exp"):
        nameless.transform(X.to_numpy()[:, :5])


def test_not_fitted(table):
    selector = SequentialFeatureSelector(LinearRegression())
    for use in (
        selector.get_support,
        selector.get_feature_names_out,
        lambda: selector.transform(table[0]),
        lambda: selector.inverse_transform(table[0]),
    ):
        with pytest.raises(NotFittedError):
            use()


def test_missing_values_are_the_estimators_business(table):
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.impute import SimpleImputer

    X, y = table
    X[3, 5] = np.nan
    for estimator in (
        make_pipeline(SimpleImputer(), Ridge()),
        HistGradientBoostingRegressor(max_iter=2),
    ):
        selector = SequentialFeatureSelector(
            estimator, n_features_to_select=5, direction="backward", cv=2, fixed_features=[5]
        )
        out = selector.fit_transform(X, y)
        assert np.isnan(out).sum() == 1


# --------------------------------------------------------------------------------------------------
# Inside other estimators, and around them


def test_in_a_pipeline(frame):
    X, y = frame
    model = make_pipeline(
        StandardScaler(),
        SequentialFeatureSelector(LinearRegression(), n_features_to_select=2),
        LinearRegression(),
    ).fit(X, y)
    expected = LinearRegression().fit(StandardScaler().fit_transform(X)[:, [0, 3]], y)
    np.testing.assert_allclose(model.predict(X), expected.predict(model[:-1].transform(X)))
    assert model[:-1].get_feature_names_out().tolist() == ["age", "bp"]
    model.set_output(transform="pandas").fit(X, y)
    assert model[-1].feature_names_in_.tolist() == ["age", "bp"]


def test_tuned_by_a_grid_search():
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:90, 1:7], y[:90]
    model = Pipeline(
        [
            ("select", SequentialFeatureSelector(Ridge(), direction="backward")),
            ("fit", LinearRegression()),
        ]
    )
    grid = {
        "select__estimator__alpha": [1e-3, 10.0],
        "select__n_features_to_select": [2, 5],
        "select__cv": [3, KFold(4, shuffle=True, random_state=0)],
    }
    search = GridSearchCV(model, grid, cv=3).fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    for params, score in zip(search.cv_results_["params"], scores, strict=True):
        expected = []
        for train, test in KFold(3).split(X):
            theirs = ScikitLearn(
                Ridge(alpha=params["select__estimator__alpha"]),
                n_features_to_select=params["select__n_features_to_select"],
                direction="backward",
                cv=params["select__cv"],
            )
            reference = make_pipeline(theirs, LinearRegression()).fit(X[train], y[train])
            expected.append(reference.score(X[test], y[test]))
        assert score == pytest.approx(np.mean(expected), rel=1e-8)
    # Each of the three parameters makes a difference, so none of them was ignored.
    shaped = scores.reshape(2, 2, 2)
    for axis in range(3):
        assert np.ptp(shaped, axis=axis).max() > 1e-6


def test_one_selector_in_another_on_a_frame(frame):
    X, y = frame
    inner = SequentialFeatureSelector(Ridge(), n_features_to_select=2, fixed_features=["bp"], cv=2)
    outer = SequentialFeatureSelector(
        make_pipeline(inner, LinearRegression()),
        n_features_to_select=3,
        fixed_features=["bp"],
        direction="backward",
        cv=3,
    ).fit(X, y)
    expected, _ = greedy(
        make_pipeline(clone(inner).set_params(fixed_features=None), LinearRegression()),
        *(X.to_numpy(), y, 3),
        backward=True,
        fixed=[3],
        cv=3,
    )
    assert outer.selection_.engines == ("refit",)
    assert selected(outer) == expected
    assert "bp" in outer.get_feature_names_out()


class NeedsFrame(RegressorMixin, BaseEstimator):
    """Works on nothing but frames that have kept their labels and dtypes."""

    def fit(self, X, y):
        self.check(X)
        self.mean_ = float(np.mean(y)) + 0.01 * X.shape[1]
        return self

    def predict(self, X):
        self.check(X)
        return np.full(len(X), self.mean_)

    def check(self, X):
        assert isinstance(X, pd.DataFrame)
        assert list(X.columns) == [name for name in NAMES if name in X.columns]
        assert (X.dtypes == np.float32).all()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_frames_reach_the_estimator(frame, direction):
    X, y = frame
    selector = SequentialFeatureSelector(NeedsFrame(), direction=direction, cv=2)
    selector.fit(X.astype(np.float32), y)
    assert not selector.selection_.notes
    # With groups too, columns keep the order of the frame.
    groups = [["sugar", "bmi"], ["bp", "age"], ["chol", "sex"]]
    selector.set_params(feature_groups=groups).fit(X.astype(np.float32), y)
    assert not selector.selection_.notes
    selector.set_params(feature_groups=None)
    with pytest.raises(ScoringError, match="AssertionError"):
        selector.fit(X.to_numpy(), y)


# --------------------------------------------------------------------------------------------------
# How many features, and which are moved


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("wanted", "size"),
    [("auto", 3), (1, 1), (6, 6), (np.int64(4), 4), (0.5, 3), (0.99, 5), (1.0, 6), (0.17, 1)],
)
def test_number_of_features(table, wanted, size, direction):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=wanted, direction=direction
    ).fit(*table)
    assert selector.get_support().sum() == selector.n_features_to_select_ == size
    assert selector.selection_.complete


@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize("tol", [0.0, 0.01, 0.2])
def test_forward_until_the_gain_falls_short_of_tol(table, tol, engine):
    X, y = table
    selector = SequentialFeatureSelector(LinearRegression(), tol=tol, engine=engine).fit(X, y)
    theirs = ScikitLearn(LinearRegression(), tol=tol, n_features_to_select="auto").fit(X, y)
    expected, rounds = greedy(LinearRegression(), X, y, 6, backward=False, tol=tol)
    assert selected(selector) == expected == theirs.get_support(indices=True).tolist()
    gains = np.diff([done.mean for done in selector.selection_.rounds])
    assert (gains >= tol).all()
    assert len(selector.selection_.rounds) == len(rounds) < 6


@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize("tol", [0.0, 0.001, -0.05, -1.0])
def test_backward_until_the_loss_exceeds_tol(table, tol, engine):
    X, y = table
    selector = SequentialFeatureSelector(
        LinearRegression(), tol=tol, direction="backward", engine=engine
    ).fit(X, y)
    expected, rounds = greedy(LinearRegression(), X, y, 1, backward=True, tol=tol)
    assert selected(selector) == expected
    assert [done.feature for done in selector.selection_.rounds[1:]] == [r[0] for r in rounds]


def test_backward_may_remove_nothing(table):
    X, y = table
    X = X[:, [0, 3, 4]]
    selector = SequentialFeatureSelector(LinearRegression(), tol=0.0, direction="backward")
    assert selected(selector.fit(X, y)) == [0, 1, 2]
    assert [done.action for done in selector.selection_.rounds] == ["start"]
    # scikit-learn compares the first removal with nothing, and so makes it.
    theirs = ScikitLearn(LinearRegression(), tol=0.0, direction="backward").fit(X, y)
    assert theirs.get_support().sum() < 3


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize(
    "fixed", [["sex", "sugar"], [1, 5], np.array([5, 1]), ("sugar", 1)], ids=str
)
def test_fixed_features_by_name_or_position(frame, direction, engine, fixed):
    X, y = frame
    selector = SequentialFeatureSelector(
        LinearRegression(),
        n_features_to_select=3,
        direction=direction,
        fixed_features=fixed,
        engine=engine,
    ).fit(X, y)
    expected, _ = greedy(
        LinearRegression(), X.to_numpy(), y, 3, backward=direction == "backward", fixed=[1, 5]
    )
    assert selected(selector) == expected
    for done in selector.selection_.rounds:
        assert {1, 5} <= set(done.subset)


def test_one_fixed_feature_given_as_an_array(table):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=1, fixed_features=np.array([0])
    ).fit(*table)
    assert selected(selector) == [0]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_groups_of_features_move_as_one(frame, direction):
    X, y = frame
    groups = [["age", "sex"], ["sugar"], ["bp", "chol"], [2]]
    for fixed, fixed_groups in ((None, ()), (["bp", 4], (2,)), (["sugar"], (1,))):
        selector = SequentialFeatureSelector(
            LinearRegression(),
            n_features_to_select=2,
            direction=direction,
            feature_groups=groups,
            fixed_features=fixed,
        ).fit(X, y)
        expected, rounds = greedy(
            LinearRegression(),
            *(X.to_numpy(), y, 2),
            backward=direction == "backward",
            features=[[0, 1], [5], [3, 4], [2]],
            fixed=fixed_groups,
        )
        columns = [[0, 1], [5], [3, 4], [2]]
        assert selected(selector) == sorted(
            column for group in expected for column in columns[group]
        )
        assert selector.n_features_to_select_ == 2
        moved = [done for done in selector.selection_.rounds if done.action != "start"]
        assert [done.feature_index for done in moved] == [r[0] for r in rounds]
        assert moved[0].feature == tuple(NAMES[column] for column in columns[rounds[0][0]])
        assert selector.selection_.engines == ("moments",)


def test_floating_goes_back_where_that_is_better():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 8))
    X[:, 0] = X[:, 1] + X[:, 2] + X[:, 3] + 0.5 * rng.normal(size=60)
    y = X[:, 1] + X[:, 2] + X[:, 3] + 0.3 * rng.normal(size=60)
    plain = SequentialFeatureSelector(LinearRegression(), n_features_to_select=4, cv=3).fit(X, y)
    floating = clone(plain).set_params(floating=True).fit(X, y)
    rounds = floating.selection_.rounds
    # Alone the first column is the best; with the three that make it up it is of no use.
    assert rounds[0].feature == 0
    back = [done for done in rounds if done.action == "remove"]
    assert 0 in [done.feature for done in back]
    assert {1, 2, 3} < set(selected(floating)) < {1, 2, 3, 4, 5, 6, 7}
    for done in back:
        assert done.mean > rounds[done.number - 1].mean
    assert rounds[-1].mean > plain.selection_.rounds[-1].mean + 0.05


# --------------------------------------------------------------------------------------------------
# Several at once, sizes chosen by their scores, and stopping


def greedy_by_steps(estimator, X, y, target, *, backward, step, fixed=(), cv=5):
    """A plain loop over cross-validated refits: a round is (moved, best first; subset; mean)."""
    n_columns = X.shape[1]
    inside = set(range(n_columns)) if backward else set(fixed)
    rounds = []
    while len(inside) != target:
        means = {
            column: mean_score(estimator, X, y, inside ^ {column}, cv=cv)
            for column in range(n_columns)
            if column not in fixed and (column in inside) == backward
        }
        count = max(1, int(step * len(means))) if isinstance(step, float) else step
        count = min(count, abs(len(inside) - target))
        moved = sorted(means, key=means.get, reverse=True)[:count]
        inside ^= set(moved)
        rounds.append((moved, sorted(inside), mean_score(estimator, X, y, inside, cv=cv)))
    return rounds


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("engine", ["moments", "refit"])
@pytest.mark.parametrize(
    ("step", "wanted", "fixed"),
    [(2, 2, ()), (3, 5, (4,)), (0.5, 2, ()), (0.4, 5, (0, 7)), (20, 3, ())],
)
def test_steps_are_those_of_a_plain_loop(engine, direction, step, wanted, fixed):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(70, 9)) @ (np.eye(9) + 0.3 * rng.normal(size=(9, 9)))
    y = X @ rng.normal(size=9) + 2 * rng.normal(size=70)
    selector = SequentialFeatureSelector(
        Ridge(),
        n_features_to_select=wanted,
        direction=direction,
        step=step,
        fixed_features=fixed,
        engine=engine,
        cv=4,
    ).fit(X, y)
    expected = greedy_by_steps(
        Ridge(), X, y, wanted, backward=direction == "backward", step=step, fixed=fixed, cv=4
    )
    assert selector.get_support().sum() == wanted
    rounds = [done for done in selector.selection_.rounds if done.action != "start"]
    assert [(list(done.moved), list(done.subset)) for done in rounds] == [r[:2] for r in expected]
    np.testing.assert_allclose([done.mean for done in rounds], [r[2] for r in expected], rtol=1e-9)
    assert max(map(len, (done.moved for done in rounds))) > 1
    assert selector.selection_.stop_reason == "target"
    assert selector.plan_.n_rounds == len(selector.selection_.rounds)


def test_steps_on_a_cluster(table, local_client):
    X, y = table
    options = {"n_features_to_select": 1, "direction": "backward", "step": 2}
    for engine in ("moments", "refit"):
        here, there = (
            SequentialFeatureSelector(
                LinearRegression(), **options, engine=engine, client=client
            ).fit(X, y)
            for client in (None, local_client)
        )
        one, other = (
            [(done.moved, done.fold_scores.tolist()) for done in each.selection_.rounds]
            for each in (here, there)
        )
        assert [moved for moved, _ in one] == [moved for moved, _ in other]
        for (_, scores), (_, others) in zip(one, other, strict=True):
            np.testing.assert_allclose(scores, others, rtol=1e-9)


class FailsWithout(RegressorMixin, BaseEstimator):
    """Least squares that fails where one of its columns, known by its first value, is missing."""

    def __init__(self, needs=()):
        self.needs = needs

    def fit(self, X, y):
        if not set(self.needs) <= set(X[0].tolist()):
            message = "a column is missing"
            raise ValueError(message)
        self.model_ = LinearRegression().fit(X[1:], y[1:])
        return self

    def predict(self, X):
        return self.model_.predict(X)


@pytest.mark.parametrize("step", [1, 2, 4, 0.9])
def test_a_feature_without_scores_is_never_among_those_moved(table, step):
    X, y = table
    X[:, :] = np.where(np.arange(80)[:, None] == 0, np.arange(6.0), X)
    # The first row is a training row of the one fold there is.
    cv = [(np.arange(60), np.arange(60, 80))]
    selector = SequentialFeatureSelector(
        FailsWithout(needs=(1.0, 2.0)),
        n_features_to_select=2,
        direction="backward",
        cv=cv,
        step=step,
    ).fit(X, y)
    assert selected(selector) == [1, 2]
    assert all({1, 2} <= set(done.subset) for done in selector.selection_.rounds)
    assert "a column is missing" in " ".join(selector.selection_.notes)
    selector.set_params(n_features_to_select=1)
    with pytest.raises(ScoringError, match=r"2 candidates .*NaN in fold 0 .*a column is missing"):
        selector.fit(X, y)
    assert list(selector.selection_.rounds[-1].subset) == [1, 2]


@pytest.fixture
def many():
    """Twelve columns, four of them of use, so that neither end of the path is the best."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 12))
    return X, X[:, [1, 4, 6, 9]] @ [2.0, -1.5, 1.0, 0.6] + 2 * rng.normal(size=60)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("engine", ["moments", "refit"])
def test_sizes_chosen_by_their_scores(many, direction, engine):
    X, y = many
    options = {"direction": direction, "engine": engine}
    selector = SequentialFeatureSelector(LinearRegression(), **options)
    end = 1 if direction == "backward" else 12
    path = selector.set_params(n_features_to_select=end).fit(X, y).selection_
    by_size = {done.n_features: done for done in path.rounds}
    assert sorted(by_size) == list(range(1, 13))
    best = max(by_size, key=lambda size: by_size[size].mean)
    assert 1 < best < 12
    folds = by_size[best].fold_scores
    within = by_size[best].mean - np.std(folds, ddof=1) / np.sqrt(5)
    simplest = min(size for size in by_size if by_size[size].mean >= within)
    assert simplest < best
    low, high = best + 2, best + 4
    in_range = max(range(low, high + 1), key=lambda size: by_size[size].mean)

    for wanted, size in [("best", best), ("parsimonious", simplest), ((low, high), in_range)]:
        selector.set_params(n_features_to_select=wanted).fit(X, y)
        assert selector.n_features_to_select_ == selector.get_support().sum() == size
        assert selected(selector) == list(by_size[size].subset)
        sizes = selector.selection_.sizes
        far = {"forward": (1, 12), "backward": (1, 12)}[direction]
        if isinstance(wanted, tuple):
            far = (1, high) if direction == "forward" else (low, 12)
        assert (sizes[0], sizes[-1]) == far
        # From the path any other size can be had.
        for other in (low, "best", "parsimonious"):
            expected = {
                "best": selector.selection_.best,
                "parsimonious": selector.selection_.parsimonious,
            }
            chosen = by_size[low] if other == low else expected[other]()
            assert selector.set_size(other) is selector
            assert selected(selector) == list(chosen.subset)
            assert selector.n_features_to_select_ == chosen.n_features
            assert selector.transform(X).shape == (60, chosen.n_features)
        assert selector.n_features_to_select is wanted
        assert selector.set_size((low, low + 1)).n_features_to_select_ in (low, low + 1)


def test_fixed_features_limit_the_sizes(many):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select="best", direction="backward", fixed_features=[0, 2]
    ).fit(*many)
    assert selector.selection_.sizes == tuple(range(2, 13))
    assert {0, 2} < set(selected(selector))
    selector.set_params(n_features_to_select=(1, 4))
    with pytest.raises(ValueError, match=r"\(1, 4\) has 1, which is fewer than the 2 fixed"):
        selector.fit(*many)


def test_set_size_says_what_there_is(many):
    X, y = many
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=4, direction="backward", step=4
    )
    with pytest.raises(NotFittedError):
        selector.set_size(4)
    selector.fit(X, y)
    before = selected(selector)
    with pytest.raises(ValueError, match=r"no subset of 5 features .* reached 4, 8, 12 features"):
        selector.set_size(5)
    for size in ("auto", "most", None, True, 0.5):
        with pytest.raises(ValueError, match="size must be a number, 'best'"):
            selector.set_size(size)
    assert selected(selector) == before
    assert selector.set_size(np.int64(8)).get_support().sum() == 8
    assert selected(selector.fit(X, y)) == before


def test_set_size_after_an_interrupt(table):
    X, y = table
    selector = SequentialFeatureSelector(
        StopsAt(3), n_features_to_select=1, direction="backward", cv=2
    )
    with pytest.raises(KeyboardInterrupt):
        selector.fit(X, y)
    subset = selector.selection_.rounds[-1].subset
    assert selector.set_size(4).transform(X).shape == (80, 4)
    assert selected(selector) == list(subset)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("wanted", ["auto", "best", (2, 11)])
def test_patience(many, direction, wanted):
    X, y = many
    end = 1 if direction == "backward" else 12
    options = {"direction": direction, "engine": "refit"}
    path = SequentialFeatureSelector(LinearRegression(), n_features_to_select=end, **options)
    rounds = path.fit(X, y).selection_.rounds
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=wanted, **options, patience=2
    ).fit(X, y)
    low, high = wanted if isinstance(wanted, tuple) else (1, 12)
    best, waited, expected = None, 0, []
    for done in rounds:
        expected.append(done.n_features)
        if not low <= done.n_features <= high:
            continue
        if best is None or done.mean > best.mean:
            best, waited = done, 0
        else:
            waited += 1
        if waited == 2:
            break
    found = selector.selection_
    assert [done.n_features for done in found.rounds] == expected
    assert len(expected) < len(rounds)
    assert found.stop_reason == "patience"
    assert found.complete
    assert selected(selector) == list(best.subset)


def test_tol_keeps_its_meaning_with_step_and_patience(many):
    X, y = many
    for step, patience in ((1, 3), (2, None), (2, 1)):
        selector = SequentialFeatureSelector(
            LinearRegression(), direction="backward", tol=-0.01, step=step, patience=patience
        ).fit(X, y)
        rounds = selector.selection_.rounds
        assert (np.diff([done.mean for done in rounds]) >= -0.01).all()
        assert selected(selector) == list(rounds[-1].subset)
        if selector.selection_.stop_reason == "tol":
            following = greedy_by_steps(LinearRegression(), X, y, 1, backward=True, step=step)
            assert following[len(rounds) - 1][2] - rounds[-1].mean < -0.01


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"patience": 2, "n_features_to_select": 3}, "patience=2 .*'best'.* not 3"),
        ({"patience": 2, "n_features_to_select": 0.5}, "patience=2 .* not 0.5"),
        ({"patience": 0}, "patience must be .* got 0"),
        ({"step": 0}, "step must be .* got 0"),
        ({"step": 2, "floating": True}, "step=2 .* floating"),
        ({"max_seconds": 0}, "max_seconds must be .* got 0"),
        ({"n_features_to_select": (3, 2)}, r"\(3, 2\): the minimum is greater"),
        ({"n_features_to_select": (3, 20)}, r"\(3, 20\) has 20, which is more than the 12"),
        ({"n_features_to_select": (3,)}, "two numbers"),
        ({"n_features_to_select": 400}, "=400 is more than the 12 .*: choose from 1 to 12"),
        ({"n_features_to_select": 0.01}, "=0.01 comes to 0, which is fewer than one"),
        ({"tol": 0.1, "n_features_to_select": "best"}, "'auto', not 'best'"),
        ({"criterion": "p_value", "n_features_to_select": "best"}, "'best' .* p-value"),
        ({"criterion": "p_value", "n_features_to_select": (2, 3)}, "p-value"),
        ({"scoring": "neg_mean_squared_eror"}, "Did you mean neg_mean_squared_error"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(many, parameters, message):
    selector = SequentialFeatureSelector(LinearRegression(), direction="backward", **parameters)
    with pytest.raises(ValueError, match=message):
        selector.fit(*many)


class Slow(RegressorMixin, BaseEstimator):
    """A mean that takes its time."""

    def fit(self, X, y):
        time.sleep(0.01)
        self.mean_ = np.mean(y) * (1 + 0.01 * X[0].sum())
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (1, "which are selected; the search was on its way to 1"),
        ("best", "are chosen from the sizes reached$"),
        ("parsimonious", "are chosen from the sizes reached$"),
        ((1, 11), "are chosen from the sizes reached$"),
        ((1, 2), "none of which is from 1 to 2"),
    ],
    ids=str,
)
def test_a_time_budget_ends_the_search(many, wanted, says):
    X, y = many
    # A round of up to twelve candidates and two folds takes a quarter of a second.
    selector = SequentialFeatureSelector(
        Slow(), n_features_to_select=wanted, direction="backward", cv=2, max_seconds=0.5
    )
    with pytest.warns(DagselWarning, match=says) as caught:
        selector.fit(X, y)
    selection = selector.selection_
    assert (selection.stop_reason, selection.complete) == ("time", True)
    reached = selection.rounds[-1].n_features
    assert 2 < reached < 12
    text = str(caught[0].message)
    assert f"the time budget of 0.5 s was used up at {reached} of 12 features" in text
    assert text in selection.notes
    if wanted in (1, (1, 2)):
        assert selected(selector) == list(selection.rounds[-1].subset)
    elif wanted == "parsimonious":
        assert selected(selector) == list(selection.parsimonious().subset)
    else:
        high = 11 if isinstance(wanted, tuple) else 12
        assert selected(selector) == list(selection.best(max_size=high).subset)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("engine", "on_cluster"), [("moments", False), ("moments", True), ("refit", False)]
)
def test_the_first_round_is_made_whatever_the_time(
    many, direction, step, engine, on_cluster, local_client
):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=5, direction=direction, step=step, engine=engine
    ).set_params(max_seconds=1e-9, client=local_client if on_cluster else None)
    with pytest.warns(DagselWarning, match="time budget"):
        selector.fit(*many)
    (done,) = selector.selection_.rounds
    assert selector.n_features_to_select_ == (12 if direction == "backward" else step)
    assert selected(selector) == list(done.subset)
    expected = cross_val_score(LinearRegression(), many[0][:, list(done.subset)], many[1], cv=5)
    np.testing.assert_allclose(done.fold_scores, expected, rtol=1e-9)


def test_p_values_stop_at_their_level(many):
    X, y = many
    model = LinearRegression()

    def p_values(columns):
        """Of every coefficient, from the textbook's t-tests."""
        design = np.column_stack([np.ones(len(X)), X[:, columns]])
        coefficients = np.linalg.lstsq(design, y)[0]
        freedom = len(X) - design.shape[1]
        variance = np.sum((y - design @ coefficients) ** 2) / freedom
        errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
        return 2 * student.sf(np.abs(coefficients / errors), freedom)[1:]

    for alpha in (0.05, 0.3):
        columns, moved = list(range(12)), []
        while len(columns) > 1 and p_values(columns).max() >= alpha:
            moved.append(columns.pop(int(np.argmax(p_values(columns)))))
        selector = SequentialFeatureSelector(
            model, direction="backward", criterion="p_value", alpha=alpha
        ).fit(X, y)
        assert [done.feature for done in selector.selection_.rounds] == moved
        assert selected(selector) == columns
        assert selector.selection_.stop_reason == "threshold"
        with pytest.raises(ValueError, match=r"'best' .* p-value"):
            selector.set_size("best")
        kept = selector.set_size(11)
        assert kept.get_support().sum() == 11

        columns = []
        while len(columns) < 12:
            added = {
                column: p_values([*columns, column])[-1]
                for column in range(12)
                if column not in columns
            }
            best = min(added, key=added.get)
            if added[best] > alpha:
                break
            columns.append(best)
        selector = SequentialFeatureSelector(model, criterion="p_value", alpha=alpha).fit(X, y)
        assert [done.feature for done in selector.selection_.rounds] == columns
    # To a given size the test does not stop the search.
    selector.set_params(n_features_to_select=9).fit(X, y)
    assert selector.n_features_to_select_ == 9


def test_where_no_move_passes_the_test_all_or_none_are_selected(many):
    X, y = many
    selector = SequentialFeatureSelector(
        LinearRegression(), direction="backward", criterion="p_value", alpha=0.999999
    ).fit(X, y)
    assert selected(selector) == list(range(12))
    assert (selector.n_features_to_select_, selector.selection_.rounds) == (12, [])
    selector.set_params(direction="forward", alpha=1e-300, fixed_features=[2, 7]).fit(X, y)
    assert selected(selector) == [2, 7]
    assert (selector.n_features_to_select_, selector.selection_.stop_reason) == (2, "threshold")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_other_criteria_stop_where_they_are_not_improved(many, direction):
    X, y = many
    selector = SequentialFeatureSelector(LinearRegression(), direction=direction, criterion="bic")
    selection = selector.fit(X, y).selection_
    assert (np.diff([done.mean for done in selection.rounds]) > 0).all()
    assert selection.stop_reason == "tol"
    assert selected(selector) == list(selection.rounds[-1].subset)
    end = 1 if direction == "backward" else 12
    whole = clone(selector).set_params(n_features_to_select=end).fit(X, y).selection_.rounds
    assert whole[len(selection.rounds)].mean < selection.rounds[-1].mean


@pytest.mark.parametrize("in_process", [True, False])
def test_tasks_are_sized_by_the_time_that_is_left(in_process):
    place = SimpleNamespace(in_process=in_process)
    rounds = {"seconds_per_request": 0.01}
    free = Session(None, None, place, 1, **rounds)._n_requests()
    assert free == (25 if in_process else 100)
    now = time.perf_counter()
    limited = Session(None, None, place, 1, **rounds, deadline=now + 0.1)._n_requests()
    assert 1 <= limited <= 10
    assert Session(None, None, place, 1, **rounds, deadline=now - 1)._n_requests() == 1
    assert Session(None, None, place, 1, **rounds, deadline=now + 99)._n_requests() == free
    # Nothing has been measured yet.
    assert Session(None, None, place, 1, deadline=now + 99)._n_requests() == 1


def test_engines_that_do_not_fit_are_passed_over_and_it_is_said(many):
    X, y = many
    selector = SequentialFeatureSelector(LinearRegression(), direction="backward")
    job = selector._open(X, y, None, {})
    here = (job.problem, job.search, LocalExecutor())
    costs = [engine.cost(*here) for engine in engine_classes()]
    moments, rows, refit = (
        cost.piece_bytes * cost.n_pieces + cost.everywhere_bytes for cost in costs
    )
    for memory, engine in ((max(moments, rows) + 1, "moments"), (refit + 1, "refit")):
        plan = make_plan(*here, memory_per_worker=memory)
        assert plan.engine == engine
        assert (plan.warning is not None) == (engine == "refit")
    assert refit < min(moments, rows)
    assert "not moments, because" in plan.reason
    assert "need" in plan.reason
    assert "scored by refits, which is slower" in plan.warning


def test_a_refusal_names_the_column(many, monkeypatch):
    """Also one that comes up in the middle of a run, where columns are numbers."""
    X, y = many
    frame = pd.DataFrame(X, columns=[f"name{j}" for j in range(X.shape[1])])

    def refuse(self, state, request):
        msg = "column {column} is not to be trusted"
        raise NotCertifiedError(msg, 3)

    monkeypatch.setattr(MomentsEngine, "score", refuse)
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2)
    selector.fit(frame, y)
    (note,) = selector.selection_.notes
    assert note.startswith("column 'name3' is not to be trusted")


class Phases(Monitor):
    def __init__(self):
        self.told = []

    def phase(self, text):
        self.told.append(text)


@pytest.mark.parametrize("n_shards", [1, 3])
def test_an_engine_is_prepared_once(many, n_shards):
    X, y = many
    selector = SequentialFeatureSelector(LinearRegression(), direction="backward")
    job, monitor = selector._open(X, y, None, {}), Phases()
    run_search(
        job.problem,
        job.search,
        job.plan.engines[:1],
        job.executor,
        lambda decided, rounds_left: None,
        monitor,
        shards=[n_shards],
    )
    assert monitor.told == ["preparing the moments engine"]


def test_a_task_that_is_run_twice_gives_the_same(many):
    X, y = many
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=1, direction="backward", step=2
    )
    job = selector._open(X, y, None, {})
    (resident,) = job.plan.engines[0].prepare(job.problem, job.executor, job.search.subset, 1)
    for n_requests in (1, 2, 4):
        one, other = (
            # On another worker, or after a restart: nothing is left from the first time.
            play_rounds(job.plan.engines[0], resident, job.search, n_requests, StateKey(run, 0))
            for run in (f"once {n_requests}", f"twice {n_requests}")
        )
        assert [move for move, _ in one.moves] == [move for move, _ in other.moves]
        # The start, and then two requests a round, none of which is left half done.
        assert len(one.moves) == 1 + n_requests // 2
        assert not one.search.mid_round
        assert one.search.subset == other.search.subset
        assert forget(f"once {n_requests}") == forget(f"twice {n_requests}") == 1


def test_time_enough_changes_nothing(many, local_client):
    for client in (None, local_client):
        options = {"n_features_to_select": 2, "direction": "backward", "client": client}
        plain, timed = (
            SequentialFeatureSelector(LinearRegression(), **options, max_seconds=seconds).fit(*many)
            for seconds in (None, 60)
        )
        assert selected(plain) == selected(timed)
        assert timed.selection_.stop_reason == "target"
        assert not timed.selection_.notes


# --------------------------------------------------------------------------------------------------
# What is told


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("engine", ["moments", "refit"])
def test_the_path_is_that_of_refits(frame, direction, engine):
    X, y = frame
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=2, direction=direction, engine=engine, cv=4
    ).fit(X, y)
    backward = direction == "backward"
    _, expected = greedy(LinearRegression(), X.to_numpy(), y, 2, backward=backward, cv=4)
    selection = selector.selection_
    assert isinstance(selection, Selection)
    assert selection.complete
    assert selection.scoring == "r2"
    assert selection.direction == direction
    assert selection.names == tuple(NAMES)
    assert selection.engines == (engine,)
    assert selection.plan == str(selector.plan_)
    rounds = selection.rounds
    if backward:
        assert rounds[0].action == "start"
        full = cross_val_score(LinearRegression(), X, y, cv=4)
        np.testing.assert_allclose(rounds[0].fold_scores, full, rtol=1e-9)
        rounds = rounds[1:]
    for done, (best, mean, second, second_mean) in zip(rounds, expected, strict=True):
        assert done.action == ("remove" if backward else "add")
        assert done.feature == NAMES[best]
        assert done.mean == pytest.approx(mean, rel=1e-9)
        assert done.runner_up == NAMES[second]
        assert done.runner_up_mean == pytest.approx(second_mean, rel=1e-9)
        assert done.tied == ()
        assert 0 < done.seconds < 60
        assert done.engine == engine
        folds = cross_val_score(LinearRegression(), X[list(done.names)], y, cv=4)
        np.testing.assert_allclose(done.fold_scores, folds, rtol=1e-9)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("engine", ["auto", "refit"])
def test_ties_are_told_and_broken_as_in_scikit_learn(table, engine, direction):
    X, y = table
    X[:, 5] = X[:, 3]
    options = {"n_features_to_select": 2, "cv": 3, "direction": direction}
    selector = SequentialFeatureSelector(LinearRegression(), **options, engine=engine)
    selector.fit(X, y)
    first = next(done for done in selector.selection_.rounds if done.feature in (3, 5))
    # Forward the lower is added, backward the lower is removed.
    assert (first.feature, first.tied, first.runner_up) == (3, (5,), 5)
    assert first.runner_up_mean == pytest.approx(first.mean, rel=1e-12)
    assert selected(selector) == ([0, 3] if direction == "forward" else [0, 5])


def test_plan_tells_and_does_nothing(table):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=2, direction="backward"
    )
    before = dict(vars(selector))
    plan = selector.plan(*table)
    assert vars(selector) == before
    assert isinstance(plan, Plan)
    assert (plan.engine, plan.n_rows, plan.n_columns, plan.n_folds) == ("moments", 80, 6, 5)
    assert (plan.n_rounds, plan.n_candidates) == (5, 1 + 6 + 5 + 4 + 3)
    assert "refits avoided" in str(plan)
    assert str(selector.fit(*table).plan_) == str(plan)
    plan = selector.set_params(estimator=DecisionTreeRegressor()).plan(*table)
    assert plan.engine == "refit"
    assert "DecisionTreeRegressor is n" in str(plan)


@pytest.mark.parametrize(("seconds", "n_lines"), [(0.0, 3), (100.0, 2)])
def test_verbose_prints_rounds_to_standard_error(frame, capsys, monkeypatch, seconds, n_lines):
    monkeypatch.setattr("dagsel.monitor._SECONDS_BETWEEN_LINES", seconds)
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=4, direction="backward", verbose=1
    ).fit(*frame)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == n_lines
    assert lines[0].startswith("[dagsel] round 0: start, 6 features, r2 0.")
    last = selector.selection_.rounds[-1]
    told = f"[dagsel] round 2: remove {last.feature}, 4 features, r2 {last.mean:.6g}; 0 to go"
    assert lines[-1] == told
    selector.set_params(verbose=0).fit(*frame)
    assert capsys.readouterr() == ("", "")


# --------------------------------------------------------------------------------------------------
# Groups and weights


@pytest.fixture
def groups():
    return np.random.default_rng(0).integers(0, 8, size=80)


@pytest.mark.parametrize("engine", ["moments", "refit"])
def test_groups_reach_the_splitter(table, groups, engine):
    X, y = table
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=3, cv=GroupKFold(4), engine=engine
    ).fit(X, y, groups=groups)
    for done in selector.selection_.rounds:
        columns = list(done.subset)
        expected = cross_val_score(
            LinearRegression(), X[:, columns], y, cv=list(GroupKFold(4).split(X, y, groups))
        )
        np.testing.assert_allclose(done.fold_scores, expected, rtol=1e-9)
    with pytest.raises(DataError, match="Say with groups= which group each row is in"):
        selector.fit(X, y)


def weighted_scores(X, y, columns, weights):
    scores = []
    for train, test in KFold(5).split(X):
        model = LinearRegression().fit(X[train][:, columns], y[train], weights[train])
        scores.append(model.score(X[test][:, columns], y[test]))
    return scores


def test_weights_reach_the_estimator(table):
    X, y = table
    weights = np.random.default_rng(1).uniform(0.01, 3, size=80)
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2)
    selector.fit(X, y, sample_weight=weights)
    assert selector.selection_.engines == ("moments",)
    for done in selector.selection_.rounds:
        expected = weighted_scores(X, y, list(done.subset), weights)
        np.testing.assert_allclose(done.fold_scores, expected, rtol=1e-9)
    rounds = selector.selection_.rounds
    model = Pipeline([("select", selector), ("fit", Ridge())])
    model.fit(X, y, select__sample_weight=weights.tolist())
    assert model[0].selection_.rounds[-1].mean == rounds[-1].mean


def test_groups_and_weights_are_routed(table, groups):
    X, y = table
    weights = np.random.default_rng(1).uniform(0.01, 3, size=80)
    plain = SequentialFeatureSelector(Ridge(), n_features_to_select=2, cv=GroupKFold(4))
    plain.fit(X, y, groups=groups, sample_weight=weights)
    with config_context(enable_metadata_routing=True):
        selector = clone(plain)
        selector.estimator.set_fit_request(sample_weight="importance")
        model = make_pipeline(selector, LinearRegression())
        model.fit(X, y, groups=groups, importance=weights)
        routed = model[0].selection_.rounds
        search = GridSearchCV(
            model, {"sequentialfeatureselector__estimator__alpha": [0.1, 1e4]}, cv=GroupKFold(2)
        ).fit(X, y, groups=groups, importance=weights)
    np.testing.assert_array_equal(routed[-1].fold_scores, plain.selection_.rounds[-1].fold_scores)
    assert search.best_params_ == {"sequentialfeatureselector__estimator__alpha": 0.1}


# --------------------------------------------------------------------------------------------------
# What is left when a run ends before its time


class StopsAt(RegressorMixin, BaseEstimator):
    """A mean that, on so few columns, is interrupted by the user or fails."""

    def __init__(self, n_columns=0, error=KeyboardInterrupt):
        self.n_columns = n_columns
        self.error = error

    def fit(self, X, y):
        if X.shape[1] == self.n_columns:
            message = f"stopped at {self.n_columns}"
            raise self.error(message)
        self.mean_ = np.mean(y) * (1 + 0.01 * X[0].sum())
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


@pytest.mark.parametrize(
    ("error", "raised", "match"),
    [
        (KeyboardInterrupt, KeyboardInterrupt, "stopped at 3"),
        (RuntimeError, ScoringError, "RuntimeError: stopped at 3"),
    ],
)
def test_what_was_decided_is_kept(table, error, raised, match):
    X, y = table
    selector = SequentialFeatureSelector(
        StopsAt(), n_features_to_select=1, direction="backward", cv=2
    ).fit(X, y)
    complete = selector.selection_
    assert len(complete.rounds) == 6
    selector.set_params(estimator=StopsAt(3, error))
    with pytest.raises(raised, match=match):
        selector.fit(X, y)
    partial = selector.selection_
    assert not partial.complete
    assert [done.subset for done in partial.rounds] == [done.subset for done in complete.rounds[:3]]
    # Nothing of the earlier fit passes for a result of this one.
    with pytest.raises(NotFittedError):
        selector.get_support()
    assert not hasattr(selector, "n_features_to_select_")
    selector.set_params(estimator=StopsAt())
    assert selected(selector.fit(X, y)) == list(complete.rounds[-1].subset)
