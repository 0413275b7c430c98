"""Specs: what is accepted, and that what is not says where and why."""

import inspect
import math
import re
from contextlib import suppress
from datetime import date
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.catalogue import Catalogue
from sash.settings import load_settings
from sash_engine.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted
from sash_engine.monoids import catalogue
from sash_engine.windows.spec.window import WindowSpec, parse_duration
from sash_engine.windows.window import Window
from tests.support.refused import refusal, refused

FULL = """
name: departure_delay
time_unit: us
keyed: true
fields: {delay: float64, carrier: string}
aggregates:
  flights:  {function: count}
  mean:     {function: mean, field: delay}
  worst:    {function: arg_max, field: delay, returns: carrier}
slide: {max_age: 6h, max_count: 1000000}
"""


def test_yaml_and_the_document_are_the_same_spec():
    spec = WindowSpec.from_yaml(FULL)
    assert spec.max_age_ticks == 6 * 3600 * 10**6
    assert WindowSpec.parse(spec.document()) == spec


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: a\nname: b", "'name'"),
        ("name: a\naggregates: {n: {function: count}, 'n': {function: sum}}", "'n'"),
        ('{"name": "a", "fields": {"f": "int64", "f": "float64"}}', "'f'"),
        ("1: a\n0x1: b", "1"),
    ],
)
def test_a_spec_with_a_name_twice(text, name):
    assert refused(WindowSpec.from_yaml, text, match=f"the name {name} is given twice").field == "spec"


def test_a_window_without_fields_has_one():
    spec = WindowSpec.parse({"name": "w", "aggregates": {"total": {"function": "sum"}}})
    assert spec.fields == {"value": "float64"}
    (monoid, columns) = spec.monoids()["total"]
    assert (monoid.types, columns) == (("float64",), ("value",))


