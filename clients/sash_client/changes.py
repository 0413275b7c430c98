"""Retractions and corrections: the calls that change single entries of a window with an identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

import numpy as np

from sash_client.answers import Bulk, WriteResult
from sash_client.errors import InvalidArgument, SashClientError
from sash_client.frames import bulk_of
from sash_client.handle import Handle, known, tick_of
from sash_client.keys import Key
from sash_client.plans import Plan
from sash_client.times import TimeLike
from sash_client.writes import number_request, numbers_from, requests_of, send_write
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["punctuate", "retract", "update"]


def retract(
    window: Handle,
    times: Any = None,
    identities: Any = None,
    *,
    ids: Any = None,
    keys: Any = None,
    key: Key | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Remove single entries, named by time, identity and key. Entries that are not there are counted as `missing`.

        window.retract([17], ["order 4711"], keys="JFK")
        window.retract(ids=["order 4711", "order 4712"], key="JFK")

    The window's spec names the field that is the `identity`. Each row removes the first entry of its key and time that
    has this identity. The call can be repeated: then all are missing.

    Without times, each row removes the newest entry of its key that has the identity. The service reads the entries of
    the key from the newest on to find it, so give the times where you know them.

    Args:
        times: n times of the entries: ticks, or instants; None where they are not known.
        identities: n values of the identity.
        ids: the same, by name.
        keys: n keys in a keyed window; or one string, for all entries.
        key: one key for all entries, in the place of `keys`.
        producer, sequence, epoch: as in `bulk_insert`.
    """
    if (identities is None) == (ids is None):
        raise InvalidArgument("give the identities, once: identities, or ids", field="ids")
    if key is not None and keys is not None:
        raise InvalidArgument("give either keys, or one key for all entries", field="key")
    spec = yield from known(window)
    if not spec.identity:
        raise InvalidArgument(f"window {spec.name!r} has no identity: its spec names none", field="identity")
    fields = pb.WindowSpec()
    fields.CopyFrom(spec)
    fields.fields.clear()
    fields.fields[spec.identity] = spec.fields[spec.identity]
    named = Bulk(times, {spec.identity: identities if ids is None else ids}, keys if key is None else key)
    messages = _requests(window, named, fields, spec.identity)
    return (yield from _changed(window, "Retract", messages, producer, sequence, epoch))


def update(
    window: Handle,
    times: Any = None,
    columns: Any = None,
    *,
    keys: Any = None,
    time: str | None = None,
    key: str | None = None,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int = 0,
) -> Plan[WriteResult]:
    """Give single entries other values. Time, key and identity name them; `missing` counts those that are not there.

        window.update([17], {"order_id": ["order 4711"], "price": [9.5]}, keys="JFK")
        window.update(columns={"order_id": ["order 4711"], "price": [9.5]}, keys="JFK")

    An entry stays in its place. To move one to another time or key, retract it and insert it again. Without times, the
    newest entry of the key that has the identity is corrected, as in `retract`.

    Args:
        times, columns, keys, time, key: as in `bulk_insert`; columns have every field. `times` may be None, and a frame
            may have no column of times.
        producer, sequence, epoch: as in `bulk_insert`.
    """
    spec = yield from known(window)
    bulk = bulk_of(times, columns, keys, None, None, time, key, timeless=True)
    messages = _requests(window, bulk, spec, spec.identity)
    return (yield from _changed(window, "Update", messages, producer, sequence, epoch))


def punctuate(window: Handle, time: TimeLike) -> Plan[WriteResult]:
    """Say that entries up to a time are final, in a window with `slide.until`; `evicted` says how many left.

        window.punctuate("2013-01-01T06:00Z")

    Entries with time <= `time` that come later are late. An older time than the last one changes nothing. The client
    sends the call again while the service is away.
    """
    request = pb.PunctuateRequest(window=window.name, time=(yield from tick_of(window, time, "time")))
    done: pb.PunctuateResponse = yield from send_write(window, "Punctuate", request, True)
    return WriteResult(evicted=done.evicted, durability=done.durability or "memory")


def _requests(window: Handle, bulk: Bulk, spec: pb.WindowSpec, identity: str) -> Iterator[pb.BulkInsertRequest]:
    """Yield the messages of rows that name entries, by their identity and perhaps their times."""
    if bulk.times is not None:
        return requests_of(window, bulk, spec)
    named = bulk.columns.get(identity) if isinstance(bulk.columns, Mapping) else bulk.columns
    if not isinstance(named, Sized) or isinstance(named, str | bytes):
        field = identity or "identity"
        raise InvalidArgument(f"{field}: give a column with the identity of each entry", field=field)
    return map(_without_times, requests_of(window, replace(bulk, times=np.zeros(len(named), np.int64)), spec))


def _without_times(request: pb.BulkInsertRequest) -> pb.BulkInsertRequest:
    request.ClearField("time")
    return request


def _changed(
    window: Handle,
    method: str,
    messages: Iterator[pb.BulkInsertRequest],
    producer: str | None,
    sequence: int | None,
    epoch: int,
) -> Plan[WriteResult]:
    """Send the messages of one call, and add up their results."""
    total: WriteResult | None = None
    numbers = numbers_from(sequence)
    for request in messages:
        numbered = number_request(request, producer, next(numbers), epoch)
        try:
            done: pb.ChangeResponse = yield from send_write(window, method, request, numbered)
        except SashClientError as error:
            error.applied = total or WriteResult()
            raise
        result = WriteResult(
            evicted=done.evicted,
            already_applied=done.already_applied,
            durability=done.durability or "memory",
            sequences=int(numbered),
            retracted=done.retracted,
            corrected=done.corrected,
            missing=done.missing,
        )
        total = result if total is None else total + result
    assert total is not None  # an empty bulk is a message, too
    return total
