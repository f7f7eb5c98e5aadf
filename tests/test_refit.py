"""Refits give scikit-learn's own cross-validation scores, for any estimator and scorer."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import get_scorer, make_scorer, median_absolute_error, roc_auc_score
from sklearn.model_selection import (
    KFold,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from dagsel import SequentialFeatureSelector
from dagsel.data.folds import draw_folds
from dagsel.data.sources import open_table, split_blocks
from dagsel.engines.base import Problem, Scoring
from dagsel.engines.refit import RefitEngine
from dagsel.executors.local import LocalExecutor
from dagsel.search import Request

DIRECTIONS = ["forward", "backward"]


@pytest.fixture
def regression():
    X, y = load_diabetes(return_X_y=True)
    return X[:100, :6], y[:100]


@pytest.fixture
def binary():
    X, y = load_iris(return_X_y=True)
    noise = np.random.default_rng(0).normal(size=(100, 2))
    return np.column_stack([X[50:], noise]), y[50:] - 1


def columns_of(X, columns):
    if isinstance(X, pd.DataFrame):
        return X.iloc[:, list(columns)]
    return X[:, list(columns)]


def check_by_cross_validation(selector, X, y):
    """Every subset's scores, and that the best of all candidates was taken in every round."""
    options = {"scoring": selector.scoring, "cv": selector.cv}
    inside = () if selector.direction == "forward" else tuple(range(X.shape[1]))
    rounds = selector.selection_.rounds
    assert len(rounds) >= 2
    assert selector.selection_.engines == ("refit",)
    for done in rounds:
        expected = cross_val_score(selector.estimator, columns_of(X, done.subset), y, **options)
        np.testing.assert_array_equal(done.fold_scores, expected)
        if done.action != "start":
            others = (
                sorted(set(inside) ^ {column})
                for column in range(X.shape[1])
                if (column in inside) == (done.action == "remove")
            )
            means = [
                cross_val_score(selector.estimator, columns_of(X, other), y, **options).mean()
                for other in others
            ]
            assert done.mean >= max(means) - 1e-12 * abs(max(means))
        inside = done.subset


def select(estimator, X, y, direction="forward", n=2, **options):
    selector = SequentialFeatureSelector(
        estimator,
        n_features_to_select=n if direction == "forward" else X.shape[1] - n,
        direction=direction,
        **options,
    )
    return selector.fit(X, y)


REGRESSORS = {
    "boosting": HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=5, random_state=0),
    "neighbours": KNeighborsRegressor(3),
    "pipeline": make_pipeline(StandardScaler(), KNeighborsRegressor(4)),
    "least_squares": LinearRegression(),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(regression, name, direction):
    X, y = regression
    if name == "boosting":
        X = X[:, 1:4]  # its threads are slow to meet where cores are busy
    selector = select(REGRESSORS[name], X, y, direction, cv=2, engine="refit")
    check_by_cross_validation(selector, X, y)


