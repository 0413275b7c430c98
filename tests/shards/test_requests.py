"""What goes along with a call to another process: the id of the request, and its trace."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sash.context import CALL, CallContext, request_id
from sash.shards.peer_server import PeerServer
from sash.shards.peers import Peer
from sash_wire import traces


@pytest.fixture
async def peer(tmp_path):
    """A process that answers every call with the id of its request."""

    async def told():
        return request_id()

    address = f"unix:{tmp_path / 'peer'}"
    server, peer = PeerServer(address, lambda shard, operation: told), Peer(address, "the other one")
    await server.start()
    yield peer
    await peer.close()
    await server.stop()


@pytest.fixture
def spans():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.begin(provider)
    yield exporter, provider.get_tracer("test")
    traces.end()


async def test_the_id(peer):
    for chosen in ("one", "two"):
        CALL.set(CallContext(lambda chosen=chosen: [("x-request-id", chosen)]))
        assert await peer.call(3, "whatever") == chosen
    CALL.set(None)
    assert await peer.call(3, "whatever") not in ("one", "two")


async def test_the_trace(peer, spans):
    exporter, tracer = spans
    with tracer.start_as_current_span("caller"):
        await peer.call(3, "query")
    other, caller = exporter.get_finished_spans()
    assert other.name == "peer query"
    assert other.parent.span_id == caller.context.span_id
    assert other.attributes["sash.shard"] == "3"
