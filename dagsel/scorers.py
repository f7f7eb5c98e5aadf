"""Scorers by name, as scikit-learn knows them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

__all__ = ["explain_unknown_scorer"]

_USUAL = ("neg_mean_squared_error", "r2", "accuracy")


def explain_unknown_scorer(name: str) -> str | None:
    """Say that scikit-learn has no scorer of a name, and which name may have been meant.

    Returns
    -------
    str or None
        `None` if there is such a scorer.
    """
    from sklearn.metrics import get_scorer_names

    known = get_scorer_names()
    if name in known:
        return None
    near = get_close_matches(name, [*known], n=3) or _containing(name, known)
    hint = f"Did you mean {', '.join(near)}?" if near else f"Examples are {', '.join(_USUAL)}."
    return f"scikit-learn has no scorer {name!r}. {hint}"


def _containing(name: str, known: Sequence[str]) -> list[str]:
    words = [word for word in name.lower().split("_") if len(word) > 2]
    return [scorer for scorer in known if any(word in scorer for word in words)][:3]
