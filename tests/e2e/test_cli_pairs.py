"""``sash answers-at``: a file of pairs into a file with answers, batch by batch."""

import sys
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from sash_cli import output, pair_files, pairs
from sash_cli.pair_files import batches
from sash_client import Client
from tests.support.servers import running_service

SPEC = {
    "name": "paid",
    "time_unit": "s",
    "keyed": True,
    "aggregates": {"sum": {"function": "sum"}, "most": {"function": "max"}},
}
TIMES = [500, 10, 90, 40, 99, 1]
CARDS = ["a", "b", "nobody", "a", "b", "a"]
TABLE = pa.table({"card": CARDS, "at": TIMES, "label": [1, 2, 3, 4, 5, 6]})


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        with Client(running.grpc_target) as client:
            window = client.create_window(SPEC)
            window.bulk_insert(np.arange(100), np.arange(100) / 7, keys=[("a", "b")[i % 2] for i in range(100)])
        yield running


OTHER = {"name": "logged.in", "time_unit": "s", "keyed": True, "aggregates": {"sum": {"function": "sum"}}}


@pytest.fixture(scope="module")
def other(service):
    """A window with keys of another kind."""
    with Client(service.grpc_target) as client:
        window = client.create_window(OTHER)
        window.bulk_insert(np.arange(100), np.arange(100) / 3, keys=[("1", "2", "3")[i % 3] for i in range(100)])
    return service


@pytest.fixture
def expected(service):
    with Client(service.grpc_target) as client:
        return client.window("paid").answers_at(TABLE, key="card", time="at", lookbacks=["30"])


READ = {
    "parquet": pa_parquet.read_table,
    "arrow": lambda path: pa.ipc.open_file(path).read_all(),
    "csv": pa_csv.read_csv,
}


def write(path, kind):
    if kind == "parquet":
        pa_parquet.write_table(TABLE, path)
    elif kind == "csv":
        pa_csv.write_csv(TABLE, path)
    else:
        with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(str(path), TABLE.schema) as writer:
            writer.write_table(TABLE)


@pytest.mark.parametrize(
    ("kind", "to"), [("parquet", "parquet"), ("arrow", "arrow"), ("stream", "csv"), ("csv", "csv")]
)
def test_files(sash, service, expected, tmp_path, monkeypatch, kind, to):
    monkeypatch.setattr(pairs, "_ROWS", 2)
    source = tmp_path / f"pairs.{'arrow' if kind == 'stream' else kind}"
    out = tmp_path / f"features.{to}"
    write(source, kind)
    asked = ("answers-at", "paid", str(source), "-o", str(out), "--key", "card", "--time", "at", "--lookback", "30")
    done = sash(*asked, service=service)
    assert "6 rows" in done.out
    found = READ[to](out)
    assert found.column_names == expected.column_names
    assert found["sum_30"].to_pylist() == expected["sum_30"].to_pylist()
    assert found["label"].to_pylist() == TABLE["label"].to_pylist()
    assert not (tmp_path / f"features.{to}.part").exists()


