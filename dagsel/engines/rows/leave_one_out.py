"""Leave-one-out in closed form: one state on all rows, and no folds.

With Z = X W (the images of removals), leverages h_i = x_i'W x_i ω_i (and the intercept's
ω_i / Σω), and the gap 1 − h_i, leaving row i out changes its residual e_i to e_i / (1 − h_i).
Removing column j moves e_i by z_ij β_j / W_jj and the gap by ω_i z_ij² / W_jj; adding one moves
it by its image likewise, and the gap by −ω_i z_ij² / ρ_j.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import EPSILON, namespace, to_device_of, to_host
from dagsel.engines.base import Problem
from dagsel.engines.linear_model import LinearModel
from dagsel.engines.rows.certificate import relative_error
from dagsel.engines.rows.fold import CLEAR_OF_CUTOFF, FoldRows, RowsSetting, start_rows
from dagsel.engines.rows.metrics import Measure, TestRowsFacts, Verdict
from dagsel.engines.rows.score import FoldRequest, FoldScores, Variants, all_variants, chunks
from dagsel.engines.rows.state import FoldStart, FoldState, coded_targets
from dagsel.exceptions import NotCertifiedError
from dagsel.kernels.candidates import candidate_images
from dagsel.kernels.metrics import score_from_errors

__all__ = ["leaves_one_out", "score_left_out", "start_left_out"]

Floats = NDArray[np.float64]


def leaves_one_out(problem: Problem, model: LinearModel, n_largest: int) -> bool:
    """Tell whether every fold leaves one row out, and the closed form covers the model.

    Parameters
    ----------
    problem : Problem
    model : LinearModel
    n_largest : int
        Columns of the largest subset that can be scored.
    """
    folds, n = problem.folds, problem.table.n_rows
    if folds.has_repeats or np.any(folds.test_sizes != 1) or np.any(folds.train_sizes != n - 1):
        return False
    # Each fold's scaler has another mean, and no intercept makes up for that.
    if model.standardise is not None and model.standardise[0] and not model.fit_intercept:
        return False
    # A penalty is in units of the training rows' own spread, which each fold has another.
    if model.penalty and model.scales_features:
        return False
    if n_largest + 3 > n or problem.score_weight is not None:
        return False
    return all(fold.test[0] not in fold.train for fold in folds)


def start_left_out(
    setting: RowsSetting,
    fold: FoldRows,
    folds: tuple[int, ...],
    features: Floats,
    target: NDArray[np.float64],
) -> FoldStart:
    """Build the state on all rows; `fold.test` are the rows left out, one for each of `folds`.

    Raises
    ------
    NotCertifiedError
        As `dagsel.engines.rows.fold.start_rows`; or if a subset has not full rank.
    """
    targets, classes = coded_targets(setting, fold.fold, target, fold.train)
    if classes is not None and np.min(np.unique(target, return_counts=True)[1]) < 2:
        msg = "a class has a single row, which is in no training rows when it is left out"
        raise NotCertifiedError(msg)
    rows = start_rows(setting, fold, features, targets)
    if not rows.safe:
        msg = (
            "the columns are linearly dependent, so that leave-one-out has no closed form; drop "
            "dependent columns to stay on the fast engine"
        )
        raise NotCertifiedError(msg)
    left_out = targets[fold.test] - rows.centre
    scale = float(np.sqrt(np.mean(left_out**2)))
    facts = TestRowsFacts(target[fold.test], None, classes, scale)
    return FoldStart(setting, rows, facts, folds, np.zeros(targets.shape[1]), targets[fold.test])


def score_left_out(measure: Measure, state: FoldState, request: FoldRequest) -> FoldScores:
    """Score a request on every row left out.

    Raises
    ------
    NotCertifiedError
        If a row determines a coefficient, so that it cannot be left out.
    """
    gap = _gaps(state)
    parts: list[FoldScores] = []
    for variants in all_variants(state, request):
        for here in chunks(state, len(variants.positions)):
            residuals, gaps = _residuals_and_gaps(state, request, variants, here, gap)
            _check_gaps(state, gaps)
            error = relative_error(variants.growth[here])[:, None] / gaps
            parts.append(_scores(measure, state, residuals / gaps[:, None, :], error))
    return FoldScores(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _weights(state: FoldState) -> Floats:
    fold = state.start.rows.rows
    weight = np.ones(len(fold.train)) if fold.weight is None else fold.weight
    return weight[np.searchsorted(fold.train, fold.test)]


def _gaps(state: FoldState) -> Floats:
    """Return 1 − h of every row left out; shape (q,)."""
    factors, fold = state.factors, state.start.rows.rows
    xp = namespace(factors.train)
    there = xp.astype(factors.active, factors.test.dtype)
    leverage = to_host(xp.sum(factors.test * factors.steps * there[:, None], axis=0))
    total = len(fold.train) if fold.weight is None else float(np.sum(fold.weight))
    if state.start.setting.model.fit_intercept:
        leverage = leverage + 1 / total
    gaps: Floats = 1 - _weights(state) * leverage
    return gaps


def _residuals_and_gaps(
    state: FoldState, request: FoldRequest, variants: Variants, here: slice, gap: Floats
) -> tuple[Floats, Floats]:
    """Return residuals with all rows (c, t, q) and gaps (c, q) of some variants."""
    factors = variants.factors
    xp = namespace(factors.train)
    residuals = to_host(factors.residuals).T[None, :, :]
    if variants.steps is None:
        moved = gap if variants.factors is state.factors else None
        if moved is None:
            moved = _gaps(replace(state, factors=factors))
        return residuals, moved[None, :]
    positions = variants.positions[here]
    chosen = to_device_of(factors.train, positions)
    images = to_host(candidate_images(xp, factors, variants.steps, chosen))
    gain = to_host(variants.steps.gain)[positions]
    pivot = to_host(variants.steps.pivot)[positions]
    # A constant column has an image of zeros: it changes nothing.
    change = _weights(state) * images**2 / pivot[:, None]
    gaps = gap + change if request.removal else gap - change
    return residuals + gain[:, :, None] * images[:, None, :], gaps


def _check_gaps(state: FoldState, gaps: Floats) -> None:
    smallest = float(np.min(gaps))
    model, factors = state.start.setting.model, state.factors
    clear = smallest > 1e-6
    if model.cutoff is not None:
        # σ_min² of the other rows is at least the gap's part of that of all rows.
        clear &= (
            factors.inverse_norm * factors.norm * (CLEAR_OF_CUTOFF * model.cutoff) ** 2 < smallest
        )
    if not clear:
        row = int(state.start.rows.rows.test[int(np.argmin(np.min(gaps, axis=0)))])
        msg = (
            f"row {row} determines a coefficient almost alone, so that leave-one-out has no closed "
            "form there; drop the column in which it stands out to stay on the fast engine"
        )
        raise NotCertifiedError(msg)


def _scores(measure: Measure, state: FoldState, residuals: Floats, error: Floats) -> FoldScores:
    """Return scores of rows that have been left out; residuals (c, t, q), error (c, q)."""
    start = state.start
    length = np.abs(residuals)
    shift = error * (start.facts.scale + np.max(length, axis=1)) + 4 * EPSILON * start.facts.scale
    if measure.kind == "squared":
        assert measure.metric is not None
        scores, doubtful = (
            _from_residuals(measure, each) for each in (length, length + shift[:, None, :])
        )
        doubt = np.abs(doubtful - scores)
    elif measure.kind in ("absolute", "median", "largest"):
        scores, doubt = -np.mean(length, axis=1), shift
    else:
        return _judged(measure, start, residuals, error)
    size = np.abs(scores)
    # The error of one row can vanish by luck: it is measured by the mean.
    return FoldScores(scores, doubt, np.maximum(size, np.mean(size, axis=1)[:, None]))


def _from_residuals(measure: Measure, length: Floats) -> Floats:
    assert measure.metric is not None
    q = length.shape[2]
    errors = np.transpose(length * length, (2, 0, 1))
    variation = np.zeros((q, length.shape[1]))
    scores: Floats = score_from_errors(np, measure.metric, errors, np.ones(q), variation)
    return scores.T


def _judged(measure: Measure, start: FoldStart, residuals: Floats, error: Floats) -> FoldScores:
    """Judge every row on its own, as a metric of one row."""
    assert start.left_out is not None
    predictions = start.left_out.T[None, :, :] - residuals
    verdicts: list[Verdict] = []
    for row in range(predictions.shape[2]):
        facts = start.facts._replace(truth=start.facts.truth[row : row + 1])
        verdicts.append(measure.judge(facts, predictions[:, :, row : row + 1], error[:, row]))
    scores, doubt = (np.stack(each, axis=1) for each in zip(*verdicts, strict=True))
    # A called metric of one row is as exact as its prediction.
    doubt = np.where(np.isnan(doubt), error * np.abs(scores), doubt)
    size = np.abs(scores)
    return FoldScores(scores, doubt, np.maximum(size, np.mean(size, axis=1)[:, None]))
