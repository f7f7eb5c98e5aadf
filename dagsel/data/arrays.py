"""Tables that are in memory already: arrays and data frames."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.data import frames
from dagsel.data.blocks import Block, Slab, Table
from dagsel.data.values import (
    Place,
    as_float,
    check_features,
    check_lengths,
    check_target,
    infer_objects,
    row_of_array,
    target_matrix,
)
from dagsel.exceptions import DataError

__all__ = ["RowsReader", "memory_table", "split_blocks", "target_values"]


@dataclass(frozen=True)
class RowsReader:
    """Reads blocks whose payload is a pair (features, target) of arrays or frames.

    Attributes
    ----------
    names : tuple or None
        Column labels, for messages.
    """

    names: tuple[Hashable, ...] | None

    def slabs(self, block: Block, payload: Any, max_rows: int) -> Iterator[Slab]:
        """Yield the rows; see `dagsel.data.blocks.Reader`."""
        features, target = payload
        self._check_rows(block, features.shape[0])
        if frames.is_frame(features):
            frames.check_numeric(features)
        targets = target_matrix(target_values(target))
        for start in range(0, block.n_rows, max_rows):
            stop = min(start + max_rows, block.n_rows)
            place = row_of_array(block.start + start)
            rows = self._floats(features, start, stop, place)
            check_features(rows, self.names, place)
            yield Slab(block.start + start, rows, targets[start:stop])

    def native(self, block: Block, payload: Any) -> tuple[Any, Any]:
        """Return the rows as they are; see `dagsel.data.blocks.Reader`."""
        features, target = payload
        self._check_rows(block, features.shape[0])
        return features, target

    def _floats(
        self, features: Any, start: int, stop: int, place: Place
    ) -> NDArray[np.floating[Any]]:
        if frames.is_frame(features):
            return frames.float_rows(features, start, stop, self.names, place)
        rows = frames.to_numpy(features[start:stop])
        return as_float(rows, self.names, place)

    def _check_rows(self, block: Block, n_rows: int) -> None:
        if n_rows == block.n_rows:
            return
        msg = (
            f"Rows {block.start} to {block.stop} were counted as {block.n_rows} rows and are now "
            f"{n_rows}. The collection gives other rows each time it is computed: persist it."
        )
        raise DataError(msg)


def target_values(target: Any) -> NDArray[Any]:
    """Return a target of any accepted type as an array, flat if it is a single column."""
    values = frames.to_numpy(target)
    if values.ndim not in (1, 2):
        msg = f"y has {values.ndim} dimensions. Give one value per row, or one column per target."
        raise DataError(msg)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 2 and values.shape[1] == 0:
        msg = "y has no columns. Give one value per row."
        raise DataError(msg)
    return infer_objects(values)


def memory_table(features: Any, target: Any) -> Table:
    """Return a table of one block over arrays or frames, without copying them.

    Parameters
    ----------
    features : array-like of shape (n_rows, n_columns) or frame
    target : array-like of shape (n_rows,) or (n_rows, n_targets), series or frame
    """
    features = _matrix(features)
    if not (frames.is_frame(target) or frames.is_series(target) or _is_device(target)):
        target = frames.to_numpy(target)
    values = target_values(target)
    n_rows, n_columns = features.shape
    check_lengths(n_rows, len(values))
    if n_columns == 0:
        msg = "The table has no feature columns."
        raise DataError(msg)
    check_target(values, row_of_array(0))
    names = frames.labels(features) if frames.is_frame(features) else None
    block = Block(0, n_rows, RowsReader(names), "memory", (features, target))
    return Table((block,), n_rows, n_columns, names, values, native=(features, target))


def _is_device(value: Any) -> bool:
    return frames.is_a(value, "cupy", "ndarray")


def _matrix(features: Any) -> Any:
    if frames.is_frame(features):
        return features
    array = features if _is_device(features) else frames.to_numpy(features)
    if array.ndim != 2:
        msg = f"X has {array.ndim} dimension(s), but must have rows and columns."
        if array.ndim == 1:
            msg += " If it is a single feature, give X.reshape(-1, 1)."
        raise DataError(msg)
    if array.dtype.kind in "OUS":
        return as_float(array, None, row_of_array(0))
    if array.dtype.kind not in "biuf":
        msg = f"X has dtype {array.dtype}, which is no real number. Convert it to numbers."
        raise DataError(msg)
    return array


def split_blocks(table: Table, n: int) -> Table:
    """Cut a table in memory into nearly equal consecutive blocks, to be spread over workers.

    Parameters
    ----------
    table : Table
    n : int
        Number of blocks; no more than there are rows are made.

    Returns
    -------
    Table
        With the same rows. A table that is not in this process's memory is returned as it is,
        since its blocks were cut where its files or partitions end.
    """
    if table.native is None:
        return table
    features, target = table.native
    n = max(1, min(n, table.n_rows))
    edges = [table.n_rows * i // n for i in range(n + 1)]
    reader = table.blocks[0].reader
    blocks = tuple(
        Block(
            start,
            stop,
            reader,
            "memory",
            (frames.row_range(features, start, stop), frames.row_range(target, start, stop)),
        )
        for start, stop in pairwise(edges)
    )
    return replace(table, blocks=blocks)
