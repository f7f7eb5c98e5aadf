"""How predictions become scores: scikit-learn's scorers taken apart, or called on predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from dagsel.engines.base import Problem
from dagsel.engines.linear_model import LinearModel, squared_metric
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.metrics import Metric
from dagsel.kernels.predictions import (
    accuracy,
    chosen_classes,
    max_error,
    mean_absolute_error,
    median_absolute_error,
)
from dagsel.scorers import ScorerParts, scorer_parts

__all__ = ["Measure", "TestRowsFacts", "Verdict", "measure_of", "snapped"]

Floats = NDArray[np.float64]
Kind = Literal["squared", "absolute", "median", "largest", "accuracy", "labels", "numbers"]


class TestRowsFacts(NamedTuple):
    """Test rows of a fold, as far as metrics see them.

    Attributes
    ----------
    truth : ndarray of shape (q,) or (q, t)
        Targets as given.
    weight : ndarray of shape (q,) or None
        Weights in scores.
    classes : ndarray or None
        Classes of the training rows, for a classifier.
    scale : float
        Root mean square of the targets about the training mean, with classes coded as -1 and 1.
    """

    truth: NDArray[Any]
    weight: Floats | None
    classes: NDArray[Any] | None
    scale: float


class Verdict(NamedTuple):
    """Scores of some candidates in a fold, and by how much rounding may change each."""

    scores: Floats
    doubt: Floats


@dataclass(frozen=True)
class Measure:
    """A metric of (y, prediction).

    Attributes
    ----------
    kind : str
        "squared": a function of sums of squared errors, see `metric`. "absolute", "median",
        "largest", "accuracy": computed here for all candidates at once. "labels", "numbers": the
        scorer is called on the predicted classes, or on predicted numbers.
    metric : str or None
        One of `dagsel.kernels.metrics.METRICS`.
    scorer : callable
        scikit-learn's.
    """

    kind: Kind
    metric: Metric | None
    scorer: Callable[..., float]

    def judge(self, facts: TestRowsFacts, predictions: Floats, error: Floats) -> Verdict:
        """Score predictions of the test rows.

        Parameters
        ----------
        facts : TestRowsFacts
        predictions : ndarray of shape (c, t, q)
        error : ndarray of shape (c,)
            Relative error of the predictions.
        """
        if self.kind == "accuracy":
            return _judge_classes(facts, predictions, error)
        if self.kind == "labels":
            return self._judge_labels(facts, predictions, error)
        if self.kind == "numbers":
            return self._judge_numbers(facts, predictions)
        truth = facts.truth.astype(np.float64).reshape(len(facts.truth), -1).T
        if self.kind == "absolute":
            scores = mean_absolute_error(np, truth, predictions, facts.weight)
        elif self.kind == "median":
            scores = median_absolute_error(np, truth, predictions)
        else:
            scores = max_error(np, truth, predictions)
        return Verdict(-scores, error * (facts.scale + scores))

    def _judge_labels(self, facts: TestRowsFacts, predictions: Floats, error: Floats) -> Verdict:
        assert facts.classes is not None
        found, margin = chosen_classes(np, predictions)
        near = margin <= 2 * _reach(predictions, error)[:, None]
        known: dict[bytes, float] = {}
        for each in found:
            # Most candidates predict what others do.
            if (key := each.tobytes()) not in known:
                known[key] = self._call(facts, facts.classes[each], None)
        scores = np.array([known[each.tobytes()] for each in found])
        return Verdict(scores, np.where(np.any(near, axis=1), np.inf, 0.0))

    def _judge_numbers(self, facts: TestRowsFacts, predictions: Floats) -> Verdict:
        scores = [self._call(facts, None, each.T) for each in predictions]
        return Verdict(np.array(scores), np.full(len(scores), np.nan))

    def shaken(self, facts: TestRowsFacts, prediction: Floats, error: float) -> float:
        """Return by how much a called metric changes if predictions do by their rounding.

        Where it jumps instead, a user's metric has thresholds or ranks that rounding decides.

        Parameters
        ----------
        facts : TestRowsFacts
        prediction : ndarray of shape (t, q)
        error : float
            Relative error of the predictions.
        """
        size = error * (facts.scale + np.sqrt(np.mean(prediction**2)))
        if facts.classes is not None:  # nearer decisions have been made equal: stay clear of that
            size = error * (1 + np.max(np.abs(prediction))) / 4
        change = 0.0
        score = self._call(facts, None, prediction.T)
        values, which = np.unique(prediction, return_inverse=True)
        for seed in range(2):
            # Equal predictions stay equal.
            signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(values))
            shaken = prediction + size * signs[which].reshape(prediction.shape)
            other = self._call(facts, None, shaken.T)
            change = max(change, abs(other - score))
        return change if change == change else 0.0

    def _call(
        self, facts: TestRowsFacts, labels: NDArray[Any] | None, numbers: Floats | None
    ) -> float:
        """Call the scorer on a stand-in for the fitted estimator, which knows its predictions."""
        stand_in: Any
        if facts.classes is not None:
            stand_in = _Classifier(labels, numbers, facts.classes)
        else:
            assert numbers is not None
            stand_in = _Regressor(numbers if facts.truth.ndim == 2 else numbers[:, 0])
        weights = {} if facts.weight is None else {"sample_weight": facts.weight}
        rows = np.empty((len(facts.truth), 0))
        try:
            return float(self.scorer(stand_in, rows, facts.truth, **weights))
        except Exception as error:
            # It may do so for a single candidate, which refits pass over.
            msg = (
                f"the metric fails for some predictions ({type(error).__name__}: {error}), and "
                "refits can tell for which"
            )
            raise NotCertifiedError(msg) from error


class _Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Has been fitted, and knows its predictions."""

    def __init__(self, predictions: Floats) -> None:
        self.predictions = predictions

    def predict(self, X: Any) -> Floats:
        return self.predictions


