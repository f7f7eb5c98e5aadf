"""The rows engine: every candidate of every round against plain scikit-learn refits."""

from __future__ import annotations

import tracemalloc
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from problems import product_of
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import (
    fbeta_score,
    get_scorer,
    hinge_loss,
    make_scorer,
    mean_pinball_loss,
)
from sklearn.model_selection import KFold, LeaveOneOut, ShuffleSplit, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from dagsel import SequentialFeatureSelector
from dagsel.data.arrays import memory_table
from dagsel.data.folds import draw_folds
from dagsel.engines.base import Problem, Scoring
from dagsel.engines.rows import fold as rows_fold
from dagsel.engines.rows import score as rows_score
from dagsel.engines.rows.engine import RowsEngine
from dagsel.engines.rows.metrics import snapped
from dagsel.exceptions import NotCertifiedError
from dagsel.executors.local import LocalExecutor
from dagsel.scheduler import across_folds
from dagsel.search import Search
from dagsel.tasks import StateKey, forget, play_rounds

RTOL = 1e-9
OLS = LinearRegression()
DIRECTIONS = {
    "backward": ("backward", False),
    "forward": ("forward", False),
    "floating backward": ("backward", True),
    "floating forward": ("forward", True),
}


@dataclass
class Case:
    """A problem, and the search that is to solve it."""

    X: np.ndarray
    y: np.ndarray
    estimator: Any = field(default_factory=LinearRegression)
    scoring: Any = "neg_mean_squared_error"
    cv: Any = 3
    direction: str = "backward"
    target: int | None = None
    features: Any = None
    fit_params: dict = field(default_factory=dict)
    score_params: dict = field(default_factory=dict)

    def problem(self):
        named = isinstance(self.scoring, str)
        scorer = get_scorer(self.scoring) if named else self.scoring
        classifier = isinstance(self.estimator, RidgeClassifier)
        return Problem(
            table=memory_table(self.X, self.y),
            folds=draw_folds(self.cv, len(self.y), self.y, classifier=classifier),
            estimator=self.estimator,
            scoring=Scoring(self.scoring if named else "custom", scorer),
            features=self.features or tuple((j,) for j in range(self.X.shape[1])),
            fit_params=self.fit_params,
            score_params=self.score_params,
        )

    def search(self, problem):
        direction, floating = DIRECTIONS[self.direction]
        p = len(problem.features)
        target = self.target or (1 if direction == "backward" else min(p, 6))
        return Search(
            n_features=p,
            target_size=target,
            direction=direction,
            floating=floating,
            tie_rule="highest",
        )

    def refit(self, problem, subset):
        columns, scores = list(problem.columns_of(subset)), []
        for train, test in problem.folds:
            fit = {name: value[train] for name, value in self.fit_params.items()}
            score = {name: value[test] for name, value in self.score_params.items()}
            model = clone(self.estimator).fit(self.X[train][:, columns], self.y[train], **fit)
            scores.append(
                problem.scoring.scorer(model, self.X[test][:, columns], self.y[test], **score)
            )
        return np.array(scores)


def played(case, *, most=8, rounds=70, n_shards=1):
    """Play a search by hand, comparing up to `most` candidates of every round with refits."""
    problem = case.problem()
    assert RowsEngine.declines(problem) is None
    assert RowsEngine.refuses(problem) is None
    search = case.search(problem)
    engine = RowsEngine.for_problem(problem, search)
    executor = LocalExecutor()
    states = [
        engine.open(shard) for shard in engine.prepare(problem, executor, search.subset, n_shards)
    ]
    rng = np.random.default_rng(0)
    moves = []
    while not search.finished and len(moves) < rounds:
        request = search.request()
        if request is None:
            break
        states = [engine.moved(state, request.subset) for state in states]
        scores, rounding, _ = across_folds([engine.score(state, request) for state in states])
        variants = list(request.variants())
        check = set(rng.choice(len(variants), min(most, len(variants)), replace=False).tolist())
        for row in check | {int(np.argmax(scores.mean(axis=1)))}:
            if variants[row]:
                compare(case, problem, variants[row], scores[row])
        move = search.answer(scores, rounding)
        if move is not None:
            moves.append(move)
    return moves


