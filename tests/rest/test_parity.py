"""The same history through both edges gives the same answers, counts and errors."""

import base64
import contextlib

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.monoids import catalogue
from sash_proto.v1 import windows_pb2 as pb
from tests.rest.test_arrow import ARROW
from tests.support.servers import running_service

COUNTS = ("inserted", "late", "evicted", "duplicates", "ahead")
FAR = 10**11
"""Seconds: a time that is in the future for some thousand years."""
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
    },
}
ADDED = {"low": {"function": "min", "field": "i"}, "mean": {"function": "mean", "field": "f"}}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


class OverRest:
    """The operations as plain values, over REST."""

    def __init__(self, service, spec):
        self.http = service.http()
        self.spec = {"time_unit": "s", "keyed": True, "fields": FIELDS, **spec}

    def call(self, method, path, **request):
        response = self.http.request(method, f"/v1/windows{path}", **request)
        document = response.json()
        if response.is_success:
            return document
        return "refused", document["detail"], document["reason"], document.get("field"), document.get("limit")

    def create(self, name):
        return self.call("POST", "", json={"name": name, **self.spec})

    def insert(self, name, time, key, fields, lookbacks, origin):
        question = {} if lookbacks is None else {"answer": True, "lookbacks": lookbacks}
        entry = {"time": time, "key": key, "fields": fields, **question, **origin}
        return self.call("POST", f"/{name}/insert", json=entry)

    def bulk_insert(self, name, times, keys, columns, origin):
        return self.call("POST", f"/{name}/bulk-insert", json={"time": times, "key": keys, **columns, **origin})

    def bulk_evict(self, name, time, key, origin):
        document = {"time": time, **origin} | ({} if key is None else {"key": key})
        return self.call("POST", f"/{name}/bulk-evict", json=document)

    def stage(self, name, times, keys, columns, query, batch):
        document = {"time": times, "key": keys, **columns}
        found = self.call("POST", f"/{name}/stage", json=document, params={"query": query, "batch": batch})
        return found if isinstance(found, tuple) else (found.pop("stage"), found)

    def commit(self, name, query, batch, stages):
        return self.call("POST", f"/{name}/commit", json={"query": query, "batch": batch, "stages": stages})

    def entries(self, name, keys, start, end, exclusive):
        asked = {**which(keys), "start": start, "end": end} | ({"end_exclusive": "true"} if exclusive else {})
        found = self.call("GET", f"/{name}/entries", params=asked)
        if isinstance(found, tuple):
            return found
        return found["bulks"]

    def export_and_import(self, name):
        exported = self.http.get(f"/v1/windows/{name}/export")
        self.http.delete(f"/v1/windows/{name}")
        file = {"content": exported.content, "headers": {"content-type": exported.headers["content-type"]}}
        return self.call("POST", "/import", params={"name": name}, **file)

    def query(self, name, keys, lookbacks, combine=False):
        asked = {**which(keys), "lookback": lookbacks, "partials": "true"} | ({"combine": "true"} if combine else {})
        found = self.call("GET", f"/{name}/query", params=asked)
        return found if isinstance(found, tuple) else found["answers"]

    def range_query(self, name, keys, start, end, exclusive):
        asked = {**which(keys), "start": start, "end": end} | ({"end_exclusive": "true"} if exclusive else {})
        return self.call("GET", f"/{name}/range", params=asked)

    def series(self, name, keys, start, end, step, width):
        asked = {**which(keys), "start": start, "end": end, "step": step} | ({} if width is None else {"width": width})
        found = self.call("GET", f"/{name}/series", params=asked)
        if isinstance(found, dict):
            assert (found.pop("start"), found.pop("end"), found.pop("step")) == (start, end, int(step.rstrip("s")))
        return found

    def add_aggregates(self, name):
        return self.call("POST", f"/{name}/aggregates", json=ADDED)

    def keys(self, name, prefix, limit):
        found = self.call("GET", f"/{name}/keys", params={"prefix": prefix, "limit": limit})
        return found if isinstance(found, tuple) else found["keys"]

    def describe(self, name):
        return self.call("GET", f"/{name}")