COUNT = {"n": {"function": "count"}}
GOOD = {"name": "w", "aggregates": COUNT}
TICKS = GOOD | {"time_unit": "none"}
TWO = {"value": "float64", "n": "int64"}
NULLS = {"fields": {"x": "float64", "n": "int64", "s": "string"}, "nullable": ["x", "n", "s"]}
NEEDED = "which every entry has to have"
ROLLUPS = {"keys": ["airport", "carrier", "kind"], "rollups": [["carrier"]], "fields": {"v": "int64"}}
HISTORY = {"time_unit": "s", "keyed": True, "slide": {"max_age": "10s"}, "history": "100s"}
FED = {"time_unit": "s", "keyed": True, "fields": {"v": "int64"}, "slide": {"max_age": 40}}
MINUTES = GOOD | FED | {"name": "minutes", "from": {"window": "requests", "granularity": 5}}
UNTIL = {"until": "punctuation"}
REFUSED = [
    (
        GOOD,
        [
            ({"name": "1st"}, "name"),
            ({"name": "a b"}, "name"),
            ({"name": "x" * 129}, "name"),
            ({"time_unit": "minutes"}, "time_unit"),
            ({"colour": 1}, "colour"),
            ({"fields": {}}, "fields"),
            ({"fields": {"x": "float"}}, "fields.x"),
            ({"fields": {"time": "int64"}}, "fields.time"),
            ({"fields": {"key": "int64"}}, "fields.key"),
            ({"fields": {f"f{i}": "int64" for i in range(65)}}, "fields"),
            ({"aggregates": {"a": {"function": "cuont"}}}, "aggregates.a.function"),
            ({"aggregates": {"a": {}}}, "aggregates.a.function"),
            ({"aggregates": {"a": {"function": "sum", "field": "z"}}}, "aggregates.a.field"),
            ({"aggregates": {"a": {"function": "sum", "field": "s"}}, "fields": {"s": "string"}}, "aggregates.a.field"),
            ({"aggregates": {"a": {"function": "sum"}}, "fields": {"x": "int64", "y": "int64"}}, "aggregates.a.field"),
            ({"aggregates": {"a": {"function": "sum", "returns": "value"}}}, "aggregates.a.returns"),
            ({"aggregates": {"a": {"function": "sum", "depth": 3}}}, "aggregates.a.depth"),
            ({"aggregates": {"a": {"function": "decayed_sum"}}}, "aggregates.a.half_life"),
            ({"aggregates": {"a-": {"function": "count"}, "b c": {"function": "count"}}}, "aggregates.b c"),
            ({"slide": {"max_age": "6 hours"}}, "slide.max_age"),
            ({"slide": {"max_age": 0}}, "slide.max_age"),
            ({"slide": {"max_age": "5m"}, "time_unit": "none"}, "slide.max_age"),
            ({"slide": {"max_age": "1us"}, "time_unit": "ms"}, "slide.max_age"),
            ({"slide": {"size": 1}}, "slide.size"),
            ({"order": {"late": "maybe"}}, "order.late"),
        ],
    ),
    (
        TICKS,
        [
            ({"slide": {"max_age": 5, "clock": "wall"}}, "slide.clock", "wall"),
            ({"slide": {"every": 5}}, "slide.every"),
            ({"slide": {"max_age": 4, "every": 5}}, "slide.every", "at most 4|longer"),
            ({"slide": {"max_age": 4, "every": 0}}, "slide.every"),
            ({"slide": {"max_gap": "soon"}}, "slide.max_gap"),
            ({"order": {"ahead": "5m"}}, "order.ahead"),
            ({"order": {"ahead": 5}}, "order.ahead"),
            ({"slide": {"adaptive": {"delta": 0}}}, "slide.adaptive.delta"),
            ({"slide": {"adaptive": {"delta": 1.0}}}, "slide.adaptive.delta"),
            ({"slide": {"adaptive": {"delta": math.nan}}}, "slide.adaptive.delta"),
            ({"slide": {"adaptive": {"every": 0}}}, "slide.adaptive.every"),
            ({"slide": {"adaptive": {"range": math.inf}}}, "slide.adaptive.range"),
            ({"slide": {"adaptive": {"range": 0}}}, "slide.adaptive.range"),
            ({"slide": {"adaptive": {"clock": 3}}}, "slide.adaptive.clock"),
            ({"slide": {"adaptive": {"field": "other"}}}, "slide.adaptive.field"),
            ({"slide": {"adaptive": {}}, "fields": TWO}, "slide.adaptive.field"),
            ({"slide": {"adaptive": {"field": "s"}}, "fields": TWO | {"s": "string"}}, "slide.adaptive.field"),
            ({"slide": {"adaptive": {}}, "granularity": 5}, "slide.adaptive"),
            ({"identity": "nobody"}, "identity", "no field 'nobody'; the window has value"),
            ({"identity": "value"}, "identity", "'value' is a float64"),
            ({"identity": "n", "fields": TWO, "granularity": 10}, "identity", "keeps panes"),
        ],
    ),
    (
        GOOD | {"time_unit": "s"},
        [
            ({"slide": {"max_gap": 5, "clock": "wall"}}, "slide.max_gap"),
            ({"order": {"ahead": "1ms"}}, "order.ahead"),
            ({"order": {"ahead": 0}}, "order.ahead"),
            ({"order": {"ahead": "soon"}}, "order.ahead"),
            ({"order": {"too_far_ahead": "drop"}}, "order.too_far_ahead"),
            ({"order": {"ahead": "5m", "too_far_ahead": "keep"}}, "order.too_far_ahead"),
            ({"slide": {"max_count": 5} | UNTIL}, "slide.until"),
            ({"slide": {"max_gap": 5} | UNTIL}, "slide.until"),
            ({"slide": {"when": "old.n > 3"} | UNTIL}, "slide.until"),
            ({"slide": {"adaptive": {}} | UNTIL}, "slide.until"),
            ({"slide": {"clock": "wall"} | UNTIL}, "slide.until"),
        ],
    ),
    (
        TICKS | {"granularity": 10},
        [
            ({"granularity": "1x"}, "granularity"),
            ({"granularity": 0}, "granularity"),
            ({"granularity": "1m"}, "granularity"),
            ({"slide": {"max_count": 5}}, "slide.max_count"),
            ({"order": {"equal_times": "last"}}, "order.equal_times"),
        ],
    ),
    (
        GOOD | NULLS,
        [
            ({"nullable": ["y"]}, "nullable"),
            ({"nullable": ["x", "x"]}, "nullable"),
            ({"nullable": "x"}, "nullable"),
            ({"identity": "n"}, "nullable", f"^nullable: 'n' is the identity, {NEEDED}$"),
            (
                {"slide": {"adaptive": {"field": "x"}}},
                "nullable",
                f"^nullable: 'x' is the field that slide.adaptive watches, {NEEDED}$",
            ),
        ],
    ),
    (
        GOOD | HISTORY,
        [
            ({"history": "9s"}, "history", "shorter than the slide"),
            ({"history": "ten"}, "history", "no duration|not a duration"),
            ({"history": 0}, "history", "out of range"),
            ({"slide": {}}, "history", "say in slide.max_age"),
            ({"slide": {"max_count": 5}}, "slide.max_count", "slides by max_age alone: it counts"),
            ({"slide": {"max_age": 5, "max_count": 5}}, "slide.max_count", "slides by max_age alone"),
            ({"slide": {"max_age": 5, "max_gap": 5}}, "slide.max_gap", "slides by max_age alone"),
            ({"slide": {"max_age": 5, "when": "total.n > 5"}}, "slide.when", "slides by max_age alone"),
            ({"slide": {"max_age": 5, "adaptive": {}}}, "slide.adaptive", "slides by max_age alone"),
            ({"rollups": [[]]}, "rollups", "a window with a history has none"),
            ({"idle_expiry": "99s"}, "idle_expiry", "forgets keys"),
            (
                {"time_unit": "none", "slide": {"max_age": 5}, "history": 9, "idle_expiry": "9d"},
                "idle_expiry",
                "forgets",
            ),
        ],
    ),
    (
        TICKS | ROLLUPS,
        [
            ({"rollups": [["gate"]]}, "rollups.0.0", "have no 'gate'"),
            ({"rollups": [["kind", "airport", "carrier"]]}, "rollups.0", "is a key"),
            ({"rollups": [["kind", "kind"]]}, "rollups.0", "twice"),
            ({"rollups": [["kind", "airport"], ["airport", "kind"]]}, "rollups.1", "same as rollups.0"),
            ({"rollups": []}, "rollups", "at least 1"),
            ({"rollups": [[]] * 9}, "rollups", "at most 8"),
            ({"rollups": [[]], "keys": None}, "rollups", "say keys"),
            ({"slide": {"max_count": 9}}, "slide.max_count", "counts the entries of each key"),
            ({"slide": {"max_gap": 9}}, "slide.max_gap", "sessions of its own"),
            ({"slide": {"when": "total.n > 9"}}, "slide.when", "entries of one key"),
            ({"slide": {"adaptive": {"field": "v"}}}, "slide.adaptive", "changes for itself"),
            ({"idle_expiry": "1h"}, "idle_expiry", "middle of their groups"),
            ({"identity": "v"}, "identity", "retracted"),
            ({"order": {"equal_times": "last"}}, "order.equal_times", "all of them stay"),
            ({"aggregates": {"f": {"function": "first", "field": "v"}}}, "aggregates.f", "order of entries"),
        ],
    ),
    (
        MINUTES,
        [
            ({"from": {"window": "minutes", "granularity": 5}}, "from.window", "feed itself"),
            ({"granularity": 9}, "granularity", "not that of from"),
            ({"from": {"window": "requests"}}, "from.granularity", "missing"),
            ({"order": {"late": "reject"}}, "order", "cannot refuse"),
            ({"slide": {"until": "punctuation"}}, "slide.until", "nobody punctuates"),
            ({"durability": "sync"}, "durability", "same commit"),
            ({"aggregates": {"f": {"function": "first", "field": "v"}}}, "aggregates.f", "depends on"),
            ({"slide": {"max_count": 3}}, "slide.max_count", "one by one"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("base", "case"), [pytest.param(base, case, id=f"{case[0]}"[:60]) for base, cases in REFUSED for case in cases]
)
def test_what_is_wrong_is_named(base, case):
    change, field, *says = case
    document = {name: value for name, value in (base | change).items() if value is not None}
    caught = refused(WindowSpec.parse, document, match=says[0] if says else None)
    assert caught.field == field
    assert str(caught)


@pytest.mark.parametrize("text", ["- 1", "5", "name: [", "name: w: x", ""])
def test_what_is_no_spec_is_refused(text):
    refused(WindowSpec.from_yaml, text)


N = "\naggregates: {n: {function: count}}"
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}\n" for old, new in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("name: 2020-99-99" + N, None),
        ("name: 0b_" + N, None),
        ("name: !!int x" + N, None),
        ("name: !!float zz" + N, None),
        ("name: !!timestamp x" + N, None),
        ("name: !!bool maybe" + N, None),
        ("name: " + "1" * 5000 + N, "400 characters"),
        ("name: 1" + ":1" * 200 + N, "400 characters"),
        ("!!set {a, b}", "no tags"),
        ("name: w" + N + "\nfields: !!omap [a: float64]", "no tags"),
        ("name: !!set w" + N, "no tags"),
        ("name: !mine w" + N, "no tags"),
        ("name: w" + N + "\n<<: {keyed: true}", "no aliases"),
        ("name: w" + N + "\n? [a]\n: 1", None),
        ("name: w" + N + "\n---\nname: v", "1 document"),
        ('name: w\naggregates: {"\\uD800": {function: sum}}', None),
        ("name: \ud800" + N, None),
        ("[" * 900, "32 levels"),
        ("[" * 60_000, "32 levels"),
        ("- " * 30_000, "32 levels"),
        ("{a: " * 10_000, "32 levels"),
        (MERGES, "no aliases"),
        ("name: w" + N + "\nslide: &a {max_age: *a}", "no aliases"),
        ("name: w" + N + "\n#" + "x" * 2**16, "65536 bytes"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_a_text_that_cannot_be_read_is_refused(text, limit):
    """Whatever its reader raises; and before it is read what would take it without end, or off the stack."""
    assert refusal(WindowSpec.from_yaml, text) == ("spec", limit)


def test_a_spec_of_64_kib_is_read():
    text = "name: w" + N + "\n#"
    spec = WindowSpec.from_yaml(text + "x" * (2**16 - len(text)))
    assert spec == WindowSpec.from_yaml(text)


def test_half_a_surrogate_pair_is_no_name():
    assert refused(WindowSpec.parse, {"name": "w", "aggregates": {"\ud800": {"function": "sum"}}}).field == "spec"


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), date(2020, 1, 1), b"", frozenset([1])])
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(catalogue())), st.data())
def test_whatever_a_parameter_is_it_is_taken_or_refused(function, data):
    accepted = inspect.signature(catalogue()[function].__init__).parameters.values()
    names = [parameter.name for parameter in accepted if parameter.kind is parameter.KEYWORD_ONLY]
    name = data.draw(st.sampled_from([*names, "field", "returns", "depth"]))
    aggregate = {"function": function, name: data.draw(ODD)}
    with suppress(InvalidArgument):
        spec = WindowSpec.parse({"name": "w", "aggregates": {"a": aggregate}})
        assert WindowSpec.parse(spec.document()).monoids().keys() == {"a"}


