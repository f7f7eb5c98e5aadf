"""`dagsel.mlxtend` against mlxtend itself: signature, attributes, types and results."""

from __future__ import annotations

import inspect
import pickle
import re
import threading

import numpy as np
import pandas as pd
import polars as pl
import pytest
from mlxtend.feature_selection import SequentialFeatureSelector as Mlxtend
from scipy.stats import sem, t
from sklearn import config_context
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import make_scorer, mean_absolute_error
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dagsel import DagselWarning, ScoringError
from dagsel.mlxtend import SequentialFeatureSelector

NAMES = ["age", "sex", "bmi", "bp", "s1", "s2"]


@pytest.fixture
def table():
    X, y = load_diabetes(return_X_y=True)
    return X[:120, [0, 1, 2, 3, 4, 8]], y[:120]


@pytest.fixture
def frame(table):
    return pd.DataFrame(table[0], columns=NAMES), table[1]


def fitted_pair(X, y, estimator=None, groups=None, **parameters):
    """Fit ours and theirs alike."""
    estimator = LinearRegression() if estimator is None else estimator
    ours = SequentialFeatureSelector(clone(estimator), **parameters).fit(X, y, groups=groups)
    # The checks of parameters and of finite numbers are a third of what its many fits take.
    with config_context(assume_finite=True, skip_parameter_validation=True):
        theirs = Mlxtend(clone(estimator), **parameters).fit(X, y, groups=groups)
    return ours, theirs


def same_type(one, other):
    return type(one) is type(other)


def assert_same(ours, theirs, rtol=1e-9):
    """Everything public after a fit, types included."""
    assert ours.k_feature_idx_ == theirs.k_feature_idx_
    assert ours.k_feature_names_ == theirs.k_feature_names_
    assert same_type(ours.k_feature_idx_, theirs.k_feature_idx_)
    assert same_type(ours.k_feature_names_, theirs.k_feature_names_)
    assert all(map(same_type, ours.k_feature_idx_, theirs.k_feature_idx_))
    assert all(map(same_type, ours.k_feature_names_, theirs.k_feature_names_))
    assert ours.k_score_ == pytest.approx(theirs.k_score_, rel=rtol)
    assert same_type(ours.k_score_, theirs.k_score_)
    assert_same_table(ours.subsets_, theirs.subsets_, rtol)
    for name in ("feature_names", "feature_names_to_idx_mapper", "n_features", "feature_groups_"):
        assert getattr(ours, name) == getattr(theirs, name), name
        assert same_type(getattr(ours, name), getattr(theirs, name)), name
    for name in ("k_lb", "k_ub", "min_k", "max_k", "is_parsimonious", "fitted", "interrupted_"):
        assert getattr(ours, name) == getattr(theirs, name), name
        assert same_type(getattr(ours, name), getattr(theirs, name)), name
    assert ours.fixed_features_ == tuple(theirs.fixed_features_)
    assert ours.fixed_features_group_set == theirs.fixed_features_group_set
    assert same_type(ours.est_, theirs.est_)
    assert ours.named_estimators[0][0] == theirs.named_estimators[0][0]


def assert_same_table(ours, theirs, rtol=1e-9):
    assert list(ours) == list(theirs)
    assert all(type(size) is int for size in ours)
    for size, entry in theirs.items():
        assert list(ours[size]) == list(entry)
        assert ours[size]["feature_idx"] == entry["feature_idx"]
        assert ours[size]["feature_names"] == entry["feature_names"]
        for key, value in entry.items():
            assert same_type(ours[size][key], value), key
        for key in ("cv_scores", "avg_score"):
            np.testing.assert_allclose(ours[size][key], entry[key], rtol=rtol)
        assert ours[size]["cv_scores"].dtype == entry["cv_scores"].dtype


# --------------------------------------------------------------------------------------------------
# Signature and parameters


def parameters_of(function):
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default, p.kind) for p in parameters]


