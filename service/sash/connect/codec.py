"""Reads and writes messages in protobuf's binary form and in its JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message

from sash.rpc.sizes import check_size
from sash_engine.errors import InvalidArgument

__all__ = ["CODECS", "Codec"]

M = TypeVar("M", bound=Message)


class Codec(Protocol):
    """Reads and writes messages."""

    def read(self, kind: type[M], data: bytes) -> M:
        """Parse a message; raises InvalidArgument."""

    def write(self, message: Message) -> bytes:
        """Write a message."""

    def join(self, parts: Sequence[bytes], last: bytes) -> bytes:
        """Join written messages into one; see `sash.rpc.parts`."""


class _Proto:
    def read(self, kind: type[M], data: bytes) -> M:
        check_size(kind, data)
        try:
            return kind.FromString(data)
        except DecodeError:
            raise InvalidArgument(f"the body is no {kind.DESCRIPTOR.full_name}", field="body") from None

    def write(self, message: Message) -> bytes:
        return message.SerializeToString()

    def join(self, parts: Sequence[bytes], last: bytes) -> bytes:
        return b"".join([*parts, last])


class _Json:
    """JSON. Unknown names are refused, because a misspelt name would be ignored in silence."""

    def read(self, kind: type[M], data: bytes) -> M:
        message = kind()
        try:
            Parse(data, message)
        except (ParseError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"the body is no {kind.DESCRIPTOR.full_name} in JSON: {error}", field="body"
            ) from None
        return message

    def write(self, message: Message) -> bytes:
        return MessageToJson(message, indent=None).encode()

    def join(self, parts: Sequence[bytes], last: bytes) -> bytes:
        inside = [part[part.index(b"[") + 1 : -2] for part in parts]
        tail = b"}" if last == b"{}" else b", " + last[1:]
        return parts[0][: parts[0].index(b"[") + 1] + b", ".join(inside) + b"]" + tail


CODECS: Mapping[str, Codec] = {"proto": _Proto(), "json": _Json()}
"""Codecs by their names in media types and in the parameter `encoding`."""
