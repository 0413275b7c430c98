"""Answers as Prometheus writes them: JSON, where samples are pairs of seconds and a text; and the text of `/federate`.

{"status":"success","data":{"resultType":"vector","result":[{"metric":{…},"value":[1357040000,"12.5"]}]}}

made:newest{key="a"} 17.5 1700000000000
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import orjson

from sash.prometheus.requests import UnsupportedMediaType
from sash.promql.errors import BadData, Refused
from sash.promql.times import Times
from sash.promql.values import NAME, Array, Labels, Scalar, Text, Value, Vector, per_step
from sash_engine import errors
from sash_engine.errors import SashError
from sash_engine.steps import Steps, spans_of

_CELLS = 2_000
"""Samples that one step writes: 1 ms."""

_LONG_BYTES = 4_000
"""Labels that are longer are a step of their own."""

_MESSAGE_CHARACTERS_MAX = 1000

ANSWER_BYTES_MAX = 128 * 2**20
"""Bytes of an answer: 67 for each of the `CELLS_MAX` values that one may have."""


def success(data: Any, warnings: Iterable[str] = ()) -> bytes:
    """Return the document of an answer that is small."""
    document: dict[str, Any] = {"status": "success", "data": data}
    if said := list(warnings):
        document["warnings"] = said
    return orjson.dumps(document)


def failure(error: SashError) -> tuple[bytes, int]:
    """Return the document of an error, and its status."""
    kind, status = kind_of(error)
    message = error.message.encode("utf-8", "replace").decode()[:_MESSAGE_CHARACTERS_MAX]
    return orjson.dumps({"status": "error", "errorType": kind, "error": message}), int(status)


def number(value: float) -> str:
    """Write a number as Go does with the format 'f': shortest, without an exponent.

    >>> number(12.0), number(1e21), number(1.5e-7), number(float("inf")), number(-0.0)
    ('12', '1000000000000000000000', '0.00000015', '+Inf', '-0')
    """
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    if "e" in text:
        return str(np.format_float_positional(value, trim="-"))
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)


def seconds(ms: int) -> str:
    """Write milliseconds as seconds.

    >>> seconds(1357040000000), seconds(-1500), seconds(50)
    ('1357040000', '-1.5', '0.05')
    """
    whole, part = divmod(abs(ms), 1000)
    sign = "-" if ms < 0 else ""
    return f"{sign}{whole}.{part:03}".rstrip("0") if part else f"{sign}{whole}"


class Parts:
    """The text of an answer in parts, as it grows."""

    def __init__(self) -> None:
        self.parts = list[bytes]()
        self._bytes = 0

    def append(self, part: bytes) -> None:
        """Append a part.

        Raises:
            Refused: the answer is too long.
        """
        self._bytes += len(part)
        if self._bytes > ANSWER_BYTES_MAX:
            raise Refused(
                f"the answer has more than {ANSWER_BYTES_MAX >> 20} MiB; narrow the selectors or make the step longer",
                field="query",
                limit=f"{ANSWER_BYTES_MAX} bytes",
            )
        self.parts.append(part)


def instant_steps(value: Value, times: Times, warnings: Iterable[str]) -> Steps[list[bytes]]:
    """Write the answer of an instant query, in parts."""
    at = seconds(times.start_ms)
    if isinstance(value, Scalar):
        yield
        return _whole("scalar", [f'[{at},"{number(float(value.values[0]))}"]'.encode()], warnings)
    if isinstance(value, Text):
        yield
        return _whole("string", [f"[{at},".encode() + orjson.dumps(value.text) + b"]"], warnings)
    written = Parts()
    values, before = value.values[:, 0].tolist(), b"["
    for row in np.flatnonzero(value.there[:, 0]).tolist():
        metric = orjson.dumps(value.labels[row])
        written.append(before + b'{"metric":' + metric + f',"value":[{at},"{number(values[row])}"]}}'.encode())
        before = b","
        if not row % (_CELLS // 4) or len(metric) > _LONG_BYTES:
            yield
    return _whole("vector", _listed(written), warnings)


def range_steps(value: Scalar | Vector, times: Times, warnings: Iterable[str]) -> Steps[list[bytes]]:
    """Write the answer of a range query, in parts: series by their labels, each with the samples that are there."""
    if isinstance(value, Scalar):
        value = Vector([{}], value.values[None, :], np.ones((1, times.count), np.bool_))
    at = [f'[{seconds(ms)},"' for ms in times.ms.tolist()]
    yield
    order = yield from _by_labels(value.labels, value.there)
    written, before = Parts(), b"["
    for place, row in enumerate(order):
        metric = orjson.dumps(value.labels[row])
        written.append(before + b'{"metric":' + metric + b',"values":[')
        there = value.there[row]
        yield from _samples(written, at, np.flatnonzero(there), value.values[row][there])
        written.append(b"]}")
        before = b","
        if not place % 100 or len(metric) > _LONG_BYTES:
            yield
    return _whole("matrix", _listed(written), warnings)


def entries_steps(series: Sequence[tuple[Labels, Array, Array]], warnings: Iterable[str]) -> Steps[list[bytes]]:
    """Write the entries of a range, in parts."""
    written, before = Parts(), b"["
    for labels, ms, values in series:
        if len(ms):
            written.append(before + b'{"metric":' + orjson.dumps(labels) + b',"values":[')
            for a, b in spans_of(len(ms), _CELLS):
                at = [f'[{seconds(each)},"' for each in ms[a:b].tolist()]
                if a:
                    written.append(b",")
                yield from _samples(written, at, np.arange(b - a), values[a:b])
                yield
            written.append(b"]}")
            before = b","
    yield
    return _whole("matrix", _listed(written), warnings)


def _samples(written: Parts, at: list[str], places: Array, values: Array) -> Steps[None]:
    for a in range(0, len(places), _CELLS):
        some = zip(places[a : a + _CELLS].tolist(), values[a : a + _CELLS].tolist(), strict=True)
        text = ",".join([f'{at[i]}{number(value)}"]' for i, value in some])
        written.append((("," if a else "") + text).encode())
        if len(places) > _CELLS // 4:
            yield


def _listed(written: Parts) -> list[bytes]:
    return [*written.parts, b"]" if written.parts else b"[]"]


def _by_labels(labels: Sequence[Labels], there: Array) -> Steps[list[int]]:
    rows = np.flatnonzero(there.any(1)).tolist()
    yield
    keys = {row: sorted(labels[row].items()) for row in rows}
    yield
    return sorted(rows, key=keys.__getitem__)


def _whole(kind: str, result: list[bytes], warnings: Iterable[str]) -> list[bytes]:
    said = list(warnings)
    end = b',"warnings":' + orjson.dumps(said) + b"}" if said else b"}"
    return [f'{{"status":"success","data":{{"resultType":"{kind}","result":'.encode(), *result, b"}", end]


# ---------------------------------------------------------------- the text format of expositions, for /federate

TEXT = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposed(vectors: Iterable[Vector], times: Times) -> Steps[list[bytes]]:
    """Write the samples of an instant, metric by metric, each series once.

    The format has no names with dots and hyphens: series of such a metric, or with such a label, are left out.
    """
    rows = dict[str, dict[frozenset[tuple[str, str]], tuple[Labels, float]]]()
    for vector in vectors:
        for row in np.flatnonzero(vector.there[:, 0]).tolist():
            labels = vector.labels[row]
            if _NAME.fullmatch(labels.get(NAME, "")) and all(map(_LABEL.fullmatch, labels.keys() - {NAME})):
                of_name = rows.setdefault(labels[NAME], {})
                of_name[frozenset(labels.items())] = labels, float(vector.values[row, 0])
        yield
    written = Parts()
    for name, samples in rows.items():
        written.append(f"# TYPE {name} untyped\n".encode())
        each = list(samples.values())
        for a, b in spans_of(len(each), per_step([labels for labels, _ in each])):
            lines = [_line(name, labels, value, times.start_ms) for labels, value in each[a:b]]
            written.append("".join(lines).encode())
            yield
    return written.parts


def _line(name: str, labels: Labels, value: float, at_ms: int) -> str:
    pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items() if label != NAME)
    return f"{name}{{{pairs}}} {number(value)} {at_ms}\n"


# ---------------------------------------------------------------- errors

_KINDS: tuple[tuple[type[errors.SashError], str, HTTPStatus], ...] = (
    (errors.TooLarge, "bad_data", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnsupportedMediaType, "bad_data", HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (BadData, "bad_data", HTTPStatus.BAD_REQUEST),
    (errors.Unauthenticated, "unauthorized", HTTPStatus.UNAUTHORIZED),
    (errors.PermissionDenied, "forbidden", HTTPStatus.FORBIDDEN),
    (errors.ResourceExhausted, "unavailable", HTTPStatus.TOO_MANY_REQUESTS),
    (errors.Unavailable, "unavailable", HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.NotFound, "not_found", HTTPStatus.NOT_FOUND),
    (errors.DataLoss, "internal", HTTPStatus.INTERNAL_SERVER_ERROR),
    (errors.SashError, "execution", HTTPStatus.UNPROCESSABLE_ENTITY),
)


def kind_of(error: errors.SashError) -> tuple[str, HTTPStatus]:
    """Return the `errorType` and the status of an error.

    What a window refuses of a question that is well formed is an error of execution.
    """
    return next((kind, status) for cls, kind, status in _KINDS if isinstance(error, cls))
