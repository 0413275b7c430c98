"""Entries, exports and imports over REST."""

import httpx
import numpy as np
import pyarrow as pa
import pytest

from sash_engine.errors import DataLoss, NotFound
from sash_engine.windows.batches.batch import Batch
from tests.support.arrow import ARROW
from tests.support.refusals import refuse
from tests.support.waiting import awaited

OCTETS = {"content-type": "application/octet-stream"}


# ---------------------------------------------------------------- entries


def test_entries_as_json_and_as_arrow(http, typed):
    path = f"/v1/windows/{typed}"
    none = http.get(f"{path}/entries?all_keys=true", headers={"accept": ARROW["content-type"]}).content
    assert pa.ipc.open_stream(none).read_all().column_names == ["time", "key", "f", "i", "s", "b"]
    fields = {"f": [0.5, "NaN"] * 2, "i": [1, -(2**63)] * 2, "s": ["ä", "x"] * 2, "b": [True, False] * 2}
    bulk = {"time": [3, 4] * 2, "key": list("aabb"), "fields": fields}
    assert http.post(f"{path}/bulk-insert", json=bulk).json()["inserted"] == 4
    assert http.get(f"{path}/entries?key=a&key=b&start=0").json()["bulks"] == [bulk]
    response = http.get(f"{path}/entries?all_keys=true", headers={"accept": ARROW["content-type"]})
    assert response.headers["content-type"] == ARROW["content-type"]
    table = pa.ipc.open_stream(response.content).read_all()
    assert table.column_names == ["time", "key", "f", "i", "s", "b"]
    assert table["key"].to_pylist() == ["a", "a", "b", "b"]
    again = http.post(f"{path}/bulk-insert", content=response.content, headers=ARROW)
    assert again.json()["inserted"] == 4


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
