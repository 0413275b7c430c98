"""Calls between processes as bytes: MessagePack, with the values of the plane as extension types.

    an array          dtype, shape and bytes          a question, answer, batch, …      its class and its fields
    an array of objects          a list               an error                          its class and what it says

Both ends are the same version of Sash. Only the classes below are read, so bytes cannot make anything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgpack
import numpy as np

from sash.durability.records import commands as records
from sash_engine import errors
from sash_engine.errors import DataLoss, SashError
from sash_engine.windows import answers, questions
from sash_engine.windows.batches import batch
from sash_engine.windows.spec.window import WindowSpec

_CLASSES: Mapping[str, type] = {
    name: found
    for module in (answers, questions, batch)
    for name, found in vars(module).items()
    if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, Enum)) and found is not Enum
} | {
    name: found
    for name, found in vars(records).items()
    if isinstance(found, type) and issubclass(found, records.Command)
}
_ERRORS: Mapping[str, type[SashError]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, SashError)
}
_ARRAY, _OBJECTS, _VALUE, _MEMBER, _SPEC, _ERROR, _TUPLE, _LARGE, _PAGE = range(1, 10)
_WHOLE = 2**31 - 1


def pack(value: Any) -> bytes:
    """Return the bytes of a value."""
    packed: bytes = msgpack.packb(value, default=_known, strict_types=True, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes) -> Any:
    """Return the value of bytes that `pack` made.

    Raises:
        DataLoss: they are something else.
    """
    try:
        return msgpack.unpackb(
            data,
            ext_hook=_value,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_ext_len=_WHOLE,
            max_bin_len=_WHOLE,
            max_str_len=_WHOLE,
            max_array_len=_WHOLE,
            max_map_len=_WHOLE,
        )
    except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        raise DataLoss(f"a message between processes cannot be read: {error!r}"[:300]) from None


def _known(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return _ext(_OBJECTS, value.tolist())
        return _ext(_ARRAY, [value.dtype.str, list(value.shape), value.tobytes()])
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return _ext(_TUPLE, list(value))
    if isinstance(value, WindowSpec):
        return _ext(_SPEC, value.document())
    if isinstance(value, SashError):
        error = [type(value).__name__, value.message, value.field, value.limit, value.retry_after_s]
        return _ext(_ERROR, [*error, True] if value.unchanged else error)
    if isinstance(value, answers.Page):
        return _ext(_PAGE, [list(value), value.position])
    name = type(value).__name__
    if name in _CLASSES:
        if isinstance(value, Enum):
            return _ext(_MEMBER, [name, value.name])
        return _ext(_VALUE, [name, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}])
    if type(value) is int:
        return _ext(_LARGE, str(value))  # MessagePack has 64 bits
    if isinstance(value, str | int | float):
        return str(value) if isinstance(value, str) else int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{name} does not travel between processes")


def _ext(kind: int, content: Any) -> msgpack.ExtType:
    return msgpack.ExtType(kind, pack(content))


def _value(kind: int, data: bytes) -> Any:
    content = unpack(data)
    if kind == _ARRAY:
        dtype, shape, raw = content
        return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)
    if kind == _OBJECTS:
        made = np.empty(len(content), object)
        for place, item in enumerate(content):
            made[place] = item
        return made
    if kind == _VALUE:
        return _CLASSES[content[0]](**content[1])
    if kind == _MEMBER:
        return _CLASSES[content[0]][content[1]]  # type: ignore[index]
    if kind == _SPEC:
        return WindowSpec.parse(content)
    if kind == _ERROR:
        name, message, field, limit, retry_after_s, *unchanged = content
        return _ERRORS[name](
            message, field=field, limit=limit, retry_after_s=retry_after_s, unchanged=bool(unchanged and unchanged[0])
        )
    if kind == _TUPLE:
        return tuple(content)
    if kind == _LARGE:
        return int(content)
    if kind == _PAGE:
        page: answers.Page[Any] = answers.Page(content[0])
        page.position = content[1]
        return page
    raise ValueError(f"extension {kind}")
