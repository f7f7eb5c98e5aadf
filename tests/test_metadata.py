"""What `fit` is given besides X and y: weights, weighted scores, and metadata routing."""

from __future__ import annotations

import re

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from problems import product_of
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.feature_selection import SequentialFeatureSelector as Sklearn
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import accuracy_score, get_scorer, make_scorer, mean_squared_error, r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import dagsel
from dagsel import DataError, SequentialFeatureSelector
from dagsel.mlxtend import SequentialFeatureSelector as Mlxtend

RTOL = 1e-9
N, P = 120, 6
rng = np.random.default_rng(5)
X = rng.normal(size=(N, P)) * np.geomspace(1, 50, P) + 3
Y = X @ rng.normal(size=P) + 3 * rng.normal(size=N)
LABELS = np.where(np.median(Y) < Y, 7, 4)
W = rng.uniform(0.01, 3, size=N)
GROUPS = rng.integers(0, 9, size=N)
CV = KFold(4, shuffle=True, random_state=0)
PIPELINE = make_pipeline(StandardScaler(), Ridge(2.0))


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def by_hand(model, columns, metric, target=Y, *, fit=W, score=None, cv=CV, groups=None):
    """Fit and score in a plain loop over folds."""
    found = []
    for train, test in cv.split(X, target, groups):
        fitted = clone(model)
        weights = {} if fit is None else {"sample_weight": fit[train]}
        if hasattr(fitted, "steps"):
            weights = {f"{fitted.steps[-1][0]}__{name}": each for name, each in weights.items()}
        with config_context(enable_metadata_routing=False):
            fitted.fit(X[train][:, columns], target[train], **weights)
        predicted = fitted.predict(X[test][:, columns])
        inside = None if score is None else score[test]
        found.append(metric(target[test], predicted, sample_weight=inside))
    return found


def check_path(selector, model, metric, target=Y, *, engine=None, **options):
    rounds = selector.selection_.rounds
    assert len(rounds) > 2
    for done in rounds:
        expected = by_hand(model, list(done.subset), metric, target, **options)
        np.testing.assert_allclose(done.fold_scores, expected, rtol=RTOL)
    if engine is not None:
        assert selector.selection_.engines == (engine,)


def selector_of(estimator, **options):
    options = {"n_features_to_select": 2, "direction": "backward", "cv": CV, **options}
    return SequentialFeatureSelector(estimator, **options)


# --------------------------------------------------------------------------------------------------
# Without routing


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize(
    ("model", "name", "scoring", "metric", "engine"),
    [
        (LinearRegression(), "sample_weight", None, r2_score, "moments"),
        (PIPELINE, "ridge__sample_weight", "r2", r2_score, "moments"),
        (PIPELINE, "ridge__sample_weight", None, r2_score, "moments"),
        (
            Ridge(),
            "sample_weight",
            make_scorer(mean_squared_error, greater_is_better=False),
            lambda *y, **w: -mean_squared_error(*y, **w),
            "moments",
        ),
        (Ridge(solver="lsqr", tol=1e-12), "sample_weight", None, r2_score, "refit"),
    ],
)
def test_weights_in_fits_and_in_scores(model, name, scoring, metric, engine, direction):
    for weighted in (False, True):
        selector = selector_of(model, scoring=scoring, weighted_scores=weighted)
        selector.set_params(direction=direction, n_features_to_select=3).fit(X, Y, **{name: W})
        check_path(selector, model, metric, engine=engine, score=W if weighted else None)


def test_weights_in_scores_of_classes():
    selector = selector_of(RidgeClassifier(), scoring="accuracy", weighted_scores=True)
    selector.fit(X, LABELS, sample_weight=W)
    check_path(selector, RidgeClassifier(), accuracy_score, LABELS, score=W, engine="rows")


def test_the_same_weights_in_a_criterion():
    """Errors are summed with the weights of the fit, whatever is said of scores."""
    plain, weighted = (
        selector_of(LinearRegression(), cv=5, criterion="bic", weighted_scores=each)
        for each in (False, True)
    )
    scores = [
        [done.mean for done in selector.fit(X, Y, sample_weight=W).selection_.rounds]
        for selector in (plain, weighted)
    ]
    assert scores[0] == scores[1]


