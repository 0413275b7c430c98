"""The errors of calls, as one tree of exceptions.

An error carries what the service said in a form for people (`message`) and for programs (`code`, `reason`, `field`,
`limit`, `retry_after_s`). Arguments that cannot be sent at all raise `InvalidArgument` here, before any call.

Source: google.rpc.Status and its standard details (BadRequest, ErrorInfo, RetryInfo), which travel in the
trailing metadata of a failed gRPC call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from sash_client.answers import WriteResult
from sash_wire.errors import raising

if TYPE_CHECKING:
    import grpc

__all__ = [
    "AlreadyExists",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "InvalidArgument",
    "NotFound",
    "PermissionDenied",
    "ResourceExhausted",
    "SashClientError",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
]

# What gRPC says if there is no connection; it has no code of its own for that.
_UNREACHABLE = re.compile(
    r"(?:failed to connect to all addresses; last error: (?:[A-Z]+: )?|(?=DNS resolution failed|errors resolving))"
    r"(?P<reason>.*)",
    re.DOTALL,
)
# What it says if a server of HTTP/1 answers.
_HTTP1 = re.compile(r"(?:ipv[46]:)?(?P<address>\S+): .*http1\.x server", re.DOTALL)
# What gRPC for asyncio says of a stream whose connection broke off while it sent a message.
_BROKEN_OFF = ("INTERNAL", "Internal error from Core")
_DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN = "sash"
_NO_TOKEN = "header authorization is missing"


class SashClientError(Exception):
    """Base of all errors of this package.

    Args:
        message: one sentence that names what is wrong.
        code: name of the gRPC status, such as ``"NOT_FOUND"``; by default that of the class.
        reason: which error of the service it is, if one code stands for several: ``"OUT_OF_ROOM"`` (the tier is
            full), ``"TOO_LARGE"`` (the request is) and ``"RESOURCE_EXHAUSTED"`` (there are as many windows, keys or
            staged parts as there may be) all have the code RESOURCE_EXHAUSTED. The others are INVALID_ARGUMENT,
            NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, UNSUPPORTED, UNAUTHENTICATED, PERMISSION_DENIED,
            UNAVAILABLE, DATA_LOSS and INTERNAL (a defect of the service). None if the error comes from this
            package, from gRPC or from a proxy.
        field: path of the offending field, such as ``"aggregates.p95.q"``.
        limit: the bound that was passed, such as ``"64 MiB"``.
        retry_after_s: seconds after which the same call may succeed.
        unchanged: whether the service says that nothing was changed, so that any call may be made again. Of
            `Unavailable`; all other errors of the service change nothing.
        request_id: the id of the call, by which the service's log names it; see `sash_client.request_id`. None if the
            error does not come from the service.
    """

    status: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str | None = None,
        field: str | None = None,
        limit: str | None = None,
        retry_after_s: float | None = None,
        unchanged: bool = False,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.status
        self.reason = reason
        self.field = field
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.unchanged = unchanged
        self.request_id = request_id
        self.applied: WriteResult | None = None
        """What the earlier messages of the same bulk have done; None if the call is not a bulk insert."""
        self.unapplied: tuple[Any, ...] = ()
        """Of a `Producer`: the entries that were not applied, each a `Bulk`. The producer no longer has them."""


class InvalidArgument(SashClientError):
    """The request is wrong whatever the state of the service."""

    status = "INVALID_ARGUMENT"


refusing = raising(InvalidArgument)
"""Decorates functions that read arguments: what `sash_wire` refuses becomes an `InvalidArgument`."""


class NotFound(SashClientError):
    """No such window."""

    status = "NOT_FOUND"


class AlreadyExists(SashClientError):
    """A window of that name exists with another spec."""

    status = "ALREADY_EXISTS"


class FailedPrecondition(SashClientError):
    """The request is well formed, but the state of the window forbids it."""

    status = "FAILED_PRECONDITION"


class ResourceExhausted(SashClientError):
    """A limit on size, rate or stored state is used up; `limit` names it, and `reason` says which kind it is."""

    status = "RESOURCE_EXHAUSTED"


class Unsupported(SashClientError):
    """The window or the service cannot do this, whatever its state."""

    status = "UNIMPLEMENTED"


class Unauthenticated(SashClientError):
    """No valid credentials."""

    status = "UNAUTHENTICATED"
    missing = False
    """Whether the call had no token at all."""


class PermissionDenied(SashClientError):
    """Valid credentials without the scope that the call needs."""

    status = "PERMISSION_DENIED"


class Unavailable(SashClientError):
    """The service cannot be reached, or cannot serve this now. A write may or may not have been applied."""

    status = "UNAVAILABLE"
    unreachable = False
    """Whether there is no connection: nothing listens at the address, or the name is unknown."""


class DataLoss(SashClientError):
    """Stored data is missing or damaged; the message names it."""

    status = "DATA_LOSS"


class DeadlineExceeded(SashClientError):
    """No reply within the client's `timeout_s`. A write may or may not have been applied."""

    status = "DEADLINE_EXCEEDED"


