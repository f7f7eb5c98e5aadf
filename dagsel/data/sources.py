"""Whatever the user has, as a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagsel.data import csv_scan, frames, parquet
from dagsel.data.arrays import memory_table, split_blocks
from dagsel.data.blocks import Table
from dagsel.data.dask_blocks import compute_here, dask_table, is_dask, is_dask_frame
from dagsel.data.files import Format, Layout, PathLike, Scan, expand, file_format, short_name
from dagsel.data.values import check_lengths, listing, unknown_columns
from dagsel.exceptions import DataError
from dagsel.warning import warn

__all__ = ["Scan", "open_table", "refuse_files", "scan", "scan_of_paths", "split_blocks"]

Run = Callable[..., Any]
Compute = Callable[..., tuple[Any, ...]]


def scan(
    paths: PathLike | Sequence[PathLike],
    *,
    target: str | Sequence[str],
    drop: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    format: Format | None = None,  # noqa: A002  (what pandas, polars and fsspec call it)
    storage_options: Mapping[str, Any] | None = None,
    block_bytes: int = 32 << 20,
) -> Scan:
    """Describe CSV or Parquet files that are read block by block, never as a whole.

    Parameters
    ----------
    paths : str, path, or sequence of them
        Files, patterns such as ``"data/part-*.csv"``, folders of Parquet files, or URLs that
        fsspec understands. The order of the list is the order of the rows; what a pattern or a
        folder stands for is sorted by name.
    target : str or sequence of str
        Column to be predicted; several for a model with several targets.
    drop : sequence of str
        Columns that are neither features nor target.
    columns : sequence of str, optional
        The features; by default all columns but `target` and `drop`.
    format : {"csv", "tsv", "parquet"}, optional
        By default told by the suffix: .csv, .tsv, .parquet or .pq; text may be compressed
        (.csv.gz, .bz2, .xz, .zst), and is then read from its beginning by one task a file.
    storage_options : mapping, optional
        Passed on to fsspec: credentials, endpoints.
    block_bytes : int, default=32 MiB
        Size of the pieces in which the files are read.

    Returns
    -------
    Scan
        Picklable; nothing but the header, or the metadata, of the first file has been read.

    Raises
    ------
    DataError
        For a file or a column that is not there.

    Examples
    --------
    >>> dagsel.scan("measurements-*.csv", target="yield", drop=["id"])  # doctest: +SKIP
    """
    _check_options(format, block_bytes)
    options = dict(storage_options or {})
    files = expand(paths, options, None if format is None else f".{format}")
    form = format or file_format(files)
    layout = (
        parquet.describe(files[0], options)
        if form == "parquet"
        else csv_scan.describe(files[0], options, form)
    )
    targets = (target,) if isinstance(target, str) else tuple(target)
    features = _features(layout, targets, drop, columns, repr(short_name(files[0])))
    return Scan(files, form, targets, features, layout, block_bytes, options)


def _check_options(form: str | None, block_bytes: int) -> None:
    if block_bytes < 1:
        msg = f"block_bytes is {block_bytes}. Give a positive number of bytes."
        raise DataError(msg)
    if form not in (None, "csv", "tsv", "parquet"):
        msg = f'format is {form!r}. Give "csv", "tsv" or "parquet".'
        raise DataError(msg)


def _features(
    layout: Layout,
    target: Sequence[str],
    drop: Sequence[str],
    columns: Sequence[str] | None,
    where: str,
) -> tuple[str, ...]:
    """Return the names of the feature columns."""
    drop = [drop] if isinstance(drop, str) else list(drop)
    columns = [columns] if isinstance(columns, str) else columns
    if not target:
        msg = "The target is an empty list. Name the column to be predicted."
        raise DataError(msg)
    unknown_columns(target, layout.header, "the target", where)
    unknown_columns(drop, layout.header, "to be dropped", where)
    unknown_columns(columns or (), layout.header, "a feature", where)
    both = set(target) & (set(drop) | set(columns or ()))
    if both or len(set(target)) < len(target):
        msg = f"The target {listing(sorted(both or target))} is named twice. Name it once."
        raise DataError(msg)
    if columns is not None and len(set(columns)) < len(columns):
        msg = "Some of `columns` are named more than once. Name each feature once."
        raise DataError(msg)
    away = {*target, *drop}
    if columns is None:
        away |= layout.hidden
    features = tuple(name for name in (columns or layout.header) if name not in away)
    if not features:
        msg = f"No feature columns are left in {where}: all are the target or dropped."
        raise DataError(msg)
    if columns is None and features[0] == "Unnamed: 0":
        warn(
            f"The first column of {where} has no name and looks like a row index. It is taken as "
            "the feature 'Unnamed: 0'; leave it out with drop=['Unnamed: 0']."
        )
    return features


def open_table(X: Any, y: Any = None, *, run: Run = map, compute: Compute = compute_here) -> Table:
    """Return a table over the user's features and target, whatever they are.

    Parameters
    ----------
    X : array-like, data frame, Dask collection, Scan, path or list of paths
        Features. NumPy, CuPy, pandas, polars, cuDF, Dask arrays and data frames are taken as they
        are. A path, pattern or URL stands for `dagsel.scan` of it.
    y : array-like, series, data frame, Dask collection or label
        Target, of shape (n_rows,) or (n_rows, n_targets). A label, or a list of labels, is taken
        out of a data frame or of files. Not given with a `Scan`, which has one.
    run : callable, default=map
        Called as ``run(function, items)`` for the work on files that a cluster should do; function
        and items can be pickled.
    compute : callable
        Called as ``compute(*collections)`` for the target and the lengths of Dask collections;
        returns the tuple of their values. By default `dask.compute`.

    Returns
    -------
    Table

    Raises
    ------
    DataError
        For input that cannot be used.
    """
    X, y = scan_of_paths(X, y)
    if isinstance(X, Scan):
        if y is not None:
            msg = "y is given, but the scan names its target already. Leave y out."
            raise DataError(msg)
        return _scanned(X, run)
    _refuse(X)
    if y is None:
        msg = "y is missing. Give the target, or the label of its column in X."
        raise DataError(msg)
    _refuse(y)
    if is_dask(X):
        return dask_table(X, y, compute)
    if is_dask(y):
        (y,) = compute(y)
    if frames.is_frame(X) and frames.is_label(y, X.columns):
        X, y = frames.split_target(X, y)
    elif isinstance(y, str):
        msg = f"y is the label {y!r}, but X is a {type(X).__name__}, which has no column labels."
        raise DataError(msg)
    return memory_table(X, y)


def scan_of_paths(X: Any, y: Any) -> tuple[Any, Any]:
    """Return (scan, None) for paths and the name of the target; anything else as it is."""
    return (scan(X, target=_target_names(y)), None) if _is_paths(X) else (X, y)


def refuse_files(X: Any) -> None:
    """Refuse what `fit` would read by itself where columns are to be returned.

    Raises
    ------
    DataError
        For a `Scan`, a path, and a list of paths.
    """
    if isinstance(X, Scan) or _is_paths(X):
        what = "a Scan" if isinstance(X, Scan) else "a path, or several"
        msg = (
            f"transform takes arrays, frames and Dask collections, and X is {what}. Read the "
            "selected columns instead, for instance by pandas.read_csv(..., "
            "usecols=selector.get_feature_names_out()); they need no transform."
        )
        raise DataError(msg)


def _scanned(described: Scan, run: Run) -> Table:
    read = parquet.parquet_table if described.format == "parquet" else csv_scan.csv_table
    table = read(described, run)
    check_lengths(table.n_rows, len(table.target))
    return table


def _is_paths(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(path, str | os.PathLike) for path in value)
    return isinstance(value, str | os.PathLike)


def _target_names(y: Any) -> str | list[str]:
    several = isinstance(y, list | tuple) and bool(y) and all(isinstance(name, str) for name in y)
    if isinstance(y, str):
        return y
    if several:
        return list(y)
    msg = "X is a path, so y must be the name of the target column in the file."
    raise DataError(msg)


def _refuse(value: Any) -> None:
    """Raise a `DataError` for input that has a better form."""
    module = type(value).__module__.split(".")[0]
    if is_dask_frame(value) or is_dask(value):
        return
    if module == "scipy" or frames.is_a(value, "cupyx.scipy.sparse", "spmatrix"):
        msg = "dagsel does not take sparse matrices yet. Densify it: X.toarray()."
    elif frames.is_a(value, "polars", "LazyFrame"):
        msg = (
            "dagsel does not take a LazyFrame, since it would have to be collected as a whole. "
            "Call .collect() if it fits in memory, or give dagsel.scan(...) of its files."
        )
    elif module == "dask":
        msg = f"dagsel does not take a {type(value).__name__}. Give a Dask array or DataFrame."
    elif module == "pyarrow":
        msg = "dagsel does not take Arrow tables. Give .to_pandas() of it."
    else:
        return
    raise DataError(msg)
