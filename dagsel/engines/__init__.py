"""Engines: how a candidate is scored."""

from __future__ import annotations