def test_constructor():
    ours, theirs = map(parameters_of, (SequentialFeatureSelector, Mlxtend))
    assert ours[: len(theirs)] == theirs
    # What is added cannot be taken for a positional argument of mlxtend's.
    extra = ours[len(theirs) :]
    assert [(name, default) for name, default, _ in extra] == [
        ("engine", "auto"),
        ("client", None),
        ("step", 1),
        ("patience", None),
        ("max_seconds", None),
        ("checkpoint", None),
    ]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for *_, kind in extra)


@pytest.mark.parametrize(
    "method",
    ["fit", "fit_transform", "transform", "finalize_fit", "get_metric_dict", "get_params"],
)
def test_methods(method):
    ours, theirs = (
        parameters_of(getattr(cls, method)) for cls in (SequentialFeatureSelector, Mlxtend)
    )
    assert [name for name, *_ in ours] == [name for name, *_ in theirs]
    assert [kind for *_, kind in ours] == [kind for *_, kind in theirs]
    defaults = {name: default for name, default, _ in theirs}
    for name, default, _ in ours:
        # y may be left out, where a file or a label says what it is.
        assert default == defaults[name] or (name, default) == ("y", None)


def test_positional_arguments(table):
    arguments = (2, False, False, 0, "r2", 3, 1)
    ours = SequentialFeatureSelector(LinearRegression(), *arguments).fit(*table)
    assert_same(ours, Mlxtend(LinearRegression(), *arguments).fit(*table))


def test_attributes_before_fit():
    ours, theirs = SequentialFeatureSelector(Ridge()), Mlxtend(Ridge())
    assert ours.fitted is theirs.fitted is False
    assert ours.interrupted_ is theirs.interrupted_ is False
    assert not hasattr(ours, "k_feature_idx_")
    X, y = load_diabetes(return_X_y=True)
    model = Ridge().fit(X, y)
    assert ours.scorer(model, X, y) == theirs.scorer(model, X, y)


@pytest.mark.parametrize(
    "estimator",
    [LinearRegression(), KNeighborsClassifier(), make_pipeline(StandardScaler(), Ridge())],
    ids=["regression", "classifier", "pipeline"],
)
def test_get_params_has_both_prefixes(estimator):
    ours, theirs = SequentialFeatureSelector(estimator), Mlxtend(estimator)
    for deep in (True, False):
        added = {"engine", "client", "step", "patience", "max_seconds", "checkpoint"}
        assert set(ours.get_params(deep)) == {*theirs.get_params(deep), *added}
    assert ours.named_estimators == theirs.named_estimators
    shared = theirs.get_params()
    # mlxtend fills in what None stands for; here it stays as it was given.
    assert shared.pop("scoring") in ("accuracy", "r2")
    found = ours.get_params()
    assert found["scoring"] is None
    assert {name: found[name] for name in shared} == shared


def test_set_params_by_either_prefix(table):
    selector = SequentialFeatureSelector(LinearRegression())
    assert selector.set_params(linearregression__fit_intercept=False) is selector
    assert selector.estimator.fit_intercept is False
    selector.set_params(estimator__fit_intercept=True, k_features=2, cv=3)
    assert selector.estimator.fit_intercept is True
    # A whole estimator, by either name, and parameters of the new one in the same call.
    selector.set_params(ridge__alpha=7.0, estimator=Ridge())
    assert selector.get_params()["ridge__alpha"] == 7.0
    selector.set_params(ridge=KNeighborsRegressor(), kneighborsregressor__n_neighbors=3)
    assert selector.estimator.n_neighbors == 3
    assert not hasattr(selector, "ridge")
    # The fit uses what was set.
    selector.fit(*table)
    expected = Mlxtend(KNeighborsRegressor(3), k_features=2, cv=3).fit(*table)
    assert_same(selector, expected)
    with pytest.raises(ValueError, match="Invalid parameter 'linearregression'"):
        selector.set_params(linearregression__fit_intercept=False)