def compare(case, problem, subset, scores):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metrics that are not defined for a fold
        expected = case.refit(problem, subset)
    scale = np.abs(expected)
    if case.scoring in ("r2", "explained_variance"):
        scale = np.maximum(scale, 1.0)
    if problem.folds.test_sizes.max() == 1:
        scale = np.maximum(scale, scale.mean())  # a single row's error can vanish by luck
    assert np.all(np.abs(scores - expected) <= RTOL * scale), (subset, scores, expected)


def diabetes():
    return load_diabetes(return_X_y=True)


def digits():
    X, y = load_digits(return_X_y=True)
    return X[:300], y[:300].astype(float)


def second_order():
    X, y = diabetes()
    return PolynomialFeatures(2).fit_transform(X), y


def one_hot():
    rng = np.random.default_rng(0)
    sets = [np.eye(5)[rng.integers(5, size=150)], np.eye(3)[rng.integers(3, size=150)]]
    X = np.hstack([*sets, rng.normal(size=(150, 3))])
    return X, X @ rng.normal(size=11) + rng.normal(size=150)


def duplicates():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(100, 5))
    X = np.hstack([X, X[:, :3], 2 * X[:, :2], X[:, :1] + X[:, 1:2], np.full((100, 1), 3.3)])
    return X, X[:, :5] @ rng.normal(size=5) + rng.normal(size=100)


def wide(n):
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 60))
    return X, X[:, :5].sum(axis=1) + rng.normal(size=n)


def powers():
    rng = np.random.default_rng(2)
    x = rng.permutation(np.linspace(-1, 1, 120))
    return np.vander(x, 8)[:, :-1], np.sin(3 * x) + 0.1 * rng.normal(size=120)


DATA = {
    "diabetes": diabetes,
    "digits": digits,
    "second order": second_order,
    "one-hot": one_hot,
    "duplicates": duplicates,
    "wide 40": lambda: wide(40),
    "wide 60": lambda: wide(60),
    "wide 80": lambda: wide(80),
    "powers": powers,
}


@pytest.mark.parametrize(
    ("data", "direction"), product_of(DATA, DIRECTIONS, plain=lambda i, j: i % 2 == j % 2)
)
def test_every_rank_and_direction(data, direction):
    rounds = 70 if direction == "backward" else 25
    played(Case(*DATA[data](), direction=direction), most=1, rounds=rounds)


def test_all_of_digits():
    X, y = load_digits(return_X_y=True)
    assert len(played(Case(X, y.astype(float), cv=5, target=40), most=1)) > 20


def test_duplicates_tie_and_small_differences_do_not():
    X, y = diabetes()
    moves = played(Case(np.hstack([X, X[:, :2]]), y))
    for one, other in ((0, 10), (1, 11)):
        (first,) = [move for move in moves if move.feature in (one, other)][:1]
        assert first.feature == other
        assert one in first.tied
    noise = np.random.default_rng(0).normal(size=(len(X), 2))
    moves = played(Case(np.hstack([X, X[:, :2] + 1e-3 * noise]), y))
    assert not any(move.tied for move in moves)


@pytest.mark.parametrize("alpha", [0.05, 50.0])
@pytest.mark.parametrize("direction", ["backward", "forward", "floating backward"])
@pytest.mark.parametrize(
    "data",
    ["diabetes", "duplicates", "wide 40", pytest.param("wide 80", marks=pytest.mark.slow)],
)
def test_ridge(data, direction, alpha):
    played(Case(*DATA[data](), Ridge(alpha), direction=direction), most=1, rounds=40)


