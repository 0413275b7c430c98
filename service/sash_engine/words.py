"""Errors in plain words, for the author of a document, who need not know what checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

__all__ = ["differences", "first_wrong", "meant", "near"]

_KNOWN_MAX, _LENGTH_MAX = 256, 64
"""So many names of up to so many characters are compared with one that is unknown: 1 ms."""

_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is unknown",
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


def first_wrong(error: ValidationError, model: type[BaseModel] | None = None) -> tuple[str, str]:
    """The first thing that is wrong: its path, such as "slide.max_count", and what is to be said of it.

    Args:
        model: of the document; it says which names are like one that is unknown.
    """
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"] if part != "[key]")
    say = _WORDS.get(first["type"])
    words = f"is wrong: {first['msg']}" if say is None else say(first.get("ctx", {}))
    if model is not None and first["type"] == "extra_forbidden":
        *above, name = first["loc"]
        for each in above:
            field = model.model_fields.get(str(each)) if model is not None else None
            model = None if field is None else _model_in(field.annotation)
        if model is not None:
            words += meant(str(name), (field.alias or own for own, field in model.model_fields.items()))
    return path, words


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a member's value, where it has one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


def meant(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: which one may be meant; empty where none is like it.

    >>> meant("qauntile", ["quantile", "count"]), meant("x", ["quantile"])
    ("; did you mean 'quantile'?", '')
    """
    found = near(name, known)
    return "" if found is None else f"; did you mean {found!r}?"


def near(name: str, known: Iterable[str]) -> str | None:
    """The name that is most like another one; None where none is like it."""
    from difflib import get_close_matches  # only errors need it

    names = [each for each in islice(known, _KNOWN_MAX) if len(each) <= _LENGTH_MAX]
    found = get_close_matches(name, names, 1, 0.7) if len(name) <= _LENGTH_MAX else []
    return found[0] if found else None


def differences(there: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Where two documents differ, as paths such as "slide.max_age", in the order of the first and then the second.

    >>> differences({"name": "w", "slide": {"max_age": "1h"}}, {"name": "w", "slide": {"max_age": "2h"}, "keyed": True})
    ['slide.max_age', 'keyed']
    """
    found = list[str]()
    for name in {**there, **given}:
        old, new = there.get(name), given.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += [f"{name}.{each}" for each in differences(old, new)]
        elif old != new:
            found.append(name)
    return found
