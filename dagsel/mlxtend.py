"""The same selection behind mlxtend's signature: change one import line.

    from dagsel.mlxtend import SequentialFeatureSelector

Parameters, attributes, their types and the results are those of mlxtend 0.25. What differs, on
purpose, is listed in the class's notes.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Hashable, Sequence
from copy import deepcopy
from datetime import datetime
from numbers import Integral
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.exceptions import NotFittedError

from dagsel.data.dask_blocks import is_dask, selected_columns
from dagsel.data.one_hot import Columns
from dagsel.data.sources import refuse_files
from dagsel.engines.registry import EngineName
from dagsel.exceptions import DagselWarning
from dagsel.features import features_of_columns, resolve_columns
from dagsel.front_door import HoldsClient
from dagsel.job import Job, open_job
from dagsel.metadata import unrouted
from dagsel.monitor import LogMonitor
from dagsel.plan import Plan
from dagsel.results import Round, Selection
from dagsel.scoring import resolve_scoring
from dagsel.search import Search
from dagsel.warning import warn

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["SequentialFeatureSelector"]


class SequentialFeatureSelector(MetaEstimatorMixin, HoldsClient):
    """Sequential feature selection, as mlxtend's class of this name.

    Parameters
    ----------
    estimator : estimator object
        Scikit-learn classifier or regressor.
    k_features : int, tuple, "best" or "parsimonious", default=1
        Number of features to select (of groups, with `feature_groups`): exactly this many; the
        best score within (min, max); the best score of all sizes; or the smallest size whose score
        is within one standard error of the best.
    forward : bool, default=True
        Forward selection if true, backward elimination otherwise.
    floating : bool, default=False
        After each move try moves in the opposite direction, and make those that improve.
    verbose : int, default=0
        1 keeps a count on standard error, 2 and more print a line a round.
    scoring : str or callable, default=None
        Metric; `None` is accuracy for classifiers and R² for regressors.
    cv : int, splitter, list of splits or None, default=5
        `None`, `False` and 0 fit and score on all rows. Drawn once: every candidate meets the same
        folds.
    n_jobs : int, default=1
        Processes for refits when there is no Dask client; -1 for all cores.
    pre_dispatch : int or str, default="2*n_jobs"
        Accepted; batches are sized by their cost instead.
    clone_estimator : bool, default=True
        Whether refits use clones. `False` fits the given object itself, in this process.
    fixed_features : tuple of int or str, optional
        Columns that are always in the model.
    feature_groups : list of list of int or str, optional
        Columns that are moved as one; every column in exactly one group.
    tol : float, optional
        Stop at the first move that does not raise the score by at least this, without making it.
    engine : {"auto", "moments", "rows", "refit"}, default="auto"
        See `dagsel.SequentialFeatureSelector`.
    client : distributed.Client, optional
        Where to run. `None` is the active Dask client if there is one, and this process if not.
    step, patience, max_seconds, checkpoint
        See `dagsel.SequentialFeatureSelector`. `patience` is for a tuple, "best" and
        "parsimonious".

    Attributes
    ----------
    k_feature_idx_ : tuple of int
        Selected columns, ascending.
    k_feature_names_ : tuple
        Their labels; positions as strings if the input had none.
    k_score_ : float
        Mean score of the selected subset.
    subsets_ : dict of int to dict
        By number of features (of groups): "feature_idx", "cv_scores", "avg_score" and
        "feature_names" of the best subset seen.
    selection_ : dagsel.Selection
        The whole path.
    plan_ : dagsel.Plan
        What was going to be done.

    Notes
    -----
    Differences from mlxtend 0.25: exactly tied candidates are decided by index (backward removes
    the highest, forward adds the lowest) and not by the order of a Python set; a candidate with a
    NaN score in any fold is never chosen; "parsimonious" is the textbook one-standard-error rule;
    confidence intervals have n - 1 degrees of freedom; `tol` does not keep the move that failed
    it; `fit` changes no parameter, and `scoring=None` stays what it is; Ctrl-C is raised, with
    everything decided until then in the attributes; data frames reach the estimator as they are,
    and `transform` finds their columns by name.
    """

    def __init__(
        self,
        estimator: Any,
        k_features: Any = 1,
        forward: bool = True,
        floating: bool = False,
        verbose: int = 0,
        scoring: Any = None,
        cv: Any = 5,
        n_jobs: int | None = 1,
        pre_dispatch: Any = "2*n_jobs",
        clone_estimator: bool = True,
        fixed_features: Sequence[Any] | None = None,
        feature_groups: Sequence[Sequence[Any]] | None = None,
        tol: float | None = None,
        *,
        engine: EngineName = "auto",
        client: Client | None = None,
        step: int | float = 1,
        patience: int | None = None,
        max_seconds: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.estimator = estimator
        self.k_features = k_features
        self.forward = forward
        self.floating = floating
        self.verbose = verbose
        self.scoring = scoring
        self.cv = cv
        self.n_jobs = n_jobs
        self.pre_dispatch = pre_dispatch
        self.clone_estimator = clone_estimator
        self.fixed_features = fixed_features
        self.feature_groups = feature_groups
        self.tol = tol
        self.engine = engine
        self.client = client
        self.step = step
        self.patience = patience
        self.max_seconds = max_seconds
        self.checkpoint = checkpoint

    # Before any fit, as in mlxtend.
    fitted = False
    interrupted_ = False

    # ------------------------------------------------------------------ parameters

    @property
    def named_estimators(self) -> list[tuple[str, Any]]:
        """The estimator under its lower-case class name, as in a pipeline."""
        return [(type(self.estimator).__name__.lower(), self.estimator)]

    @property
    def scorer(self) -> Any:
        """The scorer in use, `scorer(estimator, X, y)`."""
        return resolve_scoring(self.estimator, self._scoring_name()).scorer

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters; the estimator's own also under its lower-case class name."""
        params: dict[str, Any] = super().get_params(deep=deep)
        if deep:
            for name, estimator in self.named_estimators:
                params[name] = estimator
                if hasattr(estimator, "get_params"):
                    inner = estimator.get_params(deep=True)
                    params.update({f"{name}__{key}": value for key, value in inner.items()})
        return params

    def set_params(self, **params: Any) -> Any:
        """Set parameters, by any of the names in `get_params`.

        Returns
        -------
        self
        """
        # An estimator comes before its parameters, whatever the order in which they are given.
        if "estimator" in params:
            self.estimator = params.pop("estimator")
        for name, _ in self.named_estimators:
            if name in params:
                self.estimator = params.pop(name)
        super().set_params(**params)
        return self

    def _scoring_name(self) -> Any:
        if self.scoring is not None:
            return self.scoring
        from sklearn.base import is_classifier, is_regressor

        if is_classifier(self.estimator):
            return "accuracy"
        if is_regressor(self.estimator):
            return "r2"
        msg = (
            f"{type(self.estimator).__name__} is neither a classifier nor a regressor: "
            "say what to score by with scoring="
        )
        raise ValueError(msg)

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None, groups: Any = None, **fit_params: Any) -> Any:
        """Select features.

        Parameters
        ----------
        X, y, groups, **fit_params
            As in `dagsel.SequentialFeatureSelector.fit` without metadata routing, which is not
            heeded: `sample_weight` weights fits and never scores.

        Returns
        -------
        self
            Fitted.
        """
        self._reset()
        job = self._open(X, y, groups, fit_params)
        job.open_journal()
        self._start(job)
        try:
            job.run(_Counter(self.verbose, job.search.target_size), self.max_seconds)
        except BaseException:
            # Whatever ends a run, Ctrl-C included: what was decided is kept and usable.
            self.interrupted_ = True
            if job.selection.rounds:
                with warnings.catch_warnings():
                    # The exception says more than "k_features was not reached".
                    warnings.simplefilter("ignore", DagselWarning)
                    self.finalize_fit()
            raise
        self.finalize_fit()
        return self

    def plan(self, X: Any, y: Any = None, groups: Any = None, **fit_params: Any) -> Plan:
        """Say what `fit` with these arguments would do, without doing it."""
        return self._open(X, y, groups, fit_params).plan

    def _reset(self) -> None:
        self.fitted = False
        self.interrupted_ = False
        self.subsets_: dict[int, dict[str, Any]] = {}
        self.k_feature_idx_: tuple[int, ...] | None = None
        self.k_feature_names_: tuple[Hashable, ...] | None = None
        self.k_score_: float | None = None

    def _open(self, X: Any, y: Any, groups: Any, fit_params: dict[str, Any]) -> Job:
        if self.cv is True or (self.cv is not False and self.cv == 1 and _is_int(self.cv)):
            msg = f"cv={self.cv!r}: use at least 2 folds, or 0 to score on the training rows"
            raise ValueError(msg)
        no_folds = self.cv is None or self.cv is False or (_is_int(self.cv) and self.cv == 0)
        scoring = self._scoring_name()
        # As in mlxtend without metadata routing, to which its signature does not lend itself.
        given = unrouted(self.estimator, scoring, groups, fit_params)
        return open_job(
            X,
            y,
            estimator=self.estimator,
            scoring=scoring,
            cv="none" if no_folds else self.cv,
            make_search=self._make_search,
            groups=given.groups,
            feature_groups=self.feature_groups,
            fit_params=given.fit,
            routing=given.routing,
            engine=self.engine,
            client=self.client,
            n_jobs=self.n_jobs,
            clone_estimator=self.clone_estimator,
            checkpoint=self.checkpoint,
            monitor=LogMonitor(),  # what else there is to print begins with the search
        )

    def _make_search(self, table: Columns, features: tuple[tuple[int, ...], ...]) -> Search:
        columns = resolve_columns(self.fixed_features, table, what="fixed_features")
        fixed = features_of_columns(columns, features, table.names, what="fixed_features")
        low, high = self._size_range(len(features), len(fixed))
        if self.patience is not None and not isinstance(self.k_features, (tuple, str)):
            msg = (
                f"patience={self.patience!r} stops a search before it has reached the size asked "
                f"for: use it with k_features='best', 'parsimonious' or a tuple, not "
                f"{self.k_features!r}"
            )
            raise ValueError(msg)
        return Search(
            len(features),
            target_size=high if self.forward else low,
            direction="forward" if self.forward else "backward",
            floating=self.floating,
            fixed=fixed,
            tie_rule="highest",
            tol=self.tol,
            step=self.step,
            patience=self.patience,
            patience_from=low if self.forward else high,
            score_start=True,
        )

    def _size_range(self, n_features: int, n_fixed: int) -> tuple[int, int]:
        least = max(1, n_fixed)
        wanted = self.k_features
        if isinstance(wanted, str) and wanted in ("best", "parsimonious"):
            return least, n_features
        sizes = wanted if isinstance(wanted, tuple) else (wanted, wanted)
        if len(sizes) != 2 or not all(map(_is_int, sizes)):
            msg = (
                "k_features must be an int, a tuple (min, max) of ints, 'best' or "
                f"'parsimonious'; got {wanted!r}"
            )
            raise ValueError(msg)
        low, high = map(int, sizes)
        if not least <= low <= high <= n_features:
            what = "features" if self.feature_groups is None else "feature groups"
            msg = (
                f"k_features={wanted!r} must be between {least} and {n_features}, the number of "
                f"{what}" + (f" ({n_fixed} are fixed)" if n_fixed else "")
            )
            if low > high:
                msg = f"k_features={wanted!r}: the minimum is greater than the maximum"
            raise ValueError(msg)
        return low, high

    def _start(self, job: Job) -> None:
        table = job.problem.table
        self.selection_ = job.selection
        self.plan_ = job.plan
        self.n_features = table.n_columns
        self.feature_names = None if table.names is None else list(table.names)
        self.feature_names_to_idx_mapper = (
            None
            if table.names is None
            else {name: column for column, name in enumerate(table.names)}
        )
        self.fixed_features_ = resolve_columns(self.fixed_features, table, what="fixed_features")
        self.fixed_features_group_set = set(job.search.fixed)
        self.feature_groups_ = [list(columns) for columns in job.problem.features]
        self.k_lb, self.k_ub = max(1, len(job.search.fixed)), job.search.n_features
        self.min_k, self.max_k = self._size_range(self.k_ub, len(job.search.fixed))
        self.is_parsimonious = self.k_features == "parsimonious"
        self.est_ = clone(self.estimator) if self.clone_estimator else self.estimator

    def finalize_fit(self) -> None:
        """Choose the subset from what has been decided; may be called any number of times."""
        selection = getattr(self, "selection_", None)
        if selection is None or not selection.rounds:
            msg = "nothing has been decided yet: call fit first"
            raise NotFittedError(msg)
        self.subsets_ = self._subsets(selection)
        chosen = self._chosen(selection)
        self.k_feature_idx_ = tuple(int(column) for column in chosen.subset)
        self.k_feature_names_ = self._labels(self.k_feature_idx_)
        self.k_score_ = np.float64(chosen.mean)
        self.fitted = True

    def _subsets(self, selection: Selection) -> dict[int, dict[str, Any]]:
        return {
            size: {
                "feature_idx": tuple(int(column) for column in done.subset),
                "cv_scores": np.array(done.fold_scores, dtype=np.float64),
                "avg_score": np.float64(done.mean),
                "feature_names": self._labels(done.subset),
            }
            for size, done in selection.by_size().items()
        }

    def _chosen(self, selection: Selection) -> Round:
        reached = selection.sizes
        low, high = self.min_k, self.max_k
        if not any(low <= size <= high for size in reached):
            last = selection.rounds[-1]
            why = "interrupted" if self.interrupted_ else f"stopped by tol={self.tol!r}"
            if selection.stop_reason == "time":
                why = f"stopped by max_seconds={self.max_seconds!r}"
            text = (
                f"the search was {why} at {last.n_features} features; k_features="
                f"{self.k_features!r} was not reached"
            )
            warn(text)
            return last
        if selection.stop_reason == "time":
            text = (
                f"the search was stopped by max_seconds={self.max_seconds!r} at "
                f"{selection.rounds[-1].n_features} features; the best of the sizes until then is "
                "taken"
            )
            warn(text)
        if self.is_parsimonious:
            return selection.parsimonious(low, high)
        return selection.best(low, high, ties="smallest" if self.forward else "largest")

    def _labels(self, columns: Sequence[int]) -> tuple[Hashable, ...]:
        if self.feature_names is None:
            return tuple(str(column) for column in columns)
        return tuple(self.feature_names[column] for column in columns)

    # ------------------------------------------------------------------ use

    def __sklearn_is_fitted__(self) -> bool:
        return self.fitted

    def _check_fitted(self) -> None:
        if not self.fitted:
            msg = f"this {type(self).__name__} is not fitted yet: call fit first"
            raise NotFittedError(msg)

    def transform(self, X: Any) -> Any:
        """Return the selected columns as an array, of a frame those with the selected labels.

        Parameters
        ----------
        X : array-like, data frame or Dask collection of shape (n_rows, n_columns)
            With the columns that were seen in fit; those of a frame in any order.

        Returns
        -------
        ndarray or Dask collection of shape (n_rows, n_selected)
            Of a Dask collection one of its kind, which nothing has been computed of.
        """
        self._check_fitted()
        refuse_files(X)
        assert self.k_feature_idx_ is not None
        assert self.k_feature_names_ is not None
        if is_dask(X):
            return selected_columns(X, self.k_feature_idx_, self.feature_names, self.n_features)
        labels = list(self.k_feature_names_)
        columns = getattr(X, "columns", None)
        if columns is not None and self.feature_names is not None:
            missing = [label for label in labels if label not in list(columns)]
            if missing:
                msg = f"X lacks the selected columns {missing[:5]}"
                raise ValueError(msg)
            return np.asarray(X[labels].to_numpy())
        array = X if hasattr(X, "shape") and columns is None else np.asarray(X)
        if array.ndim != 2:
            msg = f"X must have two dimensions, rows and columns; it has {array.ndim}"
            raise ValueError(msg)
        if array.shape[1] != self.n_features:
            msg = f"X has {array.shape[1]} columns, but {self.n_features} were seen in fit"
            raise ValueError(msg)
        return array[:, list(self.k_feature_idx_)]

    def fit_transform(self, X: Any, y: Any = None, groups: Any = None, **fit_params: Any) -> Any:
        """Fit, then transform the same X."""
        refuse_files(X)
        return self.fit(X, y, groups, **fit_params).transform(X)

    def get_metric_dict(self, confidence_interval: float = 0.95) -> dict[int, dict[str, Any]]:
        """Return `subsets_` with each size's spread over the folds.

        Parameters
        ----------
        confidence_interval : float, default=0.95
            Coverage of "ci_bound".

        Returns
        -------
        dict of int to dict
            With "std_dev" (over the folds, divisor n), "std_err" (divisor n - 1, over √n) and
            "ci_bound" (half width, from Student's t with n - 1 degrees of freedom); the latter two
            are NaN for a single fold.
        """
        self._check_fitted()
        table = deepcopy(self.subsets_)
        for entry in table.values():
            entry["ci_bound"], entry["std_dev"], entry["std_err"] = _spread(
                entry["cv_scores"], confidence_interval
            )
        return table


def _spread(
    scores: NDArray[np.float64], confidence: float
) -> tuple[np.float64, np.float64, np.float64]:
    from scipy.stats import t as student

    n = len(scores)
    deviation = np.float64(np.std(scores))
    if n < 2:
        return np.float64(np.nan), deviation, np.float64(np.nan)
    error = np.float64(np.std(scores, ddof=1) / np.sqrt(n))
    return error * np.float64(student.ppf((1 + confidence) / 2, n - 1)), deviation, error


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


class _Counter(LogMonitor):
    """Prints what mlxtend prints, to standard error."""

    def __init__(self, verbose: int, target: int, stream: TextIO | None = None) -> None:
        self.verbose = verbose
        self.target = target
        self.stream = sys.stderr if stream is None else stream

    def round(self, done: Round, rounds_left: int) -> None:
        super().round(done, rounds_left)
        if done.action == "start":
            return
        if self.verbose == 1:
            self.stream.write(f"\rFeatures: {done.n_features}/{self.target}")
        elif self.verbose > 1:
            now = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
            count = f"Features: {done.n_features}/{self.target}"
            self.stream.write(f"\n[{now}] {count} -- score: {done.mean}")
        if self.verbose:
            self.stream.flush()