class OverGrpc:
    """The same operations over gRPC, told in REST's values."""

    def __init__(self, service, spec):
        self.stub = service.stub()
        self.spec = spec

    def call(self, method, request, shown):
        try:
            return shown(getattr(self.stub, method)(request))
        except grpc.RpcError as error:
            from sash_client.errors import from_rpc

            decoded = from_rpc(error)
            return "refused", decoded.message, decoded.reason, decoded.field, decoded.limit

    def create(self, name):
        groups = {"slide": pb.SlidePolicy, "order": pb.OrderPolicy}
        given = {each: groups[each](**value) if each in groups else value for each, value in self.spec.items()}
        given["aggregates"] = aggregates(self.spec["aggregates"])
        spec = pb.WindowSpec(name=name, time_unit="s", keyed=True, fields=FIELDS, **given)
        return self.call("CreateWindow", pb.CreateWindowRequest(spec=spec), lambda response: window(response.window))

    def insert(self, name, time, key, fields, lookbacks, origin):
        values = {each: pb.Value(**{FIELDS[each]: number(value, each)}) for each, value in fields.items()}
        request = pb.InsertRequest(window=name, time=time, key=key, fields=values, **origin)
        if lookbacks is None:
            return self.call("Insert", request, written)
        request.answer = True
        request.lookbacks.extend(lookbacks)
        return self.call("Insert", request, lambda response: written(response) | {"answers": answers(response)})

    def bulk_insert(self, name, times, keys, columns, origin):
        request = self.bulk(name, times, keys, columns)
        request.MergeFrom(pb.BulkInsertRequest(**origin))
        return self.call("BulkInsert", request, written)

    def bulk(self, name, times, keys, columns):
        encoded = {
            "f": pb.Column(float64=np.array([number(v, "f") for v in columns["f"]], "<f8").tobytes()),
            "i": pb.Column(int64=np.array(columns["i"], "<i8").tobytes()),
            "s": pb.Column(string=coded(columns["s"])),
            "b": pb.Column(bool=np.array(columns["b"], np.uint8).tobytes()),
        }
        time = np.array(times, "<i8").tobytes()
        return pb.BulkInsertRequest(window=name, time=time, fields=encoded, key=coded(keys))

    def stage(self, name, times, keys, columns, query, batch):
        request = pb.StageBatchRequest(entries=self.bulk(name, times, keys, columns), query=query, batch=batch)
        return self.call(
            "StageBatch",
            request,
            lambda response: (response.stage, {"entries": response.entries, "durability": response.durability}),
        )

    def commit(self, name, query, batch, stages):
        request = pb.CommitBatchRequest(window=name, query=query, batch=batch, stages=stages)
        return self.call("CommitBatch", request, written)

    def entries(self, name, keys, start, end, exclusive):
        request = pb.EntriesRequest(window=name, **which_message(keys), start=start, end=end, end_exclusive=exclusive)
        return self.call("Entries", request, lambda bulks: [bulk_shown(bulk) for bulk in bulks])

    def export_and_import(self, name):
        chunks = list(self.stub.ExportWindow(pb.ExportWindowRequest(window=name)))
        self.stub.DeleteWindow(pb.DeleteWindowRequest(name=name))
        chunks[0].name = name
        return self.call("ImportWindow", iter(chunks), window)

    def bulk_evict(self, name, time, key, origin):
        request = pb.BulkEvictRequest(window=name, time=time, key=key, **origin)
        return self.call("BulkEvict", request, lambda response: {"evicted": response.evicted} | given_to(response))

    def query(self, name, keys, lookbacks, combine=False):
        if combine and isinstance(keys, str):
            keys = [keys]
        request = pb.QueryRequest(window=name, **which_message(keys), lookbacks=lookbacks, combine=combine)
        request.partials = True
        return self.call("Query", request, lambda response: [answer(each, partials=True) for each in response.answers])

    def range_query(self, name, keys, start, end, exclusive):
        asked = {"start": start, "end": end, "end_exclusive": exclusive}
        request = pb.RangeQueryRequest(window=name, **which_message(keys), **asked)
        return self.call("RangeQuery", request, answer)

    def series(self, name, keys, start, end, step, width):
        asked = {"start": start, "end": end, "step": step, "width": width or ""}
        return self.call("Series", pb.SeriesRequest(window=name, **which_message(keys), **asked), series)

    def add_aggregates(self, name):
        return self.call("AddAggregates", pb.AddAggregatesRequest(window=name, aggregates=aggregates(ADDED)), window)

    def keys(self, name, prefix, limit):
        request = pb.ListKeysRequest(window=name, prefix=prefix, limit=limit)
        return self.call("ListKeys", request, lambda response: list(response.keys))

    def describe(self, name):
        return self.call("GetWindow", pb.GetWindowRequest(name=name), window)


