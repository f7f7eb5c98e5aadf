"""`RFE` and `RFECV` select, rank and score as scikit-learn's do, and keep its contract."""

from __future__ import annotations

import pickle
import threading
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from problems import PROBLEMS, SPLITTERS, groups_of
from sklearn import config_context
from sklearn import feature_selection as scikit_learn
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_linnerud
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import (
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
)
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR, LinearSVC
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_estimator

from dagsel import DagselError, DagselWarning, DataError, ScoringError, scan
from dagsel.elimination import best_size
from dagsel.engines.paths.elimination import (
    EliminationPath,
    Importances,
    Score,
    least_important,
    squared,
    step_sizes,
)
from dagsel.recursive import RFE, RFECV

RTOL = 1e-9
REGULAR = [problem for problem in PROBLEMS if problem.name != "digits"]
# Mixed units have columns whose removal changes nothing to 1e-9 of a score.
NOT_RAW = [problem for problem in REGULAR if problem.engine == "moments"]
STEPS = (1, 3, 0.2)


def fitted(selector, *data, **params):
    """Fit, and return what a fall back to refits announced; any other warning is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selector.fit(*data, **params)
    others = [w for w in caught if not issubclass(w.category, DagselWarning)]
    assert not others, others[0]
    return [str(w.message) for w in caught]


def check_same(ours, theirs):
    np.testing.assert_array_equal(ours.support_, theirs.support_)
    np.testing.assert_array_equal(ours.ranking_, theirs.ranking_)
    assert ours.n_features_ == theirs.n_features_
    for name in ("coef_", "feature_importances_", "intercept_"):
        if hasattr(theirs.estimator_, name):
            expected = getattr(theirs.estimator_, name)
            np.testing.assert_allclose(getattr(ours.estimator_, name), expected, rtol=RTOL)
    if not hasattr(theirs, "cv_results_"):
        return
    assert set(ours.cv_results_) == set(theirs.cv_results_)
    for name, values in theirs.cv_results_.items():
        found = ours.cv_results_[name]
        assert found.shape == values.shape
        if name.endswith("score"):
            np.testing.assert_allclose(found, values, rtol=RTOL, atol=RTOL)
        else:
            np.testing.assert_array_equal(found, values)
            assert found.dtype.kind == values.dtype.kind


def both(name, estimator, **options):
    """Ours and scikit-learn's, with equal parameters."""
    own = {key: options.pop(key) for key in ("engine", "client") if key in options}
    ours = {"RFE": RFE, "RFECV": RFECV}[name](clone(estimator), **options, **own)
    return ours, getattr(scikit_learn, name)(clone(estimator), **options)


@pytest.fixture
def table():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(80, 6)) @ (np.eye(6) + 0.15 * rng.normal(size=(6, 6)))
    return X, 1.5 * X[:, 0] - 2 * X[:, 3] + 0.5 * X[:, 4] + rng.normal(size=80)


@pytest.fixture
def frame(table):
    return pd.DataFrame(table[0], columns=["age", "sex", "bmi", "bp", "chol", "sugar"]), table[1]


# --------------------------------------------------------------------------------------------------
# From moments, as from refits


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("estimator", [LinearRegression(), Ridge(alpha=3.0)], ids=str)
@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_rfe_like_scikit_learn(problem, estimator, step):
    X, y = problem.load()
    ours, theirs = both("RFE", estimator, n_features_to_select=2, step=step)
    told = fitted(ours, X, y)
    check_same(ours, theirs.fit(X, y))
    assert bool(told) == (ours.engine_ == "refit")
    assert ours.engine_ == "moments" or problem.engine != "moments"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("estimator", [LinearRegression(), Ridge(alpha=3.0)], ids=str)
@pytest.mark.parametrize("problem", REGULAR, ids=str)
def test_rfecv_like_scikit_learn(problem, estimator, step):
    X, y = problem.load()
    ours, theirs = both("RFECV", estimator, step=step, min_features_to_select=2)
    told = fitted(ours, X, y)
    check_same(ours, theirs.fit(X, y))
    assert bool(told) == (ours.engine_ == "refit")
    assert ours.engine_ == "moments" or problem.engine != "moments"


@pytest.mark.parametrize("splitter", SPLITTERS)
@pytest.mark.parametrize("problem", NOT_RAW, ids=str)
def test_every_splitter(problem, splitter):
    X, y = problem.load()
    options = {"groups": groups_of(len(y))} if splitter == "group" else {}
    cv = SPLITTERS[splitter]()
    ours, theirs = both("RFECV", LinearRegression(), cv=cv, step=0.1)
    fitted(ours, X, y, **options)
    check_same(ours, theirs.fit(X, y, **options))


@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "neg_root_mean_squared_error", "r2"])
@pytest.mark.parametrize(
    "estimator",
    [LinearRegression(fit_intercept=False), Ridge(fit_intercept=False), Ridge(solver="svd")],
    ids=str,
)
def test_every_metric_and_form_of_the_model(estimator, scoring):
    X, y = load_diabetes(return_X_y=True)
    X = (X + 0.02) * np.geomspace(0.1, 100, 10)
    ours, theirs = both("RFECV", estimator, scoring=scoring, cv=4, engine="moments")
    check_same(ours.fit(X, y), theirs.fit(X, y))


