"""What all front doors share: transform, columns named by label, the place of warnings."""

from __future__ import annotations

import time
import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dagsel import RFE, RFECV, DagselWarning, DataError, SequentialFeatureSelector, scan
from dagsel.executors.cluster import ClusterExecutor
from dagsel.mlxtend import SequentialFeatureSelector as LikeMlxtend

LS = LinearRegression()
DOORS = {
    "scikit-learn": SequentialFeatureSelector(LS, n_features_to_select=3, direction="backward"),
    "mlxtend": LikeMlxtend(LS, k_features=3, forward=False),
    "RFE": RFE(LS, n_features_to_select=3),
    "RFECV": RFECV(LS, min_features_to_select=3),
}
WITH_FOLDS = [name for name in DOORS if name != "RFE"]


@pytest.fixture(params=DOORS)
def door(request):
    return clone(DOORS[request.param])


def table(n_rows=60):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n_rows, 6)), columns=[*"fedcba"])
    return X, (X["f"] - 2 * X["a"] + X["c"] + rng.normal(size=n_rows)).rename("y")


# --------------------------------------------------------------------------------------------------
# transform


def test_columns_of_a_dask_frame_are_found_by_name(door):
    X, y = table()
    door.fit(X, y)
    expected = np.asarray(door.transform(X))
    others = X.assign(extra="text", y=y)[["extra", *sorted(X), "y"]]
    found = door.transform(dd.from_pandas(others, npartitions=3))
    assert isinstance(found, dd.DataFrame)
    assert list(found.columns) == ["f", "c", "a"]
    assert np.array_equal(found.compute().to_numpy(), expected)


def test_columns_of_a_dask_array_are_found_by_position(door):
    X, y = table()
    door.fit(X, y)
    found = door.transform(da.from_array(X.to_numpy(), chunks=(25, 6)))
    assert isinstance(found, da.Array)
    assert np.array_equal(found.compute(), door.transform(X))
    unnamed = clone(door).fit(X.to_numpy(), y)
    named = unnamed.transform(dd.from_pandas(X, npartitions=2))
    assert isinstance(named, dd.DataFrame)
    assert np.array_equal(named.compute().to_numpy(), door.transform(X))


def test_transform_computes_nothing(door):
    X, y = table()
    door.fit(X, y)

    def fail(part):
        if len(part):
            raise AssertionError
        return part

    lazy = dd.from_pandas(X, npartitions=2).map_partitions(fail, meta=X[:0])
    with config_context(transform_output="pandas"):
        assert list(door.transform(lazy).columns) == ["f", "c", "a"]
    rows = da.map_blocks(fail, da.from_array(X.to_numpy(), chunks=(30, 6)), meta=np.empty((0, 0)))
    assert door.transform(rows).shape == (60, 3)


def test_dask_collections_without_the_columns(door):
    X, y = table()
    door.fit(X, y)
    lazy = dd.from_pandas(X.rename(columns={"a": "alpha"}), npartitions=2)
    with pytest.raises(DataError, match=r"No column 'a' \(selected\) in X"):
        door.transform(lazy)
    with pytest.raises(DataError, match="X has 5 columns, but 6 were seen in fit"):
        door.transform(da.zeros((10, 5)))
    with pytest.raises(DataError, match=r"X has 1 dimension\(s\)"):
        door.transform(lazy["b"])


def test_labels_that_are_no_text(door):
    X, y = table()
    X.columns = [5, 4, 3, 2, 1, 0]
    door.fit(X, y)
    found = door.transform(dd.from_pandas(X[[*range(6)]], npartitions=2))
    assert list(found.columns) == [5, 2, 0]


def test_files_are_not_transformed(door, tmp_path):
    X, y = table()
    path = tmp_path / "t.csv"
    X.assign(y=y).to_csv(path, index=False)
    for files in (str(path), path, [str(path)], scan(path, target="y")):
        with pytest.raises(DataError, match=r"transform takes arrays.*usecols="):
            clone(door).fit_transform(files, "y")
        with pytest.raises(DataError, match=r"transform takes arrays.*usecols="):
            clone(door).fit(path, "y").transform(files)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, dd.from_pandas])
def test_fit_transform_of_a_frame_with_its_target(door, library):
    X, y = table()
    whole = X.assign(y=y)
    given = library(whole, npartitions=2) if library is dd.from_pandas else library(whole)
    found = door.fit_transform(given, "y")
    values = found.compute() if isinstance(found, dd.DataFrame) else found
    assert np.array_equal(np.asarray(values), X[["f", "c", "a"]].to_numpy())


