"""Criteria in place of cross-validation: numbers and paths are those of statsmodels."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import array_api_compat.numpy as numpy_xp
import array_api_strict
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from problems import product_of
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.tools.sm_exceptions import SingularMatrixWarning

from dagsel.backend import to_host
from dagsel.criterion import CRITERIA, INFERENCE_NOTE, Criterion
from dagsel.engines.criteria.f_test import log_p_value
from dagsel.engines.criteria.refits import CriterionRefits
from dagsel.engines.criteria.scores import Fits, criterion_scores, row_facts
from dagsel.exceptions import DataError
from dagsel.job import open_job
from dagsel.kernels.criteria import adjusted_r2, information_criterion, log_likelihood, mallows_cp
from dagsel.monitor import LogMonitor
from dagsel.search import Search

MODELS = tuple(name for name in CRITERIA if name != "p_value")
ENGINES = ("refit", "auto")


@dataclass
class Problem:
    """A table, the columns of its features, and how it is fitted."""

    X: np.ndarray
    y: np.ndarray
    features: list[list[int]]
    intercept: bool = True
    weight: np.ndarray | None = None
    tol: float = 1e-6
    known: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def fit(self, subset):
        """Fit a subset of features by statsmodels."""
        subset = tuple(sorted(subset))
        if subset not in self.known:
            columns = sorted(column for feature in subset for column in self.features[feature])
            design = self.X[:, columns]
            if self.intercept:
                design = np.column_stack([np.ones(len(self.y)), design])
            if self.weight is None:
                model = sm.OLS(self.y, design, hasconst=self.intercept)
            else:
                model = sm.WLS(self.y, design, weights=self.weight, hasconst=self.intercept)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SingularMatrixWarning)
                self.known[subset] = model.fit()
        return self.known[subset]

    def score(self, criterion, subset):
        """Score a subset from what statsmodels says of it."""
        fit = self.fit(subset)
        counted = int(criterion.variance_counted)
        if criterion.name in ("aic", "aicc", "bic"):
            return -fit.info_criteria(criterion.name, dk_params=counted)
        if criterion.name == "adjusted_r2":
            return fit.rsquared_adj
        full = self.fit(range(len(self.features)))
        n_parameters = fit.df_model + self.intercept
        return -(fit.ssr / full.mse_resid - len(self.y) + 2 * n_parameters)

    def log_p(self, larger, smaller):
        larger = self.fit(larger)
        if not smaller and not self.intercept:
            return math.log(larger.f_pvalue)  # a model without a column is nothing to fit
        smaller = self.fit(smaller)
        if larger.df_resid == smaller.df_resid:
            return 0.0
        return math.log(larger.compare_f_test(smaller)[1])

    def greedy(self, criterion, target, *, backward, gains=False):
        """The search written down plainly: a round is (subset, score)."""
        everything = set(range(len(self.features)))
        now = set(everything) if backward else set()
        threshold = criterion.threshold(removal=backward) if gains else None
        path = []
        current = None
        if backward and not criterion.scores_moves:
            current = self.score(criterion, now)
            path.append((tuple(sorted(now)), current))
        while len(now) != target:
            scores = {}
            for feature in sorted(now if backward else everything - now):
                after = now ^ {feature}
                if criterion.scores_moves:
                    log_p = self.log_p(*((now, after) if backward else (after, now)))
                    scores[feature] = log_p if backward else -log_p
                else:
                    scores[feature] = self.score(criterion, after)
            best = max(scores, key=scores.__getitem__)
            if gains and threshold is not None and scores[best] < threshold:
                break
            if gains and threshold is None and current is not None and scores[best] < current:
                break
            current = scores[best]
            now ^= {best}
            path.append((tuple(sorted(now)), current))
        return path

    def select(self, criterion, target, *, backward, gains=False, engine="refit", **options):
        """Run the search; return the job after it."""

        def make_search(table, features):
            return Search(
                len(features),
                target_size=target,
                direction="backward" if backward else "forward",
                tie_rule="lowest",
                tol=0.0 if gains and not criterion.scores_moves else None,
                threshold=criterion.threshold(removal=backward) if gains else None,
                score_start=not criterion.scores_moves,
            )

        estimator = options.pop("estimator", LinearRegression(fit_intercept=self.intercept))
        if "tol" in estimator.get_params():
            estimator.set_params(tol=self.tol)
        weights = {} if self.weight is None else {"sample_weight": self.weight}
        options = {"fit_params": weights, "feature_groups": self.features, **options}
        if all(len(columns) == 1 for columns in self.features):
            options["feature_groups"] = None
        job = open_job(
            options.pop("X", self.X),
            self.y,
            estimator=estimator,
            scoring=None,
            cv=5,
            make_search=make_search,
            engine=engine,
            criterion=criterion,
            **options,
        )
        job.run(LogMonitor())
        return job


def single(p):
    return [[column] for column in range(p)]


def diabetes(**options):
    X, y = load_diabetes(return_X_y=True)
    return Problem(X, y, single(10), **options)


def random_problem(seed=0, n=60, p=7, **options):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.3 * rng.normal(size=(p, p))) + 2
    y = X[:, ::3] @ rng.normal(size=len(range(0, p, 3))) + rng.normal(size=n) + 3
    return Problem(X, y, single(p), **options)


def weighted(**options):
    problem = random_problem(1, **options)
    problem.weight = np.random.default_rng(2).uniform(0.2, 3, size=len(problem.y))
    return problem


def grouped(**options):
    problem = random_problem(3, **options)
    problem.features = [[0], [1, 4, 5], [2, 6], [3]]
    return problem


def one_hot(**options):
    """All levels of two categories: with an intercept each has one column too many."""
    rng = np.random.default_rng(4)
    first, second = np.eye(4)[np.arange(80) % 4], np.eye(3)[rng.integers(0, 3, 80)]
    numbers = rng.normal(size=(80, 3))
    y = first @ [0, 1, 2, -1] + 0.4 * numbers[:, 0] + rng.normal(size=80)
    features = [[0, 1, 2, 3], [4, 5, 6], [7], [8], [9]]
    return Problem(np.hstack([first, second, numbers]), y, features, **options)


def entangled(**options):
    """Columns that depend on those of other groups, which take their place; and a constant."""
    problem = random_problem(5, p=9, **options)
    X = problem.X
    X[:, 6] = X[:, 0] - X[:, 1]
    X[:, 7] = 2 * X[:, 2] + 0.5 * X[:, 6]
    X[:, 8] = 3.0
    problem.features = [[0, 2], [1, 4], [6, 3], [5], [7, 8]]
    return problem


PROBLEMS = {
    "diabetes": diabetes,
    "random": random_problem,
    "weighted": weighted,
    "grouped": grouped,
    "one-hot": one_hot,
    "entangled": entangled,
}


@cache
def shared(name, **options):
    """Return a problem of all tests, which leave it as it is: each of its fits is made once."""
    return PROBLEMS[name](**options)


# ------------------------------------------------------------------ formulas


def _strict(values):
    return array_api_strict.asarray(
        np.asarray(values, dtype=np.float64), device=array_api_strict.Device("device1")
    )


@pytest.mark.parametrize(
    ("xp", "asarray"),
    [(numpy_xp, np.array), (array_api_strict, _strict)],
    ids=["numpy", "strict"],
)
def test_formulas_equal_those_of_statsmodels_on_any_array_library(xp, asarray):
    problem = weighted()
    subsets = [(0,), (1, 3), (0, 1, 2, 3, 4, 5, 6)]
    fits = [problem.fit(subset) for subset in subsets]
    errors = asarray([fit.ssr for fit in fits])
    ranks = asarray([fit.df_model for fit in fits])
    n_rows, total = len(problem.y), float(fits[0].centered_tss)
    log_weights = float(np.log(problem.weight).sum())
    found = log_likelihood(xp, errors, n_rows, log_weights)
    np.testing.assert_allclose(to_host(found), [fit.llf for fit in fits], rtol=1e-12)
    for name in ("aic", "aicc", "bic"):
        for counted in (False, True):
            found = information_criterion(
                xp,
                name,
                errors,
                ranks,
                n_rows,
                intercept=True,
                variance_counted=counted,
                log_weights=log_weights,
            )
            expected = [fit.info_criteria(name, dk_params=int(counted)) for fit in fits]
            np.testing.assert_allclose(to_host(found), expected, rtol=1e-12)
    found = adjusted_r2(xp, errors, ranks, n_rows, intercept=True, total=total)
    np.testing.assert_allclose(to_host(found), [fit.rsquared_adj for fit in fits], rtol=1e-12)
    variance = float(fits[-1].mse_resid)
    found = to_host(mallows_cp(xp, errors, ranks, n_rows, intercept=True, variance=variance))
    assert found[-1] == pytest.approx(8, rel=1e-12)  # the number of parameters of the full model
    expected = fits[0].ssr / variance - n_rows + 4
    assert found[0] == pytest.approx(expected, rel=1e-12)


def test_a_fit_without_error_or_degrees_of_freedom_has_a_score_by_rule():
    errors, ranks = np.array([0.0, 0.0, 1.0]), np.array([2.0, 8.0, 9.0])
    options = {"n_rows": 10, "intercept": True}
    aicc = information_criterion(numpy_xp, "aicc", errors, ranks, **options)
    assert aicc.tolist() == [-math.inf, math.inf, math.inf]  # the best, and the worst
    aic = information_criterion(numpy_xp, "aic", errors, ranks, **options)
    assert aic[:2].tolist() == [-math.inf, -math.inf]
    found = adjusted_r2(numpy_xp, errors, ranks, total=2.0, **options)
    assert found.tolist() == [1.0, 1.0, -math.inf]


# ------------------------------------------------------------------ p-values

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def _gamma_of_half(twice):
    """Γ(twice / 2) for a whole number, in decimal arithmetic."""
    value, start = (PI.sqrt(), Decimal("0.5")) if twice % 2 else (Decimal(1), Decimal(1))
    for step in range((twice - 1) // 2):
        value *= start + step
    return value


def exact_log_p(error, change, q, d):
    """Log of the p-value by the power series of the incomplete beta function, 60 digits."""
    with localcontext() as context:
        context.prec = 60
        error, change = Decimal(error), Decimal(change)
        x, y = error / (error + change), change / (error + change)
        a, b = Decimal(d) / 2, Decimal(q) / 2
        term = total = Decimal(1)
        step = 0
        while term > total * Decimal(10) ** -50:
            term *= (a + b + step) / (a + 1 + step) * x
            total += term
            step += 1
        beta = _gamma_of_half(d) * _gamma_of_half(q) / _gamma_of_half(d + q)
        return float(a * x.ln() + b * y.ln() + (total / (a * beta)).ln())


@pytest.mark.parametrize("q", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("d", [1, 2, 9, 60, 401, 3000])
def test_log_p_values_are_right_to_twelve_digits_at_any_size(q, d):
    changes = [c for c in (0.02, 0.3, 1.0, 3.0, 30.0, 1e3, 1e8, 1e20) if q < 40 or c > 0.1]
    error = 1.37
    found = log_p_value(np.array(error), np.array(changes) * error, np.array(q), np.array(d))
    expected = [exact_log_p(error, change * error, q, d) for change in changes]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert d < 400 or min(found) < -5000


@pytest.mark.parametrize("log_p", [-1e-9, -0.1, -3.0, -650.0, -760.0, -5000.0, -1e6])
@pytest.mark.parametrize("d", [400, 10_000, 10_000_000])
def test_log_p_values_of_two_degrees_are_powers(log_p, d):
    # With q = 2, p = x^(d/2).
    if -2 * log_p / d > 600:
        log_p = -100.0 * d
    change = math.expm1(-2 * log_p / d)
    found = log_p_value(np.array(1.0), np.array(change), np.array(2.0), np.array(float(d)))
    assert found == pytest.approx(log_p, rel=1e-9 if d > 1e6 else 1e-12)
    assert found == pytest.approx(-d / 2 * math.log1p(change), rel=1e-13)


def test_p_values_without_a_test_are_given_by_rule():
    found = log_p_value(
        errors=np.array([1.0, 1.0, 0.0, 0.0, 1.0]),
        changes=np.array([0.5, 0.0, 0.5, 0.0, 0.5]),
        degrees=np.array([0.0, 1.0, 1.0, 1.0, 1.0]),
        residual_degrees=np.array([5.0, 5.0, 5.0, 5.0, 0.0]),
    )
    assert found[:4].tolist() == [0.0, 0.0, -math.inf, 0.0]
    assert np.isnan(found[4])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("intercept", [True, False])
def test_p_values_of_single_columns_are_those_of_their_t(intercept, engine):
    problem = diabetes(intercept=intercept)
    full = problem.fit(range(10))
    job = problem.select(Criterion("p_value"), 9, backward=True, engine=engine)
    (move,) = (done.move for done in job.selection.rounds)
    expected = np.log(full.pvalues[int(intercept) :])
    assert move.feature == int(np.argmax(expected))
    assert move.mean == pytest.approx(expected.max(), rel=1e-9)
    assert move.runner_up == int(np.argsort(expected)[-2])
    assert move.runner_up_mean == pytest.approx(np.sort(expected)[-2], rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_column_that_explains_next_to_nothing_keeps_its_digits(engine):
    # The change of the residual sum of squares is less than its rounding.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = 1e3 * X[:, 0] + 10 * rng.normal(size=500)
    x = X[:, 1]
    others = np.column_stack([np.ones(500), X[:, [0, 2]]])
    rest = x - others @ np.linalg.lstsq(others, x, rcond=None)[0]
    y -= rest * (rest @ y / (rest @ rest)) * (1 - 1e-8)
    problem = Problem(X, y, single(3))
    job = problem.select(Criterion("p_value"), 2, backward=True, engine=engine)
    expected = problem.fit(range(3))
    t = abs(expected.tvalues[2])
    assert 0 < t < 1e-4
    move = job.selection.rounds[0].move
    assert move.feature == 1
    assert move.mean == pytest.approx(math.log(expected.pvalues[2]), rel=1e-4)
    assert move.rounding < 1e-9


# ------------------------------------------------------------------ scores and paths


@pytest.mark.parametrize(
    ("problem", "name", "direction", "constant", "engine"),
    product_of(
        PROBLEMS,
        CRITERIA,
        ["backward", "forward"],
        ["intercept", "origin"],
        ENGINES,
        plain=lambda i, j, k, m, e: (i + j + k + m) % 2 == e,
    ),
)
def test_paths_and_scores_are_those_of_a_plain_loop(problem, name, direction, constant, engine):
    problem, criterion = shared(problem, intercept=constant == "intercept"), Criterion(name)
    backward = direction == "backward"
    target = 1 if backward else len(problem.features) - 1
    expected = problem.greedy(criterion, target, backward=backward)
    job = problem.select(criterion, target, backward=backward, engine=engine)
    assert job.selection.engines == ("moments" if engine == "auto" else "refit",)
    rounds = job.selection.rounds
    assert [done.features for done in rounds] == [subset for subset, _ in expected]
    found = [done.mean for done in rounds]
    np.testing.assert_allclose(found, [score for _, score in expected], rtol=1e-9, atol=1e-12)
    assert all(0 <= done.move.rounding < 1e-6 * max(1, abs(done.mean)) for done in rounds)


@pytest.mark.parametrize("backward", [True, False], ids=["backward", "forward"])
@pytest.mark.parametrize("name", ["aic", "bic", "p_value"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_search_of_open_length_stops_where_a_plain_loop_does(problem, name, backward):
    problem, criterion = shared(problem), Criterion(name, alpha=0.1)
    target = 1 if backward else len(problem.features)
    expected = problem.greedy(criterion, target, backward=backward, gains=True)
    job = problem.select(criterion, target, backward=backward, gains=True, engine="auto")
    assert [done.features for done in job.selection.rounds] == [subset for subset, _ in expected]
    assert job.selection.complete


def test_counting_the_variance_changes_only_what_aicc_selects():
    problem = random_problem(n=24)
    for name in ("aic", "aicc", "bic"):
        plain, counted = Criterion(name), Criterion(name, variance_counted=True)
        found = [problem.select(each, 1, backward=True).selection for each in (plain, counted)]
        means = [np.array([done.mean for done in each.rounds]) for each in found]
        expected = [score for _, score in problem.greedy(counted, 1, backward=True)]
        np.testing.assert_allclose(means[1], expected, rtol=1e-9)
        constant = 2 if name == "aic" else math.log(24)
        if name == "aicc":
            assert np.ptp(means[0] - means[1]) > 1
        else:
            np.testing.assert_allclose(means[0] - means[1], constant, rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_weight_zero_do_not_count(engine):
    problem = weighted()
    problem.weight[::5] = 0.0
    kept = problem.weight > 0
    without = Problem(problem.X[kept], problem.y[kept], problem.features)
    without.weight = problem.weight[kept]
    for name in CRITERIA:
        criterion = Criterion(name)
        found = problem.select(criterion, 1, backward=True, engine=engine).selection.rounds
        expected = without.greedy(criterion, 1, backward=True)
        assert [done.features for done in found] == [subset for subset, _ in expected]
        means = [done.mean for done in found]
        np.testing.assert_allclose(means, [s for _, s in expected], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_redundant_columns_go_first_and_are_never_added(engine):
    problem = random_problem()
    problem.X[:, 6] = problem.X[:, 0] + problem.X[:, 1]
    criterion = Criterion("p_value")
    job = problem.select(criterion, 1, backward=True, gains=True, engine=engine)
    assert job.selection.engines == ("moments" if engine == "auto" else "refit",)
    first = job.selection.rounds[0]
    # Any of the three can go, and the rule for ties says which.
    assert (first.feature, first.mean, first.tied) == (0, 0.0, (1, 6))
    criterion = Criterion("p_value", alpha=0.999)
    job = problem.select(criterion, 7, backward=False, gains=True, engine=engine)
    assert job.selection.complete
    last = job.selection.rounds[-1]
    assert 3 <= last.n_features < 7
    assert not {0, 1, 6} <= set(last.subset)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_column_that_is_constant_counts_for_nothing(engine):
    problem = weighted()
    problem.X[:, 0] = 7.1
    first = problem.select(Criterion("p_value"), 6, backward=True, engine=engine).selection.rounds[
        0
    ]
    assert (first.feature_index, first.mean) == (0, 0.0)
    now = problem.select(Criterion("bic"), 6, backward=False, engine=engine).selection.rounds[0]
    assert now.mean == pytest.approx(problem.score(Criterion("bic"), now.features), rel=1e-9)
    alone = Problem(problem.X[:, :2], problem.y, single(2))
    alone.X[:, 1] = np.random.default_rng(0).normal(size=60)
    (first,) = alone.select(Criterion("bic"), 1, backward=False, engine=engine).selection.rounds
    empty = alone.fit([])
    expected = max((-empty.bic, 0), (alone.score(Criterion("bic"), [1]), 1))
    assert (first.feature_index, first.mean) == (expected[1], pytest.approx(expected[0], rel=1e-9))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scaler_before_the_model_changes_nothing(engine):
    problem = diabetes()
    names = [f"x{column}" for column in range(10)]
    table = pd.DataFrame(problem.X * 50 + 7, columns=names)
    for name in CRITERIA:
        criterion = Criterion(name)
        pipeline = make_pipeline(StandardScaler(), LinearRegression())
        job = problem.select(
            criterion, 1, backward=True, engine=engine, estimator=pipeline, X=table
        )
        expected = problem.greedy(criterion, 1, backward=True)
        assert [done.features for done in job.selection.rounds] == [s for s, _ in expected]
        found = [done.mean for done in job.selection.rounds]
        np.testing.assert_allclose(found, [s for _, s in expected], rtol=1e-9, atol=1e-12)


def test_engines_agree_on_what_is_tied():
    problem = random_problem()
    problem.X[:, 5] = -3 * problem.X[:, 2] + 1
    for name in CRITERIA:
        found = [
            problem.select(Criterion(name), 3, backward=True, engine=engine).selection.rounds
            for engine in ENGINES
        ]
        assert [done.move.tied for done in found[0]] == [done.move.tied for done in found[1]]
        assert [done.features for done in found[0]] == [done.features for done in found[1]]


def test_several_workers_score_the_same(local_client):
    problem = one_hot()
    for name in ("bic", "p_value", "mallows_cp"):
        criterion = Criterion(name)
        here = problem.select(criterion, 1, backward=True).selection.rounds
        there = problem.select(criterion, 1, backward=True, client=local_client).selection.rounds
        assert [done.features for done in here] == [done.features for done in there]
        np.testing.assert_allclose(
            [done.mean for done in here], [done.mean for done in there], rtol=1e-12
        )


# ------------------------------------------------------------------ rounding


def test_rounding_covers_what_an_error_in_the_sums_does_to_the_best():
    problem = random_problem()
    facts, _ = row_facts(problem.y, None, fit_intercept=True)
    facts = facts.with_full_model(problem.fit(range(7)).ssr, 7)
    subsets = [tuple(c for c in range(7) if c != gone) for gone in range(7)]
    errors = np.array([problem.fit(subset).ssr for subset in subsets])
    ranks, doubts = np.full(7, 6.0), 1e-9 * errors
    now = Fits(np.array([problem.fit(range(7)).ssr]), np.array([7.0]), np.zeros(1))
    for name in CRITERIA:
        criterion = Criterion(name)
        scores, rounding = criterion_scores(
            criterion, facts, Fits(errors, ranks, doubts), current=now
        )
        best = int(np.argmax(scores))
        errors_off = errors.copy()
        errors_off[best] += doubts[best]
        off, _ = criterion_scores(criterion, facts, Fits(errors_off, ranks, doubts), current=now)
        change = abs(off[best, 0] - scores[best, 0])
        assert 0 < change <= rounding <= 2 * change


# ------------------------------------------------------------------ what is refused


def open_with(X=None, y=None, *, search=None, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3)) if X is None else X
    y = rng.normal(size=len(X)) if y is None else y
    defaults = {"score_start": options.get("criterion") != "p_value"}
    return open_job(
        X,
        y,
        **{
            "estimator": LinearRegression(),
            "scoring": None,
            "cv": 5,
            "engine": "refit",
            "make_search": lambda table, features: Search(
                len(features), target_size=1, **{**defaults, **(search or {})}
            ),
            **options,
        },
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"criterion": "hqic"}, "criterion must be one of aic, aicc, bic"),
        ({"criterion": "p_value", "alpha": 0.0}, "alpha.* between 0 and 1; got 0"),
        ({"criterion": "aic", "scoring": "r2"}, "leave scoring at None; got 'r2'"),
        ({"criterion": "aic", "cv": KFold(3)}, "leave cv at its default"),
        ({"criterion": "aic", "groups": np.arange(30)}, "leave out groups"),
        ({"criterion": "aic", "estimator": Ridge()}, "needs LinearRegression.*a penalty"),
        (
            {"criterion": "aic", "estimator": LinearRegression(positive=True)},
            "positive=False",
        ),
        ({"criterion": "bic", "clone_estimator": False}, "clone_estimator=True"),
        ({"criterion": "p_value", "search": {"floating": True}}, "leave out floating=True"),
        ({"criterion": "p_value", "search": {"score_start": True}}, "score_start=True"),
        ({"criterion": "p_value", "search": {"step": 2}}, "leave out step"),
        ({"criterion": "p_value", "search": {"tol": 0.0}}, "leave out tol"),
    ],
)
def test_what_does_not_go_together_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        open_with(**options)


def test_targets_that_no_criterion_can_judge_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="fit of one target; got 2"):
        open_with(y=rng.normal(size=(30, 2)), criterion="aic")
    with pytest.raises(DataError, match="numeric target"):
        open_with(y=np.array(["a", "b", "c"] * 10), criterion="aic")
    with pytest.raises(DataError, match="the target is constant"):
        open_with(y=np.full(30, 0.1), criterion="aic").run(LogMonitor())
    with pytest.raises(DataError, match="sample_weight is 0 in every row"):
        open_with(criterion="aic", fit_params={"sample_weight": np.zeros(30)}).run(LogMonitor())


def test_too_few_rows_are_told():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 8))
    with pytest.raises(DataError, match="6 rows leave no residual degrees of freedom"):
        open_with(X, criterion="p_value").run(LogMonitor())
    with pytest.raises(DataError, match=r"Cp needs the error variance.*rank 5 and 6 rows"):
        open_with(X, criterion="mallows_cp").run(LogMonitor())


def test_a_subset_by_itself_has_no_p_value():
    facts, _ = row_facts(np.arange(5.0), None, fit_intercept=True)
    one = np.ones(1)
    with pytest.raises(ValueError, match="a p-value belongs to a move"):
        criterion_scores(Criterion("p_value"), facts, Fits(one, one, one))


def test_a_candidate_that_failed_to_fit_has_no_score():
    problem = random_problem()
    for name in CRITERIA:
        refits = CriterionRefits.of(
            Criterion(name), LinearRegression(), problem.X, problem.y, fit_params={}
        )
        now = refits.fit(problem.X, range(7)) if name == "p_value" else None
        fits = [None, refits.fit(problem.X, (0, 1, 2, 3, 4, 5)), None]
        scores, rounding = refits.scores(fits, now, removal=True)
        assert np.isnan(scores[:, 0]).tolist() == [True, False, True]
        assert 0 < rounding < 1e-9
        scores, rounding = refits.scores([None], now, removal=True)
        assert np.isnan(scores).all()
        assert rounding == 0


def test_users_of_p_values_are_warned_in_the_selection():
    notes = random_problem().select(Criterion("p_value"), 3, backward=True).selection.notes
    assert INFERENCE_NOTE in notes
    notes = random_problem().select(Criterion("bic"), 3, backward=True).selection.notes
    assert INFERENCE_NOTE not in notes


def test_thresholds_are_those_of_the_level():
    criterion = Criterion("p_value", alpha=0.01)
    assert criterion.threshold(removal=True) == pytest.approx(math.log(0.01))
    assert criterion.threshold(removal=False) == pytest.approx(-math.log(0.01))
    assert Criterion("aic").threshold(removal=True) is None
