"""Backward, forward and floating search, as a state machine that is asked and told.

A `Search` knows neither arrays' libraries nor Dask nor models. It says which subsets to score
(`Search.request`), is told the scores (`Search.answer`) and decides. Between two calls it is a
small picklable object, so a loop over rounds can travel to a worker and come back.

A *feature* is whatever is moved as one: a column, or a group of columns. The caller maps features
to columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from dagsel.choosing import MeanScore, Picked, checked_table, explain_no_score, pick_in_order
from dagsel.exceptions import ScoringError
from dagsel.moves import Action, Direction, Move, Request, pack, unpack

__all__ = [
    "Action",
    "Direction",
    "Move",
    "Request",
    "Search",
    "StopReason",
    "TieRule",
    "pack",
    "unpack",
]

TieRule = Literal["highest", "lowest"]
StopReason = Literal["target", "tol", "threshold", "patience", "time"]
_Phase = Literal["start", "main", "several", "conditional", "done"]

_OPPOSITE: dict[Action, Action] = {"add": "remove", "remove": "add", "start": "start"}


class _Several(NamedTuple):
    """Features that are to be moved together once the subset that they lead to has its scores."""

    move: Move  # without the scores of that subset
    first: Move  # of the best of them alone


class Search:
    """One path through the subsets of features 0 to ``n_features - 1``.

    Greater scores are better. A candidate whose score is NaN in any fold has no score and is never
    chosen; minus infinity is a score like any other, so it is chosen only where nothing better is
    left. Candidates whose means are within `rounding` of the best are tied, and a tie is broken by
    rule alone: of tied features to add the lowest is added, of tied features to remove the one
    that `tie_rule` says is removed. Nothing depends on which of the tied means was the greatest.

    A move of several features (see `step`) takes two requests: one for the candidates, and one for
    the subset without (with) the best of them, so that every recorded score is that of a subset.
    Should that subset have no score, only the best candidate is moved.

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
    strict : bool
        Whether a gain that only rounding can have brought up to `tol` is too little.
    threshold : float, optional
        Move, along `direction`, only features whose own score is at least this, whatever it was
        before; stop where there is none. It is for scores that judge the move and not the subset
        after it, such as the logarithm of the p-value of a removal. Such scores of two sizes say
        nothing about which is better: leave out `tol` and `patience` then, and take the last
        subset.
    step : int or float
        How many features a move along `direction` moves: a number, or a fraction of those that
        could still be moved (rounded down, at least one). Never more than the target size allows,
        and fewer where fewer candidates have a score. More than one excludes `floating`.
    patience : int, optional
        Stop after so many moves along `direction` in a row without a score that beats the best one
        so far by more than rounding. The moves stay made.
    patience_from : int, optional
        Count the scores for `patience` only from this number of features on (backward: of no more
        features, forward: of no fewer).
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
        strict: bool = False,
        threshold: float | None = None,
        step: int | float = 1,
        patience: int | None = None,
        patience_from: int | None = None,
        score_start: bool = True,
    ) -> None:
        self.n_features = int(n_features)
        self.direction: Direction = direction
        self.floating = bool(floating)
        self.target_size = int(target_size)
        self.fixed = tuple(sorted({int(feature) for feature in fixed}))
        self.tie_rule: TieRule = tie_rule
        self.tol = None if tol is None else float(tol)
        self.strict = bool(strict)
        self.threshold = None if threshold is None else float(threshold)
        self.step = _checked_step(step)
        self.patience = _checked_patience(patience)
        self.patience_from = None if patience_from is None else int(patience_from)
        self.score_start = bool(score_start)
        self._check_parameters()
        self._check_stopping()

        self._fixed_mask = np.zeros(self.n_features, dtype=np.bool_)
        self._fixed_mask[list(self.fixed)] = True
        backward = direction == "backward"
        self._mask = np.ones_like(self._fixed_mask) if backward else self._fixed_mask.copy()
        self._main: Action = "remove" if backward else "add"
        self._protected: int | None = None  # the feature that the last main move moved
        self._several: _Several | None = None
        self._current: MeanScore | None = None
        self._best: dict[int, MeanScore] = {}  # by size
        self._top: MeanScore | None = None  # of the sizes that count for `patience`
        self._moves_since_top = 0
        self._request: Request | None = None
        self._phase: _Phase = "main"
        #: Why the search ended: it reached its target size, a parameter stopped it, or `stop` did;
        #: None before.
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

    @property
    def mid_round(self) -> bool:
        """Whether a move of several features has been chosen and its subset is to be scored."""
        return self._phase == "several"

    @property
    def may_stop(self) -> bool:
        """Whether `stop` would leave a scored subset, and no round half done."""
        return self._current is not None and not self.mid_round

    def candidates_left(self) -> int:
        """Return the number of subsets still to be scored.

        Exact without `floating`, as long as every candidate has a score and nothing but the target
        ends the search; otherwise it is the most there can be. With `floating` it is an estimate
        which supposes that every opposite move is tried once and none is made.
        """
        return sum(self._outlook())

    def rounds_left(self) -> int:
        """Return the number of rounds still to come; an estimate where `candidates_left` is."""
        return sum(1 for _ in self._outlook())

    # ------------------------------------------------------------------ ask and tell

    def request(self) -> Request | None:
        """Return what to score next, or None when the search has finished.

        Asking twice without an answer in between returns the same.
        """
        if self._request is None and not self.finished:
            if self._several is not None:
                self._request = Request(self._several.move.subset, ())
            elif self._phase == "start":
                self._request = Request(self.subset, ())
            else:
                chosen = np.flatnonzero(self._candidate_mask()).tolist()
                self._request = Request(self.subset, tuple(chosen))
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
            improvement, several features were chosen whose subset is to be scored next, or `tol`
            or `threshold` ended the search.

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
        table = checked_table(scores, request)
        with np.errstate(invalid="ignore"):  # folds of +inf and -inf have the mean NaN
            means = table.mean(axis=1)
        if self._several is not None:
            return self._make(self._scored(self._several, table, float(means[0]), rounding))
        count = 1 if self._phase != "main" else self._n_moved(self.size)
        last = self._action() == "remove" and self.tie_rule == "highest"
        # One more than is moved: the runner-up.
        order = pick_in_order(means, rounding, count + 1, last=last)
        if not order:
            if self.conditional:
                self._to_main()
                return None
            raise ScoringError(explain_no_score(table, request))
        moved = [pick for pick in order[:count] if self._reaches(means[pick.row], rounding)]
        if not moved:
            self._end("threshold")
            return None
        move = self._describe(request, table, means, order, moved[:1], rounding)
        if len(moved) == 1:
            return self._make(move)
        together = self._describe(request, table, means, order, moved, rounding)
        self._several = _Several(together, move)
        self._request = None
        self._phase = "several"
        return None

    def stop(self, reason: StopReason) -> None:
        """End the search where it is, if it has not ended; what was decided stays decided.

        Parameters
        ----------
        reason : {"target", "tol", "threshold", "patience", "time"}
            Becomes `stop_reason`.

        Raises
        ------
        ValueError
            For another reason.
        """
        if reason not in get_args(StopReason):
            msg = f"reason must be one of {', '.join(get_args(StopReason))}; got {reason!r}"
            raise ValueError(msg)
        if not self.finished:
            self._end(reason)

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
        if self.mid_round or (self.conditional and move.action == self._main):
            self._to_main()
        request = self.request()
        if request is None or move.action != self._action():
            msg = f"a move {move.action!r} cannot come next in {self!r}; it is from another search"
            raise ValueError(msg)
        mask = self._mask.copy()
        if set(move.features) <= set(request.candidates):
            mask[list(move.features)] ^= True
        if pack(mask) != move.mask:
            what = ", ".join(map(str, move.features)) or "none"
            msg = (
                f"the move {move.action!r} of feature {what} to {move.size} features does "
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

    def _n_moved(self, size: int) -> int:
        """Return how many features a main move from this size moves."""
        left = size - len(self.fixed) if self._main == "remove" else self.n_features - size
        step = self.step if isinstance(self.step, int) else max(1, int(self.step * left))
        return min(int(step), abs(size - self.target_size))

    def _reaches(self, mean: float, rounding: float) -> bool:
        """Whether a candidate's score lets it be moved."""
        if self.threshold is None or self._phase != "main":
            return True
        return mean >= self.threshold - rounding

    def _describe(
        self,
        request: Request,
        table: NDArray[np.float64],
        means: NDArray[np.float64],
        order: list[Picked],
        moved: list[Picked],
        rounding: float,
    ) -> Move:
        """Write down the move of the picked rows; nothing is changed yet.

        Scores are those of the first row, and so of the move itself only if that is all.
        """
        row = moved[0].row
        scores, mean = tuple(table[row].tolist()), float(means[row])
        if not request.candidates:
            return Move("start", None, pack(self._mask), scores, mean, rounding=rounding)
        candidates = request.candidates
        rows = {pick.row for pick in moved}
        features = tuple(candidates[pick.row] for pick in moved)
        mask = self._mask.copy()
        mask[list(features)] ^= True
        tied_mask = b""
        equal = [candidates[row] for row in moved[-1].tied if row not in rows]
        if equal:
            tied = np.zeros_like(mask)
            tied[equal] = True
            tied_mask = pack(tied)
        second = next((pick.row for pick in order if pick.row not in rows), None)
        return Move(
            action=self._action(),
            feature=features[0] if len(features) == 1 else None,
            mask=pack(mask),
            fold_scores=scores,
            mean=mean,
            runner_up=None if second is None else candidates[second],
            runner_up_mean=None if second is None else float(means[second]),
            tied_mask=tied_mask,
            n_candidates=len(candidates),
            rounding=rounding,
            features=features,
        )

    def _scored(
        self, several: _Several, table: NDArray[np.float64], mean: float, rounding: float
    ) -> Move:
        """Return the move of several features with the scores of the subset after it."""
        n_scored = several.move.n_candidates + 1
        if np.isnan(mean):
            return replace(several.first, n_candidates=n_scored)
        return replace(
            several.move,
            fold_scores=tuple(table[0].tolist()),
            mean=mean,
            rounding=rounding,
            n_candidates=n_scored,
        )

    def _make(self, move: Move) -> Move | None:
        if not self._accepts(move):
            return None
        self._apply(move)
        return move

    def _accepts(self, move: Move) -> bool:
        """Whether the move is to be made; if not, the search is put into its next phase."""
        if self._phase == "start" or self._current is None:
            return True
        score = MeanScore(move.mean, move.rounding)
        if self.conditional:
            if score.beats(self._current) and score.beats(self._best[move.size]):
                return True
            self._to_main()
            return False
        # A gain is short of tol only if rounding cannot be the reason, so that removing a copy of
        # another column passes tol=0 on every machine.
        short = self.tol is not None and -self._current.lead(score) < self.tol
        if self.tol is not None and self.strict:
            short = not score.lead(self._current) > self.tol
        if short:
            self._end("tol")
        return not short

    def _apply(self, move: Move) -> None:
        score = MeanScore(move.mean, move.rounding)
        self._mask[list(move.features)] ^= True
        if move.feature is not None and not self.conditional:
            self._protected = move.feature
        # The search goes on from here even where an earlier subset of this size was better.
        self._current = score
        best = self._best.get(move.size)
        if best is None or score.beats(best):
            self._best[move.size] = score
        self._count_for_patience(score)
        started = self._phase == "start"
        if self.floating and not started and self._may_float(move.size):
            self._request = None
            self._phase = "conditional"
        else:
            self._to_main()

    def _count_for_patience(self, score: MeanScore) -> None:
        if self.patience_from is not None:
            beyond = self.size - self.patience_from
            if beyond > 0 if self._main == "remove" else beyond < 0:
                return
        if self._top is None or score.beats(self._top):
            self._top = score
            self._moves_since_top = 0
        elif not self.conditional:
            self._moves_since_top += 1

    def _may_float(self, size: int) -> bool:
        moved = self.n_features - size if self._main == "remove" else size - len(self.fixed)
        return moved > 2

    def _to_main(self) -> None:
        """Go on with a move along the direction, or end."""
        self._several = None
        self._request = None
        self._phase = "main"
        self._end_at_target()
        if self.finished or self.patience is None:
            return
        # Only here, so that a floating search has tried to do better by opposite moves.
        if self._moves_since_top >= self.patience:
            self._end("patience")

    def _end_at_target(self) -> None:
        if self.size == self.target_size:
            self._end("target")

    def _end(self, reason: StopReason) -> None:
        self._several = None
        self._request = None
        self._phase = "done"
        self.stop_reason = reason

    def _outlook(self) -> Iterator[int]:
        """Yield the number of subsets that each coming round will ask for."""
        if self.finished:
            return
        size = self.size
        if self._several is not None:
            yield 1
            size = self._several.move.size
        elif self._phase != "main":
            yield 1 if self._phase == "start" else int(np.count_nonzero(self._candidate_mask()))
        while size != self.target_size:
            count = self._n_moved(size)
            extra = 1 if count > 1 else 0
            if self._main == "remove":
                yield size - len(self.fixed) + extra
                size -= count
                opposite = self.n_features - size - 1
            else:
                yield self.n_features - size + extra
                size += count
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

    def _check_stopping(self) -> None:
        for name in ("tol", "threshold"):
            value = getattr(self, name)
            if value is not None and np.isnan(value):
                msg = f"{name} must be a number or None; got NaN"
                raise ValueError(msg)
        if self.floating and self.step != 1:
            msg = (
                f"step={self.step!r} cannot be combined with floating, whose opposite moves follow "
                "moves of one feature: leave one of them out"
            )
            raise ValueError(msg)


def _checked_step(step: Any) -> int | float:
    if not isinstance(step, bool) and isinstance(step, Integral) and int(step) >= 1:
        return int(step)
    if isinstance(step, Real) and not isinstance(step, Integral) and 0 < float(step) < 1:
        return float(step)
    msg = (
        "step must be a whole number of features of at least 1, or a fraction of them between 0 "
        f"and 1; got {step!r}"
    )
    raise ValueError(msg)


def _checked_patience(patience: Any) -> int | None:
    if patience is None:
        return None
    if not isinstance(patience, bool) and isinstance(patience, Integral) and int(patience) >= 1:
        return int(patience)
    msg = f"patience must be a whole number of sizes of at least 1, or None; got {patience!r}"
    raise ValueError(msg)
