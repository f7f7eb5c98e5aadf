"""Files in local or remote storage: which there are, and how to open them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, cast

from dagsel.data.values import listing
from dagsel.exceptions import DataError

__all__ = [
    "Format",
    "Layout",
    "Scan",
    "check_header",
    "expand",
    "file_format",
    "is_compressed",
    "open_bytes",
    "read_errors",
    "short_name",
]

Format = Literal["csv", "tsv", "parquet"]
PathLike = str | os.PathLike[str]

_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Layout:
    """What the columns of the files are.

    Attributes
    ----------
    header : tuple of str
        All columns, in the order of the file.
    types : tuple of str
        Their types, in the words of the format.
    text : frozenset of str
        Columns that cannot be used as numbers.
    hidden : frozenset of str
        Columns that are features only where somebody asks for them (a stored pandas index).
    """

    header: tuple[str, ...]
    types: tuple[str, ...]
    text: frozenset[str]
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scan:
    """CSV or Parquet files to be read block by block; made by `dagsel.scan`.

    Attributes
    ----------
    paths : tuple of str
        The files, in the order of their rows.
    format : {"csv", "tsv", "parquet"}
    target, features : tuple of str
        Names of the target and feature columns.
    layout : Layout
        All columns of the files, taken from the first one.
    block_bytes : int
        Size of the pieces that the files are read in.
    storage_options : mapping
        Passed on to fsspec.
    """

    paths: tuple[str, ...]
    format: Format
    target: tuple[str, ...]
    features: tuple[str, ...]
    layout: Layout
    block_bytes: int
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        # Neither thousands of names nor the credentials in storage_options belong in a log.
        return (
            f"Scan({len(self.paths)} {self.format} file(s) from {short_name(self.paths[0])!r}, "
            f"{len(self.features)} features, target {listing(self.target)})"
        )


def check_header(scan: Scan, header: Sequence[str], where: str) -> None:
    """Raise a `DataError` if a file has other columns than the first one."""
    here, expected = set(header), set(scan.layout.header)
    lacking = [name for name in scan.layout.header if name not in here]
    added = [name for name in header if name not in expected]
    if not lacking and not added:
        return
    msg = f"{where!r} has other columns than {short_name(scan.paths[0])!r}:"
    msg += f" {listing(lacking)} missing;" if lacking else ""
    msg += f" {listing(added)} added;" if added else ""
    msg += " give files with the same columns."
    raise DataError(msg)


def expand(
    paths: PathLike | Sequence[PathLike], storage_options: Mapping[str, Any], suffix: str | None
) -> tuple[str, ...]:
    """Return the files that paths, globs and folders stand for, as absolute paths or URLs."""
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        msg = "The list of paths is empty."
        raise DataError(msg)
    found = [file for path in several for file in _expand_one(path, storage_options, suffix)]
    if len(set(found)) < len(found):
        twice = [file for file in dict.fromkeys(found) if found.count(file) > 1]
        msg = f"Files are named more than once: {listing(twice)}. Their rows would count twice."
        raise DataError(msg)
    return tuple(found)


def _expand_one(
    path: PathLike, storage_options: Mapping[str, Any], suffix: str | None
) -> list[str]:
    import fsspec

    given = os.fspath(path)
    fs, bare = fsspec.core.url_to_fs(os.path.expanduser(given), **storage_options)
    try:
        # The name as it stands comes first: it may hold the characters of a pattern.
        entries = [fs.info(bare)]
    except FileNotFoundError:
        entries = []
    if not entries and any(mark in given for mark in "*?["):
        matched = fs.glob(bare, detail=True)
        entries = [matched[name] for name in sorted(matched)]
    files: list[str] = []
    for entry in entries:
        folder = entry["type"] == "directory"
        files += _folder(fs, entry["name"], suffix) if folder else [entry["name"]]
    if not files:
        kind = "No data file in" if entries else "No such file:"
        msg = f"{kind} {given!r}. Check the path; relative paths start at {os.getcwd()!r}."
        raise DataError(msg)
    return [_absolute(fs, name) for name in files]


def _folder(fs: Any, folder: str, suffix: str | None) -> list[str]:
    wanted = (suffix,) if suffix is not None else (".parquet", ".pq")
    root = folder.rstrip("/") + "/"
    names = []
    for name in sorted(fs.find(folder)):
        inside = name[name.find(root) + len(root) :].split("/")
        # Names that begin so are the notes of the program that wrote the folder.
        if any(part.startswith(("_", ".")) for part in inside) or not name.endswith(wanted):
            continue
        if any("=" in part for part in inside[:-1]):
            msg = (
                f"{folder!r} is partitioned by a column ({inside[0]!r}), which the files do not "
                "hold. Give dask.dataframe.read_parquet(...) of it instead."
            )
            raise DataError(msg)
        names.append(name)
    return names


def _absolute(fs: Any, name: str) -> str:
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return name if "file" in protocols else cast(str, fs.unstrip_protocol(name))


def _suffixes(path: str) -> tuple[str, str]:
    """Return (suffix of the format, suffix of the compression), each possibly empty."""
    name = path.split("?", 1)[0].lower() if "://" in path else path.lower()
    stem, last = os.path.splitext(name)
    return (os.path.splitext(stem)[1], last) if last in _COMPRESSED else (last, "")


def file_format(paths: Sequence[str]) -> Format:
    """Return the format that the suffixes of the files tell."""
    formats = {path: _FORMATS.get(_suffixes(path)[0]) for path in paths}
    for path, form in formats.items():
        if form is None:
            msg = (
                f"Cannot tell the format of {path!r} from its suffix: known are "
                f"{', '.join(_FORMATS)}, for text also with {', '.join(_COMPRESSED)}. "
                'Say format="csv", "tsv" or "parquet".'
            )
            raise DataError(msg)
    if len(set(formats.values())) > 1:
        msg = f"The files have different formats: {listing(list(formats))}. Give one format."
        raise DataError(msg)
    return cast(Format, formats[paths[0]])


def short_name(path: str) -> str:
    """Return the path without what an URL may carry in its query."""
    return path.split("?", 1)[0] if "://" in path else path


def is_compressed(path: str) -> bool:
    """Tell whether the file can only be read from its beginning."""
    return _suffixes(path)[1] != ""


@contextmanager
def read_errors(path: str, what: str) -> Iterator[None]:
    """Turn what storage, decompression and parsing raise into a `DataError`.

    Parameters
    ----------
    path : str
        File that is read.
    what : str
        What of it, as in "data rows 1 to 10".
    """
    import lzma

    import pyarrow as pa

    try:
        yield
    except MemoryError:  # Arrow's own is an ArrowException as well
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        msg = (
            f"Cannot read {what} of {short_name(path)!r}: {reason}. See whether the file is "
            "damaged or has changed since it was scanned, and whether every worker can read it; "
            "then start again."
        )
        raise DataError(msg) from error


def open_bytes(path: str, storage_options: Mapping[str, Any]) -> BinaryIO:
    """Open a file for reading, decompressed as its suffix tells."""
    import fsspec

    fs, bare = fsspec.core.url_to_fs(path, **storage_options)
    try:
        raw = fs.open(bare, "rb")
    except FileNotFoundError as error:
        msg = f"No such file: {short_name(path)!r}. Every worker must see the same files."
        raise DataError(msg) from error
    return _decompressed(raw, _suffixes(path)[1])


def _decompressed(raw: Any, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if suffix == ".bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(raw))
    if suffix == ".xz":
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(raw))
    if suffix == ".zst":
        import pyarrow as pa

        return cast(BinaryIO, pa.CompressedInputStream(raw, "zstd"))
    return cast(BinaryIO, raw)