@pytest.mark.parametrize("prefix", ["estimator", "ridge"])
def test_a_grid_search_tunes_the_inner_estimator(prefix):
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:150], y[:150]
    model = make_pipeline(
        SequentialFeatureSelector(Ridge(), k_features=3, cv=3), LinearRegression()
    )
    alphas = [1e-3, 30.0]
    name = f"sequentialfeatureselector__{prefix}__alpha"
    search = GridSearchCV(model, {name: alphas}, cv=3).fit(X, y)
    for alpha, score in zip(alphas, search.cv_results_["mean_test_score"], strict=True):
        fixed = Mlxtend(Ridge(alpha=alpha), k_features=3, cv=3)
        expected = []
        for train, test in KFold(3).split(X):
            columns = list(fixed.fit(X[train], y[train]).k_feature_idx_)
            inner = LinearRegression().fit(X[train][:, columns], y[train])
            expected.append(inner.score(X[test][:, columns], y[test]))
        assert score == pytest.approx(np.mean(expected), rel=1e-9)
    assert np.ptp(search.cv_results_["mean_test_score"]) > 1e-3


def test_clone_and_pickle(table):
    client = threading.Lock()  # can be neither copied nor pickled, like a connection
    selector = SequentialFeatureSelector(Ridge(3.0), k_features=(2, 4), client=client)
    twin = clone(selector)
    assert twin.client is client
    assert twin.get_params()["ridge__alpha"] == 3.0
    assert twin.estimator is not selector.estimator
    loaded = pickle.loads(pickle.dumps(selector)).fit(*table)
    again = pickle.loads(pickle.dumps(loaded))
    assert again.k_feature_idx_ == loaded.k_feature_idx_
    assert again.get_metric_dict().keys() == loaded.get_metric_dict().keys()
    np.testing.assert_array_equal(again.transform(table[0]), loaded.transform(table[0]))


# --------------------------------------------------------------------------------------------------
# Results


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize("k_features", [1, 3, 6, (2, 4), (3, 6), "best"], ids=str)
def test_k_features(table, forward, k_features):
    for engine in ("auto", "refit"):
        ours, theirs = fitted_pair(*table, k_features=k_features, forward=forward, cv=4)
        assert_same(ours, theirs)
        assert ours.k_features == k_features  # mlxtend overwrites it
        again = clone(ours).set_params(engine=engine).fit(*table)
        assert again.selection_.engines == (("refit",) if engine == "refit" else ("moments",))
        assert_same(again, theirs)


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize("k_features", [3, (2, 5), "best"], ids=str)
def test_where_all_scores_are_equal(table, forward, k_features):
    ours, theirs = fitted_pair(
        *table, DummyRegressor(), k_features=k_features, forward=forward, cv=2
    )
    assert_same(ours, theirs)
    size = {3: (3, 3), (2, 5): (2, 5), "best": (1, 6)}[k_features][not forward]
    assert ours.k_feature_idx_ == tuple(range(size))


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_parsimonious_is_the_one_standard_error_rule(table, forward):
    ours, theirs = fitted_pair(*table, k_features="best", forward=forward)
    theirs.k_features = "parsimonious"
    theirs.fit(*table)
    ours.set_params(k_features="parsimonious").fit(*table)
    assert_same_table(ours.subsets_, theirs.subsets_)
    assert (ours.is_parsimonious, ours.min_k, ours.max_k) == (True, 1, 6)
    table_ = ours.get_metric_dict()
    top = max(table_.values(), key=lambda entry: entry["avg_score"])
    within = [
        size
        for size, entry in table_.items()
        if entry["avg_score"] >= top["avg_score"] - top["std_err"]
    ]
    assert len(ours.k_feature_idx_) == min(within) < len(top["feature_idx"])
    assert ours.k_score_ == table_[min(within)]["avg_score"]
    # The parameter is unchanged, so a second fit does the same; mlxtend's does not.
    chosen = ours.k_feature_idx_
    assert ours.fit(*table).k_feature_idx_ == chosen
    assert ours.k_features == "parsimonious"