def which(keys):
    return {"all_keys": "true"} if keys is None else {"key": keys}


def which_message(keys):
    return {"all_keys": True} if keys is None else {"key": keys} if isinstance(keys, str) else {"keys": keys}


def aggregates(documents):
    return {name: pb.AggregateSpec(**options) for name, options in documents.items()}


def number(value, name):
    return SPECIALS[value] if name == "f" and isinstance(value, str) else float(value) if name == "f" else value


def coded(strings):
    dictionary = list(dict.fromkeys(strings))
    return pb.Strings(dictionary=dictionary, codes=np.array([dictionary.index(s) for s in strings], "<u4").tobytes())


def plain(value):
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [plain(item) for item in value.list.items]
    if kind == "integer":
        return int.from_bytes(value.integer, "little", signed=True)
    return shown(getattr(value, kind))


def shown(found):
    for name, special in SPECIALS.items():
        if isinstance(found, float) and repr(found) == repr(special):
            return name
    return found


def optional(message, field):
    return getattr(message, field) if message.HasField(field) else None


def bulk_shown(bulk):
    columns = {name: column_shown(column, FIELDS[name]) for name, column in bulk.fields.items()}
    return {"time": np.frombuffer(bulk.time, "<i8").tolist(), "key": texts(bulk.key), "fields": columns}


def column_shown(column, kind):
    if kind == "string":
        return texts(column.string)
    types = {"float64": "<f8", "int64": "<i8", "bool": np.bool_}
    return [shown(value) for value in np.frombuffer(getattr(column, kind), types[kind]).tolist()]


def texts(column):
    return [column.dictionary[code] for code in np.frombuffer(column.codes, "<u4").tolist()]


def partials_shown(message, name):
    function = (AGGREGATES | ADDED)[name]["function"]
    columns = message.partials[name].columns
    if [column.WhichOneof("data") for column in columns] == ["blob"]:
        return {"blob": [base64.b64encode(item).decode() for item in columns[0].blob.items]}
    return {
        part: column_shown(column, column.WhichOneof("data"))
        for part, column in zip(catalogue()[function].parts, columns, strict=True)
    }


def answer(message, partials=False):
    given = {"partials": {name: partials_shown(message, name) for name in message.partials}} if partials else {}
    return {
        "key": optional(message, "key"),
        "lookback": message.lookback or None,
        "start": optional(message, "start"),
        "end": optional(message, "end"),
        "entries": message.entries,
        "aggregates": {name: plain(value) for name, value in message.aggregates.items()},
        **given,
    }


def answers(message):
    return [answer(each) for each in message.answers]


