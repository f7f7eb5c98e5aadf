"""The folder that results go to."""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from dagsel.cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    import pandas as pd

    from dagsel.results import Selection
from dagsel.versions import versions

__all__ = ["Output", "versions"]

logger = logging.getLogger("dagsel")

# In the order of writing: where the last one is, the others are complete.
_RESULTS = ("path.csv", "path.parquet", "selected.txt", "selection.json")


@dataclass(frozen=True)
class Output:
    """Where results go.

    Attributes
    ----------
    folder : Path or None
        `None`: to standard output.
    path_format : {"csv", "parquet"}
        Of the table of rounds.
    force : bool
        Whether results, and a journal, that are there already may be replaced.
    its_own : bool
        Whether results that are there are of the same selection, which is gone on with.
    """

    folder: Path | None
    path_format: str = "csv"
    force: bool = False
    its_own: bool = False

    @contextmanager
    def log(self) -> Iterator[None]:
        """Create the folder and write the log of the run into it.

        Raises
        ------
        CommandError
            If the folder holds results, or cannot be written to.
        """
        if self.folder is None:
            handler: logging.Handler = logging.NullHandler()
        else:
            handler = self._open_log(self.folder)
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        began = monotonic()
        try:
            _log_start()
            yield
            logger.info("end after %.1f s", monotonic() - began)
        except BaseException as error:
            text = str(error) or repr(error)
            if isinstance(error, CommandError):
                text = f"{error.prefix}{error.message}"
            logger.error("end after %.1f s. %s", monotonic() - began, text)
            raise
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)
            handler.close()

    def _open_log(self, folder: Path) -> logging.Handler:
        there = [name for name in _RESULTS if (folder / name).exists()]
        if there and not (self.force or self.its_own or _unfinished(folder)):
            msg = (
                f"{folder} holds the results of an earlier run ({', '.join(there)}). Name another "
                "folder, or replace them with --force."
            )
            raise CommandError(msg, USAGE)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _LogFile(folder / "log.txt")
        except OSError as error:
            msg = f"cannot write to the folder {folder}: {error.strerror or error}."
            raise CommandError(msg, USAGE) from error

    def save(self, selection: Selection, selected: Sequence[object] | None) -> None:
        """Write what was decided; every file appears as a whole or not at all.

        Parameters
        ----------
        selection : Selection
            Complete or not.
        selected : sequence or None
            Names of the selected columns; `None` for an incomplete selection.
        """
        if self.folder is None:
            return
        contents = {f"path.{self.path_format}": _table_bytes(selection, self.path_format)}
        if selected is not None:
            contents["selected.txt"] = "".join(f"{name}\n" for name in selected).encode()
        contents["selection.json"] = (selection.to_json() or "").encode()
        pending: dict[str, Path] = {}
        try:
            for name, content in contents.items():
                pending[name] = self.folder / f".{name}.{os.getpid()}.tmp"
                _write(pending[name], content)
            # Only now, with everything on the disk, is anything replaced.
            for name in set(_RESULTS).difference(contents):
                (self.folder / name).unlink(missing_ok=True)
            for name, temporary in pending.items():
                os.replace(temporary, self.folder / name)
        finally:
            for temporary in pending.values():
                with suppress(OSError):
                    temporary.unlink()
        logger.info("written: %s", ", ".join(contents))


def _unfinished(folder: Path) -> bool:
    """Tell whether the results in a folder are those of a run that can be gone on with."""
    try:
        content = json.loads((folder / "selection.json").read_text(encoding="utf-8"))
        out_of_time = content["stop_reason"] == "time" and (folder / "journal.jsonl").exists()
        return content["complete"] is False or out_of_time
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(path: Path, content: bytes) -> None:
    """Write a file and make sure that it is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _table_bytes(selection: Selection, path_format: str) -> bytes:
    table: pd.DataFrame = selection.to_frame()
    if any(len(done.moved) > 1 for done in selection.rounds):
        # Text, which every reader of such files knows.
        table["feature"] = [", ".join(map(str, done.moved)) or None for done in selection.rounds]
    if path_format == "parquet":
        from io import BytesIO

        buffer = BytesIO()
        table.to_parquet(buffer, index=False)
        return buffer.getvalue()
    return table.to_csv(index=False).encode()


class _LogFile(logging.FileHandler):
    """A log that complains once, and not at every line, when the disk is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
        self._broken = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say so once; the run goes on."""
        del record
        if not self._broken:
            self._broken = True
            print(
                f"[dagsel] cannot write {self.baseFilename}: {sys.exc_info()[1]}", file=sys.stderr
            )


def _log_start() -> None:
    logger.info("start: %s", shlex.join(["dagsel", *sys.argv[1:]]))
    found = ", ".join(f"{package} {version}" for package, version in versions().items())
    logger.info("on %s with %s", platform.platform(), found)
