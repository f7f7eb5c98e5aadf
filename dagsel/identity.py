"""What makes two selections the same: their data, their parameters and the versions that matter."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import joblib
import numpy as np

from dagsel.data.blocks import Table
from dagsel.engines.base import Problem
from dagsel.search import Search
from dagsel.versions import versions

__all__ = ["differences", "identity"]

# The rest of what takes part changes scores in their last digits at most.
_PACKAGES = ("dagsel", "scikit-learn")
# Not known where the rows are on a cluster.
_FEATURES = "values of the features"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

Identity = dict[str, Any]


def identity(problem: Problem, search: Search) -> Identity:
    """Return what scores depend on, as an object for JSON; long values as digests.

    Parameters
    ----------
    problem : Problem
        What is selected from.
    search : Search
        At its start.
    """
    table = problem.table
    return {
        "number of rows": table.n_rows,
        "number of columns": table.n_columns,
        "names of the columns": _digest(None if table.names is None else [*map(str, table.names)]),
        "values of the target": _digest(_plain(table.target)),
        _FEATURES: _content(table),
        "folds": problem.folds.digest(),
        "features": _digest(problem.features),
        "estimator": _described(problem.estimator),
        "scoring": _scoring(problem),
        **{f"fit parameter {name}": each for name, each in _digests(problem.fit_params)},
        **{f"score parameter {name}": each for name, each in _digests(problem.score_params)},
        **_of_search(search),
        **_versions_of(problem),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what two selections differ in, a text each.

    Values of the features that are not known, because they are in Dask collections, are none.
    """
    found = []
    for name in dict.fromkeys([*before, *now]):
        if name not in before or name not in now:
            has = "now has a" if name in now else "had a"
            found.append(f"it {has} {name}")
        elif before[name] != now[name] and not (
            name == _FEATURES and None in (before[name], now[name])
        ):
            found.append(_told(name, before[name], now[name]))
    return found


def _told(name: str, before: Any, now: Any) -> str:
    if isinstance(before, str) and re.fullmatch(r"[0-9a-f ]{8,}", before):
        return f"other {name}"
    return f"{name}: {before} before, {now} now"


def _content(table: Table) -> str | None:
    if table.content is not None:
        return table.content
    return None if table.native is None else _digest(_plain(table.native[0]))


def _plain(values: Any) -> Any:
    """Return an array's own values, whatever view of memory it is; numbers as they are used."""
    if not isinstance(values, np.ndarray):
        return values
    return np.ascontiguousarray(values, np.float64 if values.dtype.kind in "biuf" else None)


def _digest(value: Any) -> str:
    return str(joblib.hash(value, hash_name="sha1"))


def _digests(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(parameters.items()):
        if value is not None:
            yield name, _digest(_plain(value))


def _scoring(problem: Problem) -> str:
    criterion = problem.scoring.criterion
    if criterion is not None:
        return repr(criterion)
    return f"{problem.scoring.name} ({_ADDRESS.sub('', repr(problem.scoring.scorer))})"


def _described(estimator: Any) -> str:
    """Return an estimator's class and all of its parameters."""
    kind = type(estimator)
    if not hasattr(estimator, "get_params"):
        return _ADDRESS.sub("", repr(estimator))
    inner = ", ".join(
        f"{name}={_described(value) if hasattr(value, 'get_params') else value!r}"
        for name, value in sorted(estimator.get_params(deep=False).items())
        if name != "steps"
    )
    steps = getattr(estimator, "steps", None)
    if steps is not None:
        inner += "".join(f", {name}: {_described(step)}" for name, step in steps)
    return _ADDRESS.sub("", f"{kind.__module__}.{kind.__qualname__}({inner})")


def _of_search(search: Search) -> Identity:
    """Return what decides between scores; how far a search goes changes none of its rounds."""
    names = ("direction", "floating", "fixed", "tie_rule", "tol", "strict", "threshold", "step")
    found = {name: getattr(search, name) for name in (*names, "score_start")}
    return {name: list(each) if isinstance(each, tuple) else each for name, each in found.items()}


def _versions_of(problem: Problem) -> Identity:
    known = versions()
    found = {f"version of {name}": known[name] for name in _PACKAGES if name in known}
    package = type(problem.estimator).__module__.partition(".")[0]
    with suppress(importlib.metadata.PackageNotFoundError):
        found[f"version of {package}"] = importlib.metadata.version(package)
    return found
