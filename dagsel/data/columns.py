"""Columns of the user's table that are no features: weights, named by their label."""

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

__all__ = ["checked_weights", "is_weight", "take_weights"]

Parameters = dict[str, Any]


def is_weight(name: str) -> bool:
    """Tell whether a parameter of `fit`, or of a pipeline's `fit`, holds the weights of rows."""
    return name.rpartition("__")[2] == "sample_weight"


def take_weights(
    X: Any, *given: Mapping[str, Any], run: Run = map, compute: Compute = compute_here
) -> tuple[Any, list[Parameters]]:
    """Take the columns out of a table whose labels are given as weights.

    Parameters
    ----------
    X : frame, Dask data frame, Scan or any other table
        Left as it is where no label is given.
    *given : mapping
        Parameters by name; the weights among them may be labels, arrays or Dask collections.
    run, compute : callable
        See `dagsel.data.sources.open_table`.

    Returns
    -------
    X
        Without these columns.
    list of dict
        `given`, with arrays of shape (n_rows,) in place of labels and of Dask collections.

    Raises
    ------
    DataError
        For a label that the table does not have.

    Notes
    -----
    Of files the column is read at once, in a pass of its own; its size is that of the target.
    """
    found: dict[Hashable, Any] = {}
    taken: list[Parameters] = []
    for parameters in given:
        values = dict(parameters)
        for name, value in parameters.items():
            if not is_weight(name):
                continue
            if isinstance(value, str):
                if value not in found:
                    X, found[value] = _take(X, value, name, run, compute)
                values[name] = found[value]
            elif is_dask(value):
                (values[name],) = compute(value)
        taken.append(values)
    return X, taken


def _take(X: Any, label: str, name: str, run: Run, compute: Compute) -> tuple[Any, Any]:
    role = "the weights"
    if isinstance(X, Scan):
        return _take_from_files(X, label, role, run)
    if not (frames.is_frame(X) or is_dask_frame(X)):
        msg = (
            f"{name} is the label {label!r}, but X is a {type(X).__name__}, which has no column "
            "labels. Give one weight for every row."
        )
        raise DataError(msg)
    unknown_columns([label], tuple(X.columns), role, "the table")
    rest, values = frames.split_target(X, label)
    if is_dask(values):
        (values,) = compute(values)
    return rest, values


def _take_from_files(scan: Scan, label: str, role: str, run: Run) -> tuple[Scan, NDArray[Any]]:
    """Read a column as if it were the target."""
    unknown_columns([label], scan.layout.header, role, repr(short_name(scan.paths[0])))
    if label in scan.target:
        msg = f"The column {label!r} is the target and the weights at once. Name another column."
        raise DataError(msg)
    features = tuple(name for name in scan.features if name != label)
    if not features:
        msg = f"No feature columns are left in {short_name(scan.paths[0])!r} beside the weights."
        raise DataError(msg)
    # A feature there must be.
    try:
        column = open_table(replace(scan, target=(label,), features=features[:1]), run=run)
    except DataError as error:  # in the words for a target
        msg = f"The column {label!r} cannot be used as weights. Taken as a target: {error}"
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
