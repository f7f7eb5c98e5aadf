"""Which engines there are, the fastest first as a rule (for the exception see `dagsel.plan`)."""

from __future__ import annotations

from typing import Literal

from dagsel.engines.base import Engine
from dagsel.engines.moments.engine import MomentsEngine
from dagsel.engines.refit import RefitEngine
from dagsel.engines.rows.engine import RowsEngine

__all__ = ["ENGINE_NAMES", "EngineName", "engine_classes"]

EngineName = Literal["auto", "moments", "rows", "refit"]

_CLASSES: list[type[Engine]] = [MomentsEngine, RowsEngine, RefitEngine]
ENGINE_NAMES: tuple[EngineName, ...] = ("auto", "moments", "rows", "refit")


def engine_classes() -> list[type[Engine]]:
    """Return the classes of engines in the order in which they are tried."""
    return list(_CLASSES)
