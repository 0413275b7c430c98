"""What this package raises. Its users turn it into an error of their own."""

from __future__ import annotations

__all__ = ["TooLong", "WireError"]


class WireError(ValueError):
    """A document, a value or a message that breaks the rules of its form.

    Args:
        message: one sentence that names what is wrong.
        field: path of the offending field, such as ``"aggregates.p95.q"``.
        limit: the bound that was passed, such as ``"64 MiB"``.
    """

    def __init__(self, message: str, *, field: str | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit


class TooLong(WireError):
    """A text is longer than `limit`."""
