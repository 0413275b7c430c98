"""Metrics of windows: which names they have, and what each one stands for.

    window:aggregate    the aggregate over all that the window has at a time (of a key)
    window:field        the entries of a numeric field, as samples
    window:field:raw    the same, where an aggregate has the field's name

The names of windows, aggregates and fields have no colon, so a name stands for one thing. A window whose time unit is
`none` has no metrics, because its times are no times of a clock. Nor has one with a part that PromQL gives another
meaning (`RESERVED`): such a part could call its series by the name of another window's metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sash.promql.values import LOOKBACK, NAME
from sash_engine.errors import InvalidArgument, NotFound
from sash_engine.monoids import Monoid
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.labels import join, split
from sash_wire.nulls import is_mark

KEY = "key"
"""The label of a window whose keys are one string."""

RESERVED = frozenset((NAME, LOOKBACK))
"""Names that a label of a key cannot have."""

_NUMBERS = (float, int, bool)
_FIELD_TYPES = ("float64", "int64", "bool")
_CACHED_MAX = 4096


@dataclass(frozen=True)
class Metric:
    """One metric of a window.

    Args:
        name: as PromQL says it.
        spec: the window's.
        aggregate: its name; None: the metric is a field.
        field: that the aggregate reads, or that the metric is; None: the aggregate reads none or several.
        monoid: of the aggregate.
    """

    name: str
    spec: WindowSpec
    aggregate: str | None
    field: str | None
    monoid: Monoid | None


def labels_of(spec: WindowSpec, key: str) -> Mapping[str, str]:
    """The labels of a key: its parts, or `key`. As in Prometheus, one whose value is empty is not there."""
    if not spec.parts:
        return {KEY: key}
    parts = zip(spec.parts, split(key, len(spec.parts)), strict=True)
    return {name: value for name, value in parts if value}


def key_of(spec: WindowSpec, equal: Callable[[str], str | None]) -> str | None:
    """The key that matchers name; None where they leave a part open.

    Args:
        equal: returns the value that a label must have, or None.
    """
    values = [value for name in spec.labels if (value := equal(name)) is not None]
    if len(values) < len(spec.labels):
        return None
    return join(values) if spec.parts else values[0] or None


def written_key(spec: WindowSpec, labels: Mapping[str, str], label: str) -> str:
    """The key of a series whose samples are written: its labels are the parts, or one of them is the key.

    Args:
        label: that has a key without parts.

    Raises:
        InvalidArgument: the series has no such label.
    """
    if spec.parts:
        return join([labels.get(name, "") for name in spec.parts])
    key = labels.get(label, "")
    if not key:
        raise InvalidArgument(f"window {spec.name!r} is keyed, and a series has no label {label[:80]!r}", field=label)
    return key


class MetricNames:
    """The metrics of specs, each made once."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[WindowSpec, dict[str, Metric]]] = {}

    def of(self, spec: WindowSpec) -> dict[str, Metric]:
        """The metrics of a window, by name."""
        found = self._made.get(spec.name)
        if found is None or found[0] is not spec:
            if len(self._made) >= _CACHED_MAX:
                self._made.clear()
            found = self._made[spec.name] = (spec, metrics_of(spec))
        return found[1]

    def named(self, name: str, specs: Any) -> Metric | None:
        """The metric of a name; None where there is none.

        Args:
            specs: returns a window's spec by its name, or raises NotFound.
        """
        window, colon, _ = name.partition(":")
        if not colon:
            return None
        try:
            return self.of(specs(window)).get(name)
        except NotFound:
            return None


def metrics_of(spec: WindowSpec) -> dict[str, Metric]:
    """Return the metrics of a window by name: those of its aggregates that are numbers, then those of its fields."""
    found = dict[str, Metric]()
    if spec.time_unit == "none" or not RESERVED.isdisjoint(spec.parts):
        return found
    for aggregate, (monoid, columns) in spec.monoids().items():
        if monoid.answer in _NUMBERS:
            name = f"{spec.name}:{aggregate}"
            own = [column for column in columns if not is_mark(column)]
            field = own[0] if len(own) == 1 and own[0] != "time" else None
            found[name] = Metric(name, spec, aggregate, field, monoid)
    for field, kind in spec.fields.items():
        if kind in _FIELD_TYPES:
            name = f"{spec.name}:{field}" + (":raw" if field in spec.aggregates else "")
            found[name] = Metric(name, spec, None, field, None)
    return found
