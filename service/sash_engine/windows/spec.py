"""A window's spec: one validated document, the same in YAML, JSON and protobuf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import FieldType, Monoid
from sash_engine.windows.adaptive_policy import check_adaptive
from sash_engine.windows.aggregate_spec import monoid_of
from sash_engine.windows.cascade_spec import Source, check_source
from sash_engine.windows.policies import AggregateSpec, Document, OrderPolicy, SlidePolicy, ticks_or_text
from sash_engine.windows.predicate import Predicate
from sash_engine.windows.rollup_spec import MAX_ROLLUPS, check_rollups
from sash_engine.windows.spec_text import read_yaml
from sash_engine.windows.view_spec import check_open, opened
from sash_engine.words import first_wrong
from sash_wire import durations
from sash_wire.durations import NANOSECONDS
from sash_wire.errors import WireError

__all__ = [
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

MAX_FIELDS = 64
MAX_AGGREGATES = 64
MAX_KEY_BYTES = 512
MAX_PARTS = 16
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


class WindowSpec(Document):
    """A window's spec. The page Spec of the documentation has one in YAML."""

    name: str
    time_unit: TimeUnit = "us"
    keyed: bool = Field(False, description="Whether entries have keys. `keys` implies it.")
    keys: list[str] | None = Field(
        None, min_length=1, max_length=MAX_PARTS, description="The names of the parts of keys: `[airport, carrier]`."
    )
    fields: dict[str, FieldType] = Field({"value": "float64"}, max_length=MAX_FIELDS)
    aggregates: dict[str, AggregateSpec] = Field(min_length=1, max_length=MAX_AGGREGATES)
    slide: SlidePolicy = SlidePolicy()
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
    algorithm: str | None = Field(
        None, description="The name of the algorithm that the window runs on. Without it, the columnar engine."
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
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            cause = error.errors(include_url=False)[0].get("ctx", {}).get("error")
            if isinstance(cause, _Refused):
                raise cause.error from None
            path, wrong = first_wrong(error)
            raise InvalidArgument(f"{path or 'spec'} {wrong}", field=path or "spec") from None
        except UnicodeError:  # pydantic reports it of a value, and fails over a name
            raise InvalidArgument("spec must be valid Unicode", field="spec") from None

    @classmethod
    def from_yaml(cls, text: str) -> WindowSpec:
        """Validate a YAML (or JSON) text; raises as `parse` and `read_yaml`."""
        return cls.parse(read_yaml(text))

    def document(self) -> dict[str, Any]:
        """The spec as plain JSON values, defaults left out where nothing was said."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True, exclude_unset=self.of is not None)

    @property
    def is_open(self) -> bool:
        """Whether it says `of`, and leaves the rest to the window that this names; see `view_spec.completed`."""
        return self.of is not None and not self.fields

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts of a key; none where a key is one text, or there are no keys."""
        return tuple(self.keys or ())

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

    @property
    def max_age_ticks(self) -> int | None:
        """`slide.max_age` in ticks."""
        age = self.slide.max_age
        return None if age is None else parse_duration(age, self.time_unit, "slide.max_age")

    @property
    def max_gap_ticks(self) -> int | None:
        """`slide.max_gap` in ticks."""
        gap = self.slide.max_gap
        return None if gap is None else parse_duration(gap, self.time_unit, "slide.max_gap")

    @property
    def every_ticks(self) -> int | None:
        """`slide.every` in ticks."""
        every = self.slide.every
        return None if every is None else parse_duration(every, self.time_unit, "slide.every")

    @property
    def ahead_ticks(self) -> int | None:
        """`order.ahead` in ticks."""
        ahead = self.order.ahead
        return None if ahead is None else parse_duration(ahead, self.time_unit, "order.ahead")

    @property
    def idle_expiry_ns(self) -> int | None:
        """`idle_expiry` in nanoseconds."""
        idle = self.idle_expiry
        return None if idle is None else parse_duration(idle, "ns", "idle_expiry")

    @property
    def granularity_ticks(self) -> int | None:
        """`granularity` in ticks."""
        granule = self.granularity
        return None if granule is None else parse_duration(granule, self.time_unit, "granularity")

    @property
    def feeds_on(self) -> tuple[str, ...]:
        """The names of windows whose entries this one shows: they feed it, or it is a view of one."""
        names = None if self.source is None else self.source.window, self.of
        return tuple([name for name in names if name is not None])

    def monoids(self) -> dict[str, tuple[Monoid, tuple[str, ...]]]:
        """Build each aggregate: name -> (monoid, the columns it reads: field names, or "time").

        Raises:
            InvalidArgument: an unknown function, field or parameter, or a field of the wrong type.
        """
        return {
            name: monoid_of(f"aggregates.{name}", spec.document, self.fields, self.time_unit)
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
            _ = self.max_age_ticks, self.idle_expiry_ns, self.granularity_ticks
            self._check_ahead()
            self._check_panes()
            check_adaptive(self.slide.adaptive, self.fields, granularity=self.granularity, algorithm=self.algorithm)
            self._check_slide()
            self._check_identity()
            monoids = {name: monoid for name, (monoid, _) in self.monoids().items()}
            if self.slide.clock == "wall" and self.time_unit == "none":
                raise InvalidArgument("slide.clock: logical time has no wall clock", field="slide.clock")
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
                raise InvalidArgument(
                    f"keys.{i}: {name!r} is {taken[name]}; name the part otherwise", field=f"keys.{i}"
                )
            taken[name] = "another part"

    def _check_ahead(self) -> None:
        """Refuse a guard against the future that has no wall time to go by, and half a guard."""
        if self.order.ahead is not None:
            if self.time_unit == "none":
                raise InvalidArgument("order.ahead: logical time has no wall clock", field="order.ahead")
            _ = self.ahead_ticks
        elif self.order.too_far_ahead is not None:
            raise InvalidArgument(
                "order.too_far_ahead: say in order.ahead how far that is", field="order.too_far_ahead"
            )

    def _check_panes(self) -> None:
        """Refuse what needs the entries themselves, where only panes are kept."""
        if self.granularity is None:
            return
        why = "a window with a granularity keeps panes, and no entries"
        if self.slide.max_count is not None:
            raise InvalidArgument(f"slide.max_count: {why} that could leave one by one", field="slide.max_count")
        if self.order.equal_times != "keep":
            raise InvalidArgument(
                f"order.equal_times: {why} of equal time that could be told apart",
                field="order.equal_times",
                limit="keep",
            )
        if self.algorithm is not None:
            raise InvalidArgument(
                f"algorithm: {why}, and {self.algorithm} takes entries; leave one of the two out", field="algorithm"
            )

    def _check_slide(self) -> None:
        """Refuse steps that no `max_age` moves in, and sessions on wall time."""
        age, every = self.max_age_ticks, self.every_ticks
        if every is not None and age is None:
            raise InvalidArgument("slide.every: say in slide.max_age what moves in steps", field="slide.every")
        if every is not None and age is not None and every > age:
            raise InvalidArgument(
                f"slide.every: steps of {self.slide.every} are longer than the window",
                field="slide.every",
                limit=f"at most {self.slide.max_age}",
            )
        if self.max_gap_ticks is not None and self.slide.clock == "wall":
            raise InvalidArgument(
                "slide.max_gap: sessions go by the times of entries: leave slide.clock out", field="slide.max_gap"
            )

        if self.slide.until is not None:
            for name in ("max_count", "max_gap", "when", "adaptive"):
                if getattr(self.slide, name) is not None:
                    raise InvalidArgument(
                        f"slide.until: entries leave when they are final, and {name} evicts others", field="slide.until"
                    )
            if self.slide.clock == "wall":
                raise InvalidArgument("slide.until: now is what punctuate says, or wall time", field="slide.until")

    def _check_identity(self) -> None:
        """Refuse an identity that names no entries, or entries that are not kept."""
        name = self.identity
        if name is None:
            return
        if name not in self.fields:
            raise InvalidArgument(
                f"identity: no field {name[:140]!r}; the window has {', '.join(self.fields)}", field="identity"
            )
        if self.fields[name] not in ("int64", "string"):
            raise InvalidArgument(
                f"identity: field {name!r} is a {self.fields[name]}", field="identity", limit="int64 or string"
            )
        if self.granularity is not None:
            raise InvalidArgument(
                "identity: a window with a granularity keeps panes, out of which no single entry can be taken",
                field="identity",
            )
        if self.algorithm is not None:
            raise InvalidArgument(
                f"identity: {self.algorithm} keeps partials only, out of which no single entry can be taken",
                field="identity",
            )


class _Refused(ValueError):
    """Carries an `InvalidArgument` through pydantic, which keeps only ValueErrors."""

    def __init__(self, error: InvalidArgument) -> None:
        super().__init__(error.message)
        self.error = error


def check_name(name: str, path: str) -> None:
    """Raise InvalidArgument where a window, field or aggregate cannot be called so; `path` is where the name is."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{path}: {name[:140]!r} is not a name",
            field=path,
            limit="1 to 128 letters, digits, '_', '-' and '.', not starting with a digit, '-' or '.'",
        )
