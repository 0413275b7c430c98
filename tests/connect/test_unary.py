"""Unary calls: binary and JSON, POST and GET, and every way to be wrong before a method is asked."""

import gzip
from base64 import b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2

from sash_proto.v1 import windows_pb2 as pb
from tests.connect.conftest import BODY_BYTES_MAX
from tests.support.servers import running_service
from tests.support.waiting import wait_until

PATH = "/sash.v1.Windows/"
PROTO = {"content-type": "application/proto"}
JSON = {"content-type": "application/json"}


def refusal(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The error of a response, with its ErrorInfo as `info`."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = answer.json()
    assert document["code"] == code
    assert document["message"]
    for detail in document.get("details", ()):
        assert not detail["value"].endswith("=")
        if detail["type"] == "google.rpc.ErrorInfo":
            value = b64decode(detail["value"] + "=" * (-len(detail["value"]) % 4))
            document["info"] = error_details_pb2.ErrorInfo.FromString(value)
    return document


def test_reads_in_json_and_by_address_answer_as_over_grpc(http: httpx.Client, stub: Any, window: str) -> None:
    """tests/edges has all methods in binary."""
    stub.Insert(pb.InsertRequest(window=window, time=5, value=2.5))
    for method, request in (
        ("GetWindow", pb.GetWindowRequest(name=window)),
        ("ListWindows", pb.ListWindowsRequest()),
        ("Query", pb.QueryRequest(window=window, lookbacks=["1m"])),
        ("RangeQuery", pb.RangeQueryRequest(window=window, start=0, end=9)),
        ("Series", pb.SeriesRequest(window=window, start=0, end=9, step="3s")),
    ):
        expected = getattr(stub, method)(request)
        by_address = http.get(PATH + method, params=in_address(request.SerializeToString(), "proto"))
        assert type(expected).FromString(by_address.content) == expected
        as_json = http.post(PATH + method, json=MessageToDict(request))
        assert as_json.headers["content-type"] == "application/json"
        assert as_json.json() == MessageToDict(expected)


def in_address(message: bytes, encoding: str) -> dict[str, str]:
    return {
        "connect": "v1",
        "encoding": encoding,
        "base64": "1",
        "message": urlsafe_b64encode(message).rstrip(b"=").decode(),
    }


def test_a_message_in_the_address_may_be_plain(http: httpx.Client, window: str) -> None:
    query = {"encoding": "json", "message": '{"window": "plain"}'}
    assert http.get(PATH + "Query", params=query).json()["answers"]
    raw = pb.QueryRequest(window="plain", lookbacks=["1h"]).SerializeToString()
    escaped = "".join(f"%{byte:02x}" for byte in raw)
    answer = http.get(f"{PATH}Query?encoding=proto&message={escaped}")
    assert pb.QueryResponse.FromString(answer.content).answers[0].lookback == "1h"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"connect": "v2"}, "connect"),
        ({"encoding": "xml"}, "encoding"),
        ({"encoding": None}, "encoding"),
        ({"message": None}, "message"),
        ({"message": "!"}, "message"),
        ({"message": "_w"}, "body"),
    ],
)
def test_wrong_addresses_name_the_parameter(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    query = in_address(b"", "proto") | change
    answer = http.get(PATH + "ListWindows", params={name: value for name, value in query.items() if value is not None})
    assert refusal(answer, 400, "invalid_argument")["info"].metadata["field"] == field


def test_other_compressions_are_refused(http: httpx.Client, window: str) -> None:
    body = pb.QueryRequest(window=window).SerializeToString()
    packed = http.post(PATH + "Query", content=body, headers=PROTO | {"content-encoding": "zstd"})
    assert "send gzip" in refusal(packed, 501, "unimplemented")["message"]
    plain = http.post(PATH + "Query", content=body, headers=PROTO | {"content-encoding": "identity"})
    assert plain.status_code == 200
    refusal(http.get(PATH + "Query", params=in_address(body, "proto") | {"compression": "br"}), 501, "unimplemented")
    known = http.post(PATH + "Query", content=gzip.compress(body), headers=PROTO | {"content-encoding": "GZip"})
    assert known.status_code == 200


def test_only_reads_may_be_asked_for_with_get(http: httpx.Client) -> None:
    for method, allowed in (("Query", "GET, POST"), ("Insert", "POST"), ("Watch", "POST")):
        answer = http.put(PATH + method, content=b"")
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert http.get(PATH + "Insert").status_code == 405


def test_other_types_are_refused(http: httpx.Client) -> None:
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        answer = http.post(PATH + "ListWindows", content=b"", headers=headers)
        assert (answer.status_code, answer.headers["accept-post"]) == (415, "application/proto, application/json")
    answer = http.post(PATH + "ListWindows", content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"})
    assert answer.status_code == 200


def test_unknown_methods(http: httpx.Client) -> None:
    assert "Nope" in refusal(http.post(PATH + "Nope", content=b"", headers=PROTO), 404, "unimplemented")["message"]


def test_a_stream_in_both_directions_is_for_grpc(http: httpx.Client) -> None:
    assert http.post(PATH + "InsertStream", headers={"content-type": "application/connect+proto"}).status_code == 505


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05w"])
def test_bytes_that_are_no_message(http: httpx.Client, body: bytes) -> None:
    document = refusal(http.post(PATH + "Query", content=body, headers=PROTO), 400, "invalid_argument")
    assert document["info"].metadata["field"] == "body"


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"window": "a", "window": "b"}', b"[" * 30_000, b'{"window": "\xff"}'])
def test_json_that_is_no_message(http: httpx.Client, body: bytes) -> None:
    document = refusal(http.post(PATH + "Query", content=body, headers=JSON), 400, "invalid_argument")
    assert document["info"].metadata["field"] == "body"


@pytest.mark.parametrize(
    ("body", "field"), [({"windw": "a"}, "windw"), ({"top": {"bie": "n"}}, "top.bie"), ({"as_of": "now"}, "as_of")]
)
def test_json_with_a_wrong_member(http: httpx.Client, body: dict[str, Any], field: str) -> None:
    document = refusal(http.post(PATH + "Query", json=body), 400, "invalid_argument")
    assert document["info"].metadata["field"] == field


def test_errors_have_the_details_of_grpc(http: httpx.Client, stub: Any) -> None:
    request = pb.QueryRequest(window="nope")
    document = refusal(http.post(PATH + "Query", content=request.SerializeToString(), headers=PROTO), 404, "not_found")
    with pytest.raises(grpc.RpcError) as failed:
        stub.Query(request)
    assert document["message"] == failed.value.details()
    assert (document["info"].reason, document["info"].metadata["field"]) == ("NOT_FOUND", "window")


def test_a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not(http: httpx.Client, window: str) -> None:
    request = pb.InsertRequest(window=window, time=1, key="k" * BODY_BYTES_MAX).SerializeToString()

    def unsaid() -> Any:
        yield request[:-1]
        yield request[-1:]

    for content in (request, unsaid()):
        document = refusal(http.post(PATH + "Insert", content=content, headers=PROTO), 429, "resource_exhausted")
        assert document["info"].reason == "TOO_LARGE"
        assert document["info"].metadata["limit"] == f"{BODY_BYTES_MAX:,} bytes"
    fits = pb.QueryRequest(window=window, lookbacks=["1s"]).SerializeToString()
    exactly = fits + b"\xfa\x7f" + varint(BODY_BYTES_MAX - len(fits) - 5) + b"\0" * (BODY_BYTES_MAX - len(fits) - 5)
    assert len(exactly) == BODY_BYTES_MAX
    assert http.post(PATH + "Query", content=exactly, headers=PROTO).status_code == 200


def varint(number: int) -> bytes:
    assert 1 << 14 <= number < 1 << 21
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))


