"""The mapping of records to a window, which Spark's pipeline, `sash data load` and `sash data ingest` share."""

import pyarrow as pa
import pytest

from sash_wire.errors import WireError
from sash_wire.mapping import Source, Sources, quoted, source_of, sources
from sash_wire.rows import instants

FIELDS = {"delay": "float64", "seats": "int64"}
PLAIN = {"name": "w", "keyed": False, "fields": FIELDS}
KEYED = PLAIN | {"keyed": True}
PARTED = KEYED | {"keys": ["airport", "carrier"]}
OWN = {"delay": "`delay`", "seats": "`seats`"}


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        (PLAIN, {}, Sources("at", None, {}, OWN)),
        (PLAIN, {"key": "k"}, Sources("at", None, {}, OWN)),
        (PLAIN, {"fields": {"delay": "d"}}, Sources("at", None, {}, OWN | {"delay": "d"})),
        (KEYED, {"key": "k"}, Sources("at", "k", {}, OWN)),
        (PARTED, {}, Sources("at", None, {"airport": "`airport`", "carrier": "`carrier`"}, OWN)),
        (PARTED, {"parts": {"airport": "o"}}, Sources("at", None, {"airport": "o", "carrier": "`carrier`"}, OWN)),
        (
            PARTED,
            {"shared": {"airport": "o", "other": "x"}},
            Sources("at", None, {"airport": "o", "carrier": "`carrier`"}, OWN),
        ),
        (PARTED, {"key": "k"}, Sources("at", "k", {}, OWN)),
    ],
    ids=str,
)
def test_what_is_not_named_is_a_column_of_its_own_name(spec, given, expected):
    assert sources(spec, "at", **given) == expected


@pytest.mark.parametrize(
    ("spec", "given", "field", "told"),
    [
        (PLAIN, {"fields": {"nope": "d"}}, "fields.nope", "has the fields delay, seats"),
        (PLAIN, {"parts": {"nope": "d"}}, "parts.nope", "has no parts"),
        (PARTED, {"parts": {"nope": "d"}}, "parts.nope", "has the parts airport, carrier"),
        (PARTED, {"parts": {"airport": "d"}, "key": "k"}, "parts", "either key or parts"),
        (KEYED, {}, "key", "say by what"),
    ],
    ids=str,
)
def test_a_mapping_that_does_not_fit_names_its_place(spec, given, field, told):
    with pytest.raises(WireError, match=told) as refused:
        sources(spec, "at", **given)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("delay", Source(("delay",))),
        (" user.country ", Source(("user", "country"))),
        ("`a.b`.c", Source(("a.b", "c"))),
        (quoted("a`b c"), Source(("a`b c",))),
        ("timestamp_millis(at)", Source(("at",), "ms")),
        ("TIMESTAMP_SECONDS( `x y`.t )", Source(("x y", "t"), "s")),
        ("timestamp_micros(at)", Source(("at",), "us")),
        ("try_to_timestamp(at)", Source(("at",))),
    ],
)
def test_expressions_that_need_no_spark(text, source):
    assert source_of(text, "time") == source


@pytest.mark.parametrize(
    "text",
    ["a + b", "", "a.", ".a", "1a", "upper(a)", "timestamp_millis(timestamp_millis(a))", "timestamp_millis()", "a b"],
)
def test_other_expressions_are_refused(text):
    with pytest.raises(WireError, match="needs Spark") as refused:
        source_of(text, "windows[0].fields.delay")
    assert refused.value.field == "windows[0].fields.delay"


def test_instants():
    assert instants(pa.array([1, 2]), None).to_pylist() == [1, 2]
    assert instants(pa.array([1500]), "ms").cast(pa.int64()).to_pylist() == [1500]
    for texts in (
        ["1970-01-01T00:00:01Z", "1970-01-01T02:00:01+02:00"],
        ["1970-01-01T00:00:01", "1970-01-01 00:00:01"],
    ):
        assert instants(pa.array(texts), None).cast(pa.int64()).to_pylist() == [10**6, 10**6]
    with pytest.raises(pa.ArrowInvalid):
        instants(pa.array(["today"]), None)
