"""Sources of rows: whatever users have gives the same table, and says what is wrong with it."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import pickle
import sys
import tracemalloc
import types
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from dagsel.data import csv_scan, csv_text, frames
from dagsel.data.sources import open_table, scan, split_blocks
from dagsel.exceptions import DagselWarning, DataError

N = 60


def read(table, max_rows=7):
    """Return all rows of a table, as engines read them, and check that the slabs are in order."""
    features, targets, at = [], [], 0
    for block in table.blocks:
        assert block.start == at
        block = pickle.loads(pickle.dumps(block))
        payload = block.payload.compute() if block.where == "delayed" else block.payload
        for slab in block.slabs(payload, max_rows):
            assert slab.start == at
            assert slab.features.shape == (len(slab.targets), table.n_columns)
            assert 0 < len(slab.features) <= max_rows
            assert slab.targets.ndim == 2
            features.append(slab.features)
            targets.append(slab.targets)
            at += len(slab.features)
        assert at == block.stop
    assert at == table.n_rows == len(table.target)
    return np.concatenate(features), np.concatenate(targets)


def native(table):
    parts = [
        block.native(block.payload.compute() if block.where == "delayed" else block.payload)
        for block in table.blocks
    ]
    targets = [pd.Series(y) if isinstance(y, np.ndarray) else y for _, y in parts]
    return pd.concat([part[0] for part in parts]), pd.concat(targets)


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=N),
            "b": rng.integers(-5, 5, N),
            "flag": rng.random(N) > 0.5,
            "tiny": rng.normal(size=N) * 1e-300,
            "y": rng.normal(size=N),
        }
    )


@pytest.fixture
def arrays(frame):
    return frame.drop(columns="y").to_numpy(np.float64), frame["y"].to_numpy()


def check(table, arrays, max_rows=7):
    features, targets = read(table, max_rows)
    np.testing.assert_array_equal(features, arrays[0])
    np.testing.assert_array_equal(targets, arrays[1].reshape(len(targets), -1))
    np.testing.assert_array_equal(table.target, arrays[1])


# --- arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_arrays_are_passed_on_as_views(arrays, dtype, order):
    X = np.asarray(arrays[0], dtype=dtype, order=order)
    X.flags.writeable = False
    table = open_table(X, arrays[1])
    assert table.native[0] is X
    assert len(table.blocks) == 1
    assert table.blocks[0].where == "memory"
    assert table.names is None
    for slab in table.blocks[0].slabs(table.blocks[0].payload, 9):
        assert np.shares_memory(slab.features, X)
        assert slab.features.dtype == X.dtype
    np.testing.assert_array_equal(read(table)[0], X)


@pytest.mark.parametrize("dtype", ["i1", "u8", "?", "f2", ">f8", "g", object])
def test_other_numbers_become_double_precision(dtype):
    X = np.arange(12).reshape(4, 3).astype(dtype)
    features, _ = read(open_table(X, np.arange(4)))
    assert features.dtype == np.float64
    assert features.dtype.isnative
    np.testing.assert_array_equal(features, X.astype(np.float64))


def test_memory_map_and_lists(tmp_path, arrays):
    np.save(tmp_path / "x.npy", arrays[0])
    check(open_table(np.load(tmp_path / "x.npy", mmap_mode="r"), arrays[1]), arrays)
    check(open_table(arrays[0].tolist(), arrays[1].tolist()), arrays)
    assert open_table([[1, 2], [3, 4]], [1, 0]).target.dtype.kind == "i"


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_one_target(arrays, shape):
    table = open_table(arrays[0], arrays[1].reshape(shape))
    assert table.target.shape == (N,)
    check(table, arrays)


def test_several_targets(arrays):
    y = np.column_stack([arrays[1], -arrays[1]])
    check(open_table(arrays[0], y), (arrays[0], y))


def test_class_labels_stay_and_only_slabs_refuse_them(arrays):
    y = np.where(arrays[1] > 0, "yes", "no")
    for labels in (y, pd.Series(y), pd.Series(y, dtype="category"), y.tolist()):
        table = open_table(arrays[0], labels)
        assert table.target.tolist() == y.tolist()
        with pytest.raises(DataError, match="LabelEncoder"):
            read(table)


def test_object_target_of_numbers():
    table = open_table(np.eye(3), np.array([1, 0, 1], dtype=object))
    assert table.target.dtype.kind == "i"


@pytest.mark.parametrize("n", [1, 2, 7, N, 1000])
def test_split_blocks(arrays, frame, n):
    table = split_blocks(open_table(*arrays), n)
    sizes = [block.n_rows for block in table.blocks]
    assert len(sizes) == min(n, N)
    assert max(sizes) - min(sizes) <= 1
    assert np.shares_memory(table.blocks[-1].payload[0], arrays[0])
    check(table, arrays)
    check(split_blocks(open_table(frame, "y"), n), arrays)


def test_split_blocks_pickles_only_its_rows():
    X = np.zeros((1000, 100))
    table = split_blocks(open_table(X, np.zeros(1000)), 10)
    assert len(pickle.dumps(table.blocks[3])) < X.nbytes / 9


# --- frames -----------------------------------------------------------------------------------


def test_pandas(frame, arrays):
    table = open_table(frame, "y")
    assert table.names == ("a", "b", "flag", "tiny")
    check(table, arrays)
    assert table.native[0].dtypes.tolist() == frame.dtypes.tolist()[:-1]
    check(open_table(frame[["a", "b", "flag", "tiny"]], frame["y"]), arrays)
    check(open_table(frame[["a", "b", "flag", "tiny"]], frame[["y"]]), arrays)
    both = open_table(frame, ["y", "b"])
    assert both.names == ("a", "flag", "tiny")
    assert both.target.shape == (N, 2)


def test_pandas_labels_keep_their_type(arrays):
    X = pd.DataFrame(arrays[0])
    table = open_table(X, arrays[1])
    assert table.names == (0, 1, 2, 3)
    assert all(type(name) is int for name in table.names)
    slab = next(table.blocks[0].slabs(table.blocks[0].payload, 100))
    assert np.shares_memory(slab.features, X.to_numpy())
    assert open_table(X, 3).n_columns == 3


def test_pandas_nullable_and_arrow_types(frame, arrays):
    for backend in ("numpy_nullable", "pyarrow"):
        converted = frame.convert_dtypes(dtype_backend=backend)
        check(open_table(converted, "y"), arrays)


def test_pandas_single_precision_stays(arrays):
    X = pd.DataFrame(arrays[0].astype(np.float32), columns=list("abcd"))
    assert read(open_table(X, arrays[1]))[0].dtype == np.float32


def test_pandas_object_columns_of_numbers(frame, arrays):
    check(open_table(frame.astype({"b": object}), "y"), arrays)
    X = frame.astype({"b": object})
    X.loc[3, "b"] = "x"
    with pytest.raises(DataError, match=r"Column 'b' holds 'x'.*row 3 \(counting"):
        read(open_table(X, "y"), 2)


def test_polars(frame, arrays):
    pl = pytest.importorskip("polars")
    X = pl.from_pandas(frame)
    for table in (open_table(X, "y"), open_table(X.drop("y"), X["y"])):
        assert table.names == ("a", "b", "flag", "tiny")
        assert isinstance(table.native[0], pl.DataFrame)
        check(table, arrays)
        check(split_blocks(table, 4), arrays)
    single = X.drop("y").cast(pl.Float32)
    assert read(open_table(single, X["y"]))[0].dtype == np.float32
    with pytest.raises(DataError, match="collect"):
        open_table(X.lazy(), "y")
    with pytest.raises(DataError, match=r"'name' \(String\)"):
        read(open_table(X.with_columns(name=pl.lit("x")), "y"))
    with pytest.raises(DataError, match=r"'b' has a missing value.*row 0"):
        read(open_table(X.with_columns(b=pl.lit(None, pl.Int64)), "y"))


def test_cudf_and_cupy_are_copied_to_the_host_slab_by_slab(monkeypatch, frame, arrays):
    """Stand-ins with the few methods used, since the libraries need a GPU to import."""

    class ndarray:  # noqa: N801
        def __init__(self, values):
            self.values, self.shape, self.ndim = values, values.shape, values.ndim
            self.dtype = values.dtype

        def __len__(self):
            return len(self.values)

        def __getitem__(self, rows):
            return ndarray(self.values[rows])

        def get(self):
            return self.values

    cupy = types.ModuleType("cupy")
    cupy.ndarray = ndarray
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    X = ndarray(arrays[0])
    table = open_table(X, ndarray(arrays[1]))
    assert table.native[0] is X
    features = [slab.features for slab in table.blocks[0].slabs(table.blocks[0].payload, 7)]
    np.testing.assert_array_equal(np.concatenate(features), arrays[0])
    np.testing.assert_array_equal(table.target, arrays[1])
    assert not frames.is_frame(X)


# --- errors of what is in memory ----------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("order", ["C", "F"])
def test_non_finite_features(arrays, value, order):
    X = np.array(arrays[0], order=order)
    X[41, 2] = value
    X[45, 1] = value
    what = "missing" if np.isnan(value) else "infinite"
    with pytest.raises(DataError, match=rf"Column 2 \(counting.*{what}.*row 41 .*below: 1\."):
        read(open_table(X, arrays[1]), 10)
    named = pd.DataFrame(X, columns=list("abcd"))
    with pytest.raises(DataError, match=rf"Column 'c'.*{what}.*row 41"):
        read(open_table(named, arrays[1]), 10)


def test_huge_values_are_finite():
    X = np.full((10, 3), 1e308)
    assert read(open_table(X, np.ones(10)))[0].max() == 1e308
    X32 = np.full((10, 3), 3e38, np.float32)
    read(open_table(X32, np.ones(10)))


@pytest.mark.parametrize(
    ("y", "row"),
    [
        (np.r_[np.zeros(5), np.nan, np.nan], 5),
        (np.r_[np.inf, np.zeros(6)], 0),
        (np.array(["a", None, "b", "a", "b", "a", "b"], dtype=object), 1),
        (pd.Series([1, 2, None, 1, 1, 1, 1], dtype="Int64"), 2),
        (pd.Series(["a", "b", "a", None, "a", "b", "c"], dtype="category"), 3),
    ],
)
def test_missing_target(y, row):
    with pytest.raises(DataError, match=rf"target is missing or infinite in row {row} "):
        open_table(np.zeros((7, 2)), y)


def test_unusable_arrays(arrays, frame):
    X, y = arrays
    bad = [
        ((X, y[:-1]), "X has 60 rows and y has 59"),
        ((X, None), "y is missing"),
        ((X, "y"), "no column labels"),
        ((X[:0], y[:0]), "no rows"),
        ((X[:, :0], y), "no feature columns"),
        ((X[:, 0], y), r"reshape\(-1, 1\)"),
        ((X[None], y), "3 dimension"),
        ((X, X[None]), "3 dimensions"),
        ((X * 1j, y), "complex128"),
        ((X.astype("M8[s]"), y), "datetime64"),
        ((sparse.csr_matrix(X), y), "sparse"),
        ((sparse.csr_array(X), y), "sparse"),
        (([[1, 2], [3]], [1, 2]), "Cannot make an array"),
        (([["u", "1"], ["2", "3"]], [1, 2]), "Column 0 .*'u'"),
        ((np.ma.masked_greater(X, 0.5), y), "masked"),
        ((frame, "yy"), "Did you mean 'y'"),
        ((frame[["y"]], "y"), "no feature columns"),
        ((pd.concat([frame, frame], axis=1), y), "more than once: 'a'"),
        ((pa.table({"a": [1]}), [1]), "to_pandas"),
        ((np.datetime64("2020-01-01") + np.zeros((3, 2), "m8[D]"), [1, 2, 3]), "datetime64"),
    ]
    for given_, message in bad:
        with pytest.raises(DataError, match=message):
            open_table(*given_)


def test_columns_that_are_no_numbers(frame):
    X = frame.assign(city="x", kind=pd.Categorical(["u"] * N), day=pd.Timestamp(2024, 1, 1))
    table = open_table(X, "y")
    with pytest.raises(DataError, match=r"'city' \(.*'kind' \(category\), 'day' \(datetime64"):
        read(table)
    assert table.blocks[0].native(table.blocks[0].payload)[0]["city"].iloc[0] == "x"


def test_target_in_dates_is_refused_by_slabs():
    table = open_table(np.eye(2), np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"))
    with pytest.raises(DataError, match="datetime64"):
        read(table)


# --- CSV ----------------------------------------------------------------------------------------


def csv_text_of(frame, **options):
    return frame.to_csv(index=False, **options)


@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", ["as is", "none", "blank lines"])
def test_csv_blocks_equal_pandas(tmp_path, frame, arrays, block_bytes, newline, ending):
    text = csv_text_of(frame, lineterminator=newline)
    text = {
        "as is": text,
        "none": text.removesuffix(newline),
        "blank lines": text + newline + "  " + newline * 3,
    }[ending]
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    table = open_table(scan(path, target="y", block_bytes=block_bytes))
    assert table.names == ("a", "b", "flag", "tiny")
    assert table.native is None
    assert {block.where for block in table.blocks} == {"file"}
    assert (len(table.blocks) > 1) == (block_bytes < 1 << 20)
    assert block_bytes > 1 or len(table.blocks) == N
    check(table, arrays)
    expected = pd.read_csv(path)
    X, y = native(table)
    pd.testing.assert_frame_equal(X, expected.drop(columns="y"), rtol=1e-14)
    pd.testing.assert_series_equal(y, expected["y"], rtol=1e-14)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", None)],
)
@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
def test_compressed_csv_is_one_block_a_file(tmp_path, frame, arrays, suffix, compress, block_bytes):
    compress = compress or (lambda data: pa.compress(data, "zstd", asbytes=True))
    paths = []
    for i, part in enumerate([frame[:25], frame[25:]]):
        paths.append(tmp_path / f"t{i}.csv{suffix}")
        paths[i].write_bytes(compress(csv_text_of(part).encode()))
    table = open_table(scan(paths, target="y", block_bytes=block_bytes))
    assert [block.n_rows for block in table.blocks] == [25, 35]
    check(table, arrays)
    assert native(table)[0].shape == (N, 4)


def test_paths_globs_lists_and_urls(tmp_path, frame, arrays, monkeypatch):
    for i in range(3):
        frame[20 * i : 20 * i + 20].to_csv(tmp_path / f"part-{i}.csv", index=False)
    files = [tmp_path / f"part-{i}.csv" for i in range(3)]
    monkeypatch.chdir(tmp_path)
    for paths in (
        files,
        [str(file) for file in files],
        str(tmp_path / "part-*.csv"),
        "part-?.csv",
        ["part-0.csv", str(tmp_path / "part-[12].csv")],
        f"file://{tmp_path}/part-*.csv",
    ):
        check(open_table(paths, "y"), arrays)
    backwards = open_table(files[::-1], "y")
    np.testing.assert_array_equal(backwards.target[:20], arrays[1][40:])
    assert all(Path(block.payload.path).is_absolute() for block in backwards.blocks)


def test_memory_urls(frame, arrays):
    memory = fsspec.filesystem("memory")
    with memory.open("/dagsel/t.csv", "wb") as file:
        file.write(csv_text_of(frame).encode())
    with memory.open("/dagsel/t.parquet", "wb") as file:
        frame.to_parquet(file)
    try:
        check(open_table("memory://dagsel/t.csv", "y"), arrays)
        check(open_table("memory://dagsel/*.csv", "y"), arrays)
        check(open_table("memory://dagsel/t.parquet", "y"), arrays)
    finally:
        memory.rm("/dagsel", recursive=True)


def test_file_whose_name_looks_like_a_pattern(tmp_path, frame, arrays):
    frame.to_csv(tmp_path / "t[1].csv", index=False)
    check(open_table(tmp_path / "t[1].csv", "y"), arrays)


def test_tsv_bom_and_quoted_header(tmp_path, frame, arrays):
    renamed = frame.rename(columns={"a": 'a\nwith, quotes "x"'})
    path = tmp_path / "t.tsv"
    renamed.to_csv(path, index=False, sep="\t", encoding="utf-8-sig")
    table = open_table(path, "y")
    assert table.names[0] == 'a\nwith, quotes "x"'
    check(table, arrays)
    quoted = tmp_path / "t.txt"
    frame.to_csv(quoted, index=False, quoting=csv.QUOTE_ALL, encoding="utf-8-sig")
    check(open_table(scan(quoted, target="y", format="csv", block_bytes=50)), arrays)


def test_scan_chooses_columns(tmp_path, frame):
    frame.to_csv(tmp_path / "t.csv", index=False)
    chosen = scan(tmp_path / "t.csv", target="y", columns=["tiny", "a", "flag"], drop=["flag"])
    assert chosen.features == ("tiny", "a")
    np.testing.assert_array_equal(read(open_table(chosen))[0], frame[["tiny", "a"]])
    both = open_table(scan(tmp_path / "t.csv", target=["y", "b"], block_bytes=200))
    np.testing.assert_array_equal(both.target, frame[["y", "b"]])
    np.testing.assert_array_equal(read(both)[1], frame[["y", "b"]])
    assert list(native(both)[1]) == ["y", "b"]
    assert pickle.loads(pickle.dumps(chosen)) == chosen
    assert "2 features" in repr(chosen)
    one = scan(tmp_path / "t.csv", target="y", storage_options={"auto_mkdir": False})
    assert "auto_mkdir" not in repr(one)


def test_text_with_newlines_and_stray_quotes(tmp_path):
    notes = ["plain", "two\nlines", 'a "quoted" word', ',"\n",\r\n"', "", '5" pipe', '\n"'] * 20
    rows = pd.DataFrame({"note": notes, "x": np.arange(140.0), "y": np.arange(140)})
    path = tmp_path / "t.csv"
    rows.to_csv(path, index=False)
    # What no writer of CSV would do, but people do: a quote inside of an unquoted field.
    path.write_text(path.read_text() + '6" pipe,140,140\n"7"" pipe\n",141,141\n8" pipe,142,142\n')
    for block_bytes in (1, 10, 37, 200, 1 << 20):
        table = open_table(scan(path, target="y", drop=["note"], block_bytes=block_bytes))
        check(table, (np.arange(143.0)[:, None], np.arange(143)))
        kept = open_table(scan(path, target="y", block_bytes=block_bytes))
        X, _ = native(kept)
        expected = pd.read_csv(path)["note"]
        assert (
            X["note"].fillna("").tolist()
            == expected.fillna("").str.replace("\r\n", "\r\n").tolist()
        )


FIELDS = st.text(alphabet='ab ",\n\r\t;é', max_size=6).filter(lambda s: s.strip() == s)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    notes=st.lists(FIELDS, min_size=1, max_size=25),
    block_bytes=st.integers(1, 60),
    newline=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    position=st.integers(0, 2),
    final=st.booleans(),
)
def test_any_quoted_text_is_cut_as_pandas_reads_it(
    tmp_path_factory, notes, block_bytes, newline, quoting, position, final
):
    if any("\r" in note for note in notes):
        quoting = csv.QUOTE_ALL  # the writer does not see a line end in a bare \r
    names = ["x", "y"]
    names.insert(position, "note")
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, names, lineterminator=newline, quoting=quoting)
    writer.writeheader()
    writer.writerows({"note": note, "x": i, "y": -i} for i, note in enumerate(notes))
    text = out.getvalue() if final else out.getvalue().removesuffix(newline)
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(text.encode())
    expected = pd.read_csv(path, keep_default_na=False, dtype={"note": str})
    table = open_table(scan(path, target="y", drop=["note"], block_bytes=block_bytes))
    check(table, (expected[["x"]].to_numpy(np.float64), expected["y"].to_numpy()))


@given(text=st.text(alphabet='a,"\n', max_size=40))
@settings(max_examples=300, deadline=None)
def test_row_ends_agree_whatever_the_quotes(text):
    """Counting quotes cuts where going through the fields does."""
    data = text.encode()
    walked = max(data.rfind(b"\n", *span) for span in csv_text._outside(data, ",")) + 1
    assert csv_text.last_row_end(data, ",") == walked


def test_quotes_over_the_steps_of_the_count(monkeypatch):
    text = b'"a\n",1\n"b""\n",2\n' * 50 + b'"open\n'
    whole = csv_text.last_row_end(text, ",")
    assert whole == len(text) - 6
    for step in range(1, 12):
        monkeypatch.setattr(csv_text, "_STEP", step)
        assert csv_text.last_row_end(text, ",") == whole
        assert csv_text._quotes_are_regular(np.frombuffer(text, np.uint8), ord(","))
        assert csv_text.measure(b"1,2\n" * 10 + b"333,4\n").parse_bytes >= 6


def test_target_dtypes(tmp_path):
    def target_of(values, **options):
        text = "x,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values))
        (tmp_path / "t.csv").write_text(text)
        return open_table(scan(tmp_path / "t.csv", target="y", **options))

    for size in (10, 1 << 20):
        assert target_of([1, 2, 3] * 5, block_bytes=size).target.dtype == np.int64
        floats = target_of([1, 2, 3] * 5 + [0.5], block_bytes=size)
        assert floats.target.dtype == np.float64
        assert floats.target[-1] == 0.5
        bools = target_of(["true", "false"] * 5, block_bytes=size)
        assert bools.target.dtype == bool
        assert read(bools)[1].sum() == 5
        # Labels that look like numbers in most rows keep their spelling.
        labels = ["01", "02", "1.50", "true"] * 5 + ["x"]
        text = target_of(labels, block_bytes=size)
        assert text.target.tolist() == labels
        assert native(text)[1].tolist() == labels
        with pytest.raises(DataError, match="target 'y' holds text"):
            read(text)


def test_labels_that_are_numbers_in_one_file_only(tmp_path):
    (tmp_path / "0.csv").write_text("x,y\n1,07\n2,08\n")
    (tmp_path / "1.csv").write_text("x,y\n1,a\n2,b\n")
    table = open_table(str(tmp_path / "*.csv"), "y")
    assert table.target.tolist() == ["07", "08", "a", "b"]
    assert native(table)[1].tolist() == ["07", "08", "a", "b"]


def test_run_gets_picklable_work(tmp_path, frame, arrays):
    calls = []

    def run(function, items):
        calls.append(list(items))
        return [pickle.loads(pickle.dumps(function))(item) for item in items]

    for name, write in (("csv", frame.to_csv), ("parquet", frame.to_parquet)):
        write(tmp_path / f"t.{name}", index=False)
        check(open_table(tmp_path / f"t.{name}", "y", run=run), arrays)
    assert [len(items) for items in calls] == [1, 1]


def test_mixed_columns_come_back_natively(tmp_path):
    rows = pd.DataFrame(
        {
            "n": [1, 2, 3, 4],
            "gap": [1.0, np.nan, np.nan, 2.0],
            "city": ["x", None, "y", "z"],
            "y": [0.5, 1, 2, 3],
        }
    )
    for name in ("t.csv", "t.parquet"):
        path = tmp_path / name
        if name == "t.csv":
            rows.to_csv(path, index=False)
        else:
            rows.to_parquet(path, row_group_size=2)
        X, y = native(open_table(scan(path, target="y", block_bytes=12)))
        pd.testing.assert_frame_equal(X, rows.drop(columns="y"))
        pd.testing.assert_series_equal(y, rows["y"])


def test_wide_rows_longer_than_a_block(tmp_path):
    X = np.random.default_rng(1).normal(size=(9, 3000))
    wide = pd.DataFrame(X).rename(columns=str)
    wide["y"] = np.arange(9.0)
    wide.to_csv(tmp_path / "w.csv", index=False)
    (tmp_path / "w.csv.gz").write_bytes(gzip.compress((tmp_path / "w.csv").read_bytes()))
    for name in ("w.csv", "w.csv.gz"):
        table = open_table(scan(tmp_path / name, target="y", block_bytes=1000))
        check(table, (X, np.arange(9.0)), 4)


def bad_csv(tmp_path, text, message, name="bad.csv", **options):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message) as caught:
        read(open_table(scan(path, target="y", **options)))
    pickle.loads(pickle.dumps(caught.value))
    assert name in str(caught.value)


@pytest.mark.parametrize("block_bytes", [12, 1 << 20])
def test_bad_cells(tmp_path, block_bytes):
    rows = [f"{i},{i}.5,{i}" for i in range(30)]

    def with_row(i, row):
        return "\n".join(["a,b,y", *rows[:i], row, *rows[i + 1 :]])

    options = {"block_bytes": block_bytes}
    bad_csv(tmp_path, with_row(17, "1,,3"), r"Column 'b' has no value in data row 18 ", **options)
    bad_csv(tmp_path, with_row(17, "1,NA,3"), r"Column 'b' has no value in data row 18", **options)
    bad_csv(tmp_path, with_row(17, "1,inf,3"), r"'b' has an infinite.*data row 18 of", **options)
    bad_csv(tmp_path, with_row(17, "1,x1,3"), r"'b' has 'x1',.*number, in data row 18 ", **options)
    bad_csv(tmp_path, with_row(17, "1,2,"), r"target 'y' has no value in data row 18", **options)
    bad_csv(tmp_path, with_row(17, "1,2,inf"), r"target is .*infinite in data row 18", **options)
    bad_csv(tmp_path, with_row(17, "1,2"), r"line 19: 2 fields instead of 3: '1,2'", **options)
    bad_csv(tmp_path, with_row(17, "1,2,3,4"), r"line 19: 4 fields instead of 3", **options)
    gz = gzip.compress(with_row(17, "1,x1,3").encode())
    bad_csv(tmp_path, gz, r"'b' has 'x1',.*number, in data row 18 ", "bad.csv.gz", **options)


def test_text_columns_are_named_together(tmp_path, monkeypatch):
    text = "a,city,land,y\n1,2,x,1\n1,Oslo,x,1\n"
    bad_csv(tmp_path, text, r"'land' has 'x'|'city' has 'Oslo'.*data row 2 .*of text: 'land'")
    monkeypatch.setattr(csv_scan, "_HEAD_BYTES", 10)
    text = "flag,y\ntrue,1\nfalse,0\nmaybe,1\n"
    bad_csv(tmp_path, text, "'flag' has 'maybe', which is not true or false, in data row 3 of")


def test_bad_files(tmp_path, frame):
    bad_csv(tmp_path, "", "is empty")
    bad_csv(tmp_path, "a,a,y\n1,2,3\n", "same name: 'a'")
    bad_csv(tmp_path, "a,y\n1,2\n".encode("utf-16"), "no UTF-8")
    bad_csv(tmp_path, "a,y\n1,2\n".encode("utf-16-le"), "no UTF-8")
    bad_csv(tmp_path, "\xe9,y\n1,2\n".encode("latin-1"), "no UTF-8")
    bad_csv(tmp_path, "a,y\r1,2\r3,4\r", "carriage return")
    bad_csv(tmp_path, "a,b\n1,2\n", "No column 'y'.*It has 'a', 'b'")
    bad_csv(tmp_path, "yield,b\n1,2\n", "No column 'y'")
    bad_csv(tmp_path, 'a,y\n1,2\n"3,4\n', "bad.csv", block_bytes=4)
    (tmp_path / "empty.csv").write_text("a,y\n")
    with pytest.raises(DataError, match="no rows"):
        open_table(tmp_path / "empty.csv", "y")
    (tmp_path / "t.csv").write_text("feature_1,y\n1,2\n")
    with pytest.raises(DataError, match=r"No column 'featuer_1' \(to be.*mean 'feature_1'"):
        scan(tmp_path / "t.csv", target="y", drop=["featuer_1"])
    for options, message in [
        ({"target": "y", "drop": ["y"]}, "named twice"),
        ({"target": "y", "drop": "feature_1"}, "No feature columns"),
        ({"target": ["y", "y"]}, "named twice"),
        ({"target": []}, "empty list"),
        ({"target": "y", "columns": ["feature_1"] * 2}, "more than once"),
        ({"target": "y", "format": "xlsx"}, "Give"),
        ({"target": "y", "block_bytes": 0}, "positive"),
    ]:
        with pytest.raises(DataError, match=message):
            scan(tmp_path / "t.csv", **options)


def test_row_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_text, "LONGEST_ROW", 1000)
    bad_csv(tmp_path, 'a,y\n1,2\n"' + "3,4\n" * 1000, "quote that is not closed", block_bytes=100)
    bad_csv(tmp_path, "a" * 300000, "no line end")


def test_unnamed_column(tmp_path, frame, arrays):
    frame.to_csv(tmp_path / "t.csv")
    with pytest.warns(DagselWarning, match="row index"):
        table = open_table(tmp_path / "t.csv", "y")
    assert table.names[0] == "Unnamed: 0"
    check(open_table(scan(tmp_path / "t.csv", target="y", drop=["Unnamed: 0"])), arrays)


def test_files_that_differ(tmp_path):
    (tmp_path / "0.csv").write_text("a,b,y\n1,2,3\n")
    for header, message in [
        ("a,y", "'b' missing"),
        ("a,b,c,y", "'c' added"),
        ("b,a,y", "another order"),
    ]:
        (tmp_path / "1.csv").write_text(f"{header}\n" + ",".join("1" * (header.count(",") + 1)))
        with pytest.raises(DataError, match=rf"1\.csv.*{message}"):
            open_table(str(tmp_path / "*.csv"), "y")


def test_bad_paths(tmp_path, frame):
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.data").write_text("x")
    (tmp_path / "folder").mkdir()
    for path, y, message in [
        (tmp_path / "none.csv", "y", "No such file"),
        (str(tmp_path / "none-*.csv"), "y", "No such file"),
        (tmp_path / "folder", "y", "No data file in"),
        (tmp_path / "t.data", "y", "Cannot tell the format"),
        ([tmp_path / "t.csv", tmp_path / "t.parquet"], "y", "different formats"),
        ([tmp_path / "t.csv", tmp_path / "t.csv"], "y", "more than once"),
        (tmp_path / "t.csv", None, "name of the target"),
        (tmp_path / "t.csv", np.zeros(N), "name of the target"),
    ]:
        with pytest.raises(DataError, match=message):
            open_table(path, y)
    with pytest.raises(DataError, match="Leave y out"):
        open_table(scan(tmp_path / "t.csv", target="y"), frame["y"])
    with pytest.raises(DataError, match="no readable Parquet"):
        scan(tmp_path / "t.data", target="y", format="parquet")


def test_file_that_changes_after_the_scan(tmp_path, frame):
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = open_table(tmp_path / "t.csv", "y")
    for part in (frame[:10], pd.concat([frame[["a", "b", "flag", "tiny", "y"]].head(1)] * 500)):
        part.astype(int).to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(DataError, match="changed since"):
            read(table)
    (tmp_path / "t.csv").unlink()
    with pytest.raises(DataError, match="Every worker must see"):
        read(table)


def test_memory_of_a_scan_is_bounded(tmp_path):
    line = b"1.25,2.5,3\n"
    with (tmp_path / "big.csv").open("wb") as file:
        file.write(b"a,b,y\n")
        for _ in range(24):
            file.write(line * 100_000)
    scanned = scan(tmp_path / "big.csv", target="y", block_bytes=1 << 20)
    before = pa.total_allocated_bytes()
    table = open_table(scanned)
    assert table.n_rows == 2_400_000
    tracemalloc.start()
    for block in table.blocks[:3]:
        for slab in block.slabs(block.payload, 1000):
            assert slab.features.shape == (min(1000, len(slab.features)), 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert pa.total_allocated_bytes() - before < 4 << 20


# --- Parquet ------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 7, 1000])
@pytest.mark.parametrize("block_bytes", [1, 500, 32 << 20])
def test_parquet_row_groups(tmp_path, frame, arrays, group, block_bytes):
    path = tmp_path / "t.parquet"
    frame.to_parquet(path, row_group_size=group)
    table = open_table(scan(path, target="y", block_bytes=block_bytes))
    if block_bytes == 1:
        assert len(table.blocks) == -(-N // group)
    check(table, arrays)
    X, y = native(table)
    pd.testing.assert_frame_equal(X, frame.drop(columns="y"))
    pd.testing.assert_series_equal(y, frame["y"])


def test_parquet_folder(tmp_path, frame, arrays):
    folder = tmp_path / "t.parquet"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    frame[:33].to_parquet(folder / "part-0.parquet")
    frame[33:].to_parquet(folder / "part-1.parquet")
    check(open_table(folder, "y"), arrays)
    check(open_table(str(tmp_path / "*.parquet"), "y"), arrays)
    (folder / "k=1").mkdir()
    frame.to_parquet(folder / "k=1" / "part.parquet")
    with pytest.raises(DataError, match=r"partitioned by a column \('k=1'\)"):
        open_table(folder, "y")


def test_huge_row_group_is_read_in_batches(tmp_path):
    n = 200_000
    X = np.random.default_rng(0).normal(size=(n, 20))
    rows = pa.table({f"x{j}": X[:, j] for j in range(20)} | {"y": X[:, 0]})
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=n, use_dictionary=False)
    del rows
    table = open_table(tmp_path / "t.parquet", "y")
    assert len(table.blocks) == 1
    before = pa.total_allocated_bytes()
    block, at, most = table.blocks[0], 0, 0
    for slab in block.slabs(block.payload, 4096):
        np.testing.assert_array_equal(slab.features, X[at : at + len(slab.features)])
        at += len(slab.features)
        most = max(most, pa.total_allocated_bytes() - before)
    assert at == n
    assert most < X.nbytes / 2


def test_parquet_types(tmp_path):
    rows = pa.table(
        {
            "i8": pa.array([1, -2, 3], pa.int8()),
            "u64": pa.array([1, 2, 2**60 + 1], pa.uint64()),
            "flag": [True, False, True],
            "money": pa.array([1, 2, 3]).cast(pa.decimal128(23, 2)),
            "f4": pa.array([1.5, 2.5, 3.5], pa.float32()),
            "code": pa.array([5, 5, 6]).dictionary_encode(),
            "with.dot": [1.0, 2.0, 3.0],
            "with": [4.0, 5.0, 6.0],
            "y": pa.array(["u", "v", "u"]).dictionary_encode(),
            "z": pa.array([1, 2, 3]).cast(pa.decimal128(23, 2)),
        }
    )
    pq.write_table(rows, tmp_path / "t.parquet")
    table = open_table(scan(tmp_path / "t.parquet", target="z", drop=["y"]))
    features, targets = read(table)
    np.testing.assert_array_equal(features[2], [3, 2.0**60, 1, 3, 3.5, 6, 3, 6])
    np.testing.assert_array_equal(targets[:, 0], [1, 2, 3])
    single = open_table(scan(tmp_path / "t.parquet", target="z", columns=["f4"]))
    assert read(single)[0].dtype == np.float32
    labels = open_table(scan(tmp_path / "t.parquet", target="y", columns=["f4"]))
    assert labels.target.tolist() == ["u", "v", "u"]
    with pytest.raises(DataError, match=r"'y' \(dictionary"):
        read(labels)


def test_parquet_pandas_index_is_no_feature(tmp_path, frame, arrays):
    frame.set_index(pd.Index([0, 3, 5] * 20, name="id")).to_parquet(tmp_path / "t.parquet")
    check(open_table(tmp_path / "t.parquet", "y"), arrays)
    asked = scan(tmp_path / "t.parquet", target="y", columns=["id", "a"])
    assert read(open_table(asked))[0][1, 0] == 3
    assert native(open_table(asked))[0].columns.tolist() == ["id", "a"]


def test_parquet_errors(tmp_path, frame):
    path = tmp_path / "t.parquet"
    frame.assign(b=frame["b"].where(frame.index != 41)).to_parquet(path, row_group_size=10)
    table = open_table(scan(path, target="y", block_bytes=1))
    with pytest.raises(DataError, match=r"Column 'b' has .*no value.* data row 42 of .*t\.parquet"):
        read(table)
    frame.assign(a=frame["a"].where(frame.index != 41, np.inf)).to_parquet(path)
    with pytest.raises(DataError, match=r"'a' has an infinite value in data row 42"):
        read(open_table(path, "y"))
    frame.assign(y=frame["y"].where(frame.index != 41)).to_parquet(path)
    with pytest.raises(DataError, match="target is missing or infinite in data row 42 "):
        open_table(path, "y")
    frame.assign(city="x", day=pd.Timestamp(2020, 1, 1)).to_parquet(path)
    table = open_table(path, "y")
    with pytest.raises(DataError, match=r"'city' \(.*string\), 'day' \(timestamp"):
        read(table)
    assert native(table)[0]["city"].iloc[0] == "x"
    frame[:0].to_parquet(path)
    with pytest.raises(DataError, match="no rows"):
        open_table(path, "y")


def test_parquet_files_that_differ(tmp_path, frame):
    frame.to_parquet(tmp_path / "0.parquet")
    for other, message in [
        (frame.drop(columns="a"), "'a' missing"),
        (frame.assign(new=1), "'new' added"),
        (frame.assign(b=0.5), "Column 'b' has type double"),
    ]:
        other.to_parquet(tmp_path / "1.parquet")
        with pytest.raises(DataError, match=message):
            open_table(str(tmp_path / "*.parquet"), "y")
    frame[["y", "tiny", "flag", "b", "a"]].to_parquet(tmp_path / "1.parquet")
    assert open_table(str(tmp_path / "*.parquet"), "y").n_rows == 2 * N


# --- Dask -----------------------------------------------------------------------------------------


@pytest.fixture
def dask():
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield dask


def test_dask_arrays(dask, arrays):
    import dask.array as da

    X, y = arrays
    lazy = da.from_array(X, chunks=(13, 4))
    for target in (y, pd.Series(y), da.from_array(y, chunks=13), da.from_array(y, chunks=17)):
        table = open_table(lazy, target)
        assert [block.n_rows for block in table.blocks] == [13, 13, 13, 13, 8]
        assert {block.where for block in table.blocks} == {"delayed"}
        assert table.names is None
        assert table.native is None
        check(table, arrays)
    check(open_table(lazy, da.from_array(y[:, None], chunks=(13, 1))), arrays)
    check(open_table(X, da.from_array(y, chunks=7)), arrays)
    part = table.blocks[0].native(table.blocks[0].payload.compute())
    assert isinstance(part[0], np.ndarray)


def test_dask_arrays_of_unknown_length(dask, arrays):
    import dask.array as da

    X, y = arrays
    keep = X[:, 1] > 0
    lazy = da.from_array(X, chunks=(13, 4))
    unknown = lazy[lazy[:, 1] > 0]
    assert np.isnan(unknown.shape[0])
    lazy_y = da.from_array(y, chunks=13)[lazy[:, 1] > 0]
    for target in (y[keep], lazy_y):
        check(open_table(unknown, target), (X[keep], y[keep]))
    with pytest.raises(DataError, match=f"X has {keep.sum()} rows and y has {N}"):
        open_table(unknown, y)


def test_dask_frames(dask, frame, arrays):
    import dask.array as da
    import dask.dataframe as dd

    lazy = dd.from_pandas(frame, npartitions=4)
    X = lazy[["a", "b", "flag", "tiny"]]
    rows = da.from_array(arrays[1], chunks=11)
    for table in (
        open_table(lazy, "y"),
        open_table(X, lazy["y"]),
        open_table(X, lazy[["y"]]),
        open_table(X, frame["y"]),
        open_table(X, rows),
    ):
        assert table.names == ("a", "b", "flag", "tiny")
        assert len(table.blocks) == 4
        check(table, arrays)
        pd.testing.assert_frame_equal(native(table)[0], frame.drop(columns="y"))
    filtered = lazy[lazy["b"] > 3]
    table = open_table(filtered, "y")
    few = frame[frame["b"] > 3]
    check(table, (few.drop(columns="y").to_numpy(np.float64), few["y"].to_numpy()))
    last = dd.from_pandas(frame.assign(k=range(N)), npartitions=4)
    assert len(open_table(last[last["k"] > 50], "y").blocks) == 1
    two = open_table(lazy, ["y", "b"])
    assert two.target.shape == (N, 2)


def test_dask_target_is_read_alone(dask, tmp_path, frame, arrays):
    import dask.dataframe as dd

    frame.to_parquet(tmp_path / "t.parquet", row_group_size=20)
    check(open_table(dd.read_parquet(tmp_path / "t.parquet"), "y"), arrays)


def test_dask_errors(dask, frame, arrays):
    import dask.array as da
    import dask.bag
    import dask.dataframe as dd

    X, y = arrays
    lazy = dd.from_pandas(frame, npartitions=3)
    bad_row = frame.assign(a=frame["a"].where(frame.index != 41))
    for given_, message in [
        ((da.from_array(X, chunks=(10, 2)), y), r"rechunk\(\{0: 'auto', 1: -1\}\)"),
        ((da.from_array(y, chunks=10), y), "1 dimension"),
        ((da.from_array(X, chunks=(10, 4)), y[:-1]), "60 rows and y has 59"),
        ((lazy, "yy"), "Did you mean 'y'"),
        ((lazy[["y"]], "y"), "no feature columns"),
        ((dask.bag.from_sequence([1]), y), "Bag"),
        ((lazy["a"], y), "1 dimension"),
        ((lazy.assign(y=np.nan), "y"), "target is missing .* row 0 "),
    ]:
        with pytest.raises(DataError, match=message):
            open_table(*given_)
    with pytest.raises(DataError, match=r"Column 'a' has a missing.*row 41"):
        read(open_table(dd.from_pandas(bad_row, npartitions=3), "y"))
    with pytest.raises(DataError, match="'city'"):
        read(open_table(lazy.assign(city="x"), "y"))


def test_labels_of_classes_are_no_labels_of_columns(dask, frame):
    import dask.dataframe as dd

    y = ["a"] * (N - 1) + ["other"]
    assert open_table(frame, y).target.tolist() == y
    assert open_table(dd.from_pandas(frame, npartitions=2), y).target.tolist() == y


def test_sparse_chunks_of_dask(dask, arrays):
    import dask.array as da

    X = da.from_array(arrays[0], chunks=(30, 4)).map_blocks(sparse.csr_matrix)
    with pytest.raises(DataError, match="csr_matrix"):
        read(open_table(X, arrays[1]))


def test_partitions_that_change_their_length(dask, arrays):
    import dask.array as da

    table = open_table(da.from_array(arrays[0], chunks=(30, 4)), arrays[1])
    block = table.blocks[0]
    with pytest.raises(DataError, match="persist"):
        list(block.slabs((arrays[0][:10], arrays[1][:10]), 100))
    with pytest.raises(DataError, match="persist"):
        block.native((arrays[0][:10], arrays[1][:10]))


def test_optional_libraries_are_not_imported():
    # scikit-learn brings some of them in by itself.
    code = (
        "import sys, numpy as np, sklearn.model_selection; before = set(sys.modules);"
        "from dagsel.data.sources import open_table; open_table(np.eye(3), [1, 2, 3]);"
        "optional = {'cupy', 'cudf', 'polars', 'pyarrow', 'dask', 'pandas'};"
        "print(sorted(optional & set(sys.modules) - before))"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
