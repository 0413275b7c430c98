"""The same history through both edges gives the same answers, counts and errors."""

import contextlib

import grpc
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash_proto.v1 import windows_pb2 as pb
from tests.support.arrow import ARROW
from tests.support.edges import FAR, OverGrpc, OverRest, columns_of, number
from tests.support.servers import running_service
from tests.support.shown import AGGREGATES, FIELDS, SPECIALS

# With an aggregate that depends on the order of entries, which several keys together do not have; and without one.
SPECS = {
    "ordered": {
        "aggregates": AGGREGATES,
        "slide": {"max_age": "20", "clock": "event"},
        "order": {"ahead": "3600"},
    },
    "commutative": {
        "aggregates": {name: AGGREGATES[name] for name in ("n", "mean", "total")},
        "slide": {"max_count": 4, "clock": "event"},
        "order": {
            "out_of_order": "allow",
            "late": "drop",
            "equal_times": "last",
            "ahead": "1h",
            "too_far_ahead": "drop",
        },
        "idle_expiry": "30d",
        "identity": "s",
    },
}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


times = st.integers(-5, 52).map(lambda time: time if time <= 45 else FAR)
keys = st.sampled_from(["a", "b", "ü"])
floats = st.one_of(st.floats(-1e6, 1e6), st.sampled_from(list(SPECIALS)))
row = st.tuples(
    times,
    keys,
    floats,
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.booleans(),
)
bad_key = st.sampled_from(["", "k" * 600])
one_or_more = st.one_of(keys, bad_key, st.none(), st.lists(st.one_of(keys, keys, bad_key), min_size=2, max_size=3))
lookbacks = st.lists(st.sampled_from(["5s", "1m", "90", "soon"]), max_size=3)
# Few numbers, so that retries, gaps and writes that come next are all frequent.
origin = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"producer": st.sampled_from(["p", "q", "x" * 201]), "sequence": st.integers(0, 3)},
        optional={"epoch": st.integers(-1, 2)},
    ),
    st.just({"producer": "p"}),
    st.just({"sequence": 1}),
)
query = st.sampled_from(["q", "q", ""])
batch = st.integers(-1, 2)
step = st.one_of(
    st.tuples(st.just("insert"), row, st.one_of(st.none(), lookbacks), origin),
    st.tuples(st.just("bulk"), st.lists(row, max_size=8), origin),
    st.tuples(st.just("bulk_evict"), times, st.one_of(st.none(), keys, bad_key), origin),
    st.tuples(st.just("evict_range"), times, times, st.one_of(st.none(), keys, bad_key), st.booleans(), origin),
    st.tuples(st.just("changes"), st.lists(row, max_size=6), origin),
    st.tuples(st.just("batch"), st.lists(st.lists(row, max_size=4), max_size=3), query, batch),
    st.tuples(st.just("entries"), one_or_more, times, times, st.booleans()),
    st.tuples(st.just("export_and_import")),
    st.tuples(st.just("query"), one_or_more, lookbacks, st.booleans()),
    st.tuples(st.just("range_query"), one_or_more, times, times, st.booleans()),
    st.tuples(
        st.just("series"),
        one_or_more,
        times,
        times,
        st.sampled_from(["1", "7s"]),
        st.sampled_from([None, "3", "20s", "0"]),
    ),
    st.tuples(st.just("keys"), st.sampled_from(["", "a", "x"]), st.integers(0, 3), st.integers(-1, 2)),
    st.tuples(st.just("describe")),
    st.tuples(st.just("add_aggregates")),
)


