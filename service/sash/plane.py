"""The operations of Sash, once: both edges translate to these and add no meaning of their own.

Every method validates, does its work or raises a `sash.errors.SashError` having changed nothing, and observes
its latency. Nothing here blocks: no I/O, no threads, so an event loop may call it directly.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sash.clock import Clock
from sash.errors import SashError
from sash.metrics import Metrics
from sash.windows.answers import Answer, Series, WindowInfo, WriteResult
from sash.windows.batch import Batch
from sash.windows.catalogue import Catalogue
from sash.windows.spec import WindowSpec
from sash.windows.window import AllKeys

__all__ = ["Plane"]

P = ParamSpec("P")
R = TypeVar("R")


def _observed(
    operation: Callable[Concatenate[Plane, str, P], R],
) -> Callable[Concatenate[Plane, str, P], R]:
    """Observe latency and errors of an operation on the window that its first argument names."""
    name = operation.__name__

    @wraps(operation)
    def observed(self: Plane, window: str, *args: P.args, **kwargs: P.kwargs) -> R:
        start = self._clock.monotonic_s()
        try:
            return operation(self, window, *args, **kwargs)
        except SashError as error:
            self._metrics.count_error(name, type(error).__name__)
            raise
        finally:
            self._metrics.observe(name, self._catalogue.class_of(window), self._clock.monotonic_s() - start)

    return cast("Callable[Concatenate[Plane, str, P], R]", observed)


class Plane:
    """All operations on all windows of one service.

    Args:
        catalogue: the windows.
        metrics: where latencies and counts go.
        clock: measures latencies.
    """

    def __init__(self, catalogue: Catalogue, metrics: Metrics, clock: Clock) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._clock = clock

    def create(self, spec: WindowSpec) -> tuple[WindowInfo, bool]:
        """Create a window; the same spec again changes nothing.

        Returns:
            the window, and whether it is new.

        Raises:
            AlreadyExists: a window of that name has another spec.
            ResourceExhausted: there are as many windows as the settings allow.
        """
        window, created = self._catalogue.create(spec)
        return window.info(), created

    def list(self) -> builtins.list[WindowInfo]:
        """Show all windows, by name."""
        return [window.info() for window in self._catalogue.all()]

    def tidy(self) -> None:
        """Do what time alone brings, to every window; to be called about once a second."""
        for window in self._catalogue.all():
            window.tidy()

    def spec(self, name: str) -> WindowSpec:
        """The spec of a window, for edges that read untyped columns by it; raises NotFound."""
        return self._catalogue.find(name).spec

    @_observed
    def describe(self, name: str) -> WindowInfo:
        """Show one window; raises NotFound."""
        return self._catalogue.find(name).info()

    @_observed
    def delete(self, name: str) -> int:
        """Delete a window; return how many entries it had. Raises NotFound."""
        return self._catalogue.delete(name).info().entries

    @_observed
    def insert(
        self,
        name: str,
        time: int,
        fields: Mapping[str, Any],
        key: str | None = None,
        answer: bool = False,
        lookbacks: Sequence[str | int] = (),
    ) -> WriteResult:
        """Insert one entry, slide, and answer where asked to.

        Args:
            time: ticks, -2^63 < time < 2^63 - 1.
            fields: a Python scalar for every field of the window (float, int, str or bool by its type; an int
                is taken for a float64).
            key: where the window is keyed.
            answer: whether to answer as `query` does for the key afterwards; `lookbacks` are those of that query.
        """
        return self._catalogue.find(name).insert(time, fields, key, answer, lookbacks)

    @_observed
    def bulk_insert(self, name: str, batch: Batch) -> WriteResult:
        """Insert many entries, whole or not at all; they may be in any order."""
        return self._catalogue.find(name).bulk_insert(batch)

    @_observed
    def bulk_evict(self, name: str, time: int, key: str | None = None) -> int:
        """Remove every entry with time <= `time` (of one key, or of all where `key` is None); return how many."""
        return self._catalogue.find(name).bulk_evict(time, key)

    @_observed
    def query(
        self,
        name: str,
        key: str | None = None,
        lookbacks: Sequence[str | int] = (),
        as_of: int | None = None,
        keys: Sequence[str] | AllKeys = (),
        combine: bool = False,
    ) -> builtins.list[Answer]:
        """Answer over the trailing `lookbacks`: as_of - lookback < time <= as_of, each; over everything if none.

        Args:
            key: one key, where the window is keyed; a key that was never written has no entries.
            lookbacks: durations ("5m") or ticks.
            as_of: ticks; where None, the time of each key's newest entry (with `combine`: of the newest of them), or
                wall time if that is the window's clock.
            keys: several keys instead of one, or ALL_KEYS: their answers one after the other, in the order asked for
                (ALL_KEYS: the order of their first entries).
            combine: with `keys`: one answer over the entries of all of them.

        Raises:
            Unsupported: `combine` where an aggregate depends on the order of entries.
        """
        return self._catalogue.find(name).query(key, lookbacks, as_of, keys, combine)

    @_observed
    def range_query(
        self, name: str, start: int, end: int, key: str | None = None, keys: Sequence[str] | AllKeys = ()
    ) -> Answer:
        """Answer over start <= time <= end, of one key or over the entries of several.

        Raises:
            InvalidArgument: start > end.
            Unsupported: several keys where an aggregate depends on the order of entries.
        """
        return self._catalogue.find(name).range_query(start, end, key, keys)

    @_observed
    def series(
        self,
        name: str,
        start: int,
        end: int,
        step: str | int,
        width: str | int | None = None,
        key: str | None = None,
        keys: Sequence[str] | AllKeys = (),
    ) -> Series:
        """Answer over the buckets t <= time < t + width for t = start, start + step, … < end.

        Args:
            step, width: durations or ticks; `width` is `step` where None, and may be larger: then buckets overlap.
            key, keys: as in `range_query`.

        Raises:
            InvalidArgument: start >= end, or more buckets than the limit.
        """
        return self._catalogue.find(name).series(start, end, step, width, key, keys)

    @_observed
    def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates (name -> their document, as in a spec), computed from the entries that are there.

        Raises:
            AlreadyExists: the window has an aggregate of that name with another definition; the same one is fine.
        """
        return self._catalogue.find(name).add_aggregates(aggregates)

    def keys(self, name: str, prefix: str = "", limit: int = 1000) -> builtins.list[str]:
        """Up to `limit` keys that start with `prefix`, in the order of their first entries; raises NotFound."""
        return self._catalogue.find(name).key_names(prefix, limit)
