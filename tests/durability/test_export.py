"""Exports: a file from which the same window comes back, here or elsewhere, or nothing does."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.images import export as module
from sash.durability.images import forms
from sash.durability.images.export import Importer, export
from sash.durability.records.columns import columns_from
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash_engine.windows.answers import Counts
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.batches.ledger import Ledger
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.exports import LEDGER, changed, imported, put, small, times
from tests.support.shelf import Shelf
from tests.support.twins import KEYS, SPECS, Twins, a_share_of_examples, spec, steps


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


def test_the_ledger_comes_along_without_staged_parts_and_the_name_may_be_another(exported):
    window, frames = exported
    importer = Importer(lambda spec: Window(spec, clock=ManualClock()), "other")
    data = b"".join(frames)
    for at in range(0, len(data), 11):  # pieces of any size
        importer.feed(data[at : at + 11])
    copy = importer.finish()
    parts = {"next_part": 1, "parts": {}}  # numbers of parts are those of values in a tier, and another one here
    assert copy.ledger.document() == window.ledger.document() | parts
    assert copy.ledger.applied(Origin("p", 1))
    assert copy.ledger.committed("q", 5)
    assert not copy.ledger.committed("q", 6)
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


def test_nothing_may_follow_the_end(exported):
    _, frames = exported
    end = values.unseal("export", frames[-1][4:], "frame")
    for more in (b"\0", b"\0\0\0\0", frames[-1]):
        with pytest.raises(InvalidArgument, match=f"frame {len(frames)} of the export"):
            imported(b"".join([*frames, more]))
    for kind, content in (("end", end[2]), ("header", {}), ("states", [])):
        value = values.seal("export", [len(frames), kind, content])
        with pytest.raises(InvalidArgument, match=f"frame {len(frames)} of the export: it was written as"):
            imported(b"".join([*frames, len(value).to_bytes(4, "little"), value]))


def test_a_frame_is_no_longer_than_frames_are():
    for length, refused in ((module.FRAME_BYTES_MAX, False), (module.FRAME_BYTES_MAX + 1, True)):
        importer = Importer(lambda spec: Window(spec, clock=ManualClock()))
        start = length.to_bytes(4, "little") + b"SASH"
        if refused:
            with pytest.raises(InvalidArgument, match=f"frame 0 of the export is damaged.*{length} bytes"):
                importer.feed(start)
        else:
            importer.feed(start)
            with pytest.raises(InvalidArgument, match="cut short in frame 0"):
                importer.finish()


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
        Importer(lambda spec: Window(spec, clock=ManualClock()), name)
    assert caught.value.field == "name"


def test_an_export_of_a_newer_version_is_told_from_a_damaged_one(exported, monkeypatch):
    window, _ = exported
    monkeypatch.setattr(values, "UNBOUND", values.FORMAT + 1)
    data = b"".join(export(window))
    monkeypatch.undo()
    with pytest.raises(FailedPrecondition, match="newer version"):
        imported(data)


def test_entries_of_one_time_are_found_across_frames(monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 3)
    frames = small(order={"equal_times": "first"})
    found = [columns_from([values.unseal("export", frame[4:], "")[2][0]])[0].tolist() for frame in frames[2:5]]
    assert found == [[10, 11, 12], [20, 21, 10], [11, 12]]
    with pytest.raises(InvalidArgument, match="frame 3 of the export: two entries of one key have one time"):
        imported(changed(frames, 3, times(12, 21, 10)))


def test_what_a_later_version_adds_is_left_out(exported):
    window, frames = exported
    for change in (put(2, "more", 1), put(2, "counts", "more", 1), put(*LEDGER, "more", 1), put(2, "extra", "more", 1)):
        copy = imported(changed(frames, 0, change))
        assert copy.counts == window.counts
        assert copy.ledger.applied(Origin("p", 1))


def test_forms_have_all_that_there_is():
    """What they do not have is left out, with every export and every image."""
    assert set(forms.CountsForm.model_fields) == {member.name for member in dataclasses.fields(Counts)}
    ledger = Ledger()
    ledger.note(Origin("sensor", 1), 5)
    ledger.note(Origin("ü" * 100, 2**63 - 1), 2**63 - 1)
    ledger.commit("nightly", 0, 7)
    ledger.stage("token", "nightly", 1, 3, 9, None)
    ledger.stage("other", "q", 2**63 - 1, 0, 9, None)
    again = forms.checked(forms.LedgerForm, values.unpack(values.pack(ledger.document())), "ledger").ledger()
    assert again.document() == ledger.document()
    assert again.parts == ledger.parts


def test_an_import_has_no_more_keys_than_a_window_may_have(exported):
    _, frames = exported
    with pytest.raises(ResourceExhausted, match="keys"):
        imported(b"".join(frames), max_keys=8)


@pytest.mark.parametrize(("frame_bytes", "least", "most"), [(5000, 12, 7000), (1500, 42, 1500)])
def test_bulks_of_long_strings_are_cut_into_frames(monkeypatch, frame_bytes, least, most):
    monkeypatch.setattr(module, "_FRAME_BYTES", frame_bytes)
    document = {"name": "w", "keyed": True, "fields": {"s": "string"}, "aggregates": {"n": {"function": "count"}}}
    window = Window(WindowSpec.parse(document), clock=ManualClock())
    strings = [f"{i:1000}" for i in range(40)]
    for i, text in enumerate(strings):
        window.insert(i, {"s": text}, f"key {i % 3}")
    frames = list(export(window))
    assert len(frames) >= least
    assert max(map(len, frames)) < most
    copy = imported(b"".join(frames))
    for key in range(3):
        number = copy.keys.find(f"key {key}")
        assert copy.keys.columns(number)[1].tolist() == strings[key::3]
