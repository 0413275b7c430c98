"""Writes that are applied once, batches in parts, partials, entries, export and import; and writes called off."""

import base64
import itertools
import socket
import threading

import httpx
import numpy as np
import pyarrow as pa
import pytest

from sash_engine.errors import DataLoss, NotFound, Unavailable
from sash_engine.monoids import Mean
from sash_engine.windows.answers import Answer, WriteResult
from sash_engine.windows.batch import Batch, Coded
from sash_engine.windows.questions import EntriesQuery
from tests.rest.conftest import made
from tests.rest.test_arrow import ARROW, batch, stream
from tests.rest.test_problems import refuse
from tests.support.mutations import with_counts
from tests.support.servers import WAIT_S, json_head, problem
from tests.support.waiting import awaited, until

OCTETS = {"content-type": "application/octet-stream"}


def entries(http, window):
    return http.get(f"/v1/windows/{window}").json()["entries"]


# ---------------------------------------------------------------- once

WRITES = {
    "insert": {"time": 1, "value": 1},
    "bulk-insert": {"time": [2, 3], "value": [2, 3]},
    "bulk-evict": {"time": 1},
}


def test_a_retry_changes_nothing(http, window):
    for sequence, (route, document) in enumerate(WRITES.items(), 1):
        sent = document | {"producer": "sensor-7", "sequence": sequence}
        first, again = (http.post(f"/v1/windows/{window}/{route}", json=sent).json() for _ in range(2))
        assert "already_applied" not in first
        assert (again["already_applied"], again["evicted"], again["durability"]) == (True, 0, "memory")
    assert entries(http, window) == 2


def test_a_used_number_with_other_data(http, window):
    others = {"insert": {"value": 2}, "bulk-insert": {"value": [3, 2]}, "bulk-evict": {"time": 0}}
    for sequence, (route, document) in enumerate(WRITES.items(), 1):
        path, sent = f"/v1/windows/{window}/{route}", document | {"producer": "sensor-7", "sequence": sequence}
        http.post(path, json=sent)
        found = refuse(http, "POST", path, 409, "sequence", json=sent | others[route])
        assert (found["type"], found["limit"]) == ("urn:sash:error:sequence-reused", str(sequence + 1))
        assert http.post(path, json=sent).json()["already_applied"]
    assert entries(http, window) == 2


def test_a_higher_epoch_takes_the_name_over(http, window):
    for epoch in (0, 3):
        for sequence, (route, document) in enumerate(WRITES.items(), 1):
            sent = document | {"producer": "sensor-7", "sequence": sequence, "epoch": epoch}
            first, again = (http.post(f"/v1/windows/{window}/{route}", json=sent).json() for _ in range(2))
            assert (first.get("already_applied"), again["already_applied"]) == (None, True)
    for epoch in ({}, {"epoch": 2}):
        for route, document in WRITES.items():
            sent = document | {"producer": "sensor-7", "sequence": 4} | epoch
            found = refuse(http, "POST", f"/v1/windows/{window}/{route}", 409, "epoch", json=sent)
            assert (found["type"], found["limit"]) == ("urn:sash:error:producer-fenced", "3")
    body, parameters = stream(batch(time=[1], value=[1.0])), {"producer": "sensor-7", "sequence": 4, "epoch": 2}
    path = f"/v1/windows/{window}/bulk-insert"
    refuse(http, "POST", path, 409, "epoch", content=body, headers=ARROW, params=parameters)
    taken = http.post(path, content=body, headers=ARROW, params=parameters | {"epoch": 3}).json()
    assert taken["inserted"] == 1
    assert entries(http, window) == 5


