"""Exact feature elimination, with candidate evaluations spread over workers by Dask."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagsel.data.files import Scan as Scan
    from dagsel.data.sources import scan as scan
    from dagsel.exceptions import CheckpointError as CheckpointError
    from dagsel.exceptions import DagselError as DagselError
    from dagsel.exceptions import DagselWarning as DagselWarning
    from dagsel.exceptions import DataError as DataError
    from dagsel.exceptions import ScoringError as ScoringError
    from dagsel.executors.same_versions import ship as ship
    from dagsel.journal import load_checkpoint as load_checkpoint
    from dagsel.plan import Plan as Plan
    from dagsel.recursive import RFE as RFE
    from dagsel.recursive import RFECV as RFECV
    from dagsel.results import Round as Round
    from dagsel.results import Selection as Selection
    from dagsel.selector import SequentialFeatureSelector as SequentialFeatureSelector

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "DagselError",
    "DagselWarning",
    "DataError",
    "Plan",
    "RFE",
    "RFECV",
    "Round",
    "ScoringError",
    "Scan",
    "Selection",
    "SequentialFeatureSelector",
    "load_checkpoint",
    "scan",
    "ship",
    "__version__",
]

# Where they are. Imported when they are first asked for, since scikit-learn takes seconds to load
# and the command line must heed Ctrl-C before that.
_HOMES = {
    "CheckpointError": "exceptions",
    "DagselError": "exceptions",
    "DagselWarning": "exceptions",
    "DataError": "exceptions",
    "Plan": "plan",
    "RFE": "recursive",
    "RFECV": "recursive",
    "Round": "results",
    "ScoringError": "exceptions",
    "Scan": "data.files",
    "Selection": "results",
    "SequentialFeatureSelector": "selector",
    "load_checkpoint": "journal",
    "scan": "data.sources",
    "ship": "executors.same_versions",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