def play(edge, name, what, *arguments):
    match what:
        case "insert":
            time, key, *values = arguments[0]
            return edge.insert(name, time, key, dict(zip(FIELDS, values, strict=True)), *arguments[1:])
        case "bulk":
            return edge.bulk_insert(name, *columns_of(arguments[0]), arguments[1])
        case "changes":
            rows, origin = arguments
            times, keys, columns = columns_of(rows)
            turned = columns | {"b": [not value for value in columns["b"]]}
            some = slice(1, None)
            return [
                edge.bulk_insert(name, times, keys, columns, {}),
                edge.update(name, times, keys, turned, origin),
                edge.retract(name, times[some], keys[some], columns["s"][some], origin),
                edge.update(name, None, keys, turned, {}),
                edge.retract(name, None, keys[some], columns["s"][some], {}),
                edge.describe(name)["counts"],
            ]
        case "batch":
            parts, query, number = arguments
            staged = [edge.stage(name, *columns_of(rows), query, number) for rows in parts]
            # Tokens differ by chance: they are used, and not compared.
            tokens = [part[0] for part in staged if part[0] != "refused"]
            shown = [part if part[0] == "refused" else part[1] for part in staged]
            return [*shown, edge.commit(name, query, number, tokens)]
        case _:
            return getattr(edge, what)(name, *arguments)


def named_alike(document):
    if isinstance(document, dict) and "spec" in document:
        document["spec"]["name"] = "same"
    return document


ROWS = [(0, "a", 1.0, 7, "x", True), (10, "a", 3.0, 2**63 - 1, "ü", False), (5, "b", 10.0, 1, "y", True)]
P1, P2 = ({"producer": "p", "sequence": sequence} for sequence in (1, 2))
HISTORY = [
    ("bulk", ROWS, {}),
    ("bulk", [ROWS[2]], {}),  # with equal_times "last", a duplicate
    *(("query", which, ["6s", "1m"], combine) for which in ("a", ["b", "a"], None) for combine in (False, True)),
    *(("range_query", which, 5, 10, True) for which in ("a", ["b", "a"], None)),
    *(("series", which, 0, 12, "7s", width) for which in ("a", None) for width in (None, "9")),
    ("series", "a", 0, 10**9, "1", None),
    *(("keys", prefix, limit, position) for prefix in ("", "b") for limit in (0, 1) for position in (-1, 0, 1)),
    ("add_aggregates",),
    ("query", "a", [], False),
    *(("insert", (12, "a", 7.0, 2, "z", True), lookbacks, {}) for lookbacks in (None, [], ["1s", "21"], ["soon"])),
    *(("bulk", [(13, "a", 1.0, 2, "w", True)], origin) for origin in (P1, P1, P1 | {"epoch": 2}, P1, P2)),
    *(("insert", (14, "a", 1.0, 2, "v", True), None, P2 | {"epoch": epoch}) for epoch in (2, 2, 1)),
    *(("bulk_evict", 5, "a", {"producer": "p", "sequence": 3, "epoch": 2}) for _ in range(2)),
    ("bulk_evict", 6, "a", {"producer": "p", "sequence": 3, "epoch": 2}),
    ("batch", [ROWS, ROWS[:1]], "q", 1),
    ("batch", [ROWS], "q", 1),
]
"""What the two edges say in words of their own, once: pages, buckets, retries, numbers that were used, takeovers."""


@pytest.mark.parametrize("kind", SPECS)
@example(history=HISTORY)
@given(history=st.lists(step, min_size=1, max_size=12))
def test_both_edges_mean_the_same(service, kind, history):
    edges = OverRest(service, SPECS[kind]), OverGrpc(service, SPECS[kind])
    stub = edges[1].stub
    for name in ("rest", "grpc"):
        with contextlib.suppress(grpc.RpcError):
            stub.DeleteWindow(pb.DeleteWindowRequest(name=name))
    made = [named_alike(edge.create(name)) for edge, name in zip(edges, ("rest", "grpc"), strict=True)]
    assert made[0] == made[1]
    for what in history:
        over_rest = named_alike(play(edges[0], "rest", *what))
        over_grpc = named_alike(play(edges[1], "grpc", *what))
        assert repr(over_rest).replace("'rest'", "'grpc'") == repr(sorted_as(over_grpc, over_rest)), what
    shown = [named_alike(edge.describe(name)) for edge, name in zip(edges, ("rest", "grpc"), strict=True)]
    assert shown[0] == shown[1]


