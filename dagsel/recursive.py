"""`RFE` and `RFECV` with scikit-learn's conventions: the least important columns leave first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MetaEstimatorMixin, clone, is_classifier
from sklearn.feature_selection import SelectorMixin
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.metadata_routing import (
    UNUSED,
    MetadataRouter,
    MethodMapping,
    process_routing,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dagsel.data.blocks import Table
from dagsel.data.dask_blocks import is_dask
from dagsel.data.frames import is_frame
from dagsel.elimination import (
    EliminationEngine,
    EliminationJob,
    best_size,
    cv_results,
    open_elimination,
)
from dagsel.engines.base import Scoring
from dagsel.engines.paths.elimination import EliminationPath, step_sizes
from dagsel.engines.paths.refit import ImportanceGetter
from dagsel.exceptions import DataError
from dagsel.executors.choice import choose_executor
from dagsel.features import resolve_columns
from dagsel.front_door import HoldsClient, SelectsColumns, refuse_array
from dagsel.metadata import routing_enabled
from dagsel.scoring import metric_scoring
from dagsel.warning import warn

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["RFE", "RFECV"]


def _inner_has(method: str) -> Callable[[Any], bool]:
    """Return a check for `available_if`: what the estimator can do, its selector can."""

    def check(selector: Any) -> bool:
        getattr(getattr(selector, "estimator_", selector.estimator), method)
        return True

    return check


class RFE(SelectsColumns, SelectorMixin, MetaEstimatorMixin, HoldsClient):
    """Recursive feature elimination: scikit-learn's `RFE`, without its refits for linear models.

    The estimator is fitted on all columns, the `step` least important ones leave, and so on until
    `n_features_to_select` are left. For `LinearRegression`, `Ridge` and `RidgeClassifier`, also
    after a `StandardScaler`, importances are squared coefficients, and the coefficients of every
    model on the way follow without refits. Any other estimator is refitted at each step, as in
    scikit-learn.

    Parameters
    ----------
    estimator : estimator object
        An unfitted scikit-learn compatible estimator that tells how much its columns matter. Never
        fitted itself.
    n_features_to_select : int or float, optional
        Number of columns to keep; a fraction of all if a float in (0, 1]; half of them by default.
    step : int or float, default=1
        Number of columns to remove at a time; a fraction of those at the start if a float in
        (0, 1), rounded down, but at least 1. The last step removes fewer if need be.
    verbose : int, default=0
        1 prints a line a path to standard error.
    importance_getter : str or callable, default="auto"
        "auto": the fitted estimator's `coef_`, or else its `feature_importances_`. Any other text
        is the path to an attribute, such as ``"named_steps.model.coef_"``. A callable gets the
        fitted estimator and returns an importance for every column. Importances are squared, and
        summed over classes or targets.
    fixed_features : sequence of int or str, optional
        Columns that never leave.
    engine : {"auto", "moments", "rows", "refit"}, default="auto"
        "auto" takes the fastest way that gives the refits' coefficients and scores: moments of the
        rows, or else factors of them; it falls back to refits, with a `DagselWarning`, where
        neither can vouch for its numbers. "moments" and "rows" are an error where they do not
        apply. "refit" always refits.
    client : distributed.Client, optional
        Where to run. `None` is the active Dask client if there is one, and this process if not.

    Attributes
    ----------
    estimator_ : estimator object
        Fitted by scikit-learn itself on the selected columns, in the caller's types. Missing, with
        a warning, if these columns do not fit into this process's memory.
    support_ : ndarray of bool of shape (n_features_in_,)
        Mask of the selected columns.
    ranking_ : ndarray of int of shape (n_features_in_,)
        1 for selected columns, 2 for those that left in the last step, and so on.
    n_features_ : int
        Number of selected columns.
    n_features_in_ : int
        Columns seen during fit.
    feature_names_in_ : ndarray of str of shape (n_features_in_,)
        Their names, if all are strings.
    engine_ : str
        What the importances came from: "moments", "rows" or "refit".

    Notes
    -----
    Where several columns have equal importances the first leaves first. Importances whose
    difference is rounding count as equal; which of them leaves is then not a matter of noise.

    Examples
    --------
    >>> from dagsel import RFE
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> selector = RFE(LinearRegression(), n_features_to_select=5).fit(X, y)
    >>> selector.ranking_
    array([6, 2, 1, 1, 1, 1, 4, 3, 1, 5])
    """

    def __init__(
        self,
        estimator: Any,
        *,
        n_features_to_select: Any = None,
        step: Any = 1,
        verbose: int = 0,
        importance_getter: ImportanceGetter = "auto",
        fixed_features: Sequence[Any] | None = None,
        engine: EliminationEngine = "auto",
        client: Client | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_features_to_select = n_features_to_select
        self.step = step
        self.verbose = verbose
        self.importance_getter = importance_getter
        self.fixed_features = fixed_features
        self.engine = engine
        self.client = client

    @property
    def classes_(self) -> Any:
        """Class labels, if the estimator is a classifier."""
        return self.estimator_.classes_

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Eliminate columns, and fit the estimator on those that are left.

        Parameters
        ----------
        X : array-like, data frame, Dask collection, Scan or path of shape (n_rows, n_columns)
            Features; see `dagsel.SequentialFeatureSelector.fit`.
        y : array-like of shape (n_rows,) or (n_rows, n_targets), or label
            Target. A label, or a list of labels, names columns of X.
        **fit_params
            Passed to the estimator's `fit`; those with one entry a row are sliced by fold. With
            scikit-learn's metadata routing enabled they are routed instead.

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
            For importances that are NaN, or of which there is not one for each column.
        """
        if routing_enabled():
            fit_params = process_routing(self, "fit", **fit_params).estimator.fit
        # Nothing is scored, but only with a metric they know do fast engines take part.
        scoring = metric_scoring("accuracy" if is_classifier(self.estimator) else "r2")
        job = self._open(X, y, "none", scoring, fit_params=fit_params)
        target = self._target_size(job.problem.table.n_columns, len(job.fixed))
        sizes = step_sizes(job.problem.table.n_columns, target, self._step(job.problem.table))
        _, path = job.paths(sizes, lambda _: target)
        self._finish(job, path)
        return self

    def _open(self, X: Any, y: Any, cv: Any, scoring: Scoring, **options: Any) -> EliminationJob:
        refuse_array(X, y, into_folds=not (isinstance(cv, str) and cv == "none"))
        getter: Any = self.importance_getter
        if not isinstance(getter, str) and not callable(getter):
            msg = f"importance_getter must be a string or callable; got {getter!r}"
            raise ValueError(msg)
        job = open_elimination(
            X,
            y,
            estimator=self.estimator,
            scoring=scoring,
            cv=cv,
            getter=getter,
            engine=self.engine,
            client=self.client,
            verbose=self.verbose,
            **options,
        )
        table = job.problem.table
        if table.n_columns < 2:
            msg = f"n_features = {table.n_columns}: a minimum of 2 is required to select from"
            raise DataError(msg)
        job.fixed = resolve_columns(self.fixed_features, table, what="fixed_features")
        self._begin_fit(table, ("estimator_", "support_", "ranking_", "cv_results_"))
        return job

    def _target_size(self, n_columns: int, n_fixed: int) -> int:
        wanted: Any = self.n_features_to_select
        if wanted is None:
            return max(n_columns // 2, n_fixed)
        if not _is_number(wanted, Real) or not wanted > 0:
            msg = f"n_features_to_select must be None or a number above 0; got {wanted!r}"
            raise ValueError(msg)
        if _is_number(wanted, Integral):
            if wanted > n_columns:
                _warn_keeps_all("n_features_to_select", int(wanted), n_columns)
            size = min(int(wanted), n_columns)
        elif wanted <= 1:
            size = int(n_columns * float(wanted))
        else:
            msg = f"n_features_to_select={wanted!r}: a fraction must be in (0, 1]"
            raise ValueError(msg)
        if size < max(1, n_fixed):
            msg = (
                f"n_features_to_select={wanted!r} is {size} of {n_columns} columns, {n_fixed} of "
                f"them fixed: it must be at least {max(1, n_fixed)}"
            )
            raise ValueError(msg)
        return size

    def _step(self, table: Table) -> int:
        step: Any = self.step
        if _is_number(step, Integral) and step >= 1:
            return int(step)
        if _is_number(step, Real) and 0 < step < 1:
            return max(1, int(float(step) * table.n_columns))
        msg = f"step must be a whole number of at least 1, or a fraction in (0, 1); got {step!r}"
        raise ValueError(msg)

    def _finish(self, job: EliminationJob, path: EliminationPath) -> None:
        self.support_ = path.support()
        self.ranking_ = path.ranking()
        self.n_features_ = int(np.count_nonzero(self.support_))
        self.engine_ = job.used
        columns = np.flatnonzero(self.support_).tolist()
        rows = job.selected(columns)
        if rows is None:
            text = (
                f"the {len(columns)} selected columns do not fit into this process's memory, so "
                "estimator_ is not fitted; support_ and ranking_ are complete"
            )
            warn(text)
            return
        self.estimator_ = clone(self.estimator).fit(*rows, **job.problem.fit_params)

    def _reduced(self, X: Any) -> Any:
        """Return the selected columns, of a frame as a frame, so that the estimator knows them.

        Those of a Dask collection are computed: the estimator is scikit-learn's.
        """
        check_is_fitted(self, "estimator_")
        if not is_frame(X):
            return self._computed(self.transform(X))
        validate_data(self, X, reset=False, skip_check_array=True)
        return _safe_indexing(X, np.flatnonzero(self.support_).tolist(), axis=1)

    def _computed(self, values: Any) -> Any:
        """Return the values of a Dask collection; anything else as it is."""
        return choose_executor(self.client, None).compute(values)[0] if is_dask(values) else values

    @available_if(_inner_has("predict"))
    def predict(self, X: Any, **predict_params: Any) -> Any:
        """Predict by the selected columns.

        Parameters
        ----------
        X : array-like, data frame or Dask collection of shape (n_rows, n_features_in_)
            All columns. The selected ones of a Dask collection are computed.
        **predict_params
            Routed to the estimator's `predict`, with metadata routing enabled.
        """
        reduced = self._reduced(X)
        params = _routed(self, "predict", "estimator", predict_params)
        return self.estimator_.predict(reduced, **params)

    @available_if(_inner_has("score"))
    def score(self, X: Any, y: Any, **score_params: Any) -> Any:
        """Return the score of the estimator on the selected columns.

        Parameters
        ----------
        X : array-like, data frame or Dask collection of shape (n_rows, n_features_in_)
            All columns. The selected ones of a Dask collection are computed.
        y : array-like
            Target.
        **score_params
            Passed to the estimator's `score`.
        """
        reduced = self._reduced(X)
        if routing_enabled():
            score_params = process_routing(self, "score", **score_params).estimator.score
        return self.estimator_.score(reduced, self._computed(y), **score_params)

    @available_if(_inner_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Return the estimator's decision function on the selected columns of X."""
        reduced = self._reduced(X)
        return self.estimator_.decision_function(reduced)

    @available_if(_inner_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Return the estimator's class probabilities on the selected columns of X."""
        reduced = self._reduced(X)
        return self.estimator_.predict_proba(reduced)

    @available_if(_inner_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> Any:
        """Return the estimator's class log-probabilities on the selected columns of X."""
        reduced = self._reduced(X)
        return self.estimator_.predict_log_proba(reduced)

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self, "support_")
        return self.support_

    def get_metadata_routing(self) -> Any:
        """Return what is routed where; see scikit-learn's user guide on metadata routing."""
        methods = MethodMapping()
        for name in ("fit", "predict", "score"):
            methods = methods.add(caller=name, callee=name)
        return MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=methods)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = deepcopy(inner.classifier_tags)
        tags.regressor_tags = deepcopy(inner.regressor_tags)
        for each in (tags.classifier_tags, tags.regressor_tags):
            if each is not None:
                each.poor_score = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = inner.target_tags.multi_output
        # A pipeline does not tell whether it imputes.
        tags.input_tags.allow_nan = inner.input_tags.allow_nan or isinstance(
            self.estimator, Pipeline
        )
        tags.input_tags.sparse = False
        return tags


class RFECV(RFE):
    """Recursive feature elimination that chooses the number of columns by cross-validation.

    Every fold has its own path: in each the columns leave by their importances in its training
    rows, and every size is scored on its test rows. The size with the best mean score is chosen, of
    equal ones the smallest, and `RFE` on all rows says which columns these are. Paths of different
    folds run side by side on a Dask cluster.

    Parameters
    ----------
    estimator : estimator object
        See `RFE`.
    step : int or float, default=1
        See `RFE`.
    min_features_to_select : int, default=1
        The smallest number of columns that is scored; never fewer than are fixed.
    cv : int, splitter, iterable or None, default=None
        Folds, as in scikit-learn; `None` is 5. Drawn once.
    scoring : str, callable or None, default=None
        Metric, as in scikit-learn; `None` is accuracy for classifiers and R² for others.
    verbose : int, default=0
        1 prints a line a path to standard error.
    n_jobs : int, optional
        Processes for refits when there is no Dask client, as in scikit-learn.
    importance_getter, fixed_features, engine, client
        See `RFE`.

    Attributes
    ----------
    cv_results_ : dict of ndarray
        By ascending number of columns: "n_features", "mean_test_score", "std_test_score" and, for
        each fold i, "split{i}_test_score", and of shape (n_sizes, n_features_in_)
        "split{i}_ranking" and "split{i}_support".
    estimator_, support_, ranking_, n_features_, n_features_in_, feature_names_in_, engine_
        See `RFE`.

    Notes
    -----
    The sets of columns differ between folds, so that ``mean_test_score`` is the score of the
    procedure and not that of the selected columns.

    Examples
    --------
    >>> from dagsel import RFECV
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> selector = RFECV(LinearRegression(), min_features_to_select=3).fit(X, y)
    >>> selector.n_features_
    6
    """

    # What `cv` splits by is no parameter of a fit, for `set_fit_request` to be asked about.
    __metadata_request__fit = {"groups": UNUSED}  # noqa: RUF012

    def __init__(
        self,
        estimator: Any,
        *,
        step: Any = 1,
        min_features_to_select: int = 1,
        cv: Any = None,
        scoring: Any = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        importance_getter: ImportanceGetter = "auto",
        fixed_features: Sequence[Any] | None = None,
        engine: EliminationEngine = "auto",
        client: Client | None = None,
    ) -> None:
        self.estimator = estimator
        self.step = step
        self.min_features_to_select = min_features_to_select
        self.cv = cv
        self.scoring = scoring
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.importance_getter = importance_getter
        self.fixed_features = fixed_features
        self.engine = engine
        self.client = client

    def fit(self, X: Any, y: Any = None, groups: Any = None, **fit_params: Any) -> Any:
        """Choose the number of columns, eliminate the others, and fit the estimator on the rest.

        Parameters
        ----------
        X : array-like, data frame, Dask collection, Scan or path of shape (n_rows, n_columns)
            Features; see `dagsel.SequentialFeatureSelector.fit`.
        y : array-like of shape (n_rows,) or (n_rows, n_targets), or label
            Target. A label, or a list of labels, names columns of X.
        groups : array-like of shape (n_rows,) or str, optional
            Groups for a splitter such as `GroupKFold`, or the label of their column, which is then
            no feature.
        **fit_params
            Passed to the estimator's `fit`; those with one entry a row are sliced by fold. With
            scikit-learn's metadata routing enabled they are routed to estimator, scorer and `cv`.

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
            For importances that are NaN, or where every size has a NaN score in some fold.
        """
        score_params: dict[str, Any] = {}
        if routing_enabled():
            given = fit_params if groups is None else {**fit_params, "groups": groups}
            routed = process_routing(self, "fit", **given)
            fit_params, score_params = routed.estimator.fit, routed.scorer.score
            groups = routed.splitter.split.get("groups")
        job = self._open(
            X,
            y,
            5 if self.cv is None else self.cv,
            metric_scoring(self._scorer_name()),
            groups=groups,
            fit_params=fit_params,
            score_params=score_params,
            n_jobs=self.n_jobs,
        )
        n_columns = job.problem.table.n_columns
        least = self._least(n_columns, len(job.fixed))
        sizes = step_sizes(n_columns, least, self._step(job.problem.table))
        by_fold, path = job.paths(sizes, best_size)
        self._finish(job, path)
        self.cv_results_ = cv_results(by_fold)
        return self

    def _least(self, n_columns: int, n_fixed: int) -> int:
        least: Any = self.min_features_to_select
        if not _is_number(least, Integral) or least < 1:
            msg = f"min_features_to_select must be a whole number of at least 1; got {least!r}"
            raise ValueError(msg)
        if least > n_columns:
            _warn_keeps_all("min_features_to_select", int(least), n_columns)
        return min(max(int(least), n_fixed), n_columns)

    def score(self, X: Any, y: Any, **score_params: Any) -> Any:
        """Return the score, by `scoring`, of predictions from the selected columns.

        Parameters
        ----------
        X : array-like, data frame or Dask collection of shape (n_rows, n_features_in_)
            All columns. The selected ones of a Dask collection are computed.
        y : array-like
            Target.
        **score_params
            Routed to the scorer, with metadata routing enabled.
        """
        check_is_fitted(self, "estimator_")
        params = _routed(self, "score", "scorer", score_params)
        return get_scorer(self._scorer_name())(self, X, self._computed(y), **params)

    def _scorer_name(self) -> Any:
        if self.scoring is None:
            return "accuracy" if is_classifier(self.estimator) else "r2"
        return self.scoring

    def get_metadata_routing(self) -> Any:
        """Return what is routed where; see scikit-learn's user guide on metadata routing."""
        fits = MethodMapping().add(caller="fit", callee="fit")
        scores = MethodMapping().add(caller="fit", callee="score")
        return (
            MetadataRouter(owner=self)
            .add(
                estimator=self.estimator,
                method_mapping=fits.add(caller="predict", callee="predict"),
            )
            .add(
                splitter=check_cv(self.cv),
                method_mapping=MethodMapping().add(caller="fit", callee="split"),
            )
            .add(
                scorer=get_scorer(self._scorer_name()),
                method_mapping=scores.add(caller="score", callee="score"),
            )
        )


def _is_number(value: Any, kind: type[Any]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _routed(selector: Any, method: str, consumer: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return what a method passes on, which without metadata routing is nothing."""
    if routing_enabled():
        passed: dict[str, Any] = process_routing(selector, method, **params)[consumer][method]
        return passed
    if params:
        msg = (
            f"{method} was given {', '.join(params)}, which it passes on only with "
            "sklearn.set_config(enable_metadata_routing=True)"
        )
        raise ValueError(msg)
    return {}


def _warn_keeps_all(name: str, wanted: int, n_columns: int) -> None:
    text = (
        f"Found {name}={wanted} > n_features={n_columns}. There will be no feature selection and "
        "all features will be kept."
    )
    warn(text, UserWarning)
