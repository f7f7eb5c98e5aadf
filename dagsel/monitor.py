"""What a run tells while it works."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from dagsel.results import Round

__all__ = ["LogMonitor", "Monitor", "PrintMonitor"]

logger = logging.getLogger("dagsel")


class Monitor(Protocol):
    """Receives the events of a run, in the process that started it."""

    def phase(self, name: str) -> None:
        """Begin a phase: "reading", "refits" …."""
        ...

    def round(self, done: Round, rounds_left: int) -> None:
        """Report a round that has been decided."""
        ...

    def note(self, text: str) -> None:
        """Tell something that the user should know."""
        ...


class LogMonitor:
    """Writes events to the logger `dagsel`."""

    def phase(self, name: str) -> None:
        """Log at level INFO."""
        logger.info("%s", name)

    def round(self, done: Round, rounds_left: int) -> None:
        """Log at level DEBUG: there may be thousands."""
        logger.debug("%s; %d to go", describe(done), rounds_left)

    def note(self, text: str) -> None:
        """Log at level WARNING."""
        logger.warning("%s", text)


class PrintMonitor(LogMonitor):
    """Also prints a line a round, to standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream

    def round(self, done: Round, rounds_left: int) -> None:
        """Print what was decided."""
        super().round(done, rounds_left)
        print(f"[dagsel] {describe(done)}; {rounds_left} to go", file=self.stream, flush=True)


def describe(done: Round) -> str:
    """Return a round in one line."""
    moved = "start" if done.action == "start" else f"{done.action} {done.feature}"
    return f"round {done.number}: {moved}, {done.n_features} features, score {done.mean:.6g}"
