"""A field that may be null on every edge: what goes in as null comes out as null, and aggregates leave it out."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from sash_client import Client, InvalidArgument
from sash_proto.v1 import windows_pb2 as pb
from tests.support.nulls import FIELDS, ROWS, SPEC, A
from tests.support.servers import problem

B = {"entries": 1, "sum": None, "max": None, "values": 0, "texts": [""], "flags": [False]}
COLUMNS = {name: ROWS[name] for name in FIELDS}
TABLE = pa.table(
    {
        "time": pa.array(ROWS["time"], pa.int64()),
        "key": ROWS["key"],
        "x": pa.array(ROWS["x"], pa.float64()),
        "n": pa.array(ROWS["n"], pa.int64()),
        "s": ROWS["s"],
        "b": ROWS["b"],
    }
)


def answers(http):
    found = http.get("/v1/windows/w/query", params={"key": ["a", "b"]})
    return [answer["aggregates"] for answer in found.json()["answers"]]


def send(http, content, kind):
    done = http.post("/v1/windows/w/bulk-insert", content=content, headers={"content-type": kind})
    assert done.status_code == 200, done.text


def columns_of(http):
    (bulk,) = http.get("/v1/windows/w/entries", params={"key": ["a", "b"]}).json()["bulks"]
    return {"time": bulk["time"], "key": bulk["key"], **bulk.get("fields", bulk)}


def as_json(http):
    assert http.post("/v1/windows/w/bulk-insert", json=ROWS).status_code == 200


def as_entries(http):
    for row in range(3):
        fields = {name: ROWS[name][row] for name in FIELDS if row == 0 or ROWS[name][row] is not None}
        entry = {"time": ROWS["time"][row], "key": ROWS["key"][row], "fields": fields}
        assert http.post("/v1/windows/w/insert", json=entry).status_code == 200


def as_ndjson(http):
    lines = [{name: ROWS[name][row] for name in ROWS} for row in range(3)]
    del lines[1]["x"], lines[2]["n"]  # a missing name is null, too
    send(http, "".join(json.dumps(each) + "\n" for each in lines), "application/x-ndjson")


def as_csv(http):
    """Texts cannot be null there, so that one is sent beside."""
    http.post("/v1/windows/w/insert", json={"time": 2, "key": "a", "fields": {"n": 7, "b": True}})
    send(http, "time,key,x,n,s,b\n1,a,1.5,,p,\n3,b,,,,false\n", "text/csv")


def as_arrow(http):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    send(http, sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream")


@pytest.mark.parametrize("sent", [as_json, as_entries, as_ndjson, as_csv, as_arrow])
def test_rest(http, sent):
    sent(http)
    assert answers(http) == [A, B]
    found = columns_of(http)
    assert {name: found[name] for name in ROWS} == ROWS
    assert set(found) == set(ROWS)


def test_arrow_entries_have_nulls(http):
    as_json(http)
    accepted = {"accept": "application/vnd.apache.arrow.stream"}
    body = http.get("/v1/windows/w/entries", params={"key": ["a", "b"]}, headers=accepted).content
    table = pa.ipc.open_stream(body).read_all()
    assert table.to_pydict() == ROWS
    send(http, body, "application/vnd.apache.arrow.stream")
    assert answers(http)[0]["entries"] == 4


FRAMES = {
    "lists": lambda: COLUMNS,
    "pandas": lambda: {
        "x": pd.array(COLUMNS["x"], "Float64"),
        "n": pd.Series(COLUMNS["n"], dtype="Int64"),
        "s": pd.Series(["p", pd.NA, ""], dtype="string"),
        "b": pd.Series(COLUMNS["b"], dtype="boolean"),
    },
}
"""Columns of the other kinds are in tests/clients/test_columns.py."""


@pytest.mark.parametrize("kind", FRAMES)
def test_client(http, window, kind):
    assert window.bulk_insert(ROWS["time"], FRAMES[kind](), keys=ROWS["key"]).inserted == 3
    assert [each.aggregates for each in window.query(keys=["a", "b"])] == [A, B]
    found = window.entries(keys=["a", "b"]).to_arrow()
    assert {name: found[name].to_pylist() for name in FIELDS} == COLUMNS
    (bulk,) = window.entries(keys=["a", "b"])
    assert window.bulk_insert(bulk.times + 5, bulk.columns, keys=bulk.keys).inserted == 3
    assert answers(http)[1] == {
        "entries": 2,
        "sum": None,
        "max": None,
        "values": 0,
        "texts": ["", ""],
        "flags": [False] * 2,
    }


def test_frames_go_round(http, window):
    as_json(http)
    entries = window.entries(keys=["a", "b"])
    for frame in (entries.to_pandas(), window.entries(keys=["a", "b"]).to_polars()):
        http.delete("/v1/windows/w")
        assert http.post("/v1/windows", json={**SPEC, "nullable": list(FIELDS)}).status_code == 201
        assert window.bulk_insert(frame).inserted == 3
        assert answers(http) == [A, B]


def test_single_entries_of_the_client(http, window):
    window.insert(1, fields={"x": 1.5, "s": "p", "n": None, "b": None}, key="a")
    with window.producer("p") as producer:
        producer.insert(2, fields={"n": 7, "b": True}, key="a")
        producer.insert(3, fields={"s": "", "b": False, "x": None}, key="b")
    assert answers(http) == [A, B]


def test_nan_is_a_value(http, window):
    window.bulk_insert(
        [1, 2], COLUMNS | {"x": [float("nan"), None], "n": [1, 2], "s": ["", ""], "b": [True, True]}, keys="a"
    )
    found = answers(http)[0]
    assert (found["sum"], found["values"], found["entries"]) == ("NaN", 1, 2)


def test_a_null_is_refused_where_the_spec_does_not_allow_it(service, http):
    assert http.post("/v1/windows", json={**SPEC, "name": "strict", "nullable": ["n", "s", "b"]}).status_code == 201
    with Client(service.grpc_target) as client:
        strict = client.window("strict")
        with pytest.raises(InvalidArgument, match=r"nullable: \[x\]"):
            strict.bulk_insert(ROWS["time"], COLUMNS, keys=ROWS["key"])
    for content, kind in ((json.dumps(ROWS), "application/json"), ("time,key,x,n,s,b\n1,a,,,p,\n", "text/csv")):
        headers = {"content-type": kind}
        refused = problem(http.post("/v1/windows/strict/bulk-insert", content=content, headers=headers))
        assert refused["field"].startswith("x")
    stub = service.stub()
    column = pb.Column(float64=np.zeros(2).tobytes(), valid=b"\1\0")
    others = {name: pb.Column(int64=np.zeros(2, "<i8").tobytes()) for name in ("n",)}
    others |= {"s": pb.Column(string=pb.Strings(dictionary=[""], codes=bytes(8))), "b": pb.Column(bool=bytes(2))}
    request = pb.BulkInsertRequest(window="strict", time=bytes(16), fields={"x": column, **others})
    request.key.CopyFrom(pb.Strings(dictionary=["a"], codes=bytes(8)))
    for fields, told in (
        ({}, "field 'x' is null in row 1: only fields that the spec names in nullable may be"),
        ({"x": pb.Column(float64=bytes(16), valid=b"\1")}, "column 'x' has 2 values, and 1 in valid"),
        ({"x": pb.Column(float64=bytes(16), valid=b"\1\2")}, "a bool that is not 0 or 1"),
        ({"x?": pb.Column(bool=bytes(2))}, "has no field"),
    ):
        wrong = pb.BulkInsertRequest()
        wrong.CopyFrom(request)
        for name, column in fields.items():
            wrong.fields[name].CopyFrom(column)
        with pytest.raises(Exception, match=told):
            stub.BulkInsert(wrong)
    assert http.get("/v1/windows/strict").json()["entries"] == 0
    http.delete("/v1/windows/strict")


def test_staged_parts_with_and_without_nulls_are_one_batch(window):
    whole = {"x": [2.0], "n": [1], "s": ["a"], "b": [True]}
    parts = window.stage([1], whole, keys="a", query="q", batch=0)
    parts += window.stage([2], {name: [None] for name in FIELDS}, keys="a", query="q", batch=0)
    window.commit("q", 0, parts)
    assert window.query(key="a")[0].aggregates == {
        "entries": 2,
        "sum": 2.0,
        "max": 1,
        "values": 1,
        "texts": ["a"],
        "flags": [True],
    }


def test_top_and_having_leave_nulls_out(http):
    as_json(http)
    path = "/v1/windows/w/query"
    asked = {"by": "key", "having": "sum < 100"}
    found = http.get(path, params=asked)
    assert found.status_code == 200, found.text
    assert [each["parts"]["key"] for each in found.json()["answers"]] == ["a"]
    top = http.get(path, params={"by": "key", "top": "max"}).json()["answers"]
    assert [each["parts"]["key"] for each in top] == ["a"]


def test_prometheus(service, http):
    """A null is no sample; a sketch says that it is approximate."""
    now, half = 1_700_000_000_000, {"half": {"function": "quantile", "field": "x", "q": 0.5}}
    assert http.post("/v1/windows/w/aggregates", json=half).status_code == 200
    for at, fields in ((now - 2000, {"x": 2.0}), (now - 1000, {"n": 1}), (now, {"n": 2})):
        assert http.post("/v1/windows/w/insert", json={"key": "a", "fields": fields, "time": at}).status_code == 200

    def ask(query):
        asked = {"query": query, "time": now / 1000}
        return http.get("/prometheus/api/v1/query", params=asked).json()

    def value(query):
        return [sample["value"][1] for sample in ask(query)["data"]["result"]]

    assert value("count_over_time(w:x[10s])") == ["1"]
    assert value("count_over_time(w:n[10s])") == ["2"]
    assert value("sum_over_time(w:x[10s])") == ["2"]
    assert value("w:x") == ["2"]
    assert value("sum_over_time(w:x[500ms])") == []
    assert value("quantile_over_time(0.5, w:x[10s])") == ["2"]
    assert "approximate" in ask("quantile_over_time(0.5, w:x[10s])")["warnings"][0]
    assert value("w:max") == ["2"]


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet", "arrow"])
def test_load(sash, service, http, tmp_path, kind):
    """In CSV an empty text is a text."""
    path, table = tmp_path / f"rows.{kind}", TABLE
    if kind == "csv":
        table = table.set_column(4, "s", pa.array(["p", "", ""]))
        path.write_text("time,key,x,n,s,b\n1,a,1.5,,p,\n2,a,,7,,true\n3,b,,,,false\n")
    elif kind == "ndjson":
        lines = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    sash("load", "w", str(path), "--skip-missing", service=service)
    texts = ["p", ""] if kind == "csv" else ["p"]
    assert answers(http) == [A | {"texts": texts}, B]


def test_command_line(sash, service, http):
    sash("insert", "w", "x=1.5", "s=p", "--time", "1", "--key", "a", service=service)
    sash("insert", "w", "n=7", "b=true", "--time", "2", "--key", "a", service=service)
    assert answers(http)[0] == A


def test_a_window_of_an_export_has_the_nulls(http):
    as_json(http)
    file = http.get("/v1/windows/w/export").content
    done = http.post(
        "/v1/windows/import",
        params={"name": "copy"},
        content=file,
        headers={"content-type": "application/octet-stream"},
    )
    assert done.status_code == 201, done.text
    assert done.json()["spec"]["nullable"] == sorted(FIELDS)
    found = http.get("/v1/windows/copy/query", params={"key": ["a", "b"]}).json()["answers"]
    assert [answer["aggregates"] for answer in found] == [A, B]
    http.delete("/v1/windows/copy")


def test_no_description_shows_how_nulls_are_kept(http):
    as_json(http)
    spec = http.get("/v1/windows/w").json()["spec"]
    assert (spec["fields"], spec["nullable"]) == (FIELDS, sorted(FIELDS))
    added = http.post("/v1/windows/w/aggregates", json={"least": {"function": "min", "field": "n"}})
    assert added.status_code == 200, added.text
    assert [each["least"] for each in answers(http)] == [7, None]
    refused = problem(http.post("/v1/windows/w/insert", json={"time": 9, "key": "a", "fields": {"x?": True}}))
    assert refused["field"] == "x?"
    for name, values in (("x?", [True]), ("y", [1])):
        document = {"time": [9], "key": ["a"], "fields": {**{field: [None] for field in FIELDS}, name: values}}
        assert problem(http.post("/v1/windows/w/bulk-insert", json=document))["detail"].endswith("it has x, n, s, b")
