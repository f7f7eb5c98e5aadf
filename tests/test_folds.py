from __future__ import annotations

import pickle
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
    LeavePOut,
    PredefinedSplit,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    TimeSeriesSplit,
    cross_val_score,
)
from sklearn.tree import DecisionTreeRegressor

from dagsel.data.folds import Folds, Layer, draw_folds
from dagsel.exceptions import DataError, NotCertifiedError

N = 48
Y = np.arange(N) % 3
GROUPS = np.arange(N) // 4

SPLITTERS: list[Any] = [
    2,
    5,
    KFold(7),
    KFold(5, shuffle=True, random_state=0),
    StratifiedKFold(4),
    StratifiedKFold(4, shuffle=True, random_state=1),
    GroupKFold(3),
    StratifiedGroupKFold(3),
    LeaveOneGroupOut(),
    GroupShuffleSplit(4, random_state=0),
    TimeSeriesSplit(5),
    TimeSeriesSplit(4, gap=2, max_train_size=10),
    ShuffleSplit(4, random_state=0),
    ShuffleSplit(3, test_size=0.1, train_size=0.3, random_state=0),
    StratifiedShuffleSplit(3, random_state=0),
    RepeatedKFold(n_splits=3, n_repeats=3, random_state=0),
    RepeatedKFold(n_splits=2, n_repeats=4, random_state=0),
    RepeatedStratifiedKFold(n_splits=4, n_repeats=2, random_state=0),
    LeaveOneOut(),
    PredefinedSplit(np.arange(N) % 4 - 1),
]


def groups_for(cv: Any) -> np.ndarray | None:
    # scikit-learn warns where groups are given but not used.
    return GROUPS if "Group" in type(cv).__name__ else None


