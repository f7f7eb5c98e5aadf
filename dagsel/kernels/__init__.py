"""Pure functions on arrays, written against the array API standard: no Dask, no input or output."""

from __future__ import annotations