@pytest.mark.parametrize("loader", [load_iris, load_wine], ids=["iris", "wine"])
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize("floating", [True, False], ids=["floating", "straight"])
def test_classification_by_accuracy(loader, forward, floating):
    X, y = loader(return_X_y=True)
    X = StandardScaler().fit_transform(X)[:, :8]
    # Accuracies of few rows tie; the order among ties is mlxtend's while few features are out.
    k_features = min(4, X.shape[1]) if forward else X.shape[1] - 3
    ours, theirs = fitted_pair(
        X,
        y,
        KNeighborsClassifier(n_neighbors=4),
        k_features=k_features,
        forward=forward,
        floating=floating,
        cv=3,
    )
    assert_same(ours, theirs, rtol=1e-15)
    assert ours.selection_.scoring == "accuracy"


@pytest.mark.parametrize("labels", ["default", "string", "integer"])
def test_names_are_the_labels_of_the_frame(frame, labels):
    X, y = frame
    if labels == "integer":
        X = X.set_axis([10, 11, 12, 0, 1, 2], axis=1)
    elif labels == "default":
        X = X.to_numpy()
    ours, theirs = fitted_pair(X, y, k_features=2)
    assert_same(ours, theirs)
    kind = int if labels == "integer" else str
    assert all(type(name) is kind for name in ours.k_feature_names_)


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("fixed", "k_features"), [((1, 4), 3), (("sex", "s1"), (2, 5)), ((4, 1), 2), ((0,), "best")]
)
def test_fixed_features(frame, forward, fixed, k_features):
    ours, theirs = fitted_pair(
        *frame, fixed_features=fixed, k_features=k_features, forward=forward, cv=4
    )
    assert_same(ours, theirs)
    assert all(set(ours.fixed_features_) <= set(e["feature_idx"]) for e in ours.subsets_.values())


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize("fixed", [None, ("bp", "age"), ("bmi",)], ids=str)
@pytest.mark.parametrize("k_features", [2, "best"])
def test_feature_groups(frame, forward, fixed, k_features):
    groups = [["bp", "age"], ["sex"], ["bmi"], ["s2", "s1"]]
    ours, theirs = fitted_pair(
        *frame,
        feature_groups=groups,
        fixed_features=fixed,
        k_features=k_features,
        forward=forward,
        cv=4,
    )
    assert_same(ours, theirs)
    assert ours.feature_groups == groups


def test_feature_groups_by_position(table):
    ours, theirs = fitted_pair(
        *table, feature_groups=[[5, 0], [1], [3, 2], [4]], floating=True, forward=False, cv=3
    )
    assert_same(ours, theirs)


CV = {
    "int": lambda y: 3,
    "stratified": lambda y: StratifiedKFold(3),
    "shuffled": lambda y: KFold(3, shuffle=True, random_state=0),
    "shuffle_split": lambda y: ShuffleSplit(2, random_state=0),
    "list": lambda y: list(KFold(3).split(y)),
    "none": lambda y: None,
    "zero": lambda y: 0,
    "false": lambda y: False,
}


@pytest.mark.parametrize("cv", CV)
def test_folds_of_a_classifier(cv):
    X, y = load_iris(return_X_y=True)
    ours, theirs = fitted_pair(
        X, y, KNeighborsClassifier(), k_features=2, forward=False, cv=CV[cv](y)
    )
    assert_same(ours, theirs)
    n_folds = {"none": 1, "zero": 1, "false": 1, "shuffle_split": 2}.get(cv, 3)
    assert all(len(entry["cv_scores"]) == n_folds for entry in ours.subsets_.values())


def test_groups_and_fit_parameters(table):
    X, y = table
    groups = np.arange(120) % 7
    weights = np.random.default_rng(0).uniform(0.01, 2, size=120)
    for parameters in ({"cv": GroupKFold(3)}, {"cv": 0}):
        options = {"k_features": 2, "forward": False, **parameters}
        ours = SequentialFeatureSelector(LinearRegression(), **options)
        theirs = Mlxtend(LinearRegression(), **options)
        for selector in (ours, theirs):
            selector.fit(X, y, groups=groups, sample_weight=weights)
        assert_same(ours, theirs)


