"""Short forms of gRPC's messages."""

import grpc
import numpy as np

from sash_proto.v1 import windows_pb2 as pb

COUNT = pb.AggregateSpec(function="count")


def int64(*values):
    return np.array(values, "<i8").tobytes()


def float64(*values):
    return np.array(values, "<f8").tobytes()


def strings(dictionary, *codes):
    return pb.Strings(dictionary=dictionary, codes=np.array(codes, "<u4").tobytes())


def plain(value):
    kind = value.WhichOneof("kind")
    if kind == "list":
        return [plain(item) for item in value.list.items]
    return None if kind is None else getattr(value, kind)


def aggregates(answer):
    return {name: plain(value) for name, value in answer.aggregates.items()}


def bulk(window, times, values):
    columns = {"value": pb.Column(float64=float64(*values))}
    return pb.BulkInsertRequest(window=window, time=int64(*times), fields=columns)


def answered(call):
    """What a stream answered, and the error that ended it, if one did."""
    found = []
    try:
        found.extend(call)
    except grpc.RpcError as error:
        return found, error
    return found, None
