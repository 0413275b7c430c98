"""A window's spec: the document, as YAML and JSON give it, and the message `WindowSpec`.

This module checks only what a message can carry: names of keys and types of values. The engine checks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sash_proto.v1 import windows_pb2 as pb
from sash_wire.errors import WireError
from sash_wire.meant import instead
from sash_wire.values import fill_value, from_value

_TEXTS = ("idle_expiry", "algorithm", "durability", "granularity", "identity", "of", "history", "known")
_KEYS = frozenset(
    {
        "name",
        "time_unit",
        "keyed",
        "keys",
        "fields",
        "aggregates",
        "slide",
        "order",
        "rollups",
        "from",
        "nullable",
        *_TEXTS,
    }
)
_SLIDE = ("max_age", "clock", "when", "max_gap", "every", "until")
_ORDER = ("late", "out_of_order", "equal_times", "ahead", "too_far_ahead")
_SOURCE = ("window", "granularity")
_ADAPTIVE = ("field", "delta", "every", "range")
_GROUPS = {"slide": frozenset({"max_count", "adaptive", *_SLIDE}), "order": frozenset(_ORDER)}
_DURATIONS = frozenset({"max_age", "max_gap", "every", "granularity", "ahead", "history"})
"""Durations that may be numbers of ticks."""
_OPTIONS = ("function", "field", "returns")


def fill_spec(message: pb.WindowSpec, document: Mapping[str, Any]) -> None:
    """Write a document into an empty message. None stands for a key that is left out.

    Raises:
        WireError: what the message cannot carry: an unknown key, or a value of a wrong type.
        UnicodeEncodeError: a string that has no UTF-8.
    """
    _known(document, _KEYS, "")
    for name in ("name", "time_unit", "keyed"):
        if name in document:
            _assign(message, name, document[name], name)
    for name in _TEXTS:
        if document.get(name) is not None:
            _assign(message, name, _as_text(name, document[name]), name)
    for name in ("keys", "nullable"):
        if document.get(name) is not None:
            names = document[name]
            if not _is_list(names) or (name == "keys" and not names) or not all(isinstance(one, str) for one in names):
                raise WireError(f"{name}: {names!r:.80} is no list of names", field=name, limit="1 name and more")
            getattr(message, name).extend(names)
    _fill_rollups(message, document.get("rollups"))
    if document.get("from") is not None:
        source = _mapping(document["from"], "from")
        _known(source, frozenset(_SOURCE), "from.")
        for name, value in source.items():
            _assign(_source_of(message), name, _as_text(name, value), f"from.{name}")
    for name, kind in _mapping(document.get("fields"), "fields").items():
        if not isinstance(kind, str):
            raise WireError(f"fields.{name}: a type is a name, not {kind!r}", field=f"fields.{name}")
        message.fields[str(name)] = kind
    for name, aggregate in _mapping(document.get("aggregates"), "aggregates").items():
        fill_aggregate(message.aggregates[str(name)], aggregate, f"aggregates.{name}")
    for group, keys in _GROUPS.items():
        policy = _mapping(document.get(group), group)
        _known(policy, keys, f"{group}.")
        for key, value in policy.items():
            if key == "adaptive":
                _fill_adaptive(message, value)
            elif value is not None:
                _assign(getattr(message, group), key, _as_text(key, value), f"{group}.{key}")


def _fill_rollups(message: pb.WindowSpec, rollups: Any) -> None:
    if rollups is None:
        return
    if not _is_list(rollups) or not rollups:
        raise WireError(f"rollups: {rollups!r:.80} is no list of groups", field="rollups", limit="1 group and more")
    for i, parts in enumerate(rollups):
        if not _is_list(parts) or not all(isinstance(part, str) for part in parts):
            raise WireError(f"rollups.{i}: {parts!r:.80} is no list of names", field=f"rollups.{i}")
        message.rollups.add(parts=parts)


def _source_of(message: pb.WindowSpec) -> pb.Source:
    """The window that feeds another; its field has the name of a keyword of Python."""
    source: pb.Source = getattr(message, "from")
    return source


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _fill_adaptive(message: pb.WindowSpec, document: Any) -> None:
    if document is None:
        return
    policy = _mapping(document, "slide.adaptive")
    _known(policy, frozenset(_ADAPTIVE), "slide.adaptive.")
    message.slide.adaptive.SetInParent()
    for key, value in policy.items():
        if value is not None:
            _assign(message.slide.adaptive, key, value, f"slide.adaptive.{key}")


def fill_aggregate(message: pb.AggregateSpec, document: Any, path: str) -> None:
    """Write the document of an aggregate into an empty message; raises as `fill_spec`."""
    for key, value in _mapping(document, path).items():
        if key not in _OPTIONS:
            fill_value(message.parameters[str(key)], value, f"{path}.{key}")
        elif value is not None:
            _assign(message, key, value, f"{path}.{key}")


def document_of(message: pb.WindowSpec) -> dict[str, Any]:
    """Return the document of a message, without what is not set.

    Raises:
        WireError: as `aggregates_of`.
    """
    document: dict[str, Any] = {"name": message.name}
    if message.keyed or not message.of:  # a view has the keys of its window
        document["keyed"] = message.keyed
    if message.keys:
        document |= {"keys": list(message.keys), "keyed": True}
    if message.nullable:
        document["nullable"] = list(message.nullable)
    if message.rollups:
        document["rollups"] = [list(rollup.parts) for rollup in message.rollups]
    if message.HasField("from"):
        document["from"] = _texts(_source_of(message), _SOURCE)
    if message.time_unit:
        document["time_unit"] = message.time_unit
    if message.fields:
        document["fields"] = dict(sorted(message.fields.items()))
    document["aggregates"] = aggregates_of(message.aggregates)
    if message.HasField("slide"):
        slide = document["slide"] = _texts(message.slide, _SLIDE)
        if message.slide.HasField("max_count"):
            slide["max_count"] = message.slide.max_count
        if message.slide.HasField("adaptive"):
            adaptive = message.slide.adaptive
            set_keys = (key for key in _ADAPTIVE[1:] if adaptive.HasField(key))
            slide["adaptive"] = _texts(adaptive, ("field",)) | {key: getattr(adaptive, key) for key in set_keys}
    if message.HasField("order"):
        document["order"] = _texts(message.order, _ORDER)
    return document | _texts(message, _TEXTS)


def aggregates_of(messages: Mapping[str, pb.AggregateSpec]) -> dict[str, Any]:
    """Return the documents of aggregates by name, sorted, because a map has no order.

    Raises:
        WireError: a parameter has the name of an option.
    """
    return {name: _aggregate(message, f"aggregates.{name}") for name, message in sorted(messages.items())}


def _aggregate(message: pb.AggregateSpec, path: str) -> dict[str, Any]:
    parameters = {name: from_value(value) for name, value in sorted(message.parameters.items())}
    for option in _OPTIONS:
        if option in parameters:
            raise WireError(f"{path}: {option} is no parameter", field=f"{path}.parameters.{option}")
    return _texts(message, _OPTIONS) | parameters


def _texts(message: Any, names: Sequence[str]) -> dict[str, Any]:
    """The string fields that are set."""
    return {name: text for name in names if (text := getattr(message, name))}


def _as_text(key: str, value: Any) -> Any:
    """A duration as text if it is a number of ticks; any other value as it is."""
    ticks = key in _DURATIONS and isinstance(value, int) and not isinstance(value, bool)
    return str(value) if ticks else value


def _mapping(value: Any, path: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise WireError(f"{path} is a mapping, not {value!r:.80}", field=path)
    return value


def _known(document: Mapping[Any, Any], keys: frozenset[str], prefix: str) -> None:
    for key in document:
        if key not in keys:
            known = instead(key, sorted(keys), "known are")
            raise WireError(f"{prefix}{key}: no such key{known}", field=f"{prefix}{key}")


def _assign(message: Any, name: str, value: Any, path: str) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise WireError(f"{path}: {value!r:.80} is not what belongs here ({error})", field=path) from None
