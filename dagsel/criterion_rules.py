"""What an information criterion or a test asks of the rest of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

from dagsel.criterion import Criterion, CriterionName
from dagsel.data.blocks import Table
from dagsel.engines.base import Scoring
from dagsel.engines.linear_model import final_step, linear_model
from dagsel.exceptions import DataError
from dagsel.search import Search

__all__ = [
    "check_criterion",
    "check_search_of_moves",
    "check_target",
    "criterion_scoring",
    "resolve_criterion",
    "weights_in_scores",
]


def criterion_scoring(criterion: Criterion) -> Scoring:
    """Return a criterion in the place of a metric."""
    return Scoring(criterion.name, _no_scorer, criterion)


def resolve_criterion(criterion: CriterionName | Criterion, alpha: float) -> Criterion:
    """Return the criterion of a name; one that is given ready-made has its own level."""
    return criterion if isinstance(criterion, Criterion) else Criterion(criterion, alpha=alpha)


def _no_scorer(*args: Any, **kwargs: Any) -> float:
    """Stand where a scorer would be: nothing is scored on test rows."""
    msg = "a criterion is no scorer: it needs a fit to all rows"
    raise TypeError(msg)


def check_criterion(
    criterion: Criterion,
    estimator: Any,
    scoring: Any,
    cv: Any,
    groups: Any,
    *,
    clone_estimator: bool,
) -> None:
    """Refuse what a criterion cannot be combined with."""
    name = f"criterion={criterion.name!r}"
    if scoring is not None:
        msg = f"{name} takes the place of a metric: leave scoring at None; got {scoring!r}"
        raise ValueError(msg)
    if not (cv is None or (isinstance(cv, int) and cv == 5)) or groups is not None:
        what = "cv at its default" if groups is None else "out groups"
        msg = f"{name} takes the place of cross-validation: leave {what}"
        raise ValueError(msg)
    _, model = final_step(estimator)
    if type(model) is not LinearRegression or isinstance(linear_model(estimator), str):
        msg = (
            f"{name} needs LinearRegression(positive=False), by itself or after a StandardScaler; "
            f"got {estimator!r}. It counts the parameters of a least-squares fit, and a penalty, a "
            "constraint or another model has no such number: use cross-validation (cv, scoring)"
        )
        raise ValueError(msg)
    if not clone_estimator:
        msg = f"{name} needs clones of the estimator: use clone_estimator=True"
        raise ValueError(msg)


def check_search_of_moves(search: Search) -> None:
    """Refuse searches that compare subsets, which have no p-value."""
    odd = {
        "floating=True": search.floating,
        "step": search.step != 1,
        "tol": search.tol is not None,
        "patience": search.patience is not None,
        "score_start=True": search.score_start,
    }
    clashes = [name for name, given in odd.items() if given]
    if clashes:
        msg = (
            "a p-value belongs to the move of one feature and not to a subset, so that subsets "
            f"cannot be compared by it: leave out {', '.join(clashes)}, or use a criterion such as "
            "'bic'"
        )
        raise ValueError(msg)


def weights_in_scores(estimator: Any, fit_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fit's weights as those of scores: a criterion sums the errors of the fit."""
    prefix, _ = final_step(estimator)
    weight = fit_params.get(f"{prefix}sample_weight")
    return {} if weight is None else {"sample_weight": weight}


def check_target(table: Table) -> None:
    """Refuse targets that have no residual sum of squares."""
    target = np.asarray(table.target)
    if target.ndim > 1 and target.shape[1] != 1:
        msg = f"a criterion judges the fit of one target; got {target.shape[1]} of them"
        raise DataError(msg)
    if target.dtype.kind not in "fiub":
        msg = f"a criterion needs a numeric target; got one of dtype {target.dtype}"
        raise DataError(msg)
