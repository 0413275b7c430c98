"""The plane's values as JSON.

Numbers are written as proto3's JSON mapping does where JSON has none: NaN and the infinities as "NaN",
"Infinity" and "-Infinity". Bytes are base64. An integer of any size is a JSON integer.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response

from sash.windows.answers import Answer, WindowInfo, WriteResult

__all__ = ["answer_document", "json_response", "window_document", "write_document"]


def json_response(document: Any, status: int = 200) -> Response:
    """A JSON response of plain values."""
    return Response(orjson.dumps(document), status, media_type="application/json")


def answer_document(answer: Answer) -> dict[str, Any]:
    """An answer as plain JSON values."""
    return {
        "key": answer.key,
        "lookback": answer.lookback,
        "start": answer.start,
        "end": answer.end,
        "entries": answer.entries,
        "aggregates": {name: _plain(value) for name, value in answer.aggregates.items()},
    }


def window_document(window: WindowInfo) -> dict[str, Any]:
    """What there is to know of a window as plain JSON values."""
    return {
        "spec": window.spec.document(),
        "entries": window.entries,
        "keys": window.keys,
        "oldest": window.oldest,
        "newest": window.newest,
        "counts": {
            "inserted": window.counts.inserted,
            "late": window.counts.late,
            "evicted": window.counts.evicted,
        },
    }


def write_document(result: WriteResult) -> dict[str, Any]:
    """What became of a write's entries."""
    return {"inserted": result.inserted, "late": result.late, "evicted": result.evicted}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool):
        # The writer stops at 64 bits, which the sum of an int64 field does not.
        return value if -(2**63) <= value < 2**64 else orjson.Fragment(str(value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, np.generic):
        return _plain(value.item())
    return value
