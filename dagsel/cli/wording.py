"""Messages that speak of the Python interface, in the words of the command line."""

from __future__ import annotations

import re

__all__ = ["in_options"]

_OPTION_OF = {
    "n_features_to_select": "--k",
    "fixed_features": "--fixed",
    "sample_weight": "--weights",
    "weighted_scores": "--weighted-scores",
    "max_seconds": "--max-seconds",
    "audit": "--audit",
    "categories": "--categories",
    "criterion": "--criterion",
    "cv": "--cv",
    "drop": "--drop",
    "engine": "--engine",
    "groups": "--groups",
    "patience": "--patience",
    "scoring": "--scoring",
}
_NAMES = "|".join(_OPTION_OF)
_VALUE = r"'[^']*'|\([^()]*\)|\[[^\[\]]*\]|-?\w+(?:\.\d+)?"
# `name=value`, but not among the arguments of an object that a message shows; or a name that is no
# word of English.
_PARAMETER = re.compile(
    rf"(?<!\w\()(?<!, )\b(?:\w+__)?(?P<name>{_NAMES})=(?P<value>{_VALUE})?"
    r"|\b(?:\w+__)?(?P<bare>[a-z]+_[a-z_]+)\b(?![=(])"
)
_RANGE = re.compile(r"\((\d+), (\d+)\)")
_QUOTED = re.compile(r"\['([^']*)'\]")


def in_options(text: str) -> str:
    """Name options where a message names parameters of the Python interface, as `name=value`."""
    return _PARAMETER.sub(_option, text)


def _option(found: re.Match[str]) -> str:
    name, value = found["name"] or found["bare"], found["value"]
    if name not in _OPTION_OF:
        return found[0]
    if value is None or value in ("True", "[...]", "..."):
        return _OPTION_OF[name]
    value = _QUOTED.sub(r"'\1'", _RANGE.sub(r"\1-\2", value))
    if re.fullmatch(r"'[\w.-]+'", value):
        value = value[1:-1]
    return f"{_OPTION_OF[name]} {value}"
