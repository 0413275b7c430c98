"""Sash's metrics, on a registry that the caller passes: there are no global collectors that tests must clean up.

    sash_build_info{version,engine}                        1
    sash_operation_seconds{operation, window_class}        histogram, seconds: time of a call in the plane; for
                                                           writes with the wait until they are durable
    sash_loop_held_seconds{operation}                      histogram, seconds: each time for which an operation
                                                           holds the event loop
    sash_operation_errors_total{operation, kind}           failed calls, by class of `sash_engine.errors`
    sash_requests_rejected_total{edge, code}               requests that an edge answered with an error
    sash_otlp_points_total{outcome}                        points of OTLP: taken, rejected, or repeated
    sash_rate_limit_hits_total{domain, descriptor, kind}   hits that Envoy asked about, by rule of the file of limits
    sash_ready                                             1 if requests are welcome, as /readyz says
    sash_windows                                           number of windows
    sash_window_entries{window}  sash_window_keys{window}  size of each window now
    sash_entries_total{window, outcome}                    entries by outcome: see `OUTCOMES`, and those that limits
                                                           refused since the process has the window

Each scrape reads the last group from the catalogue, so it costs writes nothing.

An observation costs 0.37 µs: it finds its bucket by bisection and adds to a list. The library's own histogram takes two
locks and walks the bounds: 1.2 µs and more, as much as an insert. Because we use no locks, observations and scrapes
must come from one thread, as the plane's calls do. Counters are our own, too: the library adds a ``_created`` series to
each of its counters, and can be told not to only for a whole process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sash.limits.memory import MemoryBudget
from sash.limits.watches import Watches
from sash.runtime.storage_status import StorageStatus
from sash_engine.windows.answers import WindowInfo

# From one cached query (about a microsecond) to the largest bulk (tenths of a second).
BUCKETS_S: tuple[float, ...] = (
    *(1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4),
    *(1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)

OUTCOMES = ("inserted", "late", "evicted", "duplicates", "ahead", "retracted", "corrected")

# No window can have this name, because names start with a letter or '_'.
OTHERS = "(others)"


class Metrics:
    """All counters of one service.

    Args:
        registry: where they are registered; one `Metrics` per registry.
        version: of this service, for ``sash_build_info``.
        engine: how the engine runs, for ``sash_build_info``.
        windows_labelled_max: number of windows with their own series. All others share the series
            ``window="(others)"``, which limits the size of a scrape.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        version: str = "unknown",
        windows_labelled_max: int = 1000,
        engine: str = "unknown",
    ) -> None:
        self._latencies = _Histogram(
            "sash_operation_seconds",
            "Seconds that operations take, by class of window; writes until they are durable.",
            ("operation", "window_class"),
        )
        self._held = _Histogram(
            "sash_loop_held_seconds", "Seconds that operations hold the event loop at a time.", ("operation",)
        )
        self._labelled_max = windows_labelled_max
        self._errors = _Counter(
            "sash_operation_errors", "Calls that ended with an error, by kind of error.", ("operation", "kind")
        )
        self._rejected = _Counter(
            "sash_requests_rejected", "Requests that an edge answered with an error, by code.", ("edge", "code")
        )
        self._points = _Counter(
            "sash_otlp_points", "Points of metrics that came by OTLP, by what became of them.", ("outcome",)
        )
        self._hits = _Counter(
            "sash_rate_limit_hits",
            "Hits that Envoy asked about, by rule: `total`, and of these `within_limit`, `near_limit` (beyond four "
            "fifths of it), `over_limit`, `shadow_mode` (over a limit that refuses nothing).",
            ("domain", "descriptor", "kind"),
        )
        build = GaugeMetricFamily("sash_build_info", _BUILD, labels=["version", "engine"])
        build.add_metric([version, engine], 1)
        self._ready = _Read(lambda: _of_readiness(None))
        self._windows = _Read(lambda: _of_windows((), windows_labelled_max))
        self._storage, self._memory, self._watches = _Read(), _Read(), _Read()
        for collector in (
            *(_Read(lambda: [build]), self._ready, self._latencies, self._held, self._errors, self._rejected),
            *(self._points, self._hits, self._windows, self._storage, self._memory, self._watches),
        ):
            registry.register(collector)

    def observe(self, operation: str, window_class: str, seconds: float) -> None:
        """Count one call of `operation` on a window of `window_class` (each of few distinct texts)."""
        self._latencies.observe(seconds, operation, window_class)

    def observe_held(self, operation: str, seconds: float) -> None:
        """Count one slice of `operation`, which held the event loop."""
        self._held.observe(seconds, operation)

    def count_error(self, operation: str, kind: str) -> None:
        """Count one call of `operation` that failed; `kind` is the exception's class name."""
        self._errors.count(operation, kind)

    def count_rejected(self, edge: str, code: str) -> None:
        """Count one request that `edge` ("grpc", "rest", "prometheus" or "otlp") answered with the error `code`."""
        self._rejected.count(edge, code)

    def count_points(self, taken: int, rejected: int, repeated: int) -> None:
        """Count the points of one request of OTLP, by what became of them."""
        for outcome, points in (("taken", taken), ("rejected", rejected), ("repeated", repeated)):
            self._points.count(outcome, count=points)

    def count_hits(self, domain: str, descriptor: str, kind: str, hits: int) -> None:
        """Count hits of Envoy's requests, of one rule of the file of limits."""
        self._hits.count(domain, descriptor, kind, count=hits)

    def watch(self, windows: Callable[[], Iterable[WindowInfo]]) -> None:
        """Make each scrape call `windows` and report their sizes."""
        self._windows.read = lambda: _of_windows(windows(), self._labelled_max)

    def watch_ready(self, not_ready: Callable[[], str | None]) -> None:
        """Make each scrape report whether the service is ready: `not_ready` returns None."""
        self._ready.read = lambda: _of_readiness(not_ready())

    def watch_storage(self, storage: Callable[[], StorageStatus | None]) -> None:
        """Make each scrape call `storage` and report its state, if there is one."""
        self._storage.read = lambda: _of_storage(storage())

    def watch_memory(self, memory: MemoryBudget) -> None:
        """Make each scrape report the memory in use."""
        self._memory.read = lambda: _of_memory(memory)

    def watch_watches(self, watches: Watches) -> None:
        """Make each scrape report the number of watches."""
        self._watches.read = lambda: _of_watches(watches)


