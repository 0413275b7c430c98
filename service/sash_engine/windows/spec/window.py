"""A window's spec: one validated document, the same in YAML, JSON and protobuf."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.monoids.base import NUMERIC, FieldType, Monoid
from sash_engine.steps import finished
from sash_engine.windows.spec.aggregates import monoid_of
from sash_engine.windows.spec.policies import (
    AdaptivePolicy,
    AggregateSpec,
    Document,
    OrderPolicy,
    SlidePolicy,
    ticks_or_text,
)
from sash_engine.windows.spec.predicate import Predicate
from sash_engine.windows.spec.text import read_yaml
from sash_engine.words import first_wrong
from sash_wire import durations
from sash_wire.durations import NANOSECONDS
from sash_wire.errors import WireError
from sash_wire.meant import instead
from sash_wire.nulls import mark_of

__all__ = [
    "ARRIVAL",
    "NUMBERS",
    "PLACED",
    "REMOVED",
    "AggregateSpec",
    "Durability",
    "OrderPolicy",
    "SlidePolicy",
    "TimeUnit",
    "WindowSpec",
    "check_name",
    "parse_duration",
]

TimeUnit = Literal["ns", "us", "ms", "s", "none"]
Durability = Literal["sync", "interval", "memory"]

ARRIVAL, PLACED, REMOVED = NUMBERS = "arrival!", "placed!", "removed!"
"""The columns of the numbers of arrival, and of those of entries that were removed; nobody can call a field so."""
AHEAD = "1d"
"""How far ahead the entries of a new window may be: more than clocks differ, and than any two time zones."""
MAX_FIELDS = 64
MAX_AGGREGATES = 64
MAX_KEY_BYTES = 512
MAX_PARTS = 16
MAX_ROLLUPS = 8
_MEMBERS_MAX = 256
"""Of a spec, and of each of its members: no spec has so many. To list what is wrong in 8,000 takes 50 ms."""
TICK_MIN, TICK_MAX = -(2**63), 2**63 - 1

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
NANOSECONDS_PER_TICK: dict[str, int] = {unit: NANOSECONDS[unit] for unit in ("ns", "us", "ms", "s")}


def parse_duration(text: str | int, unit: TimeUnit, field: str) -> int:
    """Return a duration in ticks of `unit`.

    Args:
        text: a whole number of ticks (90, "90"), or numbers with units ("5m", "1h30m", "250ms"), which a window
            of logical time (`none`) does not take.
        field: what to call it in an error.

    Raises:
        InvalidArgument: no duration, not positive, not a whole number of ticks, or 2^63 ticks and more.
    """
    try:
        return durations.parse_duration(text, unit, field)
    except WireError as error:
        raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None


def check_time(time: int, field: str) -> None:
    """Raise `InvalidArgument` for a time that is not strictly between -2^63 and 2^63 - 1."""
    if not TICK_MIN < time < TICK_MAX:
        raise InvalidArgument(f"{field} {time} is out of range", field=field, limit="-2^63 < time < 2^63 - 1")


def _names(names: list[str] | None) -> list[str] | None:
    """A set of names in one order, so that two specs that say the same are equal; None if it is empty."""
    return sorted(names or []) or None


class Source(Document):
    """The window that feeds this one, and the panes that are made of its entries."""

    window: str = Field(description="The name of the window that feeds this one. It has to be there.")
    granularity: Annotated[str, BeforeValidator(ticks_or_text)] = Field(
        description="The length of the panes: `granularity` of this window. Where the other window keeps panes, too, a "
        "multiple of their length."
    )


class WindowSpec(Document):
    """A window's spec. The page Spec of the documentation has one in YAML."""

    name: str
    time_unit: TimeUnit = "us"
    keyed: bool = Field(False, description="Whether entries have keys. `keys` implies it.")
    keys: list[str] | None = Field(
        None, min_length=1, max_length=MAX_PARTS, description="The names of the parts of keys: `[airport, carrier]`."
    )
    fields: dict[str, FieldType] = Field({"value": "float64"}, max_length=MAX_FIELDS)
    nullable: Annotated[list[str] | None, AfterValidator(_names)] = Field(
        None,
        description="The fields that may be null. An aggregate ignores the entries in which a field that it reads is "
        "null.",
    )
    aggregates: dict[str, AggregateSpec] = Field(min_length=1, max_length=MAX_AGGREGATES)
    slide: SlidePolicy = SlidePolicy()
    history: Annotated[str, BeforeValidator(ticks_or_text)] | None = Field(
        None,
        description="Only with `max_age`: entries that are too old for the slide stay on the tier for so long, and "
        "answer questions about the past (`as_of`). A duration such as `400d`, or ticks.",
    )
    order: OrderPolicy = OrderPolicy()
    idle_expiry: str | None = Field(
        None,
        description="A key that was not written for so long, in wall time, is forgotten. A duration such as `30d`.",
    )
    granularity: Annotated[str, BeforeValidator(ticks_or_text)] | None = Field(
        None,
        description="Entries are folded into panes of this length as they are written, and not kept. A duration such "
        "as `1m`, or ticks. Lookbacks, ranges and `max_age` take whole panes, by their start.",
    )
    identity: str | None = Field(
        None,
        description="The field that tells entries of one key and time apart: an `int64` or a `string`. With it, single "
        "entries can be retracted and corrected. Sash does not check that it is unique.",
    )
    rollups: list[list[str]] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ROLLUPS,
        description="Groups of keys that are kept beside the keys, by the parts that a group's keys agree in: "
        "`[[carrier], []]`. `[]` is all keys together. A question `by` these parts then costs the same however many "
        "keys a group has.",
    )
    source: Source | None = Field(
        None,
        alias="from",
        description="Another window feeds this one, which keeps its entries as panes: `{window: requests, granularity: "
        "1m}`. Nobody else writes to it.",
    )
    of: str | None = Field(
        None,
        description="The window is a view: it keeps nothing, and shows the entries of another one, with a slide and "
        "aggregates of its own. What it does not say, such as its fields, is that of the other window.",
    )
    known: Literal["arrival"] | None = Field(
        None,
        description="`arrival`: the window keeps when each entry was applied, was retracted and was corrected. Then "
        "questions about the past may say `known_at`, and are answered from what had been applied by then.",
    )
    algorithm: str | None = Field(
        None,
        description="Deprecated: leave it out. It has no effect: every window runs on the columnar engine.",
    )
    durability: Durability | None = Field(
        None,
        description="What a write is given before it is answered. `sync`: the tier has it. `interval`: the tier gets "
        "it a moment later. `memory`: it is only in memory. Without it, `sync` if the service stores windows.",
    )

    @classmethod
    def parse(cls, document: object) -> WindowSpec:
        """Validate a document (a mapping, as JSON or YAML gives it).

        Raises:
            InvalidArgument: the first thing that is wrong, with its path in `field`.
        """
        if not isinstance(document, Mapping):
            raise InvalidArgument("a spec is a mapping of its fields", field="spec")
        for name, value in {"spec": document, **document}.items():  # pydantic lists what is wrong in all of them
            if isinstance(value, Mapping | list) and len(value) > _MEMBERS_MAX:
                wrong = f"{str(name)[:80]} has {len(value)} members"
                raise InvalidArgument(wrong, field=str(name)[:80], limit=f"{_MEMBERS_MAX} members")
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            cause = error.errors(include_url=False)[0].get("ctx", {}).get("error")
            if isinstance(cause, _Refused):
                raise cause.args[0] from None
            path, wrong = first_wrong(error, cls)
            raise InvalidArgument(f"{path or 'spec'} {wrong}", field=path or "spec") from None
        except UnicodeError:  # pydantic reports it of a value, and fails over a name
            raise InvalidArgument("spec must be valid Unicode", field="spec") from None

    @classmethod
    def from_yaml(cls, text: str) -> WindowSpec:
        """Validate a YAML (or JSON) text; raises as `parse` and `read_yaml`."""
        return cls.parse(finished(read_yaml(text)))

    def document(self) -> dict[str, Any]:
        """The spec as plain JSON values, defaults left out where nothing was said."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True, exclude_unset=self.of is not None)

    def guarded(self) -> WindowSpec:
        """The spec that a new window has: in event time it refuses entries far ahead, unless the spec says otherwise.

        Specs of windows that are there are not changed by it: they say what their windows do.
        """
        own = self.time_unit != "none" and self.slide.clock == "event" and not self.feeds_on
        if not own or "ahead" in self.order.model_fields_set:
            return self
        order = self.order.model_copy(update={"ahead": AHEAD, "too_far_ahead": "reject"})
        return self.model_copy(update={"order": order})

    @property
    def is_open(self) -> bool:
        """Whether it says `of`, and leaves the rest to the window that this names; see `derived.completed`."""
        return self.of is not None and not self.fields

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts of a key; none where a key is one text, or there are no keys."""
        return tuple(self.keys or ())

    @property
    def columns(self) -> dict[str, FieldType]:
        """The columns of an entry besides its time: the fields, then a mark for each field that may be null."""
        return {**self.fields, **{mark_of(name): "bool" for name in self.nullable or ()}}

    @property
    def kept_columns(self) -> dict[str, FieldType]:
        """The columns of an entry as the window keeps it: `columns`, and with `known` the number of its arrival."""
        return self.columns if self.known is None else {**self.columns, ARRIVAL: "int64"}

    @property
    def labels(self) -> tuple[str, ...]:
        """The names by which questions select and group keys: the parts, or `key` where a key is one text."""
        return self.parts or (("key",) if self.keyed else ())

    @property
    def goes_by_wall_time(self) -> str | None:
        """The first key of the spec that needs a clock; None where none does."""
        asks = {
            "slide.clock": self.slide.clock == "wall",
            "order.ahead": self.order.ahead is not None,
            "idle_expiry": self.idle_expiry is not None,
        }
        return next((key for key, needed in asks.items() if needed), None)

    def _ticks(self, said: str | None, path: str, unit: TimeUnit | None = None) -> int | None:
        return None if said is None else parse_duration(said, unit or self.time_unit, path)

    @property
    def max_age_ticks(self) -> int | None:
        """`slide.max_age` in ticks."""
        return self._ticks(self.slide.max_age, "slide.max_age")

    @property
    def history_ticks(self) -> int | None:
        """`history` in ticks."""
        return self._ticks(self.history, "history")

    @property
    def history_ns(self) -> int | None:
        """`history` in nanoseconds; None where there is none, or time is logical."""
        ticks, tick_ns = self.history_ticks, NANOSECONDS_PER_TICK.get(self.time_unit)
        return None if ticks is None or tick_ns is None else ticks * tick_ns

    @property
    def kept_ticks(self) -> int | None:
        """How long entries are kept, in ticks: as `history` says, or `slide.max_age`; None where neither is said."""
        return self.max_age_ticks if self.history is None else self.history_ticks

    @property
    def max_gap_ticks(self) -> int | None:
        """`slide.max_gap` in ticks."""
        return self._ticks(self.slide.max_gap, "slide.max_gap")

    @property
    def every_ticks(self) -> int | None:
        """`slide.every` in ticks."""
        return self._ticks(self.slide.every, "slide.every")

    @property
    def ahead_ticks(self) -> int | None:
        """`order.ahead` in ticks."""
        return self._ticks(self.order.ahead, "order.ahead")

    @property
    def idle_expiry_ns(self) -> int | None:
        """`idle_expiry` in nanoseconds."""
        return self._ticks(self.idle_expiry, "idle_expiry", "ns")

    @property
    def granularity_ticks(self) -> int | None:
        """`granularity` in ticks."""
        return self._ticks(self.granularity, "granularity")

    @property
    def feeds_on(self) -> tuple[str, ...]:
        """The names of windows whose entries this one shows: they feed it, or it is a view of one."""
        names = None if self.source is None else self.source.window, self.of
        return tuple([name for name in names if name is not None])

    def monoids(self) -> dict[str, tuple[Monoid, tuple[str, ...]]]:
        """Build each aggregate: name -> (monoid, the columns it reads: names of `columns`, or "time").

        Raises:
            InvalidArgument: an unknown function, field or parameter, or a field of the wrong type.
        """
        return {
            name: monoid_of(f"aggregates.{name}", spec.document, self.fields, self.time_unit, self.nullable or ())
            for name, spec in self.aggregates.items()
        }

    @model_validator(mode="before")
    @classmethod
    def _parts_are_keys(cls, document: Any) -> Any:
        """Say `keyed` where there are parts, so that it is said in every description of the window."""
        if not isinstance(document, Mapping) or document.get("keys") is None:
            return document
        if document.get("keyed") is False:
            raise _Refused(InvalidArgument("keyed: a window with keys is keyed; leave one out", field="keyed"))
        return {**document, "keyed": True} if "keyed" not in document else document

    @model_validator(mode="before")
    @classmethod
    def _panes_of_source(cls, document: Any) -> Any:
        """Say the granularity of a window that another one feeds, so that it is a window with panes to everybody.

        A view has the fields of another window, too.
        """
        document = opened(document)
        source = document.get("from") if isinstance(document, Mapping) else None
        if not isinstance(source, Mapping) or document.get("granularity") is not None:
            return document
        return {**document, "granularity": source.get("granularity")}

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            check_name(self.name, "name")
            self._check_parts()
            for group in ("fields", "aggregates"):
                for name in getattr(self, group):
                    check_name(name, f"{group}.{name}" if len(name) <= 128 else group)
            if self.of is not None:
                check_open(self)
            if self.is_open:
                return self
            if not self.fields:
                raise InvalidArgument("a window needs at least one field", field="fields")
            for reserved in {"time", "key"} & set(self.fields):
                raise InvalidArgument(
                    f"{reserved!r} is every entry's own; name the field otherwise", field=f"fields.{reserved}"
                )
            _ = self.max_age_ticks, self.history_ticks, self.idle_expiry_ns, self.granularity_ticks
            check_ahead(self)
            check_panes(self)
            check_adaptive(self.slide.adaptive, self.fields, self.granularity)
            check_slide(self)
            check_history(self)
            check_identity(self)
            check_nullable(self)
            check_known(self)
            monoids = {name: monoid for name, (monoid, _) in self.monoids().items()}
            if self.slide.clock == "wall" and self.time_unit == "none":
                refuse("slide.clock", "logical time has no wall clock")
            if self.slide.when is not None:
                Predicate(self.slide.when, monoids)
            check_rollups(self, monoids)
            check_source(self, monoids)
        except InvalidArgument as error:
            raise _Refused(error) from error
        return self

    def _check_parts(self) -> None:
        """Refuse names of parts that stand for something else, or that are no names."""
        taken = dict.fromkeys(("time", "key", "fields", "value", "partials"), "a column of every entry's own")
        taken |= dict.fromkeys(("entries", "lookback", "start", "end"), "an answer's own")
        taken |= dict.fromkeys(self.fields, "a field") | dict.fromkeys(self.aggregates, "an aggregate")
        for i, name in enumerate(self.parts):
            check_name(name, f"keys.{i}")
            if name in taken:
                refuse(f"keys.{i}", f"{name!r} is {taken[name]}; name the part otherwise")
            taken[name] = "another part"


