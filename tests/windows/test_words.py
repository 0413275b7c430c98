"""What is wrong with a spec or a setting is said in words that need no knowledge of what checks it."""

import re

import pytest

from sash.settings import load_settings
from sash_engine.errors import InvalidArgument
from sash_engine.windows.spec.window import WindowSpec

COUNT = {"n": {"function": "count"}}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"aggregates": {}}, "aggregates must have at least 1"),
        ({"aggregates": []}, "aggregates must be a mapping"),
        ({"aggregates": {"n": {}}}, "aggregates.n.function is missing"),
        ({"aggregates": {3: COUNT["n"]}}, "aggregates.3 must be text"),
        ({"fields": {f"f{i}": "int64" for i in range(65)}}, "fields must have at most 64"),
        ({"fields": {"a": "text"}}, "fields.a must be 'float64', 'int64', 'string' or 'bool'"),
        ({"slide": {"max_count": 0}}, "slide.max_count must be at least 1"),
        ({"slide": {"max_count": 2**63}}, "slide.max_count must be at most 4,611,686,018,427,387,904"),
        ({"slide": {"max_count": 1.5}}, "slide.max_count must be an integer"),
        ({"slide": 7}, "slide must be a mapping"),
        ({"keyed": "yes"}, "keyed must be true or false"),
        ({"name": 1}, "name must be text"),
        ({"nome": "x"}, "nome is no key that is known here"),
    ],
)
def test_a_spec(wrong, says):
    with pytest.raises(InvalidArgument) as refused:
        WindowSpec.parse({"name": "w", "aggregates": COUNT} | wrong)
    assert refused.value.message == says
    assert refused.value.field == says.split()[0]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("GRPC_PORT", "x", "must be an integer"),
        ("GRPC_PORT", "70000", "must be at most 65,535"),
        ("SHUTDOWN_GRACE_S", "soon", "must be a number"),
        ("LOG_LEVEL", "loud", "must be 'debug', 'info', 'warning' or 'error'"),
        ("HOST", "", "must have 1 or more characters"),
        ("REDIS_PREFIX", "a b", "must match ^[A-Za-z0-9_.-]{1,64}$"),
        ("DATA_MAX_BYTES", "1KiB", "must be at least 1,048,576"),
        *[
            (
                "CACHE_BYTES",
                size,
                f"must be a size, in bytes (268435456) or in KiB, MiB, GiB or TiB (256MiB), not '{size}'",
            )
            for size in ("", "much", "-1", "256MB", "1e3", "0.0001KiB", "1 GiB 1", "٣")
        ],
    ],
)
def test_a_setting(monkeypatch, name, value, says):
    monkeypatch.setenv(f"SASH_{name}", value)
    with pytest.raises(InvalidArgument) as refused:
        load_settings()
    assert refused.value.message == f"SASH_{name} {says}"
    assert refused.value.field == name.lower()
    assert not re.search(r"[Ii]nput|pydantic|validation", refused.value.message)


@pytest.mark.parametrize(
    ("text", "size"),
    [("268435456", 2**28), ("256MiB", 2**28), ("256 mib", 2**28), ("1GiB", 2**30), ("1.5KiB", 1536), ("2TiB", 2**41)],
)
def test_sizes_have_units(monkeypatch, text, size):
    monkeypatch.setenv("SASH_CACHE_BYTES", text)
    assert load_settings().cache_bytes == size