@pytest.mark.parametrize(
    "scoring",
    ["neg_mean_absolute_error", make_scorer(mean_absolute_error, greater_is_better=False)],
    ids=["name", "scorer"],
)
def test_scoring(table, scoring):
    ours, theirs = fitted_pair(*table, scoring=scoring, k_features=3, cv=3)
    assert_same(ours, theirs)


def test_scoring_by_a_function(table):
    def largest_error(estimator, X, y):
        return -float(np.max(np.abs(estimator.predict(X) - y)))

    ours, theirs = fitted_pair(*table, scoring=largest_error, k_features=3, cv=3)
    assert_same(ours, theirs)
    assert ours.scorer is largest_error
    assert ours.selection_.scoring == "largest_error"


def test_a_single_column(table):
    X, y = table
    assert_same(*fitted_pair(X[:, :1], y))


def test_several_targets(table):
    X, y = table
    assert_same(*fitted_pair(X, np.column_stack([y, X[:, 0] ** 2]), k_features=2, cv=3))


@pytest.mark.parametrize("cv", [0, 3])
def test_the_estimator_itself_is_fitted_if_not_cloned(table, cv):
    X, y = table
    options = {"k_features": 2, "forward": False, "cv": cv, "clone_estimator": False}
    estimator = KNeighborsRegressor(3)
    # One object is fitted in this process and by one task at a time, whatever else is asked for.
    ours = SequentialFeatureSelector(estimator, n_jobs=2, client=threading.Lock(), **options)
    ours.fit(X, y)
    theirs = Mlxtend(KNeighborsRegressor(3), **options).fit(X, y)
    assert_same(ours, theirs)
    assert ours.est_ is estimator
    assert estimator.n_features_in_ == 2
    untouched = KNeighborsRegressor(3)
    SequentialFeatureSelector(untouched, k_features=2, cv=cv).fit(X, y)
    assert not hasattr(untouched, "n_features_in_")


def test_jobs_change_nothing(table):
    ours, theirs = fitted_pair(*table, KNeighborsRegressor(), k_features=3, n_jobs=2, cv=3)
    assert_same(ours, theirs, rtol=1e-15)


# --------------------------------------------------------------------------------------------------
# Methods of the fitted selector


@pytest.mark.parametrize("level", [0.95, 0.8])
@pytest.mark.parametrize("cv", [4, 0])
def test_metric_dict(table, level, cv):
    ours, theirs = fitted_pair(*table, k_features=2, cv=cv)
    found = ours.get_metric_dict(confidence_interval=level)
    if cv:
        expected = theirs.get_metric_dict(confidence_interval=level)
    else:
        with pytest.warns(RuntimeWarning), np.errstate(all="ignore"):
            expected = theirs.get_metric_dict(confidence_interval=level)
    assert list(found) == list(expected)
    for size, entry in expected.items():
        assert list(found[size]) == list(entry)
        for key, value in entry.items():
            assert same_type(found[size][key], value), key
            if key == "ci_bound":
                # Student's t with n - 1 degrees of freedom; mlxtend's has n.
                scores = entry["cv_scores"]
                value = sem(scores) * t.ppf((1 + level) / 2, len(scores) - 1) if cv else np.nan
            if key in ("feature_idx", "feature_names"):
                assert found[size][key] == value
            else:
                np.testing.assert_allclose(found[size][key], value, rtol=1e-8)
    # A copy: changing it does not change the selector.
    found[1]["cv_scores"][:] = 0
    assert "std_dev" not in ours.subsets_[1]
    assert ours.subsets_[1]["cv_scores"].all()


