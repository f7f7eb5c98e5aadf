"""Recursive elimination from moments: coefficients are the tableau's target columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from dagsel.backend import EPSILON, namespace, to_host
from dagsel.engines.moments.engine import MomentsEngine
from dagsel.engines.moments.fold_start import FoldStart
from dagsel.engines.paths.linear import Floats, LinearElimination
from dagsel.search import Request

__all__ = ["TableauElimination"]

# Coefficients of columns scaled to unit length have errors of this many units in the last place of
# the target's length, times the growth of the fold. Measured against extended precision: up to 8.
_COEFFICIENT_ERROR = 16.0


class TableauElimination(LinearElimination):
    """The model of one fold, carried by its tableau; see `LinearElimination`.

    The tableau's errors are the test errors, and a removal is a sweep. Where columns are dependent
    the coefficients are those of minimum norm.
    """

    engine_class: ClassVar[type[MomentsEngine]] = MomentsEngine

    def __init__(
        self, engine: MomentsEngine, resident: Sequence[FoldStart], *, scored: bool
    ) -> None:
        super().__init__(engine, resident, scored=scored)
        (start,) = resident
        self._dependent = start.null is not None
        self._scale = to_host(start.scale)[:, None]
        error = _COEFFICIENT_ERROR * EPSILON * start.growth * np.sqrt(start.spread)
        self._error = error[None, :]

    def coefficients(self) -> tuple[Floats, Floats]:
        """See `LinearElimination.coefficients`."""
        (part,) = self._state.parts
        tableau, null = part.tableau, part.null
        found = tableau.swept_targets[0, :, :]
        if null is not None:
            # The basic solution, less its part in the null space.
            xp = namespace(found)
            basic = (tableau.pivots[0, :] < 0)[:, None]
            found = xp.where(basic, found, xp.zeros_like(found))
            found = found + xp.matmul(null.basis, null.inner_targets)
        found = to_host(found)[part.positions[self._columns], :]
        scale = self._scale[self._columns]
        # Columns that are constant in the training rows have zeros, exactly.
        return found / scale, np.where(found == 0, 0.0, self._error) / scale

    def remove(self, columns: Sequence[int]) -> None:
        """See `LinearElimination.remove`."""
        if not self._dependent:
            self._move(columns)
            return
        # Of the score only R² need be certain, which it is in absolute terms; what matters is which
        # columns are redundant.
        check = replace(self._engine, metric="r2")
        for column in columns:
            check.score(self._state, Request(self._subset, (column,)))
            self._move([column])
