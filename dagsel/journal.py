"""The journal of a selection: every decided round, on the disk before the next one begins.

A journal is a folder, on this machine or at a URL that fsspec understands. What is in it are lines
of text, each with a checksum: first what is selected from and how, then a line for every round, and
one for the end. Lines are only ever appended. So whatever ends the process, at whichever byte,
leaves a journal of which at most the last line is lost; reading it leaves such a line out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from dagsel.audit import Audit
from dagsel.exceptions import CheckpointError, DataError
from dagsel.identity import Identity, differences
from dagsel.journal_files import Lines, open_lines
from dagsel.results import Selection
from dagsel.search import StopReason
from dagsel.selection_json import Decided, encode_round

__all__ = ["Journal", "Record", "load_checkpoint", "read_journal"]

_FORMAT, _VERSION = "dagsel-journal", 1
_BEGINNING = b'{"format": "%s"' % _FORMAT.encode()


@dataclass
class Record:
    """What a journal says.

    Attributes
    ----------
    selection : Selection
        With the rounds that were decided; complete if the search came to its end.
    identity : mapping
        See `dagsel.identity`.
    command : mapping or None
        The options of the command line, if it was that.
    """

    selection: Selection
    identity: Identity
    command: dict[str, Any] | None


@dataclass
class Journal:
    """A journal that is being written.

    Attributes
    ----------
    lines : Lines
        Where to.
    record : Record or None
        What was there before; `None` in a new one.
    """

    lines: Lines
    record: Record | None = None
    _before: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        rounds = [] if self.record is None else self.record.selection.rounds
        if rounds:
            self._before = rounds[-1].move.mask

    @classmethod
    def open(
        cls, where: str | os.PathLike[str], identity: Identity, *, anew: bool = False
    ) -> Journal:
        """Open the journal in a folder, a new one if there is none.

        Parameters
        ----------
        where : path or URL
            The folder; it is made if need be.
        identity : mapping
            Of the selection that is about to run.
        anew : bool
            Whether a journal that is there is deleted.

        Raises
        ------
        CheckpointError
            If the journal is that of another selection (says what differs), is in use by another
            process, is damaged, or cannot be read or written.
        """
        lines = open_lines(where)
        try:
            if anew:
                lines.cut(0)
            record = _read(lines)
            if record is not None:
                _check_same(record, identity, lines)
        except BaseException:
            lines.close()
            raise
        return cls(lines, record)

    def begin(
        self, selection: Selection, identity: Identity, command: Mapping[str, Any] | None = None
    ) -> None:
        """Write what is selected from and how; in a journal that is gone on with, that it is."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if self.record is not None:
            self._append({"resumed": now, "versions": selection.versions})
            return
        header = {"format": _FORMAT, "version": _VERSION, "begun": now}
        content = {**selection.to_dict(), "rounds": []}
        self._append({**header, "identity": identity, "command": command, "selection": content})

    def append(self, decided: Decided) -> None:
        """Append a round.

        Raises
        ------
        CheckpointError
            If it cannot be written, because the disk is full for instance.
        """
        self._append({"round": encode_round(decided, self._before)})
        self._before = decided[0].mask

    def end(self, selection: Selection) -> None:
        """Write how the search ended, and what else there is to know."""
        audit = None if selection.audit is None else selection.audit.to_dict()
        ended = {"stop_reason": selection.stop_reason, "audit": audit, "notes": selection.notes}
        self._append({"end": ended}, sync=True)

    def close(self) -> None:
        """Let go of the journal."""
        self.lines.close()

    def _append(self, entry: Mapping[str, Any], *, sync: bool = False) -> None:
        text = json.dumps(entry, allow_nan=False, ensure_ascii=False).encode()
        try:
            self.lines.append(b"%08x %s\n" % (crc32(text), text), sync=sync)
        except OSError as error:
            msg = (
                f"cannot write to the journal in {self.lines.where}: {error.strerror or error}. "
                "What was decided before is in it, and in the selection: make room and run the "
                "same again."
            )
            raise CheckpointError(msg) from error