def test_a_pipeline_is_told_the_name_of_its_parameter():
    for selector in (selector_of(PIPELINE), Mlxtend(PIPELINE)):
        with pytest.raises(ValueError, match=r"give ridge__sample_weight= for its last step"):
            selector.fit(X, Y, sample_weight=W)


def test_weights_that_nothing_would_be_done_with():
    with pytest.raises(ValueError, match=r"KNeighborsRegressor\.fit takes no weights"):
        selector_of(KNeighborsRegressor()).fit(X, Y, sample_weight=W)
    with pytest.raises(ValueError, match="give sample_weight= to fit"):
        selector_of(Ridge(), weighted_scores=True).fit(X, Y)
    with pytest.raises(ValueError, match="give ridge__sample_weight= to fit"):
        selector_of(PIPELINE, weighted_scores=True).fit(
            X, Y, standardscaler__sample_weight=W, ridge__sample_weight=None
        )
    for scoring in ("neg_max_error", lambda model, X, y: 0.0):
        with pytest.raises(ValueError, match="takes no weights: use another scoring"):
            selector_of(Ridge(), weighted_scores=True, scoring=scoring).fit(X, Y, sample_weight=W)


def test_weights_are_no_routing_of_the_other_front_door(routing):
    """Its signature is older than routing, and so is what it does."""
    for model, name in ((Ridge(), "sample_weight"), (PIPELINE, "ridge__sample_weight")):
        for engine in ("auto", "refit"):
            selector = Mlxtend(model, 3, forward=False, cv=CV, scoring="r2", engine=engine)
            selector.fit(X, Y, **{name: W})
            check_path(selector, model, r2_score)


# --------------------------------------------------------------------------------------------------
# What weights can be, and what they cannot

TABLE = pd.DataFrame(X, columns=list("abcdef")).assign(w=W, y=Y)


@pytest.mark.parametrize("target", ["y", "array"])
@pytest.mark.parametrize("kind", ["pandas", "polars", "dask"])
def test_weights_are_a_column_of_a_frame(kind, target):
    frame = {
        "pandas": TABLE,
        "polars": pl.from_pandas(TABLE),
        "dask": dd.from_pandas(TABLE, npartitions=3),
    }[kind]
    given = "y"
    if target == "array":
        given = Y
        frame = frame.drop("y") if kind == "polars" else frame.drop(columns=["y"])
    columns = list(frame.columns)
    selector = selector_of(LinearRegression(), weighted_scores=True)
    selector.fit(frame, given, sample_weight="w")
    assert list(selector.feature_names_in_) == list("abcdef")
    assert list(frame.columns) == columns
    check_path(selector, LinearRegression(), r2_score, score=W, engine="moments")


@pytest.mark.parametrize("kind", ["csv", "parquet", "path"])
def test_weights_are_a_column_of_files(tmp_path, kind):
    suffix = "parquet" if kind == "parquet" else "csv"
    for number, part in enumerate((TABLE[:50], TABLE[50:])):
        write = part.to_parquet if kind == "parquet" else part.to_csv
        write(tmp_path / f"{number}.{suffix}", index=False)
    pattern = str(tmp_path / f"*.{suffix}")
    data = (pattern, "y") if kind == "path" else (dagsel.scan(pattern, target="y"),)
    selector = selector_of(LinearRegression(), weighted_scores=True)
    selector.fit(*data, sample_weight="w")
    assert list(selector.feature_names_in_) == list("abcdef")
    check_path(selector, LinearRegression(), r2_score, score=W, engine="moments")
    # A column that the scan does not take as a feature will do.
    some = dagsel.scan(pattern, target="y", columns=["a", "b", "c"])
    rounds = selector.set_params(n_features_to_select=1).fit(some, sample_weight="w").selection_
    assert rounds.n_features_in == 3
    np.testing.assert_allclose(
        rounds.rounds[0].fold_scores,
        by_hand(LinearRegression(), [0, 1, 2], r2_score, score=W),
        rtol=RTOL,
    )


def test_the_other_front_door_takes_a_label():
    selector = Mlxtend(LinearRegression(), 2, forward=False, cv=CV, scoring="r2")
    selector.fit(TABLE, "y", sample_weight="w")
    assert selector.feature_names == list("abcdef")
    check_path(selector, LinearRegression(), r2_score)


