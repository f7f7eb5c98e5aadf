"""`SequentialFeatureSelector` with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MetaEstimatorMixin
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectorMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import UNUSED, MetadataRouter
from sklearn.utils.validation import check_is_fitted

from dagsel.criterion import Criterion, CriterionName
from dagsel.criterion_rules import resolve_criterion
from dagsel.data.one_hot import Columns
from dagsel.engines.registry import EngineName
from dagsel.exceptions import DataError
from dagsel.features import features_of_columns, resolve_columns
from dagsel.front_door import HoldsClient, SelectsColumns, refuse_array
from dagsel.job import Job, open_job
from dagsel.metadata import routed, router, routing_enabled, unrouted
from dagsel.monitor import Monitor, monitor_for
from dagsel.opening import Categories
from dagsel.plan import Plan
from dagsel.results import Selection
from dagsel.rounds import Round
from dagsel.search import Search
from dagsel.sizes import choose, compares_sizes, is_number, size_range, target_size
from dagsel.warning import warn

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Selected", "SequentialFeatureSelector"]


class Selected(NamedTuple):
    """What a fit selects.

    Attributes
    ----------
    columns : tuple of int
        Ascending.
    n_features : int
        How many features they are: columns or, with feature groups, groups.
    mean : float or None
        Their mean score; `None` if no round was decided, so that nothing was removed or added.
    note : str or None
        What the user should know about the choice; it is in the selection's notes.
    """

    columns: tuple[int, ...]
    n_features: int
    mean: float | None
    note: str | None = None


class SequentialFeatureSelector(SelectsColumns, SelectorMixin, MetaEstimatorMixin, HoldsClient):
    """Sequential feature selection with the scores of cross-validated refits, without the refits.

    Backward elimination removes, round after round, the feature that the model can best do
    without; forward selection adds the one that helps most. Every candidate of every round is
    scored by cross-validation. For linear least squares the scores come from moments of the data
    (see `engine`) and equal those of refits up to rounding; any other estimator is refitted.

    Parameters
    ----------
    estimator : estimator object
        An unfitted scikit-learn compatible estimator. Never fitted itself.
    n_features_to_select : "auto", "best", "parsimonious", int, float or tuple, default="auto"
        Number of features to keep (of groups, with `feature_groups`); a fraction of them if a
        float between 0 and 1. "best" searches to the end and keeps the subset with the best score;
        "parsimonious" the smallest one whose score is within one standard error of the best; a
        tuple (min, max) the best one of such a size. "auto" keeps half, or as many as the scores
        justify, by `tol`, `patience` or p-values.
    tol : float, optional
        With ``n_features_to_select="auto"``: stop at the first move that does not raise the score
        by at least `tol`, without making it. The first backward move is compared with the full
        set, so nothing may be removed. May be negative in backward selection.
    step : int or float, default=1
        How many features a move moves: a number, or a fraction of those that can still be moved.
        The best of one round's scores are moved together, and the subset without (with) them is
        scored; the last move is cut to the number of features asked for. Candidates are not scored
        anew within a move, so more than 1 is faster and may select otherwise.
    patience : int, optional
        Stop after so many sizes in a row without a score better than the best so far. For "best",
        "parsimonious", ranges (whose sizes alone count) and "auto", which is then "best".
    max_seconds : float, optional
        Time budget of the search, reading the rows included. No round but the first is begun when
        it is used up; what to keep is then chosen from what was decided, with a `DagselWarning`.
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
    engine : {"auto", "moments", "rows", "refit"}, default="auto"
        "auto" takes the fastest engine that gives the refits' scores and falls back to refits,
        with a `DagselWarning`, where it cannot vouch for its numbers. "moments" is an error where
        that engine does not apply. "refit" always refits.
    client : distributed.Client, optional
        Where to run. `None` is the active Dask client if there is one, and this process if not.
        A cluster is never started or reconfigured.
    verbose : int, default=0
        1 prints rounds to standard error, at most about one a second: the first, the last and some
        of those between. Everything is logged to the logger "dagsel".
    criterion : str or Criterion, optional
        Judge a fit to all rows by this instead of cross-validation: "aic", "aicc", "bic",
        "adjusted_r2", "mallows_cp" or "p_value". "auto" then stops where no move improves it.
        With "p_value" the feature with the greatest p-value is removed (the one with the smallest
        is added), with "auto" only while it is at least (at most) `alpha`; p-values of two sizes
        cannot be compared.
    alpha : float, default=0.05
        Level of the test with ``criterion="p_value"``.
    audit : int, default=0
        Score so many of the decided rounds again by plain refits, and report the difference.
    weighted_scores : bool, default=False
        Whether the `sample_weight` that is given to `fit` also weights the test rows in scores.
        With scikit-learn's metadata routing the scorer asks for weights instead.
    categories : {"error", "one-hot"}, default="error"
        What becomes of columns of text or categories where numbers are needed. "one-hot" makes of
        each, in pandas and polars frames, a column of zeros and ones for every level that occurs;
        they move as one, and results speak of the column as it was. Files are then read as a
        whole. The estimator gets a frame of numbers.
    checkpoint : path or URL, optional
        Folder for a journal: every round is appended to it as soon as it is decided. `fit` with a
        folder that holds the journal of the same selection goes on where that ends, without
        scoring a decided round again; with the journal of another one it is an error that says
        what differs. See `dagsel.load_checkpoint`.

    Attributes
    ----------
    selection_ : Selection
        The path: every round's feature, scores, runner-up and time. If `fit` fails or is
        interrupted it holds the rounds decided until then.
    support_ : ndarray of bool of shape (n_features_in_,)
        Mask of the selected columns.
    n_features_to_select_ : int
        Number of features selected (of groups, with `feature_groups`). `set_size` chooses another
        from the path.
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

    # Routed on, and not for `set_fit_request` to be asked about.
    __metadata_request__fit = {"groups": UNUSED}  # noqa: RUF012

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
        step: int | float = 1,
        patience: int | None = None,
        max_seconds: float | None = None,
        criterion: CriterionName | Criterion | None = None,
        alpha: float = 0.05,
        audit: int = 0,
        weighted_scores: bool = False,
        categories: Categories = "error",
        checkpoint: str | os.PathLike[str] | None = None,
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
        self.step = step
        self.patience = patience
        self.max_seconds = max_seconds
        self.criterion = criterion
        self.alpha = alpha
        self.audit = audit
        self.weighted_scores = weighted_scores
        self.categories = categories
        self.checkpoint = checkpoint

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
        groups : array-like of shape (n_rows,) or str, optional
            Groups for a splitter such as `GroupKFold`, or the label of their column, which is then
            no feature.
        **fit_params
            Passed to the estimator's `fit`; those with one entry a row are sliced by fold.
            `sample_weight` (for the last step of a pipeline ``<step>__sample_weight``) may be the
            label of a column, which is then no feature. With scikit-learn's metadata routing
            enabled, parameters and groups go to the estimator, the splitter and the scorer as
            these request them.

        Returns
        -------
        self
            Fitted.

        Raises
        ------
        ValueError
            For parameters that make no sense or do not suit the data.
        TypeError, UnsetMetadataPassedError
            With metadata routing: for parameters that nobody requests.
        DataError
            For data that cannot be used; says which column and rows.
        ScoringError
            If no candidate of a round has a score.
        CheckpointError
            If `checkpoint` holds another selection, or cannot be read or written.
        """
        monitor = monitor_for(self.verbose)
        job = self._open(X, y, groups, fit_params, monitor)
        job.open_journal()
        self._start(job)
        try:
            job.run(monitor, self.max_seconds)
        finally:
            monitor.close()
        selected = self._conclude(job)
        if selected.note is not None:
            warn(selected.note)
        self._select(selected.columns, selected.n_features)
        return self

    def set_size(self, size: Any) -> Any:
        """Choose another size from the path of the last fit, without refitting.

        Parameters
        ----------
        size : int, "best", "parsimonious" or tuple
            Number of features (of groups, with `feature_groups`), of which the best subset on the
            path is taken; the rest has the meaning that it has for `n_features_to_select`, which
            is left as it is.

        Returns
        -------
        self
            With `support_` and `n_features_to_select_` of that size.

        Raises
        ------
        ValueError
            If the path has no such size.
        """
        check_is_fitted(self, "selection_")
        selection: Selection = self.selection_
        if not isinstance(size, bool) and isinstance(size, Integral):
            chosen = selection.best(int(size), int(size))
        elif not compares_sizes(size):
            msg = f"size must be a number, 'best', 'parsimonious' or (min, max); got {size!r}"
            raise ValueError(msg)
        else:
            self._check_comparable(size)
            limits = size_range(size, selection.n_features) if isinstance(size, tuple) else ()
            choice = selection.parsimonious if size == "parsimonious" else selection.best
            chosen = choice(*limits)
        self._select(chosen.subset, chosen.n_features)
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
        refuse_array(X, y)
        if routing_enabled():
            given = routed(self, groups, fit_params)
        else:
            given = unrouted(
                self.estimator,
                self.scoring,
                groups,
                fit_params,
                weighted_scores=self.weighted_scores,
            )
        return open_job(
            X,
            y,
            estimator=self.estimator,
            scoring=self.scoring,
            cv=5 if self.cv is None else self.cv,
            make_search=self._make_search,
            groups=given.groups,
            feature_groups=self.feature_groups,
            fit_params=given.fit,
            score_params=given.score,
            routing=given.routing,
            categories=self.categories,
            engine=self.engine,
            client=self.client,
            n_jobs=self.n_jobs,
            monitor=monitor,
            **self._extras(),
        )

    def _extras(self) -> dict[str, Any]:
        """Return what a job is only told where it is asked for."""
        extras: dict[str, Any] = {}
        if self.criterion is not None:
            extras.update(criterion=self.criterion, alpha=self.alpha)
        if self.audit:
            extras.update(audit=self.audit)
        if self.checkpoint is not None:
            extras.update(checkpoint=self.checkpoint)
        return extras

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
        if self.patience is not None and is_number(self.n_features_to_select):
            msg = (
                f"patience={self.patience!r} stops a search before it has reached the size asked "
                "for: use it with n_features_to_select='best', 'parsimonious', 'auto' or a range, "
                f"not {self.n_features_to_select!r}"
            )
            raise ValueError(msg)
        if self.max_seconds is not None and not self.max_seconds > 0:
            msg = f"max_seconds must be a number above 0, or None; got {self.max_seconds!r}"
            raise ValueError(msg)
        self._check_comparable(self.n_features_to_select)

    @property
    def _judge(self) -> Criterion | None:
        return None if self.criterion is None else resolve_criterion(self.criterion, self.alpha)

    @property
    def _scores_moves(self) -> bool:
        return self._judge is not None and self._judge.scores_moves

    def _check_comparable(self, size: Any) -> None:
        """Refuse sizes that are found by comparing scores which cannot be compared."""
        if self._scores_moves and compares_sizes(size):
            msg = (
                f"{size!r} is found by comparing the scores of sizes, but a p-value belongs to a "
                "move and not to a subset: use n_features_to_select='auto' or a number, or a "
                "criterion such as 'bic'"
            )
            raise ValueError(msg)

    def _make_search(self, table: Columns, features: tuple[tuple[int, ...], ...]) -> Search:
        n_features = len(features)
        if n_features < 2:
            msg = f"n_features = {n_features}: at least 2 features are needed to select from"
            raise DataError(msg)
        columns = resolve_columns(self.fixed_features, table, what="fixed_features")
        fixed = features_of_columns(columns, features, table.names, what="fixed_features")
        wanted = self.n_features_to_select
        backward = self.direction == "backward"
        limits = size_range(wanted, n_features, len(fixed)) if isinstance(wanted, tuple) else None
        tol, threshold = self._stops(backward)
        return Search(
            n_features,
            target_size=target_size(
                wanted,
                n_features=n_features,
                n_fixed=len(fixed),
                direction=self.direction,
                open_ended=not (tol is None and threshold is None and self.patience is None),
            ),
            direction=self.direction,
            floating=self.floating,
            fixed=fixed,
            tie_rule="lowest",
            tol=tol,
            # A feature that adds nothing is not added; one that nothing is lost with leaves.
            strict=self.criterion is not None and not backward,
            threshold=threshold,
            step=self.step,
            patience=self.patience,
            patience_from=None if limits is None else limits[1 if backward else 0],
            # Scored even where only `tol` needs it: the path shows what the selection cost. A
            # p-value is that of a move, so that a start has none.
            score_start=not self._scores_moves,
        )

    def _stops(self, backward: bool) -> tuple[float | None, float | None]:
        """Return the gain and the score that a move must have."""
        auto = isinstance(self.n_features_to_select, str) and self.n_features_to_select == "auto"
        if self._judge is None or not auto:
            return self.tol, None
        if self._judge.scores_moves:
            return self.tol, self._judge.threshold(removal=backward)
        improving = 0.0 if self.tol is None and self.patience is None else self.tol
        return improving, None

    def _start(self, job: Job) -> None:
        self.selection_ = job.selection
        self.plan_ = job.plan
        self._begin_fit(job.columns, ("support_", "n_features_to_select_"))

    def _conclude(self, job: Job) -> Selected:
        """Choose from what a job has decided."""
        selection = job.selection
        if not selection.rounds:  # the first move was already one too many
            subset = job.search.subset
            return Selected(job.columns_of(subset), len(subset), None)
        patient = self.patience is not None and self.tol is None
        chosen = choose(selection, self.n_features_to_select, patient=patient)
        note = None
        if selection.stop_reason == "time":
            note = self._explain_time(job, chosen)
            selection.notes.append(note)
        return Selected(chosen.subset, chosen.n_features, chosen.mean, note)

    def _explain_time(self, job: Job, chosen: Round) -> str:
        selection = job.selection
        reached = selection.rounds[-1].n_features
        wanted = self.n_features_to_select
        text = (
            f"the time budget of {self.max_seconds:g} s was used up at {reached} of "
            f"{selection.n_features} features"
        )
        if compares_sizes(wanted) or (self.patience is not None and self.tol is None):
            text += f"; the {chosen.n_features} selected are chosen from the sizes reached"
            if isinstance(wanted, tuple):
                low, high = size_range(wanted, selection.n_features)
                if not low <= chosen.n_features <= high:
                    text += f", none of which is from {low} to {high}"
            return text
        return f"{text}, which are selected; the search was on its way to {job.search.target_size}"

    def _select(self, columns: Sequence[int], n_features: int) -> None:
        self.support_ = np.zeros(self.n_features_in_, dtype=np.bool_)
        self.support_[list(columns)] = True
        self.n_features_to_select_ = n_features

    def _get_support_mask(self) -> NDArray[np.bool_]:
        if not hasattr(self, "support_") and hasattr(self, "selection_"):
            raise NotFittedError(_explain_early_end(len(self.selection_.rounds)))
        check_is_fitted(self, "support_")
        return self.support_

    def get_metadata_routing(self) -> MetadataRouter:
        """Return what is routed where; see scikit-learn's user guide on metadata routing."""
        return router(self)

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


def _explain_early_end(n_rounds: int) -> str:
    """Say that a fit has not come to its end, and what there is of it."""
    if not n_rounds:
        return "fit was ended before a round was decided, so nothing is selected: call it again"
    rounds = "one round" if n_rounds == 1 else f"{n_rounds} rounds"
    return (
        f"fit was ended before it had selected. selection_ holds the {rounds} decided until then: "
        "set_size(number of features), set_size('best') or set_size('parsimonious') selects from "
        "them"
    )