def test_an_arrow_bulk_says_who_sends_it_in_parameters(http, window):
    body, path = stream(batch(time=[1], value=[1.0])), f"/v1/windows/{window}/bulk-insert"
    sent = [
        http.post(path, content=body, headers=ARROW, params={"producer": "p", "sequence": 1}).json() for _ in range(2)
    ]
    assert [each.get("already_applied", False) for each in sent] == [False, True]
    for parameters, field in (({"producer": "p"}, "sequence"), ({"sequence": 1}, "producer"),
                              ({"producer": "p", "sequence": "x"}, "sequence"), ({"other": 1}, "other"),
                              ({"epoch": 1}, "producer"),
                              ({"producer": "p", "sequence": 1, "epoch": "x"}, "epoch")):  # fmt: skip
        refuse(http, "POST", path, 400, field, content=body, headers=ARROW, params=parameters)
    # In JSON they are members; to take no notice of a parameter would apply a retry twice.
    refuse(http, "POST", path, 400, "producer", json=WRITES["bulk-insert"], params={"producer": "p", "sequence": 2})
    assert entries(http, window) == 1


@pytest.mark.parametrize(
    ("origin", "status", "field"),
    [
        ({"epoch": 1}, 400, "producer"),
        ({"epoch": 1, "sequence": 1}, 400, "producer"),
        ({"epoch": 1, "producer": "p"}, 400, "sequence"),
        ({"epoch": -1, "producer": "p", "sequence": 1}, 400, "epoch"),
        ({"epoch": 2**63, "producer": "p", "sequence": 1}, 400, "epoch"),
        ({"epoch": "1", "producer": "p", "sequence": 1}, 400, "epoch"),
        ({"producer": "p"}, 400, "sequence"),
        ({"sequence": 1}, 400, "producer"),
        ({"producer": "", "sequence": 1}, 400, "producer"),
        ({"producer": "p" * 201, "sequence": 1}, 400, "producer"),
        ({"producer": 7, "sequence": 1}, 400, "producer"),
        ({"producer": None, "sequence": 1}, 400, "producer"),
        ({"producer": "p", "sequence": "1"}, 400, "sequence"),
        ({"producer": "p", "sequence": 1.0}, 400, "sequence"),
        ({"producer": "p", "sequence": 0}, 400, "sequence"),
        ({"producer": "p", "sequence": 2**63}, 400, "sequence"),
        ({"producer": "p", "sequence": 2}, 409, "sequence"),
    ],
)
def test_a_wrong_producer(http, window, origin, status, field):
    for route, document in WRITES.items():
        refuse(http, "POST", f"/v1/windows/{window}/{route}", status, field, json=document | origin)
    assert entries(http, window) == 0


def test_fields_called_producer_sequence_and_epoch(http):
    fields = {"producer": "string", "sequence": "int64", "epoch": "int64"}
    aggregates = {"who": {"function": "collect", "field": "producer"}}
    for name in made(http, name="meta", fields=fields, aggregates=aggregates):
        path = f"/v1/windows/{name}"
        beside = {"time": 1, "producer": "beside", "sequence": 5, "epoch": 6}
        assert http.post(f"{path}/insert", json=beside).json()["inserted"] == 1
        nested = {"time": 2, "fields": beside | {"producer": "nested"}, "producer": "p", "sequence": 1, "epoch": 6}
        del nested["fields"]["time"]
        assert http.post(f"{path}/insert", json=nested).json()["inserted"] == 1
        assert http.post(f"{path}/insert", json=nested).json()["already_applied"]
        answer = http.get(f"{path}/query").json()["answers"][0]
        assert answer["aggregates"] == {"who": ["beside", "nested"]}


# ---------------------------------------------------------------- batches

MISSING = object()


def stage(http, window, document, **parameters):
    return http.post(f"/v1/windows/{window}/stage", json=document, params={"query": "q", "batch": 0} | parameters)


