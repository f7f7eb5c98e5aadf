"""Which executor: the given client's cluster, the active one's, or this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dagsel.engines.base import Executor
from dagsel.executors.cluster import ClusterExecutor, active_client
from dagsel.executors.local import LocalExecutor

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["choose_executor", "runner"]


def choose_executor(client: Client | None, n_jobs: int | None) -> Executor:
    """Return where to run: the given client's cluster, the active one's, or this process.

    Inside a Dask task (a GridSearchCV run on a cluster, say) work stays in the task's process: a
    task that waits for tasks of its own could wait for ever.
    """
    if client is None and not _inside_task():
        client = active_client()
    return LocalExecutor(n_jobs) if client is None else ClusterExecutor(client)


def _inside_task() -> bool:
    import sys

    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


def runner(executor: Executor) -> Callable[[Callable[..., Any], Iterable[Any]], list[Any]]:
    """Return the `run` of `open_table` that scans files on an executor."""

    def run(function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        return executor.map(function, [(item,) for item in items], label="dagsel_scan")

    return run
