"""Reading the rows: every atom's moments, summed over blocks on the workers that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagsel.backend import Array, namespace, to_compute
from dagsel.data.blocks import Block, Slab, runs
from dagsel.data.folds import Layer
from dagsel.engines.base import Executor, Handle, Problem
from dagsel.kernels.moments import Moments, row_moments, sum_moments

__all__ = ["AtomSums", "pick_moments", "pilot_shift", "span_moments", "submit_moments"]

# What is read at once. Rows in memory are mostly views, and long slabs keep folds in one piece.
_READ_BYTES = {"memory": 256 * 2**20, "delayed": 64 * 2**20, "file": 32 * 2**20}
# Rows by which it is told whether a value is frequent in a column.
_PILOT_ROWS = 255
# What is shifted and multiplied at once: a second copy of as many rows exists meanwhile.
_PRODUCT_BYTES = 64 * 2**20


class AtomSums(NamedTuple):
    """Handles of every atom's moments.

    Attributes
    ----------
    shift : handle of array of shape (p + T,)
        What was subtracted from every row.
    sums : list (weightings) of list (layers) of list (atoms) of handles
        Moments, about the shift.
    """

    shift: Handle
    sums: list[list[list[Handle]]]


def submit_moments(
    problem: Problem,
    executor: Executor,
    *,
    centred: tuple[bool, bool] = (True, True),
    weightings: Sequence[NDArray[np.float64] | None] = (None,),
) -> AtomSums:
    """Start summing the moments of every atom of every layer of folds.

    Partial sums meet in a tree whose shape depends on the block order alone, so the result does
    not depend on which worker is first.

    Parameters
    ----------
    problem : Problem
        Whose rows.
    executor : Executor
        Where to.
    centred : tuple of bool
        Whether the features and the targets will be centred, and are shifted by a pilot mean.
    weightings : sequence of ndarray of shape (n_rows,) or None
        Weights of the rows; moments are summed for each of these.
    """
    blocks, layers = problem.table.blocks, problem.folds.layers
    first = executor.load(blocks[0], 0)
    shift = executor.submit(pilot_shift, centred, blocks[0].bare(), first, label="dagsel_pilot")
    pairs = [(layer, weights) for weights in weightings for layer in layers]
    spans = [
        [blocks[run.start : run.stop] for run in _groups(blocks, span, executor)]
        for span in runs(len(blocks), _n_spans(problem, executor))
    ]
    executor.progress.expect("dagsel_moments", sum(map(len, spans)))
    parts: list[Handle] = [None] * len(spans)
    for step in range(max(map(len, spans))):
        earlier = list(parts)
        for worker, groups in enumerate(spans):
            if step >= len(groups):
                continue
            chosen, home = groups[step], worker % executor.n_workers
            start, stop = chosen[0].start, chosen[-1].stop
            # Nothing here keeps a payload: a partition is let go of when it has been summed.
            parts[worker] = executor.submit(
                span_moments,
                [block.bare() for block in chosen],
                [first if each is blocks[0] else executor.load(each, home) for each in chosen],
                [replace(layer, labels=layer.labels[start:stop]) for layer, _ in pairs],
                [None if weights is None else weights[start:stop] for _, weights in pairs],
                shift,
                parts[worker],
                executor.in_process,
                label="dagsel_moments",
                worker=home,
            )
        # Partitions are made as soon as they can be, so no more of them are asked for than two a
        # chain: workers hold a few, however many there are.
        executor.settle([part for part in earlier if part is not None])
    del first
    if executor.in_process:
        flat = parts[0]
    else:
        flat = [
            [_tree_sum(executor, parts, number, atom) for atom in range(layer.n_atoms)]
            for number, (layer, _) in enumerate(pairs)
        ]
    sums = [flat[start : start + len(layers)] for start in range(0, len(flat), len(layers))]
    return AtomSums(shift, sums)


def _n_spans(problem: Problem, executor: Executor) -> int:
    """How many chains of tasks read the rows: a few per worker, unless their sums are large."""
    if executor.in_process:
        return 1
    if problem.table.blocks[0].where == "delayed":
        return 2 * executor.n_workers
    n_atoms = sum(layer.n_atoms for layer in problem.folds.layers)
    small = 8 * n_atoms * problem.table.n_columns**2 < 64 * 2**20
    return executor.n_workers * (4 if small else 1)


def _groups(blocks: Sequence[Block], span: range, executor: Executor) -> list[range]:
    """Cut a span of blocks into tasks, each of which carries on the sums of the one before.

    A task on a cluster that reads files holds a slab at a time, so one does for the whole span.
    Dask partitions are whole in memory when a task begins, so it gets only a few.
    """
    if executor.in_process:
        n_tasks = min(len(span), 64)  # several, so that progress can be told
    elif blocks[span.start].where == "delayed":
        n_tasks = len(span)
    else:
        n_tasks = 1
    return [
        range(span.start + run.start, span.start + run.stop) for run in runs(len(span), n_tasks)
    ]


def _tree_sum(executor: Executor, parts: list[Handle], layer: int, atom: int) -> Handle:
    level = [
        executor.submit(pick_moments, part, layer, atom, label="dagsel_pick") for part in parts
    ]
    while len(level) > 1:
        level = [
            executor.submit(sum_moments, level[start : start + 2], label="dagsel_sum")
            if start + 1 < len(level)
            else level[start]
            for start in range(0, len(level), 2)
        ]
    return level[0]


def pilot_shift(centred: tuple[bool, bool], block: Block, payload: Any) -> Array:
    """Return a value within the spread of each column, and zeros for what is not centred.

    The mean of some rows; but a value of a feature that half of them have, such as the zero of a
    sparse column, is taken itself: rows that equal it add exactly nothing. So a column that is
    constant in the training rows of a fold shows as such, whatever it is elsewhere.
    """
    slab = next(iter(block.slabs(payload, 4096)))
    features, targets = slab.features, slab.targets
    pilots = [
        _frequent_or_mean(features) if centred[0] else np.zeros(features.shape[1]),
        np.mean(targets, axis=0, dtype=np.float64) if centred[1] else np.zeros(targets.shape[1]),
    ]
    return to_compute(np.concatenate(pilots))


def _frequent_or_mean(features: NDArray[Any]) -> NDArray[np.float64]:
    rows = np.unique(np.linspace(0, features.shape[0] - 1, _PILOT_ROWS).astype(np.intp))
    # An odd number, so that the median is a value of its column.
    sample = np.asarray(features[rows[: len(rows) - 1 + len(rows) % 2]], dtype=np.float64)
    median = np.median(sample, axis=0)
    frequent = 2 * np.count_nonzero(sample == median, axis=0) >= len(sample)
    mean = np.mean(features, axis=0, dtype=np.float64)
    pilot: NDArray[np.float64] = np.where(frequent, median, mean)
    return pilot


def span_moments(
    blocks: Sequence[Block],
    payloads: Sequence[Any],
    layers: Sequence[Layer],
    weights: Sequence[NDArray[np.float64] | None],
    shift: Array,
    before: list[list[Moments | None]] | None = None,
    owns_before: bool = False,
) -> list[list[Moments | None]]:
    """Sum the moments of consecutive blocks, one slab in memory at a time.

    Parameters
    ----------
    blocks, payloads : sequence
        The blocks and what they were loaded to.
    layers : sequence of Layer
        Restricted to the rows of the blocks.
    weights : sequence of ndarray or None
        For each of the layers, the weights of these rows.
    shift : array of shape (p + T,)
        Subtracted from every row.
    before : list of list, optional
        Sums of earlier rows to carry on, as this function returns them.
    owns_before : bool
        Whether these may be added to in place. On a cluster not: Dask may run a task twice.

    Returns
    -------
    list (layers) of list (atoms) of Moments or None
        `None` where no row of the blocks belongs to the atom.
    """
    row_bytes = 8 * shift.shape[0]
    if before is None:
        before = [[None] * layer.n_atoms for layer in layers]
    sums = before if owns_before else [[_copied(atom) for atom in atoms] for atoms in before]
    for block, payload in zip(blocks, payloads, strict=True):
        for slab in block.slabs(payload, max(256, _READ_BYTES[block.where] // row_bytes)):
            start = slab.start - blocks[0].start
            stop = start + slab.features.shape[0]
            for layer, given, totals in zip(layers, weights, sums, strict=True):
                here = None if given is None else given[start:stop]
                for atom, rows in layer.slices(start, stop):
                    totals[atom] = _add_rows(totals[atom], slab, rows, here, shift)
    return sums


def _copied(moments: Moments | None) -> Moments | None:
    return None if moments is None else moments._replace(cross=moments.cross * 1.0)


def _add_rows(
    total: Moments | None,
    slab: Slab,
    rows: slice | NDArray[np.intp],
    weights: NDArray[np.float64] | None,
    shift: Array,
) -> Moments | None:
    """Add some rows of a slab to an atom's moments, a bounded number at a time."""
    xp = namespace(shift)
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(slab.features.shape[0])
        length = stop - start
    else:
        start, length = 0, len(rows)
    n_pieces = -(-length * 8 * shift.shape[0] // _PRODUCT_BYTES)
    for piece in runs(length, max(1, n_pieces)):
        chosen = (
            slice(start + piece.start, start + piece.stop)
            if isinstance(rows, slice)
            else rows[piece.start : piece.stop]
        )
        features, targets = to_compute(slab.features[chosen]), to_compute(slab.targets[chosen])
        weight = None if weights is None else to_compute(weights[chosen])
        total = row_moments(xp, features, targets, shift, total, weight)
    return total


def pick_moments(part: list[list[Moments | None]], layer: int, atom: int) -> Moments | None:
    """Return one atom's moments out of a span's, so that only they travel."""
    return part[layer][atom]
