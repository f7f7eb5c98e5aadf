"""The metric that subsets, or sizes, are compared by, from what a front door was given."""

from __future__ import annotations

from typing import Any

from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import check_scoring, get_scorer
from sklearn.pipeline import Pipeline

from dagsel.engines.base import Scoring
from dagsel.engines.linear_model import final_step
from dagsel.scorers import explain_unknown_scorer

__all__ = ["metric_scoring", "resolve_scoring"]

# What the `score` of models is, also at the end of a pipeline.
_OWN_SCORES = {LinearRegression: "r2", Ridge: "r2", RidgeClassifier: "accuracy"}


def resolve_scoring(estimator: Any, scoring: Any) -> Scoring:
    """Return the scorer that scikit-learn would use."""
    own = _OWN_SCORES.get(type(final_step(estimator)[1])) if scoring is None else None
    if own is not None and type(estimator) in (*_OWN_SCORES, Pipeline):
        # By its name the fast engines know it.
        return Scoring(own, get_scorer(own))
    if isinstance(scoring, (list, tuple, set, dict)):
        msg = f"scoring must be a single metric, by which features are chosen; got {scoring!r}"
        raise ValueError(msg)
    unknown = explain_unknown_scorer(scoring) if isinstance(scoring, str) else None
    if unknown is not None:
        raise ValueError(unknown)
    scorer = check_scoring(estimator, scoring=scoring)
    if isinstance(scoring, str):
        return Scoring(scoring, scorer)
    name = "score" if scoring is None else getattr(scoring, "__name__", str(scoring))
    return Scoring(name, scorer)


def metric_scoring(metric: Any) -> Scoring:
    """Return the scorer of a single metric, by name or ready-made.

    Raises
    ------
    ValueError
        If it is no such thing.
    """
    unknown = explain_unknown_scorer(metric) if isinstance(metric, str) else None
    if unknown is not None:
        raise ValueError(unknown)
    if isinstance(metric, str) or callable(metric):
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", str(metric))
        return Scoring(name, get_scorer(metric))
    msg = f"scoring must be a single metric, by which sizes are compared; got {metric!r}"
    raise ValueError(msg)