def test_a_batch_in_parts(http, window):
    staged = [stage(http, window, {"time": times, "value": times}).json() for times in ([1, 2], [3])]
    arrow = http.post(
        f"/v1/windows/{window}/stage",
        content=stream(batch(time=[4], value=[4.0])),
        headers=ARROW,
        params={"query": "q", "batch": 0},
    ).json()
    assert [(each["entries"], each["durability"]) for each in (*staged, arrow)] == [
        (2, "memory"),
        (1, "memory"),
        (1, "memory"),
    ]
    assert entries(http, window) == 0
    commit = {"query": "q", "batch": 0, "stages": [arrow["stage"], staged[0]["stage"]]}
    first, again = (http.post(f"/v1/windows/{window}/commit", json=commit).json() for _ in range(2))
    assert first == {"inserted": 3, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "memory"}
    assert (again["inserted"], again["already_applied"]) == (0, True)
    found = problem(stage(http, window, {"time": [9], "value": [9]}))
    assert (found["status"], found["field"]) == (409, "batch")


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": "q" * 201}, "query"),
        ({"batch": "-1"}, "batch"),
        ({"batch": "x"}, "batch"),
        ({"other": 1}, "other"),
    ],
)
def test_a_wrong_part(http, window, parameters, field):
    found = problem(stage(http, window, {"time": [1], "value": [1]}, **parameters))
    assert (found["status"], found["field"]) == (400, field)


def test_a_part_that_is_no_bulk(http, window):
    for document, field in (({"time": [1]}, "value"), ({"time": [1], "value": [1], "producer": "p"}, "producer")):
        found = problem(stage(http, window, document))
        assert (found["status"], found["field"]) == (400, field)
    for parameters, field in (({"batch": 0}, "query"), ({"query": "q"}, "batch")):
        path = f"/v1/windows/{window}/stage"
        refuse(http, "POST", path, 400, field, json={"time": [1], "value": [1]}, params=parameters)
    assert problem(stage(http, "unknown", {"time": [1], "value": [1]}))["status"] == 404


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"query": ""}, 400, "query"),
        ({"query": 7}, 400, "query"),
        ({"query": MISSING}, 400, "query"),
        ({"batch": MISSING}, 400, "batch"),
        ({"stages": MISSING}, 400, "stages"),
        ({"batch": -1}, 400, "batch"),
        ({"batch": "0"}, 400, "batch"),
        ({"stages": "x"}, 400, "stages"),
        ({"stages": [7]}, 400, "stages[0]"),
        ({"stages": ["nope"]}, 409, "stages"),
        ({"other": 1}, 400, "other"),
    ],
)
def test_a_wrong_commit(http, window, change, status, field):
    path = f"/v1/windows/{window}/commit"
    whole = {"query": "q", "batch": 0, "stages": []} | change
    refuse(http, "POST", path, status, field, json={name: value for name, value in whole.items() if value != MISSING})


# ---------------------------------------------------------------- partials

PANES = {
    "name": "panes",
    "time_unit": "s",
    "granularity": "10s",
    "aggregates": {"n": {"function": "count"}, "mean": {"function": "mean"}, "all": {"function": "collect"}},
}


@pytest.fixture
def panes(http):
    yield from made(http, **PANES)


@pytest.fixture
def taken(service, monkeypatch):
    batches = []

    async def bulk_insert(name, bulk, origin=None):
        batches.append(bulk)
        return WriteResult(inserted=len(bulk.times))

    monkeypatch.setattr(service.plane, "bulk_insert", bulk_insert)
    return batches


BLOBS = [base64.b64encode(text).decode() for text in (b"[0.0,1.0]", b"[3.0]")]
COUNT, SUM = Mean.parts
PARTIALS = {"mean": {COUNT: [2, 1], SUM: [1.0, "NaN"]}, "all": {"blob": BLOBS}}


