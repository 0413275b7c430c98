"""Errors as the API of Prometheus names them."""

from __future__ import annotations

from http import HTTPStatus

from sash_engine import errors

__all__ = ["BadData", "Refused", "UnsupportedMediaType", "kind_of"]


class Refused(errors.Unsupported):
    """The expression cannot be evaluated; the message says what to use instead."""


class BadData(errors.InvalidArgument):
    """A parameter is wrong, or the expression is none."""


class UnsupportedMediaType(BadData):
    """The body is of a type, or compressed in a way, that is not taken."""


_KINDS: tuple[tuple[type[errors.SashError], str, HTTPStatus], ...] = (
    (errors.TooLarge, "bad_data", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnsupportedMediaType, "bad_data", HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (BadData, "bad_data", HTTPStatus.BAD_REQUEST),
    (errors.Unauthenticated, "unauthorized", HTTPStatus.UNAUTHORIZED),
    (errors.PermissionDenied, "forbidden", HTTPStatus.FORBIDDEN),
    (errors.ResourceExhausted, "unavailable", HTTPStatus.TOO_MANY_REQUESTS),
    (errors.Unavailable, "unavailable", HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.NotFound, "not_found", HTTPStatus.NOT_FOUND),
    (errors.DataLoss, "internal", HTTPStatus.INTERNAL_SERVER_ERROR),
    (errors.SashError, "execution", HTTPStatus.UNPROCESSABLE_ENTITY),
)


def kind_of(error: errors.SashError) -> tuple[str, HTTPStatus]:
    """Return the `errorType` and the status of an error.

    What a window refuses of a question that is well formed is an error of execution.
    """
    return next((kind, status) for cls, kind, status in _KINDS if isinstance(error, cls))
