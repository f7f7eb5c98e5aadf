"""Blocks of consecutive rows, and the table they make up.

A block is a small, picklable description of some consecutive rows. Nothing is read until
`Block.slabs` runs, which happens on the worker that was handed the block; what it yields are
slabs, bounded pieces of rows that are multiplied into sums and dropped. So no process ever needs
to hold more than one slab of a file at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Block", "Reader", "Slab", "Table", "runs"]

Where = Literal["memory", "delayed", "file"]


class Slab(NamedTuple):
    """Consecutive rows in memory.

    Attributes
    ----------
    start : int
        Index, in the whole table, of the first row.
    features : ndarray of shape (n_rows, n_columns)
        Floating point; a view of the caller's array where that is possible, so never written to.
    targets : ndarray of shape (n_rows, n_targets)
        Always two-dimensional; floating point.
    """

    start: int
    features: NDArray[np.floating[Any]]
    targets: NDArray[np.floating[Any]]


@runtime_checkable
class Reader(Protocol):
    """Turns a block's payload into rows. Picklable; runs on workers."""

    def slabs(self, block: Block, payload: Any, max_rows: int) -> Iterator[Slab]:
        """Yield the block's rows in order, at most `max_rows` at a time, as float arrays.

        Raises
        ------
        dagsel.DataError
            For a missing, infinite or non-numeric value: names the column and the row range.
        """
        ...

    def native(self, block: Block, payload: Any) -> tuple[Any, Any]:
        """Return the block's rows (features, target) in the caller's own types, for refits."""
        ...


@dataclass(frozen=True)
class Block:
    """Rows `start` to `stop` (exclusive) of a table.

    Attributes
    ----------
    start, stop : int
        Row range in the whole table.
    reader : Reader
        How to turn the payload into rows.
    where : {"memory", "delayed", "file"}
        Where the rows are. "memory": `payload` holds them (a cluster scatters it). "delayed":
        `payload` is a Dask `Delayed` (a cluster computes it on a worker). "file": `payload` says
        where they are in storage that the worker reads itself.
    payload : Any
        See `where`.
    """

    start: int
    stop: int
    reader: Reader
    where: Where
    payload: Any = field(repr=False)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def bare(self) -> Block:
        """Return the description without the payload, which travels on its own."""
        return replace(self, payload=None)

    def slabs(self, payload: Any, max_rows: int) -> Iterator[Slab]:
        """Yield the rows in order; `payload` is the block's own, or what it was computed to."""
        return self.reader.slabs(self, self._realised(payload), max_rows)

    def native(self, payload: Any) -> tuple[Any, Any]:
        """Return (features, target) of these rows in the caller's own types."""
        return self.reader.native(self, self._realised(payload))

    def _realised(self, payload: Any) -> Any:
        # Without a cluster a Dask partition is computed by the task that reads it, here, so that
        # only one is in memory at a time.
        is_graph = self.where == "delayed" and hasattr(payload, "__dask_graph__")
        return payload.compute() if is_graph else payload


@dataclass(frozen=True)
class Table:
    """Features and target as blocks of rows.

    Attributes
    ----------
    blocks : sequence of Block
        In row order, without gaps.
    n_rows, n_columns : int
        Shape of the feature matrix.
    names : tuple or None
        Column labels in the caller's own type, `None` where there are none (plain arrays).
    target : ndarray of shape (n_rows,) or (n_rows, n_targets)
        The whole target, in the caller's dtype; n numbers, so it may live on the client.
    native : tuple of (Any, Any) or None
        The caller's own (features, target) where the whole table is in this process's memory.
    content : str or None
        Digest of what files hold: of the text of CSV files, of the metadata of Parquet files, with
        the sizes and statistics of their columns. `None` for rows from elsewhere.
    """

    blocks: Sequence[Block]
    n_rows: int
    n_columns: int
    names: tuple[Hashable, ...] | None
    target: NDArray[Any]
    native: tuple[Any, Any] | None = field(default=None, repr=False)
    content: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the feature matrix in double precision."""
        return 8 * self.n_rows * self.n_columns


def runs(length: int, n_parts: int) -> list[range]:
    """Cut `range(length)` into at most `n_parts` consecutive, nearly equal, non-empty runs."""
    edges = np.linspace(0, length, min(n_parts, length) + 1).astype(int).tolist()
    return [range(start, stop) for start, stop in pairwise(edges)]
