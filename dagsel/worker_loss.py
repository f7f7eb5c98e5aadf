"""Going on where workers have taken data with them."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import TypeVar

from dagsel.engines.base import Executor
from dagsel.exceptions import DagselError

__all__ = ["through_losses"]

# After so many losses of data in a row a run gives up.
_MOST_LOSSES = 3

Result = TypeVar("Result")


def through_losses(
    executor: Executor,
    run: Callable[[], Result],
    *,
    forget: Callable[[], None],
    note: Callable[[str], None],
    what: str,
) -> Result:
    """Run; where workers take data with them, send those again and run again.

    Dask itself runs lost tasks again. Rows that came from this process's memory it cannot make
    again: the tasks that need them are cancelled.

    Parameters
    ----------
    executor : Executor
        Tells losses of data from other errors.
    run : callable
        Has the tasks run; sends the data if there are none.
    forget : callable
        Drops what is known of data that were sent.
    note : callable
        Told of every loss.
    what : str
        What the tasks work on, for messages: "rounds".

    Raises
    ------
    DagselError
        If data are lost three times in a row.
    """
    for losses in range(1, _MOST_LOSSES + 1):
        try:
            return run()
        except Exception as error:
            if not executor.lost(error):
                raise
            # The first line: Dask's texts can list every task.
            brief = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
            if losses == _MOST_LOSSES:
                msg = (
                    f"workers were lost {losses} times in a row while they worked on the same "
                    f"{what} ({brief}). A task may need more memory than a worker has, or the "
                    "estimator may end its process: see the workers' logs"
                )
                raise DagselError(msg) from error
            note(f"workers were lost ({brief}); their data are sent again")
            forget()
            sleep(losses)  # for the cluster to notice, and to start other workers
    raise AssertionError  # the loop returns or raises
