"""Columns as they come out of a file, put together to slabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dagsel.data.blocks import Block, Slab
from dagsel.data.values import CODING, check_features
from dagsel.exceptions import DataError

__all__ = ["cut_slabs", "missing_value", "type_error"]

Floats = NDArray[np.floating[Any]]


def cut_slabs(
    batches: Iterator[Any],
    block: Block,
    names: Sequence[str],
    max_rows: int,
    place: Callable[[int], str],
    dtype: type[np.floating[Any]] = np.float64,
) -> Iterator[Slab]:
    """Yield slabs of `max_rows` rows (the last one fewer) from Arrow batches of any size.

    Parameters
    ----------
    batches : iterator of pyarrow.RecordBatch
        Numeric columns: the features, then the targets.
    block : Block
        Says how many rows there must be.
    names : sequence of str
        Labels of the features.
    max_rows : int
    place : callable
        Says where a row is, given its position in the block.
    dtype : type
        Of the features.
    """
    done, slab = 0, None
    for batch in batches:
        taken = 0
        while taken < batch.num_rows:
            if slab is None:
                rows = min(max_rows, block.n_rows - done)
                if rows == 0:
                    _changed(block, place)
                slab = _Filling(rows, batch.num_columns, len(names), dtype)
            here = _shifted(place, done)
            taken += slab.add(batch.slice(taken), names, here)
            if slab.missing == 0:
                check_features(slab.features.T, names, here)
                yield Slab(block.start + done, slab.features.T, slab.targets.T)
                done, slab = done + slab.filled, None
    if done < block.n_rows:
        _changed(block, place)


def _shifted(place: Callable[[int], str], by: int) -> Callable[[int], str]:
    return lambda row: place(by + row)


def _changed(block: Block, place: Callable[[int], str]) -> NoReturn:
    msg = (
        f"There are not the {block.n_rows} rows from {place(0)} on that were counted before. "
        "The file has changed since it was scanned: start again."
    )
    raise DataError(msg)


class _Filling:
    """A slab in the making; a column is a row of the buffers, so that copies are contiguous."""

    def __init__(
        self, rows: int, n_columns: int, n_features: int, dtype: type[np.floating[Any]]
    ) -> None:
        self.features: Floats = np.empty((n_features, rows), dtype)
        self.targets: Floats = np.empty((n_columns - n_features, rows))
        self.filled = 0

    @property
    def missing(self) -> int:
        return int(self.features.shape[1]) - self.filled

    def add(self, batch: Any, names: Sequence[str], place: Callable[[int], str]) -> int:
        """Copy as many rows as fit; return how many."""
        batch = batch.slice(0, self.missing)
        n_features = len(self.features)
        here = slice(self.filled, self.filled + batch.num_rows)
        for j, column in enumerate(batch.columns):
            if column.null_count:
                name = f"Column {names[j]!r}" if j < n_features else "The target"
                first = _first_null(column)
                raise missing_value(name, place(self.filled + first))
            into = self.features[j] if j < n_features else self.targets[j - n_features]
            into[here] = _numbers(column)
        self.filled += batch.num_rows
        return int(batch.num_rows)


def _first_null(column: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.index(pc.is_null(column), True).as_py())


def _numbers(column: Any) -> NDArray[Any]:
    import pyarrow as pa

    if not pa.types.is_floating(column.type):
        # Integers beyond 2**53 lose digits in floating point, here as everywhere else.
        column = column.cast(pa.float64(), safe=False)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def missing_value(column: str, place: str) -> DataError:
    """Return the error for an empty cell."""
    msg = (
        f"{column} has no value in {place}. Leave the column out (drop=[...]), "
        "or such rows, or impute before the selection."
    )
    return DataError(msg)


def type_error(columns: Sequence[tuple[str, str]], where: str) -> DataError:
    """Return the error for columns that are no numbers, given as pairs of name and type."""
    named = ", ".join(f"{name!r} ({kind})" for name, kind in columns[:5])
    more = f" and {len(columns) - 5} more" if len(columns) > 5 else ""
    msg = (
        f"Columns of {where} are not numeric: {named}{more}. "
        f"Leave them out (drop=[...]), or encode them as numbers; {CODING}."
    )
    return DataError(msg)