_BUILD = "1, with the version of Sash and how its engine runs as labels."


class _Read(Collector):
    """Reports at each scrape what is then so.

    Args:
        read: returns it.
    """

    def __init__(self, read: Callable[[], Iterable[Metric]] = tuple) -> None:
        self.read = read

    def collect(self) -> Iterable[Metric]:
        return self.read()


class _Counter(Collector):
    """A counter with labels."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._rows: dict[tuple[str, ...], int] = {}

    def count(self, *values: str, count: int = 1) -> None:
        self._rows[values] = self._rows.get(values, 0) + count

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in sorted(self._rows.items()):
            family.add_metric(values, count)
        yield family


class _Histogram(Collector):
    """A histogram with labels: one list of counts and a sum for each combination of their values."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._rows: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, seconds: float, *values: str) -> None:
        row = self._rows.get(values)
        if row is None:
            row = self._rows[values] = ([0] * (len(BUCKETS_S) + 1), [0.0])
        row[0][bisect_left(BUCKETS_S, seconds)] += 1
        row[1][0] += seconds

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, (counts, total) in sorted(self._rows.items()):
            below, buckets = 0, []
            for bound, count in zip((*BUCKETS_S, float("inf")), counts, strict=True):
                below += count
                buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(below)))
            family.add_metric(list(values), buckets, total[0])
        yield family


