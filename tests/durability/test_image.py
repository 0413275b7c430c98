"""Images: a window that was written out and read in again goes on as one that was not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import formats as values
from sash.durability.images import image
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, SashError
from sash_engine.monoids import catalogue
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.aggregates import LargeRootMeanSquare, RootMeanSquare
from tests.support.shelf import Shelf
from tests.support.twins import KEYS, MORE, SPECS, Twins, a_share_of_examples, alike, bulk, spec, steps


@pytest.mark.parametrize("name", SPECS)
@given(history=st.lists(steps, max_size=14), keyed=st.booleans(), pages=st.sampled_from([(2, 4), (4, 64), None]))
@a_share_of_examples(6)
def test_restarts_change_nothing(name, history, keyed, pages):
    twins = Twins(spec(name, keyed), pages)
    for step in history:
        twins.step(*step)
    twins.restart(None)
    twins.same()
    twins.bulk([(key, time) for key in KEYS for time in (3, 17, 38, 39)])
    twins.wait(1)
    twins.same()


@given(st.lists(steps, max_size=14), st.sampled_from([0, 200, 10**9]))
@a_share_of_examples(6)
def test_a_cache_of_any_size_changes_nothing(history, budget):
    twins = Twins(spec("both"), None, budget)
    for step in history:
        twins.step(*step)
        twins.store(None)
        twins.same()


def test_a_new_key_gets_the_number_that_it_would_have_got():
    twins = Twins(spec("idle"))
    twins.bulk([(key, 1) for key in KEYS])
    twins.wait(10)
    twins.bulk([(key, 2) for key in "bdf"])
    twins.wait(10)  # a, c and e are forgotten
    assert twins.stored.keys.names() == list("bdf")
    twins.restart(None)
    twins.bulk([("x", 3)])
    twins.restart(None)
    twins.bulk([("y", 3), ("z", 3), ("new", 3)])
    twins.same()
    assert twins.stored.keys.names() == [*"bdf", "x", "y", "z", "new"]


def test_what_is_dumped_is_the_window_of_that_moment():
    # The image is encoded while the window goes on: nothing of what follows is in it.
    twins = Twins(spec("plain"))
    twins.bulk([(key, time) for time in range(30) for key in ("a", "a", "b")])
    twins.bulk([("c", 1), ("d", 2)])
    twins.store(None)
    before = twins.stored.query(None, [], None, ALL_KEYS)
    taken = image.dump(twins.stored)
    parts = taken.encode()
    first = [next(parts)]
    window, shelf = twins.stored, twins.shelf
    window.bulk_insert(bulk([(key, time) for time in range(30) for key in KEYS], 1000, True))
    window.bulk_evict(12, None)
    window.add_aggregates(MORE)
    shelf.store(window)
    restored, _ = shelf.reopened([*first, *parts])
    assert restored.query(None, [], None, ALL_KEYS) == before
    restored.check_invariants(alike)


def test_a_window_that_was_never_written_has_an_image():
    for name in ("plain", "panes", "wall"):
        twins = Twins(spec(name, keyed=False))
        twins.restart(None)
        twins.insert(("a", 1))
        twins.same()


def test_a_restored_window_has_its_spec_and_its_blocks_and_pages():
    shelf = Shelf()
    window = Window(spec("both"), clock=ManualClock(), block=7, pages=(1, 8), cold=shelf.cold)
    window.add_aggregates(MORE)
    restored, _ = shelf.reopened(shelf.parts(window), max_keys=2)
    assert restored.spec == window.spec
    assert (restored.block, restored.pages) == (7, (1, 8))
    with pytest.raises(SashError, match="brings 3 more"):
        restored.bulk_insert(bulk([(key, 1) for key in "abc"], 0, True))


def test_what_the_tier_keeps_no_more_is_known_after_a_restart():
    # A key that is forgotten, and blocks that were evicted, release their ids; those that are left are in the image.
    twins = Twins(spec("plain"))
    twins.bulk([("a", time) for time in range(40)])
    twins.bulk([("b", time) for time in range(40)])
    twins.store(None)
    stored = set(twins.shelf.values)
    twins.evict(("a", 19))
    twins.stored.keys.forget(np.array([twins.stored.keys.find("b")]))
    taken = image.dump(twins.stored)
    kept = set(taken.stored().tolist())
    assert kept
    assert kept | set(twins.shelf.cold.released) == stored
    assert not kept & set(twins.shelf.cold.released)


# ---------------------------------------------------------------- parts


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of a few hundred bytes."""
    for name, size in (("PART_BYTES", 300), ("_KEYS", 5), ("_FORESTS", 1), ("_BLOCKS", 3)):
        monkeypatch.setattr(image, name, size)


def many():
    """A window with all kinds of records."""
    twins = Twins(spec("idle"))
    twins.bulk([(f"gone {i}", 1) for i in range(60)])
    twins.wait(20)
    twins.bulk([(f"key {i}", time) for i in range(20) for time in range(i % 7)])
    twins.bulk([("a", time) for time in range(60)])
    twins.insert(("b", 1))
    return twins


