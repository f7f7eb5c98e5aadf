"""Scores by criteria that judge a fit to all rows."""

from __future__ import annotations