def test_the_time_that_stands_for_none_cannot_be_given(service):
    for edge in (OverRest(service, SPECS["commutative"]), OverGrpc(service, SPECS["commutative"])):
        name = f"timeless{type(edge).__name__}"
        edge.create(name)
        columns = {"f": [1.0], "i": [1], "s": ["x"], "b": [True]}
        edge.insert(name, 1, "a", {field: values[0] for field, values in columns.items()}, None, {})
        for refused in (
            edge.retract(name, [-(2**63)], ["a"], ["x"], {}),
            edge.update(name, [-(2**63)], ["a"], columns, {}),
        ):
            assert "refused" in refused
            assert "time" in refused
        assert edge.describe(name)["entries"] == 1


good_row = st.tuples(
    times, keys, floats, st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", "ü", "x"]), st.booleans()
)


@given(rows=st.lists(good_row, min_size=1, max_size=5), time=times)
def test_a_retry_over_another_edge_is_known_and_other_data_refused(service, rows, time):
    edges = OverRest(service, SPECS["ordered"]), OverGrpc(service, SPECS["ordered"])
    with contextlib.suppress(grpc.RpcError):
        edges[1].stub.DeleteWindow(pb.DeleteWindowRequest(name="both"))
    edges[0].create("both")
    others = [*rows[:-1], (*rows[-1][:-1], not rows[-1][-1])]
    writes = [
        ("insert", rows[-1], None),
        ("bulk", rows),
        ("bulk_evict", time, "a"),
        ("evict_range", time, time, "a", False),
    ] * 2
    different = [
        ("insert", others[-1], None),
        ("bulk", others),
        ("bulk_evict", time, "b"),
        ("evict_range", time, time, "b", False),
    ] * 2
    for sequence, (write, other) in enumerate(zip(writes, different, strict=True), 1):
        origin = {"producer": "p", "sequence": sequence}
        first, second = edges if sequence <= 4 else edges[::-1]
        assert "already_applied" not in play(first, "both", *write, origin)
        for edge in (second, first):
            assert play(edge, "both", *write, origin)["already_applied"], (edge, write)
            refused, message, reason, field, _ = play(edge, "both", *other, origin)
            assert (refused, reason, field) == ("refused", "SEQUENCE_REUSED", "sequence")
            assert "with other data" in message
        if write[0] == "bulk":
            assert as_arrow(edges[0], "both", rows, origin)["already_applied"]
            assert as_arrow(edges[0], "both", others, origin)[3] == "sequence"


def sorted_as(found, pattern):
    """Protobuf maps have no order, so put names in the other edge's; compared as text, which tells -0.0 from 0.0."""
    if isinstance(found, dict) and isinstance(pattern, dict) and set(found) == set(pattern):
        return {name: sorted_as(found[name], pattern[name]) for name in pattern}
    if isinstance(found, list) and isinstance(pattern, list) and len(found) == len(pattern):
        return [sorted_as(a, b) for a, b in zip(found, pattern, strict=True)]
    return found


def as_arrow(edge, name, rows, origin):
    """Send rows as record batches of two rows, with strings that are coded in an order of their own."""
    times, keys, columns = columns_of(rows)
    named = {"time": times, "key": dictionary(keys), **columns, "s": dictionary(columns["s"])}
    named["f"] = [number(value, "f") for value in columns["f"]]
    table = pa.table(named)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    body = sink.getvalue().to_pybytes()
    return edge.call("POST", f"/{name}/bulk-insert", content=body, headers=ARROW, params=origin)


def dictionary(strings):
    texts = sorted({*strings, "nobody has this one"}, reverse=True)
    return pa.DictionaryArray.from_arrays([texts.index(text) for text in strings], texts)
