"""Streams: envelopes out and in, how they end, and callers that hang up."""

import json
import threading
from typing import Any

import httpx
import pytest

from sash.connect.envelopes import END, opened, sealed
from sash_engine.errors import InvalidArgument, TooLarge
from sash_proto.v1 import windows_pb2 as pb
from tests.connect.conftest import BODY_BYTES_MAX
from tests.support.edges import envelopes
from tests.support.servers import running_service

PATH = "/sash.v1.Windows/"
PROTO = {"content-type": "application/connect+proto"}


def ended(answer: httpx.Response) -> tuple[list[bytes], dict[str, Any]]:
    """The messages of a stream, and what its last envelope says."""
    assert answer.status_code == 200
    *messages, (flags, end) = envelopes(answer.content)
    assert flags == END
    assert all(flags == 0 for flags, _ in messages)
    return [message for _, message in messages], json.loads(end)


def stream(http: httpx.Client, method: str, body: bytes, **headers: str) -> tuple[list[bytes], dict[str, Any]]:
    return ended(http.post(PATH + method, content=body, headers=PROTO | headers))


def test_entries_in_json(http: httpx.Client, stub: Any, window: str) -> None:
    stub.Insert(pb.InsertRequest(window=window, time=1, value=1))
    kind = "application/connect+json"
    answer = http.post(PATH + "Entries", content=sealed(b'{"window": "plain"}'), headers={"content-type": kind})
    assert answer.headers["content-type"] == kind
    (message,), end = ended(answer)
    assert json.loads(message)["window"] == window
    assert end == {}


def test_an_import_that_breaks_off_creates_nothing(http: httpx.Client, stub: Any, window: str) -> None:
    (chunk, *_), _ = stream(http, "ExportWindow", sealed(pb.ExportWindowRequest(window=window).SerializeToString()))
    half = pb.WindowChunk(name="copy", data=pb.WindowChunk.FromString(chunk).data[:-9]).SerializeToString()
    messages, end = stream(http, "ImportWindow", sealed(half))
    assert (messages, end["error"]["code"]) == ([], "invalid_argument")
    assert [info.spec.name for info in stub.ListWindows(pb.ListWindowsRequest()).windows] == [window]


def test_a_watch_sees_changes_and_ends_with_the_service() -> None:
    with running_service() as running:
        http, stub = running.http(), running.stub()
        spec = pb.WindowSpec(name="w", aggregates={"n": pb.AggregateSpec(function="count")})
        stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
        watch = pb.WatchRequest(query=pb.QueryRequest(window="w"), interval_ms=50).SerializeToString()
        seen = []
        with http.stream("POST", PATH + "Watch", content=sealed(watch), headers=PROTO) as answer:
            for part in answer.iter_raw():
                for flags, message in envelopes(part):
                    if flags == END:
                        seen.append(json.loads(message)["error"]["code"])
                    else:
                        (now,) = pb.QueryResponse.FromString(message).answers
                        seen.append(now.entries)
                        if now.entries == 0:
                            stub.Insert(pb.InsertRequest(window="w", time=1, value=1))
                        else:
                            threading.Thread(target=running.stop).start()  # this thread still reads
        assert seen == [0, 1, "unavailable"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (sealed(b"\xff"), "invalid_argument"),
        (sealed(b"", 4), "internal"),
        (sealed(b"abc")[:-1], "invalid_argument"),
        (b"\0\0\xff\xff\xff", "resource_exhausted"),
        (sealed(pb.EntriesRequest(window="nope").SerializeToString()), "not_found"),
    ],
)
def test_what_is_wrong_is_said_at_the_end(http: httpx.Client, body: bytes, code: str) -> None:
    messages, end = stream(http, "Entries", body)
    assert (messages, end["error"]["code"]) == ([], code)


def test_headers_of_the_protocol(http: httpx.Client, window: str) -> None:
    body = sealed(pb.EntriesRequest(window=window).SerializeToString())
    for name, value, code in (
        ("connect-protocol-version", "2", "invalid_argument"),
        ("connect-timeout-ms", "", "invalid_argument"),
        ("connect-content-encoding", "br", "unimplemented"),
    ):
        assert stream(http, "Entries", body, **{name: value})[1]["error"]["code"] == code
    answer = http.post(PATH + "Entries", content=body, headers={"content-type": "application/proto"})
    assert answer.status_code == 415
    assert answer.headers["accept-post"] == "application/connect+proto, application/connect+json"


def test_a_watch_ends_with_the_callers_timeout(http: httpx.Client, window: str) -> None:
    watch = sealed(pb.WatchRequest(query=pb.QueryRequest(window=window)).SerializeToString())
    messages, end = stream(http, "Watch", watch, **{"connect-timeout-ms": "100"})
    assert len(messages) <= 1
    assert end["error"]["code"] == "deadline_exceeded"


async def test_envelopes_may_be_cut_anywhere() -> None:
    messages = [b"", b"a", b"bc" * 300]
    body = b"".join(map(sealed, messages))
    for size in (1, 2, 5, 6, 7, len(body)):

        async def parts(size: int = size) -> Any:
            for at in range(0, len(body), size):
                yield body[at : at + size]

        assert [message async for message, _ in opened(parts(), 600)] == messages
        with pytest.raises(TooLarge):
            _ = [message async for message in opened(parts(), 599)]

    async def cut() -> Any:
        yield body[:-1]

    with pytest.raises(InvalidArgument, match="inside an envelope"):
        _ = [message async for message in opened(cut(), BODY_BYTES_MAX)]