@pytest.mark.parametrize("name", ["RFE", "RFECV"])
def test_predictions_for_dask_collections(name):
    X, y = table()
    selector = clone(DOORS[name]).fit(X, y)
    lazy = dd.from_pandas(X.assign(y=y)[[*sorted(X), "y"]], npartitions=2)
    assert np.array_equal(selector.predict(lazy), selector.predict(X))
    assert selector.score(lazy, lazy["y"]) == selector.score(X, y)
    unnamed = clone(selector).fit(X.to_numpy(), y)
    rows = da.from_array(X.to_numpy(), chunks=(25, 6))
    np.testing.assert_allclose(unnamed.predict(rows), selector.predict(X), rtol=1e-9)


# --------------------------------------------------------------------------------------------------
# Groups by label


def with_groups(n_rows=60):
    X, y = table(n_rows)
    team = np.random.default_rng(1).integers(0, 6, n_rows)
    return X, y, team, X.assign(y=y, team=[f"team {each}" for each in team])[["team", *X, "y"]]


def scores(selector):
    if isinstance(selector, RFECV):
        return selector.cv_results_["mean_test_score"]
    return [done.mean for done in selector.selection_.rounds]


@pytest.mark.parametrize("name", WITH_FOLDS)
@pytest.mark.parametrize("source", ["pandas", "polars", "dask", "csv", "parquet", "scan"])
def test_groups_may_be_a_label(name, source, tmp_path):
    X, y, team, whole = with_groups()
    selector = clone(DOORS[name]).set_params(cv=GroupKFold(3))
    expected = clone(selector).fit(X, y, groups=team)
    target = "y"
    if source == "polars":
        data = pl.DataFrame(whole)
    elif source == "dask":
        data = dd.from_pandas(whole, npartitions=3)
    elif source == "pandas":
        data = whole
    elif source == "parquet":
        data = tmp_path / "t.parquet"
        whole.to_parquet(data)
    else:
        data = tmp_path / "t.csv"
        whole.to_csv(data, index=False)
        if source == "scan":
            data, target = scan(data, target="y"), None
    selector.fit(data, target, groups="team")
    np.testing.assert_allclose(scores(selector), scores(expected), rtol=1e-12)
    labels = selector.feature_names if name == "mlxtend" else selector.feature_names_in_
    assert list(labels) == list(X)


def test_groups_and_weights_may_be_the_same_column():
    X, y, team, whole = with_groups()
    selector = clone(DOORS["scikit-learn"]).set_params(cv=GroupKFold(3))
    whole["team"] = team + 1.0
    selector.fit(whole, "y", groups="team", sample_weight="team")
    expected = clone(selector).fit(X, y, groups=team, sample_weight=team + 1)
    assert scores(selector) == scores(expected)


def test_dask_series_of_groups():
    X, y, team, whole = with_groups()
    selector = clone(DOORS["scikit-learn"]).set_params(cv=GroupKFold(3))
    lazy = dd.from_pandas(whole, npartitions=3)
    selector.fit(lazy[list(X)], lazy["y"], groups=lazy["team"])
    assert scores(selector) == pytest.approx(
        scores(clone(selector).fit(X, y, groups=team)), rel=1e-12
    )


@pytest.mark.parametrize("name", WITH_FOLDS)
def test_labels_of_groups_that_are_not_there(name, tmp_path):
    X, y, _, whole = with_groups()
    selector = clone(DOORS[name]).set_params(cv=GroupKFold(3))
    with pytest.raises(DataError, match=r"No column 'teem' \(the groups\).*Did you mean 'team'"):
        selector.fit(whole, "y", groups="teem")
    with pytest.raises(DataError, match="groups is the label 'team', but X is a ndarray"):
        selector.fit(X.to_numpy(), y, groups="team")
    whole.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="'y' is the target and the groups at once"):
        selector.fit(tmp_path / "t.csv", "y", groups="y")


# --------------------------------------------------------------------------------------------------
# Warnings


def cutoff():
    """Data near the cutoff of `LinearRegression`: their search ends in refits."""
    X, y = table()
    return X.assign(b=1e-6 * X["b"]).to_numpy(), y.to_numpy()


