"""Columns of the user's table that are no features: groups and weights, named by their label."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.data import frames
from dagsel.data.arrays import target_values
from dagsel.data.dask_blocks import compute_here, is_dask, is_dask_frame
from dagsel.data.files import Scan, short_name
from dagsel.data.sources import Compute, Run, open_table
from dagsel.data.values import listing, unknown_columns
from dagsel.exceptions import DataError

__all__ = ["checked_weights", "is_weight", "take_columns"]

Parameters = dict[str, Any]


def is_weight(name: str) -> bool:
    """Tell whether a parameter of `fit`, or of a pipeline's `fit`, holds the weights of rows."""
    return name.rpartition("__")[2] == "sample_weight"


def take_columns(
    X: Any, groups: Any, *given: Mapping[str, Any], run: Run = map, compute: Compute = compute_here
) -> tuple[Any, tuple[Any, ...]]:
    """Take the columns out of a table whose labels are given as groups or weights.

    Parameters
    ----------
    X : frame, Dask data frame, Scan or any other table
        Left as it is where no label is given.
    groups : array-like, Dask collection, str or None
        The group of every row, or the label of their column.
    *given : mapping
        Parameters by name; the weights among them may be labels, arrays or Dask collections.
    run, compute : callable
        See `dagsel.data.sources.open_table`.

    Returns
    -------
    X
        Without these columns.
    tuple of (groups, dict, ...)
        What was given, with arrays of shape (n_rows,) in place of labels and Dask collections.

    Raises
    ------
    DataError
        For a label that the table does not have.

    Notes
    -----
    Of files a column is read at once, in a pass of its own; its size is that of the target.
    """
    taken = _Taken(X, run, compute)
    values = (
        taken.values("groups", "the groups", groups),
        *(
            {
                name: taken.values(name, "the weights", value) if is_weight(name) else value
                for name, value in parameters.items()
            }
            for parameters in given
        ),
    )
    return taken.table, values


class _Taken:
    """A table, and the columns that were taken out of it."""

    def __init__(self, table: Any, run: Run, compute: Compute) -> None:
        self.table = table
        self._run = run
        self._compute = compute
        self._found: dict[Hashable, Any] = {}

    def values(self, name: str, role: str, value: Any) -> Any:
        """Return the values of a label or of a Dask collection; others as they are."""
        if is_dask(value):
            return self._compute(value)[0]
        if not isinstance(value, str):
            return value
        if value not in self._found:
            take = _take_from_files if isinstance(self.table, Scan) else _take_from_frame
            self.table, found = take(self.table, value, name, role, self._run)
            self._found[value] = self._compute(found)[0] if is_dask(found) else found
        return self._found[value]


def _take_from_frame(X: Any, label: str, name: str, role: str, run: Run) -> tuple[Any, Any]:
    del run
    if not (frames.is_frame(X) or is_dask_frame(X)):
        msg = (
            f"{name} is the label {label!r}, but X is a {type(X).__name__}, which has no column "
            "labels. Give one value for every row."
        )
        raise DataError(msg)
    unknown_columns([label], tuple(X.columns), role, "the table")
    return frames.split_target(X, label)


def _take_from_files(
    scan: Scan, label: str, name: str, role: str, run: Run
) -> tuple[Scan, NDArray[Any]]:
    """Read a column as if it were the target."""
    del name
    unknown_columns([label], scan.layout.header, role, repr(short_name(scan.paths[0])))
    if label in scan.target:
        msg = f"The column {label!r} is the target and {role} at once. Name another column."
        raise DataError(msg)
    features = tuple(each for each in scan.features if each != label)
    if not features:
        msg = f"No feature columns are left in {short_name(scan.paths[0])!r} beside {role}."
        raise DataError(msg)
    # A feature there must be.
    try:
        column = open_table(replace(scan, target=(label,), features=features[:1]), run=run)
    except DataError as error:  # in the words for a target
        msg = f"The column {label!r} cannot be used as {role}. Taken as a target: {error}"
        raise DataError(msg) from error
    return replace(scan, features=features), column.target


def checked_weights(parameters: Mapping[str, Any], n_rows: int) -> Parameters:
    """Return parameters with their weights as numbers, of shape (n_rows,).

    Raises
    ------
    DataError
        For weights that are not one finite number of at least 0 for every row; says which is not.
    """
    checked = dict(parameters)
    for name, value in parameters.items():
        if is_weight(name) and value is not None:
            checked[name] = _checked(value, name, n_rows)
    return checked


def _checked(value: Any, name: str, n_rows: int) -> NDArray[np.float64]:
    if np.ndim(value) == 0:
        msg = f"{name} is {value!r}. Give one weight for every row."
        raise DataError(msg)
    weights = target_values(value)
    if weights.ndim != 1 or len(weights) != n_rows:
        has = f"{len(weights)} weights" if weights.ndim == 1 else f"the shape {weights.shape}"
        msg = f"{name} has {has}, but the table has {n_rows} rows. Give one weight for every row."
        raise DataError(msg)
    if weights.dtype.kind not in "biuf":
        msg = f"{name} holds {weights.dtype} values such as {listing(weights[:1].tolist())}, "
        msg += "not numbers. Give one number of at least 0 for every row."
        raise DataError(msg)
    weights = weights.astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if np.any(bad):
        row = int(bad.argmax())
        msg = (
            f"{name} is {weights[row]:g} in row {row} (counting from 0; {int(bad.sum())} such "
            "rows). Give numbers of at least 0; a row of weight 0 does not count."
        )
        raise DataError(msg)
    if not np.any(weights):
        msg = f"{name} is 0 in every row, so that no row counts. Give some rows a weight above 0."
        raise DataError(msg)
    return weights