CLASSIFIERS = {
    "svc": SVC(),
    "pipeline": make_pipeline(StandardScaler(), SVC()),
    "neighbours": KNeighborsClassifier(),
    "forest": RandomForestClassifier(3, random_state=1),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(binary, name, direction):
    X, y = binary
    # An integer is stratified folds, as in scikit-learn.
    check_by_cross_validation(select(CLASSIFIERS[name], X, y, direction, cv=3), X, y)


SCORINGS = {
    "name": "roc_auc",
    "scorer": get_scorer("balanced_accuracy"),
    "made": make_scorer(roc_auc_score, response_method="decision_function"),
    "function": lambda estimator, X, y: float(estimator.decision_function(X) @ (2 * y - 1)),
    "own": None,
}


@pytest.mark.parametrize("name", SCORINGS)
def test_scorings(binary, name):
    X, y = binary
    selector = select(SVC(), X, y, scoring=SCORINGS[name], cv=StratifiedKFold(3))
    check_by_cross_validation(selector, X, y)


def test_a_scorer_of_errors(regression):
    X, y = regression
    scoring = make_scorer(median_absolute_error, greater_is_better=False)
    selector = select(LinearRegression(), X, y, "backward", scoring=scoring, cv=4, engine="refit")
    check_by_cross_validation(selector, X, y)
    assert "median_absolute_error" in selector.selection_.scoring


@pytest.mark.parametrize(
    "cv",
    [
        ShuffleSplit(3, test_size=0.3, random_state=0),
        RepeatedStratifiedKFold(n_splits=2, n_repeats=2, random_state=0),
        [(np.arange(60), np.arange(60, 100)), (np.arange(30, 100), np.arange(30))],
    ],
    ids=["shuffle", "repeated", "list"],
)
def test_splitters(binary, cv):
    X, y = binary
    order = np.random.default_rng(1).permutation(100)
    X, y = X[order], y[order]
    check_by_cross_validation(select(KNeighborsClassifier(), X, y, cv=cv), X, y)


def test_rows_of_a_bootstrap_sample_count_as_often_as_they_occur(regression):
    X, y = regression
    rng = np.random.default_rng(2)
    cv = [(rng.integers(0, 70, size=70), np.arange(70, 100)) for _ in range(2)]
    selector = select(LinearRegression(), X, y, cv=cv, engine="refit")
    assert "a row more than once" in selector.set_params(engine="auto").plan(X, y).reason
    check_by_cross_validation(selector, X, y)


@pytest.mark.parametrize("kind", ["array", "list", "series"])
def test_text_labels(binary, kind):
    X, y = binary
    labels = np.array(["versicolor", "virginica"])[y]
    given = {"array": labels, "list": labels.tolist(), "series": pd.Series(labels, index=y)}[kind]
    selector = select(SVC(), X, given, scoring="f1_macro", cv=3)
    check_by_cross_validation(selector, X, labels)


# --------------------------------------------------------------------------------------------------
# Frames


@pytest.fixture
def mixed():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=90).astype(np.float32),
            "colour": rng.choice(["red", "green", "blue"], size=90),
            "count": rng.integers(0, 9, size=90),
            "shape": pd.Categorical(rng.choice(["round", "flat"], size=90)),
            "noise": rng.normal(size=90),
        },
        index=rng.permutation(90),
    )
    y = frame["size"] + (frame["colour"] == "red") + 0.3 * frame["count"] + rng.normal(size=90) / 2
    return frame, y


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_columns_are_chosen_by_dtype_inside_the_model(mixed, direction):
    X, y = mixed
    model = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(), make_column_selector(dtype_exclude="number")),
            (StandardScaler(), make_column_selector(dtype_include="number")),
        ),
        Ridge(),
    )
    selector = select(model, X, y, direction, n=3, cv=3)
    check_by_cross_validation(selector, X, y)
    if direction == "forward":
        assert set(selector.get_feature_names_out()) == {"size", "colour", "count"}


class Seen(RegressorMixin, BaseEstimator):
    """Remembers what it was given, for all of its clones."""

    log: list[tuple[type, list[object]]] = []  # noqa: RUF012

    def fit(self, X, y):
        dtypes = X.dtypes if hasattr(X, "dtypes") else [X.dtype]
        self.log.append((type(X), list(dtypes), type(y), len(X) == len(y)))
        self.mean_ = float(np.mean(np.asarray(y)))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


@pytest.fixture
def seen():
    Seen.log.clear()
    return Seen.log


def test_single_precision_stays_single(regression, seen):
    X, y = regression
    select(Seen(), X.astype(np.float32), y.astype(np.float32), cv=2)
    assert seen
    assert all(entry == (np.ndarray, [np.dtype("f4")], np.ndarray, True) for entry in seen)
    seen.clear()
    frame = pd.DataFrame(X.astype(np.float32)).add_prefix("c")
    select(Seen(), frame, pd.Series(y), "backward", cv=2)
    assert all(kind is pd.DataFrame and target is pd.Series for kind, _, target, _ in seen)
    assert {dtype for _, dtypes, *_ in seen for dtype in dtypes} == {np.dtype("f4")}


def test_integers_and_booleans_stay_so(seen):
    X = np.random.default_rng(0).integers(0, 2, size=(40, 3))
    for dtype in (np.int8, np.bool_):
        seen.clear()
        select(Seen(), X.astype(dtype), X.sum(axis=1), cv=2)
        assert all(dtypes == [np.dtype(dtype)] for _, dtypes, *_ in seen)


