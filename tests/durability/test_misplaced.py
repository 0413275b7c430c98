"""Values in the place of others, and older ones in their own: an error that names one, or the right answer.

misplaced    key a has the value of key b          a tier that writes to the wrong place
swapped      and key b that of key a
stale        key a has what it had before          a tier that loses a write
gone         key a has nothing
"""

import itertools

import pytest

from sash.durability import formats as values
from sash.durability.check.check import check
from sash.durability.journal.roots import Meta
from sash.tiers.memory import MemoryStore
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss
from tests.support.damage import SMALL, flipped, look, stored_of_all_kinds
from tests.support.profile import THOROUGH
from tests.support.salvaged import View
from tests.support.stored import StorageServer, spec


class Remembering(MemoryStore):
    """A store that knows what each key ever had."""

    def __init__(self):
        super().__init__()
        self.values = _Values()


class _Values(dict):
    def __init__(self):
        super().__init__()
        self.ever = {}

    def __setitem__(self, key, value):
        self.ever.setdefault(key, []).append(value)
        super().__setitem__(key, value)

    def update(self, other):
        for key, value in other.items():
            self[key] = value


async def small_store():
    """Two windows of one kind with few values: a block has 32 entries."""
    server = StorageServer(checkpoint_bytes=10**6, store_entries=32, block=32)
    server.store = Remembering()
    server, models = await stored_of_all_kinds(server, (SMALL, SMALL))
    ever, stored = server.store.values.ever, dict(server.store.values)
    server.store = MemoryStore()
    return server, models, stored, ever


def by_kind(stored):
    kinds = {}
    for key in sorted(stored):
        kinds.setdefault(kind_of(key), []).append(key)
    return kinds


def some_of(stored):
    """Up to three keys of each kind, so that there are pairs of one window and of two; all of them in a soak."""
    return stored if THOROUGH else [key for keys in by_kind(stored).values() for key in keys[-3:]]


async def outcome(server, models, stored):
    """What becomes of a store: None where all is answered, else what is said instead."""
    server.store.values = dict(stored)
    server.tier = None
    try:
        errors = await look(server, models)
    except DataLoss as error:
        return error.message
    return "; ".join(error.message for error in errors.values()) or None


def kind_of(key):
    kind, *rest = key.decode().split("/")
    return kind + ("/last" if rest == ["last"] else "/" * bool(rest))


async def test_the_store_has_values_of_all_kinds_and_is_answered_from():
    server, models, stored, ever = await small_store()
    assert {kind_of(key) for key in stored} == {
        "meta",
        "journal",
        "journal/",
        "journal/last",
        "pointer/",
        "image/",
        "block/",
        "staged/",
    }
    assert len(stored) < 40
    assert len(ever) > len(stored)
    assert await outcome(server, models, stored) is None


async def test_a_value_in_the_place_of_any_other_is_named_and_never_an_answer():
    server, models, stored, _ = await small_store()
    answered = set()
    pairs = itertools.permutations(some_of(stored), 2)  # of those of a place every second one, in short runs
    for place, other in itertools.islice(pairs, 0, None, 1 if THOROUGH else 2):
        error = await outcome(server, models, stored | {place: stored[other]})
        if error is None:
            answered.add(kind_of(place))
        else:
            assert "is in the wrong place: it was written as" in error, (place, other)
            assert place.decode() in error or kind_of(place) in ("image/", "block/"), (place, other)
            assert other.decode() in error, (place, other)
    assert answered <= {"block/", "staged/"}, "nobody needed it"


async def test_a_value_of_another_store_is_named_and_never_an_answer():
    """The other one was written to in the same way, so it has the same keys."""
    server, models, stored, _ = await small_store()
    *_, other, _ = await small_store()
    assert other.keys() == stored.keys()
    answered = set()
    for key in stored:
        error = await outcome(server, models, stored | {key: other[key]})
        if error is None:
            answered.add(kind_of(key))
        else:
            assert "is of another store: it was written to" in error, key
            assert key.decode() in error or kind_of(key) in ("image/", "block/"), key
            assert values.store_of(other[key]).hex() in error
        [damage] = check(View(stored | {key: other[key]}), ManualClock()).damages
        assert damage.key == key
        assert "is of another store" in damage.problem
    assert answered <= {"block/", "staged/"}, "nobody needed it"


async def test_roots_of_another_store_are_not_taken_for_these():
    server, models, stored, _ = await small_store()
    *_, other, _ = await small_store()
    roots = [key for key in stored if kind_of(key) in ("meta", "journal", "journal/last")]
    for some in (*itertools.combinations(roots, 2), roots):
        assert "is of another store" in await outcome(server, models, stored | {key: other[key] for key in some})


async def test_a_value_that_names_no_store_is_refused_where_all_do():
    server, models, stored, _ = await small_store()
    noticed = set()
    for key in stored:
        kind = values.name_of(key).kind
        payload = values.unseal(kind, stored[key], key)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(values, "FORMAT", 3)
            patch.setattr(values, "NO_STORE", b"")
            older = values.seal(kind, payload, key, b"")
        assert values.unseal(kind, older, key) == payload
        error = await outcome(server, models, stored | {key: older})
        assert error is None or "it is older than what was written there" in error, key
        if error is not None:
            noticed.add(kind_of(key))
        if kind == "block" and error is not None:
            [damage] = check(View(stored | {key: older}), ManualClock()).damages
            assert (damage.key, "it is older" in damage.problem) == (key, True)
    assert noticed == set(by_kind(stored))


async def test_stores_have_different_ids():
    stores = set()
    for _ in range(3):
        server = StorageServer()
        await server.start()
        await server.restart()
        await server.die()
        stores |= {values.store_of(value) for value in server.store.values.values()}
    assert len(stores) == 3
    assert values.NO_STORE not in stores


async def test_any_two_values_that_are_swapped_are_named_and_never_an_answer():
    server, models, stored, _ = await small_store()
    for one, other in itertools.combinations(some_of(stored), 2):
        error = await outcome(server, models, stored | {one: stored[other], other: stored[one]})
        assert error is not None or {kind_of(one), kind_of(other)} <= {"block/", "staged/"}, (one, other)


async def test_a_value_that_is_older_or_missing_or_damaged_is_noticed_or_does_no_harm():
    """What was lost is the last write of one key, or several of them; or a Redis evicts what it likes."""
    server, models, stored, ever = await small_store()
    noticed = set()
    for key, values_ in ever.items():
        others = [value for value in values_ if value != stored.get(key)]
        if key in stored:
            others += [None, flipped(stored[key], -1)]
        for value in others:
            changed = stored | {key: value}
            if value is None:
                del changed[key]
            error = await outcome(server, models, changed)
            if error is not None:
                noticed.add(kind_of(key))
    assert noticed == {"meta", "journal", "journal/", "journal/last", "pointer/", "image/", "block/", "staged/"}


async def test_the_list_of_windows_is_never_written_twice_as_the_same_record():
    """Or an older list could be taken for the later one."""
    server = StorageServer(checkpoint_bytes=10**6)
    server.store = Remembering()
    storage = await server.start()
    for name in "abc":
        await storage.create(spec(name=name, aggregates=SMALL))
        storage = await server.crash()
    await storage.delete("b")
    await storage.stop()
    key = values.meta_key()
    listed = [Meta.of(values.unseal("meta", value, key)).record for value in server.store.values.ever[key]]
    assert len(listed) > 4
    assert listed == sorted(set(listed))
