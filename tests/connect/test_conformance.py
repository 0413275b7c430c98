"""The raw requests of Connect's conformance suite for servers, sent to methods of Sash.

Source: connectrpc/conformance, testsuites `connect_server_unexpected`, `server_unexpected`, `server_empty`. Cases of
the other suites need a service that answers as each request says.
"""

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest

from sash.connect.compression import SMALL_BYTES, unpacked, unpacked_size
from sash.connect.envelopes import END, sealed
from sash_engine.errors import InvalidArgument
from sash_engine.steps import finished
from sash_proto.v1 import windows_pb2 as pb
from tests.connect.conftest import BODY_BYTES_MAX

PATH = "/sash.v1.Windows/"
UNARY = {"content-type": "application/proto", "connect-protocol-version": "1"}
STREAM = {"content-type": "application/connect+proto", "connect-protocol-version": "1"}


@pytest.mark.parametrize(
    ("name", "verb", "path", "headers", "status", "code"),
    [
        ("unexpected-verb", "DELETE", "Query", UNARY, 405, None),
        ("unexpected-uri", "POST", "UnknownMethod", UNARY, 404, "unimplemented"),
        ("unexpected-codec", "POST", "Query", UNARY | {"content-type": "application/foo"}, 415, None),
        ("unexpected-compression", "POST", "Query", UNARY | {"content-encoding": "foo"}, 501, "unimplemented"),
        ("unexpected-content-type", "POST", "Query", {"content-type": "image/jpeg"}, 415, None),
    ],
)
def test_unexpected_unary_requests(
    http: httpx.Client, name: str, verb: str, path: str, headers: dict[str, str], status: int, code: str | None
) -> None:
    answer = http.request(verb, PATH + path, content=b"", headers=headers)
    assert answer.status_code == status
    assert code is None or answer.json()["code"] == code


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("no-request", b"", "unimplemented"),
        ("multiple-requests", sealed(b"") + sealed(b""), "unimplemented"),
        ("unexpected-compressed-message", sealed(b"", 1), "internal"),
    ],
)
def test_unexpected_streams(http: httpx.Client, name: str, body: bytes, code: str) -> None:
    answer = http.post(PATH + "Entries", content=body, headers=STREAM | {"connect-content-encoding": "identity"})
    assert answer.status_code == 200
    flags, length = answer.content[0], int.from_bytes(answer.content[1:5])
    assert (flags, length) == (END, len(answer.content) - 5)
    assert json.loads(answer.content[5:])["error"]["code"] == code


def test_empty_requests(http: httpx.Client) -> None:
    for headers in (UNARY, UNARY | {"content-encoding": "gzip"}):
        answer = http.post(PATH + "ListWindows", content=b"", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/proto")


# ---------------------------------------------------------------- compression


def test_large_messages_are_unpacked_in_steps(http: httpx.Client, stub: Any, window: str) -> None:
    n = 3_000
    times = b"".join(i.to_bytes(8, "little") for i in range(n))
    request = pb.BulkInsertRequest(window=window, time=times, fields={"value": pb.Column(float64=bytes(8 * n))})
    body = request.SerializeToString()
    assert len(body) > SMALL_BYTES // 2
    answer = http.post(PATH + "BulkInsert", content=gzip.compress(body), headers=UNARY | {"content-encoding": "gzip"})
    assert pb.InsertResponse.FromString(answer.content).inserted == n


def test_what_unpacks_to_too_much_is_refused(http: httpx.Client) -> None:
    body = gzip.compress(bytes(BODY_BYTES_MAX + 1))
    assert len(body) < 200
    for said in (body, body[:-4] + (5).to_bytes(4, "little")):  # its size, and a lie
        answer = http.post(PATH + "Query", content=said, headers=UNARY | {"content-encoding": "gzip"})
        assert answer.json()["code"] == ("resource_exhausted" if said is body else "invalid_argument")


GOOD = gzip.compress(b"abc" * 50_000, mtime=0)


@pytest.mark.parametrize(
    "bad",
    [
        b"\x1f",
        b"no gzip at all, but long",
        GOOD[:-1],
        GOOD[: len(GOOD) // 2] + GOOD[-4:],
        GOOD[:-8] + bytes(4) + GOOD[-4:],
        GOOD + GOOD,
        GOOD + b"\0" * 4,
        GOOD[:-4] + (149_999).to_bytes(4, "little"),
        GOOD[:-4] + (150_001).to_bytes(4, "little"),
        zlib.compress(b"abc" * 50),
    ],
)
def test_damaged_messages_are_refused(http: httpx.Client, bad: bytes) -> None:
    answer = http.post(PATH + "Query", content=bad, headers=UNARY | {"content-encoding": "gzip"})
    assert answer.json()["code"] in ("invalid_argument", "resource_exhausted")
    with pytest.raises(InvalidArgument):
        _unpacked(bad)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 131_072, 200_000])
def test_messages_are_unpacked_as_they_were(size: int) -> None:
    data = bytes(i * 7 % 256 for i in range(size))
    assert _unpacked(gzip.compress(data)) == data


def _unpacked(data: bytes) -> bytes:
    return b"".join(finished(unpacked(data, min(unpacked_size(data), 1 << 20))))
