"""Reads CSV blocks: pieces of a file that begin and end with a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from dagsel.data.blocks import Block, Slab
from dagsel.data.files import is_compressed, open_bytes, read_errors, short_name
from dagsel.data.slabs import cut_slabs, missing_value
from dagsel.data.values import CODING
from dagsel.exceptions import DataError

__all__ = ["CsvReader", "CsvRows", "Parser", "data_row", "skip"]


@dataclass(frozen=True)
class CsvRows:
    """Where some rows of a CSV file are; the payload of a block.

    Attributes
    ----------
    path : str
    offset : int
        Bytes before the first row, in the decompressed text.
    n_bytes : int or None
        Length of the text; None for all the rest, which is then read as a stream.
    first_row : int
        Data rows of the file before these.
    parse_bytes : int
        How much text to parse at a time.
    quoted : bool
        Whether there are quotes, so that a field may go on over a line end.
    """

    path: str
    offset: int
    n_bytes: int | None
    first_row: int
    parse_bytes: int
    quoted: bool


def data_row(path: str, first_row: int) -> Callable[[int], str]:
    """Return the place of data rows, counted from 1 below the header."""
    return lambda row: f"data row {first_row + row + 1} of {short_name(path)!r}"


def _rows(block: Block, payload: CsvRows) -> str:
    return f"data rows {payload.first_row + 1} to {payload.first_row + block.n_rows}"


def skip(stream: BinaryIO, n_bytes: int, path: str) -> None:
    """Go to a position of a stream that was just opened."""
    if not is_compressed(path):
        stream.seek(n_bytes)
        return
    while n_bytes > 0 and (gone := stream.read(min(n_bytes, 1 << 20))):
        n_bytes -= len(gone)


@dataclass
class Parser:
    """The options of one run of pyarrow's CSV parser.

    Columns go by their position, as text, so that no name can be in the way.

    Attributes
    ----------
    n_columns : int
        Of the file.
    include : sequence of int
        Columns to convert.
    types : mapping of int to pyarrow.DataType
        Types that are known; others are inferred.
    delimiter : str
    ragged : tuple or None
        (text, expected, actual number of fields) of the row that stopped the parser.
    """

    n_columns: int
    include: Sequence[int]
    types: Mapping[int, Any]
    delimiter: str
    ragged: tuple[str, int, int] | None = None

    def options(self, parse_bytes: int, quoted: bool, threads: bool) -> dict[str, Any]:
        """Return the keyword arguments of `pyarrow.csv.read_csv` and `open_csv`."""
        from pyarrow import csv

        return {
            "read_options": csv.ReadOptions(
                column_names=[str(i) for i in range(self.n_columns)],
                block_size=parse_bytes,
                use_threads=threads,
            ),
            "parse_options": csv.ParseOptions(
                delimiter=self.delimiter,
                newlines_in_values=quoted,
                invalid_row_handler=self._on_invalid,
            ),
            "convert_options": csv.ConvertOptions(
                include_columns=[str(i) for i in self.include],
                column_types={str(i): kind for i, kind in self.types.items()},
                strings_can_be_null=True,
            ),
        }

    def _on_invalid(self, row: Any) -> str:
        if not row.text.strip():  # a line of blanks is a blank line, as in pandas
            return "skip"
        self.ragged = (row.text, row.expected_columns, row.actual_columns)
        return "error"


@dataclass(frozen=True)
class CsvReader:
    """Reads rows of CSV files.

    Attributes
    ----------
    names : tuple of str
        Labels of the features.
    n_columns : int
        Of the files.
    features, target : tuple of int
        Positions of the columns.
    target_names, target_types : tuple of str
        Labels and Arrow types of the targets.
    bools, text : frozenset of int
        Positions of features of true and false, and of those that are no numbers.
    delimiter : str
    storage_options : mapping
    """

    names: tuple[str, ...]
    n_columns: int
    features: tuple[int, ...]
    target: tuple[int, ...]
    target_names: tuple[str, ...]
    target_types: tuple[str, ...]
    bools: frozenset[int]
    text: frozenset[int]
    delimiter: str
    storage_options: Mapping[str, Any]

    def slabs(self, block: Block, payload: CsvRows, max_rows: int) -> Iterator[Slab]:
        """Yield the rows; see `dagsel.data.blocks.Reader`."""
        import pyarrow as pa

        self._check_target()
        include = (*self.features, *self.target)
        parser = self._parser(include, {i: self._type(i) for i in include})
        place = data_row(payload.path, payload.first_row)
        with read_errors(payload.path, _rows(block, payload)):
            if self.text:
                self._check_cells(payload, sorted(self.text))
            try:
                with self._batches(payload, parser) as batches:
                    yield from cut_slabs(batches, block, self.names, max_rows, place)
            except pa.ArrowInvalid as error:
                self._explain(payload, error)

    def native(self, block: Block, payload: CsvRows) -> tuple[Any, Any]:
        """Return pandas objects; see `dagsel.data.blocks.Reader`."""
        import pyarrow as pa
        from pyarrow import csv

        types = {i: pa.string() for i in self.text}
        for i, kind in zip(self.target, self.target_types, strict=True):
            types[i] = pa.type_for_alias(kind)
        include = (*self.features, *self.target)
        parser = self._parser(include, types)
        options = parser.options(payload.parse_bytes, payload.quoted, threads=True)
        with read_errors(payload.path, _rows(block, payload)), self._open(payload) as source:
            table = csv.read_csv(source, **options)
        for i, field in enumerate(table.schema):
            if field.type == pa.null():  # nothing but empty cells in this block
                empty = table.column(i).cast(pa.float64())
                table = table.set_column(i, field.name, empty)
        frame = table.to_pandas(date_as_object=False)
        frame.columns = [*self.names, *self.target_names]
        frame.index = range(block.start, block.stop)
        target = list(self.target_names) if len(self.target) > 1 else self.target_names[0]
        return frame[list(self.names)], frame[target]

    def _parser(self, include: Sequence[int], types: Mapping[int, Any]) -> Parser:
        return Parser(self.n_columns, include, types, self.delimiter)

    def _type(self, column: int) -> Any:
        import pyarrow as pa

        if column in self.target:
            kind = self.target_types[self.target.index(column)]
            return pa.bool_() if kind == "bool" else pa.float64()
        return pa.bool_() if column in self.bools else pa.float64()

    def _check_target(self) -> None:
        for name, kind in zip(self.target_names, self.target_types, strict=True):
            if kind == "string":
                msg = (
                    f"The target {name!r} holds text, not numbers. "
                    "Encode classes as numbers 0, 1, ... in the files."
                )
                raise DataError(msg)

    @contextmanager
    def _open(self, payload: CsvRows) -> Iterator[Any]:
        import pyarrow as pa

        with open_bytes(payload.path, self.storage_options) as stream:
            skip(stream, payload.offset, payload.path)
            if payload.n_bytes is None:
                yield stream
            else:
                yield pa.BufferReader(stream.read(payload.n_bytes))

    @contextmanager
    def _batches(self, payload: CsvRows, parser: Parser) -> Iterator[Any]:
        from pyarrow import csv

        # One thread: the blocks are what runs in parallel.
        options = parser.options(payload.parse_bytes, payload.quoted, threads=False)
        with self._open(payload) as source, csv.open_csv(source, **options) as batches:
            yield batches

    def _explain(self, payload: CsvRows, error: Exception) -> NoReturn:
        """Raise a `DataError` that says which cell stopped the parser."""
        import pyarrow as pa

        with suppress(pa.ArrowInvalid):
            self._check_cells(payload, self.features)
        place = data_row(payload.path, payload.first_row)
        msg = (
            f"The text from {place(0)} on cannot be parsed ({error}). "
            "If the file has changed since it was scanned, start again."
        )
        raise DataError(msg) from error

    def _check_cells(self, payload: CsvRows, columns: Sequence[int]) -> None:
        """Raise a `DataError` for the first cell that is empty or no number.

        It takes the cells as text, since the parser does not say where it failed.
        """
        import pyarrow as pa

        parser = self._parser(columns, dict.fromkeys(columns, pa.string()))
        names = dict(zip(self.features, self.names, strict=True))
        row = payload.first_row
        with self._batches(payload, parser) as batches:
            for batch in batches:
                for i, column in zip(columns, batch.columns, strict=True):
                    self._check_column(column, i, names[i], data_row(payload.path, row))
                row += batch.num_rows

    def _check_column(self, column: Any, i: int, name: str, place: Callable[[int], str]) -> None:
        import pyarrow as pa

        if column.null_count:
            nulls = column.is_null()
            label = f"Column {name!r}"
            raise missing_value(label, place(int(nulls.index(True).as_py())))
        kind = pa.bool_() if i in self.bools else pa.float64()
        row = _first_invalid(column, kind)
        if row is None:
            return
        others = [self.names[self.features.index(j)] for j in sorted(self.text - {i})]
        more = f" Other columns of text: {', '.join(map(repr, others[:5]))}" if others else ""
        more += f" and {len(others) - 5} more." if len(others) > 5 else "." if others else ""
        what = "true or false" if i in self.bools else "a number"
        msg = (
            f"Column {name!r} has {column[row].as_py()!r}, which is not {what}, in {place(row)}. "
            f"Leave the column out (drop=[...]), or encode it as numbers; {CODING}.{more}"
        )
        raise DataError(msg)


def _first_invalid(column: Any, kind: Any) -> int | None:
    """Return the first row that cannot be converted, by bisection."""
    if _converts(column, kind):
        return None
    low, high = 0, len(column)  # the first `low` rows convert, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if _converts(column.slice(low, middle - low), kind):
            low = middle
        else:
            high = middle
    return low


def _converts(column: Any, kind: Any) -> bool:
    import pyarrow as pa

    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
