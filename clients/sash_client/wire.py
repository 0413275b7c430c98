"""Between plain documents and the messages of `sash.v1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.answers import Answer, Counts, Series, WindowInfo, WriteResult
from sash_client.bulks import from_partials
from sash_client.errors import InvalidArgument
from sash_proto.v1 import windows_pb2 as pb

__all__ = [
    "from_answer",
    "from_info",
    "from_series",
    "from_write",
    "new_name",
    "spec_document",
    "to_aggregates",
    "to_spec",
    "to_value",
]

_MAX_SPEC_BYTES, _MAX_DEPTH = 64 * 2**10, 32  # what the service takes
_TEXTS = ("idle_expiry", "algorithm", "durability", "granularity")
_SPEC_KEYS = frozenset({"name", "time_unit", "keyed", "fields", "aggregates", "slide", "order", *_TEXTS})
_GROUPS = {
    "slide": frozenset({"max_count", "max_age", "clock", "when"}),
    "order": frozenset({"late", "out_of_order", "equal_times", "ahead", "too_far_ahead"}),
}


def to_spec(spec: Mapping[str, Any] | str) -> pb.WindowSpec:
    """Return the message for a spec.

    Args:
        spec: the document, or its YAML (or JSON) text.

    Raises:
        InvalidArgument: what the message cannot carry: no mapping, an unknown key, a value of a wrong type. The
            service checks everything else.
    """
    document = _mapping(_loaded(spec, "spec"), "spec")
    _known(document, _SPEC_KEYS, "")
    try:
        return _spec_message(document)
    except UnicodeEncodeError as error:
        raise _no_text("spec", error) from None


def _no_text(path: str, error: UnicodeEncodeError) -> InvalidArgument:
    return InvalidArgument(f"{path}: {error.object!r:.80} is no text: half a surrogate pair is in it", field=path)


def _spec_message(document: Mapping[str, Any]) -> pb.WindowSpec:
    message = pb.WindowSpec()
    for name in ("name", "time_unit", "keyed"):
        if name in document:
            _assign(message, name, document[name], name)
    for name in _TEXTS:
        if document.get(name) is not None:
            _assign(message, name, _duration(name, document[name]), name)
    for name, kind in _mapping(document.get("fields"), "fields").items():
        if not isinstance(kind, str):
            raise InvalidArgument(f"fields.{name}: a type is a name, not {kind!r}", field=f"fields.{name}")
        message.fields[str(name)] = kind
    for name, aggregate in to_aggregates(document.get("aggregates")).items():
        message.aggregates[name].CopyFrom(aggregate)
    for group, keys in _GROUPS.items():
        policy = _mapping(document.get(group), group)
        _known(policy, keys, f"{group}.")
        for key, value in policy.items():
            value = _duration(key, value)
            if value is not None:
                _assign(getattr(message, group), key, value, f"{group}.{key}")
    return message


def _duration(key: str, value: Any) -> Any:
    """A duration as text, where it is a number of ticks."""
    ticks = key in ("max_age", "granularity", "ahead") and isinstance(value, int) and not isinstance(value, bool)
    return str(value) if ticks else value


def to_aggregates(aggregates: Mapping[str, Any] | str | None) -> dict[str, pb.AggregateSpec]:
    """Return messages for aggregates by name, which are a document or its YAML text; raises as `to_spec`."""
    messages = {}
    for name, aggregate in _mapping(_loaded(aggregates, "aggregates"), "aggregates").items():
        messages[str(name)] = pb.AggregateSpec()
        try:
            str(name).encode()
            _fill_aggregate(messages[str(name)], aggregate, f"aggregates.{name}")
        except UnicodeEncodeError as error:
            raise _no_text("aggregates", error) from None
    return messages


def new_name(name: str | None) -> str:
    """A name that a window is to be given; what stands for its own one if None. Raises InvalidArgument."""
    if name == "":
        raise InvalidArgument("name is empty; leave it out for the window's own", field="name")
    return name or ""


def spec_document(message: pb.WindowSpec) -> dict[str, Any]:
    """Return a spec as a plain document; `to_spec` takes it back."""
    document: dict[str, Any] = {
        "name": message.name,
        "time_unit": message.time_unit or "us",
        "keyed": message.keyed,
        "fields": dict(sorted(message.fields.items())),
        "aggregates": {},
    }
    for name, aggregate in sorted(message.aggregates.items()):
        entry = {key: getattr(aggregate, key) for key in ("function", "field", "returns") if getattr(aggregate, key)}
        entry.update({key: from_value(value) for key, value in sorted(aggregate.parameters.items())})
        document["aggregates"][name] = entry
    slide: dict[str, Any] = {}
    if message.slide.HasField("max_count"):
        slide["max_count"] = message.slide.max_count
    if message.slide.max_age:
        slide["max_age"] = message.slide.max_age
    slide["clock"] = message.slide.clock or "event"
    if message.slide.when:
        slide["when"] = message.slide.when
    document["slide"] = slide
    document["order"] = {
        "out_of_order": message.order.out_of_order or "allow",
        "late": message.order.late or "drop",
        "equal_times": message.order.equal_times or "keep",
        **{name: getattr(message.order, name) for name in ("ahead", "too_far_ahead") if getattr(message.order, name)},
    }
    return document | {name: getattr(message, name) for name in _TEXTS if getattr(message, name)}


def to_value(value: Any, path: str) -> pb.Value:
    """Return the message for a scalar, a list or a mapping.

    Raises:
        InvalidArgument: a value of another type.
    """
    if value is None:
        return pb.Value()
    if isinstance(value, bool | np.bool_):
        return pb.Value(bool=bool(value))
    if isinstance(value, int | np.integer):
        number = int(value)
        if -(2**63) <= number < 2**63:
            return pb.Value(int64=number)
        width = number.bit_length() // 8 + 1
        return pb.Value(integer=number.to_bytes(width, "little", signed=True))
    if isinstance(value, float | np.floating):
        return pb.Value(float64=float(value))
    if isinstance(value, str):
        return pb.Value(string=value)
    if isinstance(value, bytes):
        return pb.Value(blob=value)
    if isinstance(value, Mapping):
        entries = {str(key): to_value(item, f"{path}.{key}") for key, item in value.items()}
        return pb.Value(map=pb.ValueMap(entries=entries))
    if isinstance(value, list | tuple | np.ndarray):
        return pb.Value(list=pb.ValueList(items=[to_value(item, path) for item in value]))
    raise InvalidArgument(f"{path}: a {type(value).__name__} cannot be sent", field=path)


def from_value(value: pb.Value) -> Any:
    """Return the Python value of a message; None where nothing is set."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [from_value(item) for item in value.list.items]
    if kind == "map":
        return {key: from_value(item) for key, item in sorted(value.map.entries.items())}
    if kind == "integer":
        return int.from_bytes(value.integer, "little", signed=True)
    return getattr(value, kind)