def test_polars_frames_reach_the_estimator(regression, seen):
    X, y = regression
    frame = pl.DataFrame(X, schema=list("abcdef")).with_columns(pl.col("c").cast(pl.Float32))
    select(Seen(), frame, pl.Series(y), "backward", cv=2)
    assert all(kind is pl.DataFrame for kind, *_ in seen)
    assert {dtype for _, dtypes, *_ in seen for dtype in dtypes} == {pl.Float32, pl.Float64}
    ours = select(KNeighborsRegressor(), frame, pl.Series(y), cv=3)
    same = select(KNeighborsRegressor(), frame.to_numpy(), y, cv=3)
    assert ours.selection_.names == tuple("abcdef")
    for one, other in zip(ours.selection_.rounds, same.selection_.rounds, strict=True):
        np.testing.assert_array_equal(one.fold_scores, other.fold_scores)
        assert one.subset == other.subset


@pytest.mark.parametrize("kind", ["array", "pandas", "polars"])
def test_blocks_are_joined_as_they_were(mixed, kind):
    X, y = mixed
    if kind == "array":
        X = X[["size", "noise"]].to_numpy(dtype=np.float32)
        y = y.to_numpy()
    elif kind == "polars":
        X, y = pl.from_pandas(X), pl.from_pandas(y)
    table = split_blocks(open_table(X, y), 4)
    assert len(table.blocks) == 4
    problem = Problem(
        table=table,
        folds=draw_folds(3, 90),
        estimator=LinearRegression(),
        scoring=Scoring("r2", get_scorer("r2")),
        features=tuple((column,) for column in range(X.shape[1])),
    )
    (data,) = RefitEngine().prepare(problem, LocalExecutor(), (), 1)
    if kind == "array":
        np.testing.assert_array_equal(data.features, X)
        assert data.features.dtype == np.float32
    elif kind == "pandas":
        pd.testing.assert_frame_equal(data.features, X.reset_index(drop=True))
        pd.testing.assert_series_equal(data.target, y.reset_index(drop=True))
    else:
        assert data.features.equals(X)
        assert data.features.schema == X.schema
        assert data.target.equals(y)


# --------------------------------------------------------------------------------------------------
# Parameters of fit


class Weighted(RegressorMixin, BaseEstimator):
    """Least squares that insists on a weight a row, and on a list of names for all."""

    def fit(self, X, y, sample_weight, names, rate=1.0):
        assert len(sample_weight) == len(X) == len(y)
        assert names == ["one", "two"]
        self.model_ = Ridge(alpha=rate).fit(X, y, sample_weight)
        return self

    def predict(self, X):
        return self.model_.predict(X)


@pytest.mark.parametrize("kind", ["array", "list", "pandas", "polars"])
def test_fit_parameters_with_an_entry_a_row_are_cut_by_fold(regression, kind):
    X, y = regression
    weights = np.random.default_rng(0).uniform(0.01, 5, size=100)
    given = {
        "array": weights,
        "list": weights.tolist(),
        "pandas": pd.Series(weights, index=np.arange(100)[::-1]),
        "polars": pl.Series(weights),
    }[kind]
    selector = SequentialFeatureSelector(Weighted(), n_features_to_select=2, cv=4)
    selector.fit(X, y, sample_weight=given, names=["one", "two"], rate=0.1)
    for done in selector.selection_.rounds:
        columns = X[:, list(done.subset)]
        expected = [
            Ridge(alpha=0.1)
            .fit(columns[train], y[train], weights[train])
            .score(columns[test], y[test])
            for train, test in KFold(4).split(X)
        ]
        np.testing.assert_allclose(done.fold_scores, expected, rtol=1e-12)


def test_fit_parameters_of_a_pipeline_step(regression):
    X, y = regression
    weights = np.random.default_rng(0).uniform(0.01, 5, size=100)
    model = make_pipeline(StandardScaler(), LinearRegression())
    selector = SequentialFeatureSelector(model, n_features_to_select=2, cv=3, engine="refit")
    selector.fit(X, y, linearregression__sample_weight=weights)
    done = selector.selection_.rounds[-1]
    expected = cross_val_score(
        model,
        X[:, list(done.subset)],
        y,
        cv=3,
        params={"linearregression__sample_weight": weights},
    )
    np.testing.assert_array_equal(done.fold_scores, expected)


