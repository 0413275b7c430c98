"""`from` of a spec: the window that feeds this one, and which windows can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Monoid
from sash_engine.windows.policies import Document, OrderPolicy, ticks_or_text

if TYPE_CHECKING:
    from sash_engine.windows.spec import WindowSpec

__all__ = ["Source", "check_cascade", "check_source"]


class Source(Document):
    """The window that feeds this one, and the panes that are made of its entries."""

    window: str = Field(description="The name of the window that feeds this one. It has to be there.")
    granularity: Annotated[str, BeforeValidator(ticks_or_text)] = Field(
        description="The length of the panes: `granularity` of this window. Where the other window keeps panes, too, a "
        "multiple of their length."
    )


def check_source(spec: WindowSpec, monoids: Mapping[str, Monoid]) -> None:
    """Refuse what a window that is fed by another one cannot have; raises InvalidArgument."""
    source = spec.source
    if source is None:
        return
    if spec.granularity != source.granularity:
        raise InvalidArgument(
            f"granularity: {spec.granularity!r} is not that of from, {source.granularity!r}; leave it out",
            field="granularity",
        )
    if source.window == spec.name:
        raise InvalidArgument(f"from.window: {spec.name!r} cannot feed itself", field="from.window")
    if spec.order != OrderPolicy():
        raise InvalidArgument(
            "order: a window that another one feeds cannot refuse what that one has taken; leave it out", field="order"
        )
    if spec.slide.until is not None:
        raise InvalidArgument(
            "slide.until: nobody punctuates a window that another one feeds; leave it out", field="slide.until"
        )
    if spec.durability is not None:
        raise InvalidArgument(
            "durability: it is that of the window that feeds this one, in the same commit; leave it out",
            field="durability",
        )
    for name, monoid in monoids.items():
        if not monoid.commutative:
            raise InvalidArgument(
                f"aggregates.{name}: {monoid.function} depends on the order in which entries arrive, and bulks reach "
                "the window sorted",
                field=f"aggregates.{name}",
            )


def check_cascade(spec: WindowSpec, source: WindowSpec) -> None:
    """Check that a window can be fed by another one; raises InvalidArgument."""
    for name, mine, theirs in (
        ("time_unit", spec.time_unit, source.time_unit),
        ("keyed", spec.keyed, source.keyed),
        ("keys", spec.keys, source.keys),
    ):
        if mine != theirs:
            raise InvalidArgument(
                f"{name}: {mine!r} is not that of {source.name!r}, {theirs!r}", field=name, limit=f"{theirs!r}"
            )
    for name, kind in spec.fields.items():
        if source.fields.get(name) != kind:
            known = ", ".join(f"{each}: {there}" for each, there in source.fields.items())
            raise InvalidArgument(
                f"fields.{name}: {source.name!r} has no such {kind}; it has {known}", field=f"fields.{name}"
            )
        if (name in (spec.nullable or ())) != (name in (source.nullable or ())):
            said = "may be null" if name in (source.nullable or ()) else "is never null"
            raise InvalidArgument(f"nullable: {name!r} {said} in {source.name!r}; say the same here", field="nullable")
    why = None
    if source.order.equal_times != "keep":
        why = "keeps one entry of each time, and would have to take others back"
    elif source.identity is not None:
        why = "has an identity: entries that are retracted could not be taken out of panes"
    elif source.algorithm is not None:
        why = f"runs on {source.algorithm}"
    if why is not None:
        raise InvalidArgument(f"from.window: {source.name!r} {why}", field="from.window")
    if source.granularity_ticks is not None:
        _check_panes(spec, source, source.granularity_ticks)


def _check_panes(spec: WindowSpec, source: WindowSpec, granule: int) -> None:
    """Check what is made of panes: longer ones, of the same aggregates."""
    if spec.granularity_ticks is not None and spec.granularity_ticks % granule:
        raise InvalidArgument(
            f"from.granularity: {spec.granularity} is no multiple of the panes of {source.name!r}",
            field="from.granularity",
            limit=f"a multiple of {source.granularity}",
        )
    for name, aggregate in spec.aggregates.items():
        if source.aggregates.get(name) != aggregate:
            raise InvalidArgument(
                f"aggregates.{name}: {source.name!r} keeps panes, and has no such aggregate, of whose panes this one's "
                "could be made",
                field=f"aggregates.{name}",
                limit=", ".join(source.aggregates),
            )
