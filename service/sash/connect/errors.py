"""Errors as Connect errors: the code, message and details of gRPC's statuses, as JSON.

{"code": "not_found", "message": "…", "details": [{"type": "google.rpc.ErrorInfo", "value": "<base64>"}]}
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from sash.context import request_id
from sash.rpc.errors import described
from sash_engine.errors import InvalidArgument

CODES: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS: HTTPStatus.INTERNAL_SERVER_ERROR,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
}
"""Code -> HTTP status, as in the protocol."""


class DeadlineExceeded(Exception):
    """The call took longer than its `Connect-Timeout-Ms`."""


class BadEnvelope(InvalidArgument):
    """An envelope has flags that the request does not allow: to the protocol, a fault of the client's library."""


def document_of(error: Exception, method: str) -> tuple[grpc.StatusCode, dict[str, Any]]:
    """Map an exception to its code and its JSON document; `method` is for the log."""
    if isinstance(error, DeadlineExceeded):
        code, message = grpc.StatusCode.DEADLINE_EXCEEDED, "the call's timeout passed; a write may still be applied"
        details: Sequence[Message] = [error_details_pb2.RequestInfo(request_id=request_id())]
    else:
        code, message, details = described(error, method)
        if isinstance(error, BadEnvelope):
            code = grpc.StatusCode.INTERNAL
    shown = [
        {
            "type": detail.DESCRIPTOR.full_name,
            "value": b64encode(detail.SerializeToString(deterministic=True)).rstrip(b"=").decode(),
        }
        for detail in details
    ]
    return code, {"code": _name(code), "message": message, "details": shown}


def _name(code: grpc.StatusCode) -> str:
    # The protocol spells this code with one l.
    return "canceled" if code is grpc.StatusCode.CANCELLED else code.name.lower()
