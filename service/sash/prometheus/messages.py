"""The messages of remote write 1.0, of which only what is used is described. Protobuf's own parser, in C, reads them.

    WriteRequest ─▶ timeseries ─▶ labels, samples (value, timestamp in ms), histograms

Source: prometheus.io/docs/specs/prw/remote_write_spec; Prometheus' prompb/types.proto.
"""

from __future__ import annotations

from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from sash.prometheus.errors import BadData
from sash_engine.errors import TooLarge

__all__ = ["DECOMPRESSED_BYTES_MAX", "WriteRequest", "length_of", "read_request"]

DECOMPRESSED_BYTES_MAX = 4 << 20
"""Some 15,000 samples, each with its labels. As many bytes of empty labels parse in 0.1 s."""

_PACKAGE = "sash.prometheus"


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="sash/prometheus/remote.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    fields: dict[str, list[tuple[str, int, int, str]]] = {
        "Label": [("name", 1, kinds.TYPE_STRING, ""), ("value", 2, kinds.TYPE_STRING, "")],
        "Sample": [("value", 1, kinds.TYPE_DOUBLE, ""), ("timestamp", 2, kinds.TYPE_INT64, "")],
        "TimeSeries": [
            ("labels", 1, kinds.TYPE_MESSAGE, "Label"),
            ("samples", 2, kinds.TYPE_MESSAGE, "Sample"),
            ("histograms", 4, kinds.TYPE_BYTES, ""),
        ],
        "WriteRequest": [("timeseries", 1, kinds.TYPE_MESSAGE, "TimeSeries")],
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for member, number, kind, of in members:
            many = of or member == "histograms"
            message.field.add(
                name=member,
                number=number,
                type=kind,
                label=kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL,
                type_name=f".{_PACKAGE}.{of}" if of else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.WriteRequest"))


WriteRequest: Any = _described()


def length_of(body: bytes) -> int:
    """How many bytes a compressed body is going to have.

    Raises:
        BadData: it is not compressed by snappy.
        TooLarge: they are too many.
    """
    try:
        length = cramjam.snappy.decompress_raw_len(body) if body else -1
    except cramjam.DecompressionError as error:
        raise _not_snappy(str(error)) from None
    if length < 0:
        raise _not_snappy("it is empty")
    if length > DECOMPRESSED_BYTES_MAX:
        raise TooLarge(
            f"the body has {length} bytes when it is decompressed; {DECOMPRESSED_BYTES_MAX} are allowed: make "
            "queue_config.max_samples_per_send smaller",
            field="body",
            limit=f"{DECOMPRESSED_BYTES_MAX} bytes",
        )
    return int(length)


def read_request(body: bytes) -> Any:
    """Decompress and parse a body whose length is known to be allowed.

    Raises:
        BadData: it is not compressed by snappy, or no WriteRequest.
    """
    try:
        return WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body)))
    except cramjam.DecompressionError as error:
        raise _not_snappy(str(error)) from None
    except DecodeError:
        raise BadData("the body is no WriteRequest of remote write 1.0", field="body") from None


def _not_snappy(why: str) -> BadData:
    return BadData(f"the body is not compressed by snappy: {why[:200]}", field="body")
