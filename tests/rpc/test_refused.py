"""Messages that gRPC refuses: the error names field and limit, and nothing changes.

tests/edges has what all edges refuse. Only messages can say what is refused here.
"""

import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.edges import spec_of
from tests.support.messages import float64, int64, strings
from tests.support.rpc_errors import refuse

COUNT = {"n": {"function": "count"}}
TYPES = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
SPECS = {
    "plain": {"aggregates": COUNT},
    "typed": {"keyed": True, "fields": TYPES, "aggregates": COUNT},
    "limited": {"keys": ["tenant", "user"], "time_unit": "none", "aggregates": COUNT | {"sum": {"function": "sum"}}},
    "panes": {"granularity": "10", "aggregates": {"mean": {"function": "mean"}}},
}
WINDOW = {"Series": {"start": 1, "end": 2, "step": "1"}, "RangeQuery": {"start": 1, "end": 2}}
"""What else some questions must have."""


@pytest.fixture(scope="module", autouse=True)
def before(stub):
    """The windows, as they are before each case and after it."""
    for name, spec in SPECS.items():
        stub.CreateWindow(pb.CreateWindowRequest(spec=spec_of({"name": name, **spec})))
    stub.Insert(pb.InsertRequest(window="plain", time=1, value=1))
    return stub.ListWindows(pb.ListWindowsRequest())


def value(**kind):
    return pb.Value(**kind)


def mean(column):
    return {"mean": pb.PartialColumns(columns=[column])}


X = pb.Column(string=strings(["x"], 0))
ONE = pb.Column(float64=float64(1))
ROW = {"f": ONE, "i": pb.Column(int64=int64(1)), "s": X, "b": pb.Column(bool=b"\x01")}
TWO = pb.Limit(aggregate="n", lookback="10", value=2)
DECIDED = {"key": "a|x", "time": 1, "value": 1.0, "limits": [TWO]}
NAMED = pb.BulkInsertRequest(window="limited", producer="p", sequence=1)
TWICE = [
    ({"key": "a", "keys": ["b"]}, "keys"),
    ({"key": "a", "all_keys": True}, "all_keys"),
    ({"keys": ["b"], "all_keys": True}, "keys"),
    ({"key": "a", "keys": ["b"], "all_keys": True}, "keys"),
    ({"keys": ["a", ""]}, "key"),
]

REFUSED = [
    *(
        ("Insert", "plain", {"time": 1, **given}, field, None)
        for given, field in (
            ({"value": 1.0, "fields": {"value": value(float64=1)}}, "value"),
            ({"fields": {"value": value(string="x")}}, "value"),
            ({"fields": {"value": value(bool=True)}}, "value"),
            ({"fields": {"value": value()}}, "fields.value"),
            ({"fields": {"value": value(list=pb.ValueList())}}, "fields.value"),
        )
    ),
    ("BulkInsert", "plain", {"time": b"1234567", "fields": {"value": ONE}}, "time", "8 bytes"),
    *(
        ("BulkInsert", "plain", {"time": int64(1), "fields": {"value": column}}, "value", limit)
        for column, limit in (
            (pb.Column(), None),
            (pb.Column(float64=b"123"), "8 bytes"),
            (pb.Column(int64=int64(1)), None),
            (pb.Column(bool=b"\x01"), None),
            (pb.Column(bool=b"\x02"), "0 to 1"),
            (X, None),
        )
    ),
    *(
        ("BulkInsert", "typed", {"time": int64(1), "fields": ROW, "key": keys}, "key", limit)
        for keys, limit in (
            (strings(["k"], 1), "0 to 0"),
            (strings([], 0), None),
            (strings(["k"], 2**32 - 1), None),
            (strings(["k", "k"], 2), None),
            (strings(["k"], 0, 0), "1"),
            (pb.Strings(dictionary=["k"], codes=b"123"), "4 bytes"),
        )
    ),
    *(
        ("BulkInsert", "panes", {"time": int64(1), "entries": int64(1), **given}, field, None)
        for given, field in (
            ({"entries": b"123"}, "entries"),
            ({"fields": {"value": ONE}}, "partials"),  # values and partials
            ({"partials": mean(pb.Column(int64=b"123"))}, "partials.mean"),
            ({"partials": mean(pb.Column())}, "partials.mean"),
            ({"partials": mean(X)}, "partials.mean"),
        )
    ),
    *(
        ("Admit", "limited", DECIDED | given, field, None)
        for given, field in (
            ({"limits": [pb.Limit(aggregate="n")]}, "limits.lookback"),
            ({"limits": [pb.Limit(aggregate="n", lookback="10", by=["user"], all_keys=True)]}, "limits.all_keys"),
            ({"entries": pb.BulkInsertRequest()}, "key"),
            ({"key": None}, "key"),
            ({"value": None}, "value"),
        )
    ),
    ("Admit", "limited", {"entries": pb.BulkInsertRequest(window="other"), "limits": [TWO]}, "entries.window", None),
    ("Admit", "limited", {"entries": NAMED, "limits": [TWO]}, "entries.producer", None),
    *(
        ("Query", "limited", given, field, None)
        for given, field in (
            ({"where": [pb.Condition(part="key", values=["x"])]}, "where"),
            ({"where": [pb.Condition(part="user")]}, "where"),
            ({"where": [pb.Condition(part="user", op="~", values=["x"])]}, "where"),
            ({"by": ["user"], "having": [pb.Having(aggregate="n", op="~", value=1)]}, "having.op"),
            ({"key": "a|x", "combine": True}, "combine"),
        )
    ),
    *((call, "typed", given, field, None) for call in ("Query", "RangeQuery", "Series") for given, field in TWICE),
]


@pytest.mark.parametrize(("method", "window", "given", "field", "limit"), REFUSED)
def test_a_message(stub, before, method, window, given, field, limit):
    found = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name[method]
    request = getattr(pb, found.input_type.name)(window=window, **WINDOW.get(method, {}) | given)
    refuse(getattr(stub, method), request, "INVALID_ARGUMENT", field, limit)
    assert stub.ListWindows(pb.ListWindowsRequest()) == before


def test_a_parameter_that_is_no_parameter(stub, before):
    wrong = pb.AggregateSpec(function="sum", parameters={"function": pb.Value(string="count")})
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates={"n": wrong}))
    refuse(stub.CreateWindow, request, "INVALID_ARGUMENT", "aggregates.n.parameters.function")
    assert stub.ListWindows(pb.ListWindowsRequest()) == before


def test_a_spec_that_is_too_large(stub, before):
    numbers = pb.Value(list=pb.ValueList(items=[pb.Value(float64=0.5)] * 7000))
    aggregates = {"q": pb.AggregateSpec(function="quantile", parameters={"q": numbers})}
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates=aggregates))
    refuse(stub.CreateWindow, request, "RESOURCE_EXHAUSTED", "spec", "65536 bytes")
    more = pb.AddAggregatesRequest(window="plain", aggregates=aggregates)
    refuse(stub.AddAggregates, more, "RESOURCE_EXHAUSTED", "aggregates", "65536 bytes")
    assert stub.ListWindows(pb.ListWindowsRequest()) == before
