"""Requests that REST refuses: the problem document names the field, and nothing changes.

tests/edges has what all edges refuse. Only JSON, texts and parameters can say what is refused here.
"""

import pytest

from sash_engine.monoids import Mean
from tests.rest.conftest import made
from tests.support.arrow import ARROW
from tests.support.refusals import COUNT, JSON, refuse
from tests.support.servers import problem

WINDOWS = "/v1/windows"
TYPES = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
SPECS = {
    "plain": {"time_unit": "s"},
    "typed": {"keyed": True, "fields": TYPES, "aggregates": {"all": {"function": "collect", "field": "i"}}},
    "flights": {"keys": ["airport", "carrier"], "fields": {"delay": "float64"}},
    "limited": {"time_unit": "none", "keys": ["tenant", "user"]},
    "panes": {"granularity": "10", "aggregates": {name: {"function": name} for name in ("count", "mean", "collect")}},
}


@pytest.fixture(scope="module", autouse=True)
def before(http):
    """The windows, as they are before each case and after it."""
    for name, spec in SPECS.items():
        next(made(http, name=name, **spec))
    http.post(f"{WINDOWS}/plain/insert", json={"time": 1, "value": 1}).raise_for_status()
    return http.get(WINDOWS).json()


@pytest.fixture(autouse=True)
def _unchanged(http, before):
    yield
    assert http.get(WINDOWS).json() == before


MISSING = object()


def changed(document, **members):
    """A document with other values of some members, one at a time."""
    some = [document | {name: value} for name, values in members.items() for value in values]
    return [{name: value for name, value in each.items() if value is not MISSING} for each in some]


OUTSIDE = [2**63, 2**64, -(2**63) - 1]
ENTRY, COLUMNS = {"time": 1, "value": 1}, {"time": [1, 2], "value": [1, 2]}
SPEC, COMMIT = {"name": "w", "aggregates": COUNT}, {"query": "q", "batch": 0, "stages": []}
GOOD = {"f": 1.0, "i": 1, "s": "x", "b": True}
BAD = {
    "f": ["x", False, None],
    "i": [1.5, 1.0, True, "1", 2**63, "NaN"],
    "s": [1, None, True],
    "b": [1, 0.0, "true", None],
}
TYPED_ENTRY = {"time": 1, "key": "k", "fields": GOOD}
TYPED_COLUMNS = {"time": [1, 2], "key": ["k", "k"]} | {name: [value] * 2 for name, value in GOOD.items()}
LIMIT = {"aggregate": "n", "lookback": 10, "value": 2}
DECIDED = {"time": 1, "key": "a|x", "value": 1, "limits": [LIMIT]}
TOLD, SUM = Mean.parts
PARTIALS = {"time": [1], "partials": {}, "entries": [1]}


def origins(document):
    sent = document | {"producer": "p", "sequence": 1}
    return {
        "epoch": changed(sent, epoch=[2**63, "1"]),
        "producer": changed(sent, producer=["", 7, None]),
        "sequence": changed(sent, sequence=["1", 1.0, 2**63]),
    }


def parts(field, of_mean=MISSING, of_collect=MISSING):
    given = {"mean": of_mean, "collect": of_collect}
    return {field: changed(PARTIALS, partials=[{name: each for name, each in given.items() if each is not MISSING}])}