# --------------------------------------------------------------------------------------------------
# Processes


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_more_processes_change_no_bit(binary, direction):
    X, y = binary
    frame = pd.DataFrame(X, columns=list("abcdef"))
    for estimator in (
        SVC(),
        RandomForestClassifier(3, random_state=7),
        # Clones of an estimator with a generator start from the same state.
        RandomForestClassifier(3, random_state=np.random.RandomState(3)),
    ):
        one, two = (
            select(clone(estimator), frame, y, direction, n=3, cv=3, n_jobs=n_jobs)
            for n_jobs in (None, 2)
        )
        moves = [[done.move for done in selector.selection_.rounds] for selector in (one, two)]
        for first, second in zip(*moves, strict=True):
            assert first.mask == second.mask
            assert first.fold_scores == second.fold_scores
            assert (first.mean, first.runner_up) == (second.mean, second.runner_up)
            assert first.tied_mask == second.tied_mask


# --------------------------------------------------------------------------------------------------
# Failures


class Fails(ClassifierMixin, BaseEstimator):
    """Neighbours that cannot be fitted, or scored, with a column that has a certain value."""

    def __init__(self, value=99.0, at="fit"):
        self.value = value
        self.at = at

    def fit(self, X, y):
        self.check("fit", X)
        self.model_ = KNeighborsClassifier().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict(self, X):
        self.check("predict", X)
        return self.model_.predict(X)

    def check(self, where, X):
        if where == self.at and (np.asarray(X) == self.value).any():
            message = "cannot be 99"
            raise FloatingPointError(message)


@pytest.mark.parametrize("at", ["fit", "predict"])
def test_a_candidate_that_fails_is_not_chosen(binary, at):
    X, y = binary
    X = np.column_stack([X, y])  # the answer itself, but for its first row
    X[0, 6] = 99.0
    frame = pd.DataFrame(X, columns=[*"abcdef", "answer"])
    selector = select(Fails(at=at), frame, y, cv=StratifiedKFold(4))
    check = select(KNeighborsClassifier(), X[:, :6], y, cv=StratifiedKFold(4))
    assert selector.get_support(indices=True).tolist() == check.get_support(indices=True).tolist()
    for one, other in zip(selector.selection_.rounds, check.selection_.rounds, strict=True):
        np.testing.assert_array_equal(one.fold_scores, other.fold_scores)
    # Row 0 is used for training in all folds but the first.
    fold = 1 if at == "fit" else 0
    note = selector.selection_.notes[0]
    assert "not chosen" in note
    assert f"with column 'answer', fold {fold}: FloatingPointError: cannot be 99" in note
    assert "in check" in note
    assert "test_refit.py" in note


def test_removing_a_column_can_be_what_fails(binary):
    X, y = binary

    class NeedsThird(KNeighborsClassifier):
        def fit(self, X, y):
            if "c" not in X.columns:
                message = "no column c"
                raise KeyError(message)
            return super().fit(X, y)

    frame = pd.DataFrame(X, columns=list("abcdef"))
    selector = select(NeedsThird(), frame, y, "backward", n=5, cv=3)
    assert selector.get_feature_names_out().tolist() == ["c"]
    assert "without column 'c', fold 0: KeyError: 'no column c'" in selector.selection_.notes[0]


def test_a_failing_group_is_named_by_its_columns(binary):
    X, y = binary
    X = np.column_stack([X, np.full(100, 99.0)])
    selector = SequentialFeatureSelector(
        Fails(),
        n_features_to_select=2,
        cv=2,
        feature_groups=[[0, 1], [2, 3], [4, 5, 6]],
    ).fit(X, y)
    assert selector.get_support(indices=True).tolist() == [0, 1, 2, 3]
    assert "with columns 4, 5, 6, fold 0: FloatingPointError" in selector.selection_.notes[0]


def test_scores_that_are_no_numbers_lose(regression):
    X, y = regression

    def scoring(estimator, X, y):
        return {1: -np.inf, 2: np.nan}.get(X.shape[1], 0.5)

    data = RefitEngine().prepare(
        Problem(
            table=open_table(X, y),
            folds=draw_folds(2, 100),
            estimator=LinearRegression(),
            scoring=Scoring("odd", scoring),
            features=((0, 1), (2,), (3, 4, 5)),
        ),
        LocalExecutor(),
        (),
        1,
    )[0]
    engine = RefitEngine()
    table = engine.score(engine.open(data), Request((), (0, 1, 2)))
    np.testing.assert_array_equal(table.scores, [[np.nan] * 2, [-np.inf] * 2, [0.5] * 2])
    assert table.failures == ("with columns 0, 1, fold 0: the score is NaN",)
    assert math.isclose(table.rounding, 0.5e-12)
