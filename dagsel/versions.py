"""Versions of the packages that a selection depends on."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from functools import cache

__all__ = ["versions"]

_PACKAGES = ("dagsel", "numpy", "scipy", "scikit-learn", "pandas", "dask", "distributed")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that take part, by name."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
