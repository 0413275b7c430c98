"""Functions of vectors and scalars, by PromQL's names.

Source: Prometheus' documentation of its functions, and its promql/functions.go where that leaves something open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import re2

from sash.promql.errors import Refused
from sash.promql.matchers import compiled, regex_ns
from sash.promql.values import Array, LabelsMade, Vector, listed, merged
from sash_engine.steps import Steps

OF_VALUES: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "sgn": np.sign,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "deg": np.rad2deg,
    "rad": np.deg2rad,
}
"""Functions of each value for itself."""

_DAY_S = 86_400


def _days(seconds: Array) -> Array:
    return np.asarray(np.floor(seconds / _DAY_S).astype("datetime64[D]"))


def _since(unit: str) -> Callable[[Array], Array]:
    """The days since the month, or the year, began; the first is 1."""

    def found(seconds: Array) -> Array:
        days = _days(seconds)
        first = days.astype(f"datetime64[{unit}]").astype("datetime64[D]")
        return np.asarray((days - first).astype(np.float64) + 1)

    return found


def _days_in_month(seconds: Array) -> Array:
    month = _days(seconds).astype("datetime64[M]")
    return np.asarray(((month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")).astype(np.float64))


DATES: Mapping[str, Callable[[Array], Array]] = {
    "minute": lambda seconds: np.floor(seconds / 60) % 60,
    "hour": lambda seconds: np.floor(seconds / 3600) % 24,
    "day_of_week": lambda seconds: (np.floor(seconds / _DAY_S) + 4) % 7,
    "day_of_month": _since("M"),
    "day_of_year": _since("Y"),
    "days_in_month": _days_in_month,
    "month": lambda seconds: _days(seconds).astype("datetime64[M]").astype(np.int64) % 12 + 1.0,
    "year": lambda seconds: _days(seconds).astype("datetime64[Y]").astype(np.int64) + 1970.0,
}
"""Parts of a time in seconds since 1970, in UTC."""

INSTEAD: Mapping[str, str] = {
    "histogram_quantile": "give the window an aggregate `quantile`, which is a metric, or use quantile_over_time",
    "histogram_avg": "give the window an aggregate `mean`",
    "histogram_count": "give the window an aggregate `count`",
    "histogram_sum": "give the window an aggregate `sum`",
    "histogram_fraction": "windows have no native histograms",
    "histogram_stddev": "give the window an aggregate `stddev_population`",
    "histogram_stdvar": "give the window an aggregate `variance_population`",
    "sort_by_label": "use sort",
    "sort_by_label_desc": "use sort_desc",
    "info": "use `* on (…) group_left (…)`",
    "count_values": "give the window an aggregate `histogram` or `frequent_items`, and ask Sash itself",
    "limitk": "use topk",
    "limit_ratio": "use topk",
}
"""What to use where a function is not served."""


def rounded(values: Array, to: Array) -> Array:
    """Round to multiples of a number, halves up."""
    with np.errstate(all="ignore"):
        inverse = 1.0 / to
        return np.floor(values * inverse + 0.5) / inverse


def clamped(vector: Vector, low: Array | None, high: Array | None) -> Vector:
    """Bring values between two bounds; where the lower one is above the upper one, nothing is there."""
    values, there = vector.values, vector.there
    if low is not None:
        values = np.maximum(values, low)
    if high is not None:
        values = np.minimum(values, high)
    if low is not None and high is not None:
        there = there & ~(low > high)
    return vector.with_values(values, there)


def sorted_by_value(vector: Vector, descending: bool) -> Vector:
    """Put the series in the order of their values, NaN last; of an instant query, which alone has an order."""
    values = vector.values[:, 0]
    order = np.lexsort((-values if descending else values, np.isnan(values)))
    found = vector.picked(order)
    found.ordered = True
    return found


_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TEMPLATE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
GROUPS_MAX = 100
"""Groups of a pattern of `label_replace`."""

_STEP_NS, _SERIES_NS, _LABEL_NS, _PART_NS = 1_500_000, 10_000, 600, 300
_MATCH_NS_MAX = 20_000_000
"""One match cannot be interrupted. One of a key never takes so long: it has 512 bytes at most."""

_LABELS_PER_STEP, _SERIES_LABELS = 10_000, 20
"""Labels that one step of `label_join` looks at: 1 ms; a series takes as long as so many."""


def replaced(vector: Vector, into: str, template: str, source: str, pattern: str) -> Steps[Vector]:
    """As `label_replace`: where a label matches a pattern whole, set another one by a template of its groups."""
    _check_label("label_replace", into)
    try:
        regex = compiled(pattern)
    except re2.error:
        raise Refused(f"invalid regular expression in label_replace(): {pattern[:80]!r}", field="query") from None
    if regex.groups > GROUPS_MAX:
        raise Refused(
            f"label_replace(): the regular expression has {regex.groups} groups; {GROUPS_MAX} are allowed",
            field="query",
            limit=f"{GROUPS_MAX} groups",
        )
    parts = _parts(template, regex)
    yield
    made, work_ns = LabelsMade("label_replace()"), 0.0
    for each in vector.labels:
        found, value = dict(each), each.get(source, "")
        match_ns = regex_ns(regex, value)
        if match_ns > _MATCH_NS_MAX:
            raise Refused(
                f"label_replace(): the regular expression is too hard for a label of {len(value):,} characters",
                field="query",
                limit=f"{_MATCH_NS_MAX // 1_000_000} ms",
            )
        work_ns += _SERIES_NS + _LABEL_NS * len(each) + match_ns
        if (match := regex.fullmatch(value)) is not None:
            work_ns += _PART_NS * len(parts)
            made.check(each, into, sum(len(part) if isinstance(part, str) else _length(match, part) for part in parts))
            texts = (part if isinstance(part, str) else match.group(part) or "" for part in parts)
            _set(found, into, "".join(texts))
        made.append(found)
        if work_ns > _STEP_NS:
            yield
            work_ns = 0.0
    return (yield from merged(Vector(made.labels, vector.values, vector.there)))


def joined(vector: Vector, into: str, between: str, sources: Sequence[str]) -> Steps[Vector]:
    """As `label_join`: set a label to the values of others."""
    _check_label("label_join", into)
    sources = listed("label_join()", sources)
    made, work = LabelsMade("label_join()"), 0
    for each in vector.labels:
        found, texts = dict(each), [each.get(name, "") for name in sources]
        made.check(each, into, sum(map(len, texts)) + len(between) * max(len(texts) - 1, 0))
        _set(found, into, between.join(texts))
        made.append(found)
        work += _SERIES_LABELS + len(sources) + len(each)
        if work > _LABELS_PER_STEP:
            yield
            work = 0
    return (yield from merged(Vector(made.labels, vector.values, vector.there)))


def _length(match: Any, group: int) -> int:
    start, end = match.span(group)
    return int(end - start)


def _parts(template: str, regex: Any) -> list[str | int]:
    """The texts and groups of a template, as Go's `Regexp.Expand` reads it: a group that is not there is empty."""
    found, at = list[str | int](), 0
    groups = regex.groupindex
    for each in _TEMPLATE.finditer(template):
        found.append(template[at : each.start()])
        at = each.end()
        name = each[1] or each[2]
        if name is None:
            found.append("$")
        elif name.isdecimal():
            found.append(int(name) if len(name) <= 3 and int(name) <= regex.groups else "")
        else:
            found.append(groups.get(name, ""))
    found.append(template[at:])
    return [part for part in found if part != ""]


def _set(labels: dict[str, str], name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _check_label(function: str, name: str) -> None:
    if not _LABEL.fullmatch(name):
        raise Refused(f"invalid destination label name in {function}(): {name[:80]}", field="query")