def test_headers_of_the_protocol(http: httpx.Client, window: str) -> None:
    body = pb.QueryRequest(window=window).SerializeToString()
    for name, value, field in (
        ("connect-protocol-version", "2", "connect-protocol-version"),
        ("connect-timeout-ms", "1s", "connect-timeout-ms"),
        ("connect-timeout-ms", "12345678901", "connect-timeout-ms"),
    ):
        answer = http.post(PATH + "Query", content=body, headers=PROTO | {name: value})
        assert refusal(answer, 400, "invalid_argument")["info"].metadata["field"] == field
    good = {"connect-protocol-version": "1", "connect-timeout-ms": "1234567890"}
    assert http.post(PATH + "Query", content=body, headers=PROTO | good).status_code == 200


def test_a_write_outlives_the_callers_timeout(tmp_path: Path) -> None:
    with running_service(data=str(tmp_path / "data")) as running:  # it waits for its commit
        http, stub = running.http(), running.stub()
        spec = pb.WindowSpec(name="w", aggregates={"n": pb.AggregateSpec(function="count")})
        stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
        request = pb.InsertRequest(window="w", time=1, value=1.0).SerializeToString()
        answer = http.post(PATH + "Insert", content=request, headers=PROTO | {"connect-timeout-ms": "0"})
        assert "may still be applied" in refusal(answer, 504, "deadline_exceeded")["message"]
        assert stub.GetWindow(pb.GetWindowRequest(name="w")).entries == 1


def test_calls_beyond_the_limit_are_told_when_to_come_again() -> None:
    with running_service(max_concurrent_calls=1) as running:
        http = running.http()
        head = {"content-type": "application/connect+proto"}
        stub = running.stub()
        spec = pb.WindowSpec(name="w", aggregates={"n": pb.AggregateSpec(function="count")})
        stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
        watch = pb.WatchRequest(query=pb.QueryRequest(window="w")).SerializeToString()
        with http.stream("POST", PATH + "Watch", content=b"\0" + len(watch).to_bytes(4) + watch, headers=head) as held:
            parts = held.iter_raw()  # named: a generator that goes closes the stream
            next(parts)
            answer = http.post(PATH + "ListWindows", content=b"", headers=PROTO)
            refusal(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "1"
        # The service hears that the watcher has gone.
        wait_until(lambda: http.post(PATH + "ListWindows", content=b"", headers=PROTO).status_code == 200)


def test_a_small_body_has_the_limit_of_the_service():
    """It has arrived whole when its length is looked at."""
    with running_service(max_body_bytes=1024) as running:
        answer = running.http().post(PATH + "ListWindows", content=b"\0" * 1025, headers=PROTO)
        refusal(answer, 429, "resource_exhausted")
