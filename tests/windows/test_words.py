"""What is wrong with a spec or a setting is said in words that need no knowledge of what checks it."""

import re

import pytest

from sash.durability.catalogue import Catalogue
from sash.settings import load_settings
from sash_engine.errors import AlreadyExists
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.refused import refused

COUNT = {"n": {"function": "count"}}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"aggregates": {}}, "aggregates must have at least 1"),
        ({"aggregates": []}, "aggregates must be a mapping"),
        ({"aggregates": {"n": {}}}, "aggregates.n.function is missing"),
        (
            {"aggregates": {"n": {"functoin": "count"}}},
            "aggregates.n.function is missing; 'functoin' is unknown: is it misspelt?",
        ),
        ({"aggregates": {"n": {"field": "n", "returns": "n"}}}, "aggregates.n.function is missing"),
        ({"aggregates": {3: COUNT["n"]}}, "aggregates.3 must be text"),
        ({"fields": {f"f{i}": "int64" for i in range(65)}}, "fields must have at most 64"),
        ({"fields": {"a": "text"}}, "fields.a must be 'float64', 'int64', 'string' or 'bool'"),
        ({"slide": {"max_count": 0}}, "slide.max_count must be at least 1"),
        ({"slide": {"max_count": 2**63}}, "slide.max_count must be at most 4,611,686,018,427,387,904"),
        ({"slide": {"max_count": 1.5}}, "slide.max_count must be an integer"),
        ({"slide": 7}, "slide must be a mapping"),
        ({"keyed": "yes"}, "keyed must be true or false"),
        ({"name": 1}, "name must be text"),
        ({"nome": "x"}, "nome is unknown; did you mean 'name'?"),
        ({"xyzzy": "x"}, "xyzzy is unknown"),
        ({"slide": {"max_agee": "1h"}}, "slide.max_agee is unknown; did you mean 'max_age'?"),
        ({"x" * 100_000: 1}, "x" * 100_000 + " is unknown"),
    ],
)
def test_a_spec(wrong, says):
    told = refused(WindowSpec.parse, {"name": "w", "aggregates": COUNT} | wrong)
    assert told.message == says
    assert told.field == says.split()[0]


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
    told = refused(load_settings)
    assert told.message == f"SASH_{name} {says}"
    assert told.field == name.lower()
    assert not re.search(r"[Ii]nput|pydantic|validation", told.message)


@pytest.mark.parametrize(
    ("text", "size"),
    [("268435456", 2**28), ("256MiB", 2**28), ("256 mib", 2**28), ("1GiB", 2**30), ("1.5KiB", 1536), ("2TiB", 2**41)],
)
def test_sizes_have_units(monkeypatch, text, size):
    monkeypatch.setenv("SASH_CACHE_BYTES", text)
    assert load_settings().cache_bytes == size


def test_what_is_given_goes_before_variables_in_either_case(monkeypatch):
    monkeypatch.setenv("SASH_CACHE_BYTES", "1MiB")
    monkeypatch.setenv("sash_checkpoint_bytes", "2MiB")
    monkeypatch.setenv("SASH_NOTHING", "1")
    read = load_settings(cache_bytes=4096, checkpoint_bytes=None)
    assert (read.cache_bytes, read.checkpoint_bytes, read.grpc_port) == (4096, 2**21, 7070)


def test_a_misspelt_function_names_the_one_that_is_meant():
    told = refused(WindowSpec.parse, {"name": "w", "aggregates": {"q": {"function": "quantil", "q": 0.5}}})
    assert told.message.startswith(
        "aggregates.q: unknown function 'quantil'; did you mean 'quantile'? Known are arg_max, "
    )
    assert told.field == "aggregates.q.function"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"latncy": 1.0}, "field 'latency' is missing; 'latncy' is no field: is it misspelt?"),
        ({"path": "/"}, "field 'latency' is missing"),
        ({"latency_of_a_call": 1.0}, "field 'latency' is missing"),
    ],
)
def test_a_misspelt_field_is_said_to_be_misspelt(fields, says):
    spec = WindowSpec.parse({"name": "w", "fields": {"latency": "float64", "path": "string"}, "aggregates": COUNT})
    told = refused(Window(spec).insert, 1, {"path": "/", **fields})
    assert (told.message, told.field) == (says, "latency")


def test_another_spec_says_where_it_differs():
    catalogue = Catalogue()
    document = {"name": "w", "aggregates": COUNT, "slide": {"max_age": "1h"}}
    catalogue.create(WindowSpec.parse(document))
    catalogue.create(WindowSpec.parse(document))
    for changes, says in (
        ({"slide": {"max_age": "2h"}}, "it differs in slide.max_age"),
        ({"slide": {"max_count": 5}, "keyed": True}, "it differs in keyed, slide.max_age, slide.max_count"),
        (
            {"aggregates": {f"a{i}": COUNT["n"] for i in range(6)}},
            "it differs in aggregates.n, aggregates.a0, aggregates.a1, aggregates.a2, aggregates.a3 and 2 more",
        ),
    ):
        assert (
            refused(catalogue.create, WindowSpec.parse(document | changes), error=AlreadyExists).message
            == f"window 'w' exists with another spec; {says}"
        )
