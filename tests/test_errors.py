"""Bad input: each error says what was wrong, where, and what to do, and loses nothing."""

from __future__ import annotations

import asyncio

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold, KFold, LeaveOneOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC

from dagsel import DagselError, DataError, ScoringError, SequentialFeatureSelector
from dagsel.mlxtend import SequentialFeatureSelector as LikeMlxtend

NAMES = ["age", "sex", "bmi", "bp"]
DOORS = {"scikit-learn": SequentialFeatureSelector, "mlxtend": LikeMlxtend}


@pytest.fixture(params=DOORS)
def door(request):
    return DOORS[request.param]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(40, 4)), columns=NAMES)
    return X, X["age"] - X["bp"] + rng.normal(size=40)


def refused(selector, X, y, *says, kind=ValueError, **fit):
    """The error has the class and says all that; nothing was decided, so nothing is claimed."""
    with pytest.raises(kind) as caught:
        selector.fit(X, y, **fit)
    for text in says:
        assert text in str(caught.value)
    assert not hasattr(selector, "support_")
    assert not getattr(selector, "fitted", False)
    return caught.value


# --------------------------------------------------------------------------------------------------
# Data


def test_columns_that_are_not_numeric(door, frame):
    X, y = frame
    X = X.assign(colour="red", day=pd.Timestamp("2026-01-01"))
    error = refused(
        door(LinearRegression()), X, y, "not numeric", "'colour'", "'day'", "Drop them, or encode"
    )
    assert isinstance(error, DataError)


def test_a_cell_that_is_no_number(door, frame):
    X, y = frame
    cells = X.to_numpy(dtype=object, copy=True)
    cells[7, 2] = "tall"
    refused(
        door(LinearRegression()),
        cells,
        y,
        "Column 2",
        "'tall'",
        "row 7 (counting",
        "Drop",
        kind=DataError,
    )


@pytest.mark.parametrize(("value", "what"), [(np.nan, "missing value"), (np.inf, "infinite value")])
def test_missing_and_infinite_values(door, frame, value, what):
    X, y = frame
    X.loc[5, "sex"] = value
    estimator = LinearRegression()
    refused(door(estimator), X, y, "Column 'sex'", what, "row 5", "impute", kind=DataError)
    # A model that is refitted decides for itself what it takes.
    refused(
        door(Lasso(), fixed_features=["sex"]),
        *(X, y, "starting subset, fold 0", "ValueError: Input X contains"),
        kind=ScoringError,
    )


def test_other_columns_with_missing_values(door, frame):
    X, y = frame
    X.loc[5, "sex"] = X.loc[7, "age"] = np.nan
    refused(door(LinearRegression()), X, y, "row 5", "in this row or below: 'age'. Drop")


def test_a_missing_target_value(door, frame):
    X, y = frame
    y[3] = np.nan
    refused(
        door(LinearRegression()), X, y, "target", "row 3", "Leave these rows out", kind=DataError
    )


def test_a_target_that_is_not_there(door, frame):
    X, y = frame
    selector = door(LinearRegression())
    refused(selector, X, "agee", "No column 'agee' (the target)", "Did you mean 'age'?")
    refused(selector, X.to_numpy(), "age", "'age'", "no column labels", kind=DataError)
    refused(selector, X, None, "y", kind=DataError)
    refused(selector, X, y[:-1], "X has 40 rows and y has 39", "in the same order", kind=DataError)


def test_a_text_target_for_a_regression(door, frame):
    X, _ = frame
    refused(
        door(LinearRegression()),
        *(X, np.array(["low", "high"] * 20), "fold 0", "could not convert string to float"),
        kind=ScoringError,
    )


def test_fewer_rows_than_folds(door, frame):
    X, y = frame
    selector = door(LinearRegression(), cv=10)
    refused(selector, X[:6], y[:6], "cv=10 folds need at least 10 rows", "has 6", "fewer folds")


def test_a_splitter_that_needs_groups(door, frame):
    selector = door(LinearRegression(), cv=GroupKFold(3))
    refused(selector, *frame, "GroupKFold", "Say with groups= which group", kind=DataError)
    refused(selector, *frame, "groups has 3 entries", "40 rows", groups=[1, 2, 3], kind=DataError)


@pytest.mark.parametrize("cv", ["five", [(np.arange(30), np.arange(30, 41))], [[1, 2, 3]]], ids=str)
def test_folds_that_make_no_sense(door, frame, cv):
    refused(door(LinearRegression(), cv=cv), *frame, "cv" if isinstance(cv, str) else "fold 0")


