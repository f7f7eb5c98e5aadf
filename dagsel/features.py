"""Which columns a feature is: names, positions and groups, as users give them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dagsel.data.one_hot import Columns
from dagsel.data.values import column_label

__all__ = ["feature_columns", "features_of_columns", "groups_of", "resolve_columns"]


def feature_columns(
    feature_groups: Sequence[Sequence[Any]] | None, table: Columns
) -> tuple[tuple[int, ...], ...]:
    """Return the columns of each feature.

    Raises
    ------
    ValueError
        If groups are given that do not hold every column exactly once.
    """
    if feature_groups is None:
        return tuple((column,) for column in range(table.n_columns))
    groups = tuple(resolve_columns(group, table, what="feature_groups") for group in feature_groups)
    if not groups or not all(groups):
        msg = f"feature_groups {'has an empty group' if groups else 'is empty'}: leave it out"
        raise ValueError(msg)
    counts = np.bincount(np.concatenate(groups), minlength=table.n_columns)
    if np.any(counts != 1):
        column = int(np.flatnonzero(counts != 1)[0])
        times = "in no group" if counts[column] == 0 else f"in {counts[column]} groups"
        label = column_label(table.names, column)
        msg = (
            f"feature_groups must hold every column exactly once; column {label} is {times}. A "
            "column that is to move by itself is a group of one: "
            f"[{label if table.names else column}]"
        )
        raise ValueError(msg)
    return groups


def resolve_columns(
    chosen: Iterable[Hashable] | None, table: Columns, *, what: str
) -> tuple[int, ...]:
    """Return the positions of columns given by name or position; none for `None`.

    Raises
    ------
    ValueError
        For a column that the table does not have.
    """
    if chosen is None:
        return ()
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        msg = f"{what}: give a list of columns, by name or position, instead of {chosen!r}"
        raise ValueError(msg)
    names = table.names or ()
    columns = []
    for item in chosen:
        position = _position(item, names, table.n_columns)
        if position is None:
            known = f"columns 0 to {table.n_columns - 1}"
            if names:
                known += f" or names such as {', '.join(map(repr, names[:3]))}"
            msg = f"{what}: the table has no column {item!r} (it has {known})"
            raise ValueError(msg)
        columns.append(position)
    return tuple(columns)


def _position(item: Hashable, names: Sequence[Hashable], n_columns: int) -> int | None:
    if isinstance(item, str):
        with suppress(ValueError):
            return list(names).index(item)
        return None
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item) if 0 <= int(item) < n_columns else None
    return None


def features_of_columns(
    columns: Iterable[int],
    features: Sequence[tuple[int, ...]],
    names: Sequence[Hashable] | None,
    *,
    what: str,
) -> tuple[int, ...]:
    """Return the features that some columns make up.

    Raises
    ------
    ValueError
        If a group is in the columns only in part.
    """
    wanted = set(columns)
    chosen = []
    for number, group in enumerate(features):
        inside = wanted.intersection(group)
        if inside and len(inside) < len(group):
            missing = [column_label(names, column) for column in sorted(set(group) - inside)]
            msg = f"{what} holds only a part of a feature group, without {', '.join(missing)}"
            raise ValueError(msg)
        if inside:
            chosen.append(number)
    return tuple(chosen)


def groups_of(features: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...] | None:
    """Return the columns of each feature; `None` if every column is one."""
    simple = all(columns == (number,) for number, columns in enumerate(features))
    return None if simple else features
