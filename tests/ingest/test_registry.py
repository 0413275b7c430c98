"""Avro, Protobuf and JSON with a schema registry: each record by its own schema, and a reason where it has none."""

import base64
import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from uuid import UUID

import fastavro
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS

from sash_client import Unavailable
from sash_ingest.config import IngestConfig
from sash_ingest.connector import SourceError
from sash_ingest.decode import Wanted
from sash_ingest.registry import Avro, Protobuf, RegisteredJson, Registry
from sash_ingest.run import _form
from sash_wire.errors import WireError
from sash_wire.mapping import source_of
from sash_wire.pipeline import parsed
from tests.ingest.log import SPEC, Letters, Log, ids_of, ingest, target
from tests.support.registry import framed, schema_registry

NULL = "is null, which field 'v' may not be (nullable in the window's spec)"
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.fixture
def registry():
    with schema_registry() as registry:
        yield registry


def wanted(**kinds):
    return [Wanted(source_of(path.replace("__", "."), ""), kind) for path, kind in kinds.items()]


def lists(decoded):
    assert not decoded.rejects
    return [column.to_pylist() for column in decoded.columns]


def reason_of(form, value, *columns):
    (reject,) = form.decode([value], columns or wanted(n="int64")).rejects
    return reject.reason


# ---------------------------------------------------------------- Avro


def fields(**types):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}


def avro(schema, document):
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), document)
    return body.getvalue()


def test_avro_has_all_types_of_columns(registry):
    schema = fields(
        at={"type": "long", "logicalType": "timestamp-millis"},
        there={"type": "long", "logicalType": "local-timestamp-micros"},
        n="int",
        v=["null", "float"],
        b="boolean",
        s={"type": "enum", "name": "E", "symbols": ["A", "B"]},
        id={"type": "string", "logicalType": "uuid"},
        price={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        user={"type": "record", "name": "U", "fields": [{"name": "country", "type": ["null", "string"]}]},
        labels={"type": "map", "values": "long"},
    )
    uuid = UUID(int=7)
    rows = [
        {"at": AT, "there": AT.replace(tzinfo=None), "n": 1, "v": 1.5, "b": True, "s": "B", "id": uuid,
         "price": Decimal("2.50"), "user": {"country": "NL"}, "labels": {"x": 3}},
        {"at": AT, "there": AT.replace(tzinfo=None), "n": 2, "v": None, "b": False, "s": "A", "id": uuid,
         "price": Decimal("-1"), "user": {"country": None}, "labels": {}},
    ]  # fmt: skip
    number = registry.add("AVRO", schema)
    columns = wanted(
        at="time", there="time", n="int64", v="float64", b="bool", s="string", id="key", price="float64",
        user__country="key", labels__x="int64", gone="float64")  # fmt: skip
    found = Avro(Registry(registry.url)).decode([framed(number, avro(schema, row)) for row in rows], columns)
    assert lists(found) == [
        [AT] * 2, [AT] * 2, [1, 2], [1.5, None], [True, False], ["B", "A"], [str(uuid)] * 2, [2.5, -1.0],
        ["NL", None], [3, None], [None, None]]  # fmt: skip
    assert registry.asked == [f"/schemas/ids/{number}"], "it is asked once"


def test_a_schema_of_avro_that_names_others(registry):
    country = {"type": "record", "name": "Country", "fields": [{"name": "code", "type": "string"}]}
    user = {"type": "record", "name": "User", "fields": [{"name": "country", "type": "Country"}]}
    registry.add("AVRO", country, subject="country")
    registry.add("AVRO", user, [("Country", "country")], subject="user")
    number = registry.add("AVRO", fields(user="User", home="Country"), [("User", "user"), ("Country", "country")])
    whole = fields(user=user | {"fields": [{"name": "country", "type": country}]}, home="Country")
    value = framed(number, avro(whole, {"user": {"country": {"code": "NL"}}, "home": {"code": "BE"}}))
    found = Avro(Registry(registry.url)).decode([value], wanted(user__country__code="key", home__code="key"))
    assert lists(found) == [["NL"], ["BE"]]


def test_records_of_several_schemas_are_read_by_their_own(registry):
    """A field that comes has values from there on; one that goes is null from there on; their order means nothing."""
    old, new = fields(n="long", v="double"), fields(w="double", n="int")
    values = [framed(registry.add("AVRO", old), avro(old, {"n": 1, "v": 0.5}))]
    values += [framed(registry.add("AVRO", new), avro(new, {"n": 2, "w": 7.0}))]
    found = Avro(Registry(registry.url)).decode(values, wanted(n="int64", v="float64", w="float64"))
    assert lists(found) == [[1, 2], [0.5, None], [None, 7.0]]


def test_avro_that_does_not_fit_has_a_reason(registry):
    schema = fields(n="long", s="string", raw="bytes", big={"type": "long", "logicalType": "timestamp-millis"})
    number, body = registry.add("AVRO", schema), avro(schema, {"n": 1, "s": "x", "raw": b"y", "big": 0})
    form = Avro(Registry(registry.url))
    assert reason_of(form, body) == "does not begin with 0 and the number of a schema"
    assert reason_of(form, b"\0\0\0\0") == "does not begin with 0 and the number of a schema"
    assert reason_of(form, b"\1" + framed(number, body)[1:]).startswith("does not begin")
    assert reason_of(form, None) == "is empty"
    assert reason_of(form, framed(99, body)) == "has schema 99, which the registry does not have"
    assert reason_of(form, framed(number, body[:-1])).startswith(f"is no record of schema {number}: ")
    assert reason_of(form, framed(number, body + b"\0")) == f"is no record of schema {number}: it is longer"
    far = avro(fields(n="long", s="string", raw="bytes", big="long"), {"n": 1, "s": "x", "raw": b"y", "big": 2**62})
    assert reason_of(form, framed(number, far)).startswith(f"is no record of schema {number}: ")
    assert reason_of(form, framed(number, body), *wanted(s="int64")) == "is 'x', a str, and no int64"
    assert reason_of(form, framed(number, body), *wanted(raw="key")) == "is \"b'y'\", a bytes, and no key"
    for kind, text, why in (
        ("JSON", "{}", "is JSON, and not AVRO"),
        ("AVRO", '"long"', "it is of no record"),
        ("AVRO", "{", "which cannot be used"),
        ("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Else"}]}', "which cannot be used"),
        ("AVRO", "[]", "it is of no record"),
        ("AVRO", '{"type": "enum", "name": "E", "symbols": ["A"]}', "it is of no record"),
    ):
        assert why in reason_of(form, framed(registry.add(kind, text), body))
    missing = registry.add("AVRO", fields(a="Else"), [("Else", "else/there")])
    assert "has a schema that needs else/there" in reason_of(form, framed(missing, body))
    assert registry.asked[-1] == "/subjects/else%2Fthere/versions/1"


