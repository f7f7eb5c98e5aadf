"""Recursive elimination from factors of the rows: any rank, and any metric of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import get_scorer

from dagsel.backend import EPSILON, to_host
from dagsel.engines.paths.linear import Floats, LinearElimination
from dagsel.engines.rows.engine import RowsEngine
from dagsel.engines.rows.metrics import Measure
from dagsel.search import Request

__all__ = ["RowsElimination"]

# Coefficients of columns scaled to unit length have errors of this many units in the last place of
# the largest of them, or of the target's length, times the growth of the fold. Measured against
# extended precision: up to 460, where centring takes digits.
_COEFFICIENT_ERROR = 1000.0


class RowsElimination(LinearElimination):
    """The model of one fold, carried by factors of its rows; see `LinearElimination`."""

    engine_class: ClassVar[type[RowsEngine]] = RowsEngine

    def coefficients(self) -> tuple[Floats, Floats]:
        """See `LinearElimination.coefficients`."""
        (fold,) = self._state.folds
        factors = fold.factors
        positions = self._state.positions[self._columns]
        found = to_host(factors.coefficients)[positions, :]
        lengths = np.sqrt(to_host(factors.squares)[positions])[:, None]
        # Of columns scaled to unit length coefficients can be longer than the target, if they
        # cancel each other; rounding then is relative to them.
        target = np.linalg.norm(to_host(factors.targets), axis=0)
        size = np.maximum(target, np.max(np.abs(found * lengths), axis=0, initial=0.0))
        error = _COEFFICIENT_ERROR * EPSILON * factors.growth * size[None, :]
        safe = np.where(lengths > 0, lengths, 1.0)
        return found, np.where(lengths > 0, error / safe, 0.0)

    def __init__(self, engine: RowsEngine, resident: Sequence[Any], *, scored: bool) -> None:
        super().__init__(engine, resident, scored=scored)
        self._certify()

    def remove(self, columns: Sequence[int]) -> None:
        """See `LinearElimination.remove`."""
        self._move(columns)
        self._certify()

    def _certify(self) -> None:
        """Make sure of the subset, where no score is asked for that would."""
        if self._scored or not len(self._columns):
            return
        # R² is certified in absolute terms, so a close fit does not matter here.
        squared = Measure("squared", "r2", get_scorer("r2"))
        replace(self._engine, measure=squared).score(self._state, Request(self._subset, ()))
