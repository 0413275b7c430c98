"""`of` of a spec: the window whose entries a view shows, and which views a window can have.

    source   max_age 1h     (now - 1h ........................ now]
    view     max_age 5m                              (now - 5m  now]      inside, whatever now is

A spec that says `of` may leave out what the source says anyway: fields, keys, time_unit, and so on. It is *open* then.
`completed` fills it in, and the complete spec is checked like any other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sash_engine.errors import InvalidArgument

if TYPE_CHECKING:
    from sash_engine.windows.spec import WindowSpec

__all__ = ["check_open", "check_view", "completed", "opened"]

_SAME = ("time_unit", "keyed", "keys", "fields", "nullable", "order", "idle_expiry", "granularity", "identity")
"""What a view has of its source."""
_NEVER = ("durability", "rollups", "algorithm", "from")
"""What belongs to the window that has the entries."""
_BY_AGE = {"max_age", "every", "clock", "until"}
"""What is known of a slide without a look at the entries."""


def opened(document: Any) -> Any:
    """A document with `of` that does not say which fields there are says that it has none, so far."""
    if isinstance(document, Mapping) and document.get("of") is not None and document.get("fields") is None:
        return {**document, "fields": {}}
    return document


def check_open(spec: WindowSpec) -> None:
    """Check what a view cannot have; raises InvalidArgument."""
    if spec.of == spec.name:
        raise InvalidArgument(f"of: {spec.name!r} cannot be a view of itself", field="of")
    for name in _NEVER:
        if getattr(spec, "source" if name == "from" else name) is not None:
            raise InvalidArgument(
                f"{name}: {spec.name!r} is a view, and {spec.of!r} has the entries; leave it out", field=name
            )


def completed(spec: WindowSpec, source: WindowSpec) -> WindowSpec:
    """The spec of a view with what it has of its source.

    Raises:
        InvalidArgument: it says something else than its source, or the source cannot have such a view.
    """
    said, theirs = spec.document(), source.document()
    document = {name: value for name, value in said.items() if value != {}}
    for name in _SAME:
        if name in document and document[name] != theirs.get(name):
            raise InvalidArgument(
                f"{name}: a view has that of its window, and {source.name!r} has {theirs.get(name)!r}; leave it out",
                field=name,
                limit=f"{theirs.get(name)!r}",
            )
        if name in theirs:
            document[name] = theirs[name]
    slide = said.get("slide") or {}
    now = {name: value for name, value in theirs["slide"].items() if name in ("clock", "until")}
    document["slide"] = (now if slide.keys() - {"clock"} else theirs["slide"]) | slide
    whole = type(spec).parse(document)
    check_view(whole, source)
    return whole


def check_view(spec: WindowSpec, source: WindowSpec) -> None:
    """Check that a window can have a view, whose spec is complete; raises InvalidArgument."""
    if source.of is not None:
        raise InvalidArgument(
            f"of: {source.name!r} is a view itself; say of: {source.of}", field="of", limit=f"{source.of}"
        )
    if source.algorithm is not None:
        raise InvalidArgument(
            f"of: {source.name!r} runs on {source.algorithm}, which keeps no entries that others could show",
            field="of",
        )
    for name in _SAME:
        if getattr(spec, name) != getattr(source, name):
            raise InvalidArgument(
                f"{name}: a view has that of its window, {source.name!r}",
                field=name,
                limit=f"{getattr(source, name)!r}",
            )
    if source.granularity is not None:
        _check_panes(spec, source)
    if spec.slide != source.slide:
        _check_slide(spec, source)


def _check_panes(spec: WindowSpec, source: WindowSpec) -> None:
    for name, aggregate in spec.aggregates.items():
        if aggregate not in source.aggregates.values():
            raise InvalidArgument(
                f"aggregates.{name}: {source.name!r} keeps panes, and has no such aggregate ({aggregate.function} of "
                f"{aggregate.field}); add it to {source.name!r} when that is created",
                field=f"aggregates.{name}",
                limit=", ".join(source.aggregates),
            )


def _check_slide(spec: WindowSpec, source: WindowSpec) -> None:
    """Check that a view never shows what its source has evicted."""
    hint = "leave slide out, and the view has all entries of its window"
    for name, value in spec.slide:
        if value is not None and name not in _BY_AGE:
            raise InvalidArgument(
                f"slide.{name}: a view keeps nothing, and cannot know which entries {name} has evicted for good; it "
                f"slides by max_age. Or {hint}",
                field=f"slide.{name}",
                limit="max_age, every",
            )
    for name, value in source.slide:
        if value is not None and name not in _BY_AGE:
            raise InvalidArgument(
                f"slide: {source.name!r} slides by {name}, so that nobody knows how far back it goes; {hint}",
                field="slide",
            )
    for name in ("clock", "until"):
        if getattr(spec.slide, name) != getattr(source.slide, name):
            raise InvalidArgument(
                f"slide.{name}: a view has that of its window, {getattr(source.slide, name)!r}", field=f"slide.{name}"
            )
    mine, theirs = spec.max_age_ticks, source.max_age_ticks
    if mine is None:
        raise InvalidArgument(f"slide.max_age: say how long entries are in the view; or {hint}", field="slide.max_age")
    if theirs is not None and mine > theirs:
        raise InvalidArgument(
            f"slide.max_age: {spec.slide.max_age} is longer than {source.name!r} keeps entries",
            field="slide.max_age",
            limit=f"at most {source.slide.max_age}",
        )
    step, steps = spec.every_ticks or 1, source.every_ticks
    if theirs is not None and steps is not None and step % steps and mine > theirs - steps:
        raise InvalidArgument(
            f"slide.every: {source.name!r} moves in steps of {source.slide.every}, and may not have the oldest entries "
            "of the view any more",
            field="slide.every",
            limit=f"a multiple of {source.slide.every}, or a max_age that is shorter by one step",
        )
