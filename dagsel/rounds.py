"""One decided round of a selection, in terms of columns and their names."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagsel.moves import Action, Move

__all__ = ["Context", "Round", "spread"]


@dataclass(frozen=True, slots=True)
class Context:
    """What features and scores stand for. Shared by all rounds of a selection."""

    n_columns: int
    names: tuple[Hashable, ...] | None
    groups: tuple[tuple[int, ...], ...] | None
    scoring: str

    @property
    def n_features(self) -> int:
        """Number of columns; of groups, with feature groups."""
        return self.n_columns if self.groups is None else len(self.groups)

    def name(self, column: int) -> Hashable:
        """Name of a column; its index where columns have no names."""
        return column if self.names is None else self.names[column]

    def label(self, feature: int) -> Hashable:
        """Name of a feature; of a group the tuple of its columns' names."""
        if self.groups is None:
            return self.name(feature)
        return tuple(self.name(column) for column in self.groups[feature])

    def expand(self, features: Iterable[int]) -> tuple[int, ...]:
        """Columns of features, ascending if the features are."""
        if self.groups is None:
            return tuple(features)
        return tuple(sorted(column for feature in features for column in self.groups[feature]))


@dataclass(frozen=True, slots=True, repr=False)
class Round:
    """One decided round of a selection.

    A feature is a column or, with feature groups, a group of columns. Its label is the column's
    name (its index where columns have no names); a group's label is the tuple of its columns'.

    Attributes
    ----------
    number : int
        Position in the path, from 0.
    seconds : float
        Wall-clock time that the round took.
    engine : str
        What scored it.
    move : Move
        The decision in terms of feature indices.
    """

    number: int
    seconds: float
    engine: str
    move: Move
    _context: Context

    def __repr__(self) -> str:
        moved = " ".join([self.action, ", ".join(map(repr, self.moved))]).rstrip()
        return f"<Round {self.number}: {moved}, {self.n_features} features, mean {self.mean:.6g}>"

    @property
    def action(self) -> Action:
        """What was done: "start", "add" or "remove"."""
        return self.move.action

    @property
    def feature_index(self) -> int | None:
        """Index of the feature that was moved (of its group, with feature groups).

        None at the start, and where several features were moved.
        """
        return self.move.feature

    @property
    def feature(self) -> Hashable:
        """Label of the feature that was moved.

        None at the start, and where several features were moved: see `moved`.
        """
        return self._label(self.move.feature)

    @property
    def moved(self) -> tuple[Hashable, ...]:
        """Labels of all features that were moved, best first; empty at the start."""
        return tuple(self._context.label(feature) for feature in self.move.features)

    @property
    def scoring(self) -> str:
        """Name of the score."""
        return self._context.scoring

    @property
    def n_features(self) -> int:
        """Number of features (of groups, with feature groups) after the move."""
        return self.move.size

    @property
    def features(self) -> tuple[int, ...]:
        """Features (groups, with feature groups) after the move, ascending."""
        return self.move.subset

    @property
    def subset(self) -> tuple[int, ...]:
        """Indices of the columns after the move, ascending."""
        return self._context.expand(self.move.subset)

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of the columns after the move; their indices where they have no names."""
        return tuple(self._context.name(column) for column in self.subset)

    @property
    def fold_scores(self) -> NDArray[np.float64]:
        """Scores of the subset, one per fold."""
        return np.array(self.move.fold_scores, dtype=np.float64)

    @property
    def mean(self) -> float:
        """Mean of `fold_scores`."""
        return self.move.mean

    @property
    def std(self) -> float:
        """Standard deviation of `fold_scores` with divisor n, as in scikit-learn's cv_results_."""
        return spread(self.fold_scores, ddof=0)

    @property
    def std_err(self) -> float:
        """Standard error of `mean`, from the deviation with divisor n - 1; NaN for one fold."""
        return spread(self.fold_scores, ddof=1) / math.sqrt(len(self.move.fold_scores))

    @property
    def runner_up(self) -> Hashable:
        """Label of the feature that would have been moved otherwise, or next; None if none."""
        return self._label(self.move.runner_up)

    @property
    def runner_up_mean(self) -> float | None:
        """Mean score that moving the runner-up alone would have given."""
        return self.move.runner_up_mean

    @property
    def tied(self) -> tuple[Hashable, ...]:
        """Labels of the features that were tied with the one moved (the last of several)."""
        return tuple(self._context.label(feature) for feature in self.move.tied)

    def _label(self, feature: int | None) -> Hashable:
        return None if feature is None else self._context.label(feature)

    def ties_with(self, mean: float, rounding: float) -> bool:
        """Whether the mean score is as good as another, which may be better by rounding only."""
        return self.mean >= mean - max(self.move.rounding, rounding)


def spread(scores: NDArray[np.float64], ddof: int) -> float:
    """Return the standard deviation of scores; NaN for too few or infinite ones."""
    if scores.size <= ddof:
        return math.nan
    with np.errstate(invalid="ignore"):  # infinite scores have the deviation NaN
        return float(np.std(scores, ddof=ddof))