@pytest.mark.usefixtures("small_parts")
def test_an_image_of_many_parts_is_read_as_a_whole():
    twins = many()
    parts = twins.shelf.parts(twins.stored)
    assert len(parts) > 20
    assert max(map(len, parts)) < 1500  # one entry, or one block, may be larger than a part
    kinds = {values.unpack(record)[0] for part in parts for record in values.unseal("image", part, "part")[1]}
    assert kinds == {"head", "keys", "unused", "small", "forest", "nodes", "blocks", "end"}
    twins.restart(None)


@pytest.mark.usefixtures("small_parts")
def test_an_image_with_a_part_missing_or_damaged_or_elsewhere_is_refused():
    twins = many()
    parts = twins.shelf.parts(twins.stored)
    for i, part in enumerate(parts):
        with pytest.raises(DataLoss, match=f"part {i} of the image is missing"):
            twins.shelf.reopened([*parts[:i], None, *parts[i + 1 :]])
        broken = bytearray(part)
        broken[len(broken) * i // len(parts)] ^= 4
        with pytest.raises(DataLoss, match=f"part {i} of image 3"):
            twins.shelf.reopened([*parts[:i], bytes(broken), *parts[i + 1 :]], name="image 3")
        with pytest.raises(DataLoss, match=f"image ends behind part {i - 1}|part {i} of the image is part"):
            twins.shelf.reopened(parts[:i])
    for i, j in itertools.pairwise(range(len(parts))):
        with pytest.raises(DataLoss, match=f"part {i} of the image is part {j}"):
            twins.shelf.reopened([*parts[:i], parts[j], parts[i], *parts[j + 1 :]])


def test_records_in_another_order_or_too_few_are_refused():
    twins = many()
    (part,) = twins.shelf.parts(twins.stored)
    _, records = values.unseal("image", part, "part")
    for i in range(1, len(records) - 1):
        fewer = values.seal("image", [0, records[:i] + records[i + 1 :]])
        with pytest.raises(DataLoss, match="part 0 of the image does not go on"):
            twins.shelf.reopened([fewer])
    with pytest.raises(DataLoss, match="follows the end"):
        twins.shelf.reopened([values.seal("image", [0, [*records, records[-1]]])])


def test_an_image_of_a_newer_version_is_told_from_a_damaged_one(monkeypatch):
    twins = many()
    monkeypatch.setattr(values, "UNBOUND", 9)
    parts = twins.shelf.parts(twins.stored)
    monkeypatch.undo()
    with pytest.raises(FailedPrecondition, match="format 9"):
        twins.shelf.reopened(parts)


def test_an_aggregate_that_is_not_installed_is_named():
    twins = many()
    (part,) = twins.shelf.parts(twins.stored)
    _, (head, *rest) = values.unseal("image", part, "part")
    kind, document = values.unpack(head)
    document["spec"]["aggregates"]["mine"] = {"function": "plugged_in"}
    changed = values.seal("image", [0, [values.pack([kind, document]), *rest]])
    with pytest.raises(InvalidArgument, match="plugged_in") as raised:
        twins.shelf.reopened([changed])
    assert raised.value.field == "aggregates.mine.function"


# ---------------------------------------------------------------- large partials


def without_large(parts):
    """The image as versions wrote it that did not say which partials are large."""
    (number, records), *rest = [values.unseal("image", part, "part") for part in parts]
    kind, head = values.unpack(records[0])
    del head["large"]
    whole = [[number, [values.pack([kind, head]), *records[1:]]], *rest]
    return [values.seal("image", part) for part in whole]


@pytest.mark.parametrize("granularity", [None, 1])
@pytest.mark.parametrize(
    ("was", "now", "old"),
    [
        (LargeRootMeanSquare, RootMeanSquare, True),
        (LargeRootMeanSquare, RootMeanSquare, False),
        (LargeRootMeanSquare, LargeRootMeanSquare, True),
        (RootMeanSquare, LargeRootMeanSquare, False),
    ],
)
def test_an_image_says_which_partials_it_has_one_by_one(monkeypatch, was, now, old, granularity):
    """Old images do not: they have those of every aggregate so whose partials are one object, but for five."""
    functions = ("sum", "max", "collect", "distinct_count")
    known = {name: cls for name, cls in catalogue().items() if name in functions}
    aggregates = {name: {"function": name, "field": "n"} for name in ("sum", "collect", "distinct_count", "rms")}
    aggregates["longest"] = {"function": "max", "field": "word"}
    document = {"name": "w", "time_unit": "none", "fields": {"n": "int64", "word": "string"}, "aggregates": aggregates}
    monkeypatch.setattr("sash_engine.windows.spec.aggregates.catalogue", lambda: known | {"rms": was})
    shelf = Shelf()
    window = Window(WindowSpec.parse(document | {"granularity": granularity}), block=4, cold=shelf.cold)
    n = np.arange(60)
    window.bulk_insert(Batch(n, {"n": n * 7 % 13, "word": Coded.of([f"word {i % 5}" for i in range(60)])}))
    window.bulk_evict(8, None)
    expected = window.query(None, [], None), window.query(None, ["17", "40"], None)
    parts = shelf.parts(window)
    monkeypatch.setattr("sash_engine.windows.spec.aggregates.catalogue", lambda: known | {"rms": now})
    restored, other = shelf.reopened(without_large(parts) if old else parts)
    for _ in range(2):
        assert (restored.query(None, [], None), restored.query(None, ["17", "40"], None)) == expected
        restored.check_invariants(alike)
        restored, other = other.reopened(other.parts(restored))