@pytest.mark.parametrize(
    "weights",
    [W.tolist(), pd.Series(W, index=range(N, 0, -1)), pl.Series(W), da.from_array(W, chunks=50)],
    ids=["list", "pandas", "polars", "dask"],
)
def test_weights_of_other_types(weights):
    selector = selector_of(LinearRegression()).fit(X, Y, sample_weight=weights)
    check_path(selector, LinearRegression(), r2_score, engine="moments")


def changed(**entries):
    weights = W.copy()
    for row, value in entries.items():
        weights[int(row[1:])] = value
    return weights


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (W[:-1], "sample_weight has 119 weights, but the table has 120 rows"),
        (np.column_stack([W, W]), r"the shape \(120, 2\)"),
        (2.0, "sample_weight is 2.0. Give one weight for every row"),
        (changed(r7=np.nan, r9=-1), r"is nan in row 7 \(counting from 0; 2 such rows\)"),
        (changed(r9=-1), "is -1 in row 9 .* of at least 0"),
        (changed(r119=np.inf), "is inf in row 119"),
        (np.zeros(N), "0 in every row"),
        (["heavy"] * N, "such as 'heavy', not numbers"),
    ],
)
def test_weights_that_are_none(weights, says):
    doors = (selector_of(Ridge()), selector_of(Ridge(), engine="refit"), Mlxtend(Ridge()))
    for selector in doors:
        with pytest.raises(DataError, match=says):
            selector.fit(X, Y, sample_weight=weights)
        assert not hasattr(selector, "selection_")


def test_labels_that_are_none(tmp_path):
    selector = selector_of(Ridge())
    with pytest.raises(DataError, match=r"No column 'W' \(the weights\) in the table"):
        selector.fit(TABLE, "y", sample_weight="W")
    with pytest.raises(DataError, match="'w', but X is a ndarray, which has no column labels"):
        selector.fit(X, Y, sample_weight="w")
    TABLE.assign(word="x").to_csv(tmp_path / "t.csv", index=False)
    data = dagsel.scan(tmp_path / "t.csv", target="y", drop=["word"])
    with pytest.raises(DataError, match=r"No column 'W' \(the weights\) in '.*t.csv'"):
        selector.fit(data, sample_weight="W")
    with pytest.raises(DataError, match="'y' is the target and the weights at once"):
        selector.fit(data, sample_weight="y")
    with pytest.raises(DataError, match="such as 'x', not numbers"):
        selector.fit(data, sample_weight="word")
    TABLE.assign(w=changed(r5=np.nan)).to_csv(tmp_path / "u.csv", index=False)
    with pytest.raises(DataError, match=r"'w' cannot be used as the weights.*row 6"):
        selector.fit(dagsel.scan(tmp_path / "u.csv", target="y"), sample_weight="w")


# --------------------------------------------------------------------------------------------------
# With routing


class Loss:
    """A metric of its own that takes a price a row."""

    __name__ = "loss"

    def __call__(self, y, predicted, price=None):
        price = np.ones(len(y)) if price is None else price
        return float(np.average(np.abs(y - predicted), weights=price))


def scorer(name, weights):
    return get_scorer(name).set_score_request(sample_weight=weights)


def compare(estimator, scoring, params, *, cv=CV, target=Y, engine=None, table=X, **options):
    """Compare with scikit-learn's own selector, under routing; returns ours."""
    for direction in ("backward", "forward"):
        common = {"n_features_to_select": 3, "direction": direction, "cv": cv, "scoring": scoring}
        ours = SequentialFeatureSelector(clone(estimator), **common, **options)
        ours.fit(table, target, **params)
        theirs = Sklearn(clone(estimator), **common).fit(table, target, **params)
        np.testing.assert_array_equal(ours.get_support(), theirs.get_support())
        assert engine is None or ours.selection_.engines == (engine,)
    return ours