POSTED = {
    "": {
        "name": changed(SPEC, name=[MISSING, 7, None]),
        "aggregates": changed(SPEC, aggregates=[MISSING]),
        "keyed": [*changed(SPEC, keyed=["yes"]), SPEC | {"keys": ["a"], "keyed": False}],
        "keys": changed(SPEC, keys=[[]]),
        "colour": changed(SPEC, colour=["red"]),
        "idle_expiry": changed(SPEC, idle_expiry=[30]),
        "algorithm": changed(SPEC, algorithm=[1]),
    },
    "/plain/aggregates": {"body": [[]], "aggregates.p": [{"p": 7}]},
    "/plain/insert": {
        "time": [{}, *changed(ENTRY, time=[None, "noon", 1.5, 1.0, True, [1], {}, *OUTSIDE, 10**40])],
        "value": [*changed(ENTRY, value=[None, True, "1", "nan", [1]]), {"time": 1, "fields": {}}],
        "key": changed(ENTRY, key=[None, 7]),
        "other": changed(ENTRY, other=[1]),
        "fields": [{"time": 1, "fields": 7}],
        "answer": changed(ENTRY, answer=["yes", 1, None]),
        "lookbacks": changed(ENTRY | {"answer": True}, lookbacks=["5s", None]) + changed(ENTRY, lookbacks=[["5s"]]),
        "lookbacks[0]": [ENTRY | {"answer": True, "lookbacks": [True]}],
        "lookbacks[1]": [ENTRY | {"answer": True, "lookbacks": ["5s", 1.5]}],
    }
    | origins(ENTRY),
    "/plain/bulk-insert": {
        "time": [{}, {"value": [1]}, *changed(COLUMNS, time=[1, None])],
        "time[0]": changed(COLUMNS, time=[[True, 1], ["noon", 1]]),
        "time[1]": changed(COLUMNS, time=[[1, each] for each in (1.5, None, 2**70, *OUTSIDE)]),
        "value": changed(COLUMNS, value=[1]),
        "value[1]": changed(COLUMNS, value=[[1, None], [1, True], ["NaN", "nan"], [1, [2]]]),
        "key": changed(COLUMNS, key=["k"]),
        "other": [
            *changed(COLUMNS, other=[[1, 1]]),
            {"time": [1], "other": [1]},
            {"time": [1], "fields": {"value": [1]}, "other": [1]},
        ],
    }
    | origins(COLUMNS),
    "/plain/bulk-evict": {
        "time": changed({}, time=[1.5, 2**63, "noon"]),
        "key": [{"time": 1, "key": 1}],
        "keys": [{"time": 1, "keys": "k"}],
    }
    | origins({"time": 1}),
    "/plain/punctuate": {"time": changed({}, time=[{}])},
    "/typed/insert": {name: [TYPED_ENTRY | {"fields": GOOD | {name: each}} for each in BAD[name]] for name in BAD}
    | {"key": changed(TYPED_ENTRY, key=[7, True]), "f": [{"time": 1, "key": "k", "value": 1}]},
    "/typed/bulk-insert": {
        f"{name}[1]": [TYPED_COLUMNS | {name: [GOOD[name], each]} for each in BAD[name]] for name in BAD
    }
    | {"key[1]": changed(TYPED_COLUMNS, key=[["k", 7], ["k", True]])},
    "/typed/answers-at": {
        "time": [{"key": ["a"]}],
        "time[0]": [{"time": ["a"], "key": ["a"]}],
        "f": [{"time": [1], "key": ["a"], "f": [1.0]}],
    },
    "/plain/stage?query=q&batch=0": {"value": [{"time": [1]}], "producer": [COLUMNS | {"producer": "p"}]},
    "/plain/stage?query=q&batch=x": {"batch": [COLUMNS]},
    "/plain/stage?query=q&batch=0&other=1": {"other": [COLUMNS]},
    "/plain/stage?batch=0": {"query": [COLUMNS]},
    "/plain/stage?query=q": {"batch": [COLUMNS]},
    "/plain/commit": {
        "query": changed(COMMIT, query=[7, MISSING]),
        "batch": changed(COMMIT, batch=["0", MISSING]),
        "stages": changed(COMMIT, stages=["x", MISSING]),
        "stages[0]": changed(COMMIT, stages=[[7]]),
        "other": changed(COMMIT, other=[1]),
    },
    "/flights/insert": {
        "parts.carrier": [
            {"time": 1, "airport": "a", "delay": 1},
            {"time": 1, "key": {"airport": "a", "carrier": 7}, "delay": 1},
        ],
        "airport": [{"time": 1, "key": "a|b", "airport": "a", "delay": 1}],
    },
    "/flights/bulk-insert": {
        "parts.carrier": [{"time": [1], "airport": ["a"], "delay": [1]}],
        "carrier[0]": [{"time": [1], "key": {"airport": ["a"], "carrier": [7]}, "delay": [1]}],
        "airport": [{"time": [1], "key": ["a|b"], "airport": ["a"], "delay": [1]}],
    },
    "/limited/admit": {
        "limits": changed(DECIDED, limits=[MISSING, 7]),
        "limits[0]": changed(DECIDED, limits=[[7]]),
        "limits[0].aggregate": changed(DECIDED, limits=[[{"lookback": 10, "value": 10}]]),
        "limits[0].lookback": changed(DECIDED, limits=[[{"aggregate": "n", "value": 1}], [LIMIT | {"lookback": 1.5}]]),
        "limits[0].value": changed(DECIDED, limits=[[{"aggregate": "n", "lookback": 10}]])
        + changed(DECIDED, limits=[[LIMIT | {"value": each}] for each in ("x", True)]),
        "limits[0].by": changed(DECIDED, limits=[[LIMIT | {"by": "tenant"}]]),
        "limits[1].more": changed(DECIDED, limits=[[LIMIT, LIMIT | {"more": 1}]]),
        "time": changed(DECIDED, time=["soon"]),
        "key": changed(DECIDED, time=[[1]]),
        "more": changed(DECIDED, more=[1]),
    },
    "/panes/bulk-insert": {
        "entries": changed(PARTIALS, entries=[MISSING]),
        "entries[0]": changed(PARTIALS, entries=[[1.5]]),
        "value": changed(PARTIALS, value=[[1]]),
        "partials": changed(PARTIALS, partials=[[]]),
        "partials.nope": changed(PARTIALS, partials=[{"nope": {}}]),
    }
    | parts("partials.mean", [])
    | parts(f"partials.mean.{TOLD}", {})
    | parts(f"partials.mean.{TOLD}[0]", {TOLD: [True], SUM: [1.0]})
    | parts(f"partials.mean.{SUM}[0]", {TOLD: [1], SUM: ["x"]})
    | parts(f"partials.mean.{SUM}", {TOLD: [1], SUM: 1.0})
    | parts("partials.collect.blob", of_collect={"values": [1]})
    | parts("partials.collect.more", of_collect={"blob": [], "more": []}),
}


