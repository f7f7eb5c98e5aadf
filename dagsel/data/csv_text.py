"""Where the rows of a CSV text end: plain work on bytes, nothing is parsed.

A line end inside a quoted field does not end a row. As long as quotes only stand where a field
begins or ends, or are doubled inside one, a line end is outside of fields exactly if the number of
quotes before it is even, and counting is all there is to do. Pieces with other quotes (5" pipe) are
gone through field by field with a regular expression.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.data.values import listing
from dagsel.exceptions import DataError

__all__ = ["Measure", "first_row_end", "last_row_end", "measure", "pieces", "read_header"]

_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_STEP = 1 << 20
_BOM = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(b"(?: *\r?\n)*")  # always matches

LONGEST_ROW = 256 << 20
"""A row longer than this is taken for a quote that was never closed."""


@lru_cache(maxsize=8)
def _quoted_field(delimiter: str) -> re.Pattern[bytes]:
    opening = b'(?<![^\n\r%s])"' % re.escape(delimiter.encode())
    return re.compile(opening + b'[^"]*+(?:""[^"]*+)*+("?)')


def _outside(text: bytes, delimiter: str) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the stretches that are not inside of a quoted field."""
    start = 0
    for match in _quoted_field(delimiter).finditer(text):
        yield start, match.start()
        start = match.end()
        if not match[1]:
            return
    yield start, len(text)


def first_row_end(text: bytes, delimiter: str) -> int:
    """Return the position after the first row, 0 if its end is not in the text."""
    for start, stop in _outside(text, delimiter):
        end = text.find(b"\n", start, stop)
        if end >= 0:
            return end + 1
    return 0


def last_row_end(text: bytes, delimiter: str) -> int:
    """Return the position after the last complete row; the text must begin with a row."""
    if b'"' not in text:
        return text.rfind(b"\n") + 1
    values = np.frombuffer(text, np.uint8)
    if _quotes_are_regular(values, ord(delimiter)):
        return _last_even(text, values)
    ends = [text.rfind(b"\n", start, stop) for start, stop in _outside(text, delimiter)]
    return max(ends) + 1


def _quotes_are_regular(values: NDArray[np.uint8], delimiter: int) -> bool:
    """Tell whether every quote that counting takes for an opening one begins a field."""
    before, opens = -1, True
    for offset in range(0, len(values), _STEP):
        quotes = np.flatnonzero(values[offset : offset + _STEP] == _QUOTE) + offset
        if not len(quotes):
            continue
        previous = np.concatenate(([before], quotes[:-1]))
        first = 0 if opens else 1
        opening, last_quote = quotes[first::2], previous[first::2]
        left = values[np.maximum(opening - 1, 0)]
        begins = (left == delimiter) | (left == _NEWLINE) | (left == _RETURN) | (opening == 0)
        if not np.all(begins | ((opening - 1 == last_quote) & (opening > 0))):
            return False
        before = int(quotes[-1])
        opens ^= bool(len(quotes) % 2)
    return True


def _last_even(text: bytes, values: NDArray[np.uint8]) -> int:
    is_quote = values == _QUOTE
    before = int(np.count_nonzero(is_quote))
    high = len(text)
    while True:
        end = text.rfind(b"\n", 0, high)
        if end < 0:
            return 0
        before -= int(np.count_nonzero(is_quote[end:high]))
        if before % 2 == 0:
            return end + 1
        high = end


def read_header(stream: BinaryIO, delimiter: str, name: str) -> tuple[tuple[str, ...], int, int]:
    """Read the first row that is not blank.

    Returns
    -------
    names : tuple of str
        Column names; a column without one is called "Unnamed: 0" by its position, as in pandas.
    n_bytes, n_lines : int
        Where the first data row begins.
    """
    text = b""
    while True:
        more = stream.read(1 << 16)
        text += more
        skipped = len(_BOM) if text.startswith(_BOM) else 0
        skipped += _BLANK_LINES.match(text[skipped:]).end()  # type: ignore[union-attr]
        end = first_row_end(text[skipped:], delimiter)
        if end or not more:
            break
        if len(text) > LONGEST_ROW // 4:
            msg = f"{name!r} has no line end in its first {len(text)} bytes. Is it a CSV file?"
            raise DataError(msg)
    end = skipped + end if end else len(text)
    names = _header_names(text[skipped:end], delimiter, name)
    return names, end, text[:end].count(b"\n")


