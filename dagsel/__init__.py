"""Exact feature elimination, with candidate evaluations spread over workers by Dask."""

from __future__ import annotations

from dagsel.data.files import Scan as Scan
from dagsel.data.sources import scan as scan
from dagsel.exceptions import CheckpointError as CheckpointError
from dagsel.exceptions import DagselError as DagselError
from dagsel.exceptions import DagselWarning as DagselWarning
from dagsel.exceptions import DataError as DataError
from dagsel.exceptions import ScoringError as ScoringError
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
    "__version__",
]