class _Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Has been fitted, and knows its predictions."""

    def __init__(
        self, labels: NDArray[Any] | None, decisions: Floats | None, classes: NDArray[Any]
    ) -> None:
        self.labels = labels
        self.decisions = decisions
        self.classes_ = classes

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Any:
        return self.labels

    def decision_function(self, X: Any) -> Any:
        assert self.decisions is not None
        return self.decisions[:, 0] if self.decisions.shape[1] == 1 else self.decisions


def _reach(predictions: Floats, error: Floats) -> Floats:
    """Return by how much the rounding of each candidate's decisions can move one; shape (c,)."""
    reach: Floats = error * (1 + np.max(np.abs(predictions), axis=(1, 2)))
    return reach


def _judge_classes(facts: TestRowsFacts, predictions: Floats, error: Floats) -> Verdict:
    assert facts.classes is not None
    found, margin = chosen_classes(np, predictions)
    place = np.searchsorted(facts.classes, facts.truth)
    place = np.where(place < len(facts.classes), place, 0)
    # A class that is not among the training rows cannot be predicted.
    truth = np.where(facts.classes[place] == facts.truth, place, -1)
    scores = accuracy(np, truth, found, facts.weight)
    near = margin <= 2 * _reach(predictions, error)[:, None]
    return Verdict(scores, accuracy(np, np.ones(len(truth), np.int64), near + 0, facts.weight))


def snapped(
    decisions: Floats, reach: float, same_rows: Callable[[NDArray[np.intp]], bool]
) -> Floats:
    """Make decisions of equal rows equal where rounding has set them apart.

    Parameters
    ----------
    decisions : ndarray of shape (q,)
    reach : float
        Decisions that differ by no more may be equal.
    same_rows : callable
        Tells whether rows are the same in all columns of the model.

    Raises
    ------
    NotCertifiedError
        If different rows are that near to each other: rounding would rank them.
    """
    order = np.argsort(decisions, kind="stable")
    ascending = decisions[order]
    ties = np.diff(ascending) <= reach
    if not np.any(ties):
        return decisions
    first = np.concatenate([[True], ~ties])
    group = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    for which in np.unique(group[1:][ties]):
        members = order[group == which]
        if not same_rows(members):
            msg = (
                "test rows have decision values so near to each other that rounding ranks them, "
                "which the metric depends on"
            )
            raise NotCertifiedError(msg)
    found = np.empty_like(decisions)
    found[order] = ascending[starts[group]]
    return found


_FAST: dict[Callable[..., Any], Kind] = {
    metrics.mean_absolute_error: "absolute",
    metrics.median_absolute_error: "median",
    metrics.max_error: "largest",
    metrics.accuracy_score: "accuracy",
}


def measure_of(problem: Problem, model: LinearModel) -> Measure | str:
    """Take a problem's scorer apart, or say why that cannot be done."""
    name, scorer = problem.scoring.name, problem.scoring.scorer
    if problem.scoring.criterion is not None:
        return f"scoring {name!r} is a criterion of the fit to all rows"
    parts = scorer_parts(scorer)
    if parts is None:
        return (
            f"scoring {name!r} is a function of the fitted estimator, which cannot be taken apart; "
            "make it of a function of (y, prediction) by scikit-learn's make_scorer"
        )
    squared = squared_metric(scorer)
    if not model.classifier:
        if "predict" not in parts.responses:
            return f"scoring {name!r} needs more than the predictions of a regression"
        if squared is not None:
            return Measure("squared", squared, scorer)
        return Measure(_fast_kind(problem, parts, classifier=False) or "numbers", None, scorer)
    usable = [each for each in parts.responses if each in ("predict", "decision_function")]
    if not usable:
        return f"scoring {name!r} needs probabilities, which RidgeClassifier does not have"
    if usable[0] == "decision_function":
        return Measure("numbers", None, scorer)
    return Measure(_fast_kind(problem, parts, classifier=True) or "labels", None, scorer)


def _fast_kind(problem: Problem, scorer: ScorerParts, *, classifier: bool) -> Kind | None:
    kind = _FAST.get(scorer.function)
    if kind is None or scorer.keywords or (kind == "accuracy") != classifier:
        return None
    if scorer.sign != (1 if classifier else -1):
        return None
    weighted = problem.score_weight is not None
    several = problem.table.target.ndim == 2
    # A weighted median has its own definition; the largest error of several targets has none.
    if weighted and kind in ("median", "largest"):
        return None
    return None if kind == "largest" and several else kind
