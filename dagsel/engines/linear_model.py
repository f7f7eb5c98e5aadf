"""The linear least-squares models whose scores need no refits, read off scikit-learn estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from dagsel.backend import EPSILON
from dagsel.engines.base import Problem
from dagsel.kernels.metrics import METRICS, Metric
from dagsel.scorers import scorer_parts

__all__ = [
    "LinearModel",
    "declines_parameters",
    "final_step",
    "linear_model",
    "squared_metric",
]


@dataclass(frozen=True)
class LinearModel:
    """A linear least-squares model, as far as it matters to its predictions.

    Attributes
    ----------
    fit_intercept : bool
        Whether features and targets are centred by their (weighted) training means.
    penalty : float
        Ridge penalty, in the units of the sums of squares of what the model sees; 0 for ordinary
        least squares.
    cutoff : float or None
        Singular values below this fraction of the largest are dropped; `None` if none ever is.
    standardise : tuple of bool or None
        Whether a `StandardScaler` before the model centres, and whether it scales.
    classifier : bool
        Whether the targets are classes coded as -1 and 1 (`RidgeClassifier`).
    """

    fit_intercept: bool
    penalty: float = 0.0
    cutoff: float | None = None
    standardise: tuple[bool, bool] | None = None
    classifier: bool = False

    @property
    def centres_features(self) -> bool:
        """Whether features are taken about a mean of the training rows."""
        return self.fit_intercept or bool(self.standardise and self.standardise[0])

    @property
    def scales_features(self) -> bool:
        """Whether the model sees features in units of their standard deviation."""
        return bool(self.standardise and self.standardise[1])


def linear_model(estimator: Any) -> LinearModel | str:
    """Return the model that an estimator fits, or say why it is not one of these."""
    standardise = None
    if type(estimator) is Pipeline:
        steps = [step for _, step in estimator.steps if step is not None and step != "passthrough"]
        if len(steps) != 2 or type(steps[0]) is not StandardScaler or estimator.memory is not None:
            return (
                "of pipelines only a StandardScaler before a linear model, without memory=, has a "
                "short cut"
            )
        standardise = (bool(steps[0].with_mean), bool(steps[0].with_std))
        estimator = steps[1]
    if type(estimator) not in (LinearRegression, Ridge, RidgeClassifier):
        return f"{type(estimator).__name__} is not LinearRegression, Ridge or RidgeClassifier"
    if estimator.positive:
        return f"{type(estimator).__name__}(positive=True) is no linear solve"
    intercept = bool(estimator.fit_intercept)
    if isinstance(estimator, LinearRegression):
        # Handed to `scipy.linalg.lstsq`. Before scikit-learn 1.7 there was no `tol`, and LAPACK's
        # default was used.
        cutoff = float(getattr(estimator, "tol", EPSILON))
        if not cutoff >= 0:
            return f"LinearRegression(tol={cutoff:g}) is not a cutoff"
        return LinearModel(intercept, cutoff=cutoff, standardise=standardise)
    return _ridge_model(estimator, intercept, standardise)


def _ridge_model(
    estimator: Any, intercept: bool, standardise: tuple[bool, bool] | None
) -> LinearModel | str:
    name = type(estimator).__name__
    if estimator.solver not in ("auto", "cholesky", "svd"):
        return f"{name}(solver={estimator.solver!r}) is iterative, its scores are approximate"
    alpha = np.ravel(estimator.alpha)
    if len(alpha) != 1 or not alpha[0] > 0:
        return f"{name}(alpha={estimator.alpha!r}) has not one penalty above 0"
    classifier = isinstance(estimator, RidgeClassifier)
    if classifier and estimator.class_weight is not None:
        return f"{name} with class weights"
    return LinearModel(
        intercept, penalty=float(alpha[0]), standardise=standardise, classifier=classifier
    )


def squared_metric(scorer: Any) -> Metric | None:
    """Return the metric that a scorer computes, if it is a function of sums of squared errors."""
    parts = scorer_parts(scorer)
    if parts is None:
        return None
    return next((each for each in METRICS if parts == scorer_parts(get_scorer(each))), None)


def final_step(estimator: Any) -> tuple[str, Any]:
    """Return the prefix of an estimator's fit parameters and the model they are for."""
    if not isinstance(estimator, Pipeline):
        return "", estimator
    name, model = estimator.steps[-1]
    return f"{name}__", model


def declines_parameters(problem: Problem) -> str | None:
    """Say which parameters of fit and score stand in the way; `None` if only weights are given."""
    prefix, _ = final_step(problem.estimator)
    others = [name for name in problem.fit_params if name != f"{prefix}sample_weight"]
    others += [name for name in problem.score_params if name != "sample_weight"]
    if others:
        return f"parameters other than weights are passed on: {', '.join(others)}"
    for weight in (problem.sample_weight, problem.score_weight):
        if weight is not None and not _are_weights(weight, problem.table.n_rows):
            return "weights that are not one finite number of at least 0 for every row"
    return None


def _are_weights(weight: Any, n_rows: int) -> bool:
    return weight.shape == (n_rows,) and bool(np.all(np.isfinite(weight)) and np.all(weight >= 0))
