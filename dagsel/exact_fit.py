"""A fit that is too good: most often the target is among the features."""

from __future__ import annotations

import numpy as np

from dagsel.engines.base import Problem
from dagsel.engines.linear_model import squared_metric
from dagsel.rounds import Round

__all__ = ["explain_exact_fit"]

# Of the target's variance: what a fit leaves that rounding alone can leave.
_NOTHING_LEFT = 1e-12


def explain_exact_fit(problem: Problem, done: Round) -> str | None:
    """Say that a round's model fits the test rows exactly; `None` if it does not.

    Of scores by squared errors: with others a perfect score need not be odd.
    """
    if problem.scoring.criterion is not None:
        return None
    metric = squared_metric(problem.scoring.scorer)
    if metric is None or np.asarray(problem.table.target).dtype.kind not in "biuf":
        return None
    if not 1 - _explained(metric, problem, done.mean) <= _NOTHING_LEFT:
        return None
    return (
        f"with {done.n_features} features the model fits the test rows of every fold exactly "
        f"({done.scoring} {done.mean:.6g}): is the target, or a copy of it, among the features?"
    )


def _explained(metric: str, problem: Problem, mean: float) -> float:
    """Return the share of the target's variance that a mean score says is explained."""
    if metric == "r2":
        return mean
    variance = float(np.mean(np.var(np.asarray(problem.table.target, dtype=np.float64), axis=0)))
    left = mean * mean if "root" in metric else abs(mean)
    return 1 - left / variance if variance > 0 else 0.0
