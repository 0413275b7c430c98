"""The exceptions that a caller of Sash can cause.

The tree knows no HTTP and no gRPC: each edge maps the classes below to its own status codes, once. A message
is a sentence for a person; `field` and `limit` say the same to a program.
"""

from __future__ import annotations

import re
from typing import NoReturn


class SashError(Exception):
    """Base of all errors that a caller can cause or should hear about.

    Args:
        message: one sentence that names what is wrong.
        field: path of the offending field in the request, such as ``"aggregates.p95.q"``.
        limit: the bound that was passed, such as ``"64 MiB"`` or ``"2^63 - 1"``.
        retry_after_s: seconds after which the same call may succeed.
        unchanged: of `Unavailable`: whether nothing was changed, so that any call may be made again. All other
            refusals change nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: str | None = None,
        retry_after_s: float | None = None,
        unchanged: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.unchanged = unchanged

    @classmethod
    def reason(cls) -> str:
        """Return the name of the class as all edges give it to programs: OutOfRoom is ``"OUT_OF_ROOM"``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()


class InvalidArgument(SashError):
    """The request is wrong whatever the state of the service."""


class TooLarge(InvalidArgument):
    """The request passes a size limit, which `limit` names."""


class NotFound(SashError):
    """No such window."""


class AlreadyExists(SashError):
    """A window of that name exists with another spec."""


class FailedPrecondition(SashError):
    """The request is well formed, but the state of the window forbids it."""


class SequenceReused(FailedPrecondition):
    """The producer has used this number for another write; `limit` is the number that is next."""


class ProducerFenced(FailedPrecondition):
    """A producer with a higher epoch, which `limit` names, has taken the name over."""


class Unsupported(SashError):
    """The structure or window cannot do this, whatever its state; the message says why."""


class ResourceExhausted(SashError):
    """A quota or a limit on stored state is used up."""


class OutOfRoom(ResourceExhausted):
    """Where windows are kept is full: to evict entries or to delete windows makes room."""


class Unauthenticated(SashError):
    """No valid credentials."""


class PermissionDenied(SashError):
    """Valid credentials without the scope that the call needs."""


class Unavailable(SashError):
    """The service, or a tier it needs, cannot serve this now; retry after `retry_after_s`.

    A write may be applied, unless the error says that it is `unchanged`.
    """


class DataLoss(SashError):
    """A stored value is lost or damaged. The message names it; no answer is made up from it."""


def refuse(field: str, why: str, limit: str | None = None) -> NoReturn:
    """Raise InvalidArgument for a field of a spec, or of a question."""
    raise InvalidArgument(f"{field}: {why}", field=field, limit=limit)
