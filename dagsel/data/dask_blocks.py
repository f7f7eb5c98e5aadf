"""Dask arrays and data frames: blocks are their partitions, computed where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.data import frames
from dagsel.data.arrays import RowsReader, target_values
from dagsel.data.blocks import Block, Table
from dagsel.data.values import check_lengths, check_target, row_of_array, unknown_columns
from dagsel.exceptions import DataError

__all__ = ["compute_here", "dask_table", "is_dask", "is_dask_frame", "selected_columns"]

_MODULE = "dask.dataframe"


def is_dask_frame(value: Any) -> bool:
    """Tell whether `value` is a Dask DataFrame."""
    return frames.is_a(value, _MODULE, "DataFrame")


def is_dask(value: Any) -> bool:
    """Tell whether `value` is a Dask array, data frame or series."""
    return (
        frames.is_a(value, "dask.array", "Array")
        or is_dask_frame(value)
        or frames.is_a(value, _MODULE, "Series")
    )


def compute_here(*collections: Any) -> tuple[Any, ...]:
    """Compute collections where Dask's own settings say: by default in this process."""
    import dask

    return tuple(dask.compute(*collections))


def selected_columns(
    collection: Any, columns: Sequence[int], names: Sequence[Hashable] | None, n_columns: int
) -> Any:
    """Return some columns of a Dask array or data frame, computing nothing.

    Parameters
    ----------
    collection : dask.array.Array or dask.dataframe.DataFrame
    columns : sequence of int
        Positions among the columns that were seen in a fit.
    names : sequence or None
        The labels of those. By them a data frame's columns are found, wherever they are; without
        them by position, as an array's.
    n_columns : int
        How many those were.

    Raises
    ------
    DataError
        If the collection lacks a column, or has another number of them and no labels.
    """
    if collection.ndim != 2:
        msg = f"X has {collection.ndim} dimension(s), but must have rows and columns."
        raise DataError(msg)
    framed = is_dask_frame(collection)
    if framed and names is not None:
        wanted = [names[column] for column in columns]
        unknown_columns(wanted, tuple(collection.columns), "selected", "X")
        return collection[wanted]
    there = len(collection.columns) if framed else collection.shape[1]
    if there != n_columns:
        msg = f"X has {there} columns, but {n_columns} were seen in fit."
        raise DataError(msg)
    return collection.iloc[:, list(columns)] if framed else collection[:, list(columns)]


def dask_table(
    features: Any, target: Any, compute: Callable[..., tuple[Any, ...]] = compute_here
) -> Table:
    """Return a table over the partitions of a Dask collection.

    Parameters
    ----------
    features : dask.array.Array or dask.dataframe.DataFrame
        An array must have all columns in one chunk.
    target : Hashable, list of Hashable, Dask collection or array-like
        Labels are taken out of a data frame.
    compute : callable
        See `dagsel.data.sources.open_table`.

    Notes
    -----
    The target, and the lengths of partitions where Dask does not know them, are computed at once.
    The features stay where they are.
    """
    import dask

    if features.ndim != 2:
        msg = (
            f"X has {features.ndim} dimension(s), but must have rows and columns. "
            "Give a Dask DataFrame, or a Dask array of two dimensions."
        )
        raise DataError(msg)
    inside = is_dask_frame(features) and frames.is_label(target, features.columns)
    if inside:
        features, target = frames.split_target(features, target)
    names = frames.labels(features) if is_dask_frame(features) else None
    x_parts = _partitions(features)
    y_parts = _partitions(target) if is_dask(target) else None
    known = _known_lengths(features)
    # Partitions of one frame are equally long: then the target alone tells, and is quicker read.
    counts = [] if known or inside else [dask.delayed(_n_rows)(part) for part in x_parts]
    computed = compute(*counts, *(y_parts or []))
    counted = list(computed[: len(counts)])
    pieces = [target_values(piece) for piece in computed[len(counts) :]]
    values = target_values(target) if y_parts is None else _joined(pieces)
    x_lengths = known or counted or [len(piece) for piece in pieces]
    check_lengths(sum(x_lengths), len(values))
    check_target(values, row_of_array(0))
    aligned = y_parts is not None and x_lengths == [len(piece) for piece in pieces]
    blocks = _blocks(x_parts, x_lengths, y_parts if aligned else None, target, values, names)
    n_columns = len(names) if names is not None else int(features.shape[1])
    if n_columns == 0:
        msg = "The table has no feature columns."
        raise DataError(msg)
    return Table(blocks, len(values), n_columns, names, values)


def _joined(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    # Empty partitions may have another dtype than those with rows.
    filled = [piece for piece in pieces if len(piece)]
    return np.concatenate(filled) if filled else np.empty(0)


def _partitions(collection: Any) -> list[Any]:
    if not frames.is_a(collection, "dask.array", "Array"):
        return list(collection.to_delayed())
    if collection.ndim == 2 and collection.numblocks[1] > 1:
        msg = (
            f"The Dask array is cut into {collection.numblocks[1]} chunks of columns. dagsel reads "
            "whole rows: call .rechunk({0: 'auto', 1: -1}) on it first."
        )
        raise DataError(msg)
    return list(collection.to_delayed().ravel())


def _known_lengths(features: Any) -> list[int]:
    if not frames.is_a(features, "dask.array", "Array"):
        return []
    if np.isnan(features.shape[1]):
        msg = "The number of columns of the Dask array is unknown. Call compute_chunk_sizes()."
        raise DataError(msg)
    lengths = features.chunks[0]
    return [] if any(np.isnan(n) for n in lengths) else [int(n) for n in lengths]


def _n_rows(part: Any) -> int:
    return int(part.shape[0])


def _pair(features: Any, target: Any) -> tuple[Any, Any]:
    return features, target


def _blocks(
    x_parts: list[Any],
    lengths: list[int],
    y_parts: list[Any] | None,
    target: Any,
    values: NDArray[Any],
    names: tuple[Hashable, ...] | None,
) -> tuple[Block, ...]:
    import dask

    pair = dask.delayed(_pair, pure=True)
    reader = RowsReader(names)
    local = values if is_dask(target) else target
    blocks = []
    start = 0
    for i, (part, n) in enumerate(zip(x_parts, lengths, strict=True)):
        if n == 0:
            continue
        y_part = y_parts[i] if y_parts is not None else frames.row_range(local, start, start + n)
        blocks.append(Block(start, start + n, reader, "delayed", pair(part, y_part)))
        start += n
    return tuple(blocks)
