"""The messages of remote write 1.0, of which only what is used is described. Protobuf's own parser, in C, reads them,
a series at a time: 2 million labels without anything are 4 MB, and held the event loop for 0.1 s.

    WriteRequest ─▶ timeseries ─▶ labels, samples (value, timestamp in ms), histograms

Source: prometheus.io/docs/specs/prw/remote_write_spec; Prometheus' prompb/types.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from sash.prometheus.errors import BadData
from sash.rpc.parsing import LONG_BYTES, parsed
from sash.rpc.sizes import varint
from sash_engine.errors import TooLarge
from sash_engine.steps import Steps

__all__ = ["DECOMPRESSED_BYTES_MAX", "WriteRequest", "length_of", "read_request", "read_series"]

DECOMPRESSED_BYTES_MAX = 4 << 20
"""Some 15,000 samples, each with its labels."""

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
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _KINDS]


_KINDS = ("WriteRequest", "TimeSeries")
WriteRequest, TimeSeries = _described()
_OTHERS_A_STEP = 2000
_SERIES_TAG = 1 << 3 | 2
"""Of the field `timeseries`."""


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


def read_request(body: bytes) -> Iterator[bytes | None]:
    """Decompress a body whose length is known to be allowed; yield each of its series, which `read_series` parses.

    Beside series, a request may have metadata, which nobody reads. After many of these there is None.

    Raises:
        BadData: it is not compressed by snappy, or no WriteRequest.
    """
    try:
        data = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise _not_snappy(str(error)) from None
    return _series(data)


def _series(data: bytes) -> Iterator[bytes | None]:
    at = others = 0
    while at < len(data):
        tag, at = varint(data, at)
        start, kind = at, tag & 7
        if kind == 0:
            _, at = varint(data, at)
        elif kind == 2:
            length, start = varint(data, at)
            at = start + length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _no_request()
        if at > len(data):
            raise _no_request()
        if tag == _SERIES_TAG:
            yield data[start:at]
        elif not tag >> 3:
            raise _no_request()
        else:
            others += 1
            if not others % _OTHERS_A_STEP:
                yield None


def read_series(data: bytes) -> Steps[Any]:
    """Parse a series, in steps where it is long. A series of labels without anything takes 28 times its length.

    Raises:
        BadData: it is none.
    """
    try:
        if len(data) <= LONG_BYTES:
            return TimeSeries.FromString(data)
        return (yield from parsed(TimeSeries, data))
    except DecodeError:
        raise _no_request() from None


def _no_request() -> BadData:
    return BadData("the body is no WriteRequest of remote write 1.0", field="body")


def _not_snappy(why: str) -> BadData:
    return BadData(f"the body is not compressed by snappy: {why[:200]}", field="body")
