"""How many features are wanted: where a search goes for it, and which round is then chosen.

A wanted size is "auto", "best", "parsimonious", a number of features, a fraction of them, or a
range (min, max) of either.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from dagsel.moves import Direction
from dagsel.results import Selection
from dagsel.rounds import Round

__all__ = ["choose", "compares_sizes", "is_number", "size_range", "target_size", "whole_size"]

_CHOICES = ("best", "parsimonious")


def is_number(wanted: Any) -> bool:
    """Whether a wanted size is a number or a fraction of features."""
    return not isinstance(wanted, bool) and isinstance(wanted, Real)


def compares_sizes(wanted: Any) -> bool:
    """Whether a wanted size is found by comparing the scores of several sizes."""
    return isinstance(wanted, tuple) or (isinstance(wanted, str) and wanted in _CHOICES)


def target_size(
    wanted: Any, *, n_features: int, n_fixed: int, direction: Direction, open_ended: bool
) -> int:
    """Return the number of features at which a search for a wanted size ends.

    Parameters
    ----------
    wanted
        See the module.
    n_features, n_fixed : int
        Number of features, and of those that are always in the model.
    direction : {"backward", "forward"}
        Of the search.
    open_ended : bool
        Whether "auto" leaves it to the scores when to stop, instead of meaning half.

    Raises
    ------
    ValueError
        For a wanted size that is none of the above, or that there cannot be.
    """
    least = max(1, n_fixed)
    far = least if direction == "backward" else n_features
    if isinstance(wanted, str) and wanted in ("auto", *_CHOICES):
        half = wanted == "auto" and not open_ended
        return max(n_features // 2, least) if half else far
    if isinstance(wanted, tuple):
        low, high = size_range(wanted, n_features, n_fixed)
        return low if direction == "backward" else high
    if not is_number(wanted):
        msg = (
            "n_features_to_select must be 'auto', 'best', 'parsimonious', a number, a fraction or "
            f"a range (min, max); got {wanted!r}"
        )
        raise ValueError(msg)
    return _checked(whole_size(wanted, n_features), wanted, n_features, n_fixed)


def size_range(wanted: tuple[Any, ...], n_features: int, n_fixed: int = 0) -> tuple[int, int]:
    """Return the least and the greatest number of features of a wanted range.

    Raises
    ------
    ValueError
        If it is no range, or there cannot be such sizes.
    """
    if len(wanted) != 2 or not all(map(is_number, wanted)):
        msg = f"n_features_to_select={wanted!r}: a range has two numbers, (min, max)"
        raise ValueError(msg)
    low, high = (whole_size(bound, n_features) for bound in wanted)
    if low > high:
        msg = f"n_features_to_select={wanted!r}: the minimum is greater than the maximum"
        raise ValueError(msg)
    for size in (low, high):
        _checked(size, wanted, n_features, n_fixed)
    return low, high


def whole_size(wanted: Any, n_features: int) -> int:
    """Return a number of features, which may be given as a fraction of them.

    Raises
    ------
    ValueError
        For a fraction that is not in (0, 1].
    """
    if isinstance(wanted, Integral):
        return int(wanted)
    if not 0 < float(wanted) <= 1:
        msg = f"n_features_to_select={wanted!r}: a fraction must be in (0, 1]"
        raise ValueError(msg)
    return int(n_features * float(wanted))


def _checked(size: int, wanted: Any, n_features: int, n_fixed: int) -> int:
    """Return a size that there can be."""
    least = max(1, n_fixed)
    if least <= size <= n_features:
        return size
    if size > n_features:
        why = f"is more than the {n_features} features that there are"
    elif n_fixed and size >= 1:
        why = f"is fewer than the {n_fixed} fixed features"
    else:
        why = "is fewer than one feature"
    if not isinstance(wanted, Integral):
        why = f"comes to {size}, which {why}" if is_number(wanted) else f"has {size}, which {why}"
    msg = f"n_features_to_select={wanted!r} {why}: choose from {least} to {n_features}"
    raise ValueError(msg)


def choose(selection: Selection, wanted: Any, *, patient: bool = False) -> Round:
    """Choose a round of a path by the size that was wanted.

    Parameters
    ----------
    selection : Selection
        With at least one round.
    wanted
        See the module. "best" and a range take the best score, the smallest size where scores are
        equal. A number and "auto" take the last round, as does a range that was not reached.
    patient : bool
        Whether the path goes past the best size to make sure of it, so that "auto" is "best".
    """
    if isinstance(wanted, tuple):
        low, high = size_range(wanted, selection.n_features)
        if any(low <= size <= high for size in selection.sizes):
            return selection.best(low, high)
    if wanted == "parsimonious":
        return selection.parsimonious()
    if wanted == "best" or (wanted == "auto" and patient):
        return selection.best()
    return selection.rounds[-1]
