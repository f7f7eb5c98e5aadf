"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

from dagsel.exceptions import DagselWarning

__all__ = ["warn"]

# What a user's call can go through before it comes here: a pipeline, a search of parameters.
_NOT_THE_USERS = ("dagsel", "joblib", "sklearn")


def warn(text: str, category: type[Warning] = DagselWarning) -> None:
    """Warn, and name as the place the line outside of this package that led here."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _NOT_THE_USERS:
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
