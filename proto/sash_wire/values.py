"""Python values and the message `Value`.

`fill_value` fills a message in place. Building messages and assigning them takes a third longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sash_proto.v1 import windows_pb2 as pb
from sash_wire.errors import WireError

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def fill_value(message: pb.Value, value: Any, path: str = "value") -> None:
    """Write a value into an empty message: a scalar, a list or a mapping. None leaves the message empty.

    Args:
        message: an empty message.
        value: numbers, strings, bytes, NumPy scalars and arrays, lists, tuples and mappings of these, and None.
        path: what to call the value in an error.

    Raises:
        WireError: a value of another type.
        UnicodeEncodeError: a string that has no UTF-8.
    """
    if isinstance(value, float):
        message.float64 = value
    elif isinstance(value, bool):
        message.bool = value
    elif isinstance(value, int):
        if _INT64_MIN <= value <= _INT64_MAX:
            message.int64 = value
        else:
            message.integer = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    elif isinstance(value, str):
        message.string = value
    elif isinstance(value, bytes):
        message.blob = value
    elif isinstance(value, Mapping):
        message.map.SetInParent()
        entries = message.map.entries
        for name, item in value.items():
            fill_value(entries[str(name)], item, path)
    elif isinstance(value, (list, tuple)):
        message.list.SetInParent()
        items = message.list.items
        for item in value:
            fill_value(items.add(), item, path)
    elif isinstance(value, np.floating):
        message.float64 = float(value)
    elif isinstance(value, np.bool_):
        message.bool = bool(value)
    elif isinstance(value, np.integer):
        fill_value(message, int(value), path)
    elif isinstance(value, np.ndarray):
        fill_value(message, value.tolist(), path)
    elif value is not None:
        raise WireError(f"{path}: a {type(value).__name__} cannot be sent", field=path)


def from_value(value: pb.Value) -> Any:
    """Return the Python value of a message; None if nothing is set."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [from_value(item) for item in value.list.items]
    if kind == "map":
        return {name: from_value(item) for name, item in sorted(value.map.entries.items())}
    if kind == "integer":
        return int.from_bytes(value.integer, "little", signed=True)
    return getattr(value, kind)
