"""The command `dagsel`.

What takes seconds to import is imported by `main`, when signals are heeded already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from dagsel.cli.signals import NOTHING, Interrupted, Signals

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its code."""
    with Signals() as signals:
        try:
            from dagsel.cli.commands import exit_code

            # An import can lose the exception of a signal, or make another of it.
            signals.check()
        except BaseException as error:
            ended = error if isinstance(error, Interrupted) else signals.received
            if ended is None:
                raise
            print(f"{ended} {NOTHING}", file=sys.stderr)
            sys.exit(ended.code)
        sys.exit(exit_code(arguments, signals))
