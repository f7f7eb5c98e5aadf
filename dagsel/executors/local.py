"""Tasks in this process, one after the other; batches of refits on several processes if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psutil
from joblib import Parallel, delayed, effective_n_jobs

from dagsel import tasks
from dagsel.data.blocks import Block
from dagsel.data.dask_blocks import compute_here
from dagsel.engines.base import Handle
from dagsel.monitor import TaskProgress

__all__ = ["LocalExecutor"]


class LocalExecutor:
    """Runs a task where it is submitted: handles are plain values.

    Parameters
    ----------
    n_jobs : int or None
        Processes for refits, with scikit-learn's meaning. The other engines use the cores through
        the array library.
    """

    in_process = True

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs
        self.n_workers = int(effective_n_jobs(n_jobs))
        self.progress = TaskProgress()

    def submit(
        self, function: Callable[..., Any], /, *args: Any, label: str, worker: int | None = None
    ) -> Handle:
        """Run the task; see `Executor.submit`."""
        del worker
        result = function(*args)
        self.progress.ended(label)
        return result

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """Return the handles, which are the values."""
        return list(handles)

    def settle(self, handles: Sequence[Handle]) -> None:
        """Return: tasks have ended when they have been submitted."""
        del handles

    def lost(self, error: BaseException) -> bool:
        """Return False: this process cannot lose data and live."""
        del error
        return False

    def map(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, label: str
    ) -> list[Any]:
        """Run every call; see `Executor.map`."""
        self.progress.expect(label, len(calls))
        results = []
        for result in self._run(function, calls):
            self.progress.ended(label)
            results.append(result)
        return results

    def _run(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterable[Any]:
        if self.n_workers == 1 or len(calls) == 1:
            return (function(*call) for call in calls)
        parallel = Parallel(n_jobs=self.n_jobs, return_as="generator")
        return parallel(delayed(function)(*call) for call in calls)  # type: ignore[no-any-return]

    def compute(self, *collections: Any) -> tuple[Any, ...]:
        """Compute Dask collections as `dask.compute` does; see `Executor.compute`."""
        return compute_here(*collections)

    def memory_per_worker(self) -> int | None:
        """Return the memory that is available on this machine now."""
        return int(psutil.virtual_memory().available)

    def load(self, block: Block, worker: int | None = None) -> Handle:
        """Return the payload; a Dask partition is computed by the task that reads it."""
        del worker
        return block.payload

    def forget(self, run: str) -> None:
        """Drop the run's states."""
        tasks.forget(run)