# ---------------------------------------------------------------- Protobuf

PLACE = """
name: "place.proto" package: "shop" syntax: "proto3"
message_type { name: "Place" field { name: "code" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
"""
ORDER = """
name: "order.proto" package: "shop" syntax: "proto3"
dependency: "place.proto" dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
message_type { name: "Other" field { name: "n" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type {
  name: "Order"
  field { name: "n" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "v" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
  field { name: "state" number: 4 type: TYPE_ENUM type_name: ".shop.State" label: LABEL_OPTIONAL }
  field { name: "place" number: 5 type: TYPE_MESSAGE type_name: ".shop.Place" label: LABEL_OPTIONAL }
  field { name: "w" number: 6 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" label: LABEL_OPTIONAL }
  field { name: "big" number: 7 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "many" number: 8 type: TYPE_INT32 label: LABEL_REPEATED }
  oneof_decl { name: "_v" }
  nested_type {
    name: "Line" field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
    nested_type { name: "Tax" field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
  }
}
"""


def described(text):
    return text_format.Parse(text, FileDescriptorProto())


def serialized(text):
    return base64.b64encode(described(text).SerializeToString()).decode()


def classes():
    pool = DescriptorPool()
    for each in (
        TIMESTAMP.serialized_pb,
        WRAPPERS.serialized_pb,
        *(described(t).SerializeToString() for t in (PLACE, ORDER)),
    ):
        pool.AddSerializedFile(each)
    return [
        GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for name in ("Other", "Order", "Order.Line", "Order.Line.Tax")
    ]


@pytest.fixture
def orders(registry):
    registry.add("PROTOBUF", serialized(PLACE), subject="place")
    return registry.add("PROTOBUF", serialized(ORDER), [("place.proto", "place")])


ORDERS = b"\x02\x02"  # one number, which is 1: the second message of the file