def test_finalize_fit_can_be_repeated(frame):
    groups = [["age", "sex"], ["bmi", "bp"], ["s1"], ["s2"]]
    selector = SequentialFeatureSelector(LinearRegression(), k_features=2, feature_groups=groups)
    with pytest.raises(NotFittedError, match="call fit first"):
        selector.finalize_fit()
    selector.fit(*frame)
    first = (selector.k_feature_idx_, selector.k_feature_names_, selector.k_score_)
    selector.finalize_fit()
    selector.finalize_fit()
    assert (selector.k_feature_idx_, selector.k_feature_names_, selector.k_score_) == first
    assert selector.subsets_[2]["feature_idx"] == first[0]


def test_transform(frame):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), k_features=2)
    out = selector.fit_transform(X, y)
    expected = Mlxtend(LinearRegression(), k_features=2).fit_transform(X, y)
    np.testing.assert_array_equal(out, expected)
    assert type(out) is np.ndarray
    # A frame's columns are found by name; mlxtend would silently take others.
    np.testing.assert_array_equal(selector.transform(X[NAMES[::-1]]), expected)
    np.testing.assert_array_equal(selector.transform(X.assign(more=0)), expected)
    np.testing.assert_array_equal(selector.transform(pl.from_pandas(X)), expected)
    np.testing.assert_array_equal(selector.transform(X.to_numpy()), expected)
    np.testing.assert_array_equal(selector.transform(X.to_numpy().tolist()), expected)
    gone = selector.k_feature_names_[1]
    with pytest.raises(ValueError, match=rf"X lacks the selected columns \['{gone}'\]"):
        selector.transform(X.drop(columns=gone))
    with pytest.raises(ValueError, match="X has 5 columns, but 6 were seen in fit"):
        selector.transform(X.to_numpy()[:, :5])
    with pytest.raises(ValueError, match="two dimensions"):
        selector.transform(X.to_numpy()[0])
    selector.fit(X.to_numpy(), y)
    np.testing.assert_array_equal(selector.transform(X), expected)


def test_not_fitted(table):
    selector = SequentialFeatureSelector(LinearRegression())
    for use in (selector.get_metric_dict, lambda: selector.transform(table[0])):
        with pytest.raises(NotFittedError, match="call fit first"):
            use()


def test_a_second_fit_knows_nothing_of_the_first(frame):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), k_features=(2, 3)).fit(X, y)
    first, names = selector.subsets_, selector.k_feature_names_
    selector.fit(X.to_numpy()[:, :4], y)
    assert (selector.n_features, selector.feature_names, selector.max_k) == (4, None, 3)
    assert selector.fit(X, y).k_feature_names_ == names
    assert_same_table(selector.subsets_, first)


def test_plan_leaves_a_fitted_selector_alone(frame):
    X, y = frame
    selector = SequentialFeatureSelector(LinearRegression(), k_features="best").fit(X, y)
    before = dict(vars(selector))
    plan = selector.plan(X[["age", "sex"]], y)
    assert (plan.n_columns, plan.engine) == (2, "moments")
    assert vars(selector) == before


FEATURES = re.compile(r"Features: \d+/\d+(?: -- score: \S+)?")


@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_verbose(table, capsys, forward, verbose):
    told = []
    for cls in (SequentialFeatureSelector, Mlxtend):
        cls(LinearRegression(), k_features=3, forward=forward, verbose=verbose, cv=3).fit(*table)
        out, err = capsys.readouterr()
        assert out == ""
        # joblib's own lines are mixed in with mlxtend's.
        told.append(re.sub(r"\[Parallel[^\n]*\n", "", err))
    ours, theirs = ([re.sub(" --.*", "", text) for text in FEATURES.findall(err)] for err in told)
    assert ours == theirs
    assert len(ours) == (3 if verbose else 0)
    if verbose < 2:
        assert told[0] == "".join(f"\r{count}" for count in ours)
    else:
        stamp = r"\n\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
        assert re.fullmatch(f"(?:{stamp}{FEATURES.pattern})+", told[0])
        ours, theirs = ([float(score) for score in re.findall("score: (.*)", err)] for err in told)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