def _of_readiness(problem: str | None) -> Iterator[Metric]:
    text = "1 if requests are welcome, else 0; `/readyz` says why."
    yield GaugeMetricFamily("sash_ready", text, value=float(problem is None))


def _of_storage(found: StorageStatus | None) -> Iterator[Metric]:
    """The state of the tier, the journal and the cache."""
    if found is None:
        return
    up = GaugeMetricFamily("sash_tier_up", "1 if the tier takes writes, else 0.", labels=["tier"])
    up.add_metric([found.tier], float(found.error is None))
    yield up
    for name, text, known in (
        ("sash_tier_used_bytes", "Bytes in use in the tier.", found.used_bytes),
        ("sash_tier_limit_bytes", "Bytes in use at which new entries are refused.", found.limit_bytes),
        ("sash_tier_pending_bytes", "Bytes of writes that wait for a commit.", found.pending_bytes),
        ("sash_journal_groups", "Groups of the journal that a recovery would read.", found.journal_groups),
        ("sash_cache_bytes", "Bytes of stored blocks in memory.", found.cache_bytes),
    ):
        if known is not None:
            yield GaugeMetricFamily(name, text, value=known)
    for name, text, value in (
        ("sash_tier_commits", "Commits to the tier.", found.commits),
        ("sash_journal_records", "Writes committed to the journal.", found.records),
        ("sash_checkpoints", "Images of windows that were stored.", found.checkpoints),
        ("sash_damaged_values", "Stored values that were found damaged or missing.", found.damaged),
        ("sash_cache_hits", "Stored blocks that were needed, and were in memory.", found.cache_hits),
        ("sash_cache_misses", "Stored blocks that were needed, and were read from the tier.", found.cache_misses),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _of_memory(memory: MemoryBudget) -> Iterator[Metric]:
    text = "Bytes of memory in use, by part; `rest` is the windows and the program."
    parts = GaugeMetricFamily("sash_memory_bytes", text, labels=["part"])
    for part, count in memory.parts().items():
        parts.add_metric([part], count)
    yield parts
    text = "Bytes of memory that the service may use; new entries are refused at nine tenths of it."
    yield GaugeMetricFamily("sash_memory_limit_bytes", text, value=memory.limit_bytes)


def _of_watches(watches: Watches) -> Iterator[Metric]:
    yield GaugeMetricFamily("sash_watched_questions", "Different questions that are watched.", value=watches.questions)
    text = "How much later than it was due the last answer of a watch was computed."
    yield GaugeMetricFamily("sash_watch_late_seconds", text, value=watches.late_s)
    yield CounterMetricFamily("sash_watch_looks", "Answers of watches that were computed.", value=watches.looks)


def _of_windows(windows: Iterable[WindowInfo], labelled_max: int) -> Iterator[Metric]:
    """The sizes of windows."""
    rows: dict[str, list[int]] = {}
    count = 0
    for window in windows:
        count += 1
        name = window.spec.name if count <= labelled_max else OTHERS
        counts = window.counts
        found = [window.entries, window.keys, *(getattr(counts, outcome) for outcome in OUTCOMES), window.refused]
        rows[name] = [a + b for a, b in zip(rows.get(name, [0] * len(found)), found, strict=True)]
    yield GaugeMetricFamily("sash_windows", "How many windows there are.", value=count)
    entries = GaugeMetricFamily("sash_window_entries", "How many entries a window has now.", labels=["window"])
    keys = GaugeMetricFamily("sash_window_keys", "How many keys of a window have entries now.", labels=["window"])
    total = CounterMetricFamily(
        "sash_entries", "What became of the entries that a window was sent.", labels=["window", "outcome"]
    )
    for name, row in rows.items():
        entries.add_metric([name], row[0])
        keys.add_metric([name], row[1])
        for outcome, amount in zip((*OUTCOMES, "refused"), row[2:], strict=True):
            total.add_metric([name, outcome], amount)
    yield entries
    yield keys
    yield total
