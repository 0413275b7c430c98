"""Records whose schema is in a registry: Avro, Protobuf and JSON as the serialisers of Confluent write them.

    byte   0   1 2 3 4   5 …
           0   id        Avro: the record    Protobuf: which message, then the message    JSON: the object
                └─▶ GET /schemas/ids/{id} ──▶ kept for ever: a number is always the same schema

Each record is read by the schema that it was written with. So columns are found by name, whatever else a schema gains
or loses. A registry that is away is waited for; a number that it does not have is a record that does not fit.

Protobuf's schemas are asked for as descriptors (``format=serialized``), so no compiler is needed.

Source: docs.confluent.io/platform/current/schema-registry, "Wire format" and "API reference".
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC
from functools import partial
from http.client import HTTPException
from io import BytesIO
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from google.protobuf import (  # noqa: F401  # those that schemas may import without naming them
    any_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from sash_client import Unavailable
from sash_ingest.connector import SourceError
from sash_ingest.decode import Decoded, Form, Json, Read, Wanted, member

_HEADER_BYTES = 5
_TIMEOUT_S = 10.0
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class Registry:
    """Asks a schema registry.

    Args:
        url: such as ``https://registry:8081``.
        login: returns the value of ``Authorization`` for each call; None: none is sent.
        tls: what an https address is checked with; None: the public authorities.
    """

    def __init__(self, url: str, login: Callable[[], str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._url, self._login, self._tls = url.rstrip("/"), login, tls

    def get(self, path: str, what: str) -> dict[str, Any]:
        """Return a document.

        Args:
            path: such as ``/schemas/ids/7``.
            what: it is, for errors.

        Raises:
            ValueError: there is no such one.
            Unavailable: the registry cannot answer now.
            SourceError: it never will.
        """
        request = Request(self._url + path, headers={"Accept": _ACCEPT})
        if self._login is not None:
            request.add_unredirected_header("Authorization", self._login())
        try:
            with urlopen(request, timeout=_TIMEOUT_S, context=self._tls) as answer:
                found = json.load(answer)
        except HTTPError as error:
            with error:
                if error.code == 404:
                    raise ValueError(f"has {what}, which the registry does not have") from None
                if error.code == 429 or error.code >= 500:
                    raise Unavailable(f"the schema registry answers {error.code}") from None
                raise SourceError(f"the schema registry at {self._url} answers {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            raise Unavailable(f"the schema registry does not answer: {getattr(error, 'reason', error)}") from None
        except ValueError:
            raise SourceError(f"what answers at {self._url} is no schema registry: it sends no JSON") from None
        if type(found) is not dict or type(found.get("schema")) is not str:
            raise SourceError(f"what answers at {self._url} is no schema registry: it sends no schema")
        return found


class _Registered(Form):
    """Reads each record by the schema that its header names.

    Args:
        registry: has the schemas.
    """

    kind = ""
    """What the registry calls such schemas."""
    query = ""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._readers: dict[int, Callable[[bytes], Read]] = {}

    def _read(self, value: bytes) -> Read:
        if len(value) < _HEADER_BYTES or value[0]:
            raise ValueError("does not begin with 0 and the number of a schema")
        number = int.from_bytes(value[1:_HEADER_BYTES])
        if (reader := self._readers.get(number)) is None:
            what = f"schema {number}"
            found = self._registry.get(f"/schemas/ids/{number}{self.query}", what)
            if (kind := found.get("schemaType") or "AVRO") != self.kind:
                raise ValueError(f"has {what}, which is {str(kind)[:40]}, and not {self.kind}")
            try:
                reader = self._reader(found, what)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"has {what}, which cannot be used: {error}") from None
            self._readers[number] = reader
        return reader(value)

    def _reader(self, found: dict[str, Any], what: str) -> Callable[[bytes], Read]:
        """Return what reads the records of a schema."""
        raise NotImplementedError


class Avro(_Registered):
    """Records of Avro."""

    kind = "AVRO"

    def _reader(self, found: dict[str, Any], what: str) -> Callable[[bytes], Read]:
        from fastavro import parse_schema, schemaless_reader
        from fastavro.schema import SchemaParseException

        known: dict[str, Any] = {}
        try:
            for each in self._references(found):
                parse_schema(json.loads(each), named_schemas=known)
            schema = parse_schema(json.loads(found["schema"]), named_schemas=known)
        except (SchemaParseException, RecursionError) as error:
            raise ValueError(repr(error)) from None
        if type(schema) is not dict or schema.get("type") != "record":
            raise ValueError("it is of no record")

        def read(value: bytes) -> Read:
            body = BytesIO(value)
            body.seek(_HEADER_BYTES)
            try:
                document = schemaless_reader(body, schema, None)
            except Exception as error:
                raise ValueError(f"is no record of {what}: {error!r}") from None
            if body.tell() != len(value):
                raise ValueError(f"is no record of {what}: it is longer")
            return partial(member, document)

        return read

    def _references(self, found: dict[str, Any]) -> list[str]:
        """The schemas that a schema names, each behind those that it names itself."""
        made: list[str] = []
        for each in found.get("references") or ():
            named = _version(self._registry, each, self.query)
            made += [*self._references(named), named["schema"]]
        return made


class Protobuf(_Registered):
    """Messages of Protobuf."""

    kind = "PROTOBUF"
    query = "?format=serialized"

    def _reader(self, found: dict[str, Any], what: str) -> Callable[[bytes], Read]:
        pool = descriptor_pool.DescriptorPool()
        file = self._added(pool, found, what)

        def read(value: bytes) -> Read:
            kind, start = _message_of(file, value, what)
            try:
                message = kind.FromString(value[start:])
            except DecodeError as error:
                raise ValueError(f"is no message of {what}: {error}") from None
            return partial(_field_of, message)

        return read

    def _added(self, pool: Any, found: dict[str, Any], name: str) -> Any:
        """Add a file to a pool, with the files that it imports."""
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(found["schema"], validate=True))
        except (binascii.Error, DecodeError):
            raise ValueError("the registry sends no descriptor of it") from None
        file.name = name
        given = {each["name"]: each for each in found.get("references") or ()}
        for imported in file.dependency:
            if imported in given:
                self._added(pool, _version(self._registry, given[imported], self.query), imported)
            else:
                known = descriptor_pool.Default().FindFileByName(imported)
                pool.AddSerializedFile(known.serialized_pb)
        pool.AddSerializedFile(file.SerializeToString())
        return pool.FindFileByName(name)


class RegisteredJson(Json):
    """JSON objects behind a header. Their schemas are not asked for: JSON says by itself what it is."""

    def decode(self, values: Sequence[bytes | None], wanted: Sequence[Wanted]) -> Decoded:
        bodies = [value[_HEADER_BYTES:] if value and not value[0] else value for value in values]
        return super().decode(bodies, wanted)


def _version(registry: Registry, reference: dict[str, Any], query: str) -> dict[str, Any]:
    subject, version = str(reference["subject"]), int(reference["version"])
    return registry.get(
        f"/subjects/{quote(subject, safe='')}/versions/{version}{query}", f"a schema that needs {subject}"
    )


# ---------------------------------------------------------------- messages


def _message_of(file: Any, value: bytes, what: str) -> tuple[type[Message], int]:
    """Return which message of a file a value is of, and where it begins.

    The header ends with the way to it: how many numbers, then one for each level; a single 0 is the first message.
    """
    try:
        count, at = _zigzag(value, _HEADER_BYTES)
        way = [0] if not count else []
        for _ in range(count):
            number, at = _zigzag(value, at)
            way.append(number)
        if not way or min(way) < 0:
            raise IndexError
        kinds = list(file.message_types_by_name.values())
        for number in way:
            kind = kinds[number]
            kinds = kind.nested_types
    except IndexError:
        raise ValueError(f"does not say which message of {what} it is of") from None
    return GetMessageClass(kind), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Read a number of up to 32 bits; raises IndexError where there is none."""
    found = shift = 0
    while shift < 35:
        byte = value[at]
        at += 1
        found |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return found >> 1 ^ -(found & 1), at
    raise IndexError


def _field_of(message: Message, wanted: Wanted) -> Any:
    """A value of a message, None where it has none: Protobuf's own kinds as those of Python."""
    found: Any = message
    field: Any = None
    for name in wanted.source.path:
        field = found.DESCRIPTOR.fields_by_name.get(name) if isinstance(found, Message) else None
        if field is None or (field.has_presence and not found.HasField(name)):
            return None
        found = getattr(found, name)
    kind = found.DESCRIPTOR if isinstance(found, Message) else None
    if kind is None:
        named = field.enum_type.values_by_number.get(found) if field.enum_type is not None else None
        return named.name if named is not None and wanted.kind in ("key", "string") else found
    if kind.full_name == "google.protobuf.Timestamp":
        if found.nanos % 1000:
            raise ValueError("has more digits than microseconds")
        return found.ToDatetime(UTC)
    return found.value if kind.file.name == "google/protobuf/wrappers.proto" else found
