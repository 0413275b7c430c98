"""The same history through both edges gives the same answers, counts and errors."""

import contextlib

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import running_service

SPECIALS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
FIELDS = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
AGGREGATES = {
    "n": {"function": "count"},
    "mean": {"function": "mean", "field": "f"},
    "total": {"function": "sum", "field": "i"},
    "all": {"function": "collect", "field": "f"},
    "words": {"function": "collect", "field": "s"},
    "last": {"function": "last", "field": "b"},
    "worst": {"function": "arg_max", "field": "i", "returns": "s"},
}
SPEC = {"time_unit": "s", "keyed": True, "fields": FIELDS, "aggregates": AGGREGATES, "slide": {"max_age": 20}}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


class OverRest:
    """The operations as plain values, over REST."""

    def __init__(self, service):
        self.http = service.http()

    def call(self, method, path, **request):
        response = self.http.request(method, f"/v1/windows{path}", **request)
        document = response.json()
        return document if response.is_success else ("refused", document["detail"], document.get("field"))

    def create(self, name):
        return self.call("POST", "", json={"name": name, **SPEC})

    def insert(self, name, time, key, fields):
        return self.call("POST", f"/{name}/insert", json={"time": time, "key": key, "fields": fields})

    def bulk_insert(self, name, times, keys, columns):
        return self.call("POST", f"/{name}/bulk-insert", json={"time": times, "key": keys, **columns})

    def bulk_evict(self, name, time, key):
        return self.call("POST", f"/{name}/bulk-evict", json={"time": time} | ({} if key is None else {"key": key}))

    def query(self, name, key, lookbacks):
        found = self.call("GET", f"/{name}/query", params={"key": key, "lookback": lookbacks})
        return found if isinstance(found, tuple) else found["answers"]

    def range_query(self, name, key, start, end):
        return self.call("GET", f"/{name}/range", params={"key": key, "start": start, "end": end})

    def describe(self, name):
        return self.call("GET", f"/{name}")


class OverGrpc:
    """The same operations over gRPC, told in REST's values."""

    def __init__(self, service):
        self.stub = service.stub()

    def call(self, method, request, shown):
        try:
            return shown(getattr(self.stub, method)(request))
        except grpc.RpcError as error:
            from sash_client.errors import from_rpc

            decoded = from_rpc(error)
            return "refused", decoded.message, decoded.field

    def create(self, name):
        aggregates = {each: pb.AggregateSpec(**options) for each, options in AGGREGATES.items()}
        spec = pb.WindowSpec(name=name, time_unit="s", keyed=True, fields=FIELDS, aggregates=aggregates)
        spec.slide.max_age = "20"
        return self.call("CreateWindow", pb.CreateWindowRequest(spec=spec), lambda response: window(response.window))

    def insert(self, name, time, key, fields):
        values = {each: pb.Value(**{FIELDS[each]: number(value, each)}) for each, value in fields.items()}
        return self.call("Insert", pb.InsertRequest(window=name, time=time, key=key, fields=values), written)

    def bulk_insert(self, name, times, keys, columns):
        encoded = {
            "f": pb.Column(float64=np.array([number(v, "f") for v in columns["f"]], "<f8").tobytes()),
            "i": pb.Column(int64=np.array(columns["i"], "<i8").tobytes()),
            "s": pb.Column(string=coded(columns["s"])),
            "b": pb.Column(bool=np.array(columns["b"], np.uint8).tobytes()),
        }
        request = pb.BulkInsertRequest(
            window=name, time=np.array(times, "<i8").tobytes(), fields=encoded, key=coded(keys)
        )
        return self.call("BulkInsert", request, written)

    def bulk_evict(self, name, time, key):
        request = pb.BulkEvictRequest(window=name, time=time, key=key)
        return self.call("BulkEvict", request, lambda response: {"evicted": response.evicted})

    def query(self, name, key, lookbacks):
        request = pb.QueryRequest(window=name, key=key, lookbacks=[str(each) for each in lookbacks])
        return self.call("Query", request, lambda response: [answer(each) for each in response.answers])

    def range_query(self, name, key, start, end):
        return self.call("RangeQuery", pb.RangeQueryRequest(window=name, key=key, start=start, end=end), answer)

    def describe(self, name):
        return self.call("GetWindow", pb.GetWindowRequest(name=name), window)