def load_checkpoint(where: str | os.PathLike[str]) -> Selection:
    """Return the selection in a folder that was given as `checkpoint`, as far as it got.

    Parameters
    ----------
    where : path or URL
        The folder. A run that is still writing to it is not disturbed.

    Raises
    ------
    CheckpointError
        If there is no journal, or it is damaged.

    Examples
    --------
    >>> selection = dagsel.load_checkpoint("run-7")  # doctest: +SKIP
    >>> selection.to_frame().tail()  # doctest: +SKIP
    """
    return read_journal(where).selection


def read_journal(where: str | os.PathLike[str]) -> Record:
    """Return what the journal in a folder says; see `load_checkpoint`."""
    lines = open_lines(where, writing=False)
    record = _read(lines)
    if record is None:
        msg = f"there is no journal of a selection in {lines.where}"
        raise CheckpointError(msg)
    return record


def _read(lines: Lines) -> Record | None:
    """Return what the lines say; `None` if there are none."""
    text = lines.read()
    entries, size = _intact(text, lines)
    if not entries:
        # A process that was killed while it wrote the first line has decided nothing.
        if not _begins_a_header(text):
            raise _no_journal(lines)
        lines.cut(0)
        return None
    lines.cut(size)
    return _record(entries, lines)


def _begins_a_header(text: bytes) -> bool:
    """Tell whether a text can be the beginning of a first line."""
    checksum, space, rest = text[:8], text[8:9], text[9:]
    whole = rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest)
    return bool(re.fullmatch(b"[0-9a-f]*", checksum)) and space in b" " and whole


def _intact(text: bytes, lines: Lines) -> tuple[list[dict[str, Any]], int]:
    """Return the lines that are whole, and how many bytes they are."""
    entries: list[dict[str, Any]] = []
    size = 0
    parts = text.splitlines(keepends=True)
    for number, part in enumerate(parts):
        entry = _entry(part)
        if entry is None:
            if number + 1 < len(parts):
                if not entries:
                    raise _no_journal(lines)
                n_rounds = sum("round" in each for each in entries)
                msg = (
                    f"line {number + 1} of the journal in {lines.where} is damaged, and others "
                    f"follow it. Delete it and those after it to go on from round {n_rounds}"
                )
                raise CheckpointError(msg)
            break
        entries.append(entry)
        size += len(part)
    return entries, size


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n") or line[8:9] != b" ":
        return None
    text = line[9:-1]
    if line[:8] != b"%08x" % crc32(text):
        return None
    entry: dict[str, Any] = json.loads(text)
    return entry


def _no_journal(lines: Lines) -> CheckpointError:
    msg = f"what is in {lines.where} is no journal of a selection. Name another folder"
    return CheckpointError(msg)


def _record(entries: Sequence[dict[str, Any]], lines: Lines) -> Record:
    header, *rest = entries
    if (header.get("format"), header.get("version")) != (_FORMAT, _VERSION):
        msg = (
            f"the journal in {lines.where} is of format {header.get('format')!r}, version "
            f"{header.get('version')!r}; this release of dagsel reads {_FORMAT!r}, {_VERSION}"
        )
        raise CheckpointError(msg)
    ends = [entry["end"] for entry in rest if "end" in entry]
    rounds = [entry["round"] for entry in rest if "round" in entry]
    try:
        selection = Selection.from_dict({**header["selection"], "rounds": rounds})
    except (KeyError, TypeError, ValueError, IndexError, DataError) as error:
        msg = f"the journal in {lines.where} cannot be read: {error!r}"
        raise CheckpointError(msg) from error
    if ends:
        _conclude(selection, ends[-1])
    return Record(selection, header["identity"], header["command"])


def _conclude(selection: Selection, end: Mapping[str, Any]) -> None:
    reason: StopReason | None = end["stop_reason"]
    selection.stop_reason = reason
    # A search that ran out of time goes on when it is given more.
    selection.complete = reason != "time"
    selection.notes = list(end["notes"])
    if end["audit"] is not None:
        selection.audit = Audit.from_dict(end["audit"])


def _check_same(record: Record, identity: Identity, lines: Lines) -> None:
    found = differences(record.identity, identity)
    if not found:
        return
    n_rounds = len(record.selection.rounds)
    msg = (
        f"{lines.where} holds the journal of another selection ({n_rounds} rounds): "
        f"{'; '.join(found)}. Name another folder, or delete this one to start anew"
    )
    raise CheckpointError(msg)
