"""Exact feature elimination, with candidate evaluations spread over workers by Dask."""

from __future__ import annotations
