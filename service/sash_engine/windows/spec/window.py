"""A window's spec: one validated document, the same in YAML, JSON and protobuf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.monoids.base import FieldType, Monoid
from sash_engine.steps import finished
from sash_engine.windows.spec.aggregates import monoid_of
from sash_engine.windows.spec.checks import (
    check_adaptive,
    check_ahead,
    check_history,
    check_identity,
    check_known,
    check_nullable,
    check_panes,
    check_slide,
)
from sash_engine.windows.spec.derived import MAX_ROLLUPS, Source, check_open, check_rollups, check_source, opened
from sash_engine.windows.spec.policies import AggregateSpec, Document, OrderPolicy, SlidePolicy, ticks_or_text
from sash_engine.windows.spec.predicate import Predicate
from sash_engine.windows.spec.text import read_yaml
from sash_engine.words import first_wrong
from sash_wire import durations
from sash_wire.durations import NANOSECONDS
from sash_wire.errors import WireError
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
MAX_FIELDS = 64
MAX_AGGREGATES = 64
MAX_KEY_BYTES = 512
MAX_PARTS = 16
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
        description="Deprecated: leave it out. The name of the algorithm that the window runs on, in memory only. "
        "Without it, the columnar engine.",
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
                raise cause.error from None
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
            check_adaptive(self.slide.adaptive, self.fields, granularity=self.granularity, algorithm=self.algorithm)
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

    def __init__(self, error: InvalidArgument) -> None:
        super().__init__(error.message)
        self.error = error


def check_name(name: str, path: str) -> None:
    """Raise InvalidArgument where a window, field or aggregate cannot be called so; `path` is where the name is."""
    if not _NAME.fullmatch(name):
        refuse(
            path,
            f"{name[:140]!r} is not a name",
            limit="1 to 128 letters, digits, '_', '-' and '.', not starting with a digit, '-' or '.'",
        )
