"""Traces: a caller's span, the edge's, the operation's and the commit's, in one trace; nothing of it while off."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sash_client
from sash_client import Client
from sash_client.aio import AsyncClient
from sash_wire import traces
from tests.support.servers import WAIT_S, running_service, service_process
from tests.support.tokens import bearer, write_tokens

SPEC = {"time_unit": "s", "fields": {"value": "float64"}, "aggregates": {"total": {"function": "sum"}}}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FROM_CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


class Spans:
    """What was exported: `tree` has the names of spans with those of their children."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def all(self):
        return self.exporter.get_finished_spans()

    def named(self, name):
        (found,) = [span for span in self.all if span.name == name]
        return found

    def path(self, name):
        """The names from the root to a span, the first of which may be the id of a span elsewhere."""
        by_id = {span.context.span_id: span for span in self.all}
        span, names = self.named(name), []
        while span is not None:
            names.append(span.name)
            parent, span = span.parent, span.parent and by_id.get(span.parent.span_id)
        return [*([f"{parent.span_id:016x}"] if parent else []), *reversed(names)]


@pytest.fixture
def spans():
    """Traces of this process, from before its service starts."""
    made = Spans()
    traces.begin(made.provider)
    yield made
    traces.end()


@pytest.fixture
def service(spans, tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    with running_service(data=str(tmp_path / "data"), tokens=tokens) as running:
        made = running.http().post("/v1/windows", json={"name": "w", **SPEC}, headers=bearer("root"))
        assert made.status_code == 201
        spans.exporter.clear()
        yield running


def test_rest_to_the_tier(service, spans):
    answer = service.http().post(
        "/v1/windows/w/insert",
        json={"time": 1, "value": 2.0},
        headers={**FROM_CALLER, "x-request-id": "r-1", **bearer("root")},
    )
    assert answer.status_code == 200
    service.stop()
    route = "POST /v1/windows/{name}/insert"
    assert spans.path("commit") == [PARENT, route, "insert", "commit"]
    assert {f"{span.context.trace_id:032x}" for span in spans.all} == {TRACE}
    assert spans.named(route).attributes["sash.request_id"] == "r-1"
    assert spans.named(route).attributes["http.response.status_code"] == 200
    assert spans.named("insert").attributes["sash.window"] == "w"
    assert spans.named("commit").attributes["sash.records"] == 1
    assert spans.named("commit").context.trace_state.get("vendor") == "1"


def test_connect_to_the_tier(service, spans):
    body = {"window": "w", "time": 1, "value": 2.0}
    service.http().post("/sash.v1.Windows/Insert", json=body, headers={**FROM_CALLER, **bearer("root")})
    service.stop()
    assert spans.path("commit") == [PARENT, "sash.v1.Windows/Insert", "insert", "commit"]


def test_the_python_client_to_the_tier(service, spans):
    with Client(service.grpc_target, token="root-token") as client:
        client.window("w").insert(1, 2.0)
    service.stop()
    assert len({span.context.trace_id for span in spans.all}) == 1
    assert spans.path("commit")[-2:] == ["insert", "commit"]
    sender, receiver = [span for span in spans.all if span.name == "sash.v1.Windows/Insert"][::-1]
    assert receiver.parent.span_id == sender.context.span_id
    assert spans.named("insert").parent.span_id == receiver.context.span_id
    assert sender.parent is None
    assert sender.kind.name == "CLIENT"
    assert receiver.kind.name == "SERVER"


async def test_the_python_client_for_asyncio(service, spans):
    async with AsyncClient(service.grpc_target, token="root-token") as client:
        with spans.provider.get_tracer("caller").start_as_current_span("job"):
            await client.window("w").insert(1, 2.0)
    service.stop()
    assert spans.path("commit")[0] == "job"


def test_errors(service, spans):
    http = service.http()
    http.get("/v1/windows/missing", headers=bearer("root"))
    http.get("/v1/windows")
    with Client(service.grpc_target, token="root-token") as client, pytest.raises(sash_client.NotFound):
        client.window("missing").query()
    service.stop()
    found = spans.named("GET /v1/windows/{name}")
    assert (found.attributes["http.response.status_code"], found.status.status_code.name) == (404, "UNSET")
    assert spans.named("GET").attributes["http.response.status_code"] == 401
    assert spans.named("query").attributes["error.type"] == "NotFound"
    assert {span.attributes["error.type"] for span in spans.all if span.name == "sash.v1.Windows/Query"} == {
        "NOT_FOUND"
    }


def test_a_group_of_records_is_in_each_of_its_traces(service, spans):
    def insert(number):
        with Client(service.grpc_target, token="root-token") as client:
            client.window("w").insert(number, 1.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(insert, range(16)))
    service.stop()
    committed = {span.context.trace_id for span in spans.all if span.name == "commit"}
    assert committed == {span.context.trace_id for span in spans.all if span.name == "insert"}
    assert len(committed) == 16


@pytest.mark.parametrize("odd", ["", "00-0-0-01", "x" * 4000, f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_odd_headers_begin_a_trace(service, spans, odd):
    headers = {"traceparent": odd, "tracestate": "=,=" + "y" * 900, **bearer("root")}
    assert service.http().get("/v1/windows/w", headers=headers).status_code == 200
    service.stop()
    assert spans.named("GET /v1/windows/{name}").parent is None


def test_calls_for_health_have_no_span(service, spans):
    for path in ("/healthz", "/readyz", "/metrics"):
        service.http().get(path, headers=bearer("root"))
    service.stop()
    assert spans.all == ()


# -------------------------------------------------------------------- what a process sends


@contextlib.contextmanager
def collector():
    """An OpenTelemetry collector: its address, and the spans that it gets, by name."""
    found, lock = [], threading.Lock()

    class Service(otlp_grpc.TraceServiceServicer):
        def Export(self, request, context):
            with lock:
                for resource in request.resource_spans:
                    of = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
                    found.extend((of, span) for scope in resource.scope_spans for span in scope.spans)
            return otlp.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    otlp_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", found
    finally:
        server.stop(None).wait()


def test_a_service_sends_them_to_a_collector():
    with collector() as (address, found):
        with service_process(SASH_TRACES="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=address) as service:
            service.http().post("/v1/windows", json={"name": "w", **SPEC}, headers=FROM_CALLER)
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(WAIT_S) == 0
        ((name, span),) = found
    assert (name, span.name) == ("sash", "POST /v1/windows")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)


def test_a_service_runs_and_stops_without_its_collector():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        more = {"SASH_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        with service_process(**more) as service:
            assert service.http().get("/v1/windows").status_code == 200
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(WAIT_S) == 0


def test_without_opentelemetry_it_says_what_to_install():
    """FastAPI brings the interface of OpenTelemetry alone."""
    code = "import sys; sys.modules['opentelemetry.sdk'] = None; from sash.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--data", "memory"],
        env={**os.environ, "SASH_TRACES": "otlp"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 1
    assert "pip install 'sash[otel]'" in done.stderr


def test_off_headers_change_nothing():
    """What traces need is not even imported, see test_starts.py."""
    assert (traces.tracer, traces.context(), traces.carried()) == (None, None, ())
    with running_service() as service:
        answer = service.http().post("/v1/windows", json={"name": "w", **SPEC}, headers=FROM_CALLER)
        assert answer.status_code == 201