def _header_names(row: bytes, delimiter: str, name: str) -> tuple[str, ...]:
    if not row:
        msg = f"{name!r} is empty: it has no header row."
        raise DataError(msg)
    if row.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in row:
        msg = f"{name!r} is no UTF-8 text. Save it as CSV in UTF-8, or give its right format."
        raise DataError(msg)
    if b"\r" in row.rstrip(b"\r\n").replace(b"\r\n", b"") and b'"' not in row:
        msg = f"{name!r} ends its lines with a bare carriage return. Convert them to newlines."
        raise DataError(msg)
    try:
        text = row.decode("utf-8")
    except UnicodeDecodeError as error:
        msg = f"The header row of {name!r} is no UTF-8 text ({error}). Save the file in UTF-8."
        raise DataError(msg) from error
    fields = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    names = tuple(field or f"Unnamed: {i}" for i, field in enumerate(fields))
    if len(set(names)) < len(names):
        twice = [field for field in dict.fromkeys(names) if names.count(field) > 1]
        msg = f"{name!r} has columns of the same name: {listing(twice)}. Rename or remove them."
        raise DataError(msg)
    return names


def pieces(stream: BinaryIO, n_bytes: int, delimiter: str, place: str) -> Iterator[bytes]:
    """Yield the text of a stream in pieces of about `n_bytes` that end where a row ends."""
    rest, ended = b"", False
    while not ended:
        more, ended = _read(stream, max(1, n_bytes - len(rest) % n_bytes))
        text = rest + more if rest else more
        end = len(text) if ended else last_row_end(text, delimiter)
        rest = text[end:]
        if end:
            yield text[:end]
        if len(rest) > max(LONGEST_ROW, 4 * n_bytes):
            msg = (
                f"{place} has a row of more than {len(rest) >> 20} MiB, counted from its last "
                "row that is complete. Look for a quote that is not closed."
            )
            raise DataError(msg)


def _read(stream: BinaryIO, n_bytes: int) -> tuple[bytes, bool]:
    """Read `n_bytes`, and tell whether the stream ended before; it may come in small portions."""
    parts: list[bytes] = []
    while n_bytes > 0:
        part = stream.read(n_bytes)
        if not part:
            return b"".join(parts), True
        parts.append(part)
        n_bytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts), False


class Measure(NamedTuple):
    """What the parser must know of a piece of text.

    Attributes
    ----------
    n_lines : int
        Line ends, those in quotes included.
    quoted : bool
        Whether there are quotes.
    parse_bytes : int
        How much the parser should take at a time: several rows, and never half of one.
    """

    n_lines: int
    quoted: bool
    parse_bytes: int


def measure(piece: bytes) -> Measure:
    """Go through the line ends of a piece."""
    values = np.frombuffer(piece, np.uint8)
    longest, n_lines, last = 0, 0, 0
    for offset in range(0, len(values), _STEP):
        ends = np.flatnonzero(values[offset : offset + _STEP] == _NEWLINE) + offset
        if len(ends):
            longest = max(longest, int(ends[0]) - last, int(np.diff(ends).max(initial=0)))
            last, n_lines = int(ends[-1]), n_lines + len(ends)
    if b'"' in piece:  # a row may go on over any number of lines
        return Measure(n_lines, True, len(piece) + 1)
    longest = max(longest, len(values) - last)
    return Measure(n_lines, False, min(max(_STEP, 2 * longest), len(piece)) + 1)
