"""Errors in plain words, for the author of a document, who need not know what checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from sash_wire.meant import meant, misspelt

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
    *above, name = first["loc"] or ("",)
    for each in above:
        field = None if model is None else model.model_fields.get(str(each))
        if field is not None:  # what stands in a mapping has a name of its own
            model = _model_in(field.annotation)
    known = () if model is None else [field.alias or own for own, field in model.model_fields.items()]
    if first["type"] == "extra_forbidden":
        words += meant(name, known)
    if first["type"] == "missing" and isinstance(first["input"], Mapping):
        words += misspelt(str(name), map(str, first["input"]))
    return path, words


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a member's value, where it has one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)


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