def test_protobuf_has_all_types_of_columns(registry, orders):
    _, order, _, _ = classes()
    one = order(n=-5, v=0.0, state=1, place={"code": "NL"}, w={"value": 9}, big=2**63 - 1)
    one.at.FromDatetime(AT)
    two = order(state=7)
    columns = wanted(n="int64", at="time", v="float64", state="key", place__code="string", w="int64", big="int64",
                     place__gone="int64", n__deep="int64")  # fmt: skip
    values = [framed(orders, ORDERS + each.SerializeToString()) for each in (one, two)]
    found = Protobuf(Registry(registry.url)).decode(values, columns)
    assert lists(found) == [
        [-5, 0], [AT, None], [0.0, None], ["PAID", "7"], ["NL", None], [9, None], [2**63 - 1, 0], [None] * 2, [None] * 2
    ]  # fmt: skip
    assert registry.asked == [
        f"/schemas/ids/{orders}?format=serialized",
        "/subjects/place/versions/1?format=serialized",
    ]
    assert lists(Protobuf(Registry(registry.url)).decode(values, wanted(state="int64"))) == [[1, 7]]


@pytest.mark.parametrize(
    ("way", "which"), [(b"\0", 0), (b"\x02\0", 0), (b"\x02\x02", 1), (b"\x04\x02\0", 2), (b"\x06\x02\0\0", 3)]
)
def test_the_header_says_which_message_of_a_file_it_is(registry, orders, way, which):
    body = classes()[which](n="5" if which == 0 else 5).SerializeToString()
    found = Protobuf(Registry(registry.url)).decode([framed(orders, way + body)], wanted(n="key"))
    assert lists(found) == [["5"]]


def test_protobuf_that_does_not_fit_has_a_reason(registry, orders):
    _, order, _, _ = classes()
    form = Protobuf(Registry(registry.url))

    def reason(way, message=None, *columns):
        return reason_of(
            form, framed(orders, way + (b"" if message is None else message.SerializeToString())), *columns
        )

    for way in (b"", b"\x02", b"\x02\x04", b"\x02\x01", b"\x01", b"\x04\x02\x02", b"\x02" + b"\x80" * 5 + b"\0"):
        assert reason(way) == f"does not say which message of schema {orders} it is of"
    assert reason_of(form, framed(orders, ORDERS + b"\xff")).startswith(f"is no message of schema {orders}")
    far = order(big=2**63)
    assert reason(ORDERS, far, *wanted(big="int64")) == "is out of range of int64"
    assert "and no key" in reason(ORDERS, order(many=[1]), *wanted(many="key"))
    assert "a Place, and no float64" in reason(ORDERS, order(place={"code": "x"}), *wanted(place="float64"))
    assert reason(ORDERS, order(at={"nanos": 1001}), *wanted(at="time")) == "has more digits than microseconds"
    for schema, why in (("syntax = 'proto3';", "sends no descriptor"), (serialized(ORDER), "cannot be used")):
        assert why in reason_of(form, framed(registry.add("PROTOBUF", schema), ORDERS))


# ---------------------------------------------------------------- JSON, and what goes wrong


def test_json_behind_a_header(registry):
    form = RegisteredJson()
    found = form.decode([framed(7, b'{"n": 1}'), framed(2**31, b'{"n": 2}')], wanted(n="int64"))
    assert lists(found) == [[1, 2]]
    assert lists(form.decode([b'{"n": 3}'], wanted(n="int64"))) == [[3]], "one without is as good"
    assert reason_of(form, b"\0\0\0") == "is empty"
    assert reason_of(form, b"\0\0\0\0\1\0{}").startswith("is no JSON")


def test_a_lost_field_is_null_or_put_aside_as_the_window_says(client, registry):
    old, new = (
        fields(at="long", carrier="string", id="long", v="double"),
        fields(at="long", carrier="string", id="long"),
    )
    both = {"fields": SPEC["fields"] | {"v": "float64"}}
    strict = client.create_window(SPEC | both)
    lax = client.create_window(SPEC | both | {"name": "lax", "nullable": ["v"]})
    numbers = registry.add("AVRO", old), registry.add("AVRO", new)
    row = {"at": 1, "carrier": "AA", "id": 1, "v": 2.0}
    log = [(1, framed(numbers[0], avro(old, row))), (2, framed(numbers[1], avro(new, row | {"id": 2})))]
    run = ingest([target(strict), target(lax)], letters := Letters(), form=Avro(Registry(registry.url)))
    run.run(Log({"a": log}))
    assert (ids_of(strict), ids_of(lax)) == (Counter([1]), Counter([1, 2]))
    (letter,) = letters
    assert (letter.window, letter.field, letter.reason, letter.value) == ("log", "v", NULL, log[1][1])