@pytest.mark.parametrize("alpha", [0.3, 30.0])
@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "neg_mean_absolute_error"])
def test_ridge_in_dual_form(monkeypatch, alpha, scoring):
    monkeypatch.setattr(rows_fold, "_DUAL_LEAST", 10)
    X, y = wide(36)
    case = Case(X, y, Ridge(alpha), scoring)
    problem = case.problem()
    engine = RowsEngine.for_problem(problem, case.search(problem))
    (starts,) = engine.prepare(problem, LocalExecutor(), tuple(range(60)), 1)
    assert starts[0].rows.factors.mode == "dual"
    played(case, most=2)


def test_a_dual_ridge_in_forward_direction(monkeypatch):
    monkeypatch.setattr(rows_fold, "_PRIMAL_MOST", 10)
    for direction in ("forward", "floating forward"):
        played(Case(*wide(36), Ridge(2.0), direction=direction), most=2)


REGRESSION = [
    "r2",
    "neg_root_mean_squared_error",
    "neg_mean_absolute_error",
    "neg_median_absolute_error",
    "neg_max_error",
    "explained_variance",
    "d2_absolute_error_score",
    make_scorer(mean_pinball_loss, alpha=0.8, greater_is_better=False),
    make_scorer(lambda y, predicted: -float(np.mean(np.abs(y - predicted) ** 1.5))),
]


@pytest.mark.parametrize("direction", ["backward", "forward", "floating forward"])
@pytest.mark.parametrize("scoring", REGRESSION, ids=str)
def test_metrics_of_regression(scoring, direction):
    X, y = diabetes()
    case = Case(X[:150], y[:150], Ridge(0.01), scoring, direction=direction)
    case.target = 7 if direction == "backward" else 3
    played(case, most=3)


@pytest.mark.parametrize("scoring", [*REGRESSION[:3], "explained_variance"], ids=str)
def test_several_targets(scoring):
    X, y = diabetes()
    Y = np.column_stack([y, y[::-1] ** 2, np.random.default_rng(0).normal(size=len(y))])
    played(Case(X, Y, scoring=scoring, target=6), most=2)


CLASSIFICATION = ["accuracy", "balanced_accuracy", "f1_macro", "matthews_corrcoef"]
RANKING = ["roc_auc", "average_precision"]


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize("scoring", [*CLASSIFICATION, *RANKING, "f1"])
def test_two_classes(scoring, direction):
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)[:200, :10]
    target = 7 if direction == "backward" else 2
    played(
        Case(X, y[:200], RidgeClassifier(0.5), scoring, direction=direction, target=target), most=3
    )