@pytest.mark.usefixtures("routing")
class TestRouting:
    @pytest.mark.parametrize(
        ("name", "fit", "score"),
        product_of(
            ["r2", "neg_mean_squared_error", "neg_mean_absolute_error"],
            [True, False],
            [True, False],
            plain=lambda i, j, k: (i + j) % 2 == k,
        ),
    )
    def test_weights_go_where_they_are_requested(self, name, fit, score):
        model = LinearRegression().set_fit_request(sample_weight=fit)
        given = {"sample_weight": W} if fit or score else {}
        engine = "rows" if "absolute" in name else "moments"
        ours = compare(model, scorer(name, score), given, engine=engine)
        metric = get_scorer(name)
        check_path(
            ours,
            LinearRegression(),
            lambda *y, **w: metric._sign * metric._score_func(*y, **w),
            fit=W if fit else None,
            score=W if score else None,
        )

    def test_by_another_name(self):
        model = Ridge().set_fit_request(sample_weight="mass")
        scoring = scorer("r2", "trust")
        ours = compare(model, scoring, {"mass": W, "trust": W[::-1]}, engine="moments")
        check_path(ours, Ridge(), r2_score, score=W[::-1])

    def test_the_estimators_own_score(self):
        model = Ridge().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        ours = compare(model, None, {"sample_weight": W}, engine="moments")
        check_path(ours, Ridge(), r2_score, score=W)

    def test_classes(self):
        model = RidgeClassifier().set_fit_request(sample_weight=True)
        scoring = make_scorer(accuracy_score).set_score_request(sample_weight=True)
        ours = compare(model, scoring, {"sample_weight": W}, target=LABELS, engine="rows")
        check_path(ours, RidgeClassifier(), accuracy_score, LABELS, score=W)

    @pytest.mark.parametrize("engine", ["auto", "refit"])
    def test_a_pipelines_last_step(self, engine):
        model = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False),
            Ridge(2.0).set_fit_request(sample_weight=True),
        )
        expected = "moments" if engine == "auto" else "refit"
        given = {"sample_weight": W}
        options = {"engine": engine}
        common = {"n_features_to_select": 3, "direction": "backward", "cv": CV}
        ours = SequentialFeatureSelector(model, scoring=scorer("r2", True), **common, **options)
        theirs = Sklearn(model, scoring=scorer("r2", True), **common)
        check_path(ours.fit(X, Y, **given), PIPELINE, r2_score, score=W, engine=expected)
        np.testing.assert_array_equal(ours.support_, theirs.fit(X, Y, **given).support_)

    def test_a_pipelines_first_step_too(self):
        model = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=True),
            Ridge(2.0).set_fit_request(sample_weight=True),
        )
        compare(model, scorer("r2", True), {"sample_weight": W}, engine="refit")

    @pytest.mark.parametrize("n_jobs", [None, 2])
    def test_what_is_routed_further(self, n_jobs):
        """In other processes, too, where routing is not enabled by itself."""
        inner = GridSearchCV(
            Ridge().set_fit_request(sample_weight=True),
            {"alpha": [0.1, 100.0]},
            scoring=scorer("r2", True),
            cv=2,
        )
        scoring = scorer("r2", False)
        compare(inner, scoring, {"sample_weight": W}, engine="refit", table=X[:, :4], n_jobs=n_jobs)

    @pytest.mark.parametrize("n_jobs", [None, 2])
    def test_other_parameters_of_a_scorer(self, n_jobs):
        scoring = make_scorer(Loss(), greater_is_better=False).set_score_request(price=True)
        given = {"price": W, "sample_weight": W[::-1]}
        model = LinearRegression().set_fit_request(sample_weight=True)
        ours = compare(model, scoring, given, engine="refit", n_jobs=n_jobs)
        assert "parameters other than weights are passed on: price" in ours.plan_.reason

    def test_groups(self):
        model = Ridge().set_fit_request(sample_weight=True)
        given = {"groups": GROUPS, "sample_weight": W}
        ours = compare(model, scorer("r2", True), given, cv=GroupKFold(3), engine="moments")
        check_path(ours, Ridge(), r2_score, score=W, cv=GroupKFold(3), groups=GROUPS)

    def test_what_nobody_asks_for(self):
        doors = (SequentialFeatureSelector, Sklearn)
        for door in doors:
            # Not said whether it is wanted.
            with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
                door(Ridge(), scoring="r2", cv=CV).fit(X, Y, sample_weight=W)
            model = Ridge().set_fit_request(sample_weight=True)
            with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
                door(model, scoring="r2", cv=CV).fit(X, Y, sample_weight=W)
            for unknown in ({"importance": W}, {"groups": GROUPS}):
                with pytest.raises(TypeError, match=f"unexpected argument.*{next(iter(unknown))}"):
                    door(model, cv=CV).fit(X, Y, **unknown)

    def test_without_parameters(self):
        for model in (LinearRegression(), PIPELINE):
            compare(model, "r2", {}, engine="moments")

    def test_folds_that_can_be_read_once(self):
        folds = list(CV.split(X))
        model = LinearRegression().set_fit_request(sample_weight=True)
        selector = selector_of(model, cv=iter(folds), scoring=scorer("r2", True))
        check_path(selector.fit(X, Y, sample_weight=W), LinearRegression(), r2_score, score=W)

    def test_weighted_scores_are_the_scorers_business(self):
        with pytest.raises(ValueError, match=r"set_score_request\(sample_weight=True\)"):
            selector_of(Ridge(), weighted_scores=True).fit(X, Y, sample_weight=W)

    def test_a_criterion_has_no_scorer(self):
        model = LinearRegression().set_fit_request(sample_weight=True)
        routed = selector_of(model, cv=5, criterion="aic").fit(X, Y, sample_weight=W)
        with config_context(enable_metadata_routing=False):
            plain = selector_of(LinearRegression(), cv=5, criterion="aic")
            plain.fit(X, Y, sample_weight=W)
        means = [[done.mean for done in each.selection_.rounds] for each in (routed, plain)]
        assert means[0] == means[1]

    def test_within_a_pipeline_and_a_search(self):
        selector = selector_of(
            Ridge().set_fit_request(sample_weight="mass"),
            scoring=scorer("r2", "mass"),
            cv=GroupKFold(3),
        )
        model = make_pipeline(selector, LinearRegression().set_fit_request(sample_weight=False))
        model.fit(X, Y, mass=W, groups=GROUPS)
        options = {"score": W, "cv": GroupKFold(3), "groups": GROUPS}
        check_path(model[0], Ridge(), r2_score, engine="moments", **options)
        grid = {"sequentialfeatureselector__estimator__alpha": [0.1, 1e5]}
        search = GridSearchCV(model, grid, cv=GroupKFold(2), scoring=scorer("r2", False))
        search.fit(X, Y, mass=W, groups=GROUPS)
        assert search.best_params_ == {"sequentialfeatureselector__estimator__alpha": 0.1}

    def test_a_label(self):
        model = Ridge().set_fit_request(sample_weight=True)
        selector = selector_of(model, scoring=scorer("r2", True))
        selector.fit(TABLE, "y", sample_weight="w")
        check_path(selector, Ridge(), r2_score, score=W, engine="moments")


