"""Paths of recursive elimination, fold by fold."""

from __future__ import annotations
