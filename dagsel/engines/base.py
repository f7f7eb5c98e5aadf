"""What an engine is: how the candidates of a round are scored.

An engine submits the tasks of one step, and brings pure functions for the scheduler to run:

* `prepare` has the data turned into what the workers hold, one piece of resident data per shard;
* `open` turns a shard's resident data into the state for the subset that the search starts from;
* `score` answers a request from a state, and `moved` carries a state to another subset.

Because a state can always be made anew from the resident data, and resident data from the blocks,
any worker can run any task at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dagsel.criterion import Criterion
from dagsel.data.blocks import Block, Table
from dagsel.data.columns import is_weight
from dagsel.data.folds import Folds
from dagsel.monitor import TaskProgress
from dagsel.search import Request, Search

__all__ = ["Axis", "Cost", "Engine", "Executor", "Handle", "Problem", "ScoreTable", "Scoring"]

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
    """A metric: its name, and the scikit-learn scorer that computes it.

    With a criterion there is one fold, in which all rows are training and test rows, and the
    criterion takes the scorer's place.
    """

    name: str
    scorer: Callable[..., float] = field(repr=False)
    criterion: Criterion | None = None


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
    score_params : mapping
        Passed to the scorer, sliced by rows like `fit_params`.
    """

    table: Table
    folds: Folds
    estimator: Any
    scoring: Scoring
    features: tuple[tuple[int, ...], ...]
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    clone_estimator: bool = True
    score_params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sample_weight(self) -> NDArray[np.float64] | None:
        """Weight of every row in fits, of shape (n_rows,); `None` where no weights are given."""
        return _weight(self.fit_params)

    @property
    def score_weight(self) -> NDArray[np.float64] | None:
        """Weight of every row in scores, of shape (n_rows,); `None` where none are given."""
        return _weight(self.score_params)

    def columns_of(self, subset: Sequence[int]) -> tuple[int, ...]:
        """Columns of a subset of features, ascending."""
        return tuple(sorted(column for feature in subset for column in self.features[feature]))


def _weight(parameters: Mapping[str, Any]) -> NDArray[np.float64] | None:
    for name, value in parameters.items():
        if is_weight(name) and value is not None:
            return np.asarray(value, dtype=np.float64)
    return None


class Cost(NamedTuple):
    """What an engine needs for a problem.

    Attributes
    ----------
    n_pieces : int
        How many equal pieces the resident data can be divided into, each on one worker.
    piece_bytes : int
        Bytes of a piece on the worker that holds it.
    everywhere_bytes : int
        Bytes that every worker holds besides.
    operations : float
        Estimated floating point operations; NaN where the engine cannot tell.
    what : str
        What is resident, for messages: "the moments of 5 folds".
    remedy : str
        What to do where it does not fit: "use more workers, or fewer columns".
    """

    n_pieces: int
    piece_bytes: int
    everywhere_bytes: int
    operations: float
    what: str
    remedy: str


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

    def memory_per_worker(self) -> int | None:
        """Return the bytes that one worker may use for resident data, `None` if nobody knows."""
        ...

    def load(self, block: Block, worker: int | None = None) -> Handle:
        """Bring a block's payload to a worker (or leave it to the task, if it is a file)."""
        ...

    def forget(self, run: str) -> None:
        """Drop the states that workers keep for a run."""
        ...


class Engine(Protocol):
    """A way of scoring. Instances are small: they travel with every task."""

    #: Name by which users ask for it.
    name: ClassVar[str]
    #: What the scheduler may divide between shards.
    axis: ClassVar[Axis]
    #: Why a plan takes it where it applies, in a few words.
    summary: ClassVar[str]

    @staticmethod
    def declines(problem: Problem) -> str | None:
        """Say why this engine is not made for a problem; `None` if it is, data permitting."""
        ...

    @staticmethod
    def refuses(problem: Problem) -> str | None:
        """Say why it cannot score a problem that it is made for, as far as sizes tell."""
        ...

    @classmethod
    def for_problem(cls, problem: Problem, search: Search) -> Engine:
        """Make the engine for a problem that it does not decline."""
        ...

    @staticmethod
    def cost(problem: Problem, search: Search, executor: Executor) -> Cost:
        """Say what must be resident, and what the work is."""
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
