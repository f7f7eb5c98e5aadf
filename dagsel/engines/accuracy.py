"""How exact scores must be, and what the engines say where they would not be."""

from __future__ import annotations

import numpy as np

from dagsel.backend import EPSILON

__all__ = ["MAX_RELATIVE_ERROR", "TINY", "explain_centre", "explain_cutoff"]

# Scores must agree with those of refits to 1e-9. An estimate of the relative error above this
# hands the run over to another engine.
MAX_RELATIVE_ERROR = 1e-9
# Below this, sums of squares are denormal numbers that have lost digits.
TINY = float(np.finfo(np.float64).tiny) / EPSILON


def explain_centre(fold: int) -> str:
    """Say that a scaler's mean is not known well enough where no intercept makes up for it."""
    return (
        f"column {{column}} varies so little about its mean in the training rows of fold {fold} "
        "that the rounding of that mean shows in the scores"
    )


def explain_cutoff(fold: int, size: float, cutoff: float) -> str:
    """Say that a singular value, relative to the largest, is too near the estimator's cutoff."""
    return (
        f"in fold {fold} the smallest singular value of the training matrix is {size:.1e} of the "
        f"largest, too near the cutoff (tol={cutoff:g}) below which the estimator drops it; "
        "standardise the columns or set a smaller `tol`"
    )