@pytest.mark.parametrize("scoring", CLASSIFICATION)
def test_several_classes(scoring):
    X, y = load_wine(return_X_y=True)
    for labels in (y, 10 - 3 * y):
        played(Case(X, labels, RidgeClassifier(), scoring, target=9), most=3)
    # A class that one training set does not have is never predicted there.
    y = np.where(np.arange(len(y)) < 20, 3, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn remarks upon such folds
        played(Case(X, y, RidgeClassifier(), scoring, cv=KFold(8), target=11), most=3)


def test_scorers_of_users_for_classes():
    X, y = load_breast_cancer(return_X_y=True)
    X, y = StandardScaler().fit_transform(X)[:200, :8], y[:200]
    for scoring in (
        make_scorer(fbeta_score, beta=2, pos_label=0),
        make_scorer(lambda y, d: float(np.mean(d * y)), response_method="decision_function"),
        make_scorer(
            hinge_loss, greater_is_better=False, response_method="decision_function", labels=[0, 1]
        ),
    ):
        played(Case(X, y, RidgeClassifier(), scoring, target=6), most=3)


@pytest.mark.parametrize(
    "scoring", [RANKING[0], *(pytest.param(each, marks=pytest.mark.slow) for each in RANKING[1:])]
)
def test_equal_rows_rank_equally(scoring):
    rng = np.random.default_rng(3)
    X = np.hstack([np.eye(4)[rng.integers(4, size=120)], rng.integers(2, size=(120, 2))])
    y = (X @ rng.normal(size=6) + 0.8 * rng.normal(size=120) > 0).astype(int)
    played(Case(X, y, RidgeClassifier(), scoring, direction="forward", target=5))


def test_decisions_within_rounding():
    decisions = np.array([0.5, 0.1, 0.5 + 1e-14, 0.3])
    found = snapped(decisions, 1e-13, lambda rows: True)
    np.testing.assert_array_equal(found, [0.5, 0.1, 0.5, 0.3])
    np.testing.assert_array_equal(snapped(decisions, 1e-15, lambda rows: False), decisions)
    with pytest.raises(NotCertifiedError, match="rounding ranks them"):
        snapped(decisions, 1e-13, lambda rows: False)


def test_a_decision_at_its_threshold_is_not_certified():
    X = np.array([[1.0, 0], [-1, 0], [1, 1], [-1, 1], [1, 0], [-1, 0], [1, 1], [-1, 1], [0, 1]])
    y = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1])
    folds = [(np.arange(8), np.array([8, 0, 1]))]
    for scoring in ("accuracy", "balanced_accuracy"):
        with pytest.raises(NotCertifiedError, match="threshold"):
            played(Case(X, y, RidgeClassifier(), scoring, cv=folds))


# --------------------------------------------------------------------------------------------------
# Weights, scalers, groups, folds


def weights(n, seed=0, *, zeros=True):
    weight = np.random.default_rng(seed).uniform(0.1, 3, n)
    if zeros:
        weight[::9] = 0.0
    return weight


@pytest.mark.parametrize("scoring", [*REGRESSION[:3], "neg_mean_squared_error"], ids=str)
@pytest.mark.parametrize("estimator", [OLS, Ridge(0.5), LinearRegression(fit_intercept=False)])
def test_weights(estimator, scoring):
    X, y = diabetes()
    n = len(y)
    fit, score = {"sample_weight": weights(n)}, {"sample_weight": weights(n, 1, zeros=False)}
    for in_fit, in_score in ((fit, {}), ({}, score), (fit, score)):
        case = Case(X + 0.05, y, estimator, scoring, fit_params=in_fit, score_params=in_score)
        case.target = 7
        played(case, most=2)


def test_weights_of_classes_and_of_wide_tables():
    X, y = wide(50)
    weight = {"sample_weight": weights(50)}
    played(Case(X, y, fit_params=weight), most=1)
    played(Case(X, y, fit_params=weight, direction="floating forward"), most=2)
    labels = (y > 0).astype(int)
    for scoring in ("accuracy", "roc_auc"):
        case = Case(X[:, :8], labels, RidgeClassifier(), scoring, target=5)
        case.fit_params, case.score_params = weight, {"sample_weight": weights(50, 1, zeros=False)}
        played(case)


@pytest.mark.parametrize("model", [OLS, Ridge(2.0), LinearRegression(fit_intercept=False)])
@pytest.mark.parametrize("options", [(True, True), (True, False), (False, True)])
def test_scaler(model, options):
    X, y = diabetes()
    with_mean, with_std = options
    X = X * 10.0 ** (np.arange(-5, 5) if with_std else np.zeros(10)) + (1 if with_mean else 0)
    X[:, 3] = 7.7
    scaler = StandardScaler(with_mean=with_mean, with_std=with_std)
    played(Case(X, y, make_pipeline(scaler, model), target=3), most=2)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "neg_mean_absolute_error"])
def test_groups_of_columns(direction, scoring):
    X, y = diabetes()
    groups = ((0, 1), (2,), (3, 4, 5), (6,), (7, 8), (9,))
    played(Case(X, y, scoring=scoring, direction=direction, features=groups))
    X, y = one_hot()
    groups = ((0, 1, 2, 3, 4), (5, 6, 7), (8,), (9, 10))
    played(Case(X, y, scoring=scoring, direction=direction, features=groups))


