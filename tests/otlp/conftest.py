import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub

from tests.otlp.sending import post, status_of
from tests.support.clients import client_of
from tests.support.servers import running_service


@pytest.fixture(scope="module")
def service():
    with running_service(max_entries_per_write=5000) as running:
        yield running


@pytest.fixture
def sash(service):
    with client_of(service.grpc_target) as client:
        yield client


@pytest.fixture(params=("grpc", "http"))
def send(request, service):
    """Send a request over one of the edges; return what it says of rejected points: how many, and why."""

    def over_grpc(message, **headers):
        stub = MetricsServiceStub(service.channel())
        metadata = [(name.replace("_", "-"), value) for name, value in headers.items()]
        return stub.Export(message, metadata=metadata).partial_success

    def over_http(message, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = post(service.http(), message.SerializeToString(), **named)
        assert answer.status_code == 200, status_of(answer)
        assert answer.headers["content-type"] == "application/x-protobuf"
        return ExportMetricsServiceResponse.FromString(answer.content).partial_success

    return over_grpc if request.param == "grpc" else over_http
