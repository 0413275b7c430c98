"""Exports: a file from which the same window comes back, here or elsewhere, or nothing does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, SashError, Unsupported
from sash.windows import export as module
from sash.windows import values
from sash.windows.batch import Batch
from sash.windows.export import Importer, export
from sash.windows.spec import WindowSpec
from sash.windows.window import Window
from tests.support.shelf import Shelf
from tests.support.twins import KEYS, SPECS, Twins, a_share_of_examples, spec, steps


def imported(data, clock=None, cold=None, name=None, **options):
    importer = Importer(lambda spec: Window(spec, block=4, clock=clock, cold=cold, **options), name)
    importer.feed(data)
    return importer.finish()


class Moved(Twins):
    """Twins of which the one that is stored can move to another service, with another shelf."""

    def restart(self, _):
        data = b"".join(export(self.stored))
        self.shelf = Shelf(self.shelf.cold.cache.budget_bytes)
        self.stored = imported(data, self.clock, self.shelf.cold, pages=(1, 8))
        self.shelf.layout = self.stored.layout
        # Numbers are its own; what is seen from outside is the same.
        self.same(numbers=False)


@pytest.mark.parametrize("name", SPECS)
@given(history=st.lists(steps, max_size=12), keyed=st.booleans())
@a_share_of_examples(8)
def test_a_window_that_moved_goes_on_as_before(name, history, keyed):
    twins = Moved(spec(name, keyed))
    for step in history:
        twins.step(*step)
    twins.restart(None)
    twins.bulk([(key, time) for key in KEYS for time in (3, 17, 38, 39)])
    twins.wait(1)
    twins.same(numbers=False)


@pytest.fixture
def exported(monkeypatch):
    """A window, and its export of many small frames."""
    monkeypatch.setattr(module, "_KEYS", 5)
    monkeypatch.setattr(module, "_ROWS", 7)
    twins = Twins(spec("max_age"))
    twins.bulk([(f"key {i}", 30 + time) for i in range(12) for time in range(i % 5)])
    twins.bulk([("a", time) for time in range(40)])
    twins.store(None)
    return twins.stored, list(export(twins.stored, {"producers": {"p": [7, 123]}}))


def test_what_else_is_to_be_known_comes_along_and_the_name_may_be_another(exported):
    window, frames = exported
    importer = Importer(lambda spec: Window(spec), "other")
    data = b"".join(frames)
    for at in range(0, len(data), 11):  # pieces of any size
        importer.feed(data[at : at + 11])
    copy = importer.finish()
    assert importer.extra == {"producers": {"p": [7, 123]}}
    assert copy.spec.name == "other"
    assert copy.spec.document() | {"name": "w"} == window.spec.document()
    assert copy.query("a", [5], None) == window.query("a", [5], None)
    assert (copy.counts, copy.keys.names()) == (window.counts, window.keys.names())
    copy.check_invariants()


def test_a_file_without_a_frame_or_with_one_twice_or_elsewhere_is_refused(exported):
    _, frames = exported
    assert len(frames) > 9
    for i in range(len(frames)):
        with pytest.raises(InvalidArgument, match=rf"frame {i} of the export"):
            imported(b"".join(frames[:i] + frames[i + 1 :]))
        with pytest.raises(InvalidArgument, match=rf"frame {i + 1} of the export"):
            imported(b"".join(frames[: i + 1] + frames[i:]))


@given(st.data())
def test_a_file_that_is_cut_short_or_damaged_is_refused(data):
    twins = Twins(spec("both"))
    twins.bulk([(key, time) for key in KEYS for time in range(9)])
    whole = b"".join(export(twins.memory))
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(InvalidArgument, match=r"cut short in frame|the export is empty"):
        imported(whole[:at])
    broken = bytearray(whole)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidArgument, match=r"frame|not an exported window|the export is empty") as caught:
        imported(bytes(broken))
    assert caught.value.field == "body", "whoever sent it is at fault, and nothing of the service is damaged"


def test_what_is_no_export_is_said_to_be_none():
    for data in (b"PK\3\4 and so on", b'{"name": "w"}', bytes(100)):
        with pytest.raises(InvalidArgument, match="not an exported window"):
            imported(data)
    with pytest.raises(InvalidArgument, match="the export is empty") as caught:
        imported(b"")
    assert caught.value.field == "body"


@pytest.mark.parametrize("name", ["", "a b", "1st", "x" * 129])
def test_a_name_that_is_none_is_refused_before_anything_is_read(name):
    with pytest.raises(InvalidArgument, match="is not a name") as caught:
        Importer(lambda spec: Window(spec), name)
    assert caught.value.field == "name"


def test_an_export_of_a_newer_version_is_told_from_a_damaged_one(exported, monkeypatch):
    window, _ = exported
    monkeypatch.setattr(values, "UNBOUND", 3)
    data = b"".join(export(window))
    monkeypatch.undo()
    with pytest.raises(FailedPrecondition, match="format 3"):
        imported(data)


def changed(frames, i, change):
    """The frames with the payload of one changed, and a checksum that is right."""
    payload = values.unseal("export", frames[i][4:], "frame")
    change(payload)
    value = values.seal("export", payload)
    return b"".join([*frames[:i], len(value).to_bytes(4, "little") + value, *frames[i + 1 :]])


def test_frames_that_somebody_made_up_are_refused_by_number(exported):
    # number, kind, content
    _, frames = exported
    kinds = [values.unseal("export", frame[4:], "frame")[1] for frame in frames]
    keys, entries, states, end = (kinds.index(kind) for kind in ("keys", "entries", "states", "end"))

    def put(*path_and_value):
        *path, last, value = path_and_value

        def change(payload):
            for step in path:
                payload = payload[step]
            payload[last] = value

        return change

    for i, change in (
        (0, put(2, {})),
        (0, put(2, "counts", {"inserted": "many"})),
        (0, put(2, "counts", {"inserted": 10**6})),
        (keys, put(2, 0, "")),
        (keys, put(2, 0, 5)),
        (keys, put(2, 1, "key 1")),
        (keys, put(2, ["x", "x"])),
        (entries, put(2, 0, ["<i8", b"\0" * 5])),
        (entries, put(2, 0, ["|O", b"\0" * 56])),
        (entries, put(2, 1, {})),
        (entries, put(2, 1, "x", ["<i8", b"\0" * 56])),
        (entries, put(2, 2, None)),
        (entries, put(2, [])),
        (entries, put(1, "nothing")),
        (states, put(2, 0, ["<i8", b""])),
        (end, put(2, "rows", 0)),
    ):
        with pytest.raises(SashError):
            imported(changed(frames, i, change))


def test_an_import_has_no_more_keys_than_a_window_may_have(exported):
    _, frames = exported
    with pytest.raises(ResourceExhausted, match="keys"):
        imported(b"".join(frames), max_keys=8)


def test_bulks_of_long_strings_are_cut_into_frames(monkeypatch):
    monkeypatch.setattr(module, "_FRAME_BYTES", 5000)
    document = {"name": "w", "keyed": True, "fields": {"s": "string"}, "aggregates": {"n": {"function": "count"}}}
    window = Window(WindowSpec.parse(document))
    strings = [f"{i:1000}" for i in range(40)]
    for i, text in enumerate(strings):
        window.insert(i, {"s": text}, f"key {i % 3}")
    frames = list(export(window))
    assert len(frames) >= 12
    assert max(map(len, frames)) < 7000
    copy = imported(b"".join(frames))
    for key in range(3):
        number = copy.keys.find(f"key {key}")
        assert copy.keys.columns(number)[1].tolist() == strings[key::3]


def test_a_window_by_algorithm_cannot_be_exported():
    window = Window(WindowSpec.parse({"name": "w", "aggregates": {"s": {"function": "sum"}}, "algorithm": "daba"}))
    window.bulk_insert(Batch(np.arange(3), {"value": np.ones(3)}))
    with pytest.raises(Unsupported, match="daba"):
        export(window)