def expected_splits(cv: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    splitter = KFold(cv) if isinstance(cv, int) else cv
    return list(splitter.split(np.zeros((N, 1)), Y, groups_for(cv)))


def assert_holds(folds: Folds, splits: list[Any]) -> None:
    """The folds are these splits, and so are the unions of atoms."""
    assert len(folds) == folds.n_folds == len(splits)
    for fold, (train, test) in zip(folds, splits, strict=True):
        np.testing.assert_array_equal(fold.train, train)
        np.testing.assert_array_equal(fold.test, test)
        assert fold.train.dtype == np.intp
    covered: list[int] = []
    for layer in folds.layers:
        assert_layer(layer, folds)
        covered += layer.folds
    assert covered == list(range(len(splits)))


def assert_layer(layer: Layer, folds: Folds) -> None:
    assert layer.labels.dtype == np.int32
    assert layer.labels.shape == (folds.n_rows,)
    members = np.unique(layer.labels[layer.labels >= 0])
    np.testing.assert_array_equal(members, np.arange(layer.n_atoms))
    first_rows = [np.flatnonzero(layer.labels == atom)[0] for atom in members]
    assert first_rows == sorted(first_rows)
    used = np.zeros(folds.n_rows, dtype=bool)
    signatures = []
    for fold in layer.folds:
        masks = folds.masks(fold)
        atoms = layer.train_atoms(fold), layer.test_atoms(fold)
        for mask, side, rows in zip(masks, atoms, folds[fold], strict=True):
            np.testing.assert_array_equal(np.isin(layer.labels, side), mask)
            np.testing.assert_array_equal(np.flatnonzero(mask), np.sort(rows))
            used |= mask
        at = layer.folds.index(fold)
        np.testing.assert_array_equal(np.flatnonzero(layer.table("train")[at]), atoms[0])
        np.testing.assert_array_equal(np.flatnonzero(layer.table("test")[at]), atoms[1])
        signatures.append(np.stack(masks))
    np.testing.assert_array_equal(used, layer.labels >= 0)
    # No more atoms than needed: each has its own signature.
    kinds = np.unique(np.concatenate(signatures)[:, used], axis=1)
    assert kinds.shape[1] == layer.n_atoms
    assert len(layer.folds) == 1 or layer.n_atoms <= len(layer.folds) + 1


@pytest.mark.parametrize("cv", SPLITTERS, ids=str)
def test_every_splitter(cv: Any) -> None:
    folds = draw_folds(cv, N, Y, groups_for(cv))
    assert_holds(folds, expected_splits(cv))
    assert not folds.has_repeats
    again = pickle.loads(pickle.dumps(folds))
    assert_holds(again, expected_splits(cv))
    assert again.digest() == folds.digest()


@pytest.mark.parametrize(
    ("cv", "atoms"),
    [
        (5, [5]),
        (KFold(5, shuffle=True, random_state=0), [5]),
        (TimeSeriesSplit(5), [6]),
        (RepeatedKFold(n_splits=5, n_repeats=3, random_state=0), [5, 5, 5]),
        (ShuffleSplit(4, test_size=0.5, random_state=0), [2, 2, 2, 2]),
        (LeaveOneOut(), [N]),
        (PredefinedSplit(np.arange(N) % 4 - 1), [4]),
        (LeaveOneGroupOut(), [N // 4]),
        ("none", [1]),
    ],
    ids=str,
)
def test_layers_are_few(cv: Any, atoms: list[int]) -> None:
    folds = draw_folds(cv, N, Y, groups_for(cv))
    assert [layer.n_atoms for layer in folds.layers] == atoms
    assert folds.layers[0] is folds.layers[0]


def test_atoms_of_plain_k_fold_are_the_test_sets() -> None:
    (layer,) = draw_folds(4, N).layers
    for fold in range(4):
        assert layer.test_atoms(fold) == (fold,)
        assert layer.train_atoms(fold) == tuple(a for a in range(4) if a != fold)


def test_none_trains_and_tests_on_all_rows() -> None:
    folds = draw_folds("none", 5)
    assert_holds(folds, [(np.arange(5), np.arange(5))])
    (layer,) = folds.layers
    assert layer.train_atoms(0) == layer.test_atoms(0) == (0,)


@st.composite
def arbitrary_splits(draw: st.DrawFn) -> tuple[int, list[Any]]:
    n_rows = draw(st.integers(1, 12))
    rows = st.lists(st.integers(0, n_rows - 1), min_size=1, max_size=n_rows, unique=True)
    return n_rows, draw(st.lists(st.tuples(rows, rows), min_size=1, max_size=8))


@settings(deadline=None, max_examples=200)
@given(arbitrary_splits())
def test_any_list_of_splits(problem: tuple[int, list[Any]]) -> None:
    # Unordered, overlapping, leaving rows out: order survives, and atoms add up.
    n_rows, splits = problem
    assert_holds(draw_folds(splits, n_rows), splits)
    masks = [[np.isin(np.arange(n_rows), side) for side in split] for split in splits]
    as_masks = draw_folds(masks, n_rows)
    assert_holds(as_masks, [[np.sort(side) for side in split] for split in splits])


@settings(deadline=None, max_examples=100)
@given(arbitrary_splits(), st.data())
def test_slices(problem: tuple[int, list[Any]], data: st.DataObject) -> None:
    n_rows, splits = problem
    start = data.draw(st.integers(0, n_rows))
    stop = data.draw(st.integers(start, n_rows))
    for layer in draw_folds(splits, n_rows).layers:
        within = layer.labels[start:stop]
        seen = np.full(stop - start, -1)
        atoms = []
        for atom, rows in layer.slices(start, stop):
            atoms.append(atom)
            assert np.all(seen[rows] == -1)
            seen[rows] = atom
            positions = np.flatnonzero(within == atom)
            consecutive = bool(np.all(np.diff(positions) == 1))
            assert isinstance(rows, slice) == consecutive
        np.testing.assert_array_equal(seen, within)
        assert atoms == sorted(set(atoms))


def test_slices_of_k_fold_are_views() -> None:
    (layer,) = draw_folds(4, 40).layers
    assert list(layer.slices()) == [(a, slice(10 * a, 10 * a + 10)) for a in range(4)]
    assert list(layer.slices(15, 25)) == [(1, slice(0, 5)), (2, slice(5, 10))]
    assert list(layer.slices(7, 7)) == []


class TestDrawnOnce:
    def test_generator(self) -> None:
        def splits() -> Iterator[tuple[list[int], list[int]]]:
            yield [0, 1], [2]
            yield [2, 1], [0]

        folds = draw_folds(splits(), 3)
        for _ in range(2):
            assert [(t.tolist(), v.tolist()) for t, v in folds] == [([0, 1], [2]), ([2, 1], [0])]

    def test_unseeded_splitter(self) -> None:
        folds = draw_folds(ShuffleSplit(3), N)
        first, second = folds.splits, folds.splits
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one.train, other.train)

    def test_folds_are_folds(self) -> None:
        folds = draw_folds(KFold(3, shuffle=True, random_state=0), N)
        assert draw_folds(folds, N) is folds
        with pytest.raises(DataError, match="rows 0 to 9"):
            draw_folds(folds, 10)

    def test_scikit_learn_takes_them(self) -> None:
        rng = np.random.default_rng(0)
        X, y = rng.standard_normal((N, 3)), rng.standard_normal(N)
        cv = ShuffleSplit(3, random_state=0)
        model = DecisionTreeRegressor(random_state=0)
        np.testing.assert_array_equal(
            cross_val_score(model, X, y, cv=draw_folds(cv, N)),
            cross_val_score(model, X, y, cv=cv),
        )


class TestChoiceOfSplitter:
    def test_integer_for_a_classifier_is_stratified(self) -> None:
        y = np.repeat([0, 1], N // 2)
        folds = draw_folds(3, N, y, classifier=True)
        assert_holds(folds, list(StratifiedKFold(3).split(y, y)))
        folds = draw_folds(np.int64(3), N, y)
        assert_holds(folds, list(KFold(3).split(y)))

    def test_none_is_five_folds(self) -> None:
        assert_holds(draw_folds(None, N), list(KFold(5).split(Y)))

    def test_splitter_that_looks_at_the_features(self) -> None:
        class ByFirstColumn:
            def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[Any]:
                yield X[:, 0] < 3, X[:, 0] >= 3

        folds = draw_folds(ByFirstColumn(), 8, X=np.arange(8.0)[:, None])
        assert folds[0].test.tolist() == [3, 4, 5, 6, 7]


def test_repeated_rows_stay_but_have_no_layers() -> None:
    splits = [([0, 0, 2, 1], [3]), ([0, 1, 2], [3])]
    folds = draw_folds(splits, 4)
    assert folds.has_repeats
    assert folds[0].train.tolist() == [0, 0, 2, 1]
    assert folds.train_sizes.tolist() == [4, 3]
    assert folds.test_sizes.tolist() == [1, 1]
    with pytest.raises(NotCertifiedError, match='engine="rows"'):
        _ = folds.layers
    assert pickle.loads(pickle.dumps(folds))[0].train.tolist() == [0, 0, 2, 1]


def test_digest_tells_folds_apart() -> None:
    variants = [
        draw_folds(3, 12),
        draw_folds(4, 12),
        draw_folds(3, 13),
        draw_folds([([0, 1], [2])], 12),
        draw_folds([([1, 0], [2])], 12),
        draw_folds([([0, 1], [2]), ([0], [2])], 12),
    ]
    assert len({folds.digest() for folds in variants}) == len(variants)
    assert draw_folds(3, 12).digest() == variants[0].digest()


@pytest.mark.parametrize(
    ("cv", "arguments", "message"),
    [
        (1, {}, "at least 2"),
        (True, {}, "at least 2"),
        (2.5, {}, "at least 2"),
        ("all", {}, '"none"'),
        (11, {}, "cv=11 folds need at least 11 rows; the table has 10"),
        (KFold(11), {}, "KFold.*cannot split the 10 rows"),
        (GroupKFold(2), {}, "Say with groups= which group each row is in"),
        (LeaveOneGroupOut(), {"groups": np.zeros(10)}, "cannot split"),
        (GroupKFold(2), {"groups": np.zeros(9)}, "groups has 9 entries, but the table has 10"),
        (5, {"y": np.zeros(11)}, "y has 11 entries"),
        (StratifiedKFold(6), {"y": [0, 1] * 5}, "cannot split"),
        (LeavePOut(10), {}, "cannot split"),
        ([], {}, "no folds"),
        (iter(()), {}, "used up"),
        ([1, 2], {}, "fold 0 of cv is not a pair"),
        ([([0], [1]), ([0], [1], [2])], {}, "fold 1 of cv is not a pair"),
        ([([0], [])], {}, "test rows of fold 0 are empty"),
        ([(np.zeros(10, bool), [0])], {}, "train rows of fold 0 are empty"),
        ([([0], [1]), ([0], [10])], {}, "test rows of fold 1 name row 10, .* rows 0 to 9"),
        ([([-1], [1])], {}, "train rows of fold 0 name row -1"),
        ([(np.ones(9, bool), [1])], {}, "mask of 9 entries"),
        ([([0.5], [1])], {}, "float64"),
        ([([[0]], [1])], {}, "one-dimensional"),
    ],
)
def test_unusable_folds_are_explained(cv: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw_folds(cv, 10, **arguments)


def test_scikit_learns_warnings_pass() -> None:
    with pytest.warns(UserWarning, match="least populated class"):
        draw_folds(3, 10, [0] * 9 + [1], classifier=True)
    with pytest.warns(UserWarning, match="groups parameter is ignored"):
        draw_folds(3, 10, groups=np.zeros(10))


def test_no_rows() -> None:
    with pytest.raises(DataError, match="no rows"):
        draw_folds(5, 0)


def test_scikit_learns_error_is_the_cause() -> None:
    with pytest.raises(DataError) as caught:
        draw_folds(KFold(11), 10)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "n_splits=11" in str(caught.value)


def test_leave_one_out_of_two_thousand_rows() -> None:
    tracemalloc.start()
    started = time.thread_time()
    folds = draw_folds(LeaveOneOut(), 2000)
    (layer,) = folds.layers
    elapsed = time.thread_time() - started
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert layer.n_atoms == 2000
    assert len(layer.train_atoms(7)) == 1999
    assert kept < 5e6  # index lists would take 32 MB
    assert peak < 10e6
    # CPU seconds, so that other processes do not count; measured 1.
    assert elapsed < 15.0


def test_a_million_rows() -> None:
    cv = KFold(5, shuffle=True, random_state=0)
    started = time.thread_time()
    list(cv.split(np.zeros((10**6, 1))))
    drawn = time.thread_time()
    folds = draw_folds(cv, 10**6)
    (layer,) = folds.layers
    sizes = {atom: len(rows) for atom, rows in layer.slices() if not isinstance(rows, slice)}
    done = time.thread_time()
    assert sizes == dict.fromkeys(range(5), 200_000)
    assert len(pickle.dumps(folds)) < 1.3e6 * 1.01
    # About twice what scikit-learn takes for the same lists of rows, which it draws on the way.
    assert done - drawn < 20 * (drawn - started)
