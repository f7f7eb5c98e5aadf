"""What a run tells while it works."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Protocol, TextIO

if TYPE_CHECKING:
    from dagsel.results import Round

__all__ = ["LogMonitor", "Monitor", "PrintMonitor", "TaskProgress"]

logger = logging.getLogger("dagsel")

_SECONDS_BETWEEN_LINES = 1.0

# Without it Python prints warnings of a logger that nobody listens to; users get them as
# `DagselWarning` already.
logger.addHandler(logging.NullHandler())


class Monitor(Protocol):
    """Receives the events of a run, in the process that started it."""

    def phase(self, name: str) -> None:
        """Begin a phase: "reading", "refits" …."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` tasks of a kind have ended. May come from any thread."""
        ...

    def round(self, done: Round, rounds_left: int) -> None:
        """Report a round that has been decided."""
        ...

    def note(self, text: str) -> None:
        """Tell something that the user should know."""
        ...


class TaskProgress:
    """Counts the tasks of each kind that an executor has run, and tells a listener.

    Attributes
    ----------
    listener : callable or None
        Called as `listener(what, done, total)`, perhaps from another thread.
    """

    #: What users call the tasks that take long, by label.
    NAMES: ClassVar[Mapping[str, str]] = {
        "dagsel_scan": "scanning files",
        "dagsel_moments": "reading rows",
        "dagsel_fold": "building folds",
        "dagsel_refit": "refitting candidates",
    }

    def __init__(self) -> None:
        self.listener: Callable[[str, int, int], None] | None = None
        self._done: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    def expect(self, label: str, n_tasks: int) -> None:
        """Begin a batch of tasks."""
        self._done[label], self._total[label] = 0, n_tasks

    def ended(self, label: str) -> None:
        """Count a task that has ended."""
        self._done[label] += 1
        if self.listener is not None and label in self.NAMES:
            done, total = self._done[label], self._total[label]
            self.listener(self.NAMES[label], done, max(done, total))


class LogMonitor:
    """Writes events to the logger `dagsel`."""

    def phase(self, name: str) -> None:
        """Log at level INFO."""
        logger.info("%s", name)

    def progress(self, what: str, done: int, total: int) -> None:
        """Log at level DEBUG."""
        logger.debug("%s: %d of %d", what, done, total)

    def round(self, done: Round, rounds_left: int) -> None:
        """Log at level DEBUG: there may be thousands."""
        logger.debug("%s; %d to go", describe(done), rounds_left)

    def note(self, text: str) -> None:
        """Log at level WARNING."""
        logger.warning("%s", text)

    def close(self) -> None:
        """Do nothing: a log needs no end."""


class PrintMonitor(LogMonitor):
    """Also prints rounds to standard error: the first, the last, and about one a second."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._due = 0.0
        self._held: str | None = None

    def round(self, done: Round, rounds_left: int) -> None:
        """Print what was decided, or hold it until it turns out to be the last."""
        super().round(done, rounds_left)
        self._held = f"[dagsel] {describe(done)}; {rounds_left} to go"
        if monotonic() >= self._due:
            self._due = monotonic() + _SECONDS_BETWEEN_LINES
            self.close()

    def close(self) -> None:
        """Print the last round, if it has not been."""
        if self._held is not None:
            print(self._held, file=self.stream, flush=True)
            self._held = None


def describe(done: Round) -> str:
    """Return a round in one line."""
    moved = "start" if done.action == "start" else f"{done.action} {_listed(done.moved)}"
    score = f"{done.scoring} {done.mean:.6g}"
    return f"round {done.number}: {moved}, {done.n_features} features, {score}"


def _listed(labels: Sequence[Hashable]) -> str:
    shown = [str(label) for label in labels[:3]]
    more = len(labels) - len(shown)
    return " and ".join([", ".join(shown), f"{more} more"] if more else [", ".join(shown)])


def monitor_for(verbose: int) -> LogMonitor:
    """Return the monitor of a `verbose` level: a log, or lines on standard error."""
    return PrintMonitor() if verbose else LogMonitor()
