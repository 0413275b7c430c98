"""Parts of a spec that cannot be had together. Each check raises InvalidArgument, which names the part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sash_engine.errors import InvalidArgument

if TYPE_CHECKING:
    from sash_engine.windows.spec import WindowSpec

__all__ = ["check_ahead", "check_identity", "check_nullable", "check_panes", "check_slide"]


def check_ahead(spec: WindowSpec) -> None:
    """Refuse a guard against the future that has no wall time to go by, and half a guard."""
    if spec.order.ahead is not None:
        if spec.time_unit == "none":
            raise InvalidArgument("order.ahead: logical time has no wall clock", field="order.ahead")
        _ = spec.ahead_ticks
    elif spec.order.too_far_ahead is not None:
        raise InvalidArgument("order.too_far_ahead: say in order.ahead how far that is", field="order.too_far_ahead")


def check_panes(spec: WindowSpec) -> None:
    """Refuse what needs the entries themselves, where only panes are kept."""
    if spec.granularity is None:
        return
    why = "a window with a granularity keeps panes, and no entries"
    if spec.slide.max_count is not None:
        raise InvalidArgument(f"slide.max_count: {why} that could leave one by one", field="slide.max_count")
    if spec.order.equal_times != "keep":
        raise InvalidArgument(
            f"order.equal_times: {why} of equal time that could be told apart",
            field="order.equal_times",
            limit="keep",
        )
    if spec.algorithm is not None:
        raise InvalidArgument(
            f"algorithm: {why}, and {spec.algorithm} takes entries; leave one of the two out", field="algorithm"
        )


def check_slide(spec: WindowSpec) -> None:
    """Refuse steps that no `max_age` moves in, and sessions on wall time."""
    age, every = spec.max_age_ticks, spec.every_ticks
    if every is not None and age is None:
        raise InvalidArgument("slide.every: say in slide.max_age what moves in steps", field="slide.every")
    if every is not None and age is not None and every > age:
        raise InvalidArgument(
            f"slide.every: steps of {spec.slide.every} are longer than the window",
            field="slide.every",
            limit=f"at most {spec.slide.max_age}",
        )
    if spec.max_gap_ticks is not None and spec.slide.clock == "wall":
        raise InvalidArgument(
            "slide.max_gap: sessions go by the times of entries: leave slide.clock out", field="slide.max_gap"
        )

    if spec.slide.until is not None:
        for name in ("max_count", "max_gap", "when", "adaptive"):
            if getattr(spec.slide, name) is not None:
                raise InvalidArgument(
                    f"slide.until: entries leave when they are final, and {name} evicts others", field="slide.until"
                )
        if spec.slide.clock == "wall":
            raise InvalidArgument("slide.until: now is what punctuate says, or wall time", field="slide.until")


def check_identity(spec: WindowSpec) -> None:
    """Refuse an identity that names no entries, or entries that are not kept."""
    name = spec.identity
    if name is None:
        return
    if name not in spec.fields:
        raise InvalidArgument(
            f"identity: no field {name[:140]!r}; the window has {', '.join(spec.fields)}", field="identity"
        )
    if spec.fields[name] not in ("int64", "string"):
        raise InvalidArgument(
            f"identity: field {name!r} is a {spec.fields[name]}", field="identity", limit="int64 or string"
        )
    if spec.granularity is not None:
        raise InvalidArgument(
            "identity: a window with a granularity keeps panes, out of which no single entry can be taken",
            field="identity",
        )
    if spec.algorithm is not None:
        raise InvalidArgument(
            f"identity: {spec.algorithm} keeps partials only, out of which no single entry can be taken",
            field="identity",
        )


def check_nullable(spec: WindowSpec) -> None:
    """Refuse fields that are not there, and those that need a value in every entry."""
    watched = spec.slide.adaptive.field or next(iter(spec.fields)) if spec.slide.adaptive is not None else None
    needed = {spec.identity: "the identity", watched: "the field that slide.adaptive watches"}
    names = spec.nullable or []
    for i, name in enumerate(names):
        if name not in spec.fields:
            raise InvalidArgument(
                f"nullable: no field {name[:140]!r}; the window has {', '.join(spec.fields)}", field="nullable"
            )
        if name in names[:i]:
            raise InvalidArgument(f"nullable: {name!r} is in it twice", field="nullable")
        if name in needed:
            raise InvalidArgument(
                f"nullable: {name!r} is {needed[name]}, which every entry has to have", field="nullable"
            )
