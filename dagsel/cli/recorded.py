"""The options of a command as its journal keeps them, for `dagsel resume`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from dagsel.cli.errors import USAGE, CommandError
from dagsel.cli.objects import literal
from dagsel.cli.options import WHERE, Options

__all__ = ["recorded", "restored"]

_PAIRS = ("param", "cv_param")


def recorded(options: Options, **more: Any) -> dict[str, Any]:
    """Return options as an object for JSON; files by their full names."""
    found = asdict(options)
    found["data"] = [_full(path) for path in options.data]
    if options.scheduler_file is not None:
        found["scheduler_file"] = _full(options.scheduler_file)
    for name in _PAIRS:
        found[name] = [[key, repr(value)] for key, value in found[name]]
    return {**found, **more}


def _full(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def restored(command: Mapping[str, Any] | None, where: str, given: Mapping[str, Any]) -> Options:
    """Return the options that a journal kept, with those that are given now in their place.

    Parameters
    ----------
    command : mapping or None
        What `recorded` returned; `None` in the journal of a Python program.
    where : str
        The folder of the journal, for messages.
    given : mapping
        Options by name; what is `None` was not given. Whoever says where to run says all of it.
    """
    if command is None:
        msg = (
            f"the journal in {where} is that of a Python program, which has the data: run the "
            "program again with the same checkpoint, and it goes on."
        )
        raise CommandError(msg, USAGE)
    names = [field.name for field in fields(Options)]
    try:
        values = {name: _restored(name, command[name]) for name in names}
        options = Options(**values)
    except (KeyError, TypeError, ValueError) as error:
        msg = f"the options in the journal in {where} cannot be read: {error!r}"
        raise CommandError(msg, USAGE) from error
    changes = {name: value for name, value in given.items() if value is not None}
    if any(name in changes for name in WHERE):
        changes = {**dict.fromkeys(WHERE), **changes}
    return replace(options, **changes)


def _restored(name: str, value: Any) -> Any:
    if name in _PAIRS:
        return tuple((key, literal(text)) for key, text in value)
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