@pytest.mark.parametrize(
    ("path", "field", "document"),
    [(path, field, document) for path, of in POSTED.items() for field, some in of.items() for document in some],
)
def test_a_document(http, path, field, document):
    refuse(http, "POST", WINDOWS + path, 400, field, json=document)


ASKED = {
    "/plain/query": {
        "lookback": ["lookback="],
        "lookbacks": ["lookbacks=5m"],
        "as_of": ["as_of=x", "as_of=1.5", f"as_of={2**63}", "as_of=" + "9" * 5000, "as_of=1&as_of=2"],
        "pretty": ["pretty=no"],
        "times": ["times=rfc"],
    },
    "/plain/range": {
        "start": ["start=a&end=2", "start=noon&end=2", "start=1&start=2&end=3"],
        "end": ["start=1&end=2.0", f"start=1&end={2**63}"],
        "end_exclusive": ["start=1&end=2&end_exclusive=1"],
        "lookback": ["start=1&end=2&lookback=5m"],
    },
    "/typed/query": {
        "all_keys": ["key=a&all_keys=true", "all_keys=yes", "all_keys=true&all_keys=true"],
        "combine": ["combine=1&all_keys=true"],
        "keys": ["keys=a"],
    },
    "/typed/range": {"all_keys": ["start=1&end=2&key=a&all_keys=true"], "combine": ["start=1&end=2&combine=true"]},
    "/typed/series": {
        "all_keys": ["start=1&end=2&step=1&key=a&all_keys=true"],
        "width": ["start=1&end=2&step=1&width=&key=a"],
        "start": ["start=x&end=2&step=1&key=a"],
        "end": [f"start=1&end={2**63}&step=1&key=a"],
        "lookback": ["start=1&end=2&step=1&lookback=5s&key=a"],
    },
    "/typed/keys": {
        "limit": ["limit=many"],
        "prefix": ["prefix=a&prefix=b"],
        "start": ["start=1"],
        "position": ["position=soon"],
    },
    "/typed/watch": {
        "key": ["key="],
        "all_keys": ["key=a&all_keys=true"],
        "combine": ["key=a&combine=yes"],
        "interval": [f"key=a&interval={each}" for each in (49, 0, 3_600_001, "fast")],
        "as_of": ["key=a&as_of=soon"],
        "start": ["key=a&start=3"],
    },
    "/flights/query": {
        "where": ["where=carrier", 'where=carrier in ("a)'],
        "having": ["having=sum", "having=sum>x"],
        "top.n": ["top=sum&n=0"],
        "top.order": ["order=up"],
    },
    "/limited/query": {"times": ["times=iso"], "as_of": ["as_of=now"]},
    "/panes/query": {"partials": ["partials=yes"]},
}


