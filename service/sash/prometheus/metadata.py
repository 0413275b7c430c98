"""Names of metrics, labels and their values, and which series there are.

Windows have no index by time: `start` and `end` are taken, and series are those of the windows as they are now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sash.limits.memory import MemoryBudget
from sash.plane import Plane
from sash.prometheus.names import Metric, MetricNames
from sash.prometheus.requests import Parameters
from sash.prometheus.series import Selected, Selectors
from sash.promql.errors import BadData
from sash.promql.matchers import Matchers
from sash.promql.parsing import parsed_selector
from sash.promql.values import NAME, SERIES_MAX, Room
from sash_engine.errors import NotFound, PermissionDenied
from sash_engine.windows.spec.window import WindowSpec

_SELECTORS_MAX = 20
_ALL = Matchers([[]], None)
_CUT = "results truncated due to limit"

Some = tuple[list[Any], list[str]]
"""An answer, and warnings."""


class Metadata:
    """Answers what there is.

    Args:
        plane: knows the windows and their keys.
        names: the metrics of all windows.
        memory: what they may take.
    """

    def __init__(self, plane: Plane, names: MetricNames, memory: MemoryBudget) -> None:
        self._plane = plane
        self._names = names
        self._memory = memory

    async def labels(self, given: Parameters) -> Some:
        """The names of labels, of all metrics or of those that match."""
        found = {NAME} if not given.all("match[]") else set()
        if given.all("match[]"):
            async for selected in self._selected(given, most=1):
                found |= {NAME, *selected.metric.spec.labels}
        else:
            for spec in self._specs():
                if self._names.of(spec):
                    found.update(spec.labels)
        return _some(sorted(found), given)

    async def values(self, name: str, given: Parameters) -> Some:
        """The values of a label, of all series or of those that match."""
        found = set[str]()
        if name == NAME and not given.all("match[]"):
            for spec in self._specs():
                found.update(self._names.of(spec))
            return _some(sorted(found), given)
        windows = set[str]()
        async for selected in self._selected(given, name):
            if name == NAME:
                found.add(selected.metric.name)
            elif name in selected.metric.spec.labels and selected.metric.spec.name not in windows:
                if not given.all("match[]"):
                    windows.add(selected.metric.spec.name)  # all metrics of a window have the same keys
                found.update(label[name] for label in selected.labels() if name in label)
            if len(found) > _most(given):
                break
        return _some(sorted(found), given)

    async def series(self, given: Parameters) -> Some:
        """The labels of all series that match."""
        found = list[Any]()
        seen = set[frozenset[tuple[str, str]]]()
        async for selected in self._selected(given):
            for labels in selected.labels():
                if (each := frozenset(labels.items())) not in seen:
                    seen.add(each)
                    found.append(labels)
            if len(found) > _most(given):
                break
        return _some(found, given)

    def metadata(self, given: Parameters) -> dict[str, list[dict[str, str]]]:
        """The type and help text of each metric."""
        name, limit = given.text("metric", ""), given.whole("limit")
        found = dict[str, list[dict[str, str]]]()
        for spec in self._specs():
            for metric in self._names.of(spec).values():
                if name in ("", metric.name):
                    found[metric.name] = [{"type": "gauge", "help": _help(metric), "unit": ""}]
                if limit is not None and len(found) >= limit:
                    return found
        return found

    def selectors(self, given: Parameters) -> list[str]:
        """The selectors of a request, each once.

        Raises:
            BadData: they are too many.
        """
        texts = list(dict.fromkeys(given.all("match[]")))
        if len(texts) > _SELECTORS_MAX:
            raise BadData(
                f'invalid parameter "match[]": {len(texts)} selectors; at most {_SELECTORS_MAX} are taken',
                field="match[]",
                limit=f"{_SELECTORS_MAX} selectors",
            )
        return texts

    async def _selected(self, given: Parameters, label: str = "", most: int | None = None) -> AsyncIterator[Selected]:
        """The series that a request means, of one metric after the other.

        Args:
            label: that they have, where the request has no selectors.
            most: series of a metric; None: one more than may be answered, which says that there are more.
        """
        selectors = Selectors(self._plane, self._names, Room(self._memory))
        most = _most(given) + 1 if most is None else most
        texts = self.selectors(given)
        for matchers in [Matchers.of(parsed_selector(text)) for text in texts]:
            for metric in await selectors.metrics(matchers):
                found = await selectors.of_metric(metric, matchers, most)
                if found.count:
                    yield found
        if not texts:
            # One metric of each window has all labels of its keys.
            for spec in self._specs():
                first = next(iter(self._names.of(spec).values()), None)
                if first is not None and label in spec.labels:
                    yield await selectors.of_metric(first, _ALL, most)

    def _specs(self) -> list[WindowSpec]:
        """The windows that the caller may read."""
        found = list[WindowSpec]()
        for info in self._plane.list():
            if info.problem is None:
                try:
                    found.append(self._plane.spec(info.spec.name, "query"))
                except (PermissionDenied, NotFound):
                    continue
        return found


def _most(given: Parameters) -> int:
    limit = given.whole("limit")
    return SERIES_MAX if limit is None else min(limit, SERIES_MAX)


def _some(found: list[Any], given: Parameters) -> Some:
    most = _most(given)
    return found[:most], [_CUT] if len(found) > most else []


def _help(metric: Metric) -> str:
    window = metric.spec.name
    if metric.aggregate is None:
        return f"The entries of field {metric.field} of window {window}."
    assert metric.monoid is not None
    of = "" if metric.field is None else f" of {metric.field}"
    age = metric.spec.slide.max_age
    over = "all entries" if age is None else f"the last {age}"
    return f"{metric.monoid.function}{of} over {over} of window {window}."
