"""The same history through both edges gives the same answers, counts and errors."""

import pyarrow as pa
import pytest
from hypothesis import example, settings
from hypothesis import given as given_
from hypothesis import strategies as st

from tests.support.arrow import ARROW
from tests.support.edges import edge_of
from tests.support.profile import THOROUGH
from tests.support.shown import ADDED, AGGREGATES, FIELDS, SPECIALS

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


FAR = 10**11
"""Seconds: a time that is in the future for some thousand years."""

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
SPAN = {"start": times, "end": times, "end_exclusive": st.booleans()}
WHICH = one_or_more.map(lambda keys: {"all_keys": True} if keys is None else {"key": keys})


def given(call, *more, **members):
    """A call with its members, and with those of `more`."""
    parts = st.tuples(st.fixed_dictionaries(members), *more)
    return parts.map(lambda found: (call, {name: value for part in found for name, value in part.items()}))


def entry_of(row):
    time, key, *values = row
    return {"time": time, "key": key, "fields": dict(zip(FIELDS, values, strict=True))}


def bulk_of(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(6)]
    return {"time": columns[0], "key": columns[1], "fields": dict(zip(FIELDS, columns[2:], strict=True))}


def changes_of(rows, origin):
    """Entries that are inserted, corrected and retracted; with their times, and without."""
    bulk = bulk_of(rows)
    turned = {"key": bulk["key"], "fields": bulk["fields"] | {"b": [not value for value in bulk["fields"]["b"]]}}
    named = {"key": bulk["key"][1:], "fields": {"s": bulk["fields"]["s"][1:]}}
    return [
        ("bulk-insert", bulk),
        ("update", {"time": bulk["time"]} | turned | origin),
        ("retract", {"time": bulk["time"][1:]} | named | origin),
        ("update", turned),
        ("retract", named),
        ("describe", {}),
    ]


one_key = st.one_of(st.just({}), st.one_of(keys, bad_key).map(lambda key: {"key": key}))
question = st.one_of(st.just({}), lookbacks.map(lambda given: {"answer": True, "lookbacks": given}))
bulk = st.lists(row, max_size=8).map(bulk_of)
step = st.one_of(
    given("insert", row.map(entry_of), question, origin),
    given("bulk-insert", bulk, origin),
    given("bulk-evict", one_key, origin, time=times),
    given("bulk-evict", one_key, origin, **SPAN),
    st.tuples(st.just("changes"), st.lists(row, max_size=6), origin),
    st.tuples(st.just("batch"), st.lists(bulk, max_size=3), query, batch),
    given("entries", WHICH, **SPAN),
    st.just(("copied", {})),
    given("query", WHICH, lookback=lookbacks, combine=st.booleans(), partials=st.just(True)),
    given("range", WHICH, **SPAN),
    given("series", WHICH, start=times, end=times, step=st.sampled_from(["1", "7s"])),
    given("series", WHICH, start=times, end=times, step=st.just("7s"), width=st.sampled_from(["3", "20s", "0"])),
    given("keys", prefix=st.sampled_from(["", "a", "x"]), limit=st.integers(0, 3), position=st.integers(-1, 2)),
    st.just(("describe", {})),
    st.just(("add_aggregates", ADDED)),
)


def take(edge, name, what):
    """What an edge says to a step of a history."""
    match what:
        case "changes", rows, origin:
            return [edge.do(call, name, **given) for call, given in changes_of(rows, origin)]
        case "batch", bulks, query, number:
            of = {"query": query, "batch": number}
            staged = [edge.do("stage", name, **each, **of) for each in bulks]
            # Tokens differ by chance: they are used, and not compared.
            tokens = [part.pop("stage") for part in staged if isinstance(part, dict)]
            return [*staged, edge.do("commit", name, **of, stages=tokens)]
        case "copied", _:
            edge.do("delete", f"{name}-copy")
            return edge.copied(name, f"{name}-copy")
        case call, given:
            if given.get("combine") and isinstance(given.get("key"), str):  # a message has one key, or several
                given = given | {"key": [given["key"]]}
            found = edge.do(call, name, **given)
            if call == "series" and isinstance(found, dict):  # REST repeats what was asked
                return {each: value for each, value in found.items() if each not in ("start", "end", "step")}
            return found


def named_alike(document):
    if isinstance(document, dict) and "spec" in document:
        document["spec"]["name"] = "same"
    return document


