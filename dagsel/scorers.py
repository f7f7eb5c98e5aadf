"""scikit-learn's scorers: their names, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

__all__ = ["ScorerParts", "explain_unknown_scorer", "scorer_parts"]

_USUAL = ("neg_mean_squared_error", "r2", "accuracy")


class ScorerParts(NamedTuple):
    """What a scorer that `sklearn.metrics.make_scorer` has made consists of.

    Attributes
    ----------
    function : callable
        Of (y, reply).
    sign : int
        1 if greater is better, -1 if not.
    keywords : dict
        Further arguments of the function.
    responses : tuple of str
        The estimator's methods that may reply, the first that it has.
    """

    function: Any
    sign: int
    keywords: dict[str, Any]
    responses: tuple[str, ...]


def scorer_parts(scorer: Any) -> ScorerParts | None:
    """Take a scorer apart; `None` if `make_scorer` has not made it.

    scikit-learn has no public way, so this is the one place that knows the private names.
    """
    names = ("_score_func", "_sign", "_kwargs", "_response_method")
    if type(scorer).__name__ != "_Scorer" or not all(hasattr(scorer, name) for name in names):
        return None
    function, sign, keywords, response = (getattr(scorer, name) for name in names)
    responses = (response,) if isinstance(response, str) else tuple(response)
    return ScorerParts(function, sign, keywords, responses)


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
