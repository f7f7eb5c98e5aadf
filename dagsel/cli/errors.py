"""How a command ends: exit codes, one clear message, and signals."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import re
import signal
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any

import click

from dagsel.exceptions import CheckpointError, DagselError, DataError, ScoringError

__all__ = [
    "FAILED",
    "NOTHING",
    "USAGE",
    "CommandError",
    "Interrupted",
    "Signals",
    "input_stage",
    "quietly_broken_pipe",
    "run_stage",
]

logger = logging.getLogger("dagsel")

FAILED = 1
USAGE = 2

NOTHING = "Nothing was decided."

_LOST = (
    "the connection to the Dask scheduler was lost and did not come back. See whether the "
    "scheduler still runs and what it says in its log."
)

# What the Python interface calls what here is an option.
_OPTION_OF = {
    "n_features_to_select='auto'": "--k auto",
    "n_features_to_select=": "--k ",
    "n_features_to_select": "--k",
    "fixed_features": "--fixed",
    "engine=": "--engine ",
    "audit=": "--audit ",
    "sample_weight": "--weights",
    "weighted_scores=True": "--weighted-scores",
    "categories='one-hot'": "--categories one-hot",
}

_RANGE = re.compile(r"--k \((\d+), (\d+)\)")


class CommandError(click.ClickException):
    """Ends the command with an exit code and one message.

    Parameters
    ----------
    message : str
        What was wrong, where, and what to do.
    code : int
        The exit code; see the documentation of the command.
    prefix : str
        Put before the message.
    at_once : bool
        Whether the process should end without Python's own cleaning up.
    """

    def __init__(
        self, message: str, code: int, prefix: str = "Error: ", *, at_once: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.prefix = prefix
        self.at_once = at_once

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to standard error."""
        click.echo(f"{self.prefix}{self.message}", file=file, err=file is None)


class Interrupted(KeyboardInterrupt):
    """The user, or the system, asked the process to end.

    A `KeyboardInterrupt` whatever the signal, because that is what libraries clean up after.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"Interrupted by {signal.Signals(self.signum).name}."

    def ending(self, kept: str, *, at_once: bool = False) -> CommandError:
        """Return the error that ends the command, and says what was kept.

        Its code is the one that shells expect: 130 for Ctrl-C, 143 for SIGTERM.
        """
        return CommandError(kept, 128 + self.signum, prefix=f"{self} ", at_once=at_once)


class Signals:
    """Turns the first signal into an `Interrupted`; the second ends the process at once.

    An exception raised by a signal can get lost, in a callback for instance. So the signal is
    remembered, and `check` raises it again.
    """

    def __init__(self) -> None:
        self._signum: int | None = None
        self._held = False
        self._deferred = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            signum = getattr(signal, name, None)
            # A signal that is ignored, as by nohup, stays ignored.
            if signum is not None and signal.getsignal(signum) != signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def _receive(self, signum: int, _: FrameType | None) -> None:
        if self._held:
            return
        if self._signum is not None:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self._signum = signum
        if not self._deferred:
            raise Interrupted(signum)

    def check(self) -> None:
        """Raise `Interrupted` if there was a signal."""
        if self._signum is not None:
            raise Interrupted(self._signum)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise `Interrupted` only at the end, of something that must not be left half done."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Take no notice of signals for the moment that it takes to write the results."""
        self._held = True
        try:
            yield
        finally:
            self._held = False


@contextmanager
def input_stage(*, debug: bool) -> Iterator[None]:
    """Report what goes wrong while parameters and data are looked at, before the run."""
    with _reported(USAGE, (ValueError, OSError, ImportError), debug=debug):
        yield


@contextmanager
def run_stage(*, debug: bool) -> Iterator[None]:
    """Report what goes wrong during the run."""
    with _reported(FAILED, (), debug=debug):
        yield


@contextmanager
def _reported(exit_code: int, known: tuple[type[Exception], ...], *, debug: bool) -> Iterator[None]:
    try:
        yield
    except click.ClickException:
        raise
    except ScoringError as error:
        raise _command_error(error, FAILED, debug=debug) from error
    except CheckpointError as error:
        raise _command_error(error, exit_code, debug=debug) from error
    except DataError as error:
        raise _command_error(error, USAGE, debug=debug) from error
    except DagselError as error:
        raise _command_error(error, FAILED, debug=debug) from error
    except (Exception, CancelledError) as error:
        if isinstance(error, known):
            raise _command_error(error, exit_code, debug=debug) from error
        if _connection_lost(error):
            raise _command_error(error, FAILED, debug=debug, text=_LOST) from error
        text = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "" if debug else " (--debug shows where it came from)"
        raise _command_error(error, FAILED, debug=debug, text=text + hint) from error


def _connection_lost(error: BaseException) -> bool:
    if "distributed" not in sys.modules:
        return False
    from distributed.comm.core import CommClosedError

    return isinstance(error, (CommClosedError, CancelledError, concurrent.futures.CancelledError))


def _command_error(
    error: BaseException, exit_code: int, *, debug: bool, text: str | None = None
) -> CommandError:
    shown = "".join(traceback.format_exception(error))
    logger.debug("%s", shown.rstrip())
    if debug:
        click.echo(shown, err=True, nl=False)
    return CommandError(_in_options(str(error)) if text is None else text, exit_code)


def _in_options(text: str) -> str:
    """Name the command's options where a message names the Python interface's parameters."""
    for parameter, option in _OPTION_OF.items():
        text = text.replace(parameter, option)
    return _RANGE.sub(r"--k \1-\2", text)


@contextmanager
def quietly_broken_pipe() -> Iterator[None]:
    """End without a fuss where nobody reads standard output to its end, as in ``… | head``."""
    try:
        yield
    except BrokenPipeError:
        # Or Python tries to flush the rest at exit, and complains.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(FAILED) from None