def series(message):
    columns = {}
    for name, column in message.aggregates.items():
        if column.HasField("values"):
            columns[name] = [plain(item) for item in column.values.items]
            continue
        numbers = np.frombuffer(column.float64 or column.int64, "<f8" if column.float64 else "<i8").tolist()
        there = column.valid or bytes([1]) * len(numbers)
        columns[name] = [shown(each) if valid else None for each, valid in zip(numbers, there, strict=True)]
    return {
        "key": optional(message, "key"),
        "width": message.width,
        "time": np.frombuffer(message.time, "<i8").tolist(),
        "entries": np.frombuffer(message.entries, "<i8").tolist(),
        "aggregates": columns,
    }


def written(message):
    return {name: getattr(message, name) for name in COUNTS} | given_to(message)


def given_to(message):
    return {"durability": message.durability} | ({"already_applied": True} if message.already_applied else {})


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
            "slide": (
                ({"max_count": spec.slide.max_count} if spec.slide.HasField("max_count") else {})
                | ({"max_age": spec.slide.max_age} if spec.slide.max_age else {})
                | {"clock": spec.slide.clock}
            ),
            "order": {
                name: getattr(spec.order, name)
                for name in ("out_of_order", "late", "equal_times", "ahead", "too_far_ahead")
                if getattr(spec.order, name)
            },
            **({"idle_expiry": spec.idle_expiry} if spec.idle_expiry else {}),
        },
        "entries": message.entries,
        "keys": message.keys,
        "oldest": optional(message, "oldest"),
        "newest": optional(message, "newest"),
        "high_water_mark": optional(message, "high_water_mark"),
        "counts": {name: getattr(message.counts, name) for name in COUNTS},
        "durability": message.durability,
        "problem": message.problem if message.HasField("problem") else None,
    }


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
    st.tuples(st.just("keys"), st.sampled_from(["", "a", "x"]), st.integers(0, 3)),
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
        case "batch":
            parts, query, number = arguments
            staged = [edge.stage(name, *columns_of(rows), query, number) for rows in parts]
            # Tokens differ by chance: they are used, and not compared.
            tokens = [part[0] for part in staged if part[0] != "refused"]
            shown = [part if part[0] == "refused" else part[1] for part in staged]
            return [*shown, edge.commit(name, query, number, tokens)]
        case _:
            return getattr(edge, what)(name, *arguments)


def columns_of(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(6)]
    return columns[0], columns[1], dict(zip(FIELDS, columns[2:], strict=True))


def named_alike(document):
    if isinstance(document, dict) and "spec" in document:
        document["spec"]["name"] = "same"
    return document


@pytest.mark.parametrize("kind", SPECS)
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
    writes = [("insert", rows[-1], None), ("bulk", rows), ("bulk_evict", time, "a")] * 2
    different = [("insert", others[-1], None), ("bulk", others), ("bulk_evict", time, "b")] * 2
    for sequence, (write, other) in enumerate(zip(writes, different, strict=True), 1):
        origin = {"producer": "p", "sequence": sequence}
        first, second = edges if sequence <= 3 else edges[::-1]
        assert "already_applied" not in play(first, "both", *write, origin)
        for edge in (second, first):
            assert play(edge, "both", *write, origin)["already_applied"], (edge, write)
            refused, message, reason, field, _ = play(edge, "both", *other, origin)
            assert (refused, reason, field) == ("refused", "SEQUENCE_REUSED", "sequence")
            assert "with other data" in message
        if write[0] == "bulk":
            assert as_arrow(edges[0], "both", rows, origin)["already_applied"]
            assert as_arrow(edges[0], "both", others, origin)[3] == "sequence"


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


def sorted_as(found, pattern):
    """Protobuf maps have no order, so put names in the other edge's; compared as text, which tells -0.0 from 0.0."""
    if isinstance(found, dict) and isinstance(pattern, dict) and set(found) == set(pattern):
        return {name: sorted_as(found[name], pattern[name]) for name in pattern}
    if isinstance(found, list) and isinstance(pattern, list) and len(found) == len(pattern):
        return [sorted_as(a, b) for a, b in zip(found, pattern, strict=True)]
    return found
