"""Signals that end the command; imports nothing that takes time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["NOTHING", "Interrupted", "Signals"]

NOTHING = "Nothing was decided."


class Interrupted(KeyboardInterrupt):
    """The user, or the system, asked the process to end.

    A `KeyboardInterrupt` whatever the signal, because that is what libraries clean up after.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"Interrupted by {signal.Signals(self.signum).name}."

    @property
    def code(self) -> int:
        """The exit code that shells expect: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signum


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

    @property
    def received(self) -> Interrupted | None:
        """The signal that there was, if any."""
        return None if self._signum is None else Interrupted(self._signum)

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
