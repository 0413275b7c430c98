"""Errors of expressions."""

from __future__ import annotations

from sash_engine.errors import InvalidArgument, Unsupported


class Refused(Unsupported):
    """The expression cannot be evaluated; the message says what to use instead."""


class BadData(InvalidArgument):
    """A parameter is wrong, or the expression is none."""
