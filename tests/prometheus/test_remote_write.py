"""Remote write: what is taken, what is refused for ever, and what Prometheus should send again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from struct import unpack
from typing import Any

import cramjam
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.prometheus.remote_write import TimeSeries, WriteRequest, length_of, read_request, read_series
from sash.promql.errors import BadData
from sash.rpc import parsing
from sash_engine.errors import TooLarge
from sash_engine.steps import finished
from tests.prometheus import conftest
from tests.prometheus.conftest import T
from tests.support.servers import running_service

URL = "/prometheus/api/v1/write"
HEADERS = {
    "content-type": "application/x-protobuf",
    "content-encoding": "snappy",
    "x-prometheus-remote-write-version": "0.1.0",
}
STALE = unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
DURABLE: dict[str, Any] = {"keyed": True, "time_unit": "ms", "order": {"equal_times": "first"}}

Series = tuple[dict[str, str], list[tuple[int, float]]]


def body_of(*series: Series) -> bytes:
    request = WriteRequest()
    for labels, samples in series:
        made = request.timeseries.add()
        for name, value in labels.items():
            made.labels.add(name=name, value=value)
        for at, value in samples:
            made.samples.add(timestamp=at, value=value)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with running_service(max_windows=20, max_entries_per_write=1000) as running:
        yield running.http()


@pytest.fixture
def http(client: httpx.Client) -> Iterator[httpx.Client]:
    create(client, "w")
    yield client
    for window in client.get("/v1/windows").json()["windows"]:
        client.delete(f"/v1/windows/{window['spec']['name']}")


def create(http: httpx.Client, name: str, **changed: Any) -> None:
    conftest.create(http, name, **DURABLE | changed)


def send(http: httpx.Client, *series: Series, url: str = URL) -> httpx.Response:
    return http.post(url, content=body_of(*series), headers=HEADERS)


def entries(http: httpx.Client, window: str = "w") -> list[tuple[str, int, Any]]:
    parameters = {"all_keys": True} if http.get(f"/v1/windows/{window}").json()["spec"].get("keyed") else {}
    bulks = http.get(f"/v1/windows/{window}/entries", params=parameters).json()["bulks"]
    return [
        row
        for bulk in bulks
        for row in zip(bulk.get("key", [""] * len(bulk["time"])), bulk["time"], bulk["fields"]["v"], strict=True)
    ]


def labels(**others: str) -> dict[str, str]:
    return {"__name__": "w:v", "key": "a", **others}


def test_samples_become_entries(http: httpx.Client) -> None:
    create(http, "nano", time_unit="ns", keyed=False, order={"equal_times": "last"})
    answer = send(
        http,
        (labels(), [(T, 1.5), (T + 1, math.inf)]),
        (labels(key="b"), [(T, -2.0)]),
        ({"__name__": "nano:v"}, [(5, 7.0)]),
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert entries(http) == [("a", T, 1.5), ("a", T + 1, "Infinity"), ("b", T, -2.0)]
    assert entries(http, "nano") == [("", 5_000_000, 7.0)]


def test_a_request_that_is_sent_again_changes_nothing(http: httpx.Client) -> None:
    series = labels(), [(T, 1.0), (T + 1, 2.0)]
    for _ in range(3):
        assert send(http, series).status_code == 204
    # After it was sharded anew, Prometheus may put the same samples into other requests.
    assert send(http, (labels(), [(T + 1, 2.0), (T + 2, 3.0)])).status_code == 204
    assert entries(http) == [("a", T, 1.0), ("a", T + 1, 2.0), ("a", T + 2, 3.0)]


def test_what_has_slid_out_does_not_come_back(http: httpx.Client) -> None:
    create(http, "short", slide={"max_age": "10ms"})
    old, new = ({"__name__": "short:v", "key": "a"}, [(T, 1.0)]), ({"__name__": "short:v", "key": "a"}, [(T + 50, 2.0)])
    for series in (old, new, old):
        assert send(http, series).status_code == 204
    assert entries(http, "short") == [("a", T + 50, 2.0)]


def test_the_end_of_a_series_is_no_entry_and_nan_is_one(http: httpx.Client) -> None:
    assert send(http, (labels(), [(T, STALE), (T + 1, math.nan)])).status_code == 204
    assert entries(http) == [("a", T + 1, "NaN")]


def test_parameters_say_where_samples_go(http: httpx.Client) -> None:
    series = {"__name__": "node_load1", "instance": "db1", "job": "node"}, [(T, 0.5)]
    assert send(http, series, url=f"{URL}?window=w&field=v&key=instance").status_code == 204
    assert entries(http) == [("db1", T, 0.5)]
    for wrong in ("windows=w", "field=v"):
        assert send(http, series, url=f"{URL}?{wrong}").status_code == 400


def test_metadata_alone_is_taken(http: httpx.Client) -> None:
    metadata = bytes([0x1A, 4, 0x08, 1, 0x12, 0])  # field 3, which is not read
    answer = http.post(URL, content=bytes(cramjam.snappy.compress_raw(metadata)), headers=HEADERS)
    assert answer.status_code == 204


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ({"__name__": "up", "key": "a"}, "write_relabel_configs"),
        ({"__name__": "missing:v", "key": "a"}, "missing"),
        ({"__name__": "w:other", "key": "a"}, "has no field 'other'"),
        ({"__name__": "w:v"}, "no label 'key'"),
        ({"__name__": "w:v", "key": "k" * 513}, "513 bytes"),
        ({"__name__": "keeping:v", "key": "a"}, "equal_times: first"),
        ({"__name__": "seconds:v", "key": "a"}, "milliseconds"),
        ({"__name__": "two:v", "key": "a"}, "several fields"),
        ({"__name__": "whole:v", "key": "a"}, "int64"),
        ({"__name__": "w:v", "key": "b", "job": "other"}, "two series"),
        ({"__name__": "w:v", "key": "c", **{f"l{i}": "" for i in range(200)}}, "202 labels"),
    ],
)
def test_what_can_never_be_taken_is_400_and_the_rest_is_applied(
    http: httpx.Client, series: dict[str, str], said: str
) -> None:
    create(http, "keeping", order={})
    create(http, "seconds", time_unit="s")
    create(http, "two", fields={"v": "float64", "w": "float64"})
    create(http, "whole", fields={"v": "int64"})
    good = labels(key="b"), [(T, 1.0)]
    answer = send(http, good, (series, [(T, 2.0)]))
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert entries(http) == [("b", T, 1.0)]


def test_a_sample_that_can_never_be_taken_takes_no_others_with_it(http: httpx.Client) -> None:
    create(http, "fine", time_unit="ns")
    series = {"__name__": "fine:v", "key": "a"}
    answer = send(http, (series, [(T, 1.0), (9 * 10**15, 2.0), (T + 1, 3.0)]))
    assert answer.status_code == 400
    assert "timestamp 9000000000000000" in answer.json()["error"]
    assert [value for _, _, value in entries(http, "fine")] == [1.0, 3.0]


def test_a_series_that_has_a_label_twice_is_refused(http: httpx.Client) -> None:
    request = WriteRequest()
    made = request.timeseries.add()
    for name, value in (("__name__", "w:v"), ("key", "a"), ("key", "b")):
        made.labels.add(name=name, value=value)
    made.samples.add(timestamp=T, value=1.0)
    body = bytes(cramjam.snappy.compress_raw(request.SerializeToString()))
    answer = http.post(URL, content=body, headers=HEADERS)
    assert answer.status_code == 400
    assert "a label twice" in answer.json()["error"]
    assert entries(http) == []


def test_bodies_that_are_none(http: httpx.Client) -> None:
    def post(content: bytes, **headers: str) -> int:
        return http.post(URL, content=content, headers={**HEADERS, **headers}).status_code

    good = body_of((labels(), [(T, 1.0)]))
    assert post(b"") == 400
    assert post(b"\xff\xff\xff\xff\x0f") == 413  # says that it has 4 GiB
    assert post(b"\x81\x80\x80\x02") == 413  # says that it has 4 MiB and a byte
    assert post(good[:-1]) == 400
    assert post(bytes(cramjam.snappy.compress_raw(b"\x0a\xff"))) == 400
    assert post(bytes(cramjam.snappy.compress_raw(b"\x0a\x06\x0a\x04\x0a\x02\xff\xff"))) == 400  # no UTF-8
    assert post(good, **{"content-encoding": "gzip"}) == 415
    assert post(good, **{"content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}) == 415
    assert post(good, **{"content-type": "text/plain"}) == 415
    assert post(body_of((labels(), [(T + i, 1.0) for i in range(1001)]))) == 413
    assert post(bytes(cramjam.snappy.compress_raw(b"\x0a\x00" * 100_001))) == 413
    assert post(body_of((labels(), [(2**62, 1.0)]))) == 400  # a new window takes nothing that is a day ahead
    assert post(body_of((labels(), [(-(2**63), 1.0)]))) == 400
    assert http.get(URL).status_code == 405
    assert entries(http) == []


EMPTY_LABELS, EMPTY_SAMPLES = b"\x0a\x00" * 100_000, b"\x12\x00" * 100_000


@pytest.mark.parametrize("inside", [EMPTY_LABELS, EMPTY_SAMPLES, b"\x0a\x06\x0a\x01a\x12\x01b" * 20_000])
def test_a_long_series_is_parsed_in_steps(inside: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, real = list[int](), parsing._merged
    monkeypatch.setattr(parsing, "_merged", lambda message, piece: sizes.append(len(piece)) or real(message, piece))
    whole = TimeSeries.FromString(inside)
    assert finished(read_series(inside)) == whole
    assert max(sizes) <= 20_000
    short = b"\x0a\x06\x0a\x01a\x12\x01b"
    body = b"\x1a\x02\x08\x01" + (b"\x0a" + bytes([len(short)]) + short) * 2 + b"\x18\x07"
    found = list(read_request(bytes(cramjam.snappy.compress_raw(body))))
    assert found == [short, short]


def test_what_a_request_has_beside_series_is_passed_over_in_steps() -> None:
    body = bytes(cramjam.snappy.compress_raw(b"\x18\x00" * 10_000))
    assert list(read_request(body)) == [None] * 5


@pytest.mark.parametrize("body", [b"\x0b", b"\x00\x00", b"\x0a\x05abc", b"\x19abc", b"\x1d\x00", b"\x07"])
def test_bytes_that_are_no_request(body: bytes) -> None:
    with pytest.raises(BadData, match="no WriteRequest"):
        list(read_request(bytes(cramjam.snappy.compress_raw(body))))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for body in (data, bytes(cramjam.snappy.compress_raw(data))):
        try:
            length_of(body)
            for series in read_request(body):
                if series is not None:
                    finished(read_series(series))
        except (BadData, TooLarge):
            continue