class _Refused(ValueError):
    """Carries an `InvalidArgument` through pydantic, which keeps only ValueErrors."""


def check_name(name: str, path: str) -> None:
    """Raise InvalidArgument where a window, field or aggregate cannot be called so; `path` is where the name is."""
    if not _NAME.fullmatch(name):
        refuse(
            path,
            f"{name[:140]!r} is not a name",
            limit="1 to 128 letters, digits, '_', '-' and '.', not starting with a digit, '-' or '.'",
        )


# ---------------------------------------------------------------- what cannot be had together

_BY_ENTRY = {
    "max_count": "it counts entries",
    "max_gap": "it goes by the gaps between entries",
    "when": "it depends on the entries",
    "adaptive": "it depends on the entries",
}
_NOT_BY_GROUP = {
    "max_count": "it counts the entries of each key, and a group would have to find each of those that leave",
    "max_gap": "each key has sessions of its own, and those of a group are other ones",
    "when": "the condition is about the entries of one key, and says nothing of a group's",
    "adaptive": "each key changes for itself, and its entries leave at times of its own",
}
_NEVER = ("durability", "rollups", "algorithm", "from", "history", "known")
"""What belongs to the window that has the entries."""


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
        refuse("identity", f"no field {name[:140]!r}{instead(name, spec.fields, 'the window has')}")
    if spec.fields[name] not in ("int64", "string"):
        refuse("identity", f"field {name!r} is a {spec.fields[name]}", limit="int64 or string")
    if spec.granularity is not None:
        refuse("identity", "a window with a granularity keeps panes, out of which no single entry can be taken")


