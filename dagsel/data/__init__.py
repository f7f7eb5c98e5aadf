"""Rows in, whatever they come in, as blocks; and the folds they are divided into."""

from __future__ import annotations
