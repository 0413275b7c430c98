"""``sash answers-at``: a file of pairs into a file with answers, batch by batch."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from sash_cli import pairs
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
