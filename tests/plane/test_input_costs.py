"""Twice the input is at most twice the work, for everything that reads what a caller sends.

Work is counted, not timed: lines and calls of Python, and calls into C. What C does in one call over many values shows
as nothing here, so where a call compares names with names, the names count their comparisons.
"""

import asyncio
import json
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from sash.connect.codec import CODECS
from sash.connect.envelopes import opened, sealed
from sash.connect.heads import of_query
from sash.durability.images.export import Importer, export
from sash.rest import arrow, columns
from sash.rest.bodies import parse_json
from sash.rest.call import Call
from sash.rest.large_json import parse_long_json
from sash.rest.routes import ROUTES
from sash.rpc import bulks
from sash.rpc.parsing import parsed
from sash.settings import Settings
from sash_engine.errors import InvalidArgument, SashError
from sash_engine.monoids.pane import exported
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, PartialBatch
from sash_engine.windows.spec.predicate import MAX_LENGTH, MAX_SUMS, Predicate
from sash_engine.windows.spec.window import WindowSpec, parse_duration
from sash_engine.windows.window import Window
from sash_proto.v1 import windows_pb2 as pb
from tests.support.collector import no_collection

SLACK = 2.3
"""Some work comes in steps: buffers that double, hash tables that grow."""

SPEC = WindowSpec.parse(
    {
        "name": "w",
        "keyed": True,
        "fields": {"v": "float64", "user": "string", "ok": "bool", "n": "int64"},
        "aggregates": {"sum": {"function": "sum", "field": "v"}},
    }
)
SKETCHES = {
    "quantile": {"function": "quantile", "field": "v", "q": 0.5},
    "distinct_count": {"function": "distinct_count", "field": "v"},
    "frequent_items": {"function": "frequent_items", "field": "user"},
    "histogram": {"function": "histogram", "field": "v", "bounds": [0.5, 1.5]},
    "bloom": {"function": "bloom", "field": "user", "capacity": 100},
    "collect": {"function": "collect", "field": "v"},
    "collect_distinct": {"function": "collect_distinct", "field": "v"},
    "m4": {"function": "m4", "field": "v"},
    "linear_slope": {"function": "linear_slope", "field": "v"},
    "longest_increasing_run": {"function": "longest_increasing_run", "field": "v"},
}


def work_of(read):
    """Lines and calls that it takes to read something; what is refused is read, too."""
    count = 0

    def traced(frame, event, argument):
        nonlocal count
        count += 1
        return traced

    def profiled(frame, event, argument):
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace()
    with no_collection():
        sys.settrace(traced)
        sys.setprofile(profiled)
        try:
            read()
        except SashError:
            pass
        finally:
            sys.setprofile(None)
            sys.settrace(before)
    return count


def dumped(document):
    return json.dumps(document).encode()


def bulk(n):
    return {
        "time": list(range(n)),
        "key": [f"k{i}" for i in range(n)],
        "fields": {"v": [0.5] * n, "user": [f"u{i}" for i in range(n)], "ok": [True] * n, "n": list(range(n))},
    }


def with_fields(n, /, **fields):
    return dumped(bulk(n) | {"fields": bulk(n)["fields"] | fields})


def read_bulk(body):
    return columns.batch_of(parse_json(body), SPEC, 10**6)


def exported_parts(function, n):
    monoid = WindowSpec.parse({"name": "w", "aggregates": {"s": {"function": function, "field": "value"}}}).monoids()[
        "s"
    ][0]
    return exported(monoid, [monoid.lift(0.5)] * n)


PANES = WindowSpec.parse(
    {"name": "w", "granularity": "1s", "time_unit": "s", "aggregates": {"s": {"function": "sum", "field": "value"}}}
)


def json_partials(n):
    (parts,) = exported_parts("sum", n)
    return dumped({"time": list(range(n)), "entries": [1] * n, "partials": {"s": {"sum": parts.tolist()}}})


