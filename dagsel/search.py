"""Backward, forward and floating search, as a state machine that is asked and told.

A `Search` knows neither arrays' libraries nor Dask nor models. It says which subsets to score
(`Search.request`), is told the scores (`Search.answer`) and decides. Between two calls it is a
small picklable object, so a loop over rounds can travel to a worker and come back.

A *feature* is whatever is moved as one: a column, or a group of columns. The caller maps features
to columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.exceptions import ScoringError

__all__ = ["Action", "Direction", "Move", "Request", "Search", "TieRule", "pack", "unpack"]

Action = Literal["start", "add", "remove"]
Direction = Literal["backward", "forward"]
TieRule = Literal["highest", "lowest"]
StopReason = Literal["target", "tol"]
_Phase = Literal["start", "main", "conditional", "done"]

_OPPOSITE: dict[Action, Action] = {"add": "remove", "remove": "add", "start": "start"}


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
        The feature added or removed; None for "start".
    mask : bytes
        The subset after the move, packed; read it with `subset`.
    fold_scores : tuple of float
        Scores of the subset after the move, one per fold.
    mean : float
        Their mean.
    runner_up : int or None
        What would have been chosen without the winner; None where no other candidate has a score.
    runner_up_mean : float or None
        Its mean score. Greater than `mean`, by at most `rounding`, when a tie was broken by rule.
    tied_mask : bytes
        Candidates tied with the winner, packed (empty: none); read it with `tied`.
    n_candidates : int
        Number of subsets that were scored to decide.
    rounding : float
        Scores this close to each other counted as equal.
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


class _Score(NamedTuple):
    """A mean score and the size of the error it may carry."""

    mean: float
    rounding: float

    def lead(self, other: _Score) -> float:
        """How much greater this score is, less what rounding could account for."""
        return self.mean - other.mean - max(self.rounding, other.rounding)

    def beats(self, other: _Score) -> bool:
        return self.lead(other) > 0.0


class Search:
    """One path through the subsets of features 0 to ``n_features - 1``.

    Greater scores are better. A candidate whose score is NaN in any fold has no score and is never
    chosen; minus infinity is a score like any other, so it is chosen only where nothing better is
    left. Candidates whose means are within `rounding` of the best are tied, and a tie is broken by
    rule alone: of tied features to add the lowest is added, of tied features to remove the one
    that `tie_rule` says is removed. Nothing depends on which of the tied means was the greatest.

    Parameters
    ----------
    n_features : int
        Number of features.
    direction : {"backward", "forward"}
        Start from all features and remove, or start from the fixed ones and add.
    floating : bool
        After each move try opposite ones: the best is made if it beats both the current score and
        the best score yet seen at the size it leads to, and then the next is tried. The feature
        just moved stays where it is. Needs more than two features removed so far (backward), or
        more than two that are not fixed in the model (forward).
    target_size : int
        Stop at this number of features, fixed ones included.
    fixed : iterable of int
        Features that are always in the model.
    tie_rule : {"highest", "lowest"}
        Which of several tied features to remove: the highest index, as mlxtend does, or the
        lowest, as scikit-learn does.
    tol : float, optional
        Stop, without making the move, at the first move along `direction` that does not raise the
        score by at least `tol`. May be negative: a loss of up to ``-tol`` is then accepted.
    score_start : bool
        Whether the starting subset is scored first. With `tol` the first move is compared with it,
        so that backward may remove nothing; otherwise the first move is always made, as in
        scikit-learn. An empty start (forward, nothing fixed) is never scored.

    Raises
    ------
    ValueError
        For parameters that contradict each other or `n_features`.
    """

    def __init__(
        self,
        n_features: int,
        *,
        target_size: int,
        direction: Direction = "backward",
        floating: bool = False,
        fixed: Iterable[int] = (),
        tie_rule: TieRule = "highest",
        tol: float | None = None,
        score_start: bool = True,
    ) -> None:
        self.n_features = int(n_features)
        self.direction: Direction = direction
        self.floating = bool(floating)
        self.target_size = int(target_size)
        self.fixed = tuple(sorted({int(feature) for feature in fixed}))
        self.tie_rule: TieRule = tie_rule
        self.tol = None if tol is None else float(tol)
        self.score_start = bool(score_start)
        self._check_parameters()

        self._fixed_mask = np.zeros(self.n_features, dtype=np.bool_)
        self._fixed_mask[list(self.fixed)] = True
        backward = direction == "backward"
        self._mask = np.ones_like(self._fixed_mask) if backward else self._fixed_mask.copy()
        self._main: Action = "remove" if backward else "add"
        self._protected: int | None = None  # the feature that the last main move moved
        self._current: _Score | None = None
        self._best: dict[int, _Score] = {}  # by size
        self._request: Request | None = None
        self._phase: _Phase = "main"
        #: Why the search ended: it reached its target size, or `tol` stopped it; None before.
        self.stop_reason: StopReason | None = None
        if self.score_start and self.size:
            self._phase = "start"
        else:
            self._end_at_target()

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"at {self.size}"
        return f"<{self.direction} Search of {self.n_features} to {self.target_size}: {state}>"

    # ------------------------------------------------------------------ what it is

    @property
    def finished(self) -> bool:
        """Whether nothing is left to score."""
        return self._phase == "done"

    @property
    def subset(self) -> tuple[int, ...]:
        """Features now in the model, ascending."""
        return tuple(np.flatnonzero(self._mask).tolist())

    @property
    def size(self) -> int:
        """Number of features now in the model."""
        return int(np.count_nonzero(self._mask))

    @property
    def conditional(self) -> bool:
        """Whether what `request` asks for is a floating search's opposite move."""
        return self._phase == "conditional"

    def candidates_left(self) -> int:
        """Return the number of subsets still to be scored.

        Exact without `floating` and `tol`. With `tol` it is the most there can be; with `floating`
        it is an estimate which supposes that every opposite move is tried once and none is made.
        """
        return sum(self._outlook())

    def rounds_left(self) -> int:
        """Return the number of requests still to come; an estimate where `candidates_left` is."""
        return sum(1 for _ in self._outlook())

    # ------------------------------------------------------------------ ask and tell

    def request(self) -> Request | None:
        """Return what to score next, or None when the search has finished.

        Asking twice without an answer in between returns the same.
        """
        if self._request is None and not self.finished:
            chosen = None
            if self._phase != "start":
                chosen = np.flatnonzero(self._candidate_mask()).tolist()
            self._request = Request(self.subset, tuple(chosen or ()))
        return self._request

    def answer(self, scores: NDArray[Any], rounding: float = 0.0) -> Move | None:
        """Decide the round that `request` asked for.

        Parameters
        ----------
        scores : ndarray of shape (n_candidates or 1, n_folds)
            Score of each variant in each fold, greater is better.
        rounding : float
            Mean scores that differ by no more than this are equal.

        Returns
        -------
        Move or None
            The move made. None if no move was made: a floating search's opposite move was no
            improvement, or `tol` ended the search.

        Raises
        ------
        ScoringError
            No candidate has a score. The search is left as it was, so that it may be answered
            again. (An opposite move without a score is just not made.)
        ValueError
            The table has another shape than was asked for, or the search has finished.
        """
        request = self.request()
        if request is None:
            msg = "the search has finished; there is nothing to answer"
            raise ValueError(msg)
        if not 0.0 <= rounding < np.inf:
            msg = f"rounding must be a finite number of at least 0; got {rounding!r}"
            raise ValueError(msg)
        table = _checked_table(scores, request)
        with np.errstate(invalid="ignore"):  # folds of +inf and -inf have the mean NaN
            means = table.mean(axis=1)
        last = self._action() == "remove" and self.tie_rule == "highest"
        picked = _pick(means, rounding, last=last)
        if picked is None:
            if self.conditional:
                self._leave_conditional()
                return None
            raise ScoringError(_explain_no_score(table, request))
        move = self._describe(request, table, means, picked, rounding, last=last)
        if not self._accepts(move):
            return None
        self._apply(move)
        return move

    def replay(self, move: Move) -> None:
        """Make a move that was decided before, such as one read from a journal.

        Replaying the moves that a search returned, in order, brings a new search of the same
        parameters to where that one was, except that an opposite move which was tried last and
        not made will be asked for again.

        Raises
        ------
        ValueError
            The move cannot come next: it belongs to another search.
        """
        if self.conditional and move.action == self._main:
            self._leave_conditional()
        request = self.request()
        if request is None or move.action != self._action():
            msg = f"a move {move.action!r} cannot come next in {self!r}; it is from another search"
            raise ValueError(msg)
        mask = self._mask.copy()
        if move.feature is not None and move.feature in request.candidates:
            mask[move.feature] ^= True
        if pack(mask) != move.mask:
            msg = (
                f"the move {move.action!r} of feature {move.feature} to {move.size} features does "
                f"not lead on from the subset of {self!r}; it is from another search"
            )
            raise ValueError(msg)
        self._apply(move)

    # ------------------------------------------------------------------ how it decides

    def _action(self) -> Action:
        if self._phase == "start":
            return "start"
        return _OPPOSITE[self._main] if self.conditional else self._main

    def _candidate_mask(self) -> NDArray[np.bool_]:
        mask = self._mask & ~self._fixed_mask if self._action() == "remove" else ~self._mask
        if self.conditional and self._protected is not None:
            mask[self._protected] = False
        return mask

    def _describe(
        self,
        request: Request,
        table: NDArray[np.float64],
        means: NDArray[np.float64],
        picked: _Picked,
        rounding: float,
        *,
        last: bool,
    ) -> Move:
        """Write down the move to the picked row of the table; nothing is changed yet."""
        scores = tuple(table[picked.row].tolist())
        mean = float(means[picked.row])
        if not request.candidates:
            return Move("start", None, pack(self._mask), scores, mean, rounding=rounding)
        candidates = request.candidates
        mask = self._mask.copy()
        mask[candidates[picked.row]] ^= True
        tied_mask = b""
        if len(picked.tied) > 1:
            tied = np.zeros_like(mask)
            tied[[candidates[row] for row in picked.tied if row != picked.row]] = True
            tied_mask = pack(tied)
        means[picked.row] = np.nan
        second = _pick(means, rounding, last=last)
        return Move(
            action=self._action(),
            feature=candidates[picked.row],
            mask=pack(mask),
            fold_scores=scores,
            mean=mean,
            runner_up=None if second is None else candidates[second.row],
            runner_up_mean=None if second is None else float(means[second.row]),
            tied_mask=tied_mask,
            n_candidates=len(candidates),
            rounding=rounding,
        )

    def _accepts(self, move: Move) -> bool:
        """Whether the move is to be made; if not, the search is put into its next phase."""
        if self._phase == "start" or self._current is None:
            return True
        score = _Score(move.mean, move.rounding)
        if self.conditional:
            if score.beats(self._current) and score.beats(self._best[move.size]):
                return True
            self._leave_conditional()
            return False
        # A gain is short of tol only if rounding cannot be the reason, so that removing a copy of
        # another column passes tol=0 on every machine.
        short = self.tol is not None and -self._current.lead(score) < self.tol
        if short:
            self._end("tol")
        return not short

    def _apply(self, move: Move) -> None:
        score = _Score(move.mean, move.rounding)
        if move.feature is not None:
            self._mask[move.feature] ^= True
            if not self.conditional:
                self._protected = move.feature
        # The search goes on from here even where an earlier subset of this size was better.
        self._current = score
        best = self._best.get(move.size)
        if best is None or score.beats(best):
            self._best[move.size] = score
        self._request = None
        started = self._phase == "start"
        if self.floating and not started and self._may_float(move.size):
            self._phase = "conditional"
        else:
            self._leave_conditional()

    def _may_float(self, size: int) -> bool:
        moved = self.n_features - size if self._main == "remove" else size - len(self.fixed)
        return moved > 2

    def _leave_conditional(self) -> None:
        self._request = None
        self._phase = "main"
        self._end_at_target()

    def _end_at_target(self) -> None:
        if self.size == self.target_size:
            self._end("target")

    def _end(self, reason: StopReason) -> None:
        self._request = None
        self._phase = "done"
        self.stop_reason = reason

    def _outlook(self) -> Iterator[int]:
        """Yield the number of subsets that each coming request will ask for."""
        if self.finished:
            return
        if self._phase != "main":
            yield 1 if self._phase == "start" else int(np.count_nonzero(self._candidate_mask()))
        size = self.size
        while size != self.target_size:
            if self._main == "remove":
                yield size - len(self.fixed)
                size -= 1
                opposite = self.n_features - size - 1
            else:
                yield self.n_features - size
                size += 1
                opposite = size - len(self.fixed) - 1
            if self.floating and self._may_float(size):
                yield opposite

    def _check_parameters(self) -> None:
        if self.direction not in ("backward", "forward"):
            msg = f'direction must be "backward" or "forward"; got {self.direction!r}'
            raise ValueError(msg)
        if self.tie_rule not in ("highest", "lowest"):
            msg = f'tie_rule must be "highest" or "lowest"; got {self.tie_rule!r}'
            raise ValueError(msg)
        if self.tol is not None and np.isnan(self.tol):
            msg = "tol must be a number or None; got NaN"
            raise ValueError(msg)
        if self.n_features < 1:
            msg = f"there must be at least one feature; got n_features={self.n_features}"
            raise ValueError(msg)
        if self.fixed and not (self.fixed[0] >= 0 and self.fixed[-1] < self.n_features):
            msg = f"fixed features must be in 0 to {self.n_features - 1}; got {self.fixed}"
            raise ValueError(msg)
        least = max(1, len(self.fixed))
        if not least <= self.target_size <= self.n_features:
            why = f"the {len(self.fixed)} fixed features" if self.fixed else "1"
            msg = (
                f"the number of features to select must be between {why} and all "
                f"{self.n_features}; got {self.target_size}"
            )
            raise ValueError(msg)


