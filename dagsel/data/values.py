"""Checks on values, and the words for what is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.exceptions import DataError

__all__ = [
    "CODING",
    "Place",
    "as_float",
    "check_features",
    "check_lengths",
    "check_target",
    "column_label",
    "infer_objects",
    "listing",
    "missing_value",
    "row_of_array",
    "target_matrix",
    "unknown_columns",
]

Place = Callable[[int], str]
"""Says in the user's terms where a row is, given its position in the piece that was checked."""

CODING = "a sequential selection encodes columns of text by categories='one-hot'"
"""What there is for them; said where it has not been asked for."""

_REMEDY = "Drop the column, or the rows, or impute before the selection."


def listing(labels: Sequence[Any], limit: int = 5) -> str:
    """Return the first labels as text: "'a', 'b' and 7 more"."""
    shown = ", ".join(repr(label) for label in labels[:limit])
    rest = len(labels) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def column_label(names: Sequence[Hashable] | None, index: int) -> str:
    """Return how to call a column in a message."""
    return f"{names[index]!r}" if names is not None else f"{index} (counting from 0)"


def row_of_array(start: int) -> Place:
    """Return the place of rows that the user indexes from 0."""
    return lambda row: f"row {start + row} (counting from 0)"


def unknown_columns(
    wanted: Iterable[Hashable], known: Sequence[Hashable], role: str, where: str
) -> None:
    """Raise a `DataError` with the nearest names if some of `wanted` are not in `known`."""
    present = set(known)
    missing = [name for name in wanted if name not in present]
    if not missing:
        return
    texts = [str(name) for name in known]
    near = list(dict.fromkeys(difflib.get_close_matches(str(missing[0]), texts, n=3, cutoff=0.5)))
    hint = f"Did you mean {listing(near)}?" if near else f"It has {listing(list(known))}."
    msg = f"No column {listing(missing)} ({role}) in {where}. {hint}"
    raise DataError(msg)


def check_lengths(n_features: int, n_target: int) -> None:
    """Raise unless there are as many targets as rows, and at least one."""
    if n_features != n_target:
        msg = (
            f"X has {n_features} rows and y has {n_target}. "
            "Give one target value for every row, in the same order."
        )
        raise DataError(msg)
    if n_features == 0:
        msg = "The table has no rows. Check the path or the filter that made it."
        raise DataError(msg)


def as_float(
    values: NDArray[Any], names: Sequence[Hashable] | None, place: Place
) -> NDArray[np.floating[Any]]:
    """Return a matrix in single or double precision, as a view where it already is."""
    dtype = values.dtype
    if dtype.kind == "f" and dtype.itemsize in (4, 8) and dtype.isnative:
        return values
    if dtype.kind in "biuf":
        return values.astype(np.float64)
    if dtype.kind == "O":
        return _object_as_float(values, names, place)
    if dtype.kind in "US":
        return _object_as_float(values.astype(object), names, place)
    msg = (
        f"The features have dtype {dtype}, which is no real number. "
        "Convert them to numbers before the selection."
    )
    raise DataError(msg)


def _object_as_float(
    values: NDArray[Any], names: Sequence[Hashable] | None, place: Place
) -> NDArray[np.floating[Any]]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        pass
    for j in range(values.shape[1]):
        for i, value in enumerate(values[:, j]):
            try:
                float(value)
            except (TypeError, ValueError):
                what = "nothing" if value is None else f"{value!r}, which is no number,"
                msg = f"Column {column_label(names, j)} holds {what} in {place(i)}. {_REMEDY}"
                raise DataError(msg) from None
    msg = "The features cannot be converted to numbers."
    raise DataError(msg)


def _all_finite(values: NDArray[np.floating[Any]]) -> bool:
    # One sum settles the usual case without a temporary; it also overflows for finite values of
    # huge size, hence the second look.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum())) or bool(np.isfinite(values).all())


def check_features(
    features: NDArray[np.floating[Any]], names: Sequence[Hashable] | None, place: Place
) -> None:
    """Raise a `DataError` for a missing or infinite value, with its column and row."""
    if _all_finite(features):
        return
    bad = ~np.isfinite(features)
    row = int(bad.any(axis=1).argmax())
    columns = np.flatnonzero(bad.any(axis=0))
    column = int(bad[row].argmax())
    what = "a missing value (NaN)" if np.isnan(features[row, column]) else "an infinite value"
    msg = f"Column {column_label(names, column)} has {what} in {place(row)}. "
    others = [names[j] if names is not None else j for j in columns.tolist() if j != column]
    if others:
        msg += f"Other columns with such values, in this row or below: {listing(others)}. "
    msg += _REMEDY
    raise DataError(msg)


def missing_value(label: str, place: str) -> DataError:
    """Return the error for a missing value in a column of text or categories."""
    return DataError(f"Column {label} has a missing value in {place}. {_REMEDY}")


def infer_objects(values: NDArray[Any]) -> NDArray[Any]:
    """Return an object array as numbers if it holds nothing else, as mixed frames give."""
    if values.dtype != object:
        return values
    import pandas as pd

    columns = [
        pd.Series(column, dtype=object).infer_objects().to_numpy()
        for column in values.reshape(len(values), -1).T
    ]
    if any(column.dtype.kind not in "biuf" for column in columns):
        return values
    return np.stack(columns, axis=1).reshape(values.shape)


def check_target(target: NDArray[Any], place: Place) -> None:
    """Raise a `DataError` for a missing or infinite target value, with its row."""
    if target.dtype.kind == "f":
        bad = ~np.isfinite(target)
    elif target.dtype.kind in "OmM":
        import pandas as pd

        bad = np.asarray(pd.isna(target))
    else:
        return
    if bad.ndim == 2:
        bad = bad.any(axis=1)
    if not bad.any():
        return
    msg = (
        f"The target is missing or infinite in {place(int(bad.argmax()))} "
        f"({int(bad.sum())} such rows). Leave these rows out."
    )
    raise DataError(msg)


def target_matrix(target: NDArray[Any]) -> NDArray[np.floating[Any]]:
    """Return the target as two-dimensional numbers; text and dates are a `DataError`."""
    if target.dtype.kind not in "biuf":
        example = target.reshape(-1)[:1].tolist()
        msg = (
            f"The target holds {target.dtype} values such as {listing(example)}, not numbers. "
            "Encode classes as numbers, for instance with sklearn.preprocessing.LabelEncoder."
        )
        raise DataError(msg)
    matrix = target.reshape(len(target), -1)
    return matrix if matrix.dtype == np.float64 else matrix.astype(np.float64)
