"""Requests of OTLP over HTTP, their attributes, and what a stock SDK sends."""

from contextlib import contextmanager

from google.rpc import status_pb2
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource


def post(http, body, path="/v1/metrics", **headers):
    return http.post(path, content=body, headers={"content-type": "application/x-protobuf", **headers})


def status_of(answer):
    return status_pb2.Status.FromString(answer.content).message


def put(attributes, names):
    for name, value in names.items():
        made = attributes.add(key=name).value
        kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value", bytes: "bytes_value"}
        setattr(made, kinds[type(value)], value)


@contextmanager
def stock_sdk(service, transport, **given):
    """A meter of the SDK of OpenTelemetry, and what has it export: over gRPC, HTTP, or HTTP with gzip."""
    if transport == "grpc":
        exporter = GrpcExporter(endpoint=service.grpc_target, insecure=True, **given)
    else:
        compression = Compression.Gzip if "gzip" in transport else Compression.NoCompression
        exporter = HttpExporter(endpoint=f"{service.rest_url}/v1/metrics", compression=compression, **given)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    provider = MeterProvider([reader], resource=Resource({"service.name": "shop"}))

    def export():
        assert provider.force_flush()

    try:
        yield provider.get_meter("test"), export
    finally:
        provider.shutdown()
