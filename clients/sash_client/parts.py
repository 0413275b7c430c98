"""Keys that are given by their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sash_client.errors import refusing
from sash_client.handle import Handle, known
from sash_client.keys import AllKeys, Key, text
from sash_client.plans import Plan
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.key_parts import key_of_parts

__all__ = ["key_text", "keys_texts", "parts_joined"]


def key_text(window: Handle, key: Key | None) -> Plan[str | None]:
    """Return a key as it travels: its parts are joined."""
    if key is None:
        return None
    if not isinstance(key, Mapping):
        return text(key)
    return parts_joined(key, (yield from known(window)))


def keys_texts(window: Handle, keys: Sequence[Key] | AllKeys | None) -> Plan[Sequence[str] | AllKeys | None]:
    """Return the keys of a question as they travel."""
    if keys is None or isinstance(keys, str | AllKeys):
        return keys
    found = list[Any]()
    for key in keys:
        found.append((yield from key_text(window, key)) if isinstance(key, Mapping) else key)
    return found


@refusing
def parts_joined(key: Mapping[str, str], spec: pb.WindowSpec) -> str:
    """Return the key that has these parts, by name."""
    return key_of_parts(key, spec.keys, f"window {spec.name!r}")
