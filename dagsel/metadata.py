"""What `fit` is given besides X and y: who gets it, with metadata routing and without."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sklearn import get_config
from sklearn.base import is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    get_routing_for_object,
    process_routing,
)

from dagsel.engines.linear_model import final_step
from dagsel.scorers import scorer_parts
from dagsel.scoring import resolve_scoring

__all__ = ["Metadata", "routed", "router", "routing_enabled", "unrouted"]

Parameters = Mapping[str, Any]


class Metadata(NamedTuple):
    """Parameters of a fit by who gets them.

    Attributes
    ----------
    groups : array-like or None
        For the splitter.
    fit : mapping
        For the estimator's `fit`.
    score : mapping
        For the scorer.
    routing : bool or None
        Whether the estimator takes its parameters with metadata routing enabled; `None` if it does
        not matter.
    """

    groups: Any
    fit: Parameters
    score: Parameters
    routing: bool | None = None


def routing_enabled() -> bool:
    """Tell whether scikit-learn's metadata routing is enabled, here and now."""
    return bool(get_config()["enable_metadata_routing"])


def unrouted(
    estimator: Any, scoring: Any, groups: Any, params: Parameters, *, weighted_scores: bool = False
) -> Metadata:
    """Hand everything to the estimator's `fit`, and its weights to scores if they are weighted.

    Raises
    ------
    ValueError
        For weights that nothing would be done with.
    """
    prefix, model = final_step(estimator)
    name = f"{prefix}sample_weight"
    if prefix and "sample_weight" in params:
        msg = (
            f"sample_weight was given for a Pipeline, whose steps take parameters by name: give "
            f"{name}= for its last step, or enable scikit-learn's metadata routing"
        )
        raise ValueError(msg)
    weight = params.get(name)
    if weight is not None and not _takes_weights(model.fit):
        msg = f"{name}= was given, but {type(model).__name__}.fit takes no weights"
        raise ValueError(msg)
    if not weighted_scores:
        return Metadata(groups, params, {}, False if params else None)
    if weight is None:
        msg = f"weighted_scores=True weights scores like fits: give {name}= to fit"
        raise ValueError(msg)
    _check_scorer(estimator, model, scoring)
    return Metadata(groups, params, {"sample_weight": weight}, False if params else None)


def _check_scorer(estimator: Any, model: Any, scoring: Any) -> None:
    """Refuse scorers that have no place for weights."""
    scorer = resolve_scoring(estimator, scoring).scorer
    parts = scorer_parts(scorer)
    function = model.score if scoring is None else scorer if parts is None else parts.function
    if not _takes_weights(function):
        name = getattr(function, "__name__", repr(function))
        what = f"{type(model).__name__}.score" if scoring is None else f"scoring function {name}"
        msg = f"weighted_scores=True, but the {what} takes no weights: use another scoring"
        raise ValueError(msg)


def _takes_weights(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return True
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return anything or "sample_weight" in parameters


def router(selector: Any) -> MetadataRouter:
    """Return who takes part in a selection: estimator, splitter and scorer, or a criterion."""
    estimator = selector.estimator
    # A selector within a pipeline is fitted by `fit_transform`.
    fits, splits, scores = (
        MethodMapping().add(caller="fit", callee=callee).add(caller="fit_transform", callee=callee)
        for callee in ("fit", "split", "score")
    )
    found = MetadataRouter(owner=selector).add(estimator=estimator, method_mapping=fits)
    if selector.criterion is not None:
        return found
    # What can be iterated over once must not be, here; ready-made folds take no parameters.
    ready_made = isinstance(selector.cv, Iterator)
    splitter = check_cv([] if ready_made else selector.cv, classifier=is_classifier(estimator))
    return found.add(splitter=splitter, method_mapping=splits).add(
        scorer=check_scoring(estimator, scoring=selector.scoring), method_mapping=scores
    )


def routed(selector: Any, groups: Any, params: Parameters) -> Metadata:
    """Route parameters as scikit-learn's own selector does.

    Raises
    ------
    TypeError, UnsetMetadataPassedError
        For parameters that nobody asks for, or that somebody has not decided upon.
    """
    if selector.weighted_scores:
        msg = (
            "weighted_scores=True is for fits without metadata routing: with it the scorer asks "
            "for weights, by scoring=get_scorer(...).set_score_request(sample_weight=True)"
        )
        raise ValueError(msg)
    given = {**params, **({} if groups is None else {"groups": groups})}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return Metadata(None, {}, {})
    found = process_routing(selector, "fit", **given)
    fit, split, score = (
        dict(found.get(who, {}).get(method, {}))
        for who, method in (("estimator", "fit"), ("splitter", "split"), ("scorer", "score"))
    )
    odd = [name for name in split if name != "groups"]
    if odd:
        msg = f"dagsel passes groups to splitters and nothing else; got {', '.join(odd)}"
        raise ValueError(msg)
    steps = None
    if type(selector.estimator) is Pipeline and set(score) <= {"sample_weight"}:
        steps = _by_step(selector.estimator, fit)
    if steps is None:
        return Metadata(split.get("groups"), fit, score)
    return Metadata(split.get("groups"), steps, score, routing=False)


def _by_step(pipeline: Pipeline, params: Parameters) -> dict[str, Any] | None:
    """Return routed parameters by the names that they have without routing.

    By these names the fast engines know them. `None` if they cannot be passed on by name: because a
    step routes them further, or uses them in `transform`.
    """
    if not params or getattr(pipeline, "transform_input", None):
        return None
    named: dict[str, Any] = {}
    found = process_routing(pipeline, "fit", **params)
    last = pipeline.steps[-1][0]
    for name, step in pipeline.steps:
        if step is None or step == "passthrough":
            continue
        fit = found[name].get("fit" if name == last else "fit_transform")
        if not fit:
            continue
        routes = isinstance(get_routing_for_object(step), MetadataRouter)
        if routes or (name != last and found[name].get("transform")):
            return None
        named.update({f"{name}__{key}": value for key, value in fit.items()})
    return named
