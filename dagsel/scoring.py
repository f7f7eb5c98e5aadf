"""The metric that subsets, or sizes, are compared by, from what a front door was given."""

from __future__ import annotations

import warnings
from typing import Any

from numpy.typing import NDArray
from sklearn.base import is_regressor
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import check_scoring, get_scorer, get_scorer_names
from sklearn.pipeline import Pipeline

from dagsel.engines.base import Scoring
from dagsel.engines.linear_model import final_step
from dagsel.scorers import explain_unknown_scorer, scorer_parts

__all__ = ["check_suits", "metric_scoring", "resolve_scoring"]

# Whatever numbers they are given they score.
_OF_NUMBERS = ("r2", "neg_mean_squared_error", "neg_root_mean_squared_error")

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


def check_suits(scoring: Scoring, estimator: Any, target: NDArray[Any]) -> None:
    """Refuse a metric of scikit-learn's that cannot score a regression of this target.

    Such as one of classes, where the target is continuous. It is tried on the target itself or,
    for models whose predictions are never whole numbers, beside it.

    Raises
    ------
    ValueError
        Says which metric and model, why, and what to do.
    """
    named = scoring.name in get_scorer_names() and scoring.name not in _OF_NUMBERS
    parts = scorer_parts(scoring.scorer) if named else None
    if parts is None or target.dtype.kind not in "biuf" or not is_regressor(estimator):
        return
    model = type(final_step(estimator)[1])
    beside = 0.5 if model in _OWN_SCORES else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts.function(target, target + beside, **parts.keywords)
    except ValueError as error:
        msg = (
            f"scoring={scoring.name!r} cannot score what {model.__name__} predicts of this target: "
            f"{error}. Use a metric of numbers, such as 'neg_mean_squared_error' or 'r2', or a "
            "classifier if the target holds classes"
        )
        raise ValueError(msg) from error
