"""Opening the rows of a job: what every front door does with X, y, groups and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from dagsel.data.arrays import split_blocks
from dagsel.data.blocks import Table
from dagsel.data.columns import checked_weights, take_columns
from dagsel.data.one_hot import Coding, Columns, one_hot_coded
from dagsel.data.sources import open_table, scan_of_paths
from dagsel.engines.base import Executor
from dagsel.executors.choice import runner

__all__ = ["Categories", "Opened", "open_rows"]

Categories = Literal["error", "one-hot"]


class Opened(NamedTuple):
    """Rows, and what belongs to them.

    Attributes
    ----------
    table : Table
        In enough blocks for every worker to have some.
    coding : Coding or None
        Which columns of the table stand for the user's own, where some were coded.
    groups : ndarray of shape (n_rows,), or None
        What they were given as, if not as a label.
    fit_params, score_params : dict
        With weights as arrays of shape (n_rows,).
    """

    table: Table
    coding: Coding | None
    groups: Any
    fit_params: dict[str, Any]
    score_params: dict[str, Any]

    @property
    def columns(self) -> Columns:
        """The user's own columns: how many there are, and their names."""
        return self.table if self.coding is None else self.coding


def open_rows(
    X: Any,
    y: Any,
    executor: Executor,
    *,
    groups: Any = None,
    fit_params: Mapping[str, Any] | None = None,
    score_params: Mapping[str, Any] | None = None,
    categories: Categories = "error",
) -> Opened:
    """Open whatever the user has.

    Parameters
    ----------
    X, y
        See `dagsel.data.sources.open_table`.
    executor : Executor
        Where files are scanned and Dask collections computed.
    groups : array-like, Dask collection or str, optional
        For the splitter. May be the label of a column of X, which is then no feature.
    fit_params, score_params : mapping, optional
        Passed to the estimator's `fit` and to the scorer. Weights in them may be the label of a
        column of X, likewise.
    categories : {"error", "one-hot"}
        What to do with columns of text or categories.

    Raises
    ------
    DataError
        For data that cannot be used; says which column and rows.
    """
    if categories not in get_args(Categories):
        msg = f"categories must be 'error' or 'one-hot'; got {categories!r}"
        raise ValueError(msg)
    run = runner(executor)
    X, y = scan_of_paths(X, y)
    X, (groups, fit_params, score_params) = take_columns(
        X, groups, fit_params or {}, score_params or {}, run=run, compute=executor.compute
    )
    coding = None
    if categories != "error":
        X, y, coding = one_hot_coded(X, y, run)
    table = open_table(X, y, run=run, compute=executor.compute)
    fits, scores = (checked_weights(each, table.n_rows) for each in (fit_params, score_params))
    if not executor.in_process:
        table = split_blocks(table, executor.n_workers)
    return Opened(table, coding, groups, fits, scores)