def test_repeated_rows_and_rows_on_both_sides():
    X, y = diabetes()
    X, y = X[:90], y[:90]
    rng = np.random.default_rng(0)
    bootstrap = [(rng.integers(90, size=90), np.arange(30)) for _ in range(3)]
    for cv in ("none", ShuffleSplit(3, random_state=0), bootstrap):
        for scoring in ("r2", "neg_mean_absolute_error"):
            played(Case(X, y, scoring=scoring, cv=cv, target=7), most=3)


def test_shards_score_alike():
    case = Case(*digits(), scoring="neg_mean_absolute_error", cv=5, target=50)
    one, three = played(case, most=1), played(case, most=1, n_shards=3)
    assert [move.feature for move in one] == [move.feature for move in three]
    np.testing.assert_array_equal(
        [move.fold_scores for move in one], [move.fold_scores for move in three]
    )
    # What counts as a tie is no matter of the cluster's size.
    np.testing.assert_allclose(
        [move.rounding for move in one], [move.rounding for move in three], rtol=0.05
    )


def test_a_constant_column_stays_where_others_leave():
    """A called metric is looked into after columns have left the factors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 40))
    X[30:, 7] = 2.5  # it varies in the first fold's test rows alone
    y = X[:, 0] + rng.normal(size=90)
    selector = SequentialFeatureSelector(
        OLS,
        direction="backward",
        n_features_to_select=30,
        cv=3,
        scoring=make_scorer(mean_pinball_loss, greater_is_better=False),
        fixed_features=[7],
    ).fit(X, y)
    assert selector.selection_.engines == ("rows",)
    refits = clone(selector).set_params(engine="refit").fit(X, y)
    for ours, theirs in zip(selector.selection_.rounds, refits.selection_.rounds, strict=True):
        assert ours.feature == theirs.feature
        np.testing.assert_allclose(ours.fold_scores, theirs.fold_scores, rtol=RTOL)


def test_a_state_that_was_lost_is_made_anew():
    """Resident data are not written to: a second search from them takes the same path."""
    case = Case(*digits(), target=30)
    problem = case.problem()
    search = case.search(problem)
    engine = RowsEngine.for_problem(problem, search)
    (resident,) = engine.prepare(problem, LocalExecutor(), search.subset, 1)
    first = play_rounds(engine, resident, search, 40, StateKey("one", 0))
    forget("one")
    half = play_rounds(engine, resident, search, 20, StateKey("two", 0))
    forget("two")
    rest = play_rounds(engine, resident, half.search, 20, StateKey("three", 0))
    forget("three")
    moves = [move.feature for move, _ in first.moves]
    assert len(moves) > 30
    assert [m.feature for m, _ in [*half.moves, *rest.moves]] == moves


# --------------------------------------------------------------------------------------------------
# Leave-one-out


@pytest.mark.parametrize(
    "direction",
    ["backward", pytest.param("forward", marks=pytest.mark.slow), "floating forward"],
)
@pytest.mark.parametrize(
    "scoring",
    [
        "neg_mean_squared_error",
        pytest.param("neg_root_mean_squared_error", marks=pytest.mark.slow),
        "neg_mean_absolute_error",
    ],
)
@pytest.mark.parametrize("estimator", [OLS, Ridge(0.4), LinearRegression(fit_intercept=False)])
def test_leave_one_out(estimator, scoring, direction):
    X, y = diabetes()
    case = Case(X[:40] + 0.1, y[:40], estimator, scoring, LeaveOneOut(), direction)
    case.target = 6 if direction == "backward" else 4
    problem = case.problem()
    assert RowsEngine.for_problem(problem, case.search(problem)).left_out
    played(case, most=1, rounds=6)


def test_leave_one_out_with_weights_targets_groups_and_classes():
    X, y = diabetes()
    X, y = X[:40], y[:40]
    groups = ((0, 1), (2,), (3, 4), (5, 6, 7), (8, 9))
    cv = LeaveOneOut()
    for case in (
        Case(X, y, cv=cv, fit_params={"sample_weight": weights(40)}),
        Case(X, np.column_stack([y, y[::-1]]), cv=cv),
        Case(X, y, cv=cv, features=groups),
        Case(X, y, cv=cv, features=groups, direction="floating forward", target=4),
        Case(X, y, make_pipeline(StandardScaler(), OLS), cv=cv),
        Case(X, y, scoring=REGRESSION[-1], cv=cv),
        Case(np.hstack([X, np.full((40, 1), 2.2)]), y, cv=cv),
    ):
        played(case, most=1, rounds=4)
    X, y = load_wine(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(y))[:50]
    for scoring in ("accuracy", make_scorer(lambda y, found: float(np.mean(y == found)))):
        case = Case(X[some], y[some], RidgeClassifier(), scoring, cv)
        played(case, most=1, rounds=3)


def test_leave_one_out_needs_one_state_and_so_goes_before_moments():
    """With dependent columns it has no closed form, and a state for every row takes over."""
    X, y = diabetes()
    X, y = X[:40], y[:40]
    selector = SequentialFeatureSelector(
        OLS, direction="backward", scoring="neg_mean_squared_error", cv=LeaveOneOut()
    )
    plan = selector.plan(X, y)
    assert plan.engine == "rows"
    assert [engine.name for engine in plan.engines] == ["rows", "moments", "refit"]
    assert selector.fit(X, y).selection_.engines == ("rows",)
    dependent = np.hstack([X, X[:, :1]])
    assert selector.fit(dependent, y).selection_.engines == ("moments",)


def test_leave_one_out_in_shards_and_without_a_closed_form():
    X, y = diabetes()
    case = Case(X[:30], y[:30], cv=LeaveOneOut(), target=7)
    one, three = played(case, most=1), played(case, most=1, n_shards=3)
    for this, other in zip(one, three, strict=True):
        np.testing.assert_allclose(this.fold_scores, other.fold_scores, rtol=1e-11)
    # More columns than rows: an ordinary state for every row.
    case = Case(*(part[:14] for part in wide(40)), cv=LeaveOneOut(), target=50)
    problem = case.problem()
    assert not RowsEngine.for_problem(problem, case.search(problem)).left_out
    played(case, most=1)


def test_rows_and_columns_that_have_no_closed_form():
    X, y = diabetes()
    X, y = X[:40], y[:40]
    with pytest.raises(NotCertifiedError, match="linearly dependent"):
        played(Case(np.hstack([X, X[:, :1]]), y, cv=LeaveOneOut()))
    X = np.hstack([X, np.zeros((40, 1))])
    X[11, -1] = 1.0
    with pytest.raises(NotCertifiedError, match="row 11 determines"):
        played(Case(X, y, cv=LeaveOneOut()))


# --------------------------------------------------------------------------------------------------
# What is not certified, and what is declined


def test_singular_values_at_the_cutoff():
    X, y = diabetes()
    units = X * 10.0 ** np.linspace(-6, 6, 10)
    for columns in (units, PolynomialFeatures(3).fit_transform(X)):
        for direction in ("backward", "floating backward"):
            with pytest.raises(NotCertifiedError, match=r"fold 0.*(tol=1e-06|dependence)"):
                played(Case(columns, y, direction=direction), most=1)
    with pytest.raises(NotCertifiedError, match="tol=1e-06"):
        played(Case(units, y, direction="forward"), most=1)
    with pytest.raises(NotCertifiedError, match="larger `tol`"):
        played(Case(*duplicates(), LinearRegression(tol=1e-15)), most=1)


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-7, 1e-9, 1e-11, 1e-13])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_near_duplicates_are_right_or_not_certified(size, direction):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 6))
    X = np.hstack([X, X[:, :2] + size * rng.normal(size=(90, 2))])
    y = X[:, :3].sum(axis=1) + rng.normal(size=90)
    try:
        played(Case(X, y, direction=direction))
    except NotCertifiedError:
        assert 1e-13 < size < 1e-3
    else:
        # The smallest is rounding: a duplicate. Forward need not get to both columns.
        assert size in (1e-3, 1e-13) or "forward" in direction


def test_a_target_without_noise_is_not_certified():
    X, _ = diabetes()
    with pytest.raises(NotCertifiedError, match="almost exactly"):
        played(Case(X, X[:, 2] - 2 * X[:, 7]))


def test_a_column_that_only_the_test_rows_know():
    X, y = diabetes()
    X, y = X[:90], y[:90]
    X[30:, 2] = 4.1
    played(Case(X, y))  # to one column, which is not that one
    with pytest.raises(NotCertifiedError, match="nothing else is in the model"):
        played(Case(X, y, direction="forward"))


def test_metrics_that_jump_are_not_certified_where_rounding_decides():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(60, 3)).astype(float)
    y = X[:, 0].copy()
    jumpy = make_scorer(lambda y, predicted: float(np.mean(predicted > 0.5 * (y + predicted))))
    with pytest.raises(NotCertifiedError):
        played(Case(X, y, scoring=jumpy))


class OwnRidge(Ridge):
    """Not the estimator that it looks like."""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"estimator": OwnRidge()}, "OwnRidge is not"),
        ({"estimator": LinearRegression(positive=True)}, "positive"),
        ({"estimator": Ridge(solver="saga")}, "iterative"),
        ({"scoring": lambda model, X, y: 0.0}, "make_scorer"),
        ({"fit_params": {"other": 1}}, "other"),
        ({"estimator": RidgeClassifier(class_weight="balanced")}, "class weights"),
        ({"estimator": RidgeClassifier(), "scoring": "neg_log_loss"}, "probabilities"),
        ({"scoring": "roc_auc"}, "more than the predictions"),
    ],
)
def test_what_is_declined(changes, why):
    X, y = diabetes()
    y = (y > y.mean()).astype(int)
    assert why in RowsEngine.declines(Case(X, y, **changes).problem())


def test_cost_counts_rows_times_columns():
    case = Case(*wide(40))
    problem = case.problem()
    cost = RowsEngine.cost(problem, case.search(problem), LocalExecutor())
    assert cost.n_pieces == 3
    assert 8 * 60 * 40 < cost.piece_bytes < 10 * 8 * 60 * 40
    assert cost.operations > 0


def test_predictions_come_in_pieces(monkeypatch):
    case = Case(*diabetes(), scoring="neg_mean_absolute_error", target=8)
    whole = played(case, most=1)
    monkeypatch.setattr(rows_score, "_CHUNK_NUMBERS", 500)
    pieces = played(case, most=1)
    assert [move.fold_scores for move in whole] == [move.fold_scores for move in pieces]


def test_stratified_folds_of_a_class_of_one_row():
    X, y = load_wine(return_X_y=True)
    folds = list(StratifiedKFold(3).split(X, y))
    only = [(train[y[train] == 0], test) for train, test in folds]
    with pytest.raises(NotCertifiedError, match="one class"):
        played(Case(X, y, RidgeClassifier(), "accuracy", cv=only))


def test_memory_does_not_grow_with_the_square_of_the_columns():
    p = 4000
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, p))
    y = X[:, 0] + rng.normal(size=20)
    selector = SequentialFeatureSelector(
        LinearRegression(), n_features_to_select=p - 2, direction="backward", cv=2
    )
    tracemalloc.start()
    try:
        selector.fit(X, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert selector.selection_.engines == ("rows",)
    assert peak < 8 * p * p / 4
