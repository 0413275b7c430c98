"""The collectors by themselves."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sash.runtime.metrics import BUCKETS_S, Metrics
from sash_engine.windows.answers import Counts


def samples(registry):
    """By name and the values of the labels, these in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_observations_fall_into_their_buckets():
    """A bucket holds what is at most its bound, as Prometheus has it; the last one holds everything."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for seconds in (1e-6, 1.1e-6, 0.001, 2.5, 100.0):
        metrics.observe("insert", "plain", seconds)
    found = samples(registry)

    def below(bound):
        return found["sash_operation_seconds_bucket", bound, "insert", "plain"]

    assert [below("1e-06"), below("2.5e-06"), below("0.001"), below("2.5"), below("+Inf")] == [1, 2, 3, 4, 5]
    assert found["sash_operation_seconds_count", "insert", "plain"] == 5
    assert abs(found["sash_operation_seconds_sum", "insert", "plain"] - 102.5010021) < 1e-9
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_windows_beyond_the_labelled_ones_share_series():
    registry = CollectorRegistry()
    metrics = Metrics(registry, windows_labelled_max=2)

    def window(i):
        counts = Counts(inserted=10 * i, late=i, duplicates=2 * i, ahead=3 * i)
        return SimpleNamespace(spec=SimpleNamespace(name=f"w{i}"), entries=i, keys=1, counts=counts, refused=i)

    metrics.watch(lambda: [window(i) for i in range(5)])
    found = samples(registry)
    assert found["sash_windows",] == 5
    assert [found["sash_window_entries", name] for name in ("w0", "w1", "(others)")] == [0, 1, 2 + 3 + 4]
    assert found["sash_entries_total", "inserted", "(others)"] == 90
    assert found["sash_entries_total", "duplicates", "(others)"] == 18
    assert found["sash_entries_total", "ahead", "(others)"] == 27
    assert [found["sash_entries_total", "refused", name] for name in ("w0", "w1", "(others)")] == [0, 1, 9]
    assert ("sash_window_entries", "w2") not in found


def test_nothing_doubles_the_series():
    """Counters are one series each, and the version is there once."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, version="1.2.3", engine="compiled")
    for _ in range(2):
        metrics.count_error("insert", "NotFound")
    metrics.count_rejected("rest", "404")
    found = samples(registry)
    assert found["sash_operation_errors_total", "NotFound", "insert"] == 2
    assert found["sash_build_info", "compiled", "1.2.3"] == 1
    assert not any(name[0].endswith("_created") for name in found)


def test_two_services_do_not_share_counts():
    first, second = CollectorRegistry(), CollectorRegistry()
    Metrics(first).count_rejected("rest", "400")
    Metrics(second)
    assert samples(first)["sash_requests_rejected_total", "400", "rest"] == 1
    assert not any(name[0] == "sash_requests_rejected_total" for name in samples(second))