def from_answer(message: pb.Answer, partials: bool = False) -> Answer:
    """Return an answer; with its partials where they were asked for."""
    return Answer(
        key=message.key if message.HasField("key") else None,
        start=message.start if message.HasField("start") else None,
        end=message.end if message.HasField("end") else None,
        entries=message.entries,
        aggregates={name: from_value(value) for name, value in sorted(message.aggregates.items())},
        lookback=message.lookback or None,
        partials={name: from_partials(parts) for name, parts in sorted(message.partials.items())} if partials else None,
    )


def from_write(message: pb.InsertResponse, sequences: int = 0) -> WriteResult:
    """Return what became of a write, which used so many of its producer's numbers."""
    return WriteResult(
        message.inserted,
        message.late,
        message.evicted,
        message.duplicates,
        tuple(from_answer(answer) for answer in message.answers),
        message.already_applied,
        message.durability or "memory",
        sequences,
        message.ahead,
    )


def from_series(message: pb.SeriesResponse, time_unit: str) -> Series:
    """Return a series."""
    return Series(
        key=message.key if message.HasField("key") else None,
        times=np.frombuffer(message.time, "<i8"),
        width=message.width,
        entries=np.frombuffer(message.entries, "<i8"),
        aggregates={name: _answers(column) for name, column in sorted(message.aggregates.items())},
        time_unit=time_unit,
    )