def test_partials_go_in_as_columns(http, panes, taken):
    document = {"time": [10, 20], "partials": PARTIALS, "entries": [2, 1]}
    assert http.post(f"/v1/windows/{panes}/bulk-insert", json=document).json()["inserted"] == 2
    columns = {"time": [10, 20], "entries": [2, 1], "partials.all.blob": [b"[0.0,1.0]", b"[3.0]"]}
    columns |= {f"partials.mean.{COUNT}": [2, 1], f"partials.mean.{SUM}": [1.0, np.nan]}
    http.post(f"/v1/windows/{panes}/bulk-insert", content=stream(batch(**columns)), headers=ARROW).raise_for_status()
    for found in taken:
        assert found.of_partials
        assert found.entries.tolist() == [2, 1]
        np.testing.assert_array_equal(found.partials["mean"][0], [2, 1])
        np.testing.assert_array_equal(found.partials["mean"][1], [1.0, np.nan])
        assert found.partials["all"][0].tolist() == [b"[0.0,1.0]", b"[3.0]"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"entries": None}, "entries"),
        ({"entries": [1.5]}, "entries[0]"),
        ({"value": [1]}, "value"),
        ({"partials": []}, "partials"),
        ({"partials": {"mean": []}}, "partials.mean"),
        ({"partials": {"nope": {}}}, "partials.nope"),
        ({"partials": {"all": {"blob": ["*"]}}}, "partials.all.blob[0]"),
        ({"partials": {"all": {"blob": [1]}}}, "partials.all.blob[0]"),
        ({"partials": {"all": {"values": [1]}}}, "partials.all.blob"),
        ({"partials": {"all": {"blob": [], "more": []}}}, "partials.all.more"),
        ({"partials": {"mean": {}}}, f"partials.mean.{COUNT}"),
        ({"partials": {"mean": {COUNT: [True], SUM: [1.0]}}}, f"partials.mean.{COUNT}[0]"),
        ({"partials": {"mean": {COUNT: [1], SUM: ["x"]}}}, f"partials.mean.{SUM}[0]"),
        ({"partials": {"mean": {COUNT: [1], SUM: 1.0}}}, f"partials.mean.{SUM}"),
    ],
)
def test_wrong_partials(http, panes, change, field):
    document = {"time": [1], "partials": {}, "entries": [1]} | change
    document = {name: value for name, value in document.items() if value is not None}
    refuse(http, "POST", f"/v1/windows/{panes}/bulk-insert", 400, field, json=document)


def test_wrong_partials_in_arrow(http, panes):
    for columns, field in (
        ({f"partials.mean.{COUNT}": [1]}, f"partials.mean.{SUM}"),
        ({"partials.nope.blob": [b"x"]}, "partials.nope.blob"),
        ({"partials.all.blob": ["x"]}, "partials.all.blob"),
        ({"value": [1.0]}, "value"),
    ):
        body = stream(batch(time=[1], entries=[1], **columns))
        refuse(http, "POST", f"/v1/windows/{panes}/bulk-insert", 400, field, content=body, headers=ARROW)


MEAN = {COUNT: [2], SUM: [8.0]}


@pytest.mark.parametrize("name", ["partials", "entries", "partials.mean.sum", "fields", "value"])
def test_a_field_that_is_called_as_a_part_of_a_document(http, name):
    """A field's values are a list, and partials an object; what is not a field is a part."""
    aggregates = {"all": {"function": "collect"}}
    for window in made(http, name=f"field.{name}", fields={name: "float64"}, aggregates=aggregates):
        path = f"/v1/windows/{window}"
        assert http.post(f"{path}/insert", json={"time": 1, name: 1}).json()["inserted"] == 1
        assert http.post(f"{path}/bulk-insert", json={"time": [2, 3], name: [2, 3]}).json()["inserted"] == 2
        arrow = stream(batch(time=[4], **{name: [4.0]}))
        assert http.post(f"{path}/bulk-insert", content=arrow, headers=ARROW).json()["inserted"] == 1
        if name != "fields":
            assert http.post(f"{path}/bulk-insert", json={"time": [5], "fields": {name: [5]}}).json()["inserted"] == 1
        answer = http.get(f"{path}/query").json()["answers"][0]["aggregates"]["all"]
        assert answer == [1, 2, 3, 4, 5][: len(answer)]
        assert len(answer) == 4 + (name != "fields")
        (out,) = http.get(f"{path}/entries").json()["bulks"]
        assert out == {"time": answer} | ({name: answer} if name == "fields" else {"fields": {name: answer}})
        refuse(http, "POST", f"{path}/bulk-insert", 400, name, json={"time": [9], name: {"mean": MEAN}})
        assert http.get(f"{path}/query").json()["answers"][0]["aggregates"]["all"] == answer


