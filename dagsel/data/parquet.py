"""Parquet files: blocks are row groups, read in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dagsel.data.blocks import Block, Slab, Table
from dagsel.data.files import Layout, Scan, check_header, open_bytes, read_errors, short_name
from dagsel.data.slabs import cut_slabs, type_error
from dagsel.data.values import check_target, infer_objects, listing
from dagsel.exceptions import DataError

__all__ = ["ParquetReader", "describe", "parquet_table"]

_BATCH_BYTES = 32 << 20


@contextmanager
def _parquet_file(
    path: str, storage_options: Mapping[str, Any], buffer_size: int = 0
) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_bytes(path, storage_options) as stream:
        try:
            file = pq.ParquetFile(stream, buffer_size=buffer_size)
        except (OSError, pa.ArrowInvalid) as error:
            msg = f"{short_name(path)!r} is no readable Parquet file: {error}"
            raise DataError(msg) from error
        with file:
            yield file


def describe(path: str, storage_options: Mapping[str, Any]) -> Layout:
    """Return the columns of a file, from its metadata."""
    with _parquet_file(path, storage_options) as file:
        return _layout(file.schema_arrow, short_name(path))


def _layout(schema: Any, name: str) -> Layout:
    header = tuple(schema.names)
    if len(set(header)) < len(header):
        twice = [label for label in dict.fromkeys(header) if header.count(label) > 1]
        msg = f"{name!r} has columns of the same name: {listing(twice)}. Rename or remove them."
        raise DataError(msg)
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return Layout(
        header,
        tuple(str(kind) for kind in schema.types),
        frozenset(field.name for field in schema if not _is_number(field.type)),
        frozenset(label for label in index if isinstance(label, str)),
    )


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_number(kind.value_type)
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    )


@dataclass(frozen=True)
class RowGroups:
    """Some row groups of a file; the payload of a block.

    Attributes
    ----------
    path : str
    groups : tuple of int
    first_row : int
        Rows of the file before these.
    """

    path: str
    groups: tuple[int, ...]
    first_row: int


@dataclass(frozen=True)
class ParquetReader:
    """Reads row groups.

    Attributes
    ----------
    features, target : tuple of str
    text : mapping of str to str
        Features that are no numbers, with their types.
    single : bool
        Whether all features are in single precision, and stay so.
    storage_options : mapping
    """

    features: tuple[str, ...]
    target: tuple[str, ...]
    text: Mapping[str, str]
    text_target: Mapping[str, str]
    single: bool
    storage_options: Mapping[str, Any]

    def slabs(self, block: Block, payload: RowGroups, max_rows: int) -> Iterator[Slab]:
        """Yield the rows; see `dagsel.data.blocks.Reader`."""
        where = short_name(payload.path)
        if self.text or self.text_target:
            raise type_error([*self.text.items(), *self.text_target.items()], repr(where))
        columns = [*self.features, *self.target]
        batch_rows = max(1, min(max_rows, _BATCH_BYTES // (8 * len(columns))))
        # A row group can be as large as its file: read its column chunks through small buffers.
        buffer_size = max(64 << 10, min(256 << 10, _BATCH_BYTES // len(columns)))
        with (
            read_errors(payload.path, _rows(block, payload)),
            _parquet_file(payload.path, self.storage_options, buffer_size) as file,
        ):
            batches = (
                batch.select(columns)
                for batch in file.iter_batches(
                    batch_rows,
                    row_groups=list(payload.groups),
                    columns=columns,
                    use_threads=False,  # the blocks are what runs in parallel
                )
            )
            place = _place(where, payload.first_row)
            dtype = np.float32 if self.single else np.float64
            yield from cut_slabs(batches, block, self.features, max_rows, place, dtype)

    def native(self, block: Block, payload: RowGroups) -> tuple[Any, Any]:
        """Return pandas objects; see `dagsel.data.blocks.Reader`."""
        columns = [*self.features, *self.target]
        with (
            read_errors(payload.path, _rows(block, payload)),
            _parquet_file(payload.path, self.storage_options) as file,
        ):
            read = file.read_row_groups(list(payload.groups), columns=columns)
        frame = read.to_pandas()
        if not set(columns) <= set(frame.columns):  # a stored index that was asked for
            frame = read.replace_schema_metadata().to_pandas()
        frame.index = range(block.start, block.stop)
        target = list(self.target) if len(self.target) > 1 else self.target[0]
        return frame[list(self.features)], frame[target]


def _rows(block: Block, payload: RowGroups) -> str:
    return f"data rows {payload.first_row + 1} to {payload.first_row + block.n_rows}"


def _place(where: str, first_row: int) -> Callable[[int], str]:
    return lambda row: f"data row {first_row + row + 1} of {where!r}"


@dataclass(frozen=True)
class _File:
    """What is known of a file once its metadata and target were read."""

    group_rows: tuple[int, ...]
    target: NDArray[Any]
    checksum: int  # of the metadata: sizes and statistics of every column of every row group


@dataclass(frozen=True)
class _ReadTarget:
    """The function that reads a file's target, for `run`; picklable."""

    scan: Scan

    def __call__(self, path: str) -> _File:
        scan = self.scan
        where = short_name(path)
        with (
            read_errors(path, f"the target {listing(scan.target)}"),
            _parquet_file(path, scan.storage_options, 1 << 20) as file,
        ):
            _check_same(scan, _layout(file.schema_arrow, where), where)
            metadata = file.metadata
            rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
            columns = [self._values(file, name) for name in scan.target]
        target = columns[0] if len(columns) == 1 else np.column_stack(columns)
        check_target(target, _place(where, 0))
        return _File(rows, target, _checksum(metadata))

    def _values(self, file: Any, name: str) -> NDArray[Any]:
        import pyarrow as pa

        column = file.read(columns=[name]).column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        values: NDArray[Any] = column.to_numpy()
        return infer_objects(values)


