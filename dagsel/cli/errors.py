"""How a command ends: exit codes, one clear message, and signals."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import sys
import traceback
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import click

from dagsel.cli.signals import Interrupted
from dagsel.cli.wording import in_options
from dagsel.exceptions import CheckpointError, DagselError, DataError, ScoringError

__all__ = [
    "FAILED",
    "USAGE",
    "CommandError",
    "ended_by",
    "input_stage",
    "quietly_broken_pipe",
    "run_stage",
]

logger = logging.getLogger("dagsel")

FAILED = 1
USAGE = 2

_LOST = (
    "the connection to the Dask scheduler was lost and did not come back. See whether the "
    "scheduler still runs and what it says in its log."
)


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


def ended_by(interrupted: Interrupted, kept: str, *, at_once: bool = False) -> CommandError:
    """Return the error that ends the command after a signal, and says what was kept."""
    return CommandError(kept, interrupted.code, prefix=f"{interrupted} ", at_once=at_once)


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
    return CommandError(in_options(str(error)) if text is None else text, exit_code)


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
