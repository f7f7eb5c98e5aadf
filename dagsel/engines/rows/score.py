"""Scores of a request in a fold, from the fold's factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import EPSILON, Array, namespace, to_device_of, to_host
from dagsel.engines.accuracy import MAX_RELATIVE_ERROR
from dagsel.engines.rows.certificate import (
    Candidates,
    candidate_growth,
    check_noise,
    check_subsets,
    relative_error,
    step_growth,
)
from dagsel.engines.rows.metrics import Measure, Verdict, snapped
from dagsel.engines.rows.state import FoldState, rows_equal
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.candidates import (
    Steps,
    candidate_residuals,
    candidate_steps,
    toggled_errors,
)
from dagsel.kernels.factor_updates import toggle
from dagsel.kernels.factors import Factors, columns_kept
from dagsel.kernels.metrics import score_from_errors

__all__ = [
    "FoldRequest",
    "FoldScores",
    "Variants",
    "all_variants",
    "certified_table",
    "chunks",
    "score_fold",
    "with_shaken_doubt",
]

Floats = NDArray[np.float64]
# Predictions that are in memory at once.
_CHUNK_NUMBERS = 2**22
# Candidates whose score is looked into where a called metric has an unknown sensitivity.
_CONTENDERS = 3


class FoldRequest(NamedTuple):
    """A request in terms of the factors' columns.

    Attributes
    ----------
    candidates : ndarray of int, or list of ndarray of int
        Position that each candidate toggles, or positions. Empty: the subset itself is scored.
    removal : bool
        Whether candidates leave the model.
    """

    candidates: NDArray[np.intp] | list[NDArray[np.intp]]
    removal: bool


class FoldScores(NamedTuple):
    """Scores of a request in some folds; greater is better.

    Attributes
    ----------
    scores, doubt, size : ndarray of shape (c, f)
        What rounding may change scores by, NaN where that is not known yet, and what errors are
        measured by.
    """

    scores: Floats
    doubt: Floats
    size: Floats


class Variants(NamedTuple):
    """Where variants of a request are to be found: some steps from one state.

    Attributes
    ----------
    factors : Factors
    steps : Steps or None
        `None` if the state itself is the only variant.
    positions : ndarray of int of shape (c,)
        Columns of the factors whose steps these are.
    growth : ndarray of shape (c,)
        Of rounding errors.
    step_growth : ndarray of shape (c,)
        The same, of the steps by themselves.
    changes : dict
        What is added to the residuals of a candidate because singular values are cut off.
    """

    factors: Factors
    steps: Steps | None
    positions: NDArray[np.intp]
    growth: Floats
    step_growth: Floats
    changes: dict[int, Array]


def score_fold(measure: Measure, state: FoldState, request: FoldRequest) -> FoldScores:
    """Score a request in one fold.

    Raises
    ------
    NotCertifiedError
        If a candidate's singular values are not clear of the estimator's cutoff.
    """
    parts = [
        _score_variants(measure, state, variants, request)
        for variants in all_variants(state, request)
    ]
    scores, doubt, size = (np.concatenate(each)[:, None] for each in zip(*parts, strict=True))
    return FoldScores(scores, doubt, size)


def all_variants(state: FoldState, request: FoldRequest) -> list[Variants]:
    """Say where every variant is, and certify it."""
    factors = state.factors
    if not len(request.candidates):
        changes = _check(state, factors, None)
        return [_alone(factors, changes)]
    if isinstance(request.candidates, np.ndarray):
        return [_single_columns(state, request, request.candidates)]
    return [_toggled_group(state, request, each) for each in request.candidates]


def _single_columns(
    state: FoldState, request: FoldRequest, positions: NDArray[np.intp]
) -> Variants:
    factors = state.factors
    xp = namespace(factors.train)
    steps = candidate_steps(
        xp, factors, to_device_of(factors.train, positions), removal=request.removal
    )
    candidates = Candidates.of(factors, steps, positions, removal=request.removal)
    if steps.unclear:
        msg = (
            f"in the training rows of fold {state.start.rows.rows.fold} some columns are so near "
            "to linear dependence that rounding decides whether they are; drop or standardise "
            "them to stay on the fast engine"
        )
        raise NotCertifiedError(msg)
    changes = _check(state, factors, candidates)
    growth = candidate_growth(xp, factors, candidates)
    return Variants(
        factors, steps, positions, growth, step_growth(xp, factors, candidates), changes
    )


def _toggled_group(state: FoldState, request: FoldRequest, columns: NDArray[np.intp]) -> Variants:
    """Toggle a group of columns, one after the other, on a copy of what that takes."""
    factors = state.factors
    xp = namespace(factors.train)
    changes: dict[int, Array] = {}
    setting = state.start.setting
    if request.removal and state.start.rows.safe and setting.test_rows != "left out":
        # Removals concern the rows of the group alone.
        keep = to_device_of(factors.train, columns)
        group = columns_kept(xp, factors, keep, complete=False)
        for place in range(len(columns)):
            group = toggle(xp, group, place, overwrite=True, keep_inactive=False)
    else:
        group = factors
        for number, place in enumerate(columns):
            group = toggle(xp, group, int(place), overwrite=number > 0)
        changes = _check(state, group, None)
    return _alone(group, changes)


def _alone(factors: Factors, changes: dict[int, Array]) -> Variants:
    growth = np.array([factors.growth])
    return Variants(factors, None, np.zeros(1, np.intp), growth, np.zeros(1), changes)


def _check(state: FoldState, factors: Factors, candidates: Candidates | None) -> dict[int, Array]:
    start, model = state.start.rows, state.start.setting.model
    if factors.unclear:
        msg = (
            f"in the training rows of fold {start.rows.fold} some columns are so near to linear "
            "dependence that rounding decides whether they are"
        )
        raise NotCertifiedError(msg)
    check_noise(model, start.rows.fold, state.noise, factors, candidates)
    if start.safe:
        return {}
    xp = namespace(factors.train)
    return check_subsets(xp, model, start.rows.fold, factors, candidates)


def _score_variants(
    measure: Measure, state: FoldState, variants: Variants, request: FoldRequest
) -> tuple[Floats, Floats, Floats]:
    if measure.kind == "squared":
        return _squared(measure, state, variants)
    scores, doubts = [], []
    for here in chunks(state, len(variants.positions)):
        predictions, error = _predictions(state, variants, here)
        if measure.kind == "numbers" and state.start.facts.classes is not None:
            predictions = _snapped(state, variants, request, here, predictions, error)
        verdict = measure.judge(state.start.facts, predictions, error)
        scores.append(verdict.scores)
        doubts.append(verdict.doubt)
    found = Verdict(np.concatenate(scores), np.concatenate(doubts))
    size = np.abs(found.scores)
    if measure.kind in ("accuracy", "labels"):
        size = np.maximum(size, 1.0)
    return found.scores, found.doubt, size


def _predictions(state: FoldState, variants: Variants, here: slice) -> tuple[Floats, Floats]:
    """Return predictions (c, t, q) of some variants, and their relative errors (c,).

    A step can bring predictions down from larger ones, whose rounding stays.
    """
    predictions = -_residuals(variants, here)
    now = float(np.sqrt(np.mean(to_host(state.factors.residuals) ** 2)))
    size = state.start.facts.scale + np.sqrt(np.mean(predictions**2, axis=(1, 2)))
    error = relative_error(variants.growth[here] + variants.step_growth[here])
    return predictions, error + 8 * EPSILON * now / size


def chunks(state: FoldState, n_variants: int) -> Iterator[slice]:
    """Cut variants into runs whose predictions are in memory at once."""
    size = max(1, _CHUNK_NUMBERS // max(1, int(state.factors.residuals.size)))
    for begin in range(0, n_variants, size):
        yield slice(begin, begin + size)


def _residuals(variants: Variants, here: slice) -> Floats:
    """Return the residuals of some variants; shape (c, t, q)."""
    factors = variants.factors
    xp = namespace(factors.train)
    if variants.steps is None:
        change = variants.changes.get(0)
        only = factors.residuals if change is None else factors.residuals + change
        return to_host(only.T[None, :, :])
    positions = variants.positions[here]
    chosen = to_device_of(factors.train, positions)
    found = to_host(candidate_residuals(xp, factors, variants.steps, chosen))
    for which, change in variants.changes.items():
        if 0 <= which - here.start < len(positions):
            found[which - here.start] += to_host(change).T
    return found


def _snapped(
    state: FoldState,
    variants: Variants,
    request: FoldRequest,
    here: slice,
    predictions: Floats,
    error: Floats,
) -> Floats:
    """Make decisions of equal test rows equal, for metrics that look at their order."""
    active = to_host(state.factors.active)
    candidates: Any = () if variants.steps is None else request.candidates[here]
    found = predictions.copy()
    for number, decisions in enumerate(predictions):
        subset = active.copy()
        if len(candidates):
            subset[candidates[number]] ^= True
        elif variants.factors.complete:
            subset = to_host(variants.factors.active)
        reach = error[number] * (1 + np.max(np.abs(decisions)))
        for target, row in enumerate(decisions):
            found[number, target] = snapped(row, reach, _same_rows(state.factors, subset))
    return found


def _same_rows(factors: Factors, subset: NDArray[np.bool_]) -> Callable[[NDArray[np.intp]], bool]:
    return lambda members: rows_equal(factors, subset, members)


def _squared(
    measure: Measure, state: FoldState, variants: Variants
) -> tuple[Floats, Floats, Floats]:
    factors = variants.factors
    xp = namespace(factors.train)
    if variants.steps is None:
        errors = to_host(xp.sum(factors.residuals * factors.residuals, axis=0))[None, :]
        reach = np.zeros_like(errors)
    else:
        chosen = to_device_of(factors.train, variants.positions)
        errors, reach = map(to_host, toggled_errors(xp, factors, variants.steps, chosen))
    errors = np.maximum(errors, 0.0)
    made_from = errors
    if variants.changes:
        residuals = (_residuals(variants, here) for here in chunks(state, len(errors)))
        errors = np.concatenate([np.sum(each * each, axis=2) for each in residuals])
        made_from = np.maximum(errors, made_from)
    start = state.start
    error = relative_error(variants.growth)[:, None]
    step = error * (np.sqrt(start.rows.spread) + np.sqrt(made_from))
    step = step + relative_error(variants.step_growth)[:, None] * np.sqrt(reach)
    now = to_host(xp.sum(factors.residuals * factors.residuals, axis=0))
    step = step + 4 * EPSILON * np.sqrt(now + reach)
    doubt = 2 * np.sqrt(errors) * step + step * step
    scores, doubtful = (_from_errors(measure, state, sums) for sums in (errors, errors + doubt))
    size = np.abs(scores)
    if measure.metric == "r2":
        size = np.maximum(size, 1.0)
    return scores, np.abs(doubtful - scores), size


def _from_errors(measure: Measure, state: FoldState, errors: Floats) -> Floats:
    assert measure.metric is not None
    start = state.start
    n_rows = np.array([float(len(start.facts.truth))])
    weight = start.facts.weight
    total = n_rows if weight is None else np.array([float(np.sum(weight))])
    (scores,) = score_from_errors(
        np, measure.metric, errors[None, :, :], n_rows, start.variation[None, :], total
    )
    found: Floats = scores
    return found


def with_shaken_doubt(
    measure: Measure, found: FoldScores, states: Sequence[FoldState], request: FoldRequest
) -> FoldScores:
    """Find out how much rounding can change a called metric, for candidates that can be chosen.

    Others are taken to have the largest doubt of these.
    """
    means = np.nan_to_num(np.mean(found.scores, axis=1), nan=-np.inf)
    doubt = np.full_like(found.scores, np.nan)
    for row in np.argsort(-means, kind="stable")[:_CONTENDERS]:
        only = request._replace(candidates=request.candidates[row : row + 1])
        for column, state in enumerate(states):
            if np.isnan(found.scores[row, column]):
                continue
            (variants,) = all_variants(state, only)
            alone = slice(0, 1)
            predictions, error = _predictions(state, variants, alone)
            if state.start.facts.classes is not None:
                predictions = _snapped(state, variants, only, alone, predictions, error)
            doubt[row, column] = measure.shaken(state.start.facts, predictions[0], float(error[0]))
    largest = np.nanmax(doubt, axis=0, initial=0.0)
    return found._replace(doubt=np.where(np.isnan(doubt), largest[None, :], doubt))


def certified_table(
    measure: Measure, found: FoldScores, folds: Sequence[int]
) -> tuple[Floats, float]:
    """Return the scores and the rounding of their means, or raise NotCertifiedError.

    Candidates that can be chosen must be exact to 1e-9, the others to 1e-8: where one is near to
    singularity its score is poor, and known less well.

    Parameters
    ----------
    measure : Measure
        What was scored.
    found : FoldScores
        Of the folds of a shard.
    folds : sequence of int
        Their numbers.
    """
    scores, doubt = found.scores, np.where(np.isnan(found.scores), 0.0, found.doubt)
    infinite = np.flatnonzero(~np.all(np.isfinite(scores) | np.isnan(scores), axis=0))
    if len(infinite):
        msg = f"a score in fold {folds[infinite[0]]} is not finite"
        raise NotCertifiedError(msg)
    means, shifts = np.mean(scores, axis=1), np.mean(doubt, axis=1)
    usable = ~np.isnan(means)
    if not np.any(usable):
        return scores, 0.0
    best = np.max((means - shifts)[usable])
    contends = usable & (means + shifts >= best)
    limit = np.where(contends, 1.0, 10.0) * MAX_RELATIVE_ERROR
    # Not `>`: what is not a number is not certain.
    uncertain = ~(doubt <= limit[:, None] * found.size) & usable[:, None]
    if np.any(uncertain):
        fold = folds[int(np.argmax(np.any(uncertain, axis=0)))]
        raise NotCertifiedError(_explain_doubt(measure, fold))
    winner = int(np.nanargmax(means))
    return scores, float(2 * shifts[winner] + 4 * EPSILON * abs(means[winner]))


def _explain_doubt(measure: Measure, fold: int) -> str:
    other = (
        "predictions are within rounding of a decision's threshold"
        if measure.kind in ("accuracy", "labels")
        else "the model fits the test rows almost exactly"
    )
    return (
        f"scores of fold {fold} from the rows would not be right to 1e-9, because columns are near "
        f"to linearly dependent or {other}; drop such columns to stay on the fast engine"
    )
