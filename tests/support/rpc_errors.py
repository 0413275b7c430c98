"""gRPC calls that the service refuses."""

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.support.errors import ERRORS

REASONS = {each.reason() for each in ERRORS}


def refuse(call, request, code, field=None, limit=None, reason=None):
    with pytest.raises(grpc.RpcError) as caught:
        call(request)
    error = caught.value
    assert error.code().name == code, error.details()
    assert error.details()
    status = rpc_status.from_call(error)
    assert status.message == error.details()
    info, violation = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(violation)
    assert info.domain == "sash"
    assert info.reason in REASONS
    assert reason is None or info.reason == reason
    assert info.metadata.get("field") == field, error.details()
    assert [each.field for each in violation.field_violations] == ([] if field is None else [field])
    if limit is not None:
        assert limit in info.metadata["limit"]
    return error


def ended_with(error):
    """What the error that ended a stream says to programs."""
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(error).details)
    return info.metadata