def test_several_windows(sash, other, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "_ROWS", 4)
    write(tmp_path / "pairs.parquet", "parquet")
    asked = ("answers-at", "paid", str(tmp_path / "pairs.parquet"), "-o", str(tmp_path / "out.parquet"), "--time", "at")
    sash(*asked, "--key", "card", "--with", "logged.in=label", "--lookback", "30", service=other, expect=1)
    table = TABLE.set_column(2, "label", TABLE["label"].cast(pa.string()))
    pa_parquet.write_table(table, tmp_path / "pairs.parquet")
    sash(*asked, "--key", "card", "--with", "logged.in=label", "--lookback", "30", service=other)
    found = pa_parquet.read_table(tmp_path / "out.parquet")
    with Client(other.grpc_target) as client:
        expected = client.answers_at(
            table, {"paid": {"key": "card"}, "logged.in": {"key": "label"}}, time="at", lookbacks=["30"]
        )
    assert found.column_names[3:] == [
        *("paid_entries_30", "paid_most_30", "paid_sum_30", "logged.in_entries_30", "logged.in_sum_30")
    ]
    assert found.to_pydict() == expected.to_pydict()
    sash(*asked, "--key", "card", "--with", "logged.in", service=other)
    assert not any(pa_parquet.read_table(tmp_path / "out.parquet")["logged.in_entries"].to_pylist())


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "csv"])
def test_progress(sash, service, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(pairs, "_ROWS", 2)
    monkeypatch.setattr(output, "_LINE_S", -1.0)
    source = tmp_path / f"pairs.{'arrow' if kind == 'stream' else kind}"
    write(source, kind)
    given = ("-o", str(tmp_path / "out.csv"), "--key", "card", "--time", "at")
    lines = sash("answers-at", "paid", str(source), *given, service=service).err.splitlines()
    assert [line.split(" rows")[0] for line in lines] == [f"{source}: {rows}" for rows in (2, 4, 6)]
    parts = [line.rpartition("rows/s")[2] for line in lines]
    known = {"parquet": [", 33%", ", 67%", ", 100%"], "arrow": [""] * 3, "stream": [", 99%"] * 3, "csv": [", 100%"] * 3}
    assert parts == known[kind]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "csv"])
def test_a_few_batches_are_in_memory(service, tmp_path, monkeypatch, kind):
    """However many there are: those that are read, asked about and written are gone."""
    rows, alive, most = 40, list[Any](), 0

    def counted(tables):
        nonlocal most
        for table, done in tables:
            alive.append(weakref.ref(table))
            most = max(most, sum(each() is not None for each in alive))
            yield table, done

    monkeypatch.setattr(pairs, "_ROWS", 1)
    monkeypatch.setattr(pair_files, "batches", lambda *given: counted(batches(*given)))
    monkeypatch.setattr(sys.modules[__name__], "TABLE", pa.table({"key": ["a"] * rows, "time": range(rows)}))
    source = tmp_path / f"pairs.{'arrow' if kind == 'stream' else kind}"
    write(source, kind)
    out = tmp_path / "out.parquet"
    pairs.answers_at("paid", str(source), str(out), target=service.grpc_target)
    assert len(alive) == rows
    assert most <= 3
    assert pa_parquet.ParquetFile(out).num_row_groups == rows


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "csv"])
def test_a_file_without_rows(sash, service, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(sys.modules[__name__], "TABLE", pa.table({"card": ["a"], "at": [1]}).slice(1))
    source = tmp_path / f"pairs.{'arrow' if kind == 'stream' else kind}"
    write(source, kind)
    given = ("-o", str(tmp_path / "out.parquet"), "--key", "card", "--time", "at", "--aggregate", "sum")
    assert "0 rows" in sash("answers-at", "paid", str(source), *given, service=service).out
    assert pa_parquet.read_table(tmp_path / "out.parquet").column_names == ["card", "at", "entries", "sum"]


def test_what_is_interrupted_leaves_nothing(service, tmp_path, monkeypatch):
    def interrupted(*_):
        yield pa.table({"key": ["a"], "time": [1]}), 0.5
        raise KeyboardInterrupt

    monkeypatch.setattr(pair_files, "batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pairs.answers_at("paid", "pairs.csv", str(tmp_path / "out.csv"), target=service.grpc_target)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{file}", "-o", "{folder}/out.txt"), "out.txt: a name that ends with"),
        (("{file}", "-o", "{folder}/out.csv"), "no column 'time'"),
        (("{folder}/none.parquet", "-o", "{folder}/out.csv"), "none.parquet"),
        (("{file}", "-o", "{folder}/out.csv", "--time", "at", "--key", "card", "--lookback", "never"), "lookback"),
    ],
)
def test_refused(sash, service, tmp_path, arguments, says):
    write(tmp_path / "pairs.parquet", "parquet")
    given = [each.format(file=tmp_path / "pairs.parquet", folder=tmp_path) for each in arguments]
    done = sash("answers-at", "paid", *given, service=service, expect=1)
    assert says in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.parquet"]
