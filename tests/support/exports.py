"""Exports of windows, and the same with a value changed."""

import numpy as np
import pytest

from sash.durability import formats as values
from sash.durability.images.export import Importer, export
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window


def imported(data, clock=None, cold=None, name=None, **options):
    importer = Importer(lambda spec: Window(spec, block=4, clock=clock or ManualClock(), cold=cold, **options), name)
    importer.feed(data)
    return importer.finish()


def changed(frames, i, change):
    """The frames with the payload of one changed, and a checksum that is right."""
    payload = values.unseal("export", frames[i][4:], "frame")
    change(payload)
    value = values.seal("export", payload)
    return b"".join([*frames[:i], len(value).to_bytes(4, "little") + value, *frames[i + 1 :]])


def first_of(frames, kind):
    """Number of the first frame of a kind."""
    return [values.unseal("export", frame[4:], "frame")[1] for frame in frames].index(kind)


def imported_or_refused(frames, number, change, field, match=None):
    """Import frames of which one is changed: it is refused for that field, or taken where that is None."""
    data = changed(frames, number, change)
    if field is None:
        return imported(data)
    with pytest.raises(InvalidArgument, match=match) as caught:
        imported(data)
    assert caught.value.field == field
    return caught.value


def put(*path_and_value):
    """A change: another value at a place in a payload, which is number, kind, content."""
    *path, last, value = path_and_value

    def change(payload):
        for step in path:
            payload = payload[step]
        if value is GONE:
            del payload[last]
        else:
            payload[last] = value

    return change


GONE = object()
LEDGER = (2, "extra", "ledger")


def small(shift=0, gone=None, **parts):
    """A window of two keys with entries at 10, 11, 12; a has more at 20 and 21. Those of one may be gone."""
    document = {"name": "w", "keyed": True, "time_unit": "none", "aggregates": {"sum": {"function": "sum"}}}
    window = Window(WindowSpec.parse(document | parts), block=4, clock=ManualClock())
    for key, time in [("a", 10), ("b", 10), ("a", 11), ("b", 11), ("a", 12), ("b", 12), ("a", 20), ("a", 21)]:
        window.insert(time + shift, {"value": float(time)}, key)
    if gone is not None:
        window.bulk_evict(100, gone)
    return list(export(window))


def times(*those):
    """A change of the times of all entries."""
    return put(2, 0, ["<i8", np.array(those, np.int64).tobytes()])