@pytest.mark.parametrize("estimator", [LogisticRegression(), SVC()], ids=["logistic", "svc"])
def test_a_fold_without_two_classes(door, frame, estimator):
    X, _ = frame
    y = np.repeat([0, 1], [20, 20])
    selector = door(estimator, cv=KFold(2))
    refused(
        selector,
        *(X, y, "NaN in folds 0, 1", "one class", "Change the folds (cv)", "The first error was"),
        kind=ScoringError,
    )


def test_a_fold_whose_score_is_undefined(door, frame):
    X, y = frame
    selector = door(RandomForestRegressor(2, random_state=0), cv=LeaveOneOut(), scoring="r2")
    with pytest.warns(UserWarning, match="R\\^2 score is not well-defined"):
        refused(
            selector,
            *(X[:6], y[:6], "with column 'age', fold 0: the score is NaN", "one row"),
            kind=ScoringError,
        )


def test_a_scorer_that_returns_nan(door, frame):
    def undecided(estimator, X, y):
        return np.nan

    selector = door(LinearRegression(), scoring=undecided, cv=4)
    refused(
        selector,
        *(*frame, "NaN in folds 0, 1, 2, 3", "with column 'age', fold 0: the score is NaN"),
        "each of the 4 candidates for adding",
        kind=ScoringError,
    )


class Broken(RegressorMixin, BaseEstimator):
    """Cannot be fitted to so many columns."""

    def __init__(self, n_columns=(1, 2, 3, 4)):
        self.n_columns = n_columns

    def fit(self, X, y):
        if X.shape[1] in self.n_columns:
            message = "out of valves"
            raise RuntimeError(message)
        self.model_ = LinearRegression().fit(X, y)
        return self

    def predict(self, X):
        return self.model_.predict(X)


def test_an_estimator_that_cannot_be_fitted_at_all(door, frame):
    refused(
        door(Broken()),
        *(*frame, "RuntimeError: out of valves", "(in fit,", "test_errors.py:"),
        "with column 'age', fold 0",
        kind=ScoringError,
    )


def test_what_was_decided_before_a_failure_is_kept(door, frame):
    size = {"n_features_to_select": 4} if door is SequentialFeatureSelector else {"k_features": 4}
    selector = door(Broken([3]), **size)
    with pytest.raises(ScoringError, match=r"each of the 2 candidates for adding .*out of valves"):
        selector.fit(*frame)
    selection = selector.selection_
    assert not selection.complete
    assert [done.n_features for done in selection.rounds] == [1, 2]
    whole = door(LinearRegression(), **size).fit(*frame).selection_
    for done, other in zip(selection.rounds, whole.rounds, strict=False):
        assert done.subset == other.subset
        np.testing.assert_allclose(done.fold_scores, other.fold_scores, rtol=1e-9)
    if door is SequentialFeatureSelector:
        with pytest.raises(NotFittedError):
            selector.transform(frame[0])
    else:
        # mlxtend's way: what there is can be used.
        assert selector.interrupted_
        assert selector.transform(frame[0]).shape == (40, 2)


# --------------------------------------------------------------------------------------------------
# Parameters


@pytest.mark.parametrize("wanted", [0, 5, -1, 0.0, 1.5, 0.1, "most", None, True, [2], np.nan])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_wrong_number_of_features(frame, wanted, direction):
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=wanted, direction=direction
    )
    refused(selector, *frame, "n_features_to_select", repr(wanted))


@pytest.mark.parametrize("wanted", [0, 5, "most", (3, 2), (1, 5), 1.5, None])
def test_wrong_k_features(frame, wanted):
    refused(LikeMlxtend(LinearRegression(), k_features=wanted), *frame, "k_features", repr(wanted))


def test_fewer_features_than_are_fixed(frame):
    fixed = {"fixed_features": ["age", "bp", "sex"]}
    selector = SequentialFeatureSelector(LinearRegression(), n_features_to_select=2, **fixed)
    refused(selector, *frame, "2 is fewer than the 3 fixed features", "from 3 to 4")
    selector = LikeMlxtend(LinearRegression(), k_features=2, **fixed)
    refused(selector, *frame, "k_features=2 must be between 3 and 4", "(3 are fixed)")


@pytest.mark.parametrize("fixed", [["weight"], [4], [-1], [1.0], [True], ["age", None]], ids=str)
def test_unknown_fixed_features(door, frame, fixed):
    selector = door(LinearRegression(), fixed_features=fixed)
    says = f"fixed_features: the table has no column {fixed[-1]!r}"
    refused(selector, *frame, says, "columns 0 to 3 or names such as 'age', 'sex'")


@pytest.mark.parametrize("fixed", ["age", 2])
def test_one_fixed_feature_is_a_list_too(door, frame, fixed):
    selector = door(LinearRegression(), fixed_features=fixed)
    refused(selector, *frame, "fixed_features: give a list of columns", repr(fixed))


