"""Cross-validation splits: drawn once, kept small, and taken apart for one pass over the rows.

A selection must score every candidate on the same folds, so a splitter is asked once and what it
said is kept. Each side of a fold is stored as a packed bit mask, an eighth of a byte a row, unless
the order or the repetition of its rows says more than the set does.

Fast engines add up moments (cross-products of the rows). To need only one pass over the rows for
many overlapping training sets, folds are taken apart into *atoms*: sets of rows that belong to the
same sides of the same folds. Any side is a union of atoms, and its moments are the sum of theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from dagsel.exceptions import DataError, NotCertifiedError

__all__ = ["Fold", "Folds", "Layer", "draw_folds"]


class Fold(NamedTuple):
    """Rows of one fold, in the order in which the splitter gave them.

    Attributes
    ----------
    train, test : ndarray of int
        Row indices.
    """

    train: NDArray[np.intp]
    test: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Layer:
    """Consecutive folds whose rows fall into few atoms.

    Attributes
    ----------
    labels : ndarray of int32, shape (n_rows,)
        Each row's atom, counted from 0 in the order of their first rows; -1 for a row that is in
        none of these folds.
    n_atoms : int
        Number of atoms.
    folds : range
        Which folds of `Folds` these are.
    """

    labels: NDArray[np.int32]
    n_atoms: int
    folds: range
    _train: NDArray[np.uint8]  # packed (n_folds, n_atoms)
    _test: NDArray[np.uint8]

    def train_atoms(self, fold: int) -> tuple[int, ...]:
        """Return the atoms that make up the training rows of a fold, which is in `folds`."""
        return self._atoms(self._train, fold)

    def test_atoms(self, fold: int) -> tuple[int, ...]:
        """Return the atoms that make up the test rows of a fold, which is in `folds`."""
        return self._atoms(self._test, fold)

    def table(self, side: Literal["train", "test"]) -> NDArray[np.bool_]:
        """Return which atoms are in which fold's side, shape (len(folds), n_atoms)."""
        packed = self._train if side == "train" else self._test
        return np.unpackbits(packed, axis=1, count=self.n_atoms).astype(np.bool_)

    def slices(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, slice | NDArray[np.intp]]]:
        """Yield the atoms that occur in a range of rows, and where in that range they do.

        Parameters
        ----------
        start, stop : int
            The range of rows; to the end of the table by default.

        Yields
        ------
        atom : int
            Ascending.
        rows : slice or ndarray of int
            The atom's rows counted from `start`, so that they index an array which holds just the
            range. A slice where they are consecutive, so that indexing copies nothing; otherwise
            ascending indices.
        """
        labels = self.labels[start:stop]
        # The sort of 16-bit integers takes linear time.
        narrow = np.int16 if self.n_atoms <= np.iinfo(np.int16).max else np.int32
        order = np.argsort(labels.astype(narrow), kind="stable")
        counts = np.bincount(labels + 1, minlength=self.n_atoms + 1)
        for atom, (first, end) in enumerate(pairwise(np.cumsum(counts).tolist())):
            if first == end:
                continue
            rows = order[first:end]
            low, high = int(rows[0]), int(rows[-1])
            yield atom, slice(low, high + 1) if high - low + 1 == end - first else rows

    def _atoms(self, packed: NDArray[np.uint8], fold: int) -> tuple[int, ...]:
        bits = np.unpackbits(packed[self.folds.index(fold)])
        return tuple(np.flatnonzero(bits).tolist())


