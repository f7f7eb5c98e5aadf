"""Whether workers have what tasks need, in the same version; and a way to send them dagsel."""

from __future__ import annotations

import pydoc
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagsel.exceptions import DagselError
from dagsel.warning import warn

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["check_workers", "ship"]

# Scores of other versions may differ in their last digits.
_SCORED_BY = {"scikit-learn": "sklearn", "numpy": "numpy"}


def check_workers(client: Client, addresses: Sequence[str]) -> None:
    """Make sure that workers have this release of dagsel.

    Dask itself compares versions of Python and of its own packages when a client connects.

    Parameters
    ----------
    client : distributed.Client
        Synchronous.
    addresses : sequence of str
        Of the workers; one that is gone meanwhile is passed over.

    Raises
    ------
    DagselError
        If a worker has none, or another one. Other versions of NumPy or scikit-learn are a
        `DagselWarning`.
    """
    own = _own("dagsel")
    for address, found in _asked(client, addresses, "dagsel").items():
        if found != own:
            has = "no dagsel" if found is None else f"dagsel {found}"
            msg = (
                f"the worker {address} has {has}, and this process dagsel {own}: install the same "
                "release there, or send it to all workers with dagsel.ship(client)"
            )
            raise DagselError(msg)
    for package, module in _SCORED_BY.items():
        there = set(_asked(client, addresses, module).values()) - {_own(module)}
        if there:
            others = ", ".join(sorted(map(str, there)))
            text = (
                f"workers have {package} {others}, and this process {_own(module)}: scores "
                "may differ in their last digits from those that are computed here"
            )
            warn(text)


def _own(module: str) -> str:
    """Return the version that this process imports; what is installed may say another."""
    return str(pydoc.locate(f"{module}.__version__"))


def _asked(client: Client, addresses: Sequence[str], module: str) -> Mapping[str, str | None]:
    """Return what version of a module workers can import; `None` if they cannot."""
    # A function of the standard library: workers without dagsel know it, too.
    name = f"{module}.__version__"
    found: dict[str, Any] = client.run(
        pydoc.locate, name, workers=list(addresses), on_error="return"
    )
    usable = (str, type(None), pydoc.ErrorDuringImport)
    return {
        address: reply if isinstance(reply, str) else None
        for address, reply in found.items()
        if isinstance(reply, usable)  # else it could not be asked
    }


def ship(client: Client) -> None:
    """Send this dagsel to all workers of a cluster, also to those that join it later.

    For clusters whose workers have the packages that dagsel needs (scikit-learn, array-api-compat,
    joblib, pyarrow) and not dagsel itself. It is gone when a worker's process ends; a nanny's next
    worker gets it again.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.

    Examples
    --------
    >>> dagsel.ship(Client("tcp://scheduler:8786"))  # doctest: +SKIP
    """
    package = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        # The name with the version: a newer one is another file to the workers.
        path = Path(folder) / f"dagsel-{_own('dagsel')}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(package.rglob("*.py")):
                archive.write(file, file.relative_to(package.parent))
        client.upload_file(str(path))