@pytest.mark.parametrize(
    ("path", "field", "question"),
    [(path, field, question) for path, of in ASKED.items() for field, some in of.items() for question in some],
)
def test_a_question(http, path, field, question):
    refuse(http, "GET", f"{WINDOWS}{path}?{question}", 400, field)


@pytest.mark.parametrize("path", ["", "/query", "/range?start=1&end=2", "/watch"])
def test_a_window_whose_name_is_none(http, path):
    refuse(http, "GET", f"{WINDOWS}/%00{path}", 404, "window")


# ---------------------------------------------------------------- bodies that are no document

NO_OBJECT = (b"", b"{", b"nonsense", b"[1, 2]", b"17", b'"text"', b"null", b'{"time": 1,}', b"\xff\xfe", b"[" * 50_000)
NO_SPEC = ("{", "- a\n- b", "name: [", "\tx: 1", "!!python/object:os.system {}", "null", "name: 2020-99-99",
           "name: !!bool maybe", "[" * 900, "a: &a [*a]")  # fmt: skip
YAML, TEXT, GZIP = {"content-type": "application/yaml"}, {"content-type": "text/plain"}, {"content-encoding": "gzip"}
WRITES = "/plain/insert", "/plain/bulk-insert", "/plain/bulk-evict"
TEXTS = [
    *((path, 400, "body", body, JSON, "") for path in WRITES for body in NO_OBJECT),
    *((path, 415, "Content-Type", b'{"time": 1}', TEXT, "application/json") for path in WRITES),
    ("/plain/aggregates", 415, "Content-Type", b"{}", ARROW, ""),
    ("/plain/insert", 415, "Content-Encoding", b"\x1f\x8b", JSON | GZIP, ""),
    *(("", 400, "spec", text.encode(), YAML, "") for text in NO_SPEC),
    ("", 400, "body", b"\xff\xfe", YAML, ""),
    *(
        (f"/plain/{route}", 400, field, body, JSON, '"NaN"')
        for route, body, field in (
            ("insert", b'{"time": NaN, "value": 1}', "time"),
            ("insert", b'{"time": 1, "value": Infinity}', "value"),
            ("insert", b'{"time": 1, "fields": {"value": -Infinity}}', "fields.value"),
            ("bulk-insert", b'{"time": [1, NaN], "value": [1, 2]}', "time[1]"),
            ("bulk-insert", b'{"time": [1, 2], "value": [1, Infinity]}', "value[1]"),
            ("bulk-evict", b'{"time": NaN}', "time"),
        )
    ),
    *(
        (path, 400, field, body, JSON, f"the name {field!r} is given twice")
        for path, body, field in (
            ("", b'{"name": "a", "name": "b", "aggregates": {"n": {"function": "count"}}}', "name"),
            ("", b'{"name": "a", "aggregates": {"n": {"function": "count"}, "n": {}}}', "aggregates.n"),
            ("/plain/aggregates", b'{"m": {"function": "min", "function": "max"}}', "m.function"),
            ("/plain/insert", b'{"time": 1, "time": 2, "value": 1}', "time"),
            ("/plain/insert", b'{"time": 1, "value": 1, "v\\u0061lue": 2}', "value"),
            ("/plain/insert", b'{"time": 1, "fields": {"value": 1, "value" : 1}}', "fields.value"),
            ("/plain/bulk-insert", b'{"time": [1, 2], "value": [1, 2], "time"\n: [3, 4]}', "time"),
            ("/plain/bulk-evict", b'{"time": 1, "time": 1}', "time"),
            ("/plain/stage?query=q&batch=0", b'{"time": [1], "value": [1], "value": [2]}', "value"),
            ("/plain/commit", b'{"query": "q", "batch": 0, "stages": [], "batch": 1}', "batch"),
        )
    ),
    ("", 400, "spec", b'{"name": "a", "keyed": true, "keyed": false}', YAML, "the name 'keyed' is given twice"),
]