def test_several_targets():
    X, Y = load_linnerud(return_X_y=True)
    rng = np.random.default_rng(0)
    X = np.hstack([X, rng.normal(size=(20, 4))])
    for estimator in (LinearRegression(), Ridge()):
        for name in ("RFE", "RFECV"):
            ours, theirs = both(name, estimator)
            assert not fitted(ours, X, Y)
            assert ours.engine_ == "moments"
            check_same(ours, theirs.fit(X, Y))


def test_units_decide_which_coefficient_is_small():
    # In other units the same model drops other columns: coefficients, not columns, are compared.
    X, y = load_diabetes(return_X_y=True)
    scaled = X * np.geomspace(1e-3, 1e3, 10)
    paths = []
    for data in (X, scaled):
        ours, theirs = both("RFE", LinearRegression(tol=1e-12), n_features_to_select=1)
        check_same(ours.fit(data, y), theirs.fit(data, y))
        assert ours.engine_ == "moments"
        paths.append(ours.ranking_.tolist())
    assert paths[0] != paths[1]


@pytest.mark.parametrize("problem", NOT_RAW, ids=str)
def test_moments_and_refits_agree(problem):
    X, y = problem.load()
    fast, slow = (
        RFECV(Ridge(alpha=0.1), engine=engine, cv=3, step=2).fit(X, y)
        for engine in ("moments", "refit")
    )
    assert (fast.engine_, slow.engine_) == ("moments", "refit")
    check_same(fast, slow)


def test_many_columns():
    # More removals than the tableau keeps pending.
    rng = np.random.default_rng(2)
    X = rng.normal(size=(500, 300)) @ (np.eye(300) + 0.05 * rng.normal(size=(300, 300)))
    y = X[:, :20] @ rng.normal(size=20) + rng.normal(size=500)
    ours, theirs = both("RFE", LinearRegression(), n_features_to_select=5)
    check_same(ours.fit(X, y), theirs.fit(X, y))
    assert ours.engine_ == "moments"


def test_an_exact_fit_is_no_obstacle_where_nothing_is_scored(table):
    X, _ = table
    y = X[:, 1] - 2 * X[:, 4]
    selector = RFE(LinearRegression(), n_features_to_select=2)
    assert not fitted(selector, X, y)
    assert selector.engine_ == "moments"
    assert selector.get_support(indices=True).tolist() == [1, 4]
    # The coefficients of the others are zero but for rounding: a tie, so the first leave first.
    assert selector.ranking_.tolist() == [5, 1, 4, 3, 1, 2]
    # R² is 1 for all sets that hold these two: again the smallest of equal ones is chosen.
    assert not fitted(selector := RFECV(LinearRegression()), X, y)
    assert selector.get_support(indices=True).tolist() == [1, 4]
    selector = RFECV(LinearRegression(), scoring="neg_mean_squared_error")
    (text,) = fitted(selector, X, y)
    assert "almost exactly" in text
    assert "refitted" in text
    assert selector.engine_ == "refit"


@pytest.mark.parametrize("scoring", ["r2", "neg_mean_absolute_error"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("model", [LinearRegression(), Ridge(alpha=3.0)], ids=str)
def test_more_columns_than_rows(model, step, scoring):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 50))
    y = X[:, :4] @ [1.0, 2.0, 3.0, 4.0] + rng.normal(size=30)
    ours, theirs = both("RFE", model, n_features_to_select=4, step=step)
    assert not fitted(ours, X, y)
    check_same(ours, theirs.fit(X, y))
    assert ours.engine_ == ("moments" if isinstance(model, Ridge) else "rows")
    ours, theirs = both("RFECV", model, step=step, scoring=scoring)
    assert not fitted(ours, X, y)
    check_same(ours, theirs.fit(X, y))
    assert ours.engine_ != "refit"


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_from_factors_of_the_rows(problem):
    X, y = problem.load()
    for model in (LinearRegression(tol=1e-10), Ridge(alpha=3.0)):
        for scoring in ("neg_mean_squared_error", "neg_mean_absolute_error", "neg_max_error"):
            ours, theirs = both("RFECV", model, scoring=scoring, step=2, engine="rows", cv=3)
            check_same(ours.fit(X, y), theirs.fit(X, y))
            assert ours.engine_ == "rows"
        ours, theirs = both("RFE", model, engine="rows", n_features_to_select=1)
        check_same(ours.fit(X, y), theirs.fit(X, y))