@dataclass(frozen=True, eq=False)
class _Side:
    """Training or test rows of one fold."""

    rows: NDArray[Any]  # packed mask (uint8), or row indices where the mask does not say it all
    packed: bool
    size: int

    @classmethod
    def of(cls, rows: NDArray[np.intp], n_rows: int) -> _Side:
        if np.all(rows[1:] > rows[:-1]):
            mask = np.zeros(n_rows, dtype=np.bool_)
            mask[rows] = True
            return cls(np.packbits(mask), True, rows.size)
        narrow = np.int32 if n_rows <= np.iinfo(np.int32).max else np.int64
        return cls(rows.astype(narrow), False, rows.size)

    def mask(self, n_rows: int) -> NDArray[np.bool_]:
        if self.packed:
            return np.unpackbits(self.rows, count=n_rows).view(np.bool_)
        mask = np.zeros(n_rows, dtype=np.bool_)
        mask[self.rows] = True
        return mask

    def indices(self, n_rows: int) -> NDArray[np.intp]:
        if self.packed:
            return np.flatnonzero(self.mask(n_rows))
        return self.rows.astype(np.intp)

    def holds(self, rows: NDArray[np.intp], n_rows: int) -> NDArray[np.bool_]:
        """Whether each of `rows` is on this side, in time proportional to `rows` if packed."""
        if self.packed:
            bits = self.rows[rows >> 3] << (rows & 7).astype(np.uint8)
            held: NDArray[np.bool_] = (bits & 0x80) != 0
            return held
        return self.mask(n_rows)[rows]


