"""The command `dagsel`."""

from __future__ import annotations

from dagsel.cli.commands import main

__all__ = ["main"]
