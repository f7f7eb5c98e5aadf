"""Scores from moments: one pass over the rows, then no row is looked at again."""

from __future__ import annotations