class Folds:
    """Training and test rows of every fold of one table.

    Iterating yields each `Fold` in turn, so this can be given as `cv` to scikit-learn. Made by
    `draw_folds`.

    Parameters
    ----------
    splits : iterable of (train, test)
        Row indices (integers from 0 to ``n_rows - 1``) or boolean masks of length `n_rows`. Taken
        one by one: the whole of it need not fit into memory.
    n_rows : int
        Number of rows of the table.

    Attributes
    ----------
    n_rows : int
        Number of rows of the table.
    has_repeats : bool
        Whether a row occurs more than once on a side of a fold, as in a bootstrap sample. Then
        there are no `layers`.

    Raises
    ------
    DataError
        There is no fold, or one is not a pair, has an empty side, or has rows that are not there.
    """

    def __init__(self, splits: Iterable[Any], n_rows: int) -> None:
        self.n_rows = int(n_rows)
        self._sides: list[tuple[_Side, _Side]] = []
        for number, split in enumerate(splits):
            train, test = _checked_pair(split, number, self.n_rows)
            self._sides.append((_Side.of(train, self.n_rows), _Side.of(test, self.n_rows)))
        if not self._sides:
            msg = "cv gave no folds; if it is a generator, it may have been used up before"
            raise DataError(msg)
        self.has_repeats = any(
            not side.packed and int(np.count_nonzero(side.mask(self.n_rows))) != side.size
            for pair in self._sides
            for side in pair
        )

    def __repr__(self) -> str:
        return f"<{len(self)} Folds of {self.n_rows} rows>"

    def __len__(self) -> int:
        return len(self._sides)

    def __getitem__(self, fold: int) -> Fold:
        train, test = self._sides[fold]
        return Fold(train.indices(self.n_rows), test.indices(self.n_rows))

    def __iter__(self) -> Iterator[Fold]:
        return (self[fold] for fold in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        # Labels are much larger than the masks from which they can be computed again.
        return {name: value for name, value in self.__dict__.items() if name != "_layers"}

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return len(self)

    @property
    def splits(self) -> list[Fold]:
        """All folds as row indices; for many rows, rather iterate or index: they are not kept."""
        return list(self)

    @property
    def train_sizes(self) -> NDArray[np.intp]:
        """Number of training rows of each fold, repeated ones counted each time."""
        return np.array([train.size for train, _ in self._sides], dtype=np.intp)

    @property
    def test_sizes(self) -> NDArray[np.intp]:
        """Number of test rows of each fold, repeated ones counted each time."""
        return np.array([test.size for _, test in self._sides], dtype=np.intp)

    def masks(self, fold: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the training and test rows of a fold as masks of shape (n_rows,)."""
        train, test = self._sides[fold]
        return train.mask(self.n_rows), test.mask(self.n_rows)

    def digest(self) -> str:
        """Return a hexadecimal digest: equal for equal folds, in equal order, of as many rows."""
        digest = hashlib.sha256(str(self.n_rows).encode())
        for pair in self._sides:
            for side in pair:
                rows = side.rows if side.packed else side.rows.astype("<i8")
                digest.update(f"{side.packed}{rows.size}:".encode())
                digest.update(np.ascontiguousarray(rows).data)
        return digest.hexdigest()

    @property
    def layers(self) -> list[Layer]:
        """The folds taken apart into atoms; computed on first use and kept, but not pickled.

        A layer takes further folds, in order, as long as it has at most one atom more than folds:
        k-fold makes one layer of k atoms, a time series split of k folds one of k + 1, a repeated
        k-fold one layer for each repetition, and a shuffle split one of two atoms for each fold.

        Raises
        ------
        NotCertifiedError
            A side repeats rows (`has_repeats`), which atoms do not express.
        """
        if self.has_repeats:
            msg = (
                "a fold repeats rows, as a bootstrap sample does, and sums over sets of rows "
                'cannot express that; use engine="rows"'
            )
            raise NotCertifiedError(msg)
        return self._layers

    @cached_property
    def _layers(self) -> list[Layer]:
        layers: list[Layer] = []
        begin = 0
        labels = np.zeros(self.n_rows, dtype=np.int32)
        for fold in range(len(self)):
            finer = self._refine(labels, fold)
            if fold > begin and finer.max() > fold - begin + 2:
                layers.append(self._layer(labels, range(begin, fold)))
                begin = fold
                finer = self._refine(np.zeros_like(labels), fold)
            labels = finer
        layers.append(self._layer(labels, range(begin, len(self))))
        return layers

    def _refine(self, labels: NDArray[np.int32], fold: int) -> NDArray[np.int32]:
        """Split every atom by the sides of one more fold.

        Here 0 stands for the rows used nowhere so far, and atoms count from 1.
        """
        train, test = self.masks(fold)
        keys = labels * np.int32(4)
        keys += train.view(np.int8)
        keys += test.view(np.int8) * np.int8(2)
        used = np.bincount(keys) > 0
        used[0] = True  # keeps 0 at 0, whether such rows are left or not
        renamed = np.cumsum(used, dtype=np.int32) - np.int32(1)
        finer: NDArray[np.int32] = renamed[keys]
        return finer

    def _layer(self, labels: NDArray[np.int32], folds: range) -> Layer:
        n_atoms = int(labels.max())
        # Of equal indices the last assignment stays: going backwards, the first row.
        first = np.zeros(n_atoms + 1, dtype=np.intp)
        first[labels[::-1]] = np.arange(self.n_rows - 1, -1, -1)
        order = 1 + np.argsort(first[1:])
        renamed = np.full(n_atoms + 1, -1, dtype=np.int32)
        renamed[order] = np.arange(n_atoms, dtype=np.int32)
        # All rows of an atom are on the same sides, so its first row tells which those are.
        rows = first[order]
        train, test = (
            np.stack([np.packbits(self._sides[f][side].holds(rows, self.n_rows)) for f in folds])
            for side in (0, 1)
        )
        return Layer(renamed[labels], n_atoms, folds, train, test)


def draw_folds(
    cv: Any,
    n_rows: int,
    y: Any = None,
    groups: Any = None,
    *,
    classifier: bool = False,
    X: Any = None,
) -> Folds:
    """Draw the folds of a cross-validation, once.

    Parameters
    ----------
    cv : int, "none", splitter, iterable of (train, test), Folds, or None
        An integer k: `StratifiedKFold` for a classifier with binary or multi-class `y`, `KFold`
        otherwise, both unshuffled; None is 5. "none": one fold in which all rows are both training
        and test rows. A splitter has ``split(X, y, groups)``. Train and test are row indices or
        boolean masks.
    n_rows : int
        Number of rows of the table.
    y : array-like of length n_rows, optional
        Target, which stratified splitters need.
    groups : array-like of length n_rows, optional
        Group of each row, which group splitters need.
    classifier : bool
        Whether the estimator is a classifier.
    X : array-like, optional
        Features, for the rare splitter that looks at them; others get a column of zeros.

    Returns
    -------
    Folds

    Raises
    ------
    DataError
        The rows cannot be split in this way, or what the splitter gave is unusable. scikit-learn's
        own error, if there was one, is the cause.
    """
    for name, values in (("y", y), ("groups", groups)):
        if values is not None and len(values) != n_rows:
            msg = f"{name} has {len(values)} entries, but the table has {n_rows} rows"
            raise DataError(msg)
    if n_rows < 1:
        msg = "the table has no rows"
        raise DataError(msg)
    if isinstance(cv, str):
        if cv != "none":
            msg = f'cv must be an integer, "none", a splitter or a list of splits; got {cv!r}'
            raise DataError(msg)
        rows = np.arange(n_rows)
        return Folds([(rows, rows)], n_rows)
    if isinstance(cv, Folds) and cv.n_rows == n_rows:
        return cv
    if not hasattr(cv, "split"):
        if isinstance(cv, Iterable):
            return Folds(cv, n_rows)
        cv = _default_splitter(cv, n_rows, y, classifier=classifier)
    return _split_by(cv, n_rows, np.zeros((n_rows, 1)) if X is None else X, y, groups)


def _default_splitter(cv: Any, n_rows: int, y: Any, *, classifier: bool) -> Any:
    if cv is None:
        cv = 5
    if isinstance(cv, bool | np.bool_) or not isinstance(cv, int | np.integer) or cv < 2:
        msg = (
            "cv must be an integer of at least 2, a splitter, or an iterable of (train, test) "
            f'row indices; got {cv!r}. "none" scores on the training rows'
        )
        raise DataError(msg)
    if cv > n_rows:
        msg = f"cv={cv} folds need at least {cv} rows; the table has {n_rows}. Use fewer folds"
        raise DataError(msg)
    return check_cv(int(cv), y, classifier=classifier)


def _split_by(splitter: Any, n_rows: int, X: Any, y: Any, groups: Any) -> Folds:
    """Ask a splitter, and say what is missing where it refuses."""
    try:
        return Folds(splitter.split(X, y, groups), n_rows)
    except DataError:
        raise
    except (ValueError, TypeError, IndexError) as error:
        msg = f"{splitter!r} cannot split the {n_rows} rows: {error}"
        if groups is None and "group" in str(error).lower():
            msg += " Say with groups= which group each row is in."
        raise DataError(msg) from error


def _checked_pair(split: Any, number: int, n_rows: int) -> tuple[NDArray[np.intp], ...]:
    try:
        train, test = split
    except (TypeError, ValueError) as error:
        msg = f"fold {number} of cv is not a pair (train, test) of row indices: {split!r:.80}"
        raise DataError(msg) from error
    return _checked_rows(train, "train", number, n_rows), _checked_rows(
        test, "test", number, n_rows
    )


def _checked_rows(rows: Any, side: str, number: int, n_rows: int) -> NDArray[np.intp]:
    where = f"the {side} rows of fold {number}"
    found = np.asarray(rows)
    if found.ndim != 1:
        msg = f"{where} must be one-dimensional; they have the shape {found.shape}"
        raise DataError(msg)
    if found.dtype == np.bool_:
        if found.size != n_rows:
            msg = f"{where} are a mask of {found.size} entries, but the table has {n_rows} rows"
            raise DataError(msg)
        found = np.flatnonzero(found)
    if not found.size:
        msg = f"{where} are empty; use fewer folds or other splits"
        raise DataError(msg)
    if not np.issubdtype(found.dtype, np.integer):
        msg = f"{where} must be integers or booleans; their type is {found.dtype}"
        raise DataError(msg)
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= n_rows:
        bad = low if low < 0 else high
        msg = f"{where} name row {bad}, but the table has rows 0 to {n_rows - 1}"
        raise DataError(msg)
    return found.astype(np.intp, copy=False)
