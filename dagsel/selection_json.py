"""How the rounds and names of a selection are written as strict JSON, and read back exactly."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagsel.moves import Move, pack

__all__ = [
    "Decided",
    "decode_name",
    "decode_rounds",
    "encode_name",
    "encode_round",
    "encode_rounds",
]

Decided = tuple[Move, float, str]  # the move, the seconds it took, the engine that scored it


def encode_rounds(decided: Iterable[Decided]) -> list[dict[str, Any]]:
    """Return each round as an object for JSON, numbers exact."""
    entries = []
    before = b""
    for each in decided:
        entries.append(encode_round(each, before))
        before = each[0].mask
    return entries


def encode_round(decided: Decided, before: bytes) -> dict[str, Any]:
    """Return a round as an object for JSON; `before` is the mask of the round before it."""
    move, seconds, engine = decided
    entry: dict[str, Any] = {"action": move.action, "feature": move.feature}
    if len(move.features) > 1:
        entry["moved"] = move.features
    # A mask is only written where it does not follow from the one before by moving `feature`.
    if move.mask != _toggled(before, move.feature):
        entry["features"] = move.subset
    entry["fold_scores"] = [_encode_float(score) for score in move.fold_scores]
    entry["mean"] = _encode_float(move.mean)
    entry["runner_up"] = move.runner_up
    runner_up_mean = move.runner_up_mean
    entry["runner_up_mean"] = None if runner_up_mean is None else _encode_float(runner_up_mean)
    entry["tied"] = move.tied
    entry["n_candidates"] = move.n_candidates
    entry["rounding"] = _encode_float(move.rounding)
    entry["seconds"] = _encode_float(seconds)
    entry["engine"] = engine
    return entry


def _toggled(mask: bytes, feature: int | None) -> bytes:
    if feature is None or feature >> 3 >= len(mask):
        return mask
    changed = bytearray(mask)
    changed[feature >> 3] ^= 0x80 >> (feature & 7)
    return bytes(changed)


def decode_rounds(entries: Iterable[dict[str, Any]], n_features: int) -> Iterator[Decided]:
    """Yield what `encode_rounds` was given."""
    mask = np.zeros(n_features, dtype=np.bool_)
    for entry in entries:
        yield _decode_move(entry, mask), _decode_float(entry["seconds"]), entry["engine"]


def _decode_move(entry: dict[str, Any], mask: NDArray[np.bool_]) -> Move:
    """Return the move of a round; `mask`, the subset before it, becomes that after it."""
    feature = entry["feature"]
    if "features" in entry:
        mask[:] = False
        mask[entry["features"]] = True
    elif feature is not None:
        mask[feature] ^= True
    tied = b""
    if entry["tied"]:
        tied_mask = np.zeros_like(mask)
        tied_mask[entry["tied"]] = True
        tied = pack(tied_mask)
    runner_up_mean = entry["runner_up_mean"]
    return Move(
        action=entry["action"],
        feature=feature,
        mask=pack(mask),
        fold_scores=tuple(_decode_float(score) for score in entry["fold_scores"]),
        mean=_decode_float(entry["mean"]),
        runner_up=entry["runner_up"],
        runner_up_mean=None if runner_up_mean is None else _decode_float(runner_up_mean),
        tied_mask=tied,
        n_candidates=entry["n_candidates"],
        rounding=_decode_float(entry["rounding"]),
        features=tuple(entry.get("moved", ())),
    )


def _encode_float(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _decode_float(value: float | str) -> float:
    return float(value)


def encode_name(name: Hashable) -> Any:
    """Return a column's name for JSON; one of a type that JSON does not know becomes text."""
    if isinstance(name, np.generic):
        name = name.item()
    if isinstance(name, tuple):
        return {"tuple": [encode_name(part) for part in name]}
    if name is None or isinstance(name, (str, bool, int)):
        return name
    if isinstance(name, float) and math.isfinite(name):
        return name
    return str(name)


def decode_name(name: Any) -> Hashable:
    """Return the name that `encode_name` was given."""
    if isinstance(name, dict):
        return tuple(decode_name(part) for part in name["tuple"])
    decoded: Hashable = name
    return decoded
