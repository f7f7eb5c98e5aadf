"""`SequentialFeatureSelector` with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dagsel.data.blocks import Table
from dagsel.exceptions import DataError
from dagsel.job import Job, features_of_columns, monitor_for, open_job, resolve_columns
from dagsel.monitor import Monitor
from dagsel.plan import EngineName, Plan
from dagsel.results import Selection
from dagsel.search import Search

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["HoldsClient", "SequentialFeatureSelector"]


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


class SequentialFeatureSelector(SelectorMixin, MetaEstimatorMixin, HoldsClient):
    """Sequential feature selection with the scores of cross-validated refits, without the refits.

    Backward elimination removes, round after round, the feature that the model can best do
    without; forward selection adds the one that helps most. Every candidate of every round is
    scored by cross-validation. For linear least squares the scores come from moments of the data
    (see `engine`) and equal those of refits up to rounding; any other estimator is refitted.

    Parameters
    ----------
    estimator : estimator object
        An unfitted scikit-learn compatible estimator. Never fitted itself.
    n_features_to_select : "auto", int or float, default="auto"
        Number of features to keep (of groups, with `feature_groups`); a fraction of them if a
        float between 0 and 1. "auto" keeps half, or with `tol` as many as the scores justify.
    tol : float, optional
        With ``n_features_to_select="auto"``: stop at the first move that does not raise the score
        by at least `tol`, without making it. The first backward move is compared with the full
        set, so nothing may be removed. May be negative in backward selection.
    direction : {"forward", "backward"}, default="forward"
        Add features to none, or remove them from all.
    scoring : str, callable or None, default=None
        Metric, as in scikit-learn; `None` is the estimator's own `score`.
    cv : int, splitter, iterable or None, default=5
        Folds, as in scikit-learn; `None` is 5. Drawn once: every candidate meets the same folds.
    n_jobs : int, optional
        Processes for refits when there is no Dask client, as in scikit-learn.
    floating : bool, default=False
        After each move try moves in the opposite direction, and make those that improve.
    fixed_features : sequence of int or str, optional
        Columns that are always in the model.
    feature_groups : list of list of int or str, optional
        Columns that are moved as one; every column in exactly one group.
    engine : {"auto", "moments", "refit"}, default="auto"
        "auto" takes the fastest engine that gives the refits' scores and falls back to refits,
        with a `DagselWarning`, where it cannot vouch for its numbers. "moments" is an error where
        that engine does not apply. "refit" always refits.
    client : distributed.Client, optional
        Where to run. `None` is the active Dask client if there is one, and this process if not.
        A cluster is never started or reconfigured.
    verbose : int, default=0
        1 prints a line a round to standard error. Everything is logged to the logger "dagsel".

    Attributes
    ----------
    selection_ : Selection
        The path: every round's feature, scores, runner-up and time. If `fit` fails or is
        interrupted it holds the rounds decided until then.
    support_ : ndarray of bool of shape (n_features_in_,)
        Mask of the selected columns.
    n_features_to_select_ : int
        Number of features selected (of groups, with `feature_groups`).
    n_features_in_ : int
        Columns seen during fit.
    feature_names_in_ : ndarray of str of shape (n_features_in_,)
        Their names, if all are strings.
    plan_ : Plan
        What was going to be done, and at what cost.

    Examples
    --------
    >>> from dagsel import SequentialFeatureSelector
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> selector = SequentialFeatureSelector(
    ...     LinearRegression(), n_features_to_select=7, direction="backward"
    ... ).fit(X, y)
    >>> selector.get_support(indices=True)
    array([1, 2, 3, 4, 5, 7, 8])
    """

    # For `set_fit_request`, which cannot see it among **fit_params.
    __metadata_request__fit = {"sample_weight": None}  # noqa: RUF012

    def __init__(
        self,
        estimator: Any,
        *,
        n_features_to_select: Any = "auto",
        tol: float | None = None,
        direction: Literal["forward", "backward"] = "forward",
        scoring: Any = None,
        cv: Any = 5,
        n_jobs: int | None = None,
        floating: bool = False,
        fixed_features: Sequence[Any] | None = None,
        feature_groups: Sequence[Sequence[Any]] | None = None,
        engine: EngineName = "auto",
        client: Client | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.n_features_to_select = n_features_to_select
        self.tol = tol
        self.direction = direction
        self.scoring = scoring
        self.cv = cv
        self.n_jobs = n_jobs
        self.floating = floating
        self.fixed_features = fixed_features
        self.feature_groups = feature_groups
        self.engine = engine
        self.client = client
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, groups: Any = None, **fit_params: Any) -> Any:
        """Select features.

        Parameters
        ----------
        X : array-like, data frame, Dask collection, Scan or path of shape (n_rows, n_columns)
            Features. NumPy arrays; pandas, polars and cuDF frames; Dask arrays and data frames;
            CSV or Parquet files by `dagsel.scan`, by path, pattern or URL. Files and Dask
            collections are read in blocks of rows and never as a whole.
        y : array-like of shape (n_rows,) or (n_rows, n_targets), or label
            Target. A label, or a list of labels, names columns of X.
        groups : array-like of shape (n_rows,), optional
            Groups for a splitter such as `GroupKFold`.
        **fit_params
            Passed to the estimator's `fit`; those with one entry a row are sliced by fold.

        Returns
        -------
        self
            Fitted.

        Raises
        ------
        ValueError
            For parameters that make no sense or do not suit the data.
        DataError
            For data that cannot be used; says which column and rows.
        ScoringError
            If no candidate of a round has a score.
        """
        monitor = monitor_for(self.verbose)
        job = self._open(X, y, groups, fit_params, monitor)
        self._start(job)
        job.run(monitor)
        self._finish(job.selection)
        return self

    def plan(self, X: Any, y: Any = None, groups: Any = None, **fit_params: Any) -> Plan:
        """Say what `fit` with these arguments would do, without doing it.

        Files are opened, and CSV files are read once to count their rows.
        """
        return self._open(X, y, groups, fit_params).plan

    def _open(
        self,
        X: Any,
        y: Any,
        groups: Any,
        fit_params: dict[str, Any],
        monitor: Monitor | None = None,
    ) -> Job:
        self._check_parameters()
        _check_array(X, y)
        return open_job(
            X,
            y,
            estimator=self.estimator,
            scoring=self.scoring,
            cv=5 if self.cv is None else self.cv,
            make_search=self._make_search,
            groups=groups,
            feature_groups=self.feature_groups,
            fit_params=fit_params,
            engine=self.engine,
            client=self.client,
            n_jobs=self.n_jobs,
            monitor=monitor,
        )

    def _check_parameters(self) -> None:
        if self.direction not in ("forward", "backward"):
            msg = f"direction must be 'forward' or 'backward'; got {self.direction!r}"
            raise ValueError(msg)
        if self.tol is not None and self.tol < 0 and self.direction == "forward":
            msg = f"tol must not be negative in forward selection; got {self.tol!r}"
            raise ValueError(msg)
        if self.tol is not None and self.n_features_to_select != "auto":
            msg = (
                f"tol={self.tol!r} stops a search of open length: use it with "
                f"n_features_to_select='auto', not {self.n_features_to_select!r}"
            )
            raise ValueError(msg)

    def _make_search(self, table: Table, features: tuple[tuple[int, ...], ...]) -> Search:
        n_features = len(features)
        columns = resolve_columns(self.fixed_features, table, what="fixed_features")
        fixed = features_of_columns(columns, features, what="fixed_features")
        return Search(
            n_features,
            target_size=self._target_size(n_features, len(fixed)),
            direction=self.direction,
            floating=self.floating,
            fixed=fixed,
            tie_rule="lowest",
            tol=self.tol,
            # Scored even where only `tol` needs it: the path shows what the selection cost.
            score_start=True,
        )

    def _target_size(self, n_features: int, n_fixed: int) -> int:
        wanted = self.n_features_to_select
        if n_features < 2:
            msg = f"n_features = {n_features}: at least 2 features are needed to select from"
            raise DataError(msg)
        if isinstance(wanted, str) and wanted == "auto":
            return self._automatic_size(n_features, n_fixed)
        if isinstance(wanted, bool) or not isinstance(wanted, Real):
            msg = f"n_features_to_select must be 'auto' or a number; got {wanted!r}"
            raise ValueError(msg)
        if not isinstance(wanted, Integral):
            if not 0 < float(wanted) <= 1:
                msg = f"n_features_to_select={wanted!r}: a fraction must be in (0, 1]"
                raise ValueError(msg)
            wanted = n_features * float(wanted)
        if not max(1, n_fixed) <= int(wanted) <= n_features:
            msg = (
                f"n_features_to_select={self.n_features_to_select!r} is {int(wanted)} of "
                f"{n_features} features, {n_fixed} of them fixed: it must be at least "
                f"{max(1, n_fixed)} and at most {n_features}"
            )
            raise ValueError(msg)
        return int(wanted)

    def _automatic_size(self, n_features: int, n_fixed: int) -> int:
        if self.tol is None:
            return max(n_features // 2, n_fixed, 1)
        return n_features if self.direction == "forward" else max(1, n_fixed)

    def _start(self, job: Job) -> None:
        table = job.problem.table
        self.selection_ = job.selection
        self.plan_ = job.plan
        self.n_features_in_ = table.n_columns
        # Nothing is left over from an earlier fit, should this one fail.
        for name in ("support_", "n_features_to_select_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        if table.names is not None and all(isinstance(name, str) for name in table.names):
            self.feature_names_in_ = np.asarray(table.names, dtype=object)

    def _finish(self, selection: Selection) -> None:
        last = selection.rounds[-1]
        self.support_ = np.zeros(self.n_features_in_, dtype=np.bool_)
        self.support_[list(last.subset)] = True
        self.n_features_to_select_ = last.n_features

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        # A pipeline does not tell whether it imputes.
        tags.input_tags.allow_nan = inner.input_tags.allow_nan or isinstance(
            self.estimator, Pipeline
        )
        tags.input_tags.sparse = False
        tags.target_tags.required = True
        return tags


def _check_array(X: Any, y: Any) -> None:
    """Refuse arrays in scikit-learn's words, by which its users' code recognises the reason."""
    if not isinstance(X, np.ndarray):
        return
    if X.dtype.kind == "c":
        msg = f"Complex data not supported: X has dtype {X.dtype}. Give real numbers."
    elif X.ndim == 2 and X.shape[1] == 0:
        msg = f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 2 is required."
    elif X.ndim == 2 and X.shape[0] == 1:
        msg = f"Found array with 1 sample (shape={X.shape}), which cannot be split into folds."
    elif y is None:
        msg = "The selection requires y to be passed, but the target y is None."
    else:
        return
    raise DataError(msg)
