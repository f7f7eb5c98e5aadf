"""Data frames of pandas, polars and cuDF: labels, row ranges, numbers.

The optional libraries are never imported here: an object of theirs can only exist once somebody
else has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.data.values import CODING, Place, as_float, listing, unknown_columns
from dagsel.exceptions import DataError

__all__ = [
    "check_numeric",
    "float_rows",
    "is_a",
    "is_frame",
    "is_label",
    "is_series",
    "labels",
    "row_range",
    "series_values",
    "split_target",
    "to_numpy",
]

_FRAMES = ("pandas", "polars", "cudf")


def is_a(value: Any, module: str, name: str) -> bool:
    """Tell whether `value` is an instance of `module.name`, without importing the module."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def is_frame(value: Any) -> bool:
    """Tell whether `value` is a data frame in memory."""
    return any(is_a(value, module, "DataFrame") for module in _FRAMES)


def is_series(value: Any) -> bool:
    """Tell whether `value` is one column, or an index, of a data frame library."""
    return any(is_a(value, module, name) for module in _FRAMES for name in ("Series", "Index"))


def labels(frame: Any) -> tuple[Hashable, ...]:
    """Return the column labels; they must be unique, since results are reported by label."""
    names = tuple(frame.columns)
    if len(set(names)) < len(names):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        msg = f"Column labels occur more than once: {listing(twice)}. Rename or drop the copies."
        raise DataError(msg)
    return names


def row_range(values: Any, start: int, stop: int) -> Any:
    """Return rows `start` to `stop` of an array or frame, as a view where the library has them."""
    return values.iloc[start:stop] if hasattr(values, "iloc") else values[start:stop]


def is_label(target: Any, columns: Iterable[Hashable]) -> bool:
    """Tell whether `target` names columns of a frame rather than being the target itself."""
    if isinstance(target, list):
        known = set(columns)
        return bool(target) and all(isinstance(name, str) and name in known for name in target)
    # Labels can be integers or tuples; a tuple may as well hold the values of a target.
    if isinstance(target, tuple):
        return target in list(columns)
    return isinstance(target, str | int)


def split_target(frame: Any, target: Hashable | list[Hashable]) -> tuple[Any, Any]:
    """Return (the other columns, the target column or columns) of a frame, Dask's included."""
    wanted: list[Hashable] = target if isinstance(target, list) else [target]
    unknown_columns(wanted, tuple(frame.columns), "the target", "the table")
    if is_a(frame, "polars", "DataFrame"):
        return frame.drop(wanted), frame[target]
    return frame.drop(columns=wanted), frame[target]


def to_numpy(values: Any) -> NDArray[Any]:
    """Return an array or frame of the host, whatever library it is of."""
    if is_frame(values) or is_series(values):
        return series_values(values)
    if is_a(values, "cupy", "ndarray"):
        return np.asarray(values.get())
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        row = int(np.argwhere(np.ma.getmaskarray(values))[0][0])
        msg = f"The array has masked values, the first in row {row}. Fill or drop them."
        raise DataError(msg)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        msg = f"Cannot make an array of the {type(values).__name__} that was given: {error}"
        raise DataError(msg) from error
    if array.ndim == 0:  # what NumPy makes of objects that it does not know, sparse ones among them
        msg = f"Cannot make an array of the {type(values).__name__} that was given."
        raise DataError(msg)
    return array


def series_values(values: Any) -> NDArray[Any]:
    """Return a series or frame as an array; missing entries of nullable numbers become NaN."""
    if type(values).__module__.split(".")[0] == "cudf":
        values = values.to_pandas()
    dtype = getattr(values, "dtype", None)
    if is_a(values, "pandas", "Series") and getattr(dtype, "na_value", None) is not None:
        kind = getattr(dtype, "kind", "O")
        if kind in "iuf" and values.hasnans:
            return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
        if kind in "biuf" and not values.hasnans:
            return np.asarray(values.to_numpy(dtype=getattr(dtype, "numpy_dtype", None)))
    return np.asarray(values.to_numpy())


def check_numeric(frame: Any, *, coded: bool = False) -> None:
    """Raise a `DataError` that names the columns which are not numbers.

    Parameters
    ----------
    frame : frame
        Of pandas, polars or cuDF.
    coded : bool
        Whether columns of text were coded, so that others are left.
    """
    odd = [(name, dtype) for name, dtype in _dtypes(frame) if not _is_number(dtype)]
    if not odd:
        return
    named = ", ".join(f"{name!r} ({dtype})" for name, dtype in odd[:5])
    more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
    msg = f"Columns are not numeric: {named}{more}. Drop them, or encode them as numbers" + (
        "." if coded else f"; {CODING}."
    )
    raise DataError(msg)


def _dtypes(frame: Any) -> list[tuple[Hashable, Any]]:
    if is_a(frame, "polars", "DataFrame"):
        return list(frame.schema.items())
    return list(zip(frame.columns, frame.dtypes, strict=True))


def _is_number(dtype: Any) -> bool:
    if hasattr(dtype, "is_numeric"):  # polars
        return bool(dtype.is_numeric()) or str(dtype) == "Boolean"
    if isinstance(dtype, np.dtype):
        return dtype.kind in "biufO"  # objects may be numbers: their conversion tells
    if str(dtype).startswith("decimal"):
        return True
    return getattr(dtype, "kind", "O") in "biuf" and not str(dtype).startswith("category")


def float_rows(
    frame: Any, start: int, stop: int, names: Sequence[Hashable] | None, place: Place
) -> NDArray[np.floating[Any]]:
    """Return rows of a frame that passed `check_numeric` as floating point numbers."""
    part = row_range(frame, start, stop)
    if is_a(part, "polars", "DataFrame"):
        return _polars_floats(part)
    if is_a(part, "cudf", "DataFrame"):
        part = part.to_pandas()
    kinds = set(part.dtypes)
    if len(kinds) == 1 and isinstance(next(iter(kinds)), np.dtype):
        return as_float(part.to_numpy(), names, place)
    if any(dtype == np.dtype(object) for dtype in kinds):
        return as_float(part.to_numpy(dtype=object, na_value=np.nan), names, place)
    return np.asarray(part.to_numpy(dtype=np.float64, na_value=np.nan))


def _polars_floats(part: Any) -> NDArray[np.floating[Any]]:
    polars = sys.modules["polars"]
    if any(dtype != polars.Float32 for dtype in part.dtypes):
        part = part.cast(polars.Float64)
    return np.asarray(part.to_numpy(order="fortran"))
