"""Criteria that judge a model by its fit to all rows, in place of cross-validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["CRITERIA", "INFERENCE_NOTE", "Criterion", "CriterionName"]

CriterionName = Literal["aic", "aicc", "bic", "adjusted_r2", "mallows_cp", "p_value"]
CRITERIA: tuple[CriterionName, ...] = get_args(CriterionName)

#: What users of p-values must know; it is put into the notes of their selections.
INFERENCE_NOTE = (
    "p-values of features that were selected on the same data are not valid p-values: each is that "
    "of a test chosen after looking at the data, and is too small for the features that are kept. "
    "They order and stop this search; for inference use rows that took no part in it."
)


@dataclass(frozen=True)
class Criterion:
    """A criterion, and the conventions it is computed by.

    Attributes
    ----------
    name : {"aic", "aicc", "bic", "adjusted_r2", "mallows_cp", "p_value"}
        Scores are greater for better models: the negative of AIC, AICc, BIC and Cp; adjusted R² as
        it is. With "p_value" moves are scored and not models: by log p when a feature is removed,
        by -log p when one is added.
    alpha : float
        Level of the test: with "p_value" and a search of open length a feature is removed while
        its p-value is at least this, or added while it is at most this.
    variance_counted : bool
        Whether the error variance is one of the parameters that AIC, AICc and BIC charge for: no,
        as in statsmodels, or yes, as in R. AIC and BIC differ by a constant, so they select the
        same; AICc does not.

    Raises
    ------
    ValueError
        For an unknown name or an impossible level.
    """

    name: CriterionName
    alpha: float = 0.05
    variance_counted: bool = False

    def __post_init__(self) -> None:
        if self.name not in CRITERIA:
            msg = f"criterion must be one of {', '.join(CRITERIA)}; got {self.name!r}"
            raise ValueError(msg)
        if not 0 < self.alpha < 1:
            msg = f"alpha, the level of the test, must be between 0 and 1; got {self.alpha!r}"
            raise ValueError(msg)

    @property
    def scores_moves(self) -> bool:
        """Whether a score belongs to a move, so that those of two rounds cannot be compared."""
        return self.name == "p_value"

    def threshold(self, *, removal: bool) -> float | None:
        """Return the least score at which a move is made; `None` if only gains count.

        Parameters
        ----------
        removal : bool
            Whether the move removes a feature (p ≥ alpha wanted) or adds one (p ≤ alpha).
        """
        if not self.scores_moves:
            return None
        return math.log(self.alpha) if removal else -math.log(self.alpha)