@pytest.mark.parametrize("text", ["1h ", " 1h", "1h\n", "٣h", "３", "1h3", "1_0", "", "h", "-5", "1.5"])
def test_what_is_no_duration(text):
    assert refused(parse_duration, text, "us", "d").field == "d"


@given(st.integers(1, 10**6), st.sampled_from([("us", 1), ("ms", 10**3), ("s", 10**6), ("m", 60 * 10**6)]))
def test_durations_are_exact(number, unit):
    suffix, ticks = unit
    assert parse_duration(f"{number}{suffix}", "us", "d") == number * ticks
    assert parse_duration(str(number), "us", "d") == number


def test_durations_add_up():
    assert parse_duration("1h30m", "s", "d") == 5400
    assert parse_duration("1.5s", "ms", "d") == 1500
    assert parse_duration("0.1ms", "us", "d") == 100


def test_the_catalogue_creates_once():
    catalogue = Catalogue(max_windows=1)
    spec = WindowSpec.from_yaml(FULL)
    window, created = catalogue.create(spec)
    assert created
    assert catalogue.create(WindowSpec.from_yaml(FULL)) == (window, False)
    refused(catalogue.create, spec.model_copy(update={"keyed": False}), error=AlreadyExists)
    refused(catalogue.create, spec.model_copy(update={"name": "other"}), error=ResourceExhausted)
    assert catalogue.delete("departure_delay") is window
    refused(catalogue.find, "departure_delay", error=NotFound)


# ---------------------------------------------------------------- words that need no knowledge of pydantic


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