@pytest.mark.parametrize("name", ["partials", "entries", "partials.mean.sum"])
def test_partials_of_a_window_with_a_field_that_is_called_as_a_part_of_them(http, name):
    aggregates = {"mean": {"function": "mean", "field": name}}
    spec = {"name": f"panes.{name}", "granularity": "10", "fields": {name: "float64"}, "aggregates": aggregates}
    for window in made(http, **spec):
        path = f"/v1/windows/{window}"
        assert http.post(f"{path}/bulk-insert", json={"time": [10], name: [1]}).json()["inserted"] == 1
        arrow = stream(batch(time=[20], **{name: [1.0]}))
        assert http.post(f"{path}/bulk-insert", content=arrow, headers=ARROW).json()["inserted"] == 1
        document = {"time": [10], "partials": {"mean": MEAN}, "entries": [2]}
        assert http.post(f"{path}/bulk-insert", json=document).json()["inserted"] == 2
        columns = {"time": [20], "entries": [2], f"partials.mean.{COUNT}": [2], f"partials.mean.{SUM}": [8.0]}
        arrow = stream(batch(**columns))
        assert http.post(f"{path}/bulk-insert", content=arrow, headers=ARROW).json()["inserted"] == 2
        for start in (10, 20):
            answer = http.get(f"{path}/range", params={"start": start, "end": start}).json()
            assert (answer["entries"], answer["aggregates"]["mean"]) == (3, 3.0)
        again = http.get(f"{path}/entries", headers={"accept": ARROW["content-type"]}).content
        assert http.post(f"{path}/bulk-insert", content=again, headers=ARROW).json()["inserted"] == 6


# ---------------------------------------------------------------- how many entries

MOST = 20_000


@pytest.mark.parametrize("route", ["bulk-insert", "stage"])
@pytest.mark.parametrize("form", ["json", "arrow", "two arrow batches"])
def test_a_write_has_as_many_entries_as_it_may_and_not_one_more(http, window, route, form):
    path = f"/v1/windows/{window}/{route}"
    parameters = {"query": "q", "batch": 0} if route == "stage" else {}
    for n in (MOST, MOST + 1):
        if form == "json":
            sent = {"json": {"time": list(range(n)), "value": [0] * n}}
        else:
            cut = 10_000 if form.startswith("two") else n
            ends = (0, cut, n) if cut < n else (0, n)
            parts = [batch(time=np.arange(a, b), value=np.zeros(b - a)) for a, b in itertools.pairwise(ends)]
            sent = {"content": stream(*parts), "headers": ARROW}
        if n > MOST:
            refuse(http, "POST", path, 413, "time", f"{MOST} entries", params=parameters, **sent)
        else:
            http.post(path, params=parameters, **sent).raise_for_status()
    assert entries(http, window) == (0 if route == "stage" else MOST)


def test_a_write_has_as_many_rows_of_partials_as_it_may_have_entries(http, panes):
    path = f"/v1/windows/{panes}/bulk-insert"
    blob = base64.b64encode(b"[1.0]").decode()
    for n in (MOST, MOST + 1):
        parts = {"mean": {COUNT: [1] * n, SUM: [1] * n}, "all": {"blob": [blob] * n}}
        sent = {"json": {"time": [0] * n, "entries": [1] * n, "partials": parts}}
        if n > MOST:
            refuse(http, "POST", path, 413, "time", f"{MOST} entries", **sent)
        else:
            assert http.post(path, **sent).json()["inserted"] == MOST
    assert entries(http, panes) == MOST


