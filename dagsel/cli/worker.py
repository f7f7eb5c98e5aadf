"""Loaded by the worker processes that `dagsel --workers` starts."""

from __future__ import annotations

import signal
from typing import Any

__all__ = ["dask_setup"]


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C in the terminal, which reaches all processes, to the one that started them."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
