"""Scores of many predictions of the same rows at once, as scikit-learn's metrics compute them.

Predictions have the shape (c, t, q): c candidates, t targets, q rows.
"""

from __future__ import annotations

from typing import Any

from dagsel.backend import Array

__all__ = [
    "accuracy",
    "chosen_classes",
    "max_error",
    "mean_absolute_error",
    "median_absolute_error",
]


def mean_absolute_error(
    xp: Any, truth: Array, predictions: Array, weight: Array | None = None
) -> Array:
    """Return the mean absolute error of each candidate, targets averaged; shape (c,).

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    truth : array of shape (t, q)
    predictions : array of shape (c, t, q)
    weight : array of shape (q,), optional
    """
    errors = xp.abs(truth[None, :, :] - predictions)
    if weight is None:
        return xp.mean(xp.mean(errors, axis=2), axis=1)
    return xp.mean(xp.matmul(errors, weight) / xp.sum(weight), axis=1)


def median_absolute_error(xp: Any, truth: Array, predictions: Array) -> Array:
    """Return the median absolute error of each candidate, targets averaged; shape (c,)."""
    errors = xp.sort(xp.abs(truth[None, :, :] - predictions), axis=2)
    q = errors.shape[2]
    middle = (errors[:, :, (q - 1) // 2] + errors[:, :, q // 2]) / 2
    return xp.mean(middle, axis=1)


def max_error(xp: Any, truth: Array, predictions: Array) -> Array:
    """Return the largest absolute error of each candidate over rows and targets; shape (c,)."""
    return xp.max(xp.max(xp.abs(truth[None, :, :] - predictions), axis=2), axis=1)


def chosen_classes(xp: Any, decisions: Array) -> tuple[Array, Array]:
    """Return the class that each row is given, and by what margin.

    Parameters
    ----------
    xp : namespace
        Array API namespace of `decisions`.
    decisions : array of shape (c, t, q)
        With one target for two classes: the second where it is positive. Otherwise one target for
        each class: the largest, the first of equal ones.

    Returns
    -------
    array of int of shape (c, q), array of shape (c, q)
        Rows whose margin is within rounding could be given another class.
    """
    if decisions.shape[1] == 1:
        only = decisions[:, 0, :]
        return xp.astype(only > 0, xp.int64), xp.abs(only)
    ordered = xp.sort(decisions, axis=1)
    return xp.argmax(decisions, axis=1), ordered[:, -1, :] - ordered[:, -2, :]


def accuracy(xp: Any, truth: Array, classes: Array, weight: Array | None = None) -> Array:
    """Return the share of rows that are given their class; shape (c,).

    Parameters
    ----------
    xp : namespace
        Array API namespace of the arrays.
    truth : array of int of shape (q,)
    classes : array of int of shape (c, q)
    weight : array of shape (q,), optional
    """
    dtype = xp.float64
    right = xp.astype(classes == truth[None, :], dtype)
    if weight is None:
        return xp.mean(right, axis=1)
    return xp.matmul(right, weight) / xp.sum(weight)