def test_partials_come_out_where_they_are_asked_for(http, service, panes, monkeypatch):
    def answer(wanted):
        partials = {"mean": (np.array([2]), np.array([np.inf])), "all": (np.array([b"\x00"], object),)}
        return Answer(None, 1, 2, 2, {"mean": 0.5}, None, partials if wanted else None)

    monkeypatch.setattr(service.plane, "query", awaited(lambda _, question: [answer(question.partials)]))
    monkeypatch.setattr(service.plane, "range_query", awaited(lambda _, question: answer(question.partials)))
    path = f"/v1/windows/{panes}"
    expected = {"mean": {COUNT: [2], SUM: ["Infinity"]}, "all": {"blob": ["AA=="]}}
    assert http.get(f"{path}/query?partials=true").json()["answers"][0]["partials"] == expected
    assert http.get(f"{path}/range?start=1&end=2&partials=true").json()["partials"] == expected
    assert "partials" not in http.get(f"{path}/query").json()["answers"][0]
    refuse(http, "GET", f"{path}/query?partials=yes", 400, "partials")


# ---------------------------------------------------------------- entries


def test_entries_as_json_and_as_arrow(http, service, typed, monkeypatch):
    columns = {
        "f": np.array([0.5, np.nan]),
        "i": np.array([1, -(2**63)]),
        "s": np.array(["ä", "x"], object),
        "b": np.array([True, False]),
    }
    asked = []

    def found(name, *arguments):
        asked.append(arguments)
        for letter in "ab":
            yield Batch(np.array([3, 4]), columns, Coded([letter], np.array([0, 0])))

    monkeypatch.setattr(service.plane, "entries", awaited(found))
    path = f"/v1/windows/{typed}"
    bulks = http.get(f"{path}/entries?key=a&key=b&start=0").json()["bulks"]
    assert asked == [(EntriesQuery(0, keys=["a", "b"]),)]
    fields = {"f": [0.5, "NaN"], "i": [1, -(2**63)], "s": ["ä", "x"], "b": [True, False]}
    assert bulks == [{"time": [3, 4], "key": [letter] * 2, "fields": fields} for letter in "ab"]
    assert [http.post(f"{path}/bulk-insert", json=bulk).json()["inserted"] for bulk in bulks] == [2, 2]
    response = http.get(f"{path}/entries?all_keys=true", headers={"accept": ARROW["content-type"]})
    assert response.headers["content-type"] == ARROW["content-type"]
    table = pa.ipc.open_stream(response.content).read_all()
    assert table.column_names == ["time", "key", "f", "i", "s", "b"]
    assert table["key"].to_pylist() == ["a", "a", "b", "b"]
    again = http.post(f"{path}/bulk-insert", content=response.content, headers=ARROW)
    assert again.json()["inserted"] == 4


def test_no_entries(http, service, typed, monkeypatch):
    monkeypatch.setattr(service.plane, "entries", awaited(lambda *arguments: iter(())))
    path = f"/v1/windows/{typed}/entries"
    assert http.get(path).json() == {"bulks": []}
    body = http.get(path, headers={"accept": ARROW["content-type"]}).content
    table = pa.ipc.open_stream(body).read_all()
    assert (table.num_rows, table.column_names) == (0, ["time", "key", "f", "i", "s", "b"])


def test_entries_that_fail(http, service, window, monkeypatch):
    """Before the first bulk it is a problem document; after it the answer breaks off, unlike a whole one."""

    def found(name, *arguments):
        if name != window:
            raise NotFound(f"there is no window {name!r}", field="window")
        yield Batch(np.array([1]), {"value": np.array([1.0])})
        raise DataLoss("block 7 is damaged")

    monkeypatch.setattr(service.plane, "entries", awaited(found))
    refuse(http, "GET", "/v1/windows/unknown/entries", 404, "window")
    with pytest.raises(httpx.RemoteProtocolError):
        http.get(f"/v1/windows/{window}/entries")
    refuse(http, "GET", f"/v1/windows/{window}/entries?start=x", 400, "start")