def number(value, name):
    return SPECIALS[value] if name == "f" and isinstance(value, str) else float(value) if name == "f" else value


def coded(strings):
    dictionary = sorted(set(strings))
    return pb.Strings(dictionary=dictionary, codes=np.array([dictionary.index(s) for s in strings], "<u4").tobytes())


def plain(value):
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [plain(item) for item in value.list.items]
    if kind == "integer":
        return int.from_bytes(value.integer, "little", signed=True)
    found = getattr(value, kind)
    for name, special in SPECIALS.items():
        if isinstance(found, float) and repr(found) == repr(special):
            return name
    return found


def optional(message, field):
    return getattr(message, field) if message.HasField(field) else None


def answer(message):
    return {
        "key": optional(message, "key"),
        "lookback": message.lookback or None,
        "start": optional(message, "start"),
        "end": optional(message, "end"),
        "entries": message.entries,
        "aggregates": {name: plain(value) for name, value in message.aggregates.items()},
    }


def written(message):
    return {"inserted": message.inserted, "late": message.late, "evicted": message.evicted}


def window(message):
    spec = message.spec
    return {
        "spec": {
            "name": spec.name,
            "time_unit": spec.time_unit,
            "keyed": spec.keyed,
            "fields": dict(spec.fields),
            "aggregates": {
                name: {
                    option: getattr(each, option)
                    for option in ("function", "field", "returns")
                    if getattr(each, option)
                }
                for name, each in spec.aggregates.items()
            },
            "slide": {"max_age": spec.slide.max_age},
            "order": {"late": spec.order.late},
        },
        "entries": message.entries,
        "keys": message.keys,
        "oldest": optional(message, "oldest"),
        "newest": optional(message, "newest"),
        "counts": written(message.counts),
    }


times = st.integers(-5, 45)
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
step = st.one_of(
    st.tuples(st.just("insert"), row),
    st.tuples(st.just("bulk"), st.lists(row, max_size=8)),
    st.tuples(st.just("evict"), times, st.one_of(st.none(), keys, bad_key)),
    st.tuples(
        st.just("query"), st.one_of(keys, bad_key), st.lists(st.sampled_from(["5s", "1m", "90", "soon"]), max_size=3)
    ),
    st.tuples(st.just("range"), keys, times, times),
)


def play(edge, name, what, *arguments):
    match what:
        case "insert":
            time, key, *values = arguments[0]
            return edge.insert(name, time, key, dict(zip(FIELDS, values, strict=True)))
        case "bulk":
            columns = [list(column) for column in zip(*arguments[0], strict=True)] or [[] for _ in range(6)]
            return edge.bulk_insert(name, columns[0], columns[1], dict(zip(FIELDS, columns[2:], strict=True)))
        case "evict":
            return edge.bulk_evict(name, *arguments)
        case "query":
            return edge.query(name, *arguments)
        case _:
            return edge.range_query(name, *arguments)


@given(history=st.lists(step, min_size=1, max_size=12))
def test_both_edges_mean_the_same(service, history):
    edges = OverRest(service), OverGrpc(service)
    stub = edges[1].stub
    for name in ("rest", "grpc"):
        with contextlib.suppress(grpc.RpcError):
            stub.DeleteWindow(pb.DeleteWindowRequest(name=name))
    made = [edge.create(name) for edge, name in zip(edges, ("rest", "grpc"), strict=True)]
    for each in made:
        each["spec"]["name"] = "same"
    assert made[0] == made[1]
    for what in history:
        over_rest, over_grpc = play(edges[0], "rest", *what), play(edges[1], "grpc", *what)
        assert repr(over_rest).replace("'rest'", "'grpc'") == repr(sorted_as(over_grpc, over_rest)), what
    shown = [edge.describe(name) for edge, name in zip(edges, ("rest", "grpc"), strict=True)]
    for each in shown:
        each["spec"]["name"] = "same"
    assert shown[0] == shown[1]


def sorted_as(found, pattern):
    """Protobuf maps have no order, so put names in the other edge's; compared as text, which tells -0.0 from 0.0."""
    if isinstance(found, dict) and isinstance(pattern, dict) and set(found) == set(pattern):
        return {name: sorted_as(found[name], pattern[name]) for name in pattern}
    if isinstance(found, list) and isinstance(pattern, list) and len(found) == len(pattern):
        return [sorted_as(a, b) for a, b in zip(found, pattern, strict=True)]
    return found
