"""Weights, groups of columns and a scaler before the model: fast, and as refits have it."""

from __future__ import annotations

import numpy as np
import pytest
from problems import PROBLEMS, product_of
from sklearn.base import clone
from sklearn.datasets import load_linnerud
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_parity import features

from dagsel import DataError, SequentialFeatureSelector

RTOL = 1e-9
DIRECTIONS = ("backward", "forward")
X, y = PROBLEMS[0].load()
X = X * np.geomspace(1, 300, X.shape[1]) + 2
GROUPS = [[0, 1], [2], [3, 4, 5], [6, 7], [8], [9]]
FEW = X[:, :7]


def compare(estimator, X, y, *, fast=True, fit=None, **parameters):
    """Compare the fast engine's path with that of refits; returns it."""
    selector = SequentialFeatureSelector(
        estimator,
        **{"scoring": "neg_mean_squared_error", "cv": 3, "n_features_to_select": 2, **parameters},
    )
    selector.fit(X, y, **(fit or {}))
    assert (selector.selection_.engines == ("moments",)) == fast
    refits = clone(selector).set_params(engine="refit").fit(X, y, **(fit or {}))
    assert features(selector) == features(refits)
    for ours, theirs in zip(selector.selection_.rounds, refits.selection_.rounds, strict=True):
        np.testing.assert_allclose(ours.fold_scores, theirs.fold_scores, rtol=RTOL)
    return selector


MODELS = {
    "ols": LinearRegression(),
    "ols-no-intercept": LinearRegression(fit_intercept=False),
    "ridge": Ridge(2.0),
    "ridge-no-intercept": Ridge(2.0, fit_intercept=False),
}
SCALERS = {
    "both": StandardScaler(),
    "scale": StandardScaler(with_mean=False),
    "centre": StandardScaler(with_std=False),
}


@pytest.fixture
def weights():
    return np.random.default_rng(1).integers(0, 4, len(y)).astype(float)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_weights_in_fits(model, direction, weights):
    compare(MODELS[model], FEW, y, fit={"sample_weight": weights}, direction=direction)
    fractions = weights / 3 + 0.01
    compare(MODELS[model], FEW, y, fit={"sample_weight": fractions}, direction=direction)


behind_a_scaler = pytest.mark.parametrize(
    ("model", "scaler", "direction"),
    product_of(MODELS, SCALERS, DIRECTIONS, plain=lambda i, j, k: (i + j) % 2 == k),
)


@behind_a_scaler
def test_weights_behind_a_scaler(model, scaler, direction, weights):
    pipeline = make_pipeline(clone(SCALERS[scaler]), clone(MODELS[model]))
    name = f"{pipeline.steps[-1][0]}__sample_weight"
    compare(pipeline, FEW, y, fit={name: weights}, direction=direction)


def test_integer_weights_are_repeated_rows(weights):
    """A row of weight 3 in fits counts like three rows; the test rows are the same."""
    rng = np.random.default_rng(0)
    counts = weights.astype(int)
    test = rng.permutation(len(y))[:100]
    train = np.setdiff1d(np.arange(len(y)), test)
    repeated = np.concatenate([np.repeat(train, counts[train]), test])
    n_train = counts[train].sum()
    by_weight = compare(
        LinearRegression(),
        X,
        y,
        fit={"sample_weight": weights},
        cv=[(train, test)],
        direction="backward",
    )
    by_rows = compare(
        LinearRegression(),
        X[repeated],
        y[repeated],
        cv=[(np.arange(n_train), np.arange(n_train, len(repeated)))],
        direction="backward",
    )
    assert features(by_weight) == features(by_rows)
    for one, other in zip(by_weight.selection_.rounds, by_rows.selection_.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=RTOL)


def test_weights_that_leave_too_few_rows(weights):
    weights = np.where(np.arange(len(y)) % 50 == 0, weights + 1, 0)
    selector = SequentialFeatureSelector(LinearRegression(), direction="backward", cv=3)
    fitted_plan = selector.plan(X, y, sample_weight=weights)
    assert fitted_plan.engine != "moments"
    assert "training rows" in fitted_plan.reason


@pytest.mark.parametrize("bad", [np.nan, -1.0])
def test_weights_that_are_none(weights, bad):
    weights[7] = bad
    selector = SequentialFeatureSelector(LinearRegression(), direction="backward", cv=3)
    with pytest.raises(DataError, match="in row 7"):
        selector.plan(X, y, sample_weight=weights)


@behind_a_scaler
def test_a_scaler_before_the_model_is_folded_in(model, scaler, direction):
    pipeline = make_pipeline(clone(SCALERS[scaler]), clone(MODELS[model]))
    compare(pipeline, FEW, y, direction=direction)
    constant = FEW.copy()
    constant[:, 4] = 1.5
    compare(clone(pipeline), constant, y, direction=direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_groups_move_as_one(model, direction):
    selector = compare(MODELS[model], X, y, feature_groups=GROUPS, direction=direction)
    assert selector.n_features_to_select_ == 2
    moved = [done.feature for done in selector.selection_.rounds if done.feature is not None]
    assert len(set(moved)) == len(moved)
    floating = {"feature_groups": GROUPS, "direction": direction, "floating": True}
    compare(MODELS[model], X, y, **floating)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_groups_with_weights_scaler_and_several_targets(direction, weights):
    pipeline = make_pipeline(StandardScaler(), Ridge(0.5))
    Y = np.column_stack([y, np.roll(y, 5), y[::-1]])
    parameters = {"feature_groups": GROUPS, "direction": direction}
    compare(pipeline, X, Y, fit={"ridge__sample_weight": weights}, **parameters)


def test_a_group_with_dependent_columns():
    levels = np.eye(3)[np.arange(len(y)) % 3]
    table = np.column_stack([X[:, :4], levels])
    for direction in DIRECTIONS:
        compare(
            LinearRegression(),
            table,
            y,
            feature_groups=[[0], [1, 2], [3], [4, 5, 6]],
            direction=direction,
        )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_two_and_three_targets_with_dependent_columns(direction):
    table, Y = load_linnerud(return_X_y=True)
    table = np.column_stack([np.tile(table, (4, 1)) + np.arange(80)[:, None] % 7, np.ones(80)])
    table = np.column_stack([table, table[:, 0] + table[:, 1]])
    for n_targets in (2, 3):
        compare(
            LinearRegression(),
            table,
            np.tile(Y, (4, 1))[:, :n_targets] + np.arange(80)[:, None] ** 0.5,
            direction=direction,
        )
