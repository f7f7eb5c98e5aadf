"""The problems that every engine and every form of cluster must solve alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    RepeatedKFold,
    ShuffleSplit,
    TimeSeriesSplit,
)

from dagsel.kernels import tableau


@dataclass(frozen=True)
class Problem:
    """A regression table, and the engine that least squares without a penalty gets for it."""

    name: str
    load: Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]
    engine: str = "moments"

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
    Problem("breast_cancer", _breast_cancer, engine="refit"),
    Problem("breast_cancer_standardised", _standardised_breast_cancer),
    Problem("wine", lambda: datasets.load_wine(return_X_y=True)),
    Problem("linnerud", _linnerud),
    Problem("correlated", _correlated),
    Problem("digits", _digits),
]

SPLITTERS = {
    "kfold": lambda: KFold(5),
    "shuffled": lambda: KFold(4, shuffle=True, random_state=0),
    "group": lambda: GroupKFold(3),
    "time": lambda: TimeSeriesSplit(3),
    "shuffle_split": lambda: ShuffleSplit(3, test_size=0.3, random_state=1),
    "repeated": lambda: RepeatedKFold(n_splits=3, n_repeats=2, random_state=2),
}


def product_of(*axes: Collection[Any], plain: Callable[..., bool]) -> list[Any]:
    """Return all combinations of parameters, most of them marked as slow.

    Those of a plain run should have every pair of values of two parameters.

    Parameters
    ----------
    *axes : collections
        The values of each parameter.
    plain : callable
        Told the numbers of the values on their axes; says whether a plain run has them.
    """
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=[] if plain(*(number for number, _ in combination)) else [pytest.mark.slow],
        )
        for combination in itertools.product(*map(enumerate, axes))
    ]


def groups_of(n_rows: int) -> NDArray[np.intp]:
    """Return groups of uneven size, not in order."""
    return np.random.default_rng(5).integers(0, max(3, n_rows // 7), size=n_rows)


@dataclass
class LeastSquaresProblem:
    """Random rows in K folds, and plain refits on them."""

    X: np.ndarray
    Y: np.ndarray
    n_folds: int

    @classmethod
    def random(cls, seed, n=90, p=7, n_targets=2, n_folds=3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, p)) @ (np.eye(p) + 0.3 * rng.normal(size=(p, p))) + 5
        Y = X[:, :3] @ rng.normal(size=(3, n_targets)) + rng.normal(size=(n, n_targets))
        return cls(X, Y, n_folds)

    def rows(self, fold):
        test = np.array_split(np.arange(len(self.X)), self.n_folds)[fold]
        return np.setdiff1d(np.arange(len(self.X)), test), test

    def parts(self, library, fold):
        """G, b, H, c and s of a fold."""
        train, test = self.rows(fold)
        mean, target_mean = self.X[train].mean(0), self.Y[train].mean(0)
        A, B = self.X[train] - mean, self.Y[train] - target_mean
        C, D = self.X[test] - mean, self.Y[test] - target_mean
        arrays = (A.T @ A, A.T @ B, C.T @ C, C.T @ D, (D * D).sum(0))
        return tuple(map(library.asarray, arrays))

    def tableau(self, library, full, room=3):
        build = tableau.full_tableau if full else tableau.empty_tableau
        folds = [build(library.xp, *self.parts(library, f)) for f in range(self.n_folds)]
        return tableau.with_room(library.xp, tableau.stack_folds(library.xp, folds), room)

    def refit_errors(self, fold, active):
        train, test = self.rows(fold)
        columns = sorted(active)
        if not columns:
            return ((self.Y[test] - self.Y[train].mean(0)) ** 2).sum(0)
        model = LinearRegression(tol=1e-12).fit(self.X[train][:, columns], self.Y[train])
        return ((self.Y[test] - model.predict(self.X[test][:, columns])) ** 2).sum(0)