def stream(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return sink.getvalue().to_pybytes()


def arrow_rows(n):
    document = bulk(n)
    return stream(pa.table({"time": document["time"], "key": document["key"], **document["fields"]}))


def read_arrow(body):
    return arrow.batch_of(body, SPEC, 10**6)


def protobuf_of(n):
    document = bulk(n)
    message = pb.BulkInsertRequest(window="w", time=np.arange(n).tobytes())
    message.fields["v"].float64 = np.ones(n).tobytes()
    message.fields["n"].int64 = np.arange(n).tobytes()
    message.fields["ok"].bool = np.ones(n, np.bool_).tobytes()
    for into, texts in ((message.key, document["key"]), (message.fields["user"].string, document["fields"]["user"])):
        into.dictionary.extend(texts)
        into.codes = np.arange(n, dtype="<u4").tobytes()
    return message


def protobuf_that_repeats_strings(n):
    message = protobuf_of(n)
    message.key.dictionary[0] = message.key.dictionary[n - 1]
    return message


def read_protobuf(message):
    return bulks.batch_of(message, 10**6, SPEC).checked(SPEC)


def protobuf_json(n):
    return CODECS["json"].write(protobuf_of(n))


def window_export(n):
    window = Window(SPEC)
    document = bulk(n)
    window.bulk_insert(Batch.of(SPEC, document["time"], document["fields"], document["key"]))
    return b"".join(export(window))


def fed(data, size):
    importer = Importer(lambda spec: Window(spec), None)
    for at in range(0, len(data), size):
        importer.feed(data[at : at + size])
    return importer.finish()


def body_in_small_parts(n):
    async def receive():
        receive.left -= 1
        return {"type": "http.request", "body": b"x" * 10, "more_body": receive.left > 0}

    receive.left = n
    return receive


def read_body(receive):
    edge = SimpleNamespace(plane=None, settings=Settings(max_body_bytes=10**9))
    run(Call(edge, {"type": "http", "headers": [], "method": "GET"}, receive).body())


def read_envelopes(data):
    async def parts():
        for at in range(0, len(data), 5):
            yield data[at : at + 5]

    async def read():
        return [message async for message in opened(parts(), 10**6)]

    return run(read())


def run(coroutine):
    """A coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def of_route(end):
    (route,) = [route for route in ROUTES if route.path.endswith(end)]
    return route.parameters.read


def aggregates_of(n):
    return "".join(f"  a{i}: {{function: sum, field: value}}\n" for i in range(n))


READERS = {
    "JSON with special floats": (lambda n: with_fields(n, v=["NaN"] * n), read_bulk),
    "JSON with a wrong value at the end": (lambda n: with_fields(n, n=[1] * (n - 1) + [1.5]), read_bulk),
    "JSON with unknown fields": (
        lambda n: dumped(bulk(2) | {"fields": {f"f{i}": [1.0, 2.0] for i in range(n)}}),
        read_bulk,
    ),
    "a JSON entry with unknown fields": (
        lambda n: dumped({"time": 1, "key": "a", "fields": {f"f{i}": i for i in range(n)}}),
        lambda body: columns.entry_of(parse_json(body), SPEC, int),
    ),
    "JSON with a literal NaN": (lambda n: b'{"time":[' + b"1," * n + b"NaN]}", parse_json),
    "JSON with a name twice": (
        lambda n: b'{"a":{' + b",".join(b'"f%d:":1' % i for i in range(n)) + b',"f0:":2}}',
        parse_json,
    ),
    "JSON of brackets": (lambda n: b"[" * n, parse_json),
    "JSON with colons in texts": (lambda n: dumped({"key": ["a:b"] * n}), parse_json),
    "JSON of partials": (json_partials, lambda body: columns.batch_of(parse_json(body), PANES, 10**6)),
    "long JSON in steps": (
        lambda n: dumped(bulk(30 * n)),
        lambda body: columns.batch_of(finished(parse_long_json(body, None)), SPEC, 10**6),
    ),
    "long JSON of lists": (
        lambda n: b'{"time":[' + b"[]," * (30 * n) + b"[]]}",
        lambda body: finished(parse_long_json(body)),
    ),
    "rows of Arrow": (arrow_rows, read_arrow),
    "columns of Arrow": (lambda n: stream(pa.table({f"f{i}": [1] for i in range(n)})), read_arrow),
    "protobuf": (protobuf_of, read_protobuf),
    "protobuf that repeats strings": (protobuf_that_repeats_strings, read_protobuf),
    "protobuf in steps": (
        lambda n: protobuf_of(30 * n).SerializeToString(),
        lambda data: finished(parsed(pb.BulkInsertRequest, data)),
    ),
    "JSON of protobuf": (protobuf_json, lambda data: CODECS["json"].read(pb.BulkInsertRequest, data)),
    "JSON of protobuf in steps": (
        protobuf_json,
        lambda data: finished(CODECS["json"].steps(pb.BulkInsertRequest, data))(),
    ),
    "JSON of protobuf with many keys": (
        lambda n: CODECS["json"].write(pb.QueryRequest(window="w", keys=["a"] * n)),
        lambda data: CODECS["json"].read(pb.QueryRequest, data),
    ),
    "a spec in YAML": (lambda n: "name: w\naggregates:\n" + aggregates_of(n), WindowSpec.from_yaml),
    "names twice in YAML": (
        lambda n: "".join(f"a{i}: 1\n" for i in range(n)) + f"a{n - 1}: 2\n",
        WindowSpec.from_yaml,
    ),
    "a spec in JSON": (
        lambda n: {"name": "w", "aggregates": {f"a{i}": {"function": "sum", "field": "value"} for i in range(n)}},
        WindowSpec.parse,
    ),
    "an export": (window_export, lambda data: fed(data, 1 << 16)),
    "an export in small parts": (window_export, lambda data: fed(data, 100)),
    "parameters of a query": (
        lambda n: b"&".join([b"key=a", *[b"key=b%d" % i for i in range(n)]]),
        of_route("/query"),
    ),
    "parameters of Connect": (
        lambda n: b"&".join([b"connect=v1&encoding=json", *[b"x%d=1" % i for i in range(n)], b"message={}"]),
        of_query,
    ),
    "a body in small parts": (body_in_small_parts, read_body),
    "envelopes in small parts": (lambda n: b"".join(sealed(b"message") for _ in range(n)), read_envelopes),
    "a duration": (lambda n: "1s" * n, lambda text: parse_duration(text, "us", "step")),
    "digits": (lambda n: "1" * n, lambda text: parse_duration(text, "us", "step")),
}
"""What makes something of a length that a caller sends, and what reads it."""


def check_twice(make, read, n=400):
    """Check the work for n, and for twice as much; it is done before, so that nothing is imported meanwhile."""
    once, double = [work_of(partial(read, make(count))) for count in (4, 4, n, 2 * n)][2:]
    assert double <= SLACK * once + 200, (once, double)


@pytest.mark.parametrize("what", READERS)
def test_twice_the_input_is_at_most_twice_the_work(what):
    check_twice(*READERS[what])


@pytest.mark.parametrize("name", SKETCHES)
def test_twice_the_partials_are_at_most_twice_the_work(name):
    spec = WindowSpec.parse(
        {
            "name": "w",
            "time_unit": "s",
            "granularity": "1s",
            "fields": {"v": "float64", "user": "string"},
            "aggregates": {name: SKETCHES[name]},
        }
    )
    monoid, reads = spec.monoids()[name]
    value = {"v": 0.5, "user": "a", "time": 7}
    values = [value[read] for read in reads]
    lifted = monoid.lift(values[0] if len(values) == 1 else tuple(values))

    check_twice(
        lambda n: PartialBatch(np.arange(n), {name: exported(monoid, [lifted] * n)}, np.ones(n, np.int64)),
        lambda batch: batch.checked(spec),
    )


class Counted(str):
    """A name that counts comparisons with other names."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("refused", [False, True])
def test_the_names_of_twice_the_columns_are_compared_twice_as_often(refused):
    counts = []
    for n in (1000, 2000):
        names = [Counted(f"f{i}") for i in range(n)]
        fields = {str(name): "float64" for name in names}
        spec = type("Spec", (), {"fields": {} if refused else fields, "granularity": None, "name": "w", "parts": ()})
        Counted.compared = 0
        try:
            arrow._check_names(names, spec, True)
        except InvalidArgument:
            assert refused
        counts.append(Counted.compared)
    assert counts[1] <= SLACK * counts[0] + 20, counts


def test_names_of_columns_are_checked_before_their_values(monkeypatch):
    """Two columns of one name, and one that no field has, are found in the schema."""
    for names in (["time", "v", "v"], ["time", "key", "strange"]):
        schema = pa.schema([pa.field(name, pa.float64()) for name in names])
        body = stream(pa.Table.from_arrays([pa.array([1.0, None])] * 3, schema=schema))
        with pytest.raises(InvalidArgument, match=r"two columns 'v'|no field 'strange'"):
            arrow.batch_of(body, SPEC, 10**6)


def test_a_predicate_over_long_answers_has_few_additions():
    spec = {"all": {"function": "collect", "field": "v"}, "sum": {"function": "sum", "field": "v"}}
    monoids = {
        name: monoid
        for name, (monoid, _) in WindowSpec.parse({"name": "w", "fields": {"v": "float64"}, "aggregates": spec})
        .monoids()
        .items()
    }

    def additions(count, name):
        return "size(" + "+".join([f"old.{name}"] * (count + 1)) + ") > 3"

    Predicate(additions(MAX_SUMS, "all"), monoids)
    with pytest.raises(InvalidArgument, match="9 additions") as error:
        Predicate(additions(MAX_SUMS + 1, "all"), monoids)
    assert error.value.field == "slide.when"
    numbers = "+".join(["old.sum"] * 100) + " > 3.0"
    assert len(numbers) < MAX_LENGTH
    Predicate(numbers, {"sum": monoids["sum"]})
    with pytest.raises(InvalidArgument, match="the answers of 'all' may be long"):
        Predicate(numbers, monoids)


async def test_long_json_of_connect_is_read_in_a_thread():
    """Protobuf reads JSON in Python: meanwhile the loop has its turns."""
    import threading

    from sash.connect import app as connect

    seen = []

    class Slow:
        def read(self, kind, data):
            seen.append(threading.current_thread() is threading.main_thread())
            return kind()

        def steps(self, kind, data):
            yield
            return lambda: self.read(kind, data)

    async def in_slices(steps):
        return finished(steps)

    reader = connect.ConnectApp.__new__(connect.ConnectApp)
    reader._in_slices = in_slices
    reader._parser = connect.ThreadPoolExecutor(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connect.CODECS, "json", Slow())
        method = type("Method", (), {"request": pb.QueryRequest})
        codec = connect.CODECS["json"]
        await asyncio.wait_for(reader._read(codec, method, b"x" * (connect._LONG_JSON_BYTES + 1), False), 60)
        await reader._read(codec, method, b"x" * connect._LONG_JSON_BYTES, False)
    reader._parser.shutdown()
    assert seen == [False, True]
