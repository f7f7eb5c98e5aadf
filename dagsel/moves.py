"""What a search asks for and what it decides: requests, moves, and subsets packed as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Action", "Direction", "Move", "Request", "pack", "unpack"]

Action = Literal["start", "add", "remove"]
Direction = Literal["backward", "forward"]


def pack(mask: NDArray[np.bool_]) -> bytes:
    """Return a boolean mask over the features as bytes, eight features a byte."""
    return np.packbits(mask).tobytes()


def unpack(packed: bytes) -> tuple[int, ...]:
    """Return the ascending features of a mask packed by `pack`."""
    # The padding of the last byte is zero, so the number of features is not needed.
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8))
    return tuple(np.flatnonzero(bits).tolist())


@dataclass(frozen=True, slots=True)
class Request:
    """What to score next.

    Attributes
    ----------
    subset : tuple of int
        Features now in the model, ascending.
    candidates : tuple of int
        Features to toggle one at a time, ascending: one that is in `subset` is removed from it,
        another is added to it. Either all are in it or none is. Empty: score `subset` itself.
    """

    subset: tuple[int, ...]
    candidates: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows that the score table must have."""
        return max(1, len(self.candidates))

    def variants(self) -> Iterator[tuple[int, ...]]:
        """Yield the subset that each row of the score table stands for, ascending features."""
        if not self.candidates:
            yield self.subset
            return
        members = set(self.subset)
        for feature in self.candidates:
            yield tuple(sorted(members ^ {feature}))


@dataclass(frozen=True, slots=True)
class Move:
    """A decided round.

    Attributes
    ----------
    action : {"start", "add", "remove"}
        "start": the starting subset was scored.
    feature : int or None
        The feature added or removed; None for "start", and where several were.
    mask : bytes
        The subset after the move, packed; read it with `subset`.
    fold_scores : tuple of float
        Scores of the subset after the move, one per fold.
    mean : float
        Their mean.
    runner_up : int or None
        What would have been chosen next, or instead of the winner; None where no other candidate
        has a score.
    runner_up_mean : float or None
        The mean score of moving the runner-up alone. For a move of one feature it is greater than
        `mean`, by at most `rounding`, when a tie was broken by rule.
    tied_mask : bytes
        Candidates tied with the winner (with the last of several) and not moved, packed (empty:
        none); read it with `tied`.
    n_candidates : int
        Number of subsets that were scored to decide.
    rounding : float
        Scores this close to each other counted as equal.
    features : tuple of int
        The features added or removed, best first; empty for "start".
    """

    action: Action
    feature: int | None
    mask: bytes
    fold_scores: tuple[float, ...]
    mean: float
    runner_up: int | None = None
    runner_up_mean: float | None = None
    tied_mask: bytes = b""
    n_candidates: int = 1
    rounding: float = 0.0
    features: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.feature is not None and not self.features:
            object.__setattr__(self, "features", (self.feature,))

    @property
    def subset(self) -> tuple[int, ...]:
        """Features after the move, ascending."""
        return unpack(self.mask)

    @property
    def tied(self) -> tuple[int, ...]:
        """Candidates tied with the winner, which is not among them; ascending."""
        return unpack(self.tied_mask)

    @property
    def size(self) -> int:
        """Number of features after the move."""
        return int.from_bytes(self.mask).bit_count()
