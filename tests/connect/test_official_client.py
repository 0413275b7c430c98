"""Connect's own Python client, with the messages of this repository: every way in which it can make a call."""

from collections.abc import Callable
from typing import Any

import pytest
from connectrpc.client import ConnectClient, ConnectClientSync
from connectrpc.code import Code
from connectrpc.compat import google_protobuf_binary_codec, google_protobuf_json_codec
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from google.rpc import error_details_pb2

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import Running

CODECS = {"proto": google_protobuf_binary_codec, "json": google_protobuf_json_codec}
READS = {"GetWindow", "ListWindows", "ListKeys", "Query", "RangeQuery", "Series"}
# The client compresses with gzip unless it is told otherwise.
COMPRESSIONS: dict[str, dict[str, Any]] = {"gzip": {}, "identity": {"send_compression": None}}


def info(name: str) -> MethodInfo[Any, Any]:
    found = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name[name]
    kinds = {
        (False, False): StreamType.UNARY,
        (False, True): StreamType.SERVER_STREAM,
        (True, False): StreamType.CLIENT_STREAM,
    }
    return MethodInfo(
        name=name,
        service_name="sash.v1.Windows",
        input=getattr(pb, found.input_type.name),
        output=getattr(pb, found.output_type.name),
        idempotency_level=IdempotencyLevel.NO_SIDE_EFFECTS if name in READS else IdempotencyLevel.UNKNOWN,
        stream_type=kinds[found.client_streaming, found.server_streaming],
    )


@pytest.fixture(params=CODECS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"codec": CODECS[request.param]()}


@pytest.fixture(params=COMPRESSIONS)
def client(request: pytest.FixtureRequest, service: Running, options: dict[str, Any]) -> ConnectClientSync:
    return ConnectClientSync(service.rest_url, **options, **COMPRESSIONS[request.param])


@pytest.mark.parametrize("use_get", [False, True])
def test_unary(client: ConnectClientSync, window: str, use_get: bool) -> None:
    def call(name: str, request: Any, **further: Any) -> Any:
        return client.execute_unary(request=request, method=info(name), **further)

    for time in (1, 2, 3):
        assert call("Insert", pb.InsertRequest(window=window, time=time, value=2.0)).inserted == 1
    bulk = pb.BulkInsertRequest(window=window, time=bytes(80_000), fields={"value": pb.Column(float64=bytes(80_000))})
    with pytest.raises(ConnectError) as refused:
        call("BulkInsert", bulk)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    query = pb.QueryRequest(window=window, lookbacks=["2s"])
    (answer,) = call("Query", query, use_get=use_get).answers
    assert (answer.entries, answer.aggregates["total"].float64) == (2, 4.0)
    assert [found.spec.name for found in call("ListWindows", pb.ListWindowsRequest(), use_get=use_get).windows] == [
        window
    ]


def test_errors_and_their_details(client: ConnectClientSync) -> None:
    def unary() -> Any:
        return client.execute_unary(request=pb.QueryRequest(window="nothing"), method=info("Query"))

    def stream() -> Any:
        return list(client.execute_server_stream(request=pb.EntriesRequest(window="nothing"), method=info("Entries")))

    for call in (unary, stream):
        error = failed(call)
        assert (error.code, error.message) == (Code.NOT_FOUND, "there is no window 'nothing'")
        (detail,) = [detail for detail in error.details if detail.type_name == "google.rpc.ErrorInfo"]
        assert error_details_pb2.ErrorInfo.FromString(detail.message_bytes).reason == "NOT_FOUND"


def failed(call: Callable[[], Any]) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        call()
    return caught.value


def test_streams(client: ConnectClientSync, window: str) -> None:
    insert = pb.InsertRequest(window=window, time=1, value=2.0)
    client.execute_unary(request=insert, method=info("Insert"))
    (bulk,) = client.execute_server_stream(request=pb.EntriesRequest(window=window), method=info("Entries"))
    assert bulk.time == (1).to_bytes(8, "little")
    chunks = list(
        client.execute_server_stream(request=pb.ExportWindowRequest(window=window), method=info("ExportWindow"))
    )
    chunks[0].name = "copy"
    restored = client.execute_client_stream(request=iter(chunks), method=info("ImportWindow"))
    assert (restored.spec.name, restored.entries) == ("copy", 1)
    client.execute_unary(request=pb.DeleteWindowRequest(name="copy"), method=info("DeleteWindow"))
    watch = pb.WatchRequest(query=pb.QueryRequest(window=window))
    looks = client.execute_server_stream(request=watch, method=info("Watch"), timeout_ms=300)
    assert next(looks).answers[0].entries == 1
    assert failed(lambda: next(looks)).code == Code.DEADLINE_EXCEEDED


async def test_awaited(service: Running, window: str, options: dict[str, Any]) -> None:
    async with ConnectClient(service.rest_url, **options) as client:
        insert = pb.InsertRequest(window=window, time=1, value=2.0)
        assert (await client.execute_unary(request=insert, method=info("Insert"))).inserted == 1
        entries = client.execute_server_stream(request=pb.EntriesRequest(window=window), method=info("Entries"))
        assert [len(bulk.time) async for bulk in entries] == [8]
