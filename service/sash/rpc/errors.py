"""Errors as gRPC statuses: the one place where this edge maps them.

Every status carries google.rpc details: an ErrorInfo (reason, and the field and limit as metadata; for a stream of
writes `applied`, how many were answered; `unchanged` where any call may be made again), a BadRequest where a field is
to blame, a RetryInfo where trying again may help, a RequestInfo with the id of the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from sash.context import request_id
from sash.runtime.metrics import Metrics
from sash_engine import errors

DOMAIN = "sash"

CODES: Mapping[type[errors.SashError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SequenceReused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProducerFenced: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OutOfRoom: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DataLoss: grpc.StatusCode.DATA_LOSS,
}

# A status travels as a percent-encoded header, and again in the details. A peer refuses more than 8 KiB of
# headers. An error may quote what the caller sent, which has no such bound.
TEXT_CHARACTERS_MAX = 500

_log = logging.getLogger(__name__)


async def end_with(context: Any, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
    """End the call of this task with a status; raises what gRPC ends calls with.

    gRPC keeps that exception with the call, and the exception the frames that it came through, which know the call. So
    each call that was refused stayed until the collector looked, with its message: 156 MiB of 280, when one client had
    cancelled bulks of 2 MB for ten seconds.
    """
    try:
        await context.abort(code, details, metadata)
    except Exception as error:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(partial(_forget, error))
        raise


async def end_with_error(
    context: Any, error: Exception, method: str, metrics: Metrics, applied: int | None = None
) -> None:
    """Count an error, and end the call of this task with its status; arguments as `described`, raises as `end_with`."""
    status = status_of(error, method, applied)
    metrics.count_rejected("grpc", status.code.name)
    await end_with(context, status.code, status.details, status.trailing_metadata)


def _forget(error: Exception, _: object) -> None:
    """Forget where an exception was raised, and what it was raised for."""
    error.__traceback__ = error.__context__ = None


def status_of(error: Exception, method: str, applied: int | None = None) -> grpc.Status:
    """Map an exception to a gRPC status; the arguments are those of `described`."""
    code, message, details = described(error, method, applied)
    packed = []
    for detail in details:
        any_ = any_pb2.Any()
        any_.Pack(detail)
        packed.append(any_)
    status: Any = rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=packed))
    again_s = error.retry_after_s if isinstance(error, errors.Unavailable) else None
    if again_s is not None:
        # gRPC's own retries of reads wait as long as this says, where their own pauses would be over too soon.
        pushback = ("grpc-retry-pushback-ms", str(int(again_s * 1000)))
        status = status._replace(trailing_metadata=(*status.trailing_metadata, pushback))
    return status  # type: ignore[no-any-return]


def described(
    error: Exception, method: str, applied: int | None = None
) -> tuple[grpc.StatusCode, str, Sequence[Message]]:
    """Map an exception to a code, a message and details, for any protocol.

    Other exceptions than `SashError` are logged in full; the caller sees INTERNAL only.

    Args:
        error: what an operation raised.
        method: its name, for the log.
        applied: for a stream of writes, the number of answered writes; the ErrorInfo has it.
    """
    counted = {} if applied is None else {"applied": str(applied)}
    request = error_details_pb2.RequestInfo(request_id=request_id())
    if not isinstance(error, errors.SashError):
        _log.error("%s failed", method, exc_info=error)
        failed = error_details_pb2.ErrorInfo(domain=DOMAIN, reason="INTERNAL", metadata=counted)
        return grpc.StatusCode.INTERNAL, "internal error", [failed, request]
    kind: type[errors.SashError] = next(cls for cls in type(error).__mro__ if cls in CODES)
    code = CODES[kind]
    info = error_details_pb2.ErrorInfo(domain=DOMAIN, reason=kind.reason(), metadata=counted)
    details: list[Message] = [info]
    if error.field is not None:
        info.metadata["field"] = _short(error.field)
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_short(error.field), description=_short(error.message)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.limit is not None:
        info.metadata["limit"] = _short(error.limit)
    if error.unchanged:
        info.metadata["unchanged"] = "true"
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    details.append(request)
    return code, _short(error.message), details


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"
