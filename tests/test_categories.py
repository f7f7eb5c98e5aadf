"""Columns of text and categories: coded as zeros and ones, and moved as one."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.linear_model import Lasso, LinearRegression, Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dagsel
from dagsel import RFE, DataError, SequentialFeatureSelector
from dagsel.data.one_hot import one_hot_coded

N = 150
CV = KFold(4, shuffle=True, random_state=1)


def make_frame():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({name: rng.normal(size=N) for name in "ab"})
    frame["colour"] = rng.choice(["red", "green", "blue"], N)
    frame["n"] = rng.integers(0, 5, N)
    sizes = ["small", "middle", "large", "giant"]  # there is no giant
    frame["size"] = pd.Categorical(rng.choice(sizes[:3], N), categories=sizes, ordered=True)
    frame["flag"] = rng.random(N) < 0.4
    frame["town"] = pd.Series(rng.choice([*"uvwx"], N), dtype=object)
    effect = {"red": 2.0, "green": -1.0, "blue": 0.0}
    y = frame["a"] - 0.5 * frame["n"] + frame["colour"].map(effect) + (frame["size"] == "large")
    return frame, (y + rng.normal(size=N)).rename("y")


FRAME, Y = make_frame()
CODED = ["colour", "size", "town"]
# By hand: levels in order.
LEVELS = {
    "colour": ["blue", "green", "red"],
    "size": ["small", "middle", "large"],
    "town": ["u", "v", "w", "x"],
}


def by_hand(frame=FRAME):
    parts, groups, names = [], [], []
    for name in frame:
        values = (
            [frame[name] == level for level in LEVELS[name]] if name in LEVELS else [frame[name]]
        )
        groups.append(list(range(len(parts), len(parts) + len(values))))
        parts += [np.asarray(value, dtype=float) for value in values]
        names += [f"{name}={level}" for level in LEVELS[name]] if name in LEVELS else [name]
    return pd.DataFrame(dict(zip(names, parts, strict=True))), groups


def selector_of(estimator, **options):
    options = {"n_features_to_select": 2, "direction": "backward", "cv": CV, **options}
    return SequentialFeatureSelector(estimator, **options)


def check_same(ours, theirs, *, fast):
    """Compare with what is coded by hand, with a group for each column."""
    moved = [[done.move.feature for done in each.selection_.rounds] for each in (ours, theirs)]
    assert moved[0] == moved[1]
    for one, other in zip(ours.selection_.rounds, theirs.selection_.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=1e-9)
    assert ("refit" not in ours.selection_.engines) == fast


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize(
    "estimator",
    [
        LinearRegression(),
        Ridge(1.5),
        LinearRegression(fit_intercept=False),
        make_pipeline(StandardScaler(), Ridge()),
        Lasso(0.01),
    ],
    ids=["ols", "ridge", "no-intercept", "scaled", "lasso"],
)
def test_as_coded_by_hand(estimator, direction):
    table, groups = by_hand()
    options = {"direction": direction, "n_features_to_select": 3, "scoring": "r2"}
    ours = selector_of(estimator, categories="one-hot", **options).fit(FRAME, Y)
    theirs = selector_of(estimator, feature_groups=groups, engine="refit", **options)
    theirs.fit(table.to_numpy(), Y.to_numpy())
    check_same(ours, theirs, fast=not isinstance(estimator, Lasso))


def test_results_speak_of_the_users_columns():
    selector = selector_of(LinearRegression(), categories="one-hot").fit(FRAME, Y)
    assert selector.n_features_in_ == 7
    assert list(selector.feature_names_in_) == list(FRAME)
    assert selector.n_features_to_select_ == selector.support_.sum() == 2
    chosen = [name for name, kept in zip(FRAME, selector.support_, strict=True) if kept]
    assert "colour" in chosen
    assert list(selector.get_feature_names_out()) == chosen
    np.testing.assert_array_equal(selector.transform(FRAME), FRAME[chosen].to_numpy(dtype=object))
    selector.set_output(transform="pandas")
    pd.testing.assert_frame_equal(selector.transform(FRAME), FRAME[chosen])
    selection = selector.selection_
    assert selection.names == tuple(FRAME)
    assert selection.groups is None
    assert selection.n_features == selection.n_features_in == 7
    moved = {done.feature for done in selection.rounds[1:]}
    assert moved == set(FRAME) - set(chosen)
    assert selector.set_size(4).support_.sum() == 4


@pytest.mark.parametrize("engine", ["auto", "refit"])
def test_polars(engine):
    frame = pl.from_pandas(FRAME).with_columns(
        pl.col("size").cast(pl.String).cast(pl.Enum(["small", "middle", "large", "giant"])),
        pl.col("town").cast(pl.Categorical),
    )
    options = {"categories": "one-hot", "engine": engine}
    ours = selector_of(Ridge(), **options).fit(frame, pl.Series(Y.to_numpy()))
    theirs = selector_of(Ridge(), **options).fit(FRAME, Y)
    check_same(ours, theirs, fast=engine == "auto")
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    coded, _, coding = one_hot_coded(frame, Y)
    expected, groups = by_hand()
    assert isinstance(coded, pl.DataFrame)
    assert coded.columns == list(expected)
    np.testing.assert_array_equal(coded.to_numpy(), expected.to_numpy())
    assert [list(columns) for columns in coding.columns] == groups
    assert list(ours.transform(frame)[0]) == list(ours.transform(FRAME)[0])


def test_the_coded_table():
    frame = FRAME.set_index(np.arange(N)[::-1])
    coded, _, coding = one_hot_coded(frame, Y)
    expected, groups = by_hand()
    pd.testing.assert_frame_equal(coded.reset_index(drop=True), expected)
    assert list(coded.index) == list(frame.index)
    assert [list(columns) for columns in coding.columns] == groups
    assert coding.names == tuple(FRAME)
    features = ((2, 4), (0,), (6,))
    assert coding.own(coding.coded(features)) == features


def test_names_that_are_no_text():
    frame = FRAME.set_axis(range(7), axis=1)
    for engine in ("auto", "refit"):
        ours = selector_of(LinearRegression(), categories="one-hot", engine=engine).fit(frame, Y)
        theirs = selector_of(LinearRegression(), categories="one-hot").fit(FRAME, Y)
        check_same(ours, theirs, fast=engine == "auto")


def test_fixed_columns_and_groups_are_the_users():
    table, groups = by_hand()
    ours = selector_of(
        LinearRegression(),
        categories="one-hot",
        fixed_features=["town"],
        feature_groups=[["a", "size"], ["b"], ["colour"], [3, "flag"], ["town"]],
    ).fit(FRAME, Y)
    theirs = selector_of(
        LinearRegression(),
        engine="refit",
        fixed_features=groups[6],
        feature_groups=[
            groups[0] + groups[4],
            groups[1],
            groups[2],
            groups[3] + groups[5],
            groups[6],
        ],
    ).fit(table, Y)
    check_same(ours, theirs, fast=True)
    assert ours.support_[6]
    assert ours.selection_.groups == ((0, 4), (1,), (2,), (3, 5), (6,))
    with pytest.raises(ValueError, match="columns 0 to 6 or names such as 'a'"):
        ours.set_params(fixed_features=["colour=red"]).fit(FRAME, Y)


def test_labels_of_target_and_weights():
    weights = np.random.default_rng(0).uniform(0.1, 2, N)
    frame = FRAME.assign(y=Y, w=weights)
    options = {"categories": "one-hot", "weighted_scores": True}
    ours = selector_of(LinearRegression(), **options).fit(frame, "y", sample_weight="w")
    theirs = selector_of(LinearRegression(), **options).fit(FRAME, Y, sample_weight=weights)
    check_same(ours, theirs, fast=True)
    assert list(ours.feature_names_in_) == list(FRAME)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_are_read_as_a_whole(tmp_path, suffix):
    for number, part in enumerate((FRAME.assign(y=Y)[:70], FRAME.assign(y=Y)[70:])):
        part = part.astype({"size": str})
        write = part.to_csv if suffix == "csv" else part.to_parquet
        write(tmp_path / f"{number}.{suffix}", index=False)
    data = dagsel.scan(tmp_path / f"*.{suffix}", target="y", block_bytes=2000)
    ours = selector_of(LinearRegression(), categories="one-hot").fit(data)
    theirs = selector_of(LinearRegression(), categories="one-hot").fit(FRAME, Y)
    check_same(ours, theirs, fast=True)
    with pytest.raises(DataError, match=r"'colour'.*categories='one-hot'"):
        selector_of(LinearRegression()).fit(data)


def test_nothing_to_code():
    numbers = FRAME[["a", "b", "n", "flag"]]
    for table in (numbers, numbers.to_numpy(dtype=float)):
        ours = selector_of(LinearRegression(), categories="one-hot").fit(table, Y)
        theirs = selector_of(LinearRegression()).fit(table, Y)
        check_same(ours, theirs, fast=True)
        assert ours.selection_.engines == ("moments",)


def test_within_an_audit_and_a_clone():
    selector = selector_of(Ridge(), categories="one-hot", audit=3)
    selector = clone(selector).fit(FRAME, Y)
    assert selector.selection_.audit.difference < 1e-9


def changed(**columns):
    return FRAME.assign(**columns)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (
            changed(colour=FRAME["colour"].where(FRAME.index != 3)),
            "'colour' has a missing value in row 3",
        ),
        (
            changed(size=FRAME["size"].where(np.arange(N) != 149)),
            r"'size' has a missing value in row 149 \(counting from 0\)\. Drop",
        ),
        (changed(town=[f"id{row}" for row in range(N)]), "'town' has 150 levels in 150 rows"),
        (changed(a=FRAME["a"].where(FRAME.index != 5)), "'a' has a missing value .* in row 5"),
        (
            changed(a=pd.Timestamp("2026-01-01")),
            r"not numeric: 'a' \([^)]*\)\. Drop them, or encode them as numbers\.$",
        ),
        (changed(a=["?", *range(1, N)]), r"'a' holds '\?', which is no number"),
        (dd.from_pandas(FRAME, npartitions=2), r"Give X\.compute\(\)"),
    ],
)
def test_what_cannot_be_coded(frame, says):
    with pytest.raises(DataError, match=says):
        selector_of(LinearRegression(), categories="one-hot").fit(frame, Y)


def test_missing_in_polars():
    frame = pl.from_pandas(FRAME)
    colours = frame["colour"].to_list()
    frame = frame.with_columns(pl.Series("colour", [*colours[:9], None, *colours[10:]]))
    with pytest.raises(DataError, match="'colour' has a missing value in row 9"):
        selector_of(LinearRegression(), categories="one-hot").fit(frame, Y.to_numpy())


def test_columns_are_an_error_unless_asked_for():
    message = "'colour' .*; a sequential selection encodes .* by categories='one-hot'"
    for door in (selector_of(LinearRegression()), RFE(LinearRegression())):
        with pytest.raises(DataError, match=message):
            door.fit(FRAME, Y)
    for wrong in ("onehot", None, True):
        with pytest.raises(ValueError, match="categories must be 'error' or 'one-hot'"):
            selector_of(LinearRegression(), categories=wrong).fit(FRAME, Y)