# --------------------------------------------------------------------------------------------------
# Where mlxtend is not followed


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_the_step_that_fails_tol_is_not_made(table, forward):
    X, y = table
    selector = SequentialFeatureSelector(
        LinearRegression(), k_features="best", forward=forward, tol=0.01 if forward else -0.001
    ).fit(X, y)
    means = [entry["avg_score"] for entry in selector.subsets_.values()]
    assert 1 < len(means) < 6
    assert (np.diff(means) >= selector.tol).all()
    assert selector.k_score_ == max(means)


def test_tol_tells_when_k_features_is_not_reached(table):
    selector = SequentialFeatureSelector(LinearRegression(), k_features=6, tol=0.01)
    with pytest.warns(DagselWarning, match=r"stopped by tol=0.01 at 3 features; k_features=6 was"):
        selector.fit(*table)
    assert len(selector.k_feature_idx_) == 3


def nan_where_marked(estimator, X, y):
    return np.nan if (X == 7.0).any() else estimator.score(X, y)


@pytest.mark.parametrize("forward", [True, False])
def test_patience_counts_sizes_that_may_be_chosen(table, forward):
    X, y = table
    common = {"forward": forward, "cv": 4}
    whole = SequentialFeatureSelector(LinearRegression(), "best", **common).fit(X, y)
    sizes = list(whole.subsets_)
    for k_features in ("best", "parsimonious", (2, 4)):
        low, high = k_features if isinstance(k_features, tuple) else (1, 6)
        selector = SequentialFeatureSelector(
            LinearRegression(), k_features, **common, patience=1
        ).fit(X, y)
        best, expected = -np.inf, []
        for size in sizes:
            expected.append(size)
            if low <= size <= high:
                if whole.subsets_[size]["avg_score"] <= best:
                    break
                best = whole.subsets_[size]["avg_score"]
            if size == (high if forward else low):
                break
        assert list(selector.subsets_) == expected
        assert low <= len(selector.k_feature_idx_) <= high
    with pytest.raises(ValueError, match=r"patience=2 .* k_features='best'.* not 3"):
        SequentialFeatureSelector(LinearRegression(), 3, patience=2).fit(X, y)


def test_step_moves_several(table):
    X, y = table
    selector = SequentialFeatureSelector(LinearRegression(), 1, forward=False, step=2).fit(X, y)
    assert list(selector.subsets_) == [6, 4, 2, 1]
    for entry in selector.subsets_.values():
        expected = cross_val_score(LinearRegression(), X[:, list(entry["feature_idx"])], y, cv=5)
        np.testing.assert_allclose(entry["cv_scores"], expected, rtol=1e-9)


@pytest.mark.parametrize(("k_features", "says"), [(2, "k_features=2 was not"), ("best", "best of")])
def test_a_time_budget_is_told(table, k_features, says):
    X, y = table
    selector = SequentialFeatureSelector(
        LinearRegression(), k_features, forward=False, max_seconds=1e-9
    )
    with pytest.warns(DagselWarning, match=rf"max_seconds=1e-09 at 6 features.*{says}"):
        selector.fit(X, y)
    assert selector.k_feature_idx_ == tuple(range(6))
    assert selector.selection_.stop_reason == "time"
    assert not selector.interrupted_


@pytest.mark.parametrize("k_features", [2, "best"])
def test_a_candidate_with_a_nan_score_is_never_chosen(table, k_features):
    X, y = table
    # The best column by far, were it not for its score in the fold that is tested with row 0.
    X = np.column_stack([X, y])
    X[0, 6] = 7.0
    selector = SequentialFeatureSelector(
        LinearRegression(), k_features=k_features, scoring=nan_where_marked, cv=3
    )
    if k_features == "best":
        with pytest.raises(ScoringError, match="with column 6, fold 0: the score is NaN"):
            selector.fit(X, y)
    else:
        selector.fit(X, y)
    assert selector.interrupted_ == (k_features == "best")
    assert list(selector.subsets_) == list(range(1, 7 if k_features == "best" else 3))
    assert all(6 not in entry["feature_idx"] for entry in selector.subsets_.values())
    expected = Mlxtend(LinearRegression(), k_features=k_features, cv=3).fit(X[:, :6], y)
    assert selector.k_feature_idx_ == expected.k_feature_idx_
    assert selector.k_score_ == pytest.approx(expected.k_score_)


