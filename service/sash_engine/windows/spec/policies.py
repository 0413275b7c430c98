"""The parts of a spec: its slide policy, its order policy, and its aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

NO_BOUND = "none"
"""What `order.ahead` says where entries may be as far ahead as they like."""


class Document(BaseModel):
    """A part of a spec: nothing unknown, and nothing of another type. Its validator is built when it is first used."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def ticks_or_text(value: Any) -> Any:
    """A number of ticks as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class AdaptivePolicy(Document):
    """When the mean of a field changes, the entries from before the change leave (ADWIN)."""

    field: str | None = Field(
        None, description="The numeric field to watch. It may be left out where the window has only one."
    )
    delta: float = Field(
        0.002,
        gt=0,
        lt=1,
        description="How probable it may be that entries leave although nothing has changed. A smaller `delta` needs a "
        "clearer change.",
    )
    every: int = Field(
        32, ge=1, le=1_000_000, description="Test a key after so many of its entries on average; 1: after every write."
    )
    range: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="How far two values may be apart. It matters where the values hardly vary, and in small windows: a "
        "change must be clear compared with it.",
    )


class SlidePolicy(Document):
    """Which of the oldest entries of a key leave after each write. An entry leaves if one of the conditions says so."""

    max_count: int | None = Field(None, ge=1, le=2**62, description="Keep the newest `max_count` entries of a key.")
    max_age: Annotated[str, BeforeValidator(ticks_or_text)] | None = Field(
        None, description="Keep entries with `time > now - max_age`. A duration such as `6h`, or ticks."
    )
    max_gap: Annotated[str, BeforeValidator(ticks_or_text)] | None = Field(
        None,
        description="Keep the current session of a key: all entries since the last gap that was longer. A duration "
        "such as `30m`, or ticks.",
    )
    every: Annotated[str, BeforeValidator(ticks_or_text)] | None = Field(
        None,
        description="Only with `max_age`: the window moves in steps of this length, and ends with the step that now is "
        "in. A duration of at most `max_age`, or ticks. With both equal, the window tumbles.",
    )
    until: Literal["punctuation"] | None = Field(
        None,
        description="`punctuation`: now, for `max_age` and lookbacks, is the time that the last `punctuate` named. "
        "Entries up to it are final, and later ones of such a time are late.",
    )
    clock: Literal["event", "wall"] = Field(
        "event",
        description="What now is, for `max_age` and lookbacks. `event`: the key's high-water mark, which is the newest "
        "time that was ever inserted into it. `wall`: wall time; answers then also change while nothing is written.",
    )
    when: str | None = Field(
        None,
        description="A CEL condition over `total` and `old`. The longest run of oldest entries for which it holds "
        "leaves.",
    )
    adaptive: AdaptivePolicy | None = Field(
        None, description="Entries from before a change of a field's mean leave (ADWIN), see below."
    )


class OrderPolicy(Document):
    """How the window treats late, out-of-order and equal-time entries, and entries from the future."""

    out_of_order: Literal["allow", "reject"] = Field(
        "allow",
        description="`allow` inserts entries that are older than the newest time of their key. `reject` refuses a "
        "write that has one.",
    )
    late: Literal["drop", "reject"] = Field(
        "drop", description="`drop` drops late entries and counts them. `reject` refuses a write that has one."
    )
    equal_times: Literal["keep", "first", "last", "reject"] = Field(
        "keep",
        description="Which of a key's entries with the same time stay. `keep`: all, in order of arrival. `first` or "
        "`last`: only that one. `reject` refuses a write that brings a second one.",
    )
    ahead: Annotated[str, BeforeValidator(ticks_or_text)] | None = Field(
        None,
        description="Entries with `time > wall time + ahead` are too far ahead. A duration such as `5m`, or ticks. "
        "One such entry would move its key's now and slide all others out. So a new window in event time that does not "
        "say has `1d`, and rejects them. `none`: there is no bound.",
    )
    too_far_ahead: Literal["drop", "reject"] | None = Field(
        None,
        description="Only with `ahead`. `drop`, the default, drops entries that are too far ahead and counts them. "
        "`reject` refuses a write that has one.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_by_default(cls, document: Any) -> Any:
        """Give a policy with `ahead` its default, so that leaving it out and saying it are the same spec."""
        if not isinstance(document, Mapping) or document.get("ahead") is None:
            return document
        if document["ahead"] == NO_BOUND:
            return {**document, "ahead": None}  # as earlier versions store it; `guarded` sees that it was said
        return document if document.get("too_far_ahead") is not None else {**document, "too_far_ahead": "drop"}


class AggregateSpec(Document):
    """One aggregate: a function, the fields it reads, and its parameters (any further keys)."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    function: str
    field: str | None = None
    returns: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """All keys that were given."""
        named = {"function": self.function, "field": self.field, "returns": self.returns}
        return {key: value for key, value in named.items() if value is not None} | (self.__pydantic_extra__ or {})