@pytest.mark.parametrize("data", [load_breast_cancer, load_iris], ids=["binary", "multiclass"])
def test_ridge_classifier_is_not_refitted(data):
    X, y = data(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    for name in ("RFE", "RFECV"):
        ours, theirs = both(name, RidgeClassifier())
        assert not fitted(ours, X, y)
        assert ours.engine_ == "rows"
        check_same(ours, with_ties_resolved(ours, theirs.fit(X, y), X, y))
        np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_what_no_fast_engine_can_certify_is_refitted(table):
    X, y = table
    X[:, 5] = X[:, 0] + 1e-6 * X[:, 5]
    for name in ("RFE", "RFECV"):
        ours, theirs = both(name, LinearRegression())
        (text,) = fitted(ours, X, y)
        assert "fold 0" in text
        assert "The models are refitted instead, which is slower." in text
        check_same(ours, theirs.fit(X, y))
    for engine in ("moments", "rows"):
        with pytest.raises(DagselError, match=rf"engine='{engine}' cannot go on: .*engine='auto'"):
            RFE(LinearRegression(), engine=engine).fit(X, y)


def test_a_constant_column(table):
    X, y = table
    X[:, 2] = 4.0
    for name in ("RFE", "RFECV"):
        ours, theirs = both(name, LinearRegression(), engine="moments")
        check_same(ours.fit(X, y), theirs.fit(X, y))
        assert ours.ranking_[2] == ours.ranking_.max()


def test_one_hot_columns_and_other_dependences(table):
    X, y = table
    codes = np.random.default_rng(3).integers(0, 4, size=80)
    one_hot = np.eye(4)[codes]
    X = np.hstack([X, one_hot, X[:, [0]] - 2 * X[:, [4]]])
    y = y + codes**2 + 0.5 * X[:, 10]
    for name in ("RFE", "RFECV"):
        for step in (1, 3):
            ours, theirs = both(name, LinearRegression(), step=step, engine="moments")
            check_same(ours.fit(X, y), theirs.fit(X, y))


@pytest.mark.parametrize("model", [LinearRegression(), Ridge(alpha=3.0)], ids=str)
def test_standardised_on_the_way(model):
    X, y = load_diabetes(return_X_y=True)
    X = X * np.geomspace(1e-3, 1e3, 10)
    pipeline = make_pipeline(StandardScaler(), model)
    getter = f"named_steps.{type(model).__name__.lower()}.coef_"
    for name in ("RFE", "RFECV"):
        ours, theirs = both(name, pipeline, importance_getter=getter)
        ours.fit(X, y)
        theirs.fit(X, y)
        assert ours.engine_ == "moments"
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=RTOL)
        check_same(ours, theirs)


# --------------------------------------------------------------------------------------------------
# By refits

REFITTED = {
    "logistic": (LogisticRegression(), "auto"),
    "svc": (LinearSVC(random_state=0), "auto"),
    "forest": (RandomForestClassifier(n_estimators=10, random_state=0), "auto"),
    "pipeline": (
        make_pipeline(StandardScaler(), LogisticRegression()),
        "named_steps.logisticregression.coef_",
    ),
    "callable": (LogisticRegression(), lambda model: np.abs(model.coef_).max(axis=0)),
    "sparse": (LogisticRegression(), lambda model: clone_sparse(model).coef_),
}


def with_ties_resolved(ours, theirs, X, y):
    """Of sizes with equal accuracies scikit-learn chooses the one that rounding favours."""
    if not hasattr(theirs, "cv_results_") or ours.n_features_ == theirs.n_features_:
        return theirs
    means = dict(
        zip(theirs.cv_results_["n_features"], theirs.cv_results_["mean_test_score"], strict=True)
    )
    assert ours.n_features_ < theirs.n_features_
    assert means[ours.n_features_] == pytest.approx(means[theirs.n_features_], rel=1e-14)
    again = scikit_learn.RFE(
        theirs.estimator,
        n_features_to_select=ours.n_features_,
        step=theirs.step,
        importance_getter=theirs.importance_getter,
    ).fit(X, y)
    for name in ("support_", "ranking_", "n_features_", "estimator_"):
        setattr(theirs, name, getattr(again, name))
    return theirs


def clone_sparse(model):
    twin = pickle.loads(pickle.dumps(model))
    return twin.sparsify()