class InterruptAt:
    """R², until the user presses Ctrl-C while models have so many columns."""

    def __init__(self, n_columns):
        self.n_columns = n_columns

    def __call__(self, estimator, X, y):
        if X.shape[1] == self.n_columns:
            raise KeyboardInterrupt
        return estimator.score(X, y)


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_an_interrupt_is_raised_and_what_was_decided_can_be_used(table, forward):
    X, y = table
    selector = SequentialFeatureSelector(
        LinearRegression(),
        k_features=5 if forward else 2,
        forward=forward,
        scoring=InterruptAt(3 if forward else 4),
        cv=2,
    )
    with pytest.raises(KeyboardInterrupt):
        selector.fit(X, y)
    assert selector.interrupted_
    assert selector.fitted
    assert list(selector.subsets_) == ([1, 2] if forward else [6, 5])
    whole = Mlxtend(LinearRegression(), k_features=6 if forward else 1, forward=forward, cv=2)
    whole.fit(X, y)
    size = 2 if forward else 5
    for done in selector.subsets_:
        assert selector.subsets_[done]["feature_idx"] == whole.subsets_[done]["feature_idx"]
    assert selector.k_feature_idx_ == whole.subsets_[size]["feature_idx"]
    assert selector.transform(X).shape == (120, size)
    assert selector.get_metric_dict()[size]["avg_score"] == selector.k_score_
    selector.set_params(scoring="r2").fit(X, y)
    assert not selector.interrupted_
    assert len(selector.k_feature_idx_) == selector.k_features


def test_an_interrupt_before_the_first_round_leaves_nothing(table):
    X, y = table
    selector = SequentialFeatureSelector(LinearRegression(), k_features=2, cv=2).fit(X, y)
    selector.set_params(scoring=InterruptAt(1))
    with pytest.raises(KeyboardInterrupt):
        selector.fit(X, y)
    assert not selector.fitted
    assert selector.interrupted_
    assert (selector.k_feature_idx_, selector.subsets_) == (None, {})
    with pytest.raises(NotFittedError):
        selector.transform(X)


def test_frames_reach_the_estimator(frame):
    X, y = frame
    X = X.assign(kind=np.where(X["age"] > 0, "old", "young"))
    model = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(), make_column_selector(dtype_exclude="number")),
            (StandardScaler(), make_column_selector(dtype_include="number")),
        ),
        Ridge(),
    )
    selector = SequentialFeatureSelector(
        model, k_features=3, fixed_features=("kind",), cv=3, scoring="r2"
    ).fit(X, y)
    assert "kind" in selector.k_feature_names_
    expected = cross_val_score(model, X[list(selector.k_feature_names_)], y, cv=3)
    np.testing.assert_array_equal(selector.subsets_[3]["cv_scores"], expected)
    assert selector.transform(X).shape == (120, 3)


@pytest.mark.parametrize(
    "k_features", [0, 7, -1, 2.0, None, [1, 2], "worst", (3, 2), (1, 2, 3), (0, 3), (2, 9), True]
)
def test_wrong_k_features(table, k_features):
    with pytest.raises(ValueError, match="k_features"):
        SequentialFeatureSelector(LinearRegression(), k_features=k_features).fit(*table)


def test_an_estimator_of_neither_kind_needs_a_scoring(table):
    with pytest.raises(ValueError, match="say what to score by with scoring="):
        SequentialFeatureSelector(KMeans(2)).fit(*table)


def test_a_classifier_of_text_labels():
    X, y = load_iris(return_X_y=True)
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    model = LogisticRegression(max_iter=300)
    ours, theirs = fitted_pair(X, labels, model, k_features=2, cv=3)
    assert_same(ours, theirs)