def test_a_registry_that_is_away_is_waited_for(window, registry, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner.pauses_s", lambda: iter([0.0] * 1000))
    schema = fields(at="long", carrier="string", id="long")
    number = registry.add("AVRO", schema)
    registry.failures += [500, 503, 429]
    run = ingest([target(window)], form=Avro(Registry(registry.url)))
    run.run(Log({"a": [(n, framed(number, avro(schema, {"at": n, "carrier": "A", "id": n}))) for n in (1, 2)]}))
    assert ids_of(window) == Counter([1, 2])
    assert run.said == ["p/a: waiting: the schema registry answers 500", "p/a: waits no more"]


def test_a_registry_that_is_none_ends_it(registry):
    registry.add("AVRO", fields(n="long"))
    registry.failures.append(401)
    with pytest.raises(SourceError, match="answers 401"):
        reason_of(Avro(Registry(registry.url)), framed(1, b""))
    for document, why in ((b"<html>", "sends no JSON"), ([], "sends no schema"), ({"schema": 1}, "sends no schema")):
        registry.documents["/schemas/ids/9"] = document
        with pytest.raises(SourceError, match=why):
            reason_of(Avro(Registry(registry.url)), framed(9, b""))
    with pytest.raises(Unavailable, match="does not answer"):
        reason_of(Avro(Registry("http://127.0.0.1:1")), framed(1, b""))


def source(**more):
    found = {"format": "kafka", "servers": "h:1", "topic": "t"} | more
    return parsed(IngestConfig, {"name": "p", "source": found, "time": "at", "windows": [{"spec": SPEC}]}).source


@pytest.mark.parametrize(
    ("login", "header"),
    [({}, None), ({"user": "ann", "password_file": "s"}, "Basic YW5uOnM6MQ=="), ({"token_file": "s"}, "Bearer s:1")],
)
def test_how_the_registry_is_asked(registry, tmp_path, login, header):
    (tmp_path / "s").write_text("s:1\n")
    files = {name: str(tmp_path / value) if name.endswith("_file") else value for name, value in login.items()}
    schema = fields(n="long")
    number = registry.add("AVRO", schema)
    form = _form(source(value="avro", registry={"url": f"{registry.url}/", **files}))
    assert lists(form.decode([framed(number, avro(schema, {"n": 1}))], wanted(n="int64"))) == [[1]]
    assert registry.headers.get("Authorization") == header


def test_a_login_is_for_the_registry_alone(registry, tmp_path):
    (tmp_path / "s").write_text("s")
    schema = fields(n="long")
    with schema_registry() as other:
        other.add("AVRO", schema)
        registry.documents["/schemas/ids/1"] = f"{other.url}/schemas/ids/1"
        form = _form(source(value="avro", registry={"url": registry.url, "token_file": str(tmp_path / "s")}))
        assert lists(form.decode([framed(1, avro(schema, {"n": 1}))], wanted(n="int64"))) == [[1]]
        assert registry.headers["Authorization"] == "Bearer s"
        assert "Authorization" not in other.headers


def test_which_form_a_document_asks_for():
    at = {"url": "http://h:1"}
    assert type(_form(source(value="protobuf", registry=at))) is Protobuf
    assert type(_form(source(registry=at))) is RegisteredJson
    assert json.dumps(type(_form(source())).__name__) == '"Json"'


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"value": "avro"}, "source.registry"),
        ({"value": "protobuf"}, "source.registry"),
        ({"value": "csv", "schema": "a", "registry": {"url": "http://h"}}, "source.registry"),
        ({"value": "avro", "registry": {"url": "ftp://h"}}, "source.registry.url"),
        ({"value": "avro", "registry": {"url": "http://ann:secret@h"}}, "source.registry.url"),
        ({"value": "avro", "registry": {"url": "http://h", "user": "u"}}, "source.registry.user"),
        ({"value": "avro", "registry": {"url": "http://h", "password_file": "u"}}, "source.registry.user"),
        (
            {"value": "avro", "registry": {"url": "http://h", "user": "u", "password_file": "p", "token_file": "t"}},
            "source.registry",
        ),
        ({"format": "stdin", "value": "avro"}, "source"),
    ],
    ids=str,
)
def test_a_document_that_is_wrong_names_the_part(more, field):
    with pytest.raises(WireError) as caught:
        _form(source(**more))
    assert caught.value.field.startswith(field)
