"""Makes RFC 9457 problem documents of errors. REST maps errors here only.

{"type": "urn:sash:error:invalid-argument", "title": "Invalid argument", "status": 400,
 "detail": "time[3] must be an integer, not a float", "reason": "INVALID_ARGUMENT", "field": "time[3]",
 "request_id": "0b1e…"}

`reason` is the reason of the ErrorInfo that gRPC sends for the same error, and `request_id` that of its RequestInfo.
The answer's header `X-Request-Id` has it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from math import ceil

import orjson
from starlette.responses import Response

from sash.context import HEADER, request_id
from sash_engine import errors

MEDIA_TYPE = "application/problem+json"


class UnsupportedMediaType(errors.InvalidArgument):
    """The path does not take the body's Content-Type. Only HTTP has this error."""


STATUSES: Mapping[type[errors.SashError], HTTPStatus] = {
    errors.InvalidArgument: HTTPStatus.BAD_REQUEST,
    errors.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.AlreadyExists: HTTPStatus.CONFLICT,
    errors.FailedPrecondition: HTTPStatus.CONFLICT,
    errors.SequenceReused: HTTPStatus.CONFLICT,
    errors.ProducerFenced: HTTPStatus.CONFLICT,
    errors.Unsupported: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.ResourceExhausted: HTTPStatus.TOO_MANY_REQUESTS,
    errors.OutOfRoom: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.PermissionDenied: HTTPStatus.FORBIDDEN,
    errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.DataLoss: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# An error may quote what the caller sent, which may be megabytes.
TEXT_CHARACTERS_MAX = 500
RETRY_S = 1.0
"""After which an error that says nothing about it may have passed."""

_log = logging.getLogger(__name__)


class Problem(Response):
    """A response that is a problem document, without the members that are None. It has the id of the request."""

    def __init__(
        self,
        kind: str,
        title: str,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        document = {"type": kind, "title": title, "status": int(status), "detail": detail, **more}
        told = {name: _short(each) for name, each in document.items() if each is not None}
        told["request_id"] = request = request_id()
        content = orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)
        super().__init__(content, status, {**(headers or {}), HEADER: request}, MEDIA_TYPE)


def kind_of(error: errors.SashError) -> type[errors.SashError]:
    """Return the class by which an error is mapped: its own, or the nearest base class that has a status."""
    return next(cls for cls in type(error).__mro__ if cls in STATUSES)


def of_error(error: Exception, method: str, path: str, more: Mapping[str, object] | None = None) -> Problem:
    """Map an exception. One that is not a `SashError` is logged in full, and the caller sees only a 500.

    Args:
        more: members of the document beside the usual ones.
    """
    if not isinstance(error, errors.SashError):
        _log.error("%s %s failed", method, path, exc_info=error)
        return of_status(HTTPStatus.INTERNAL_SERVER_ERROR, "the service failed; its log says how", reason="INTERNAL")
    kind = kind_of(error)
    reason = kind.reason()
    words = reason.replace("_", " ").lower()
    again_s = error.retry_after_s
    if again_s is None and kind is errors.Unavailable:
        again_s = RETRY_S
    headers = {} if again_s is None else {"retry-after": str(ceil(again_s))}
    if kind is errors.Unauthenticated:
        headers["www-authenticate"] = "Bearer"
    return Problem(
        f"urn:sash:error:{words.replace(' ', '-')}",
        words.capitalize(),
        STATUSES[kind],
        error.message,
        headers,
        reason=reason,
        field=error.field,
        limit=error.limit,
        unchanged=True if error.unchanged else None,
        **(more or {}),
    )


def of_status(
    status: int, detail: str, headers: Mapping[str, str] | None = None, *, reason: str | None = None
) -> Problem:
    """Return a problem of HTTP itself: an unknown path, a method that a path does not take."""
    return Problem("about:blank", HTTPStatus(status).phrase, status, detail, headers, reason=reason)


def _short(text: object) -> object:
    if not isinstance(text, str):
        return text
    # A lone surrogate, which a client can send escaped, has no UTF-8.
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= TEXT_CHARACTERS_MAX else clean[: TEXT_CHARACTERS_MAX - 1] + "…"
