"""Reads and writes messages in protobuf's binary form and in its JSON form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.json_format import MessageToJson, Parse, ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from sash.rest.large_json import parse_long_json
from sash.rpc.parsing import parsed
from sash.rpc.parts import Proto, Written
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps
from sash_wire.meant import instead

M = TypeVar("M", bound=Message)

TEXTS_MAX = 2**20
"""Of one message in JSON. To read them takes a second."""


class Codec(Written, Protocol):
    """Reads and writes messages."""

    def read(self, kind: type[M], data: bytes) -> M:
        """Parse a short message; raises InvalidArgument."""

    def steps(self, kind: type[M], data: bytes) -> Steps[Callable[[], M]]:
        """Parse a long message; return what makes it, which may take long, and needs no event loop.

        Both raise InvalidArgument.
        """


class _Proto(Proto):
    def read(self, kind: type[M], data: bytes) -> M:
        try:
            return kind.FromString(data)
        except DecodeError:
            raise InvalidArgument(f"the body is no {kind.DESCRIPTOR.full_name}", field="body") from None

    def steps(self, kind: type[M], data: bytes) -> Steps[Callable[[], M]]:
        try:
            message = yield from parsed(kind, data)
        except DecodeError:
            raise InvalidArgument(f"the body is no {kind.DESCRIPTOR.full_name}", field="body") from None
        return lambda: message

    def write(self, message: Message) -> bytes:
        return message.SerializeToString()


_UNKNOWN = re.compile(r'Message type "([\w.]+)" has no field named "(.*?)" at "\w+\.?(.*?)"', re.DOTALL)
_NO_INTEGER = re.compile(r"Failed to parse (\w+) field: invalid literal for int.*?: (.+?)\.?$", re.DOTALL)
_TIMES = ("time", "start", "end", "as_of", "asOf")


class _Json:
    """JSON. Unknown names are refused, because a misspelt name would be ignored in silence."""

    def read(self, kind: type[M], data: bytes) -> M:
        return _filled(kind, lambda message: Parse(data, message))

    def steps(self, kind: type[M], data: bytes) -> Steps[Callable[[], M]]:
        document = yield from parse_long_json(data, TEXTS_MAX)
        return lambda: _filled(kind, lambda message: ParseDict(document, message))

    def write(self, message: Message) -> bytes:
        return MessageToJson(message, indent=None).encode()

    def join(self, parts: Sequence[bytes], last: bytes) -> bytes:
        inside = [part[part.index(b"[") + 1 : -2] for part in parts]
        tail = b"}" if last == b"{}" else b", " + last[1:]
        return parts[0][: parts[0].index(b"[") + 1] + b", ".join(inside) + b"]" + tail


def _filled(kind: type[M], fill: Callable[[M], Any]) -> M:
    message = kind()
    try:
        fill(message)
    except (ParseError, ValueError, RecursionError) as error:
        raise _refused(kind.DESCRIPTOR, str(error)) from None
    return message


def _refused(kind: Any, said: str) -> InvalidArgument:
    """Say what protobuf's parser says, by the field."""
    if (found := _UNKNOWN.search(said)) is not None:
        of = kind.file.message_types_by_name.get(found[1].rpartition(".")[2], kind)
        known = [field.name for field in of.fields]
        no = f"{found[2][:80]!r} is unknown{instead(found[2], known, f'{of.name} has')}"
        return InvalidArgument(no, field=".".join(filter(None, (found[3], found[2]))))
    if (found := _NO_INTEGER.search(said)) is not None:
        ticks = "a time is ticks on this edge, an int64" if found[1] in _TIMES else "it must be an integer"
        return InvalidArgument(f"{found[1]}: {found[2][:80]} is no integer: {ticks}", field=found[1])
    return InvalidArgument(f"the body is no {kind.full_name} in JSON: {said}", field="body")


CODECS: Mapping[str, Codec] = {"proto": _Proto(), "json": _Json()}
"""Codecs by their names in media types and in the parameter `encoding`."""
