"""Entries, exports and imports over REST."""

import httpx
import numpy as np
import pyarrow as pa
import pytest

from sash_engine.errors import DataLoss, NotFound
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import EntriesQuery
from tests.support.arrow import ARROW
from tests.support.mutations import with_counts
from tests.support.refusals import refuse
from tests.support.waiting import awaited

OCTETS = {"content-type": "application/octet-stream"}


# ---------------------------------------------------------------- entries


def test_entries_as_json_and_as_arrow(http, service, typed, monkeypatch):
    columns = {
        "f": np.array([0.5, np.nan]),
        "i": np.array([1, -(2**63)]),
        "s": np.array(["ä", "x"], object),
        "b": np.array([True, False]),
    }
    asked = []

    def found(name, question):
        asked.append(question)
        for letter in "ab":
            yield Batch(np.array([3, 4]), columns, Coded([letter], np.array([0, 0])))

    monkeypatch.setattr(service.plane, "ask", awaited(found))
    path = f"/v1/windows/{typed}"
    bulks = http.get(f"{path}/entries?key=a&key=b&start=0").json()["bulks"]
    assert asked == [EntriesQuery(0, keys=("a", "b"))]
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
    monkeypatch.setattr(service.plane, "ask", awaited(lambda *arguments: iter(())))
    path = f"/v1/windows/{typed}/entries"
    assert http.get(path).json() == {"bulks": []}
    body = http.get(path, headers={"accept": ARROW["content-type"]}).content
    table = pa.ipc.open_stream(body).read_all()
    assert (table.num_rows, table.column_names) == (0, ["time", "key", "f", "i", "s", "b"])


def test_the_newest_entries_first(http, service, typed):
    from sash_client import Client

    path = f"/v1/windows/{typed}"
    rows = {"f": [1.5] * 4, "i": [1, 2, 3, 4], "s": ["x"] * 4, "b": [True] * 4}
    assert http.post(f"{path}/bulk-insert", json={"time": [5, 6, 6, 7], "key": ["k"] * 4, **rows}).status_code == 200

    def numbers(query):
        bulks = http.get(f"{path}/entries?key=k&{query}").json()["bulks"]
        return [number for bulk in bulks for number in bulk["fields"]["i"]]

    assert numbers("reverse=true") == [4, 3, 2, 1]
    assert numbers("reverse=true&limit=2&end=6") == [3, 2]
    assert numbers("limit=3") == [1, 2, 3]
    refuse(http, "GET", f"{path}/entries?key=k&limit=0", 400, "limit")
    refuse(http, "GET", f"{path}/entries?key=k&limit=-1", 400, "limit")
    with Client(service.grpc_target) as sash:
        found = sash.window(typed).entries(key="k", reverse=True, limit=3)
        assert [number for bulk in found for number in bulk.columns["i"]] == [4, 3, 2]


def test_entries_that_fail(http, service, window, monkeypatch):
    """Before the first bulk it is a problem document; after it the answer breaks off, unlike a whole one."""

    def found(name, *arguments):
        if name != window:
            raise NotFound(f"there is no window {name!r}", field="window")
        yield Batch(np.array([1]), {"value": np.array([1.0])})
        raise DataLoss("block 7 is damaged")

    monkeypatch.setattr(service.plane, "ask", awaited(found))
    refuse(http, "GET", "/v1/windows/unknown/entries", 404, "window")
    with pytest.raises(httpx.RemoteProtocolError):
        http.get(f"/v1/windows/{window}/entries")
    refuse(http, "GET", f"/v1/windows/{window}/entries?start=x", 400, "start")


# ---------------------------------------------------------------- export and import


def test_an_export_and_an_import_are_streams(http, service, window, monkeypatch):
    parts, taken = [b"head", b"x" * (3 << 20), b"tail"], []  # more than max_body_bytes

    async def restore(arriving, name=None):
        taken.append((name, b"".join([part async for part in arriving])))
        return await service.plane.window(window)

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