def place(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (filename,) = {each.filename for each in caught if issubclass(each.category, DagselWarning)}
    return filename


@pytest.mark.parametrize(
    "call",
    [
        lambda: clone(DOORS["scikit-learn"]).fit(*cutoff()),
        lambda: clone(DOORS["mlxtend"]).fit(*cutoff()),
        lambda: clone(DOORS["RFE"]).fit(*cutoff()),
        lambda: make_pipeline(StandardScaler(with_std=False), clone(DOORS["scikit-learn"])).fit(
            *cutoff()
        ),
        lambda: clone(DOORS["scikit-learn"]).fit_transform(*cutoff()),
        lambda: SequentialFeatureSelector(LS, max_seconds=1e-9).fit(*table()),
        lambda: LikeMlxtend(LS, k_features=6, tol=1e9).fit(*table()),
    ],
    ids=["refits", "mlxtend", "RFE", "pipeline", "fit_transform", "time", "mlxtend-tol"],
)
def test_warnings_point_at_the_users_line(call):
    assert place(call) == __file__


def test_a_warning_of_a_scan_points_at_the_users_line(tmp_path):
    X, y = table()
    X.assign(y=y).to_csv(tmp_path / "t.csv")
    assert place(lambda: scan(tmp_path / "t.csv", target="y")) == __file__
    assert place(lambda: clone(DOORS["scikit-learn"]).fit(tmp_path / "t.csv", "y")) == __file__


# --------------------------------------------------------------------------------------------------
# A fit that was interrupted


class Interrupting(RegressorMixin, BaseEstimator):
    """Is interrupted in some fit, as by Ctrl-C."""

    n_fits = 0

    def __init__(self, at=30):
        self.at = at

    def fit(self, X, y):
        Interrupting.n_fits += 1
        if Interrupting.n_fits > self.at:
            raise KeyboardInterrupt
        self.model_ = Ridge().fit(X, y)
        return self

    def predict(self, X):
        return self.model_.predict(X)


def test_what_an_interrupted_fit_leaves():
    Interrupting.n_fits = 0
    selector = clone(DOORS["scikit-learn"]).set_params(estimator=Interrupting(60))
    with pytest.raises(KeyboardInterrupt):
        selector.fit(*table())
    for use in (selector.get_feature_names_out, selector.get_support):
        with pytest.raises(NotFittedError, match=r"fit was ended .*the 3 rounds .*set_size\("):
            use()
    assert selector.set_size("best").get_support().any()
    selector.set_params(estimator=Interrupting(0))
    with pytest.raises(KeyboardInterrupt):
        selector.fit(*table())
    with pytest.raises(NotFittedError, match="before a round was decided"):
        selector.transform(table()[0])


# --------------------------------------------------------------------------------------------------
# A metric that does not suit


class Rounding(LinearRegression):
    def predict(self, X):
        return np.round(super().predict(X))


@pytest.mark.parametrize("metric", ["accuracy", "f1", "roc_auc"])
@pytest.mark.parametrize("name", WITH_FOLDS)
@pytest.mark.parametrize("model", [LS, RandomForestRegressor(2)], ids=["linear", "forest"])
def test_metrics_of_classes_for_a_continuous_target(metric, name, model):
    X, y = table()
    selector = clone(DOORS[name]).set_params(scoring=metric, estimator=model)
    kind = type(model).__name__
    with pytest.raises(ValueError, match=rf"scoring='{metric}' cannot score what {kind}.*'r2'"):
        selector.fit(X, y)


def test_a_regressor_that_predicts_classes_has_an_accuracy():
    X, y = table()
    selector = clone(DOORS["scikit-learn"]).set_params(scoring="accuracy", estimator=Rounding())
    assert 0 < selector.fit(X, np.round(y)).selection_.rounds[0].mean < 1
    with pytest.raises(ValueError, match="cannot score what LinearRegression predicts"):
        selector.set_params(estimator=LS).fit(X, np.round(y))


def test_tasks_that_nobody_waits_for_any_more_are_dropped(local_client, monkeypatch):
    def interrupted(futures):
        raise KeyboardInterrupt

    executor = ClusterExecutor(local_client)
    monkeypatch.setattr(executor, "_wait", interrupted)
    for wait in (executor.gather, executor.settle):
        futures = [executor.submit(time.sleep, 0.5, label="dagsel_refit") for _ in range(8)]
        with pytest.raises(KeyboardInterrupt):
            wait(futures)
        assert all(each.status == "cancelled" for each in futures[4:])