def check_nullable(spec: WindowSpec) -> None:
    """Refuse fields that are not there, and those that need a value in every entry."""
    watched = spec.slide.adaptive.field or next(iter(spec.fields)) if spec.slide.adaptive is not None else None
    needed = {spec.identity: "the identity", watched: "the field that slide.adaptive watches"}
    names = spec.nullable or []
    for i, name in enumerate(names):
        if name not in spec.fields:
            refuse(
                "nullable",
                f"no field {name[:140]!r}{instead(name, spec.fields, 'the window has')}",
            )
        if name in names[:i]:
            refuse("nullable", f"{name!r} is in it twice")
        if name in needed:
            refuse("nullable", f"{name!r} is {needed[name]}, which every entry has to have")


def check_adaptive(policy: AdaptivePolicy | None, fields: Mapping[str, str], granularity: str | None) -> None:
    """Check that a window can be adaptive.

    Args:
        policy: None: nothing to check.
        fields: the window's fields and their types.
        granularity: the window's.

    Raises:
        InvalidArgument: the window keeps panes, or has no such numeric field.
    """
    if policy is None:
        return
    if granularity is not None:
        raise InvalidArgument("slide.adaptive reads entries: leave granularity out", field="slide.adaptive")
    field = policy.field or (next(iter(fields)) if len(fields) == 1 else None)
    if field is None:
        raise InvalidArgument("slide.adaptive: say which field", field="slide.adaptive.field")
    if field not in fields:
        raise InvalidArgument(
            f"slide.adaptive: no field {field!r:.80}{instead(field, fields, 'the window has')}",
            field="slide.adaptive.field",
        )
    if fields[field] not in NUMERIC:
        raise InvalidArgument(
            f"slide.adaptive cannot read a {fields[field]} field",
            field="slide.adaptive.field",
            limit=" or ".join(NUMERIC),
        )