_BY_STATUS: dict[str, type[SashClientError]] = {cls.status: cls for cls in SashClientError.__subclasses__()}


def from_rpc(error: grpc.RpcError) -> SashClientError:
    """Return the exception for a failed call, with all that its status details say."""
    code = error.code().name
    if (code, error.details()) == _BROKEN_OFF:
        return Unavailable("the connection broke off")
    found = described(code, error.details() or code, _details(error))
    lost = _UNREACHABLE.match(found.message) if isinstance(found, Unavailable) else None
    return unreachable(lost["reason"]) if lost else found


def unreachable(reason: str) -> Unavailable:
    """Return the exception for a service that cannot be connected to."""
    if (found := _HTTP1.match(reason)) is not None:
        address = found["address"]
        reason = f"{address} speaks HTTP, not gRPC; give the port of gRPC (by default 7070), or http://{address}"
    error = Unavailable(f"the service cannot be reached: {reason}", unchanged=True)
    error.unreachable = True
    return error


def described(code: str, message: str, details: Iterable[Any]) -> SashClientError:
    """Return the exception for a code of gRPC, with what the details say.

    Args:
        code: such as ``"NOT_FOUND"``.
        message: the service's own.
        details: standard details, each packed into a `google.protobuf.Any`.
    """
    facts: dict[str, Any] = {}
    for detail in details:
        bad_request, info, retry, request = (
            error_details_pb2.BadRequest(),
            error_details_pb2.ErrorInfo(),
            error_details_pb2.RetryInfo(),
            error_details_pb2.RequestInfo(),
        )
        with suppress(DecodeError):  # a proxy's garbage must not hide the error itself
            if detail.Unpack(bad_request) and bad_request.field_violations:
                facts["field"] = bad_request.field_violations[0].field or None
            elif detail.Unpack(info):
                facts["reason"] = (info.reason or None) if info.domain == _DOMAIN else None
                facts["field"] = facts.get("field") or info.metadata.get("field")
                facts["limit"] = info.metadata.get("limit")
                facts["unchanged"] = info.metadata.get("unchanged") == "true"
            elif detail.Unpack(retry):
                facts["retry_after_s"] = retry.retry_delay.ToTimedelta().total_seconds()
            elif detail.Unpack(request):
                facts["request_id"] = request.request_id or None
    found = _BY_STATUS.get(code, SashClientError)(message, code=code, **facts)
    if isinstance(found, Unauthenticated) and _NO_TOKEN in message:
        found.missing = True
        found.message = f"{message.partition(': ')[0]}: give the client a token, as in Client(target, token=…)"
        found.args = (found.message,)
    return found


def _details(error: grpc.RpcError) -> list[Any]:
    metadata: Any = error.trailing_metadata() or ()  # pairs, whatever its stub says
    for key, value in metadata:
        if key == _DETAILS_KEY:
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []  # as above
    return []
