"""Columns of text or categories as zeros and ones, one column a level."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.data import frames
from dagsel.data.blocks import Table
from dagsel.data.dask_blocks import is_dask
from dagsel.data.files import Scan
from dagsel.data.sources import Run, open_table
from dagsel.data.values import column_label, listing, missing_value, row_of_array
from dagsel.exceptions import DataError

__all__ = ["Coding", "Columns", "one_hot_coded"]


@dataclass(frozen=True)
class Coding:
    """Which columns stand for each of the user's.

    Attributes
    ----------
    names : tuple
        The user's columns.
    columns : tuple of tuple of int
        For each of them the columns of the coded table: itself, or one for each level.
    """

    names: tuple[Hashable, ...]
    columns: tuple[tuple[int, ...], ...]

    @property
    def n_columns(self) -> int:
        """Number of the user's columns."""
        return len(self.names)

    def coded(self, features: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Return, for features of the user's columns, the columns of the coded table."""
        return tuple(
            tuple(coded for column in feature for coded in self.columns[column])
            for feature in features
        )

    def own(self, coded: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Return, for features of the coded table, the user's columns: undoes `coded`."""
        owner = {each: own for own, columns in enumerate(self.columns) for each in columns}
        return tuple(tuple(dict.fromkeys(owner[each] for each in feature)) for feature in coded)


#: What the user's columns are called: those of the table, unless they were coded.
Columns = Table | Coding


class _Column(NamedTuple):
    """A column taken apart."""

    levels: list[Hashable]  # those that occur, in order
    codes: NDArray[np.intp]  # of every row, -1 where it is missing


def one_hot_coded(X: Any, y: Any, run: Run = map) -> tuple[Any, Any, Coding | None]:
    """Code the columns of text, categories or an enumeration.

    Parameters
    ----------
    X : frame, Scan or array
        A pandas or polars frame; files are read as a whole. An array has no such columns.
    y : array-like, series or label
        A label is taken out of a frame first.
    run : callable
        See `dagsel.data.sources.open_table`.

    Returns
    -------
    X
        A frame of floating point numbers, each coded column in the place of the user's own; the
        levels that occur are in the order of the categories or, of text, in sorted order.
    y
        The target.
    Coding or None
        `None` if there is nothing to code; X is then as given.

    Raises
    ------
    DataError
        For a missing value in such a column, for a column with hardly a row that shares its level
        with another, and for tables whose columns cannot be told.
    """
    if isinstance(X, Scan):
        X, y = _read_whole(X, run)
    if is_dask(X):
        msg = (
            "categories='one-hot' codes the columns of frames in memory, and X is a Dask "
            "collection. Give X.compute(), or encode the columns as numbers."
        )
        raise DataError(msg)
    if not frames.is_frame(X):
        return X, y, None
    if frames.is_label(y, X.columns):
        X, y = frames.split_target(X, y)
    names = frames.labels(X)
    library, take_apart = ("polars", _polars_column)
    if not frames.is_a(X, "polars", "DataFrame"):
        library, take_apart = ("pandas", _pandas_column)
        X = X.to_pandas() if frames.is_a(X, "cudf", "DataFrame") else X
    apart = [take_apart(X[name]) for name in names]
    if not any(apart):
        return X, y, None
    coded, coding = _code(X, names, apart)
    return _frame(library, coded, _labels(names, apart), X), y, coding


def _read_whole(scan: Scan, run: Run) -> tuple[Any, Any]:
    import pandas as pd

    table = open_table(scan, run=run)
    parts = [block.native(block.payload)[0] for block in table.blocks]
    return (pd.concat(parts) if len(parts) > 1 else parts[0]), table.target


def _pandas_column(column: Any) -> _Column | None:
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes = np.asarray(column.cat.codes, dtype=np.intp)
        return _occurring(list(dtype.categories), codes)
    if not isinstance(dtype, pd.StringDtype) and not _holds_text(column):
        return None
    codes, levels = pd.factorize(column, sort=True)
    return _Column(list(levels), np.asarray(codes, dtype=np.intp))


def _holds_text(column: Any) -> bool:
    """Tell whether a column of objects holds text; other objects may be numbers."""
    if column.dtype != np.dtype(object):
        return False
    given = column.dropna()
    return bool(len(given)) and all(isinstance(value, str) for value in given)


def _polars_column(column: Any) -> _Column | None:
    polars = sys.modules["polars"]
    if column.dtype not in (polars.String, polars.Categorical, polars.Enum):
        return None
    if column.dtype == polars.Enum:
        order = column.dtype.categories.to_list()
    else:
        order = sorted(column.cast(polars.String).drop_nulls().unique().to_list())
    place = {level: number for number, level in enumerate(order)}
    codes = [-1 if value is None else place[value] for value in column.to_list()]
    return _occurring(order, np.array(codes, dtype=np.intp))


def _occurring(categories: Sequence[Hashable], codes: NDArray[np.intp]) -> _Column:
    """Leave out categories without a row: their columns would be zero."""
    used = np.unique(codes[codes >= 0])
    renumbered = np.full(len(categories) + 1, -1, dtype=np.intp)  # the last one is that of -1
    renumbered[used] = np.arange(len(used))
    return _Column([categories[number] for number in used], renumbered[codes])


def _code(
    frame: Any, names: tuple[Hashable, ...], apart: Sequence[_Column | None]
) -> tuple[NDArray[np.float64], Coding]:
    for position, column in enumerate(apart):
        if column is not None:
            _check(column, names, position)
    widths = [1 if column is None else len(column.levels) for column in apart]
    edges = np.concatenate([[0], np.cumsum(widths)]).tolist()
    coding = Coding(names, tuple(tuple(range(start, stop)) for start, stop in pairwise(edges)))
    coded = np.zeros((len(frame), edges[-1]), order="F")
    numbers = [name for name, column in zip(names, apart, strict=True) if column is None]
    if numbers:
        rest = frame[numbers]
        frames.check_numeric(rest, coded=True)
        places = [edges[i] for i, column in enumerate(apart) if column is None]
        coded[:, places] = frames.float_rows(rest, 0, len(rest), numbers, row_of_array(0))
    rows = np.arange(len(frame))
    for column, start in zip(apart, edges, strict=False):
        if column is not None:
            coded[rows, start + column.codes] = 1.0
    return coded, coding


def _check(column: _Column, names: Sequence[Hashable], position: int) -> None:
    label, n_rows, n_levels = column_label(names, position), len(column.codes), len(column.levels)
    missing = column.codes < 0
    if np.any(missing):
        raise missing_value(label, row_of_array(0)(int(missing.argmax())))
    if 2 * n_levels > max(n_rows, 4):
        msg = (
            f"Column {label} has {n_levels} levels in {n_rows} rows, such as "
            f"{listing(column.levels, 3)}: too few rows share one. Drop it if it is an identifier, "
            "free text, or numbers with a misprint among them; or join levels."
        )
        raise DataError(msg)


def _labels(names: tuple[Hashable, ...], apart: Sequence[_Column | None]) -> list[Hashable]:
    # Estimators accept names that are all text, or none.
    text = all(isinstance(name, str) for name in names)
    labels: list[Hashable] = []
    for name, column in zip(names, apart, strict=True):
        if column is None:
            labels.append(name)
        else:
            labels += [f"{name}={level}" if text else (name, level) for level in column.levels]
    return labels


def _frame(library: str, values: NDArray[np.float64], labels: list[Hashable], like: Any) -> Any:
    if library == "polars":
        return sys.modules["polars"].DataFrame(values, schema=labels)
    import pandas as pd

    columns = pd.Index(labels, tupleize_cols=False)
    return pd.DataFrame(values, columns=columns, index=like.index, copy=False)
