"""Reads what a request says, beside its message: the codec, the deadline, whether the message is compressed."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import parse_qs

from sash.connect.codec import CODECS
from sash.connect.compression import ENCODING
from sash_engine.errors import InvalidArgument, Unsupported

Headers = Mapping[bytes, bytes]

_TIMEOUT = re.compile(rb"[0-9]{1,10}")


def media_type(headers: Headers) -> bytes:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def timeout_of(headers: Headers) -> float | None:
    given = headers.get(b"connect-timeout-ms")
    if given is None:
        return None
    if not _TIMEOUT.fullmatch(given):
        raise InvalidArgument("connect-timeout-ms is no number of milliseconds", field="connect-timeout-ms")
    return int(given) / 1000


def is_packed(headers: Headers, encoding: bytes) -> bool:
    """Check the version; return whether messages are compressed, which the header `encoding` says."""
    version = headers.get(b"connect-protocol-version", b"1")
    if version != b"1":
        raise InvalidArgument("connect-protocol-version must be 1", field="connect-protocol-version", limit="1")
    given = headers.get(encoding)
    return given is not None and _is_gzip(given.lower(), encoding.decode())


def _is_gzip(given: bytes, field: str) -> bool:
    if given not in (b"", b"identity", ENCODING):
        said = given[:40].decode("latin-1")
        raise Unsupported(f"{field} {said!r} is not supported; send gzip or identity", field=field)
    return given == ENCODING


def of_query(query: bytes) -> tuple[bytes, bytes, bool]:
    """Return the codec's name and the message of a GET request, and whether it is compressed. All are in its URL."""
    # A message may be any bytes, and Latin-1 maps each byte to one character and back.
    given = {name: values[-1] for name, values in parse_qs(query.decode("latin-1"), True, encoding="latin-1").items()}
    if given.get("connect", "v1") != "v1":
        raise InvalidArgument("connect must be v1", field="connect", limit="v1")
    packed = _is_gzip(given.get("compression", "").encode("latin-1"), "compression")
    for name in ("encoding", "message"):
        if name not in given:
            raise InvalidArgument(f"{name} is missing", field=name)
    if given["encoding"] not in CODECS:
        raise InvalidArgument(
            f"encoding {given['encoding'][:40]!r} is unknown", field="encoding", limit=", ".join(CODECS)
        )
    data = given["message"].encode("latin-1")
    if given.get("base64") == "1":
        try:
            data = b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            raise InvalidArgument("message is not base64 as addresses have it", field="message") from None
    return given["encoding"].encode(), data, packed
