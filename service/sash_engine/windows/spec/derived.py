"""Derived windows in a spec: `rollups`, `from` and `of`; and which windows can have them (derived.py).

    source   max_age 1h     (now - 1h ........................ now]
    view     max_age 5m                              (now - 5m  now]      inside, whatever now is

A spec that says `of` may leave out what the source says anyway: fields, keys, time_unit, and so on. It is *open* then.
`completed` fills it in, and the complete spec is checked like any other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sash_engine.errors import AlreadyExists, refuse
from sash_engine.windows.spec.window import WindowSpec


def document_of(spec_document: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """The spec of the window that keeps the groups by some parts; by none, its one group is a key.

    Args:
        spec_document: of the window that has the rollups.
    """
    left_out = ("rollups", "keys", "keyed", "order", "durability", "from")
    document = {name: value for name, value in spec_document.items() if name not in left_out}
    return document | ({"keys": list(parts)} if parts else {"keyed": True})


def check_derived(spec: WindowSpec, source: WindowSpec) -> None:
    """Check that a window can be derived of another one, as a cascade or a view; its spec is complete.

    Raises:
        InvalidArgument: names the field of the spec, and the limit.
    """
    if source.known is not None:
        refuse(
            "from.window" if spec.of is None else "of",
            f"{source.name!r} has known: arrival, and what is derived from it could not say what was known when",
        )
    if spec.of is None:
        _check_cascade(spec, source)
    else:
        _check_view(spec, source)


def _check_cascade(spec: WindowSpec, source: WindowSpec) -> None:
    for name, mine, theirs in (
        ("time_unit", spec.time_unit, source.time_unit),
        ("keyed", spec.keyed, source.keyed),
        ("keys", spec.keys, source.keys),
    ):
        if mine != theirs:
            refuse(name, f"{mine!r} is not that of {source.name!r}, {theirs!r}", limit=f"{theirs!r}")
    for name, kind in spec.fields.items():
        if source.fields.get(name) != kind:
            known = ", ".join(f"{each}: {there}" for each, there in source.fields.items())
            refuse(f"fields.{name}", f"{source.name!r} has no such {kind}; it has {known}")
        if (name in (spec.nullable or ())) != (name in (source.nullable or ())):
            said = "may be null" if name in (source.nullable or ()) else "is never null"
            refuse("nullable", f"{name!r} {said} in {source.name!r}; say the same here")
    why = None
    if source.order.equal_times != "keep":
        why = "keeps one entry of each time, and would have to take others back"
    elif source.identity is not None:
        why = "has an identity: entries that are retracted could not be taken out of panes"
    if why is not None:
        refuse("from.window", f"{source.name!r} {why}")
    if source.granularity_ticks is not None:
        _check_panes_of(spec, source, source.granularity_ticks)


def _check_panes_of(spec: WindowSpec, source: WindowSpec, granule: int) -> None:
    """Check what is made of panes: longer ones, of the same aggregates."""
    if spec.granularity_ticks is not None and spec.granularity_ticks % granule:
        refuse(
            "from.granularity",
            f"{spec.granularity} is no multiple of the panes of {source.name!r}",
            limit=f"a multiple of {source.granularity}",
        )
    for name, aggregate in spec.aggregates.items():
        if source.aggregates.get(name) != aggregate:
            refuse(
                f"aggregates.{name}",
                f"{source.name!r} keeps panes, and has no such aggregate, of whose panes this one's could be made",
                limit=", ".join(source.aggregates),
            )


_SAME = ("time_unit", "keyed", "keys", "fields", "nullable", "order", "idle_expiry", "granularity", "identity")
"""What a view has of its source."""
_BY_AGE = {"max_age", "every", "clock", "until"}
"""What is known of a slide without a look at the entries."""


def completed(spec: WindowSpec, source: WindowSpec) -> WindowSpec:
    """The spec of a view with what it has of its source.

    Raises:
        InvalidArgument: it says something else than its source, or the source cannot have such a view.
    """
    said, theirs = spec.document(), source.document()
    document = {name: value for name, value in said.items() if value != {}}
    for name in _SAME:
        if name in document and document[name] != theirs.get(name):
            refuse(
                name,
                f"a view has that of its window, and {source.name!r} has {theirs.get(name)!r}; leave it out",
                limit=f"{theirs.get(name)!r}",
            )
        if name in theirs:
            document[name] = theirs[name]
    slide = said.get("slide") or {}
    now = {name: value for name, value in theirs["slide"].items() if name in ("clock", "until")}
    document["slide"] = (now if slide.keys() - {"clock"} else theirs["slide"]) | slide
    whole = WindowSpec.parse(document)
    _check_view(whole, source)
    return whole


def _check_view(spec: WindowSpec, source: WindowSpec) -> None:
    if source.of is not None:
        refuse("of", f"{source.name!r} is a view itself; say of: {source.of}", limit=f"{source.of}")
    for name in _SAME:
        if getattr(spec, name) != getattr(source, name):
            refuse(name, f"a view has that of its window, {source.name!r}", limit=f"{getattr(source, name)!r}")
    if source.granularity is not None:
        _check_panes_shown(spec, source)
    if spec.slide != source.slide:
        _check_slide(spec, source)


def _check_panes_shown(spec: WindowSpec, source: WindowSpec) -> None:
    for name, aggregate in spec.aggregates.items():
        if aggregate not in source.aggregates.values():
            refuse(
                f"aggregates.{name}",
                f"{source.name!r} keeps panes, and has no such aggregate ({aggregate.function} of "
                f"{aggregate.field}); add it to {source.name!r} when that is created",
                limit=", ".join(source.aggregates),
            )


def _check_slide(spec: WindowSpec, source: WindowSpec) -> None:
    """Check that a view never shows what its source has evicted."""
    hint = "leave slide out, and the view has all entries of its window"
    for name, value in spec.slide:
        if value is not None and name not in _BY_AGE:
            refuse(
                f"slide.{name}",
                f"a view keeps nothing, and cannot know which entries {name} has evicted for good; it "
                f"slides by max_age. Or {hint}",
                limit="max_age, every",
            )
    for name, value in source.slide:
        if value is not None and name not in _BY_AGE:
            refuse("slide", f"{source.name!r} slides by {name}, so that nobody knows how far back it goes; {hint}")
    for name in ("clock", "until"):
        if getattr(spec.slide, name) != getattr(source.slide, name):
            refuse(f"slide.{name}", f"a view has that of its window, {getattr(source.slide, name)!r}")
    mine, theirs = spec.max_age_ticks, source.kept_ticks
    if mine is None:
        refuse("slide.max_age", f"say how long entries are in the view; or {hint}")
    if theirs is not None and mine > theirs:
        refuse(
            "slide.max_age",
            f"{spec.slide.max_age} is longer than {source.name!r} keeps entries",
            limit=f"at most {source.history or source.slide.max_age}",
        )
    step, steps = spec.every_ticks or 1, source.every_ticks
    if theirs is not None and steps is not None and step % steps and mine > theirs - steps:
        refuse(
            "slide.every",
            f"{source.name!r} moves in steps of {source.slide.every}, and may not have the oldest entries "
            "of the view any more",
            limit=f"a multiple of {source.slide.every}, or a max_age that is shorter by one step",
        )


def widened(spec: WindowSpec, aggregates: Mapping[str, Any]) -> WindowSpec:
    """A spec with more aggregates; raises AlreadyExists for another definition of one that there is."""
    document = spec.document()
    wider = WindowSpec.parse(document | {"aggregates": document["aggregates"] | dict(aggregates)})
    for name, old in spec.aggregates.items():
        if wider.aggregates[name] != old:
            raise AlreadyExists(
                f"window {spec.name!r} has an aggregate {name!r} with another definition", field=f"aggregates.{name}"
            )
    return wider
