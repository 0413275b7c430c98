"""Checks of the values in exports and images, before they are used.

    header    spec, counts, newest, ledger      documents: pydantic models, one for each
    keys      names                             texts: valid Unicode, of a length that a key may have
    entries   times, fields, keys               columns: of the dtype that the window's spec says, whole, bools 0 or 1
    states    three times of each key           columns of int64

A checksum shows damage, but not who wrote a file: anybody can compute it. So a file is checked like any request. Images
are Sash's own. Only their head is checked, because it is used to list the window.

A member that this version does not know is left out: later versions add members. A version that adds a member to the
ledger must add it to `LedgerForm`, too. Otherwise it is lost here.

Cost: linear; a few ns for each value of a column, about a µs for each value of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sash.durability.records.columns import coded_from, columns_from
from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Array, FieldType, Partials
from sash_engine.windows.answers import Counts
from sash_engine.windows.batches.batch import MAX_COUNTED, AnyBatch, Batch, Coded, PartialBatch, check_key
from sash_engine.windows.batches.ledger import (
    DECIDED_BYTES,
    DIGEST_BYTES,
    DIGESTS_MAX,
    MAX_NAME_BYTES,
    MAX_PARTS,
    MAX_SEQUENCE,
    MAX_WRITERS,
    Ledger,
)
from sash_engine.windows.keys.keys import NEVER, UNKEYED
from sash_engine.windows.spec.window import TICK_MAX, WindowSpec
from sash_engine.windows.writing.admitting import MAX_ROWS
from sash_engine.words import first_wrong

F = TypeVar("F", bound="_Form")

_INT64_MAX = 2**63 - 1
_DECIDED = DECIDED_BYTES + MAX_ROWS // 8
_DTYPES: Mapping[FieldType, str] = {"float64": "<f8", "int64": "<i8", "bool": "|b1"}


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


def _short(name: str) -> str:
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"must have 1 to {MAX_NAME_BYTES} bytes")
    return name


def _digests(most: int) -> Callable[[bytes], bytes]:
    def check(digests: bytes) -> bytes:
        if len(digests) % DIGEST_BYTES or len(digests) > most * DIGEST_BYTES:
            raise ValueError(f"must be digests of {DIGEST_BYTES} bytes, {most} at most")
        return digests

    return check


_Name = Annotated[str, AfterValidator(_short)]
_Count = Annotated[int, Field(ge=0, le=_INT64_MAX)]
_WallTime = Annotated[int, Field(ge=-(2**63), le=_INT64_MAX)]
_Batch = Annotated[int, Field(ge=0, le=MAX_SEQUENCE)]
_Sequence = Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
_First = Annotated[bytes, AfterValidator(_digests(1))]
_Recent = Annotated[bytes, AfterValidator(_digests(DIGESTS_MAX))]
_Newest = Annotated[int, Field(ge=NEVER, le=TICK_MAX - 1)]
_Arrivals = Annotated[int, Field(ge=0, le=MAX_COUNTED)]
_Listed = Field(strict=False)
"""MessagePack has lists where there were tuples."""


class CountsForm(_Form):
    """`Counts`."""

    inserted: _Count
    late: _Count
    evicted: _Count
    duplicates: _Count
    ahead: _Count = 0
    retracted: _Count = 0
    corrected: _Count = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.evicted + self.retracted > self.inserted:
            raise ValueError("say that more entries have left than were inserted")
        return self

    def counts(self) -> Counts:
        """Return the value that it describes."""
        return Counts(**self.model_dump())


class LedgerForm(_Form):
    """`Ledger.document`. The members of a writer are in the order in which `Ledger.of` reads them."""

    producers: dict[_Name, Annotated[tuple[_Batch, _WallTime], _Listed]] = Field(max_length=MAX_WRITERS)
    queries: dict[_Name, Annotated[tuple[_Batch, _WallTime], _Listed]] = Field(max_length=MAX_WRITERS)
    fences: dict[_Name, Annotated[tuple[_Batch, _First, _Recent], _Listed]] = {}
    decided: dict[_Name, list[Annotated[tuple[_Sequence, bytes], _Listed]]] = {}
    next_part: Annotated[int, Field(ge=1, le=_INT64_MAX)]
    parts: dict[_Name, Annotated[tuple[_Sequence, _Name, _Batch, _Count, _WallTime], _Listed]] = Field(
        max_length=MAX_PARTS
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        numbers = [number for number, *_ in self.parts.values()]
        if len(set(numbers)) < len(numbers) or max(numbers, default=0) >= self.next_part:
            raise ValueError("has a part whose number was not given out, or was to two")
        if not self.fences.keys() <= self.producers.keys():
            raise ValueError("has a fence of a producer that it does not know")
        if not self.decided.keys() <= self.producers.keys():
            raise ValueError("has a decision of a producer that it does not know")
        if any(
            len(each) > DIGESTS_MAX or sum(len(bits) for _, bits in each) > _DECIDED for each in self.decided.values()
        ):
            raise ValueError(f"has more than {DIGESTS_MAX} decisions of a producer, or more than {_DECIDED} bytes")
        return self

    def ledger(self) -> Ledger:
        """Return the value that it describes."""
        return Ledger.of(self.model_dump())


class _RoomyCounts(CountsForm):
    """Counts that may double without leaving int64."""

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        if max(self.inserted + self.late, self.duplicates) > MAX_COUNTED:
            raise ValueError(f"have more than {MAX_COUNTED} entries")
        return self


class _Extra(_Form):
    ledger: LedgerForm


class Head(_Form):
    """The head of an image, without spec and sizes."""

    counts: CountsForm
    newest: _Newest
    punctuated: _Newest = NEVER
    arrivals: _Arrivals | None = None
    large: list[Annotated[int, Field(ge=0)]] | None = None


class Header(_Form):
    """The header of an export. `WindowSpec` checks the spec.

    `uncounted` says that the counts are only of entries that are gone: those in the file are added to them. `from` is
    that of a window that another one fed.
    """

    spec: dict[str, Any]
    source: Annotated[dict[str, Any] | None, Field(alias="from")] = None
    counts: _RoomyCounts
    newest: _Newest
    punctuated: _Newest = NEVER
    arrivals: _Arrivals | None = None
    extra: _Extra
    uncounted: bool = False


class Totals(_Form):
    """The totals at the end of an export."""

    keys: Annotated[int, Field(ge=0)]
    rows: Annotated[int, Field(ge=0)]


def checked(form: type[F], document: object, path: str) -> F:
    """Check a document against a form.

    Args:
        path: name of the document, for errors.

    Raises:
        InvalidArgument: it is wrong; names the first wrong member.
    """
    try:
        return form.model_validate(document)
    except ValidationError as error:
        where, wrong = first_wrong(error)
        raise _refused(f"{path}.{where}" if where else path, wrong) from None
    except UnicodeError:  # pydantic reports it for a value, and fails for a name
        raise _refused(path, "must be valid Unicode") from None


# -------------------------------------------------------------------- columns


def check_names(names: Any, path: str) -> None:
    """Check that names are texts of valid Unicode; raises InvalidArgument."""
    if not isinstance(names, list):
        raise _refused(path, "must be a list of texts")
    try:
        "".join(names).encode()
    except TypeError:
        raise _refused(path, "has something among its texts that is none") from None
    except UnicodeEncodeError:
        raise _refused(path, "must be valid Unicode") from None


def names_of(payload: Any, path: str, keyed: bool) -> list[str]:
    """Check the names of keys; raises InvalidArgument if one is wrong or repeated."""
    check_names(payload, path)
    if not keyed and payload != [UNKEYED]:
        raise _refused(path, "must be the one key that a window without keys has")
    for name in payload if keyed else ():
        check_key(name)
    if len(set(payload)) < len(payload):
        raise _refused(path, "has a key twice")
    return payload  # type: ignore[no-any-return]


def states_of(payload: Any, path: str) -> list[Array]:
    """Check the times of keys, int64 (k,) each: now, late_through, touched; raises InvalidArgument."""
    columns = payload if isinstance(payload, list) else []
    if len(columns) != 3:
        raise _refused(path, "must have three columns")
    names = ("now", "late_through", "touched")
    states = [_numbers(column, "<i8", f"{path}.{name}") for name, column in zip(names, columns, strict=True)]
    for name, state in zip(names, states, strict=True):
        if len(state) != len(states[0]):
            raise _refused(f"{path}.{name}", "must have a value for each key")
        if state.max(initial=NEVER) >= TICK_MAX:
            raise _refused(f"{path}.{name}", "has a time out of range")
    return states


def batch_of(payload: Any, spec: WindowSpec, path: str) -> AnyBatch:
    """Check a bulk of entries or panes, as `batch_to` writes it. `checked` of the batch checks the rest.

    Raises:
        InvalidArgument: names the wrong column.
    """
    panes = spec.granularity is not None
    if not isinstance(payload, list) or len(payload) != (5 if panes else 3):
        raise _refused(path, "must be times, columns and keys" + (", partials and entries" if panes else ""))
    times = _numbers(payload[0], "<i8", f"{path}.times")
    columns = {
        name: _field(column, spec.columns.get(name), f"{path}.columns.{name}")
        for name, column in _mapping(payload[1], f"{path}.columns").items()
    }
    keys = None if payload[2] is None else _texts(payload[2], f"{path}.keys")
    if not panes:
        return Batch(times, columns, keys)
    if columns:
        raise _refused(f"{path}.columns", "must be empty beside partials")
    partials = {
        name: _partials(parts, f"{path}.partials.{name}")
        for name, parts in _mapping(payload[3], f"{path}.partials").items()
    }
    return PartialBatch(times, partials, _numbers(payload[4], "<i8", f"{path}.entries"), keys)


def _mapping(payload: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(payload, dict):
        raise _refused(path, "must be a mapping")
    return payload


def _field(payload: Any, kind: FieldType | None, path: str) -> Array | Coded:
    if kind is None:
        raise _refused(path, "is no field of the window")
    return _texts(payload, path) if kind == "string" else _numbers(payload, _DTYPES[kind], path)


def _numbers(payload: Any, dtype: str, path: str) -> Array:
    match payload:
        case [str(found), bytes(data)] if found == dtype and len(data) % np.dtype(dtype).itemsize == 0:
            (column,) = columns_from([payload])
        case _:
            raise _refused(path, f"must be a whole column of {dtype}")
    if column.dtype == np.bool_ and column.view(np.uint8).max(initial=0) > 1:
        raise _refused(path, "has a bool that is neither 0 nor 1")
    return column


def _texts(payload: Any, path: str) -> Coded:
    match payload:
        case [list(texts), bytes(codes)]:
            check_names(texts, path)
        case _:
            raise _refused(path, "must be texts, and a code for each value")
    try:
        return coded_from(texts, codes)
    except ValueError:
        raise _refused(path, f"has {len(codes)} bytes of codes, which is no whole number of them") from None


def _partials(payload: Any, path: str) -> Partials:
    """Check the columns of partials: numbers, or one column of blobs. `PartialBatch.checked` checks which."""
    if not isinstance(payload, list):
        raise _refused(path, "must be a list of columns")
    return tuple([_part(column, path) for column in payload])


def _part(payload: Any, path: str) -> Array:
    match payload:
        case [("<i8" | "<f8" | "|b1") as dtype, bytes()]:
            return _numbers(payload, dtype, path)
        case [list(blobs), *codes] if len(codes) <= 1 and set(map(type, blobs)) <= {bytes}:
            try:
                (column,) = columns_from([payload])
            except (IndexError, TypeError, ValueError):
                raise _refused(path, "has codes that are none") from None
            return column
    raise _refused(path, "must be columns of numbers, or one of blobs")


def _refused(path: str, wrong: str) -> InvalidArgument:
    return InvalidArgument(f"{path} {wrong}", field=path)