def test_names_where_columns_have_none(door, frame):
    X, y = frame
    refused(door(LinearRegression(), fixed_features=["age"]), X.to_numpy(), y, "'age'", "0 to 3)")


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (
            [["age"], ["sex"], ["bmi"]],
            "'bp' is in no group. A column that is to move by itself is a group of one: ['bp']",
        ),
        ([["age"], ["sex", "age"], ["bmi", "bp"]], "column 'age' is in 2 groups"),
        ([["age", "sex"], [], ["bmi", "bp"]], "feature_groups has an empty group"),
        ([["age", "sex"], ["bmi", "weight"]], "feature_groups: the table has no column 'weight'"),
        ([], "feature_groups is empty"),
        (["age", ["sex", "bmi", "bp"]], "feature_groups: give a list of columns"),
        ([0, 1, 2, 3], "feature_groups: give a list of columns"),
    ],
    ids=["missing", "twice", "empty", "unknown", "none", "text", "flat"],
)
def test_bad_groups(door, frame, groups, says):
    refused(door(LinearRegression(), feature_groups=groups), *frame, says)


def test_a_group_that_is_fixed_in_part(door, frame):
    groups = [["age", "sex"], ["bmi"], ["bp"]]
    selector = door(LinearRegression(), feature_groups=groups, fixed_features=["age"])
    refused(selector, *frame, "fixed_features holds only a part of a feature group, without 'sex'")


def test_too_few_columns(frame):
    X, y = frame
    refused(
        SequentialFeatureSelector(Ridge()), X[["age"]], y, "at least 2 features", kind=DataError
    )
    groups = {"feature_groups": [NAMES]}
    refused(SequentialFeatureSelector(Ridge(), **groups), X, y, "at least 2 features")


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"direction": "both"}, "direction must be 'forward' or 'backward'; got 'both'"),
        ({"tol": -0.1}, "tol must not be negative in forward selection"),
        ({"tol": 0.1, "n_features_to_select": 2}, "n_features_to_select='auto', not 2"),
        ({"tol": np.nan}, "tol must be a number or None"),
    ],
)
def test_parameters_that_contradict_each_other(frame, parameters, says):
    refused(SequentialFeatureSelector(LinearRegression(), **parameters), *frame, says)


def test_scoring(door, frame):
    refused(door(LinearRegression(), scoring="r3"), *frame, "r3")
    for several in (["r2", "max_error"], {"r2": "r2"}):
        refused(door(LinearRegression(), scoring=several), *frame, "a single metric", "r2")


def test_cv_of_one_fold(door, frame):
    for cv in (1, True):
        refused(door(LinearRegression(), cv=cv), *frame, f"{cv!r}", "at least")


# --------------------------------------------------------------------------------------------------
# Engines and clients


def test_unknown_engine(door, frame):
    refused(door(LinearRegression(), engine="fast"), *frame, "auto, moments, rows, refit", "'fast'")


@pytest.mark.parametrize(
    ("estimator", "parameters", "says"),
    [
        (Lasso(), {}, "Lasso is not LinearRegression, Ridge or RidgeClassifier"),
        (LinearRegression(positive=True), {}, "positive=True"),
        (Ridge(solver="sag"), {}, "solver='sag'"),
        (
            LinearRegression(),
            {"scoring": "neg_max_error"},
            "'neg_max_error' is not a function of the squ",
        ),
        (make_pipeline(MinMaxScaler(), LinearRegression()), {}, "of pipelines only a Standard"),
    ],
    ids=["estimator", "positive", "solver", "scoring", "pipeline"],
)
def test_moments_where_they_do_not_apply(door, frame, estimator, parameters, says):
    selector = door(estimator, engine="moments", **parameters)
    refused(selector, *frame, "engine='moments' cannot score this", says, "Use engine='auto'")


def test_moments_that_would_be_wrong(door, frame):
    X, y = frame
    X["bp"] = X["age"] + 1e-5 * X["bp"]
    selector = door(LinearRegression(), engine="moments")
    error = refused(
        *(selector, X, y, "almost a linear", "fold 0", "engine='auto' or engine='refit'"),
        kind=DagselError,
    )
    assert not selector.selection_.rounds
    assert not isinstance(error, ValueError)


def test_an_asynchronous_client(door, frame):
    async def main():
        options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
        async with Client(asynchronous=True, **options) as client:
            for given in (client, None):  # None: the active one, which is the same
                refused(
                    door(LinearRegression(), client=given),
                    *(*frame, "client is asynchronous", "a synchronous one"),
                    kind=TypeError,
                )

    asyncio.run(main())
