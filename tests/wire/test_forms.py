"""What the clients, the service and the engine share."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sash.rpc import translate
from sash_client import InvalidArgument
from sash_client.data.wire import spec_document, to_spec
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import documents
from sash_wire.coded import Coded
from sash_wire.columns import fill_column, read_column
from sash_wire.documents import MAX_SPEC_BYTES, read_steps, read_yaml
from sash_wire.durations import parse_duration, spell_duration
from sash_wire.errors import TooLong, WireError
from sash_wire.values import fill_value, from_value

FULL = {
    "name": "w",
    "time_unit": "ms",
    "keyed": True,
    "fields": {"x": "float64", "s": "string"},
    "aggregates": {
        "p": {"function": "quantile", "field": "x", "q": 0.5},
        "h": {"function": "histogram", "field": "x", "bounds": [0, 1.5]},
        "a": {"function": "arg_max", "field": "x", "returns": "s"},
    },
    "slide": {
        "max_age": "6h",
        "max_count": 5,
        "clock": "wall",
        "when": "total.p > 5.0",
        "adaptive": {"field": "x", "delta": 0.01, "every": 5, "range": 2.5},
    },
    "order": {
        "late": "reject",
        "out_of_order": "reject",
        "equal_times": "last",
        "ahead": "5m",
        "too_far_ahead": "drop",
    },
    "idle_expiry": "30d",
    "durability": "interval",
}


COUNT = {"n": {"function": "count"}}
HISTORY = {"name": "w", "time_unit": "s", "aggregates": COUNT, "slide": {"max_age": "10s"}, "history": "100s"}
SPECS = {
    "full": FULL,
    "short": {"name": "w", "keyed": False, "aggregates": COUNT},
    "history": HISTORY,
    "history in ticks, keys that are forgotten": HISTORY | {"history": 11, "keyed": True, "idle_expiry": "100s"},
    "view": {"name": "v", "of": "w", "aggregates": COUNT},
    "view with a slide": {"name": "v", "of": "w", "aggregates": COUNT, "slide": {"max_age": "1m"}},
    "fed": {**HISTORY, "history": None, "from": {"window": "requests", "granularity": "5s"}},
}


@pytest.mark.parametrize("document", SPECS.values(), ids=SPECS)
def test_a_spec_is_the_same_on_both_sides(document):
    parsed = WindowSpec.parse(translate.document_of(to_spec(document)))
    assert parsed == WindowSpec.parse(document)
    info = pb.WindowInfo()
    translate.specs.fill_spec(info.spec, parsed.model_dump(by_alias=True))
    assert WindowSpec.parse(spec_document(info.spec)) == parsed


def test_a_name_that_is_given_twice_is_refused_before_a_call():
    with pytest.raises(InvalidArgument, match="'x' is given twice") as caught:
        to_spec("name: w\nfields: {x: int64, x: float64}")
    assert caught.value.field == "spec"


@pytest.mark.parametrize(
    "text",
    [
        "[" + "1," * 32_000 + "1]",
        "{" + ",".join(f"a{i}: 2001-01-01" for i in range(3000)) + "}",
        "[" + "[]," * 20_000 + "[]]",
        "- x\n" * 16_000,
    ],
    ids=["list", "mapping", "lists", "lines"],
)
def test_a_text_is_read_in_steps(text, monkeypatch):
    """A step makes no more than a hundred values."""
    made = []
    real = documents._Scalars.value
    monkeypatch.setattr(documents._Scalars, "value", lambda *given: made.append(1) or real(*given))
    steps, most = read_steps(text), 0
    while True:
        before = len(made)
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        most = max(most, len(made) - before)
    assert found == yaml.safe_load(text)
    assert most <= 100


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | st.dates(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_what_is_read_is_what_was_written(document):
    text = yaml.safe_dump(document, allow_unicode=True)
    assert read_yaml(text) == yaml.safe_load(text)


def test_a_text_of_the_largest_size_is_read():
    assert read_yaml("x" * MAX_SPEC_BYTES) == "x" * MAX_SPEC_BYTES
    with pytest.raises(TooLong, match="spec of 65537 bytes is too large"):
        read_yaml("é" * (MAX_SPEC_BYTES // 2) + "x")


@given(st.integers(1, 2**63 - 1))
def test_a_duration_is_read_as_it_is_written(nanoseconds):
    text = spell_duration(nanoseconds)
    assert parse_duration(text, "ns", "step") == nanoseconds


def test_durations_are_short():
    assert [spell_duration(n) for n in (0, 90 * 10**9, 86400 * 10**9, 1_000_001)] == ["0s", "1m30s", "1d", "1ms1ns"]
    assert spell_duration(-1500) == "-1us500ns"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.float32(1.5), 1.5),
        (np.longdouble(2), 2.0),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.array([1, 2]), [1, 2]),
        (np.array(3), 3),
        (np.array(["a", None], dtype=object), ["a", None]),
        ((1, [2.0]), [1, [2.0]]),
        ({1: "x"}, {"1": "x"}),
    ],
)
def test_values_of_numpy_travel_as_pythons(value, found):
    message = pb.Value()
    fill_value(message, value)
    assert from_value(message) == found
    assert type(from_value(message)) is type(found)


@pytest.mark.parametrize("value", [{1, 2}, [object()], np.datetime64(1, "s"), {"a": 1j}])
def test_a_value_of_another_type_is_refused(value):
    with pytest.raises(WireError, match=r"q: a \w+ cannot be sent") as caught:
        fill_value(pb.Value(), value, "q")
    assert caught.value.field == "q"


def test_rows_of_coded_strings_use_no_more_of_the_dictionary():
    coded = Coded.of(["b", "a", "b", "c"])
    assert coded.dictionary == ["b", "a", "c"]
    part = coded.part(1, 3)
    assert (part.dictionary, part.codes.tolist(), part.decode().tolist()) == (["b", "a"], [1, 0], ["a", "b"])
    assert coded.part(0, 4).dictionary is coded.dictionary


@pytest.mark.parametrize(
    "column",
    [
        np.array([1.5, np.nan]),
        np.array([1, -(2**63)]),
        np.array([True, False]),
        Coded.of(["x", "y"]),
        [b"\0", b""],
        np.array(["x", "y"], dtype=object),
    ],
    ids=["float64", "int64", "bool", "coded", "blobs", "strings"],
)
def test_columns_come_back(column):
    message = pb.Column()
    fill_column(message, column)
    found = read_column(pb.Column.FromString(message.SerializeToString()), "x")
    plain = [each.decode() if isinstance(each, Coded) else each for each in (found, column)]
    np.testing.assert_array_equal(*plain)


def test_an_empty_column_of_blobs_is_one():
    message = pb.Column()
    fill_column(message, [])
    assert read_column(message, "x") == []


def test_two_codes_of_one_string_become_one():
    message = pb.Column(string=pb.Strings(dictionary=["a", "a", "b"], codes=np.array([0, 1, 2], "<u4").tobytes()))
    found = read_column(message, "x")
    assert isinstance(found, Coded)
    assert (found.dictionary, found.codes.tolist()) == (["a", "b"], [0, 0, 1])
