"""What makes the fast numbers trustworthy: audits, contests decided by refits, drift."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from problems import PROBLEMS
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score

from dagsel import DagselWarning, SequentialFeatureSelector
from dagsel.contest import contenders, contest, resolved
from dagsel.engines.base import ScoreTable
from dagsel.engines.moments import tableau_part
from dagsel.engines.moments.engine import MomentsEngine
from dagsel.results import Selection
from dagsel.search import Request

X, y = PROBLEMS[0].load()


def selector(**parameters):
    return SequentialFeatureSelector(
        LinearRegression(),
        **{
            "n_features_to_select": 3,
            "direction": "backward",
            "scoring": "neg_mean_squared_error",
            "cv": 4,
            **parameters,
        },
    )


def features(fitted):
    return [done.feature for done in fitted.selection_.rounds]


# --------------------------------------------------------------------------------------------------
# Audit


@pytest.mark.parametrize("direction", ["backward", "forward"])
@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "r2", "neg_mean_absolute_error"])
def test_an_audit_passes_and_says_what_it_did(scoring, direction):
    fitted = selector(audit=4, scoring=scoring, direction=direction).fit(X, y)
    audit = fitted.selection_.audit
    rounds = fitted.selection_.rounds
    assert len(audit.rounds) == min(4, len(rounds))
    assert {0, len(rounds) - 1} <= set(audit.rounds)
    assert 0 <= audit.difference < 1e-12
    assert not audit.overturned
    assert str(audit) in fitted.selection_.notes
    # Of every audited round at most eight candidates, winner and runner-up among them.
    candidates = [min(8, rounds[number].move.n_candidates) for number in audit.rounds]
    assert audit.n_refits == 4 * sum(candidates)
    assert Selection.from_json(fitted.selection_.to_json()).audit == audit


def test_an_audit_finds_a_lie(monkeypatch):
    honest = MomentsEngine.score

    def lying(self, state, request):
        table = honest(self, state, request)
        scores = table.scores * (1 + 1e-6)
        if len(request.candidates) == 6:
            scores = scores[::-1]
        return table._replace(scores=scores)

    monkeypatch.setattr(MomentsEngine, "score", lying)
    with pytest.warns(DagselWarning, match="overturned in rounds"):
        fitted = selector(audit=20).fit(X, y)
    audit = fitted.selection_.audit
    assert audit.overturned
    assert audit.difference > 1e-7


def test_an_audit_of_groups_steps_criteria_and_refits():
    groups = [[0, 1], [2], [3, 4, 5], [6, 7], [8], [9]]
    for parameters in (
        {"feature_groups": groups},
        {"step": 2},
        {"scoring": None, "cv": 5, "criterion": "bic"},
        {"scoring": None, "cv": 5, "criterion": "p_value", "n_features_to_select": "auto"},
        {"engine": "refit"},
        {"floating": True},
    ):
        audit = selector(**{"audit": 3, **parameters}).fit(X, y).selection_.audit
        assert audit.difference < 1e-10
        assert not audit.overturned
        assert audit.n_refits > 0


def test_an_audit_on_a_cluster(local_client):
    audit = selector(audit=3, client=local_client).fit(X, y).selection_.audit
    assert audit.difference < 1e-12


@pytest.mark.parametrize("audit", [-1, 1.5, True])
def test_an_audit_must_be_a_number_of_rounds(audit):
    with pytest.raises(ValueError, match="audit must be a number of rounds"):
        selector(audit=audit).fit(X, y)


# --------------------------------------------------------------------------------------------------
# Contests


def table_of(means, rounding):
    return ScoreTable(np.array(means, dtype=float)[:, None], rounding)


def test_contenders_are_those_that_refits_could_tell_apart():
    assert list(contenders(table_of([-3, -1, -1 - 1e-10, -2], 1e-9))) == [1, 2]
    assert len(contenders(table_of([-3, -1, -1 - 1e-10, -2], 1e-11))) == 0
    # Equal to the last digits that refits have: a tie, which a rule breaks.
    assert len(contenders(table_of([-3, -1, -1 - 1e-13, -2], 1e-9))) == 0
    assert list(contenders(table_of([-1, -1 - 1e-13, -1 - 1e-10], 1e-9))) == [0, 1, 2]
    assert list(contenders(table_of([np.nan, -1, -1 - 1e-10], 1e-9))) == [1, 2]
    assert len(contenders(table_of([np.nan, np.nan], 1e-9))) == 0
    assert len(contenders(table_of([-1], 1e-9))) == 0
    request = Request((0, 2, 4, 6), (0, 2, 4, 6))
    assert contest(request, np.array([1, 3])).candidates == (2, 6)
    table = resolved(table_of([-3, -1, -2], 1e-9), np.array([1]), table_of([-1.5], 1e-15))
    assert table.rounding == 1e-15
    np.testing.assert_array_equal(table.scores[:, 0], [-3, -1.5, -2])


@pytest.mark.parametrize("shards", ["one", "several"])
@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_what_is_too_close_to_call_is_decided_by_refits(monkeypatch, direction, shards, request):
    honest = MomentsEngine.score

    def doubtful(self, state, asked):
        """Scores that are off by as much as they say, to the disadvantage of the best."""
        table = honest(self, state, asked)
        means = table.scores.mean(axis=1)
        rounding = 0.3 * abs(means.max())
        scores = np.where(means[:, None] > means.max() - rounding, means.max(), table.scores)
        scores = scores - 1e-6 * np.arange(len(scores))[::-1, None]
        return ScoreTable(scores, rounding)

    reference = selector(direction=direction).fit(X, y)
    monkeypatch.setattr(MomentsEngine, "score", doubtful)
    wrong = selector(direction=direction, engine="moments").fit(X, y)
    assert features(wrong) != features(reference)
    if shards == "several":
        from dagsel import scheduler

        monkeypatch.setattr(scheduler.Session, "travels", False)
    right = selector(direction=direction).fit(X, y)
    assert features(right) == features(reference)
    for one, other in zip(right.selection_.rounds, reference.selection_.rounds, strict=True):
        if one.feature is not None:
            np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=1e-9)
    assert any("too close for the moments engine" in note for note in right.selection_.notes)


def test_exact_ties_are_not_refitted(monkeypatch):
    from dagsel.engines.refit import RefitEngine

    table = np.column_stack([X[:, :5], X[:, :5]])
    monkeypatch.setattr(RefitEngine, "score", None)
    fitted = selector(n_features_to_select=4).fit(table, y)
    assert any(done.tied for done in fitted.selection_.rounds)


# --------------------------------------------------------------------------------------------------
# Drift


@pytest.fixture
def wide():
    rng = np.random.default_rng(2)
    table = rng.normal(size=(700, 300))
    target = table[:, :50] @ rng.normal(size=50) + 4 * rng.normal(size=700)
    return table, target


def check_last_round(fitted, table, target):
    last = fitted.selection_.rounds[-1]
    expected = cross_val_score(
        LinearRegression(), table[:, last.subset], target, scoring=fitted.scoring, cv=fitted.cv
    )
    np.testing.assert_allclose(last.fold_scores, expected, rtol=1e-9)


def test_long_runs_stay_right(wide):
    fitted = selector(n_features_to_select=10, cv=3).fit(*wide)
    assert fitted.selection_.engines == ("moments",)
    assert not fitted.selection_.notes
    check_last_round(fitted, *wide)


def test_a_tableau_that_has_drifted_is_made_anew(monkeypatch, wide):
    reference = selector(n_features_to_select=10, cv=3).fit(*wide)
    honest = tableau_part.apply_pending
    spoilt = []

    def spoiling(xp, tableau, keep=None):
        applied = honest(xp, tableau, keep)
        if not spoilt:
            spoilt.append(True)
            applied.swept[0][3:9, 3:9] *= 1 + 1e-7
        return applied

    monkeypatch.setattr(tableau_part, "apply_pending", spoiling)
    fitted = selector(n_features_to_select=10, cv=3).fit(*wide)
    assert spoilt
    assert fitted.selection_.engines == ("moments",)
    assert any("made anew" in note for note in fitted.selection_.notes)
    assert features(fitted) == features(reference)
    for one, other in zip(fitted.selection_.rounds, reference.selection_.rounds, strict=True):
        np.testing.assert_allclose(one.fold_scores, other.fold_scores, rtol=1e-10)
    check_last_round(fitted, *wide)


def test_a_tableau_that_drifts_again_at_once_is_given_up(monkeypatch, wide):
    table, target = wide
    monkeypatch.setattr(tableau_part, "_MAX_DRIFT", -1.0)
    fitted = selector(n_features_to_select=100, cv=3).fit(table, target)
    assert fitted.selection_.engines == ("moments", "rows")
    check_last_round(fitted, table, target)


# --------------------------------------------------------------------------------------------------
# No score


def test_a_candidate_without_a_score_is_never_chosen_and_sizes_are_honoured():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 6))
    labels = (table[:, 0] > 0).astype(int)

    def no_score_without_column_2(estimator, X, y):
        return np.nan if X.shape[1] < 6 and not np.any(X[:, -1] == marked) else X[0, 0]

    marked = table[0, 5]
    for step in (1, 2):
        fitted = SequentialFeatureSelector(
            LogisticRegression(),
            n_features_to_select=2,
            direction="backward",
            cv=[(np.arange(60), np.arange(60))],
            scoring=no_score_without_column_2,
            step=step,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DagselWarning)
            fitted.fit(table, labels)
        assert fitted.n_features_to_select_ == 2
        assert fitted.support_[5]
        assert clone(fitted).get_params()["step"] == step