def _answers(column: pb.SeriesColumn) -> npt.NDArray[Any]:
    if column.HasField("values"):
        answers = np.empty(len(column.values.items), object)
        # One by one: an assignment of the list would make rows of answers that are lists.
        for i, item in enumerate(column.values.items):
            answers[i] = from_value(item)
        return answers
    numbers: npt.NDArray[Any] = np.frombuffer(column.float64, "<f8")
    if column.int64:
        numbers = np.frombuffer(column.int64, "<i8")
    if not column.valid:
        return numbers
    missing = np.frombuffer(column.valid, np.uint8) == 0
    if numbers.dtype.kind == "f":
        numbers = np.where(missing, np.nan, numbers)
    return np.ma.MaskedArray(numbers, missing)


def from_info(message: pb.WindowInfo) -> WindowInfo:
    """Return a window's description."""
    counts = message.counts
    return WindowInfo(
        name=message.spec.name,
        spec=spec_document(message.spec),
        entries=message.entries,
        keys=message.keys,
        oldest=message.oldest if message.HasField("oldest") else None,
        newest=message.newest if message.HasField("newest") else None,
        counts=Counts(counts.inserted, counts.late, counts.evicted, counts.duplicates, counts.ahead),
        durability=message.durability or "memory",
        problem=message.problem if message.HasField("problem") else None,
        high_water_mark=message.high_water_mark if message.HasField("high_water_mark") else None,
    )


def _fill_aggregate(message: pb.AggregateSpec, aggregate: Any, path: str) -> None:
    for key, value in _mapping(aggregate, path).items():
        if key in ("function", "field", "returns"):
            if value is not None:
                _assign(message, key, value, f"{path}.{key}")
        else:
            message.parameters[str(key)].CopyFrom(to_value(value, f"{path}.{key}"))


def _loaded(document: Any, path: str) -> Any:
    if not isinstance(document, str):
        return document
    import yaml  # only a text needs it, and it takes a twentieth of a client's start

    if len(document) > _MAX_SPEC_BYTES:
        raise InvalidArgument(f"{path}: the text is too long", field=path, limit=f"{_MAX_SPEC_BYTES} bytes")
    try:
        depth = 0
        for event in yaml.parse(document):
            # The service takes neither: aliases that merge one another unfold without end, and depth takes as long.
            if isinstance(event, yaml.AliasEvent):
                raise InvalidArgument(f"{path}: write out what *{event.anchor} is", field=path, limit="no aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise InvalidArgument(f"{path}: nested too deep", field=path, limit=f"{_MAX_DEPTH} levels")
        return yaml.safe_load(document)
    except InvalidArgument:
        raise
    except Exception as error:  # values of a type that they are not raise errors of any kind: 2020-99-99, !!bool maybe
        what = "the spec is" if path == "spec" else f"{path} are"
        raise InvalidArgument(f"{what} not YAML: {error}", field=path) from None


def _mapping(value: Any, path: str) -> Mapping[Any, Any]:
    if value is None and path != "spec":
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{path} is a mapping, not {value!r:.80}", field=path)
    return value


def _known(document: Mapping[Any, Any], keys: frozenset[str], prefix: str) -> None:
    for key in document:
        if key not in keys:
            raise InvalidArgument(
                f"{prefix}{key}: no such key; known are {', '.join(sorted(keys))}", field=f"{prefix}{key}"
            )


def _assign(message: Any, name: str, value: Any, path: str) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{path}: {value!r:.80} is not what belongs here ({error})", field=path) from None
