"""Running on real clusters."""

from __future__ import annotations