# ---------------------------------------------------------------- export and import


def test_an_export_and_an_import_are_streams(http, service, window, monkeypatch):
    parts, taken = [b"head", b"x" * (3 << 20), b"tail"], []  # more than max_body_bytes

    async def restore(arriving, name=None):
        taken.append((name, b"".join([part async for part in arriving])))
        return service.plane.describe(window)

    monkeypatch.setattr(service.plane, "export", awaited(lambda name: iter(parts)))
    monkeypatch.setattr(service.plane, "restore", restore)
    exported = http.get(f"/v1/windows/{window}/export")
    assert exported.headers["content-type"] == OCTETS["content-type"]
    assert exported.headers["content-disposition"] == f'attachment; filename="{window}.sash"'
    assert exported.content == b"".join(parts)
    created = http.post("/v1/windows/import?name=other", content=exported.content, headers=OCTETS)
    assert (created.status_code, created.json()["spec"]["name"]) == (201, window)
    http.post("/v1/windows/import", content=iter(parts), headers=OCTETS).raise_for_status()
    assert taken == [("other", b"".join(parts)), (None, b"".join(parts))]
    refuse(http, "POST", "/v1/windows/import?other=1", 400, "other", content=b"x", headers=OCTETS)
    refuse(http, "POST", "/v1/windows/import", 415, "Content-Type", json={})


def test_a_file_that_somebody_made_up_is_refused_and_spoils_nothing(http, window):
    http.post(f"/v1/windows/{window}/insert", json={"time": 1, "value": 1}).raise_for_status()
    exported = http.get(f"/v1/windows/{window}/export").content
    for counts, field in (
        ({"late": "many"}, "counts.late"),
        ({"late": 2**63}, "counts.late"),
        ({"late": 2**62}, "counts"),
    ):
        made_up = {"content": with_counts(exported, counts), "headers": OCTETS}
        refuse(http, "POST", "/v1/windows/import?name=other", 400, f"header.{field}", **made_up)
        assert [each["spec"]["name"] for each in http.get("/v1/windows").json()["windows"]] == [window]
        assert http.get("/metrics").status_code == 200
    sound = with_counts(exported, {"late": 2**62 - 1})
    created = http.post("/v1/windows/import?name=other", content=sound, headers=OCTETS)
    assert (created.status_code, created.json()["counts"]["late"]) == (201, 2**62 - 1)
    assert http.get("/metrics").status_code == 200
    http.delete("/v1/windows/other").raise_for_status()


# ---------------------------------------------------------------- a tier that takes its time


def test_a_write_whose_client_goes_is_ended(service, window, monkeypatch):
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def insert(*arguments, **options):
        begun.set()
        await until(go.is_set)
        ended.set()
        return WriteResult(inserted=1)

    monkeypatch.setattr(service.plane, "insert", insert)
    body = b'{"time": 1, "value": 1}'
    with socket.create_connection(("127.0.0.1", service.rest_port)) as client:
        head = json_head(f"/v1/windows/{window}/insert", len(body))
        client.sendall(head + body)
        assert begun.wait(WAIT_S)
    go.set()
    assert ended.wait(WAIT_S)


def test_a_tier_that_is_away(http, service, window, monkeypatch):
    async def insert(*arguments, **options):
        raise Unavailable("the tier is away", retry_after_s=1.5)

    monkeypatch.setattr(service.plane, "insert", insert)
    response = http.post(f"/v1/windows/{window}/insert", json=WRITES["insert"])
    assert problem(response)["status"] == 503
    assert response.headers["retry-after"] == "2"