# --------------------------------------------------------------------------------------------------
# Why not fast


class Rated(RegressorMixin, BaseEstimator):
    def fit(self, X, y, rate=1.0):
        return self

    def predict(self, X):
        return np.zeros(len(X))


@pytest.mark.parametrize(
    ("estimator", "fit", "says"),
    [
        (LinearRegression(positive=True), {}, "LinearRegression(positive=True) is no linear solve"),
        (Ridge(solver="lsqr"), {}, "Ridge(solver='lsqr') is iterative"),
        (Ridge(alpha=0), {}, "Ridge(alpha=0) has not one penalty above 0"),
        (Rated(), {"rate": 2.0}, "Rated is not LinearRegression, Ridge or RidgeClassifier"),
        (make_pipeline(MinMaxScaler(), Ridge()), {}, "of pipelines only a StandardScaler before"),
        (
            PIPELINE,
            {"standardscaler__sample_weight": W},
            "parameters other than weights are passed on: standardscaler__sample_weight",
        ),
    ],
)
def test_the_plan_says_once_why_there_are_refits(estimator, fit, says):
    plan = selector_of(estimator, scoring="r2").plan(X, Y, **fit)
    assert plan.engine == "refit"
    assert re.fullmatch(
        rf"candidates are scored by refits \(not moments or rows, because {re.escape(says)}[^;]*\)",
        plan.reason,
    )
