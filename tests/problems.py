"""The problems that every engine and every form of cluster must solve alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    RepeatedKFold,
    ShuffleSplit,
    TimeSeriesSplit,
)


@dataclass(frozen=True)
class Problem:
    """A regression table, and whether scores from moments apply to all of it."""

    name: str
    load: Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]
    fast: bool = True

    def __str__(self) -> str:
        return self.name


def _correlated() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(150, 12)) @ (np.eye(12) + 0.5 * rng.normal(size=(12, 12)))
    y = X[:, ::3] @ rng.normal(size=4) + 2 * rng.normal(size=150)
    return X, y


def _breast_cancer() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # In raw units its smallest singular value is about at LinearRegression's cutoff.
    X, y = datasets.load_breast_cancer(return_X_y=True)
    return X, y.astype(np.float64)


def _standardised_breast_cancer() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    X, y = _breast_cancer()
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def _linnerud() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    X, Y = datasets.load_linnerud(return_X_y=True)
    return X, Y[:, 0]


def _digits() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    X, y = datasets.load_digits(return_X_y=True)
    # Fewer pixels than there are, constant ones among them, so that refits end in time.
    return X[:300, :12], y[:300].astype(np.float64)


PROBLEMS = [
    Problem("diabetes", lambda: datasets.load_diabetes(return_X_y=True)),
    Problem("breast_cancer", _breast_cancer, fast=False),
    Problem("breast_cancer_standardised", _standardised_breast_cancer),
    Problem("wine", lambda: datasets.load_wine(return_X_y=True)),
    Problem("linnerud", _linnerud),
    Problem("correlated", _correlated),
    Problem("digits", _digits, fast=False),
]

SPLITTERS = {
    "kfold": lambda: KFold(5),
    "shuffled": lambda: KFold(4, shuffle=True, random_state=0),
    "group": lambda: GroupKFold(3),
    "time": lambda: TimeSeriesSplit(3),
    "shuffle_split": lambda: ShuffleSplit(3, test_size=0.3, random_state=1),
    "repeated": lambda: RepeatedKFold(n_splits=3, n_repeats=2, random_state=2),
}


def groups_of(n_rows: int) -> NDArray[np.intp]:
    """Return groups of uneven size, not in order."""
    return np.random.default_rng(5).integers(0, max(3, n_rows // 7), size=n_rows)
