"""`rollups` of a spec: which groups of keys are kept, and for which windows they can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Monoid

if TYPE_CHECKING:
    from sash_engine.windows.spec import WindowSpec

__all__ = ["MAX_ROLLUPS", "check_rollups", "document_of"]

MAX_ROLLUPS = 8

_WHY = {
    "max_count": "it counts the entries of each key, and a group would have to find each of those that leave",
    "max_gap": "each key has sessions of its own, and those of a group are other ones",
    "when": "the condition is about the entries of one key, and says nothing of a group's",
    "adaptive": "each key changes for itself, and its entries leave at times of its own",
}


def check_rollups(spec: WindowSpec, monoids: Mapping[str, Monoid]) -> None:
    """Refuse groups that the keys do not have, and windows whose groups could not be kept as they are written.

    Raises:
        InvalidArgument: names the part of the spec, and says why.
    """
    if spec.rollups is None:
        return
    _check_parts(spec.rollups, spec.labels)

    def refuse(field: str, why: str) -> None:
        raise InvalidArgument(f"{field}: a window with rollups has none: {why}", field=field)

    for name, why in _WHY.items():
        if getattr(spec.slide, name) is not None:
            refuse(f"slide.{name}", why)
    if spec.idle_expiry is not None:
        refuse("idle_expiry", "it takes the entries of single keys out of the middle of their groups")
    if spec.identity is not None:
        refuse("identity", "an entry that is retracted would have to be found in each group")
    if spec.algorithm is not None:
        refuse("algorithm", f"{spec.algorithm} answers for one key at a time")
    if spec.order.equal_times != "keep":
        raise InvalidArgument(
            "order.equal_times: in a group, entries of several keys have equal times, and all of them stay",
            field="order.equal_times",
            limit="keep",
        )
    for name, monoid in monoids.items():
        if not monoid.commutative:
            raise InvalidArgument(
                f"aggregates.{name}: {monoid.function} depends on the order of entries, and keys have none between "
                "them: a window with rollups cannot have it",
                field=f"aggregates.{name}",
            )


def _check_parts(rollups: Sequence[Sequence[str]], labels: Sequence[str]) -> None:
    if not labels:
        raise InvalidArgument("rollups are groups of keys: say keys, or keyed", field="rollups")
    seen = dict[frozenset[str], int]()
    for i, parts in enumerate(rollups):
        field = f"rollups.{i}"
        for j, part in enumerate(parts):
            if part not in labels:
                raise InvalidArgument(
                    f"{field}.{j}: keys have no {part[:140]!r}; they have {', '.join(labels)}", field=f"{field}.{j}"
                )
        group = frozenset(parts)
        if len(group) < len(parts):
            raise InvalidArgument(f"{field} names a part twice", field=field)
        if len(group) == len(labels):
            raise InvalidArgument(
                f"{field} names all of {', '.join(labels)}: such a group is a key, which the window keeps anyway",
                field=field,
            )
        if group in seen:
            raise InvalidArgument(f"{field} is the same as rollups.{seen[group]}", field=field)
        seen[group] = i


def document_of(spec_document: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    """The spec of the window that keeps the groups by some parts; by none, its one group is a key.

    Args:
        spec_document: of the window that has the rollups.
    """
    left_out = ("rollups", "keys", "keyed", "order", "durability", "from")
    document = {name: value for name, value in spec_document.items() if name not in left_out}
    return document | ({"keys": list(parts)} if parts else {"keyed": True})
