"""Errors of pydantic in plain words, for the author of a document, who need not know what checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

__all__ = ["first_wrong"]

_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is no key that is known here",
    "literal_error": lambda c: f"must be {c['expected']}",
    "string_pattern_mismatch": lambda c: f"must match {c['pattern']}",
    "greater_than_equal": lambda c: f"must be at least {c['ge']:,}",
    "less_than_equal": lambda c: f"must be at most {c['le']:,}",
    "too_short": lambda c: f"must have at least {c['min_length']}",
    "too_long": lambda c: f"must have at most {c['max_length']}",
    "string_too_short": lambda c: f"must have {c['min_length']} or more characters",
    "string_unicode": lambda _: "must be valid Unicode",
    "value_error": lambda c: str(c["error"]),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), lambda _: "must be an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), lambda _: "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda _: "must be true or false"),
    "string_type": lambda _: "must be text",
    **dict.fromkeys(("dict_type", "model_type"), lambda _: "must be a mapping"),
}


def first_wrong(error: ValidationError) -> tuple[str, str]:
    """The first thing that is wrong: its path, such as "slide.max_count", and what is to be said of it."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"] if part != "[key]")
    say = _WORDS.get(first["type"])
    return path, f"is wrong: {first['msg']}" if say is None else say(first.get("ctx", {}))
