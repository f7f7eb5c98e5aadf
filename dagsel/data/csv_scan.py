"""One pass over a CSV file: where its blocks are, how many rows they have, and the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dagsel.data.blocks import Block, Table
from dagsel.data.csv_reader import CsvReader, CsvRows, Parser, data_row, skip
from dagsel.data.csv_text import Measure, measure, pieces, read_header
from dagsel.data.files import (
    Format,
    Layout,
    Scan,
    check_header,
    is_compressed,
    open_bytes,
    read_errors,
    short_name,
)
from dagsel.data.values import check_target
from dagsel.exceptions import DataError

__all__ = ["csv_table", "describe"]

_HEAD_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20
_LARGEST_CHUNK = 32 << 20


def _delimiter(form: Format) -> str:
    return "\t" if form == "tsv" else ","


def describe(path: str, storage_options: Mapping[str, Any], form: Format) -> Layout:
    """Return the columns of a file, from its header and its first rows."""
    delimiter = _delimiter(form)
    where = short_name(path)
    with read_errors(path, "the first rows"):
        with open_bytes(path, storage_options) as stream:
            header, offset, _ = read_header(stream, delimiter, where)
        with open_bytes(path, storage_options) as stream:
            skip(stream, offset, path)
            head = next(pieces(stream, _HEAD_BYTES, delimiter, where), b"")
    types = _head_types(head, len(header), delimiter)
    text = frozenset(name for name, kind in zip(header, types, strict=True) if kind == "text")
    return Layout(header, types, text)


def _head_types(head: bytes, n_columns: int, delimiter: str) -> tuple[str, ...]:
    """Return "number", "bool" or "text" per column.

    A guess from the first rows: it spares text columns from being reported one by one. What it
    misses is found when the values are read.
    """
    import pyarrow as pa
    from pyarrow import csv

    guess = ("number",) * n_columns
    if not head or head.isspace():
        return guess
    parser = Parser(n_columns, range(n_columns), {}, delimiter)
    found = measure(head)
    options = parser.options(found.parse_bytes, found.quoted, threads=True)
    try:
        table = csv.read_csv(pa.BufferReader(head), **options)
    except pa.ArrowInvalid:
        return guess  # the pass over the whole file says what is wrong, and where
    kinds = {pa.int64(): "number", pa.float64(): "number", pa.null(): "number", pa.bool_(): "bool"}
    return tuple(kinds.get(kind, "text") for kind in table.schema.types)


@dataclass(frozen=True)
class _File:
    """What the pass over a file found.

    Attributes
    ----------
    rows : list of CsvRows
    n_rows : list of int
        Rows in each.
    target : list of ndarray
        One array per target column.
    target_types : tuple of str
    checksum : int
        Of the text.
    """

    rows: list[CsvRows]
    n_rows: list[int]
    target: list[NDArray[Any]]
    target_types: tuple[str, ...]
    checksum: int


@dataclass(frozen=True)
class _ScanFile:
    """The function that passes over a file, for `run`; picklable.

    Attributes
    ----------
    scan : Scan
    text : frozenset of str
        Target columns to be taken as text, because other rows of them are no numbers.
    """

    scan: Scan
    text: frozenset[str] = frozenset()

    def __call__(self, path: str) -> _File:
        with read_errors(path, "the rows"):
            return self._pass_over(path)

    def _pass_over(self, path: str) -> _File:
        scan, where = self.scan, short_name(path)
        delimiter = _delimiter(scan.format)
        with open_bytes(path, scan.storage_options) as stream:
            header, offset, lines = read_header(stream, delimiter, where)
        check_header(scan, header, where)
        if header != scan.layout.header:
            msg = (
                f"{where!r} has its columns in another order than {short_name(scan.paths[0])!r}. "
                "Write them in the same order."
            )
            raise DataError(msg)
        columns = _Columns(scan, path, self.text)
        with open_bytes(path, scan.storage_options) as stream:
            skip(stream, offset, path)
            # Small pieces stay in the processor's cache; `add` puts them together to blocks.
            for piece in pieces(stream, min(scan.block_bytes, _PIECE_BYTES), delimiter, where):
                lines += columns.add(piece, offset, lines)
                offset += len(piece)
        types = columns.types()
        mixed = columns.mixed(types)
        if mixed - self.text:
            return _ScanFile(scan, self.text | mixed)._pass_over(path)
        return columns.file(types)


class _Columns:
    """The target columns of a file, and its blocks, as they come in piece by piece."""

    def __init__(self, scan: Scan, path: str, text: frozenset[str]) -> None:
        import pyarrow as pa

        header = {name: i for i, name in enumerate(scan.layout.header)}
        self.target = scan.target
        self.positions = [header[name] for name in scan.target]
        forced = {header[name]: pa.string() for name in text}
        self.parser = Parser(len(header), self.positions, forced, _delimiter(scan.format))
        self.path = path
        # A compressed file has no places to begin but its first byte.
        self.block_bytes = float("inf") if is_compressed(path) else scan.block_bytes
        self.total = 0
        self.checksum = 0
        self.rows: list[CsvRows] = []
        self.n_rows: list[int] = []
        self.values: list[list[NDArray[Any]]] = [[] for _ in scan.target]
        self.kinds: list[set[str]] = [set() for _ in scan.target]

    def add(self, piece: bytes, offset: int, lines: int) -> int:
        """Take in the text of some rows, which begins at a byte and a line; return its lines."""
        import pyarrow as pa
        from pyarrow import csv

        self.checksum = crc32(piece, self.checksum)
        found = measure(piece)
        options = self.parser.options(found.parse_bytes, found.quoted, threads=True)
        try:
            table = None if piece.isspace() else csv.read_csv(pa.BufferReader(piece), **options)
        except pa.ArrowInvalid as error:
            _explain(error, self.parser, piece, short_name(self.path), lines)
        if table is None or table.num_rows == 0:
            return found.n_lines
        for j, column in enumerate(table.columns):
            self._add_values(j, column)
        self._add_rows(piece, offset, found, table.num_rows)
        self.total += table.num_rows
        return found.n_lines

    def _add_values(self, j: int, column: Any) -> None:
        place = data_row(self.path, self.total)
        if column.null_count:
            first = place(int(column.is_null().index(True).as_py()))
            msg = f"The target {self.target[j]!r} has no value in {first}. Leave such rows out."
            raise DataError(msg)
        values = column.to_numpy()
        check_target(values, place)
        self.kinds[j].add(str(column.type))
        self.values[j].append(values)

    def _add_rows(self, piece: bytes, offset: int, found: Measure, n_rows: int) -> None:
        """Lengthen the last block, or begin another."""
        end = offset + len(piece)
        last = self.rows[-1] if self.rows else None
        if last is None or end - last.offset > self.block_bytes:
            rows = CsvRows(
                self.path, offset, len(piece), self.total, found.parse_bytes, found.quoted
            )
            self.rows.append(rows)
            self.n_rows.append(n_rows)
            return
        self.rows[-1] = replace(
            last,
            n_bytes=end - last.offset,
            parse_bytes=max(last.parse_bytes, found.parse_bytes),
            quoted=last.quoted or found.quoted,
        )
        self.n_rows[-1] += n_rows

    def types(self) -> tuple[str, ...]:
        """Return the type that all rows of a target share."""
        return tuple(_common(kinds) for kinds in self.kinds)

    def mixed(self, types: Sequence[str]) -> frozenset[str]:
        """Return the targets that were read as numbers in part and are not."""
        return frozenset(
            name
            for name, kind, kinds in zip(self.target, types, self.kinds, strict=True)
            if kind == "string" and kinds != {"string"}
        )

    def file(self, types: tuple[str, ...]) -> _File:
        """Return all that was found."""
        rows = [_in_large_chunks(*each) for each in zip(self.rows, self.n_rows, strict=True)]
        if is_compressed(self.path):
            rows = [replace(each, n_bytes=None) for each in rows]
        target = [np.concatenate(values) if values else np.empty(0) for values in self.values]
        return _File(rows, self.n_rows, target, types, self.checksum)


def _in_large_chunks(rows: CsvRows, n_rows: int) -> CsvRows:
    """Return the rows to be parsed many at a time: each chunk costs some time per column."""
    n_bytes = rows.n_bytes or 0
    wanted = min(128 * (n_bytes // n_rows), n_bytes, _LARGEST_CHUNK) + 1
    return replace(rows, parse_bytes=max(rows.parse_bytes, wanted))


def _common(kinds: set[str]) -> str:
    if kinds <= {"int64"}:
        return "int64"
    if kinds <= {"int64", "double"}:
        return "double"
    return "bool" if kinds == {"bool"} else "string"


def _explain(error: Exception, parser: Parser, piece: bytes, where: str, lines: int) -> NoReturn:
    if parser.ragged is None:
        msg = f"{where!r} cannot be parsed from line {lines + 1} on: {error}"
        raise DataError(msg) from error
    text, expected, actual = parser.ragged
    at = (b"\n" + piece).find(b"\n" + text.encode(errors="surrogateescape"))
    line = lines + 1 + piece.count(b"\n", 0, max(at, 0))
    shown = text if len(text) <= 60 else text[:60] + "..."
    msg = (
        f"{where!r}, line {line}: {actual} fields instead of {expected}: {shown!r}. "
        "Correct or remove the line; a field with a delimiter in it must be quoted."
    )
    raise DataError(msg) from error


def csv_table(scan: Scan, run: Callable[..., Any]) -> Table:
    """Return the table of CSV files; `run` passes over them, one file a task."""
    files: Sequence[_File] = list(run(_ScanFile(scan), list(scan.paths)))
    filled = [file for file in files if file.rows]
    types = tuple(
        _common({file.target_types[j] for file in filled}) for j in range(len(scan.target))
    )
    text = frozenset(
        name
        for j, name in enumerate(scan.target)
        if types[j] == "string" and any(file.target_types[j] != "string" for file in filled)
    )
    if text:  # class labels such as 1, 2 in one file and a, b in another
        files = list(run(_ScanFile(scan, text), list(scan.paths)))
    blocks: list[Block] = []
    reader = _reader(scan, types)
    start = 0
    for file in files:
        for rows, n in zip(file.rows, file.n_rows, strict=True):
            blocks.append(Block(start, start + n, reader, "file", rows))
            start += n
    return Table(
        tuple(blocks),
        start,
        len(scan.features),
        scan.features,
        _target(files, types),
        content=" ".join(f"{file.checksum:08x}" for file in files),
    )


def _target(files: Sequence[_File], types: Sequence[str]) -> NDArray[Any]:
    columns = [
        np.concatenate([file.target[j] for file in files if file.rows] or [np.empty(0)])
        for j in range(len(types))
    ]
    return columns[0] if len(columns) == 1 else np.column_stack(columns)


def _reader(scan: Scan, target_types: tuple[str, ...]) -> CsvReader:
    header = {name: i for i, name in enumerate(scan.layout.header)}
    features = tuple(header[name] for name in scan.features)
    types = scan.layout.types
    return CsvReader(
        names=scan.features,
        n_columns=len(header),
        features=features,
        target=tuple(header[name] for name in scan.target),
        target_names=scan.target,
        target_types=target_types,
        bools=frozenset(i for i in features if types[i] == "bool"),
        text=frozenset(i for i in features if types[i] == "text"),
        delimiter=_delimiter(scan.format),
        storage_options=scan.storage_options,
    )