ROWS = [(0, "a", 1.0, 7, "x", True), (10, "a", 3.0, 2**63 - 1, "ü", False), (5, "b", 10.0, 1, "y", True)]
P1, P2 = ({"producer": "p", "sequence": sequence} for sequence in (1, 2))
P3 = {"producer": "p", "sequence": 3, "epoch": 2}
ONE, BOTH, ALL = {"key": "a"}, {"key": ["b", "a"]}, {"all_keys": True}
NEXT = entry_of((12, "a", 7.0, 2, "z", True))
HISTORY = [
    ("bulk-insert", bulk_of(ROWS)),
    ("bulk-insert", bulk_of([ROWS[2]])),  # with equal_times "last", a duplicate
    *(
        ("query", which | {"lookback": ["6s", "1m"], "combine": one})
        for which in (ONE, BOTH, ALL)
        for one in (False, True)
    ),
    *(("range", which | {"start": 5, "end": 10, "end_exclusive": True}) for which in (ONE, BOTH, ALL)),
    *(
        ("series", which | {"start": 0, "end": 12, "step": "7s"} | w)
        for which in (ONE, ALL)
        for w in ({}, {"width": 9})
    ),
    ("series", ONE | {"start": 0, "end": 10**9, "step": "1"}),
    *(("keys", {"prefix": p, "limit": n, "position": at}) for p in ("", "b") for n in (0, 1) for at in (-1, 0, 1)),
    ("add_aggregates", ADDED),
    ("query", ONE),
    ("insert", NEXT),
    *(("insert", NEXT | {"answer": True, "lookbacks": lookbacks}) for lookbacks in ([], ["1s", "21"], ["soon"])),
    *(
        ("bulk-insert", bulk_of([(13, "a", 1.0, 2, "w", True)]) | origin)
        for origin in (P1, P1, P1 | {"epoch": 2}, P1, P2)
    ),
    *(("insert", entry_of((14, "a", 1.0, 2, "v", True)) | P2 | {"epoch": epoch}) for epoch in (2, 2, 1)),
    *(("bulk-evict", {"time": time, "key": "a"} | P3) for time in (5, 5, 6)),
    ("batch", [bulk_of(ROWS), bulk_of(ROWS[:1])], "q", 1),
    ("batch", [bulk_of(ROWS)], "q", 1),
]
"""What the two edges say in words of their own, once: pages, buckets, retries, numbers that were used, takeovers."""


@pytest.fixture(scope="module")
def edges(services):
    return {kind: edge_of(kind, services, None) for kind in ("rest", "grpc")}


def created(edge, name, kind):
    edge.do("delete", name)
    edge.specs.pop(name, None)
    return edge.do("create", name=name, time_unit="s", keyed=True, fields=FIELDS, **SPECS[kind])


@pytest.mark.parametrize("kind", SPECS)
@example(history=HISTORY)
@given_(history=st.lists(step, min_size=1, max_size=12))
def test_both_edges_mean_the_same(edges, kind, history):
    made = [named_alike(created(edge, name, kind)) for name, edge in edges.items()]
    assert made[0] == made[1]
    for what in [*history, ("describe", {})]:
        over_rest, over_grpc = (named_alike(take(edge, name, what)) for name, edge in edges.items())
        assert repr(over_rest).replace("'rest", "'grpc") == repr(sorted_as(over_grpc, over_rest)), what


good_row = st.tuples(
    times, keys, floats, st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", "ü", "x"]), st.booleans()
)


@settings(max_examples=settings.default.max_examples if THOROUGH else 8)
@given_(rows=st.lists(good_row, min_size=1, max_size=5), time=times)
def test_a_retry_over_another_edge_is_known_and_other_data_refused(edges, rows, time):
    rest, grpc = edges.values()
    created(rest, "both", "ordered")
    grpc.specs["both"] = rest.specs["both"]
    others = [*rows[:-1], (*rows[-1][:-1], not rows[-1][-1])]
    evicted = [{"time": time}, {"start": time, "end": time}]
    writes, different = (
        [
            ("insert", entry_of(some[-1])),
            ("bulk-insert", bulk_of(some)),
            *(("bulk-evict", each | {"key": key}) for each in evicted),
        ]
        * 2
        for some, key in ((rows, "a"), (others, "b"))
    )
    for sequence, ((call, write), (_, other)) in enumerate(zip(writes, different, strict=True), 1):
        origin = {"producer": "p", "sequence": sequence}
        first, second = (rest, grpc) if sequence <= 4 else (grpc, rest)
        assert "already_applied" not in first.do(call, "both", **write, **origin)
        for edge in (second, first):
            assert edge.do(call, "both", **write, **origin)["already_applied"], (edge, write)
            refused = edge.do(call, "both", **other, **origin)
            assert (refused.reason, refused.field) == ("SEQUENCE_REUSED", "sequence")
            assert "with other data" in refused.message
        if call == "bulk-insert":
            assert as_arrow(rest, "both", rows, origin)["already_applied"]
            assert as_arrow(rest, "both", others, origin).field == "sequence"


def sorted_as(found, pattern):
    """Protobuf maps have no order, so put names in the other edge's; compared as text, which tells -0.0 from 0.0."""
    if isinstance(found, dict) and isinstance(pattern, dict) and set(found) == set(pattern):
        return {name: sorted_as(found[name], pattern[name]) for name in pattern}
    if isinstance(found, list) and isinstance(pattern, list) and len(found) == len(pattern):
        return [sorted_as(a, b) for a, b in zip(found, pattern, strict=True)]
    return found


def as_arrow(edge, name, rows, origin):
    """Send rows as record batches of two rows, with strings that are coded in an order of their own."""
    bulk = bulk_of(rows)
    columns = bulk["fields"]
    named = {"time": bulk["time"], "key": dictionary(bulk["key"]), **columns, "s": dictionary(columns["s"])}
    named["f"] = [SPECIALS.get(value, value) for value in columns["f"]]
    table = pa.table(named)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    body = sink.getvalue().to_pybytes()
    return edge.call("POST", f"/{name}/bulk-insert", content=body, headers=ARROW, params=origin)


def dictionary(strings):
    texts = sorted({*strings, "nobody has this one"}, reverse=True)
    return pa.DictionaryArray.from_arrays([texts.index(text) for text in strings], texts)