@pytest.mark.parametrize("data", [load_breast_cancer, load_iris], ids=["binary", "multiclass"])
@pytest.mark.parametrize("name", REFITTED)
def test_other_estimators_like_scikit_learn(name, data):
    X, y = data(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    X = X[:, :7] if X.shape[1] > 7 else X
    estimator, getter = REFITTED[name]
    for kind in ("RFE", "RFECV"):
        ours, theirs = both(kind, estimator, importance_getter=getter, step=2)
        assert not fitted(ours, X, y)
        assert ours.engine_ == "refit"
        if name == "sparse" and data is load_iris:
            # scikit-learn sums sparse squares to a matrix of one row, and fails on it.
            theirs.set_params(importance_getter="auto")
        check_same(ours, with_ties_resolved(ours, theirs.fit(X, y), X, y))
        np.testing.assert_array_equal(ours.classes_, theirs.classes_)
        for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            assert hasattr(ours, method) == hasattr(theirs, method)
            if hasattr(theirs, method):
                with np.errstate(divide="ignore"):  # the logarithm of no votes
                    found, expected = (getattr(each, method)(X) for each in (ours, theirs))
                np.testing.assert_array_equal(found, expected)
        assert ours.score(X, y) == theirs.score(X, y)


def test_other_scores_and_regressors_are_refitted(table):
    X, y = table
    cases = [
        (LinearRegression(), {"scoring": lambda model, X, y: -np.abs(model.predict(X) - y).max()}),
        (Lasso(0.1), {}),
        (SVR(kernel="linear"), {"scoring": lambda model, X, y: -np.ptp(model.predict(X) - y)}),
        (Ridge(positive=True, solver="lbfgs"), {}),
        (DecisionTreeRegressor(max_depth=3, random_state=1), {"min_features_to_select": 2}),
        (TransformedTargetRegressor(Ridge()), {"importance_getter": "regressor_.coef_"}),
    ]
    for estimator, options in cases:
        ours, theirs = both("RFECV", estimator, cv=3, **options)
        assert not fitted(ours, X, y)
        assert ours.engine_ == "refit"
        check_same(ours, theirs.fit(X, y))
        assert ours.score(X, y) == theirs.score(X, y)


def test_processes_give_the_same(table):
    one, two = (RFECV(DecisionTreeRegressor(random_state=0), n_jobs=n).fit(*table) for n in (1, 2))
    check_same(one, two)


# --------------------------------------------------------------------------------------------------
# Ties, steps and sizes


def test_duplicates_leave_in_the_order_of_their_index(table):
    X, y = table
    X = np.hstack([X, X[:, [3, 0]]])
    y = y + 3 * X[:, 0]
    for engine in ("moments", "rows", "refit"):
        for model in (Ridge(), LinearRegression()):
            selector = RFE(model, n_features_to_select=1, engine=engine).fit(X, y)
            ranks = selector.ranking_
            assert selector.engine_ == engine
            # Columns 3 and 6 are equal, and 0 and 7: of each pair the first leaves first.
            assert ranks[3] > ranks[6]
            assert ranks[0] > ranks[7]
            assert selector.get_support(indices=True).tolist() == [7]


def test_equal_importances_as_in_scikit_learn(table):
    X, y = table
    for step in (1, 4):
        ours, theirs = both(
            "RFE",
            DecisionTreeRegressor(),
            importance_getter=lambda model: np.ones(model.n_features_in_),
            n_features_to_select=1,
            step=step,
        )
        check_same(ours.fit(X, y), theirs.fit(X, y))


def test_what_rounding_cannot_tell_apart_leaves_in_order():
    values = np.array([5.0, 1.0, 1.0 + 1e-14, 0.5, 1.0 - 1e-14])
    exact = Importances(values, np.zeros(5))
    rounded = Importances(values, np.full(5, 1e-13))
    nobody = np.zeros(5, dtype=bool)
    assert least_important(exact, 2, nobody).tolist() == [3, 4]
    assert least_important(rounded, 2, nobody).tolist() == [1, 3]
    assert least_important(rounded, 3, nobody).tolist() == [1, 2, 3]
    assert least_important(rounded, 4, nobody).tolist() == [1, 2, 3, 4]
    fixed = np.array([False, True, False, True, False])
    assert least_important(rounded, 1, fixed).tolist() == [2]
    assert least_important(rounded, 3, fixed).tolist() == [0, 2, 4]


def test_importances_are_summed_squares_and_their_errors_follow():
    coefficients = np.array([[3.0, -4.0], [0.0, 0.0]])
    values, rounding = squared(coefficients, 1e-3)
    assert values.tolist() == [25.0, 0.0]
    true = np.sum((np.abs(coefficients) + 1e-3) ** 2, axis=1) - values
    np.testing.assert_allclose(rounding, true, rtol=1e-9)


def test_steps():
    assert step_sizes(10, 4, 1) == [10, 9, 8, 7, 6, 5, 4]
    assert step_sizes(10, 4, 4) == [10, 6, 4]
    assert step_sizes(10, 4, 100) == [10, 4]
    assert step_sizes(10, 10, 1) == [10]


def test_a_path_can_be_cut():
    removed = tuple(np.array(columns) for columns in ([3], [0, 2], [4]))
    path = EliminationPath(6, removed, tuple(Score(float(i), 0.0) for i in range(4)), "refit", 0.0)
    assert path.sizes.tolist() == [6, 5, 3, 2]
    assert path.ranking().tolist() == [3, 1, 3, 4, 2, 1]
    cut = path.until(3)
    assert cut.support().tolist() == [False, True, False, False, True, True]
    assert cut.ranking().tolist() == [2, 1, 2, 3, 1, 1]
    assert [score.value for score in cut.scores] == [0.0, 1.0, 2.0]
    assert path.until(6).support().all()


def test_of_equal_sizes_the_smallest_is_chosen():
    def path(*scores):
        removed = tuple(np.array([column]) for column in range(len(scores) - 1))
        return EliminationPath(len(scores), removed, scores, "refit", 0.0)

    exact = [path(Score(0.5, 0.0), Score(0.7, 0.0), Score(0.7, 0.0), Score(0.1, 0.0))]
    assert best_size(exact) == 2
    near = (Score(0.7 + 1e-13, 1e-12), Score(0.7, 1e-12), Score(0.1, 1e-12))
    assert best_size([path(*near)]) == 2
    assert best_size([path(Score(np.nan, 0.0), Score(0.1, 0.0)), path(*near[:2])]) == 1
    with pytest.raises(ScoringError, match="NaN in fold 1"):
        best_size([path(*near[:2]), path(Score(np.nan, 0.0), Score(np.nan, 0.0))])


@pytest.mark.parametrize("wanted", [None, 1, 4, 6, 0.5, 0.99, 1.0])
def test_how_many_are_kept(table, wanted):
    ours, theirs = both("RFE", LinearRegression(), n_features_to_select=wanted, step=2)
    check_same(ours.fit(*table), theirs.fit(*table))


@pytest.mark.parametrize(
    ("name", "parameter"), [("RFE", "n_features_to_select"), ("RFECV", "min_features_to_select")]
)
def test_more_than_there_are_keeps_all(table, name, parameter):
    ours, theirs = both(name, LinearRegression(), **{parameter: 9})
    with pytest.warns(UserWarning, match="no feature selection and all features") as told:
        ours.fit(*table)
    with pytest.warns(UserWarning, match="no feature selection and all features") as expected:
        theirs.fit(*table)
    assert str(told[0].message) == str(expected[0].message)
    assert told[0].filename == __file__
    check_same(ours, theirs)
    assert ours.support_.all()


def test_fixed_features_never_leave(frame):
    X, y = frame
    selector = RFE(LinearRegression(), n_features_to_select=3, fixed_features=["sex", 5]).fit(X, y)
    refits = clone(selector).set_params(engine="refit").fit(X, y)
    check_same(selector, refits)
    assert selector.get_support(indices=True).tolist() == [1, 3, 5]
    # Among the others the order is that of their coefficients in models that have the fixed ones.
    columns, order = list(range(6)), []
    while len(columns) > 3:
        coefficients = LinearRegression().fit(X.to_numpy()[:, columns], y).coef_
        free = [i for i, column in enumerate(columns) if column not in (1, 5)]
        order.append(columns.pop(min(free, key=lambda i: abs(coefficients[i]))))
    assert [int(np.flatnonzero(selector.ranking_ == rank)[0]) for rank in (4, 3, 2)] == order
    half = RFE(LinearRegression(), fixed_features=[0, 1, 2, 4]).fit(X, y)
    assert half.get_support(indices=True).tolist() == [0, 1, 2, 4]
    chosen = RFECV(LinearRegression(), fixed_features=["sex", "sugar"]).fit(X, y)
    assert chosen.support_[[1, 5]].all()
    assert chosen.cv_results_["n_features"].tolist() == [2, 3, 4, 5, 6]
    assert all(chosen.cv_results_[f"split{fold}_support"][:, 1].all() for fold in range(5))


# --------------------------------------------------------------------------------------------------
# Data


class NeedsFrame(RegressorMixin, BaseEstimator):
    """Works on nothing but frames that have kept their labels and dtypes."""

    def fit(self, X, y):
        assert "group" not in X.columns or isinstance(X["group"].dtype, pd.CategoricalDtype)
        self.names_ = list(X.columns)
        self.model_ = LinearRegression().fit(self._numbers(X), y)
        self.coef_ = self.model_.coef_
        return self

    def _numbers(self, X):
        assert list(X.columns) == self.names_
        return np.column_stack(
            [X[c].cat.codes if c == "group" else X[c].to_numpy() for c in self.names_]
        )

    def predict(self, X):
        return self.model_.predict(self._numbers(X))


def test_frames_reach_the_estimator(frame):
    X, y = frame
    X["group"] = pd.Categorical(np.where(np.arange(80) % 3, "a", "b"))
    for kind in (RFE(NeedsFrame(), n_features_to_select=3), RFECV(NeedsFrame())):
        selector = kind.fit(X, y)
        assert selector.estimator_.names_ == selector.get_feature_names_out().tolist()
        reduced = X[selector.estimator_.names_]
        np.testing.assert_array_equal(selector.predict(X), selector.estimator_.predict(reduced))
        selector.score(X, y)


def test_a_frame_gives_what_its_values_give(frame, table):
    X, y = frame
    for data, target, full in (
        (X, y, X),
        (pl.from_pandas(X), pl.Series(y), pl.from_pandas(X)),
        (X.assign(y=y), "y", X),
    ):
        ours = RFE(LinearRegression()).fit(data, target)
        check_same(ours, scikit_learn.RFE(LinearRegression()).fit(*table))
        assert ours.feature_names_in_.tolist() == list(X.columns)
        assert ours.estimator_.feature_names_in_.tolist() == ["age", "bp", "chol"]
        expected = ours.estimator_.predict(full[["age", "bp", "chol"]])
        np.testing.assert_array_equal(ours.predict(full), expected)
    ours.fit(*table)
    assert not hasattr(ours, "feature_names_in_")


def test_columns_are_found_by_name_or_refused(frame):
    X, y = frame
    selector = RFE(LinearRegression()).fit(X, y)
    with pytest.raises(ValueError, match="feature names should match"):
        selector.predict(X[X.columns[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        selector.score(X.drop(columns="age"), y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        selector.transform(X.to_numpy())


def test_files_and_dask_collections(frame, tmp_path):
    import dask.dataframe as dd

    X, y = frame
    whole = X.assign(target=y)
    whole.to_parquet(tmp_path / "table.parquet")
    whole.to_csv(tmp_path / "table.csv", index=False)
    for make in (RFE, RFECV):
        expected = make(LinearRegression()).fit(X, y)
        for data, target in (
            (scan(tmp_path / "table.csv", target="target"), None),
            (scan(tmp_path / "table.csv", target="target", block_bytes=2000), None),
            (str(tmp_path / "table.parquet"), "target"),
            (dd.from_pandas(whole, npartitions=3), "target"),
        ):
            found = make(LinearRegression()).fit(data, target)
            check_same(found, expected)
            assert found.engine_ == "moments"
            np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=1e-9)
            assert found.estimator_.feature_names_in_.tolist() == (
                expected.get_feature_names_out().tolist()
            )


def test_selected_columns_that_do_not_fit_are_not_collected(frame, tmp_path, monkeypatch):
    from dagsel import elimination

    X, y = frame
    X.assign(target=y).to_csv(tmp_path / "table.csv", index=False)

    class Little:
        available = 2000

    monkeypatch.setattr(elimination.psutil, "virtual_memory", Little)
    selector = RFE(LinearRegression())
    (text,) = fitted(selector, scan(tmp_path / "table.csv", target="target"))
    assert "the 3 selected columns do not fit" in text
    assert selector.get_support(indices=True).tolist() == [0, 3, 4]
    with pytest.raises(NotFittedError):
        selector.predict(X)
    with pytest.raises(DagselError, match="refits have the whole table"):
        selector.set_params(engine="refit").fit(scan(tmp_path / "table.csv", target="target"))


def test_weights_are_those_of_the_rows(table):
    X, y = table
    weight = np.random.default_rng(0).uniform(0.1, 5, size=80)
    ours, theirs = both("RFE", LinearRegression())
    check_same(ours.fit(X, y, sample_weight=weight), theirs.fit(X, y, sample_weight=weight))
    unweighted = RFE(LinearRegression()).fit(X, y)
    assert not np.allclose(ours.estimator_.coef_, unweighted.estimator_.coef_)
    # Without routing, scikit-learn's RFECV takes none; with it, ours does the same.
    with config_context(enable_metadata_routing=True):
        estimator = LinearRegression().set_fit_request(sample_weight=True)
        for scored in (False, True):
            from sklearn.metrics import get_scorer

            scoring = get_scorer("r2").set_score_request(sample_weight=scored)
            ours, theirs = both("RFECV", estimator, scoring=scoring)
            ours.fit(X, y, sample_weight=weight)
            check_same(ours, theirs.fit(X, y, sample_weight=weight))
            np.testing.assert_allclose(
                ours.score(X, y, **({"sample_weight": weight} if scored else {})),
                theirs.score(X, y, **({"sample_weight": weight} if scored else {})),
            )
    # Only fits are weighted where nobody says that scores should be.
    plain = RFECV(LinearRegression()).fit(X, y, sample_weight=weight)
    with config_context(enable_metadata_routing=True):
        scoring = get_scorer("r2").set_score_request(sample_weight=False)
        routed = RFECV(estimator, scoring=scoring).fit(X, y, sample_weight=weight)
    check_same(plain, routed)


@pytest.mark.parametrize("from_file", [False, True])
def test_weights_can_be_the_label_of_a_column(frame, tmp_path, from_file):
    frame, y = frame
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)).round(3)
    expected = RFE(LinearRegression()).fit(frame, y, sample_weight=weight)
    by_size = RFECV(LinearRegression()).fit(frame, y, sample_weight=weight)
    data = frame.assign(target=y, weight=weight)
    if from_file:
        data.to_csv(tmp_path / "rows.csv", index=False)
        data = str(tmp_path / "rows.csv")
    for selector, other in [
        (RFE(LinearRegression()), expected),
        (RFECV(LinearRegression()), by_size),
    ]:
        selector.fit(data, "target", sample_weight="weight")
        assert selector.feature_names_in_.tolist() == list(frame.columns)
        np.testing.assert_array_equal(selector.ranking_, other.ranking_)
        np.testing.assert_allclose(selector.estimator_.coef_, other.estimator_.coef_, rtol=1e-9)
    # Without its weights the model is another one.
    unweighted = RFE(LinearRegression()).fit(frame, y)
    assert not np.allclose(unweighted.estimator_.intercept_, expected.estimator_.intercept_)
    with pytest.raises(DataError, match="No column"):
        RFE(LinearRegression()).fit(data, "target", sample_weight="mass")


def test_groups_are_routed(table):
    X, y = table
    groups = groups_of(80)
    plain = RFECV(Ridge(), cv=GroupKFold(3)).fit(X, y, groups=groups)
    with config_context(enable_metadata_routing=True):
        routed = RFECV(Ridge(), cv=GroupKFold(3)).fit(X, y, groups=groups)
    check_same(plain, routed)
    with pytest.raises(DataError, match="groups"):
        RFECV(Ridge(), cv=GroupKFold(3)).fit(X, y)


# --------------------------------------------------------------------------------------------------
# Clusters


@pytest.mark.parametrize("estimator", [LinearRegression(), Lasso(0.05)], ids=str)
def test_the_same_on_every_cluster(cluster, table, estimator):
    for name in ("RFE", "RFECV"):
        ours, theirs = both(name, estimator, client=cluster)
        check_same(ours.fit(*table), theirs.fit(*table))
        assert ours.engine_ == ("moments" if isinstance(estimator, LinearRegression) else "refit")


def test_dask_collections_on_a_cluster(local_client, frame):
    import dask.array as da
    import dask.dataframe as dd

    X, y = frame
    for make in (RFE, RFECV):
        expected = make(Ridge()).fit(X, y)
        found = make(Ridge(), client=local_client).fit(
            dd.from_pandas(X.assign(y=y), npartitions=4), "y"
        )
        check_same(found, expected)
        found.fit(da.from_array(X.to_numpy(), chunks=(30, 6)), y)
        check_same(found, expected)


def test_errors_on_a_cluster_are_those_of_the_task(local_client, table):
    X, y = table
    with pytest.raises(ScoringError, match="NaN as the importance"):
        RFE(
            Lasso(0.1), client=local_client, importance_getter=lambda model: model.coef_ * np.nan
        ).fit(X, y)


# --------------------------------------------------------------------------------------------------
# Errors


def test_importances_that_are_not_there(frame):
    X, y = frame

    def with_nan(model):
        values = np.ones(model.n_features_in_)
        values[1:3] = np.nan
        return values

    def too_few(model):
        return np.ones(model.n_features_in_ - 1)

    with pytest.raises(ValueError, match="gives NaN as the importance of 'sex', 'bmi'"):
        RFE(Ridge(), importance_getter=with_nan).fit(X, y)
    with pytest.raises(ValueError, match="importance of 'column 1', 'column 2'"):
        RFE(Ridge(), importance_getter=with_nan).fit(X.to_numpy(), y)
    with pytest.raises(ValueError, match="gives 5 importances of shape"):
        RFE(Ridge(), importance_getter=too_few).fit(X, y)
    with pytest.raises(ValueError, match="should have `coef_` or `feature_importances_`"):
        RFE(SVR(kernel="rbf")).fit(X, y)
    with pytest.raises(AttributeError, match="nothing_"):
        RFE(Ridge(), importance_getter="nothing_").fit(X, y)


def test_fits_and_scores_that_fail_say_where(table):
    class Breaks(LinearRegression):
        def fit(self, X, y):
            if X.shape[1] == 4:
                msg = "no four"
                raise RuntimeError(msg)
            return super().fit(X, y)

    def scorer(model, X, y):
        if X.shape[1] == 5:
            msg = "no five"
            raise RuntimeError(msg)
        return 0.0

    with pytest.raises(RuntimeError, match="no four") as caught:
        RFE(Breaks()).fit(*table)
    assert caught.value.__notes__ == ["while fitting fold 0 with 4 columns"]
    with pytest.raises(RuntimeError, match="no five") as caught:
        RFECV(LinearRegression(), scoring=scorer).fit(*table)
    assert caught.value.__notes__ == ["while scoring fold 0 with 5 columns"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_features_to_select": 0}, "above 0; got 0"),
        ({"n_features_to_select": 1.5}, r"a fraction must be in \(0, 1\]"),
        ({"n_features_to_select": 0.1}, "is 0 of 6 columns"),
        ({"n_features_to_select": "half"}, "got 'half'"),
        ({"n_features_to_select": True}, "got True"),
        ({"n_features_to_select": 1, "fixed_features": [1, 2]}, "it must be at least 2"),
        ({"step": 0}, "step must be a whole number"),
        ({"step": 1.5}, "step must be a whole number"),
        ({"step": -0.1}, "step must be a whole number"),
        ({"importance_getter": 3}, "importance_getter must be a string or callable"),
        ({"engine": "magic"}, "engine must be one of auto, moments, rows, refit"),
        ({"fixed_features": [17]}, "no column 17"),
        ({"engine": "moments", "importance_getter": len}, "engine='moments' cannot do this"),
    ],
)
def test_wrong_parameters(table, parameters, message):
    with pytest.raises(ValueError, match=message):
        RFE(LinearRegression(), **parameters).fit(*table)


def test_wrong_parameters_of_rfecv(table):
    for parameters, message in (
        ({"min_features_to_select": 0}, "at least 1; got 0"),
        ({"min_features_to_select": 0.5}, "at least 1; got 0.5"),
        ({"scoring": ["r2"]}, "scoring must be a single metric"),
        ({"scoring": "max_error"}, "neg_max_error"),
        ({"cv": 100}, "folds"),
    ):
        with pytest.raises(ValueError, match=message):
            RFECV(LinearRegression(), **parameters).fit(*table)
    with (
        pytest.warns(UserWarning, match=r"R\^2 score is not well-defined"),
        pytest.raises(ScoringError, match="NaN in fold 0, for every number of columns"),
    ):
        RFECV(Lasso(), cv=80).fit(*table)
    with pytest.raises(ValueError, match="engine='moments' cannot do this: Lasso is not"):
        RFECV(Lasso(), engine="moments").fit(*table)
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        RFECV(Ridge()).fit(*table).predict(table[0], nothing=1)


def test_unusable_data(table):
    X, y = table
    with pytest.raises(DataError, match="minimum of 2"):
        RFE(Ridge()).fit(X[:, :1], y)
    X[4, 2] = np.nan
    with pytest.raises(DataError, match=r"Column 2 .* missing value"):
        RFE(Ridge()).fit(X, y)


# --------------------------------------------------------------------------------------------------
# scikit-learn's contract

EXPECTED_FAILED = {
    "check_dtype_object": (
        "A cell that is no number is a DataError, which says in which column and row it is; "
        "scikit-learn expects NumPy's TypeError, which does not."
    )
}


@pytest.mark.parametrize(
    "selector",
    [
        RFE(LinearRegression()),
        RFE(LogisticRegression(C=1)),
        RFE(Ridge(), step=0.3, engine="refit"),
        RFECV(Ridge(), cv=2),
        pytest.param(RFECV(LogisticRegression(C=1), cv=3), marks=pytest.mark.slow),
        RFECV(DecisionTreeRegressor(max_depth=2, random_state=0), cv=2),
    ],
    ids=lambda selector: f"{type(selector).__name__}-{type(selector.estimator).__name__}",
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(selector):
    results = check_estimator(
        selector, expected_failed_checks=EXPECTED_FAILED, on_fail=None, on_skip=None
    )
    by_status = {}
    for result in results:
        by_status.setdefault(result["status"], {})[result["check_name"]] = result["exception"]
    assert not by_status.get("failed")
    assert set(by_status["xfail"]) == set(EXPECTED_FAILED)
    assert set(by_status.get("skipped", {})) <= {"check_array_api_input"}
    assert len(by_status["passed"]) > 45


def test_parameters_clones_and_pickles(table):
    for ours, theirs in ((RFE(Ridge()), scikit_learn.RFE), (RFECV(Ridge()), scikit_learn.RFECV)):
        extra = {"client", "engine", "fixed_features"}
        names = set(ours.get_params(deep=False))
        assert names == set(theirs(Ridge()).get_params(deep=False)) | extra
        client = threading.Lock()
        ours.set_params(client=client, estimator__alpha=7.0)
        assert clone(ours).client is client
        ours.set_params(client=None).fit(*table)
        loaded = pickle.loads(pickle.dumps(ours.set_params(client=client)))
        assert loaded.client is None
        np.testing.assert_array_equal(loaded.predict(table[0]), ours.predict(table[0]))
        assert not hasattr(ours.estimator, "coef_")
        assert ours.estimator_.alpha == 7.0


def test_nothing_is_left_of_an_earlier_fit(table):
    X, y = table
    selector = RFECV(Ridge()).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        selector.set_params(
            importance_getter=lambda model: np.full(model.n_features_in_, np.nan)
        ).fit(X, y)
    for use in (selector.get_support, lambda: selector.predict(X), lambda: selector.score(X, y)):
        with pytest.raises(NotFittedError):
            use()
    assert not hasattr(selector, "cv_results_")


def test_inside_other_estimators(table):
    X, y = table
    model = make_pipeline(StandardScaler(), RFE(LinearRegression(), n_features_to_select=2))
    theirs = make_pipeline(
        StandardScaler(), scikit_learn.RFE(LinearRegression(), n_features_to_select=2)
    )
    np.testing.assert_allclose(model.fit(X, y).predict(X), theirs.fit(X, y).predict(X))
    grid = {"n_features_to_select": [1, 3, 5], "estimator__alpha": [0.1, 50.0]}
    ours, expected = (
        GridSearchCV(selector, grid, cv=3).fit(X, y)
        for selector in (RFE(Ridge()), scikit_learn.RFE(Ridge()))
    )
    np.testing.assert_allclose(
        ours.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-9
    )
    assert RFECV(Ridge(), cv=KFold(3)).set_output(transform="pandas").fit(X, y).transform(
        pd.DataFrame(X)
    ).shape == (80, 3)


def test_lines_are_printed_if_asked_for(table, capsys):
    RFECV(Ridge(), cv=2, verbose=1).fit(*table)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[dagsel] fold 0: 6 to 1 columns in 5 steps")
    assert lines[2].startswith("[dagsel] all rows: 6 to ")
    RFE(Ridge()).fit(*table)
    assert capsys.readouterr().err == ""
