"""Where the lines of a journal are: in a file of this machine, or in objects at a URL."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from dagsel.exceptions import CheckpointError

__all__ = ["Lines", "open_lines"]

_NAME = "journal.jsonl"
# Lines go to the system at once, which keeps them whatever becomes of this process. That the disk
# has them, in case the machine fails, is made sure of not more often than this.
_SYNC_SECONDS = 1.0


class Lines(Protocol):
    """Bytes that are appended to."""

    #: The folder, for messages.
    where: str

    def read(self) -> bytes:
        """Return all there is."""
        ...

    def cut(self, size: int) -> None:
        """Delete everything after so many bytes; does nothing where it is only read."""
        ...

    def append(self, line: bytes, *, sync: bool = False) -> None:
        """Write at the end; with `sync`, return only when the disk has it."""
        ...

    def close(self) -> None:
        """Close; other processes can then write."""
        ...


def open_lines(where: str | os.PathLike[str], *, writing: bool = True) -> Lines:
    """Open the lines in a folder.

    Parameters
    ----------
    where : path or URL
        The folder; made, if need be, for writing.
    writing : bool
        Whether lines will be appended. Of a local folder only one process at a time can do so.

    Raises
    ------
    CheckpointError
        If it cannot be opened, or another process writes to it.
    """
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    url = os.fspath(where)
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        if isinstance(filesystem, LocalFileSystem):
            return _File(Path(path), url, writing=writing)
        return _Objects(filesystem, path, url, writing=writing)
    except CheckpointError:
        raise
    except (OSError, ValueError, ImportError) as error:
        reason = getattr(error, "strerror", None) or error
        msg = f"the folder {url} for the journal cannot be used: {reason}"
        raise CheckpointError(msg) from error


class _File:
    """A file that is appended to."""

    def __init__(self, folder: Path, where: str, *, writing: bool) -> None:
        self.where = where
        self.path = folder / _NAME
        self._file: Any = None
        self._synced = monotonic()
        if writing:
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a call has written is the system's, not this process's.
            self._file = self.path.open("r+b" if self.path.exists() else "x+b", buffering=0)
            self._lock()

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # not on this system
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            msg = f"another process is writing to the journal in {self.where}. Wait for its end"
            raise CheckpointError(msg) from error
        except OSError:
            return  # a file system without locks

    def read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def cut(self, size: int) -> None:
        if self._file is not None:
            self._file.truncate(size)
            self._file.seek(size)

    def append(self, line: bytes, *, sync: bool = False) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]
        if sync or monotonic() - self._synced >= _SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = monotonic()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.fsync(self._file.fileno())
            self._file.close()


class _Objects:
    """Objects of a store that knows no appending, one for every call; each is there or is not."""

    def __init__(self, filesystem: Any, folder: str, where: str, *, writing: bool) -> None:
        self.where = where
        self._writing = writing
        self.folder = folder.rstrip("/")
        self._filesystem = filesystem
        self._next = 0

    def _names(self) -> list[str]:
        return sorted(self._filesystem.glob(f"{self.folder}/journal-*.jsonl"))

    def read(self) -> bytes:
        self._filesystem.invalidate_cache()
        found = self._names()
        if found:
            self._next = int(found[-1].rpartition("-")[2].partition(".")[0]) + 1
        contents = self._filesystem.cat(found) if found else {}
        return b"".join(contents[name] for name in found)

    def cut(self, size: int) -> None:
        """Delete all objects; they are whole, so that nothing less is ever needed."""
        if size == 0 and self._writing:
            found = self._names()
            if found:
                self._filesystem.rm(found)
            self._next = 0

    def append(self, line: bytes, *, sync: bool = False) -> None:
        del sync
        name = f"{self.folder}/journal-{self._next:08d}.jsonl"
        if self._next == 0:
            self._filesystem.makedirs(self.folder, exist_ok=True)
        self._filesystem.pipe_file(name, line)
        self._next += 1

    def close(self) -> None:
        """Do nothing: nothing is open."""
