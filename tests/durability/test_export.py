"""Exports: a file from which the same window comes back, here or elsewhere, or nothing does."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.images import export as module
from sash.durability.images import forms
from sash.durability.images.export import Importer, export
from sash.durability.records.columns import columns_from, columns_to
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash_engine.windows.answers import Counts
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.batches.ledger import Ledger
from sash_engine.windows.keys.keys import NEVER
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.exports import (
    GONE,
    LEDGER,
    changed,
    first_of,
    imported,
    imported_or_refused,
    put,
    small,
    times,
)
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


BOTH_ARE_1 = {"producers": {}, "queries": {}, "next_part": 3, "parts": {t: [1, "q", 6, 1, 789] for t in "tu"}}
HEADER = "header.extra.ledger"
NINE = ["<i8", np.arange(9).tobytes()]


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        ("header", put(2, {}), "header.spec"),
        ("header", put(2, []), "header"),
        ("header", put(2, "spec", "w"), "header.spec"),
        ("header", put(2, "spec", "aggregates", {}), "aggregates"),
        ("header", put(2, "counts", "late", "many"), "header.counts.late"),
        ("header", put(2, "counts", "late", 2**63), "header.counts.late"),
        ("header", put(2, "counts", "late", 2**62), "header.counts"),
        ("header", put(2, "counts", "duplicates", 2**62 + 1), "header.counts"),
        ("header", put(2, "counts", "duplicates", -1), "header.counts.duplicates"),
        ("header", put(2, "counts", "evicted", GONE), "header.counts.evicted"),
        ("header", put(2, "counts", "evicted", 10**6), "header.counts"),
        ("header", put(2, "newest", None), "header.newest"),
        ("header", put(2, "newest", 2**63 - 1), "header.newest"),
        ("header", put(2, "newest", -(2**63) - 1), "header.newest"),
        ("header", put(2, "newest", True), "header.newest"),
        ("header", put(2, "newest", 30.0), "header.newest"),
        ("header", put(2, "extra", {}), HEADER),
        ("header", put(*LEDGER, "next_part", "2"), f"{HEADER}.next_part"),
        ("header", put(*LEDGER, "next_part", 0), f"{HEADER}.next_part"),
        ("header", put(*LEDGER, "next_part", 2**63), f"{HEADER}.next_part"),
        ("header", put(*LEDGER, "producers", []), f"{HEADER}.producers"),
        ("header", put(*LEDGER, "producers", "p", [-1, 123]), f"{HEADER}.producers.p.0"),
        ("header", put(*LEDGER, "producers", "p", [2**63, 123]), f"{HEADER}.producers.p.0"),
        ("header", put(*LEDGER, "producers", "p", [1, 2**63]), f"{HEADER}.producers.p.1"),
        ("header", put(*LEDGER, "producers", "p", [1]), f"{HEADER}.producers.p.1"),
        ("header", put(*LEDGER, "producers", "", [1, 123]), f"{HEADER}.producers."),
        ("header", put(*LEDGER, "producers", "é" * 101, [1, 123]), f"{HEADER}.producers.{'é' * 101}"),
        ("header", put(*LEDGER, "producers", "\ud800", [1, 123]), f"{HEADER}.producers.\ufffd\ufffd\ufffd"),
        ("header", put(*LEDGER, "producers", 7, [1, 123]), f"{HEADER}.producers.7"),
        ("header", put(*LEDGER, "queries", "q", [-1, 456]), f"{HEADER}.queries.q.0"),
        ("header", put(*LEDGER, "parts", {"t": [0, "q", 6, 1, 789]}), f"{HEADER}.parts.t.0"),
        ("header", put(*LEDGER, "parts", {"t": [2, "q", 6, 1, 789]}), HEADER),  # 2 is the next
        ("header", put(*LEDGER, "parts", {"t": [1, "q", 6, 1, 789]}), f"{HEADER}.parts"),
        ("header", put(2, "extra", "ledger", BOTH_ARE_1), HEADER),
        ("keys", put(2, "key 1"), "keys"),
        ("keys", put(2, 0, ""), "key"),
        ("keys", put(2, 0, "x" * 513), "key"),
        ("keys", put(2, 0, 5), "keys"),
        ("keys", put(2, 0, b"a"), "keys"),
        ("keys", put(2, 0, "\ud800"), "keys"),
        ("keys", put(2, 1, "key 1"), "keys"),
        ("keys", put(2, ["x", "x"]), "keys"),
        ("entries", put(2, []), "entries"),
        ("entries", put(2, 2, GONE), "entries"),
        ("entries", put(2, 0, ["<i8", b"\0" * 5]), "entries.times"),
        ("entries", put(2, 0, ["<i8", [0] * 7]), "entries.times"),
        ("entries", put(2, 0, ["|O", b"\0" * 56]), "entries.times"),
        ("entries", put(2, 0, ["<u8", b"\0" * 56]), "entries.times"),
        ("entries", put(2, 0, ["<f8", b"\0" * 56]), "entries.times"),
        ("entries", put(2, 0, ["<i8", np.array([-(2**63)] * 7).tobytes()]), "time"),
        ("entries", put(2, 0, NINE), "n"),
        ("entries", put(2, 1, []), "entries.columns"),
        ("entries", put(2, 1, {}), "n"),
        ("entries", put(2, 1, "other", NINE), "entries.columns.other"),
        ("entries", put(2, 1, "x", ["<i8", b"\0" * 56]), "entries.columns.x"),
        ("entries", put(2, 1, "x", ["(2,)<f8", b"\0" * 112]), "entries.columns.x"),
        ("entries", put(2, 1, "flag", ["|b1", b"\2" * 7]), "entries.columns.flag"),
        ("entries", put(2, 1, "word", [["a", ["b"]], b"\0" * 7]), "entries.columns.word"),
        ("entries", put(2, 1, "word", [["a", "\ud800"], b"\0" * 7]), "entries.columns.word"),
        ("entries", put(2, 1, "word", [["a"] * 7]), "entries.columns.word"),
        ("entries", put(2, 1, "word", ["ab", b"\0" * 7]), "entries.columns.word"),
        ("entries", put(2, 1, "word", [["a"] * 300, b"\0" * 7]), "entries.columns.word"),
        ("entries", put(2, 1, "word", [["a"], b"\1" * 7]), "word"),
        ("entries", put(2, 2, None), "key"),
        ("entries", put(2, 2, [["a", "\ud800"], b"\0" * 7]), "entries.keys"),
        ("entries", put(2, 2, [["nobody"], b"\0" * 7]), "key"),
        ("entries", put(1, "nothing"), "body"),
        ("entries", put(1, ["entries"]), "body"),
        ("entries", put(1, "header"), "body"),
        ("entries", put(0, "2"), "body"),
        ("entries", put(2, GONE), "body"),
        ("states", put(2, []), "states"),
        ("states", put(2, None), "states"),
        ("states", put(2, 0, ["<i8", b""]), "states.late_through"),
        ("states", put(2, 0, ["<f8", b"\0" * 40]), "states.now"),
        ("states", put(2, 1, ["<i8", np.full(5, 2**63 - 1).tobytes()]), "states.late_through"),
        ("states", put(2, 2, ["<i8", np.full(5, 2**63 - 1).tobytes()]), "states.touched"),
        ("states", put(2, 2, ["<i8", np.full(4, 1).tobytes()]), "states.touched"),
        ("end", put(2, None), "end"),
        ("end", put(2, "rows", 0), "end"),
        ("end", put(2, "rows", "many"), "end.rows"),
        ("end", put(2, "keys", -1), "end.keys"),
    ],
)
def test_a_wrong_value_is_refused_by_frame_and_name(exported, kind, change, field):
    _, frames = exported
    number = first_of(frames, kind)
    imported_or_refused(frames, number, change, field, f"^frame {number} of the export")


def panes():
    """The export of a window of panes without keys: at 0 and 10, with two entries each."""
    aggregates = {name: {"function": name} for name in ("count", "collect", "first")}
    document = {"name": "w", "time_unit": "none", "granularity": 10, "fields": {"value": "bool"}}
    window = Window(WindowSpec.parse(document | {"aggregates": aggregates}))
    for time, value in ((1, True), (2, False), (11, True), (12, True)):
        window.insert(time, {"value": value}, None)
    return list(export(window))


BLOBS = [b"[true,false]", b"[true,true]"]


@pytest.mark.parametrize(
    ("number", "change", "field"),
    [
        (1, put(2, ["x"]), "keys"),
        (1, put(2, []), "keys"),
        (1, put(2, ["", ""]), "keys"),
        (2, put(2, 4, GONE), "entries"),
        (2, put(2, 3, []), "entries.partials"),
        (2, put(2, 3, {}), "partials.collect"),
        (2, put(2, 3, "first", {}), "entries.partials.first"),
        (2, put(2, 3, "first", ["|b1", b"\1\1"]), "entries.partials.first"),
        (2, put(2, 3, "first", 0, 1, b"\1\2"), "entries.partials.first"),
        (2, put(2, 3, "first", 0, 1, b"\1\1\1"), "partials.first"),
        (2, put(2, 3, "first", 0, ["<i8", b"\1" * 15]), "entries.partials.first"),
        (2, put(2, 3, "first", 0, ["<i8", b"\1" * 16]), "partials.first"),
        (2, put(2, 3, "first", 0, ["<f4", b"\1" * 8]), "entries.partials.first"),
        (2, put(2, 3, "first", []), "partials.first"),
        (2, put(2, 3, "other", []), "partials.other"),
        (2, put(2, 3, "collect", 0, [BLOBS]), None),
        (2, put(2, 3, "collect", 0, [BLOBS, b"\0\1"]), None),
        (2, put(2, 3, "collect", 0, [BLOBS, b"\0\2"]), "entries.partials.collect"),
        (2, put(2, 3, "collect", 0, [BLOBS, b"\0\0", b""]), "entries.partials.collect"),
        (2, put(2, 3, "collect", 0, [BLOBS, "\0\0"]), "entries.partials.collect"),
        (2, put(2, 3, "collect", 0, [BLOBS * 150, b"\0"]), "entries.partials.collect"),
        (2, put(2, 3, "collect", 0, [["[true]"] * 2]), "entries.partials.collect"),
        (2, put(2, 3, "collect", 0, [[b"[true,2]"] * 2]), "partials.collect"),
        (2, put(2, 3, "collect", 0, [[b"[true]"] * 2]), "partials.collect"),
        (2, put(2, 4, ["<i8", np.array([2, 3]).tobytes()]), "header.counts"),
        (2, put(2, 4, ["<i8", np.array([2, 2**40 + 1]).tobytes()]), "header.counts"),
        (2, put(2, 4, ["<i8", np.array([5, -1]).tobytes()]), "entries"),
        (2, put(2, 4, ["<i8", np.array([2, 0]).tobytes()]), "entries"),
        (2, put(2, 4, ["<i8", np.array([2]).tobytes()]), "entries"),
    ],
)
def test_a_wrong_partial_is_refused_by_frame_and_name(number, change, field):
    found = imported_or_refused(panes(), number, change, field, f"^frame {number} of the export")
    assert field is not None or found.query(None, [], None)[0].entries == 4


def test_a_window_of_entries_takes_no_partials(exported):
    _, frames = exported
    number = first_of(frames, "entries")

    def change(payload):
        payload[2] += [{}, payload[2][0]]

    imported_or_refused(frames, number, change, "entries", r"entries must be times, columns and keys$")


def test_a_wrong_value_is_quoted_in_part_only(exported):
    _, frames = exported
    long = "x" * 10**6
    for change in (put(2, "spec", "name", long), put(*LEDGER, "producers", long, [0, 0]), put(2, "spec", long, {})):
        with pytest.raises(InvalidArgument) as caught:
            imported(changed(frames, 0, change))
        assert max(len(caught.value.message), len(caught.value.field)) <= 500


def test_an_error_is_valid_unicode_whatever_it_quotes(exported):
    _, frames = exported
    number = first_of(frames, "entries")
    change = put(2, 1, "x\ud800", NINE)
    error = imported_or_refused(frames, number, change, "entries.columns.x?", "is no field of the window")
    assert "x?" in error.message


# ---------------------------------------------------------------- values that do not go together


def states(now=(21, 12), late_through=(NEVER, NEVER)):
    """A change of what an export says of the times of the keys a and b."""
    columns = [np.array(column, np.int64) for column in (now, late_through, (0, 0))]
    return put(2, columns_to(columns))


WALL = {"slide": {"max_age": 10**10, "clock": "wall"}, "time_unit": "s"}


@pytest.mark.parametrize(
    ("parts", "number", "change", "field"),
    [
        ({}, 0, put(2, "counts", "inserted", 7), "header.counts"),
        ({}, 0, put(2, "counts", "inserted", 9), "header.counts"),
        ({}, 0, put(2, "newest", 20), "states.now"),
        ({}, 3, states(now=(20, 12)), "states.now"),
        ({}, 3, states(now=(21, 12, 12), late_through=(NEVER,) * 3), "states.touched"),
        ({}, 3, states(late_through=(10, NEVER)), "states.late_through"),
        ({}, 3, states(late_through=(NEVER, 9)), None),
        ({}, 3, states(late_through=(NEVER, 100)), "states.late_through"),
        ({}, 3, states(now=(21, 13)), None),
        ({}, 0, put(2, "spec", "slide", {"max_count": 4}), "header.spec.slide.max_count"),
        ({}, 0, put(2, "spec", "slide", {"max_count": 5}), None),
        ({}, 0, put(2, "spec", "slide", {"max_age": "11"}), "states.late_through"),
        ({"slide": {"max_age": 12}}, 3, states(late_through=(9, 0)), None),
        ({"slide": {"max_age": 12}}, 3, states(late_through=(9, -1)), "states.late_through"),
        ({"slide": {"max_age": 12}}, 3, states(late_through=(8, 0)), "states.late_through"),
        ({"slide": {"max_age": 2**62}}, 3, states(late_through=(21 - 2**62, 12 - 2**62)), None),
        ({"slide": {"max_age": 2**62}}, 3, states(), "states.late_through"),
        (WALL, 3, states(), None),
        (WALL, 3, states(late_through=(9, 10)), "states.late_through"),
        ({"order": {"equal_times": "reject"}}, 2, times(10, 11, 11, 20, 21, 10, 11, 12), "time"),
        ({"order": {"equal_times": "last"}}, 2, times(10, 11, 12, 20, 20, 10, 11, 12), "time"),
        ({"order": {"out_of_order": "reject"}}, 2, times(11, 10, 12, 20, 21, 10, 11, 12), "time"),
    ],
)
def test_values_that_no_window_has_together_are_refused(parts, number, change, field):
    frames = small(**parts)
    assert len(frames) == 5
    imported(b"".join(frames))
    found = imported_or_refused(frames, number, change, field)
    if field is None:
        found.check_invariants()


def test_what_is_late_of_a_key_without_entries_is_before_its_now():
    frames = small(gone="b")
    for late_through, refused in ((11, False), (12, True)):
        change = states(late_through=(NEVER, late_through))
        if refused:
            with pytest.raises(InvalidArgument, match="what is late does not go with a key's now"):
                imported(changed(frames, 3, change))
        else:
            assert imported(changed(frames, 3, change)).insert(11, {"value": 1.0}, "b").late == 1


def test_every_key_has_its_times():
    *others, states_, end = (values.unseal("export", frame[4:], "frame") for frame in small())
    for some in ([], [states_, states_]):
        payloads = [[number, *payload[1:]] for number, payload in enumerate([*others, *some, end])]
        data = [values.seal("export", payload) for payload in payloads]
        with pytest.raises(InvalidArgument, match="not as many times of keys as keys") as caught:
            imported(b"".join(len(value).to_bytes(4, "little") + value for value in data))
        assert caught.value.field == "states"


def test_when_a_key_was_written_last_comes_along():
    clock = ManualClock(10**9)
    document = {"name": "w", "keyed": True, "idle_expiry": "10s", "aggregates": {"sum": {"function": "sum"}}}
    window = Window(WindowSpec.parse(document), clock=clock)
    for key in "ab":
        clock.advance(10**9)
        window.insert(1, {"value": 1.0}, key)
    copy = imported(b"".join(export(window)), clock)
    for seconds, left in ((8, ["a", "b"]), (2, ["b"]), (1, [])):
        clock.advance(seconds * 10**9)
        for each in (window, copy):
            each.tidy()
            assert each.keys.names() == left


@pytest.mark.parametrize("missing", [1, 2, 7])
def test_more_entries_than_were_counted_are_refused_before_they_are_taken_in(missing):
    frames = small()
    with pytest.raises(InvalidArgument, match=r"frame 2 of the export: .*more entries than the counts") as caught:
        imported(changed(frames, 0, put(2, "counts", "inserted", 8 - missing)))
    assert caught.value.limit == str(8 - missing)


def test_a_key_that_comes_in_two_frames_is_refused(exported):
    _, frames = exported
    payloads = [values.unseal("export", frame[4:], "frame") for frame in frames]
    first, second, *_ = (number for number, payload in enumerate(payloads) if payload[1] == "keys")
    for i in range(5):
        with pytest.raises(InvalidArgument, match=f"frame {second} of the export: a key is there twice"):
            imported(changed(frames, second, put(2, 3, payloads[first][2][i])))


def test_no_time_wraps_around():
    imported(b"".join(small(-100, slide={"max_age": 2**63 - 1})))