def check_rollups(spec: WindowSpec, monoids: Mapping[str, Monoid]) -> None:
    """Refuse groups that the keys do not have, and windows whose groups could not be kept as they are written.

    Raises:
        InvalidArgument: names the part of the spec, and says why.
    """
    if spec.rollups is None:
        return
    _check_parts(spec.rollups, spec.labels)

    for name, why in _NOT_BY_GROUP.items():
        if getattr(spec.slide, name) is not None:
            refuse(f"slide.{name}", f"a window with rollups has none: {why}")
    if spec.idle_expiry is not None:
        refuse(
            "idle_expiry",
            "a window with rollups has none: it takes the entries of single keys out of the middle of their groups",
        )
    if spec.identity is not None:
        refuse(
            "identity",
            "a window with rollups has none: an entry that is retracted would have to be found in each group",
        )
    if spec.order.equal_times != "keep":
        refuse(
            "order.equal_times",
            "in a group, entries of several keys have equal times, and all of them stay",
            limit="keep",
        )
    for name, monoid in monoids.items():
        if not monoid.commutative:
            refuse(
                f"aggregates.{name}",
                f"{monoid.function} depends on the order of entries, and keys have none between "
                "them: a window with rollups cannot have it",
            )


def _check_parts(rollups: Sequence[Sequence[str]], labels: Sequence[str]) -> None:
    if not labels:
        raise InvalidArgument("rollups are groups of keys: say keys, or keyed", field="rollups")
    seen = dict[frozenset[str], int]()
    for i, parts in enumerate(rollups):
        field = f"rollups.{i}"
        for j, part in enumerate(parts):
            if part not in labels:
                refuse(f"{field}.{j}", f"keys have no {part[:140]!r}{instead(part, labels, 'they have')}")
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


