"""Scores from the rows: any metric of (y, prediction), and any rank."""

from __future__ import annotations
