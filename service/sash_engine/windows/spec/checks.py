"""Parts of a spec that cannot be had together. Each check raises InvalidArgument, which names the part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.monoids.base import NUMERIC
from sash_engine.windows.spec.policies import AdaptivePolicy

if TYPE_CHECKING:
    from sash_engine.windows.spec.window import WindowSpec

__all__ = [
    "check_adaptive",
    "check_ahead",
    "check_history",
    "check_identity",
    "check_known",
    "check_nullable",
    "check_panes",
    "check_slide",
]

_BY_ENTRY = {
    "max_count": "it counts entries",
    "max_gap": "it goes by the gaps between entries",
    "when": "it depends on the entries",
    "adaptive": "it depends on the entries",
}


def check_ahead(spec: WindowSpec) -> None:
    """Refuse a guard against the future that has no wall time to go by, and half a guard."""
    if spec.order.ahead is not None:
        if spec.time_unit == "none":
            refuse("order.ahead", "logical time has no wall clock")
        _ = spec.ahead_ticks
    elif spec.order.too_far_ahead is not None:
        refuse("order.too_far_ahead", "say in order.ahead how far that is")


def check_panes(spec: WindowSpec) -> None:
    """Refuse what needs the entries themselves, where only panes are kept."""
    if spec.granularity is None:
        return
    why = "a window with a granularity keeps panes, and no entries"
    if spec.slide.max_count is not None:
        refuse("slide.max_count", f"{why} that could leave one by one")
    if spec.order.equal_times != "keep":
        refuse("order.equal_times", f"{why} of equal time that could be told apart", limit="keep")
    if spec.algorithm is not None:
        refuse("algorithm", f"{why}, and {spec.algorithm} takes entries; leave one of the two out")


def check_slide(spec: WindowSpec) -> None:
    """Refuse steps that no `max_age` moves in, and sessions on wall time."""
    age, every = spec.max_age_ticks, spec.every_ticks
    if every is not None and age is None:
        refuse("slide.every", "say in slide.max_age what moves in steps")
    if every is not None and age is not None and every > age:
        refuse(
            "slide.every",
            f"steps of {spec.slide.every} are longer than the window",
            limit=f"at most {spec.slide.max_age}",
        )
    if spec.max_gap_ticks is not None and spec.slide.clock == "wall":
        refuse("slide.max_gap", "sessions go by the times of entries: leave slide.clock out")

    if spec.slide.until is not None:
        for name in ("max_count", "max_gap", "when", "adaptive"):
            if getattr(spec.slide, name) is not None:
                refuse("slide.until", f"entries leave when they are final, and {name} evicts others")
        if spec.slide.clock == "wall":
            refuse("slide.until", "now is what punctuate says, or wall time")


def check_history(spec: WindowSpec) -> None:
    """Refuse a history that is shorter than the slide, and slides that only those know who keep what has left."""
    if spec.history is None:
        return
    for name, why in _BY_ENTRY.items():
        if getattr(spec.slide, name) is not None:
            refuse(f"slide.{name}", f"a window with a history slides by max_age alone: {why}, and not the time alone")
    age, kept = spec.max_age_ticks, spec.history_ticks
    if age is None or kept is None:
        refuse("history", "say in slide.max_age how long entries are in the slide")
    if kept < age:
        refuse(
            "history",
            f"{spec.history} is shorter than the slide, which is a part of it",
            limit=f"at least {spec.slide.max_age}",
        )
    if spec.rollups is not None:
        refuse("rollups", "a window with a history has none: they would have the groups of the history, and not of now")
    if spec.algorithm is not None:
        refuse("algorithm", f"{spec.algorithm} keeps partials only, and no history of entries")
    kept_ns, idle_ns = spec.history_ns, spec.idle_expiry_ns
    if idle_ns is not None and (kept_ns is None or kept_ns > idle_ns):
        refuse(
            "idle_expiry",
            "it forgets keys with all they have, and their history is not over yet",
            limit=f"at least {spec.history}",
        )


def check_known(spec: WindowSpec) -> None:
    """Refuse what makes an earlier answer depend on more than the entries that had been applied."""
    if spec.known is None:
        return
    for name in _BY_ENTRY:
        if getattr(spec.slide, name) is not None:
            refuse(f"slide.{name}", "a window with known slides by max_age alone: else entries leave that were known")
    for name, why in (
        ("granularity", "a pane does not say which of its entries arrived when"),
        ("rollups", "they fold the entries of groups, whenever these arrived"),
        ("algorithm", "it keeps partials only, and no entries"),
        ("idle_expiry", "it forgets keys with all they have"),
    ):
        if getattr(spec, name) is not None:
            refuse(name, f"a window with known has none: {why}")
    if "known_at" in spec.parts:
        refuse("keys", "'known_at' is what questions about pairs of a window with known call a column of theirs")
    if spec.order.equal_times != "keep":
        refuse("order.equal_times", "a window with known keeps all entries of a time", limit="keep")


def check_identity(spec: WindowSpec) -> None:
    """Refuse an identity that names no entries, or entries that are not kept."""
    name = spec.identity
    if name is None:
        return
    if name not in spec.fields:
        refuse("identity", f"no field {name[:140]!r}; the window has {', '.join(spec.fields)}")
    if spec.fields[name] not in ("int64", "string"):
        refuse("identity", f"field {name!r} is a {spec.fields[name]}", limit="int64 or string")
    if spec.granularity is not None:
        refuse("identity", "a window with a granularity keeps panes, out of which no single entry can be taken")
    if spec.algorithm is not None:
        refuse("identity", f"{spec.algorithm} keeps partials only, out of which no single entry can be taken")


def check_nullable(spec: WindowSpec) -> None:
    """Refuse fields that are not there, and those that need a value in every entry."""
    watched = spec.slide.adaptive.field or next(iter(spec.fields)) if spec.slide.adaptive is not None else None
    needed = {spec.identity: "the identity", watched: "the field that slide.adaptive watches"}
    names = spec.nullable or []
    for i, name in enumerate(names):
        if name not in spec.fields:
            refuse("nullable", f"no field {name[:140]!r}; the window has {', '.join(spec.fields)}")
        if name in names[:i]:
            refuse("nullable", f"{name!r} is in it twice")
        if name in needed:
            refuse("nullable", f"{name!r} is {needed[name]}, which every entry has to have")


def check_adaptive(policy: AdaptivePolicy | None, fields: Mapping[str, str], **others: Any) -> None:
    """Check that a window can be adaptive.

    Args:
        policy: None: nothing to check.
        fields: the window's fields and their types.
        others: options of the spec that it cannot be combined with.

    Raises:
        InvalidArgument: it has another option that excludes it, or no such numeric field.
    """
    if policy is None:
        return
    for name, value in others.items():
        if value is not None:
            raise InvalidArgument(f"slide.adaptive reads entries: leave {name} out", field="slide.adaptive")
    field = policy.field or (next(iter(fields)) if len(fields) == 1 else None)
    if field is None:
        raise InvalidArgument("slide.adaptive: say which field", field="slide.adaptive.field")
    if field not in fields:
        raise InvalidArgument(
            f"slide.adaptive: no field {field!r:.80}; the window has {', '.join(fields)}", field="slide.adaptive.field"
        )
    if fields[field] not in NUMERIC:
        raise InvalidArgument(
            f"slide.adaptive cannot read a {fields[field]} field",
            field="slide.adaptive.field",
            limit=" or ".join(NUMERIC),
        )
