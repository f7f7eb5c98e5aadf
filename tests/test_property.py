"""Any table, any fold, any search: every score of a fast engine is the score of a refit.

Tables are drawn with all that is known to spoil fast least squares: duplicates, sums, full one-hot
sets, constants, columns that hardly vary in one fold, units far apart, offsets, more columns than
rows, weights of zero. An engine may hand a table on to refits; it may not return a wrong number.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, currently_in_test_context, event, given, reject, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, LeaveOneOut, ShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from dagsel import DagselWarning, SequentialFeatureSelector
from dagsel.engines.moments.engine import MomentsEngine
from dagsel.engines.rows.engine import RowsEngine
from dagsel.rounds import Round
from dagsel.search import Request

Floats = NDArray[np.float64]

RTOL = 1e-8
# Sums of squared errors below this part of those of the targets are rounding in refits, too.
PERFECT = 1e-20
# Means of refits this near each other, relatively, are equal: they differ in the last digits.
EQUAL = 1e-14
# Test sets of no more rows have errors that vanish by luck; see `MomentsEngine._size`.
FEW_ROWS = 10
SCORINGS = (
    "neg_mean_squared_error",
    "r2",
    "neg_mean_absolute_error",
    "neg_root_mean_squared_error",
)


# --------------------------------------------------------------------------------------------------
# What is drawn


@dataclass(frozen=True)
class Case:
    """A selection; its fields are shown where it fails, and `seed` makes the numbers."""

    seed: int
    n: int
    p: int
    structures: tuple[str, ...]
    decades: float  # units of columns are up to so many decades apart
    offset: float
    noise: float
    target_offset: float
    n_targets: int
    weighting: str
    weighted_scores: bool
    splitter: str
    n_folds: int
    grouped: bool
    direction: str
    floating: bool
    estimator: Any
    scoring: str

    @property
    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


ESTIMATORS = st.builds(
    lambda model, scaled: make_pipeline(StandardScaler(), model) if scaled else model,
    st.one_of(
        st.builds(LinearRegression, fit_intercept=st.booleans()),
        st.builds(
            Ridge, alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]), fit_intercept=st.booleans()
        ),
    ),
    st.sampled_from([False, False, True]),
)
SPLITTERS = ("kfold", "kfold", "shuffled", "shuffled", "shuffle-split", "leave-one-out")
STRUCTURES = ("duplicate", "sum", "one-hot", "constant", "near-constant", "integers")


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    splitter = draw(st.sampled_from(SPLITTERS))
    left_out = splitter == "leave-one-out"
    weighting = draw(st.sampled_from(["none", "none", "integers", "fractions"]))
    # R² of a single row is undefined.
    scorings = [scoring for scoring in SCORINGS if scoring != "r2" or not left_out]
    return Case(
        seed=draw(st.integers(0, 2**20)),
        n=draw(st.integers(12, 20 if left_out else 90)),
        p=draw(st.integers(2, 7 if left_out else 14)),
        structures=tuple(draw(st.lists(st.sampled_from(STRUCTURES), max_size=2))),
        decades=draw(st.sampled_from([0.0, 0.0, 1.0, 3.0, 6.0, 9.0])),
        offset=draw(st.sampled_from([0.0, 0.0, 1.0, 100.0, 1e4])),
        noise=draw(st.sampled_from([1.0, 1.0, 0.1, 1e-3, 1e-6, 0.0])),
        target_offset=draw(st.sampled_from([0.0, 1.0, 1e3])),
        n_targets=draw(st.sampled_from([1, 1, 1, 2, 3])),
        weighting=weighting,
        weighted_scores=weighting != "none" and draw(st.booleans()),
        splitter=splitter,
        n_folds=draw(st.integers(2, 4)),
        grouped=draw(st.sampled_from([False, False, False, True])),
        direction=draw(st.sampled_from(["backward", "forward"])),
        floating=draw(st.sampled_from([False, False, True])),
        estimator=draw(ESTIMATORS),
        scoring=draw(st.sampled_from(scorings)),
    )


@dataclass(frozen=True)
class Problem:
    """The numbers of a case."""

    case: Case
    X: Floats
    y: Floats
    folds: list[tuple[NDArray[np.intp], NDArray[np.intp]]]
    weight: Floats | None
    features: list[list[int]]  # columns of each feature
    known: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    @property
    def fit_params(self) -> dict[str, Floats]:
        if self.weight is None:
            return {}
        model = self.case.estimator
        prefix = f"{model.steps[-1][0]}__" if isinstance(model, Pipeline) else ""
        return {f"{prefix}sample_weight": self.weight}

    def refits(self, subset: tuple[int, ...]) -> Floats:
        """Return the fold scores of a subset of features by plain refits."""
        if subset not in self.known:
            columns = sorted(column for each in subset for column in self.features[each])
            self.known[subset] = self._scores(columns, lambda rows: rows)
        return self.known[subset]

    def refit_noise(self, subset: tuple[int, ...]) -> Floats:
        """Return how much fold scores of refits change if rows and columns are shuffled."""
        columns = [column for each in subset for column in self.features[each]]
        rng = np.random.default_rng(0)
        shuffled = [
            self._scores(rng.permutation(columns).tolist(), rng.permutation) for _ in range(5)
        ]
        spread: Floats = np.ptp([self.refits(subset), *shuffled], axis=0)
        return spread

    def _scores(self, columns: list[int], order: Callable[[Any], Any]) -> Floats:
        scorer = get_scorer(self.case.scoring)
        scores = []
        for train, test in self.folds:
            rows = order(train)
            parameters = {key: value[rows] for key, value in self.fit_params.items()}
            scored = {}
            if self.weight is not None and self.case.weighted_scores:
                scored["sample_weight"] = self.weight[test]
            model = clone(self.case.estimator)
            model.fit(self.X[np.ix_(rows, columns)], self.y[rows], **parameters)
            scores.append(scorer(model, self.X[np.ix_(test, columns)], self.y[test], **scored))
        return np.array(scores)

    def negligible(self) -> Floats:
        """Return differences of fold scores that are rounding where a fit is perfect."""
        size = np.array([np.max(np.mean(self.y[test] ** 2, axis=0)) for _, test in self.folds])
        if self.case.scoring == "r2":
            return np.zeros_like(size)
        return PERFECT * size if "squared" in self.case.scoring else np.sqrt(PERFECT * size)


def make_problem(case: Case) -> Problem:
    rng = case.generator
    folds = list(_splitter(case).split(np.zeros((case.n, 1))))
    X = rng.normal(size=(case.n, case.p))
    X *= 10 ** rng.permutation(np.linspace(-case.decades / 2, case.decades / 2, case.p))
    X += case.offset * rng.choice([0.0, 1.0], size=case.p)
    for structure in case.structures:
        _spoil(X, structure, folds, rng)
    length = np.linalg.norm(X - X.mean(axis=0), axis=0) / np.sqrt(case.n)
    coefficients = rng.normal(size=(case.p, case.n_targets)) * rng.choice(
        [0.0, 1.0], size=(case.p, 1)
    )
    signal = (X - X.mean(axis=0)) / np.where(length > 0, length, 1.0) @ coefficients
    y = signal + case.noise * rng.normal(size=signal.shape) + case.target_offset
    y *= 10.0 ** rng.integers(-3, 4, size=case.n_targets)
    weight = {
        "none": None,
        "integers": rng.integers(0, 4, size=case.n).astype(np.float64),
        "fractions": rng.uniform(0.05, 2.0, size=case.n),
    }[case.weighting]
    features = [[column] for column in range(case.p)]
    if case.grouped:
        cuts = np.flatnonzero(rng.integers(0, 2, size=case.p - 1)) + 1
        parts = np.split(rng.permutation(case.p), cuts)
        features = [sorted(part.tolist()) for part in parts]
    return Problem(case, X, y[:, 0] if case.n_targets == 1 else y, folds, weight, features)


def _splitter(case: Case) -> Any:
    if case.splitter == "leave-one-out":
        return LeaveOneOut()
    if case.splitter == "shuffle-split":
        return ShuffleSplit(case.n_folds, test_size=0.3, random_state=case.seed)
    shuffled = case.splitter == "shuffled"
    return KFold(case.n_folds, shuffle=shuffled, random_state=case.seed if shuffled else None)


def _spoil(X: Floats, structure: str, folds: list[Any], rng: np.random.Generator) -> None:
    n, p = X.shape
    chosen = rng.permutation(p)
    target, others = int(chosen[0]), chosen[1:]
    if structure == "duplicate":
        X[:, target] = X[:, others[0]] * rng.choice([1.0, -2.0, 1 / 3])
    elif structure == "sum":
        some = others[: int(rng.integers(1, len(others) + 1))]
        X[:, target] = X[:, some] @ rng.choice([-1.0, 1.0, 2.0, 0.3], size=len(some))
    elif structure == "one-hot":
        some = chosen[: int(rng.integers(2, p + 1))]
        X[:, some] = np.eye(len(some))[rng.integers(0, len(some), size=n)]
    elif structure == "constant":
        X[:, target] = rng.choice([0.0, 1.0, 4.1, -1e3])
    elif structure == "near-constant":
        train, _ = folds[int(rng.integers(0, len(folds)))]
        varies = 10.0 ** rng.choice([-np.inf, -12, -9, -6, -3])
        X[train, target] = rng.choice([0.0, 1.0, 4.1]) + varies * X[train, target]
    else:
        some = chosen[: int(rng.integers(1, p + 1))]
        X[:, some] = np.round(3 * X[:, some])


# --------------------------------------------------------------------------------------------------
# What is compared


@dataclass(frozen=True)
class Scored:
    """What an engine returned for a request."""

    engine: str
    request: Request
    scores: Floats
    rounding: float


@contextmanager
def recorded() -> Iterator[list[Scored]]:
    """Keep everything that the fast engines return."""
    found: list[Scored] = []

    def spied(engine: Any) -> Callable[..., Any]:
        original = engine.score

        def score(self: Any, state: Any, request: Request) -> Any:
            table = original(self, state, request)
            found.append(Scored(engine.name, request, np.array(table.scores), table.rounding))
            return table

        return score

    with pytest.MonkeyPatch.context() as patch:
        for engine in (MomentsEngine, RowsEngine):
            patch.setattr(engine, "score", spied(engine))
        yield found


def run(problem: Problem) -> tuple[SequentialFeatureSelector, list[Scored]]:
    case = problem.case
    selector = SequentialFeatureSelector(
        case.estimator,
        n_features_to_select=1 if case.direction == "backward" else len(problem.features),
        direction=case.direction,
        floating=case.floating,
        scoring=case.scoring,
        cv=problem.folds,
        feature_groups=problem.features if case.grouped else None,
        weighted_scores=case.weighted_scores,
    )
    with recorded() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore", DagselWarning)  # refits take over
        selector.fit(problem.X, problem.y, **problem.fit_params)
    return selector, found


def wrong_scores(problem: Problem, scored: Scored) -> list[str]:
    """Say which scores of a request are not those of refits."""
    texts = []
    few = np.array([len(test) for _, test in problem.folds]) <= FEW_ROWS
    variants = list(scored.request.variants())
    assert scored.scores.shape == (len(variants), len(problem.folds))
    for subset, scores in zip(variants, scored.scores, strict=True):
        expected = problem.refits(subset)
        size = np.abs(expected)
        if problem.case.scoring == "r2":
            size = np.maximum(size, 1.0)
        size = np.where(few, np.maximum(size, np.mean(size)), size)
        allowed = RTOL * size + problem.negligible()
        difference = np.abs(scores - expected)
        # Not `>`: what is not a number is not near one.
        if not np.all(difference <= allowed):
            # Refits themselves may not have the digits.
            allowed = allowed + 10 * problem.refit_noise(subset)
            if not np.all(difference <= allowed):
                fold = int(np.argmax(difference / allowed))
                texts.append(
                    f"{scored.engine}: subset {subset}, fold {fold}: {scores[fold]!r}, refit "
                    f"{expected[fold]!r} (relative {difference[fold] / size[fold]:.1e})"
                )
    return texts


def wrong_choice(problem: Problem, done: Round, tables: list[Scored]) -> str | None:
    """Say why refits would not have made a move: another is better, or comes first in a tie."""
    move = done.move
    parent = tuple(sorted(set(move.subset) ^ {move.feature}))
    asked = [
        each.request
        for each in tables
        if each.request.subset == parent and move.feature in each.request.candidates
    ]
    text = None
    for request in asked:
        subsets = list(request.variants())
        means = np.array([problem.refits(subset).mean() for subset in subsets])
        row, best = request.candidates.index(move.feature), int(np.argmax(means))
        behind = means[best] - means[row]
        if behind > move.rounding:
            noise = sum(problem.refit_noise(subsets[each]).mean() for each in (row, best))
            if behind > move.rounding + 10 * noise + problem.negligible().mean():
                text = f"{move.feature} is {behind:.1e} worse than {request.candidates[best]}"
                continue
        # R² is 1 less a part of the errors: where that is small, rounding is no tie.
        loss = 1 - means[best] if problem.case.scoring == "r2" else -means[best]
        tied = np.flatnonzero(means >= means[best] - EQUAL * np.minimum(loss, abs(means[best])))
        if tied[0] < row and means[best] != 0:
            text = f"{move.feature} comes after {request.candidates[tied[0]]}, which is as good"
            continue
        return None
    return text


def sensible(problem: Problem) -> bool:
    """Tell whether refits can be scored: there are features to choose from, and weights."""
    if len(problem.features) < 2:
        return False
    sides = [rows for fold in problem.folds for rows in fold]
    if problem.weight is not None and any(not np.any(problem.weight[rows]) for rows in sides):
        return not problem.case.weighted_scores and all(
            np.any(problem.weight[train]) for train, _ in problem.folds
        )
    return True


def check(case: Case, engines: Counter[str]) -> None:
    problem = make_problem(case)
    if not sensible(problem):
        reject()
    selector, tables = run(problem)
    rounds = selector.selection_.rounds
    used = set(selector.selection_.engines)
    engines["examples"] += 1
    engines["fast"] += "refit" not in used
    engines.update(used)
    if currently_in_test_context():
        event("+".join(sorted(used)))
    with config_context(assume_finite=True, skip_parameter_validation=True):
        wrong = [text for each in tables for text in wrong_scores(problem, each)]
        for done in rounds:
            if done.move.feature is not None and done.engine != "refit":
                text = wrong_choice(problem, done, tables)
                wrong += [] if text is None else [f"round {done.number}: {text}"]
    assert not wrong, "\n".join(wrong[:5])


def check_many(n_examples: int, *, derandomize: bool) -> Counter[str]:
    engines: Counter[str] = Counter()

    @settings(
        max_examples=n_examples,
        deadline=None,
        derandomize=derandomize,
        # Where every run draws anew, this text is all that leads back to what a run has found.
        print_blob=not derandomize,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases())
    def every_case(case: Case) -> None:
        check(case, engines)

    every_case()
    return engines


def test_fast_scores_and_choices_are_those_of_refits():
    engines = check_many(30, derandomize=True)
    # Falling back is always right, and would pass; so it must be rare.
    assert engines["fast"] > 0.4 * engines["examples"]
    assert engines["moments"] > 6
    assert engines["rows"] > 6


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_fast_scores_and_choices_are_those_of_refits_in_many_cases():
    """Set DAGSEL_EXAMPLES to draw so many new ones."""
    n_examples = int(os.environ.get("DAGSEL_EXAMPLES", "0"))
    engines = check_many(n_examples or 120, derandomize=not n_examples)
    assert engines["fast"] > 0.5 * engines["examples"]
    assert engines["moments"] > 25
    assert engines["rows"] > 25


def plain_case(**changes: Any) -> Case:
    """Return a plain case with some changes."""
    plain: dict[str, Any] = {
        "seed": 1,
        "n": 20,
        "p": 9,
        "structures": (),
        "decades": 0.0,
        "offset": 0.0,
        "noise": 1.0,
        "target_offset": 1.0,
        "n_targets": 1,
        "weighting": "none",
        "weighted_scores": False,
        "splitter": "shuffled",
        "n_folds": 3,
        "grouped": False,
        "direction": "backward",
        "floating": False,
        "estimator": LinearRegression(fit_intercept=False),
        "scoring": "neg_mean_absolute_error",
    }
    return Case(**{**plain, **changes})


def test_columns_far_from_zero_are_added_one_after_the_other():
    """Errors of updates take the condition squared, if factors are not built anew."""
    spoilt = plain_case(
        structures=("integers",), offset=1e4, weighting="fractions", direction="forward"
    )
    engines: Counter[str] = Counter()
    check(spoilt, engines)
    assert engines["rows"] == engines["fast"] == 1


FOUND = {
    "a column that is added next to others about 1e4": {
        "seed": 0,
        "n": 20,
        "p": 14,
        "structures": ("constant", "duplicate"),
        "decades": 1.0,
        "offset": 1e4,
        "noise": 0.0,
        "target_offset": 0.0,
        "weighting": "integers",
        "weighted_scores": True,
        "splitter": "kfold",
        "n_folds": 3,
        "direction": "forward",
        "estimator": LinearRegression(fit_intercept=False),
    },
    "a scaler's unit is lost in sums": {
        "seed": 0,
        "n": 13,
        "p": 3,
        "structures": ("near-constant",),
        "splitter": "kfold",
        "n_folds": 2,
        "estimator": make_pipeline(StandardScaler(), Ridge(0.001, fit_intercept=False)),
    },
    "a scaler's mean is rounded": {
        "seed": 4,
        "n": 44,
        "p": 14,
        "structures": ("one-hot",),
        "decades": 9.0,
        "offset": 1e4,
        "noise": 0.1,
        "target_offset": 0.0,
        "weighting": "integers",
        "n_folds": 4,
        "direction": "forward",
        "estimator": make_pipeline(StandardScaler(), LinearRegression(fit_intercept=False)),
    },
    "only columns of zeros are left": {
        "seed": 117,
        "n": 24,
        "p": 2,
        "structures": ("duplicate", "near-constant"),
        "splitter": "kfold",
        "n_folds": 2,
    },
    "predictions come down from enormous ones": {
        "seed": 3390,
        "n": 73,
        "p": 11,
        "structures": ("near-constant", "near-constant"),
        "decades": 9.0,
        "offset": 1e4,
        "noise": 0.1,
        "target_offset": 1e3,
        "splitter": "kfold",
        "n_folds": 4,
        "direction": "forward",
        "floating": True,
        "estimator": make_pipeline(StandardScaler(), LinearRegression()),
        "scoring": "neg_mean_absolute_error",
    },
    "a removal leads to near-dependence": {
        "seed": 2,
        "n": 12,
        "p": 12,
        "offset": 1e4,
        "target_offset": 0.0,
        "weighting": "integers",
        "splitter": "shuffle-split",
        "n_folds": 2,
        "floating": True,
    },
}


@pytest.mark.parametrize("changes", FOUND.values(), ids=list(FOUND))
def test_what_random_cases_have_found(changes):
    check(plain_case(**{"scoring": "neg_mean_squared_error", **changes}), Counter())


@pytest.mark.parametrize("scoring", ["neg_mean_absolute_error", "neg_mean_squared_error"])
@pytest.mark.parametrize("scaler", [StandardScaler(), StandardScaler(with_std=False)], ids=str)
@pytest.mark.parametrize("model", [LinearRegression, Ridge])
def test_leave_one_out_behind_a_scaler_without_intercept(model, scaler, scoring):
    """Every fold's scaler has a mean of its own, which no intercept makes up for."""
    estimator = make_pipeline(scaler, model(fit_intercept=False))
    engines: Counter[str] = Counter()
    left_out = plain_case(p=2, splitter="leave-one-out", estimator=estimator, scoring=scoring)
    check(left_out, engines)
    assert engines["fast"] == 1


def test_column_that_varies_less_than_the_sums_of_all_rows_can_tell():
    wrong = []
    for seed in range(8):
        problem = make_problem(plain_case(seed=seed, n=12, p=3, scoring="neg_mean_squared_error"))
        train, _ = problem.folds[1]
        problem.X[train, 0] *= 1e-12
        _, tables = run(problem)
        wrong += [text for each in tables for text in wrong_scores(problem, each)]
    assert not wrong
