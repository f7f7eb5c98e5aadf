"""What an engine is: how the candidates of a round are scored.

An engine brings three pure functions, and the scheduler decides where they run:

* `prepare` turns the data into what the workers hold, one piece of resident data per shard;
* `open` turns a shard's resident data into the state for the subset that the search starts from;
* `score` answers a request from a state, and `moved` carries a state to another subset.

Because a state can always be made anew from the resident data, and resident data from the blocks,
any worker can run any task at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dagsel.data.blocks import Block, Table
from dagsel.data.folds import Folds
from dagsel.monitor import TaskProgress
from dagsel.search import Request

__all__ = ["Axis", "Engine", "Executor", "Handle", "Problem", "ScoreTable", "Scoring"]

Axis = Literal["folds", "candidates"]
Handle = Any  # a value (in process) or a Dask future


class ScoreTable(NamedTuple):
    """Scores of a request.

    Attributes
    ----------
    scores : ndarray of shape (n_candidates, n_folds)
        Greater is better. One row if the request asks for the subset itself.
    rounding : float
        Mean scores that differ by no more than this cannot be told apart.
    failures : tuple of str
        Texts of errors behind NaN scores, the first only.
    """

    scores: NDArray[np.float64]
    rounding: float
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scoring:
    """A metric: its name, and the scikit-learn scorer that computes it."""

    name: str
    scorer: Callable[..., float] = field(repr=False)


@dataclass(frozen=True)
class Problem:
    """What is to be selected from, and by what measure.

    Attributes
    ----------
    table : Table
        Features and target.
    folds : Folds
        Drawn once: every candidate meets the same rows.
    estimator : estimator object
        Never fitted itself; clones are.
    scoring : Scoring
        Metric.
    features : tuple of tuple of int
        The columns that move as one; mostly one column each.
    fit_params : mapping
        Passed to the estimator's `fit`, sliced by rows where they have one entry a row.
    clone_estimator : bool
        Whether refits fit clones of the estimator, or the estimator itself.
    """

    table: Table
    folds: Folds
    estimator: Any
    scoring: Scoring
    features: tuple[tuple[int, ...], ...]
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    clone_estimator: bool = True

    def columns_of(self, subset: Sequence[int]) -> tuple[int, ...]:
        """Columns of a subset of features, ascending."""
        return tuple(sorted(column for feature in subset for column in self.features[feature]))


class Executor(Protocol):
    """Where tasks run: in this process, or on a Dask cluster."""

    @property
    def n_workers(self) -> int:
        """How many tasks can usefully run side by side."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether tasks run in this process, at once, with handles that are plain values."""
        ...

    @property
    def progress(self) -> TaskProgress:
        """Counts the tasks that have ended."""
        ...

    def submit(
        self, function: Callable[..., Any], /, *args: Any, label: str, worker: int | None = None
    ) -> Handle:
        """Start `function(*args)`, preferably on `worker`. Arguments may hold handles in lists."""
        ...

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """Wait for results; an error in a task is raised here with its own class."""
        ...

    def settle(self, handles: Sequence[Handle]) -> None:
        """Wait until tasks have ended, well or not, without fetching their results."""
        ...

    def lost(self, error: BaseException) -> bool:
        """Tell whether an error means that data on a worker are gone and must be sent again."""
        ...

    def map(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, label: str
    ) -> list[Any]:
        """Run `function(*call)` for every call, side by side; results in the order of `calls`."""
        ...

    def compute(self, *collections: Any) -> tuple[Any, ...]:
        """Return the values of Dask collections, which fit into this process's memory."""
        ...

    def load(self, block: Block, worker: int | None = None) -> Handle:
        """Bring a block's payload to a worker (or leave it to the task, if it is a file)."""
        ...

    def forget(self, run: str) -> None:
        """Drop the states that workers keep for a run."""
        ...


class Engine(Protocol):
    """A way of scoring. Instances are small: they travel with every task."""

    @property
    def name(self) -> str:
        """Name by which users ask for it."""
        ...

    @property
    def axis(self) -> Axis:
        """What the scheduler may divide between shards."""
        ...

    def prepare(
        self, problem: Problem, executor: Executor, subset: tuple[int, ...], n_shards: int
    ) -> list[Handle]:
        """Start making the resident data, one handle per shard.

        With the axis "folds" the shards hold consecutive runs of folds; with "candidates" there
        is one handle, which every worker fetches once.
        """
        ...

    def open(self, resident: Any) -> Any:
        """Make the state for the starting subset from a shard's resident data."""
        ...

    def moved(self, state: Any, subset: tuple[int, ...]) -> Any | None:
        """Carry a state to another subset; `None` if it has to be made anew."""
        ...

    def score(self, state: Any, request: Request) -> ScoreTable:
        """Score a request for the shard's folds. The state must be at the request's subset.

        Raises
        ------
        NotCertifiedError
            If the numbers could be wrong by more than rounding.
        """
        ...