@pytest.mark.parametrize(("path", "status", "field", "body", "headers", "says"), TEXTS)
def test_a_body(http, path, status, field, body, headers, says):
    assert says in refuse(http, "POST", WINDOWS + path, status, field, content=body, headers=headers)["detail"]


@pytest.mark.parametrize(
    ("path", "limit"),
    [("", "65536 bytes"), ("/plain/aggregates", "65536 bytes"), ("/plain/insert", "1 MiB"), (WRITES[1], "1 MiB")],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_body_that_is_too_large(http, path, limit, chunked):
    size = 5 << 20
    content = (b" " * (1 << 16) for _ in range(size >> 16)) if chunked else b" " * size
    found = refuse(http, "POST", WINDOWS + path, 413, "body", limit, content=content, headers=JSON)
    assert found["type"] == "urn:sash:error:too-large"


@pytest.mark.parametrize("kind", [JSON, YAML])
def test_a_spec_that_is_too_large(http, kind):
    """A list of numbers takes seconds to read and to check."""
    text = f'{{"name": "w", "aggregates": {{"q": {{"function": "quantile", "q": [{"0.5, " * 14_000}0.5]}}}}}}'
    refuse(http, "POST", WINDOWS, 413, "body", "65536 bytes", content=text.encode(), headers=kind)


# ---------------------------------------------------------------- what they say


@pytest.mark.parametrize("time", OUTSIDE)
def test_a_time_out_of_range_names_the_limit(http, time):
    refuse(http, "POST", f"{WINDOWS}/plain/insert", 400, "time", "2^63", json={"time": time, "value": 1})
    refuse(http, "POST", f"{WINDOWS}/plain/bulk-insert", 400, "time[0]", "2^63", json={"time": [time], "value": [1]})


@pytest.mark.parametrize(
    ("method", "path", "field", "document"),
    [
        ("GET", "range?start=noon&end=20", "start", None),
        ("GET", "query?as_of=1.5", "as_of", None),
        ("POST", "insert", "time", {"time": 1.5, "value": 1}),
        ("POST", "insert", "time", {"time": None, "value": 1}),
        ("POST", "bulk-insert", "time[1]", {"time": [1, True], "value": [1, 1]}),
        ("POST", "bulk-evict", "time", {"time": "noon"}),
        ("POST", "punctuate", "time", {"time": {}}),
    ],
)
def test_a_time_that_is_none_names_the_unit_and_shows_one(http, method, path, field, document):
    found = refuse(http, method, f"{WINDOWS}/plain/{path}", 400, field, json=document)
    assert "write ticks (s), such as 1357018200, ISO 8601 (2013-01-01T05:30Z)" in found["detail"]


def test_what_the_caller_sent_is_quoted_in_part_only(http):
    response = http.post(f"{WINDOWS}/plain/insert", json={"time": 1, "n" * 100_000: 1})
    assert problem(response)["status"] == 400
    assert len(response.content) < 2000


def test_a_lone_surrogate_is_no_json(http):
    body = b'{"time": 1, "value": 1, "\\ud800": 1}'
    assert problem(http.post(f"{WINDOWS}/plain/insert", content=body, headers=JSON))["status"] == 400


def test_a_keyed_window_names_the_ways_to_give_keys(http):
    detail = http.get(f"{WINDOWS}/typed/query").json()["detail"]
    for way in ("all_keys=true", "--all-keys", "keys=ALL_KEYS"):
        assert way in detail
