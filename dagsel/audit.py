"""Decided rounds scored again by plain refits: the proof that a fast engine told the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dagsel.rounds import Round

__all__ = ["Audit", "audited_rounds", "relative_difference"]

# Scores that are relative already, and can be nearly 0 for no reason.
_RELATIVE = ("r2", "explained_variance", "adjusted_r2")


@dataclass(frozen=True)
class Audit:
    """What plain refits made of some decided rounds.

    Attributes
    ----------
    rounds : tuple of int
        Numbers of the rounds of which the winner, the runner-up and a few other candidates were
        refitted.
    n_refits : int
        Models fitted to do so.
    difference : float
        The largest difference between a winner's fold scores and those of its refits, relative to
        the refits' (to 1 where scores are relative already, as R² is).
    overturned : tuple of int
        Rounds in which one of them is better than the winner by refits, beyond rounding.
    seconds : float
        Wall-clock time.
    """

    rounds: tuple[int, ...]
    n_refits: int
    difference: float
    overturned: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        """Return the result in one line."""
        chosen = "all choices stand"
        if self.overturned:
            chosen = f"overturned in rounds {', '.join(map(str, self.overturned))}"
        return (
            f"audit of {len(self.rounds)} rounds by {self.n_refits} refits: largest relative "
            f"difference {self.difference:.1e}, {chosen}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return {**asdict(self), "rounds": list(self.rounds), "overturned": list(self.overturned)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Audit:
        """Return the audit that `to_dict` was called on."""
        lists = {name: tuple(content[name]) for name in ("rounds", "overturned")}
        return cls(**{**content, **lists})


def audited_rounds(n_rounds: int, n_audited: int) -> tuple[int, ...]:
    """Return which of the rounds are audited: the first, the last, and evenly between them."""
    chosen = np.linspace(0, n_rounds - 1, min(n_rounds, n_audited)).round().astype(int)
    return tuple(sorted(set(chosen.tolist()))) if n_rounds else ()


def relative_difference(done: Round, refits: NDArray[np.float64], scoring: str) -> float:
    """Return the largest relative difference of a round's fold scores from those of refits."""
    size = np.maximum(np.abs(refits), 1.0 if scoring in _RELATIVE else 0.0)
    ours = done.fold_scores
    same = (ours == refits) | (np.isnan(ours) & np.isnan(refits))
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(ours - refits) / size)
    return float(np.max(difference))
