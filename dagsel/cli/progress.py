"""What a command says on standard error while it works, and writes into its log."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dagsel.cli.signals import Signals
from dagsel.cli.wording import in_options
from dagsel.exceptions import DagselWarning
from dagsel.monitor import LogMonitor, describe

if TYPE_CHECKING:
    from dagsel.results import Round

__all__ = ["Reporter", "reporting"]

logger = logging.getLogger("dagsel")

_SECONDS_BETWEEN_LINES = 5.0


class _Display(Protocol):
    """How progress is shown."""

    def phase(self, name: str) -> None: ...

    def progress(self, what: str, done: int, total: int) -> None: ...

    def round(self, done: Round, rounds_left: int) -> None: ...

    def line(self, text: str) -> None: ...

    def close(self) -> None: ...


class Reporter(LogMonitor):
    """The monitor of a command: logs, shows progress, and heeds signals.

    Parameters
    ----------
    display : _Display
        How progress is shown.
    signals : Signals
        Asked at every event, in case the exception that one raised got lost.
    """

    def __init__(self, display: _Display, signals: Signals) -> None:
        self._display = display
        self._signals = signals
        self._told: set[str] = set()

    def phase(self, name: str) -> None:
        """Show and log a phase."""
        self._signals.check()
        super().phase(name)
        self._display.phase(name)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how many tasks have ended. May come from a thread of Dask's."""
        super().progress(what, done, total)
        self._display.progress(what, done, total)

    def round(self, done: Round, rounds_left: int) -> None:
        """Show and log a decided round."""
        super().round(done, rounds_left)
        self._display.round(done, rounds_left)
        self._signals.check()

    def note(self, text: str) -> None:
        """Show and log a note, once."""
        text = in_options(text)
        if text not in self._told:
            self._told.add(text)
            super().note(text)
            self._display.line(f"note: {text}")

    def say(self, text: str) -> None:
        """Show and log a line."""
        logger.info("%s", text)
        self._display.line(text)

    def warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Show a Python warning as a note; stands in for `warnings.showwarning`.

        Those of other libraries once a line of code: a thousand refits that do not converge say so
        in a thousand different words.
        """
        del file, line
        place = f"{category.__name__} from {filename}:{lineno}"
        if issubclass(category, DagselWarning):
            self.note(str(message))
        elif place not in self._told:
            self._told.add(place)
            self.note(f"{category.__name__}: {message}")

    def close(self) -> None:
        """Stop showing progress."""
        self._display.close()


@contextmanager
def reporting(signals: Signals, stream: TextIO, *, quiet: bool) -> Iterator[Reporter]:
    """Yield a reporter that suits the stream; Python warnings go to it as well."""
    console = Console(file=stream, highlight=False, markup=False, soft_wrap=True)
    shown = _Bar(console) if console.is_terminal else _Lines(stream)
    reporter = Reporter(_Silence() if quiet else shown, signals)
    with warnings.catch_warnings():
        warnings.showwarning = reporter.warned
        try:
            yield reporter
        finally:
            reporter.close()


class _Silence:
    """Shows nothing."""

    def phase(self, name: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def round(self, done: Round, rounds_left: int) -> None:
        pass

    def line(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Lines:
    """Prints lines, of the rounds only some: for files and the logs of batch systems."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = monotonic()
        self._due = self._began

    def phase(self, name: str) -> None:
        self.line(name)

    def progress(self, what: str, done: int, total: int) -> None:
        now = monotonic()
        if now >= self._due + _SECONDS_BETWEEN_LINES:
            self._due = now
            self.line(f"{what}: {done} of {total}, {now - self._began:.0f} s so far")

    def round(self, done: Round, rounds_left: int) -> None:
        now = monotonic()
        if now < self._due and rounds_left:
            return
        self._due = now + _SECONDS_BETWEEN_LINES
        self.line(f"{describe(done)}; {rounds_left} to go, {now - self._began:.0f} s so far")

    def line(self, text: str) -> None:
        print(f"[dagsel] {text}", file=self._stream, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """A progress bar on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, last="")
        self._tasks = self._progress.add_task("", total=None, last="", visible=False)
        self._progress.start()

    def phase(self, name: str) -> None:
        self._progress.update(self._task, description=name)

    def progress(self, what: str, done: int, total: int) -> None:
        # A round of many refits takes long enough to be worth a bar of its own.
        visible = total > 1 and done < total
        self._progress.update(
            self._tasks, description=what, completed=done, total=total, visible=visible
        )

    def round(self, done: Round, rounds_left: int) -> None:
        number = done.number + 1  # rounds count from 0
        self._progress.update(
            self._task,
            description="selecting",
            completed=number,
            total=number + rounds_left,
            last=describe(done).partition(": ")[2],
        )

    def line(self, text: str) -> None:
        self._console.print(text)

    def close(self) -> None:
        self._progress.stop()
