"""What can go wrong, each with its own class.

Every error keeps its arguments in `args`, so that it survives the trip from a worker to the client,
and says what was wrong, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = [
    "CheckpointError",
    "DagselError",
    "DagselWarning",
    "DataError",
    "DriftedError",
    "NotCertifiedError",
    "ScoringError",
]


class DagselError(Exception):
    """Base class of the errors raised by dagsel."""


class DataError(DagselError, ValueError):
    """The input cannot be used: missing or non-numeric values, no such column, unequal lengths."""


class ScoringError(DagselError, ValueError):
    """No candidate of a round has a usable score, or a candidate failed to fit."""


class CheckpointError(DagselError, ValueError):
    """A journal is that of another selection, is damaged, or cannot be read or written."""


class NotCertifiedError(DagselError):
    """A fast engine cannot vouch for its numbers on these data; refits must take over.

    Raised inside engines and handled by the scheduler; users see its text in a `DagselWarning`.

    Parameters
    ----------
    text : str
        Why. May hold ``{column}``, which stands for the column's label.
    column : int, optional
        Position of the column that is to blame.
    """

    def __init__(self, text: str, column: int | None = None) -> None:
        super().__init__(text, column)
        self.text = text
        self.column = column

    def __str__(self) -> str:
        return self.told(None)

    def told(self, names: Sequence[Hashable] | None) -> str:
        """Return the text with the column's label in place."""
        if self.column is None:
            return self.text
        label = self.column if names is None else repr(names[self.column])
        return self.text.replace("{column}", str(label))


class DriftedError(NotCertifiedError):
    """Rounding has built up in a state; one made anew from the rows may be good again."""


class DagselWarning(UserWarning):
    """Something worth knowing that does not stop the run, such as a fall back to refits."""
