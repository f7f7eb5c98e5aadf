"""Where a command runs: in this process, on a cluster that is there, or on one of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from dagsel.cli.errors import FAILED, USAGE, CommandError, ended_by
from dagsel.cli.options import Options
from dagsel.cli.progress import Reporter
from dagsel.cli.signals import NOTHING, Interrupted, Signals
from dagsel.plan import workers

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["connected"]

logger = logging.getLogger("dagsel")

# Long enough for a slow machine to start Python and import NumPy in every worker.
_START_SECONDS = 120.0
_CLOSE_SECONDS = 10.0


@contextmanager
def connected(options: Options, reporter: Reporter, signals: Signals) -> Iterator[Client | None]:
    """Yield a client of the cluster to run on, `None` for this process; clean up afterwards.

    Raises
    ------
    CommandError
        If there is no scheduler, or none of its workers is there in time.
    """
    given = options.scheduler is not None or options.scheduler_file is not None
    if options.workers is None and not given:
        yield None
        return
    _log_to_file()
    with ExitStack() as opened:
        if given:
            yield _given_cluster(options, reporter, opened, signals)
        else:
            yield _own_cluster(options, reporter, opened, signals)


def _log_to_file() -> None:
    """Send what Dask logs in this process where dagsel's log goes, not to the terminal."""
    import distributed  # noqa: F401  (it sets its handlers when it is imported)

    for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio"):
        logging.getLogger(name).handlers[:] = [_ToLog(logging.WARNING)]


class _ToLog(logging.Handler):
    """Hands records on. A handler of its own, because Dask changes the levels of those it finds."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.handle(record)


def _own_cluster(
    options: Options, reporter: Reporter, opened: ExitStack, signals: Signals
) -> Client:
    from distributed import Client, LocalCluster

    n_workers = options.workers
    processes = f"worker process{'' if n_workers == 1 else 'es'}"
    reporter.phase(f"starting {n_workers} {processes}")
    try:
        # Interrupted half way, it would leave processes behind and complain at length.
        with signals.deferred():
            cluster = LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=options.memory_limit or "auto",
                dashboard_address=None,
                silence_logs=logging.ERROR,
                preload=["dagsel.cli.worker"],
            )
            opened.callback(_close, cluster)
    except (OSError, RuntimeError, TimeoutError) as error:
        msg = f"the {n_workers} {processes} could not be started: {error}"
        raise CommandError(msg, FAILED) from error
    client = Client(cluster, set_as_default=False)
    opened.callback(_close, client)
    _wait(client, n_workers or 1, _START_SECONDS)
    return client


def _given_cluster(
    options: Options, reporter: Reporter, opened: ExitStack, signals: Signals
) -> Client:
    from distributed import Client

    where = options.scheduler or _address(str(options.scheduler_file))
    reporter.phase(f"connecting to {where}")
    try:
        # The file also says how to connect; it was found to be readable.
        given: dict[str, Any] = {"address": where}
        if options.scheduler_file is not None:
            given = {"scheduler_file": options.scheduler_file}
        client = Client(**given, timeout=options.timeout, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        # The exception of a signal can get lost in a callback of the client.
        signals.check()
        cause = error.__cause__ or error
        # Without the names of Dask's objects.
        why = " ".join(str(cause).split()).rpartition(">: ")[2] or type(cause).__name__
        msg = (
            f"no Dask scheduler answers at {where} within {options.timeout:g} s ({why}). Check "
            "the address, and that `dask scheduler` runs there and can be reached from here."
        )
        raise CommandError(msg, USAGE) from error
    except Interrupted as error:
        # Nobody has the client, so nobody can close it, and left to itself it waits for the
        # scheduler when Python ends, for twice as long as it was told to.
        raise ended_by(error, NOTHING, at_once=True) from error
    opened.callback(_close, client)
    _wait(client, 1, options.timeout)
    return client


def _close(thing: Any) -> None:
    """Close a client or a cluster; trouble at that point is no reason to lose the result."""
    try:
        thing.close(timeout=_CLOSE_SECONDS)
    except Exception as error:
        logger.debug("while closing %r: %s: %s", thing, type(error).__name__, error)


def _address(path: str) -> str:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = (
            f"{path!r} is not a file that `dask scheduler --scheduler-file` wrote "
            f"({type(error).__name__}: {error})."
        )
        raise CommandError(msg, USAGE) from error


def _wait(client: Client, n_workers: int, seconds: float) -> None:
    try:
        client.wait_for_workers(n_workers, timeout=seconds)
    except TimeoutError as error:
        where = client.scheduler.address
        there = len(client.nthreads())
        msg = (
            f"the scheduler at {where} has {there} of {workers(n_workers)} after {seconds:g} s. "
            f"Start one with `dask worker {where}`, or wait longer with --timeout."
        )
        raise CommandError(msg, USAGE) from error