def _checksum(metadata: Any) -> int:
    written = BytesIO()
    metadata.write_metadata_file(written)
    return crc32(written.getbuffer())


def _check_same(scan: Scan, layout: Layout, where: str) -> None:
    """Raise a `DataError` if a file has other columns than the first one."""
    first = short_name(scan.paths[0])
    check_header(scan, layout.header, where)
    types = dict(zip(layout.header, layout.types, strict=True))
    used = {*scan.features, *scan.target}
    for name, kind in zip(scan.layout.header, scan.layout.types, strict=True):
        if name in used and types[name] != kind:
            msg = (
                f"Column {name!r} has type {types[name]} in {where!r} and {kind} in {first!r}. "
                "Write the files with the same types."
            )
            raise DataError(msg)


def parquet_table(scan: Scan, run: Callable[..., Any]) -> Table:
    """Return the table of Parquet files, reading their metadata and target with `run`."""
    files: Sequence[_File] = list(run(_ReadTarget(scan), list(scan.paths)))
    types = dict(zip(scan.layout.header, scan.layout.types, strict=True))
    reader = ParquetReader(
        scan.features,
        scan.target,
        {name: types[name] for name in scan.features if name in scan.layout.text},
        {name: types[name] for name in scan.target if name in scan.layout.text},
        all(types[name] == "float" for name in scan.features),
        scan.storage_options,
    )
    blocks: list[Block] = []
    start = 0
    limit = max(1, scan.block_bytes // (8 * (len(scan.features) + len(scan.target))))
    for path, file in zip(scan.paths, files, strict=True):
        first_row = 0
        for groups, rows in _merged(file.group_rows, limit):
            payload = RowGroups(path, groups, first_row)
            blocks.append(Block(start, start + rows, reader, "file", payload))
            start, first_row = start + rows, first_row + rows
    target = np.concatenate([file.target for file in files])
    return Table(
        tuple(blocks),
        start,
        len(scan.features),
        scan.features,
        target,
        content=" ".join(f"{file.checksum:08x}" for file in files),
    )


def _merged(group_rows: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (row groups, number of rows), neighbours taken together while they stay small."""
    groups: list[int] = []
    rows = 0
    for group, n in enumerate(group_rows):
        if groups and rows + n > limit:
            yield tuple(groups), rows
            groups, rows = [], 0
        if n:
            groups.append(group)
            rows += n
    if groups:
        yield tuple(groups), rows
