"""Tasks on a Dask cluster that somebody else started."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from dagsel import tasks
from dagsel.data.blocks import Block
from dagsel.engines.base import Handle
from dagsel.exceptions import DagselError
from dagsel.executors.same_versions import check_workers
from dagsel.monitor import TaskProgress

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ClusterExecutor", "WorkersLostError", "active_client"]

# Seconds.
_WAIT_FOR_WORKERS = 60.0
_PATIENCE = 5.0

logger = logging.getLogger("dagsel")

# Workers that were found to have what tasks need.
_checked: WeakKeyDictionary[Client, set[str]] = WeakKeyDictionary()


class WorkersLostError(DagselError):
    """A connection broke while tasks or rows were sent, or results fetched."""


class ClusterExecutor:
    """Runs tasks through a Dask client.

    Every task is pure and prefers a worker without insisting on it, so Dask may retry it or run it
    elsewhere. Workers that join during a run take part from its next phase on.

    Parameters
    ----------
    client : distributed.Client
        Synchronous. Nothing about it or its cluster is reconfigured.
    """

    in_process = False

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            msg = (
                "the Dask client is asynchronous; give dagsel a synchronous one "
                "(Client(...) without asynchronous=True), for example from a thread"
            )
            raise TypeError(msg)
        self.client = client
        self.run = uuid4().hex[:8]
        self.progress = TaskProgress()
        self._count = 0

    @property
    def n_workers(self) -> int:
        """Workers now on the cluster; waits for the first."""
        with self._communicating():
            return len(self._addresses())

    def _addresses(self) -> list[str]:
        # nthreads() lists every worker on all versions; scheduler_info() used to list five.
        addresses = sorted(self.client.nthreads())
        if not addresses:
            try:
                self.client.wait_for_workers(1, timeout=_WAIT_FOR_WORKERS)
            except TimeoutError:
                raise DagselError(self._no_workers()) from None
            addresses = sorted(self.client.nthreads())
        known = _checked.setdefault(self.client, set())
        new = [address for address in addresses if address not in known]
        if new:
            check_workers(self.client, new)
            known.update(new)
        return addresses

    def submit(
        self, function: Callable[..., Any], /, *args: Any, label: str, worker: int | None = None
    ) -> Handle:
        """Submit the task; see `Executor.submit`."""
        self._count += 1
        placement = {}
        with self._communicating():
            if worker is not None:
                addresses = self._addresses()
                # A preference, not a pin: a pinned task hangs for ever when its worker dies.
                placement = {
                    "workers": [addresses[worker % len(addresses)]],
                    "allow_other_workers": True,
                }
            future = self.client.submit(
                function, *args, key=f"{label}-{self.run}-{self._count}", pure=False, **placement
            )
        if label in self.progress.NAMES:
            future.add_done_callback(lambda _: self.progress.ended(label))
        return future

    def gather(self, handles: Sequence[Handle]) -> list[Any]:
        """Wait for the futures; see `Executor.gather`.

        Raises
        ------
        DagselError
            If the scheduler cannot be reached any more, or has been without workers for too long.
        """
        futures = list(handles)
        try:
            with self._communicating(futures), self._abandoned_if_interrupted(futures):
                self._wait(futures)
                return list(self.client.gather(futures))
        except Exception as error:
            raise _detached(error) from error.__cause__

    def settle(self, handles: Sequence[Handle]) -> None:
        """Wait for tasks; see `Executor.settle`."""
        if handles:
            with self._communicating(handles), self._abandoned_if_interrupted(handles):
                self._wait(list(handles))

    @contextmanager
    def _abandoned_if_interrupted(self, futures: Sequence[Any]) -> Iterator[None]:
        """Have the cluster drop tasks that nobody waits for after Ctrl-C.

        Those that progress is counted of are kept by Dask until they are done.
        """
        try:
            yield
        except Exception:
            raise
        except BaseException:
            with suppress(Exception):
                self.client.cancel([each for each in futures if not each.done()])
            raise

    @contextmanager
    def _communicating(self, futures: Sequence[Any] = ()) -> Iterator[None]:
        """Tell what breaks between this process and the cluster from what tasks raise.

        Parameters
        ----------
        futures : sequence of distributed.Future
            Whose results are fetched: errors of their tasks pass as they are.
        """
        try:
            yield
        except Exception as error:
            if self.client.status != "running":
                msg = (
                    f"the connection to the scheduler at {self._where} was lost. What was decided "
                    "before is in the selection."
                )
                raise DagselError(msg) from error
            if isinstance(error, OSError) and not any(each.status == "error" for each in futures):
                msg = f"a connection to the cluster at {self._where} broke: {error}"
                raise WorkersLostError(msg) from error
            raise

    def _wait(self, futures: list[Any]) -> None:
        """Wait until the futures are done or in error, as long as there are workers."""
        from distributed import wait

        seconds_without = 0.0
        while True:
            try:
                with self.client.as_current():  # `wait` asks for the current client
                    wait(futures, timeout=_PATIENCE)
            except TimeoutError:
                seconds_without = 0.0 if self.client.nthreads() else seconds_without + _PATIENCE
                if seconds_without >= _WAIT_FOR_WORKERS:
                    raise DagselError(self._no_workers()) from None
            else:
                return

    @property
    def _where(self) -> str:
        return str(self.client.scheduler.address if self.client.scheduler else "its address")

    def _no_workers(self) -> str:
        return (
            f"the scheduler at {self._where} has had no worker for {_WAIT_FOR_WORKERS:g} s: start "
            f"one with `dask worker {self._where}`. What was decided before is in the selection."
        )

    def lost(self, error: BaseException) -> bool:
        """Tell whether an error means that workers took data with them; see `Executor.lost`."""
        from distributed.client import FutureCancelledError, FuturesCancelledError
        from distributed.scheduler import KilledWorker

        if self.client.status != "running":
            return False
        lost = (FutureCancelledError, FuturesCancelledError, KilledWorker, WorkersLostError)
        return isinstance(error, lost)

    def map(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], *, label: str
    ) -> list[Any]:
        """Submit every call and wait; see `Executor.map`."""
        self.progress.expect(label, len(calls))
        return self.gather([self.submit(function, *call, label=label) for call in calls])

    def compute(self, *collections: Any) -> tuple[Any, ...]:
        """Compute Dask collections on this client's cluster; see `Executor.compute`."""
        with self._communicating():
            futures = self.client.compute(list(collections))
        return tuple(self.gather(futures))

    def load(self, block: Block, worker: int | None = None) -> Handle:
        """Bring the payload to a worker as a future; a file's description goes as it is."""
        if block.where == "file":
            return block.payload
        with self._communicating():
            addresses = self._addresses()
            target = None if worker is None else [addresses[worker % len(addresses)]]
            if block.where == "delayed":
                return self.client.compute(
                    block.payload, workers=target, allow_other_workers=True, optimize_graph=True
                )
            # Not broadcast, and not hashed: hashing reads all of the data a second time.
            return self.client.scatter([block.payload], workers=target, hash=False)[0]

    def memory_per_worker(self) -> int | None:
        """Return the smallest memory limit of a worker; `None` if one has no limit."""
        info = self.client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [int(worker["memory_limit"] or 0) for worker in info]
        return min(limits) if limits and min(limits) > 0 else None

    def forget(self, run: str) -> None:
        """Drop the run's states on all workers that can be reached."""
        try:
            self.client.run(tasks.forget, run, on_error="ignore")
        except (OSError, RuntimeError, TimeoutError) as error:
            # The cluster is going or gone. That must not hide what the run itself ended with.
            logger.info("the workers' states could not be dropped: %s", error)


def _detached(error: Exception) -> Exception:
    """Return a copy that has the traceback, and take it from the original.

    Dask keeps the exception of a task with its future. Raised here, its traceback would hold the
    frames that hold that future, and the task's data would stay on the cluster.
    """
    try:
        twin = copy.copy(error)
    except Exception:
        # An exception of a user's that cannot be copied: better kept for longer than lost.
        return error
    twin.__traceback__, error.__traceback__ = error.__traceback__, None
    return twin


def active_client() -> Client | None:
    """Return the Dask client of this context, if there is one."""
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        return None
