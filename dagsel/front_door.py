"""What the front doors have in common: a client that stays here, refusals, and `transform`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dagsel.data import frames
from dagsel.data.dask_blocks import is_dask, selected_columns
from dagsel.data.one_hot import Columns
from dagsel.data.sources import refuse_files
from dagsel.exceptions import DataError

__all__ = ["HoldsClient", "SelectsColumns", "refuse_array"]


class HoldsClient(BaseEstimator):
    """Base of estimators with a parameter `client`, which is a connection.

    Clones share it. Pickles and copies leave it behind: what is loaded elsewhere has none.
    """

    def __sklearn_clone__(self) -> Any:
        bare = copy(self)
        twin = super(HoldsClient, bare).__sklearn_clone__()
        twin.client = self.client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "client": None}

    def _begin_fit(self, columns: Columns, results: Sequence[str]) -> None:
        """Keep what `fit` has seen, and drop results of an earlier fit, should this one fail."""
        for name in ("feature_names_in_", *results):
            self.__dict__.pop(name, None)
        self.n_features_in_ = columns.n_columns
        self._columns_seen = columns.names
        if columns.names is not None and all(isinstance(name, str) for name in columns.names):
            self.feature_names_in_ = np.asarray(columns.names, dtype=object)


class SelectsColumns:
    """Adds Dask collections to the `transform` of scikit-learn's `SelectorMixin`.

    To stand before it among the bases. No class of scikit-learn's itself, whose `set_output` would
    put what `transform` returns into a data frame in memory.
    """

    def transform(self, X: Any) -> Any:
        """Return the selected columns.

        Parameters
        ----------
        X : array-like, data frame or Dask collection of shape (n_rows, n_features_in_)
            The columns that were seen in fit. A Dask DataFrame may have them in any order, and
            others besides: the selected ones are found by name.

        Returns
        -------
        ndarray, data frame or Dask collection of shape (n_rows, n_selected)
            An array, or what `set_output` asks for; of a Dask collection one of its kind, which
            nothing has been computed of.

        Raises
        ------
        DataError
            For a Dask collection without the columns, and for files.
        """
        refuse_files(X)
        if not is_dask(X):
            return super().transform(X)  # type: ignore[misc]
        chosen = self.get_support(indices=True).tolist()  # type: ignore[attr-defined]
        known: Any = self
        return selected_columns(X, chosen, known._columns_seen, known.n_features_in_)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and return the selected columns of X.

        Parameters
        ----------
        X, y, **fit_params
            As for `fit`; X is no file.

        Returns
        -------
        ndarray, data frame or Dask collection of shape (n_rows, n_selected)
            See `transform`.
        """
        refuse_files(X)
        this: Any = self
        fitted = this.fit(X, y, **fit_params)
        # Without the columns that y, and others, were taken from by their labels.
        return fitted.transform(X[list(fitted._columns_seen)] if frames.is_frame(X) else X)


def refuse_array(X: Any, y: Any, *, into_folds: bool = True) -> None:
    """Refuse arrays in scikit-learn's words, by which its users' code recognises the reason.

    Parameters
    ----------
    X, y
        As given to `fit`; anything but a NumPy array is let through.
    into_folds : bool
        Whether the rows will be split into folds, for which a single one is not enough.

    Raises
    ------
    DataError
        For complex numbers, no columns, a single row, or no target.
    """
    if not isinstance(X, np.ndarray):
        return
    if X.dtype.kind == "c":
        msg = f"Complex data not supported: X has dtype {X.dtype}. Give real numbers."
    elif X.ndim == 2 and X.shape[1] == 0:
        msg = f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 2 is required."
    elif into_folds and X.ndim == 2 and X.shape[0] == 1:
        msg = f"Found array with 1 sample (shape={X.shape}), which cannot be split into folds."
    elif y is None:
        msg = "The selection requires y to be passed, but the target y is None."
    else:
        return
    raise DataError(msg)