class _Picked(NamedTuple):
    row: int
    tied: list[int]  # rows tied for the best, the picked one among them


def _pick(means: NDArray[np.float64], rounding: float, *, last: bool) -> _Picked | None:
    """Return the first or the last of the rows that are best; None if all means are NaN."""
    usable = means[~np.isnan(means)]
    if not usable.size:
        return None
    tied = np.flatnonzero(means >= usable.max() - rounding).tolist()
    return _Picked(tied[-1] if last else tied[0], tied)


def _checked_table(scores: NDArray[Any], request: Request) -> NDArray[np.float64]:
    # Contiguous, so that a row is summed in the same order whatever the layout it came in.
    table = np.ascontiguousarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != request.n_rows or not table.shape[1]:
        msg = (
            f"the score table must have shape ({request.n_rows}, n_folds) for "
            f"{len(request.candidates)} candidates; got {np.shape(scores)}"
        )
        raise ValueError(msg)
    return table


def _explain_no_score(table: NDArray[np.float64], request: Request) -> str:
    missing = np.isnan(table)
    folds = np.flatnonzero(missing.all(axis=0)).tolist()
    if not folds:
        folds = np.flatnonzero(missing.any(axis=0)).tolist()
    if folds:
        where = f"NaN in fold{'s' if len(folds) > 1 else ''} {', '.join(map(str, folds))}"
    else:
        where = "infinite in folds with opposite signs, so it has no mean"
    if request.candidates:
        verb = "removing from" if request.candidates[0] in request.subset else "adding to"
        what = f"each of the {len(request.candidates)} candidates for {verb} the subset"
    else:
        what = "the starting subset"
    return (
        f"no usable score: {what} ({len(request.subset)} of the features) is {where} "
        f"(folds are counted from 0, of {table.shape[1]}). Fit and score the estimator on such a "
        "subset and fold by itself to see why; usual reasons are a fold whose test rows hold one "
        "class or one row, values that overflow, and an estimator that failed to fit. Change the "
        "folds (cv), the scoring or the data."
    )