def check_source(spec: WindowSpec, monoids: Mapping[str, Monoid]) -> None:
    """Refuse what a window that is fed by another one cannot have; raises InvalidArgument."""
    source = spec.source
    if source is None:
        return
    if spec.granularity != source.granularity:
        refuse("granularity", f"{spec.granularity!r} is not that of from, {source.granularity!r}; leave it out")
    if source.window == spec.name:
        refuse("from.window", f"{spec.name!r} cannot feed itself")
    if spec.order != OrderPolicy():
        refuse("order", "a window that another one feeds cannot refuse what that one has taken; leave it out")
    if spec.slide.until is not None:
        refuse("slide.until", "nobody punctuates a window that another one feeds; leave it out")
    if spec.durability is not None:
        refuse("durability", "it is that of the window that feeds this one, in the same commit; leave it out")
    for name, monoid in monoids.items():
        if not monoid.commutative:
            refuse(
                f"aggregates.{name}",
                f"{monoid.function} depends on the order in which entries arrive, and bulks reach the window sorted",
            )


def opened(document: Any) -> Any:
    """A document with `of` that does not say which fields there are says that it has none, so far."""
    if isinstance(document, Mapping) and document.get("of") is not None and document.get("fields") is None:
        return {**document, "fields": {}}
    return document


def check_open(spec: WindowSpec) -> None:
    """Check what a view cannot have; raises InvalidArgument."""
    if spec.of == spec.name:
        refuse("of", f"{spec.name!r} cannot be a view of itself")
    for name in _NEVER:
        if getattr(spec, "source" if name == "from" else name) is not None:
            refuse(name, f"{spec.name!r} is a view, and {spec.of!r} has the entries; leave it out")
