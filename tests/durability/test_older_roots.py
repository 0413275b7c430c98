"""Roots and pointers that are as they once were: what is answered then is right, and what is not answered is named.

A disk or a server that loses the last write of a value shows an older one, which is whole and in its place. Here each
of the values that are written many times gets each value that it ever had, and none. So does each pair of them, and the
three that all windows need, as of the same commit. After a start on that, all that is served takes writes, and is
looked at after further starts.

Below, any value is in the place of another one:

misplaced    key a has the value of key b          a tier that writes to the wrong place
swapped      and key b that of key a
stale        key a has what it had before          a tier that loses a write
gone         key a has nothing
"""

import itertools

import pytest
import xxhash

from sash.durability import formats as values
from sash.durability.check.check import check
from sash.durability.journal.roots import End, Meta, Start, check_covered, check_together
from sash.durability.records.commands import BulkInsert, Insert
from sash.tiers.memory import MemoryStore
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss
from tests.support.damage import SMALL, flipped, look, stored_of_all_kinds
from tests.support.profile import THOROUGH
from tests.support.salvaged import Salvaged, View
from tests.support.stored import StorageServer, batch, spec

AGGREGATES = {"n": {"function": "count"}, "first": {"function": "min"}, "last": {"function": "max"}}


class Recording(MemoryStore):
    """A store that keeps a copy of itself after each commit."""

    def __init__(self):
        super().__init__()
        self.states = []
        self.values = _Values(self.states)


class _Values(dict):
    def __init__(self, states):
        super().__init__()
        self._states = states

    def update(self, other):  # the last step of a commit
        super().update(other)
        self._states.append(dict(self))


class History:
    """What several windows went through, and what they must answer at certain moments."""

    def __init__(self):
        self.server = new_server()
        self.server.store = Recording()
        self.moments = []
        self.times = {}
        self.lost = set()

    async def damage(self, name):
        """Let a window lose its image."""
        stored = self.server.storage.store.windows[name]
        [*_, key] = stored.manifest.image_keys(stored.manifest.image.version, stored.manifest.image.parts)
        await self.server.die()
        self.server.store.values.update({key: flipped(self.server.store.values[key], -1)})
        await self.server.start()
        self.lost.add(name)

    async def create(self, name):
        await self.server.storage.create(spec(name=name, aggregates=AGGREGATES))
        self.times[name] = []

    async def write(self, *names, n=5):
        for name in names:
            first = len(self.times[name])
            await self.server.storage.write(name, BulkInsert(batch([("a", first + i) for i in range(n)], first)))
            self.times[name] += range(first, first + n)

    async def checkpoint(self, *names):
        for name in names:
            store = self.server.storage.store
            await store.checkpoints.take(store.windows[name])
            await self.server.settled()

    async def delete(self, name):
        await self.server.storage.delete(name)
        del self.times[name]
        self.lost.discard(name)

    async def moment(self):
        await self.server.settled()
        times = {name: list(each) for name, each in self.times.items()}
        self.moments.append((len(self.server.store.states), times, set(self.lost)))


def new_server():
    return StorageServer(checkpoint_bytes=10**6, store_entries=8, block=4)


async def history():
    """Windows that come and go, and a journal that is trimmed again and again."""
    told = History()
    await told.server.start()
    await told.create("a")
    await told.create("b")
    await told.write("a", "a", "b", "a")
    await told.checkpoint("a")
    await told.moment()  # window b keeps the journal
    await told.write("a")
    await told.checkpoint("b", "a")
    await told.moment()  # the journal is empty
    await told.create("c")
    await told.write("c", "a")
    await told.moment()
    await told.write("c", "a", "a", "a", "a", "a", "b")
    await told.checkpoint("c", "a")
    await told.moment()  # the group of b is far behind an older end
    await told.delete("c")
    await told.write("a", "b")
    await told.moment()
    await told.server.restart()
    await told.create("c")
    await told.write("c", "a", "a")
    await told.moment()
    reader = told.server.storage.export("a")  # older images stay
    next(reader)
    await told.checkpoint("a", "c", "b")
    await told.moment()
    await told.write("a")
    await told.checkpoint("a")
    await told.moment()
    reader.close()
    await told.write("b")
    await told.server.crash()
    await told.write("a", "c")
    await told.moment()
    await told.server.die()
    return told


async def history_of_a_loss():
    """A window that is lost: groups are set apart for it until it is deleted."""
    told = History()
    await told.server.start()
    for name in "abd":
        await told.create(name)
    await told.write("b", "a", "d")
    await told.checkpoint("b", "a")
    await told.write("b", "a", "b")
    await told.damage("b")
    await told.write("a")
    await told.checkpoint("a", "d")
    await told.moment()  # groups are set apart
    await told.create("c")
    await told.write("c", "a", "d")
    await told.checkpoint("c", "a")
    await told.moment()
    await told.delete("b")
    await told.write("a")
    await told.checkpoint("a")
    await told.moment()
    await told.server.restart()
    await told.write("c")
    await told.moment()
    await told.server.die()
    return told


@pytest.fixture(params=[history, history_of_a_loss])
async def told(request):
    return await request.param()


def is_root(key):
    return key in (b"meta", b"journal", b"journal/last") or key.startswith(b"pointer/")


def roots_of(states):
    return sorted({key for state in states for key in state if is_root(key)})


def with_older(stored, older):
    changed = stored | {key: value for key, value in older.items() if value is not None}
    return {key: value for key, value in changed.items() if key not in older or older[key] is not None}


def singles(states):
    """Each root that is as it once was, or gone."""
    stored = states[-1]
    for key in roots_of(states):
        for value in dict.fromkeys([*(state.get(key) for state in states), None]):
            if value != stored.get(key):
                yield {key: value}


def pairs(states):
    """Each two roots that are as they once were, at the same moment; in a soak, at any two."""
    stored = states[-1]
    for one, other in itertools.combinations(roots_of(states), 2):
        if THOROUGH:
            both = itertools.product({state.get(one) for state in states}, {state.get(other) for state in states})
        else:
            both = {(state.get(one), state.get(other)) for state in states}
        for first, second in both:
            if first != stored.get(one) and second != stored.get(other):
                yield {one: first, other: second}


def together(states):
    """The roots that are as they once were, all at the same moment."""
    stored = states[-1]
    for state in states:
        older = {key: state.get(key) for key in (b"meta", b"journal", b"journal/last")}
        if any(stored.get(key) != value for key, value in older.items()):
            yield older


def lacking(storage, times):
    """The windows that are not served, with what is said of them; all others answer what was acknowledged."""
    said = {}
    problems = {info.spec.name: info.problem for info in storage.all()}
    assert problems.keys() == times.keys(), f"there are windows {sorted(problems)}"
    for name, expected in times.items():
        if problems[name] is not None:
            said[name] = problems[name]
            continue
        window = storage.find(name)
        assert [answer.entries for answer in window.query("a", [], None)] == [len(expected)], name
        for start in range(0, len(expected), 3):
            [answer] = [window.range_query(start, start + 2, "a")]
            assert answer.entries == len(expected[start : start + 3]), (name, start)
    return said


async def outcome(server, stored, times):
    """What is said on a start: one error for all, or by window; None if all is answered."""
    server.store.values = dict(stored)
    server.store.owner = None
    try:
        storage = await server.start()
    except DataLoss as error:
        return error.message
    lost = lacking(storage, times)
    times = {name: list(each) for name, each in times.items()}
    for again in (server.crash, server.restart):
        for name, each in times.items():
            if name not in lost:
                await storage.write(name, Insert(len(each), {"value": 1}, "a"))
                each.append(len(each))
        try:
            storage = await again()
        except DataLoss as error:
            raise AssertionError(f"it could be started once: {error.message}") from None
        assert lacking(storage, times) == lost, "it is lost for good, and no other"
    await server.die()
    return lost or None


async def outcomes(told, changes):
    """What is said after each change of the state at each moment; an AssertionError where that is wrong."""
    server = new_server()
    moments = told.moments if THOROUGH else told.moments[:: -2 if changes is singles else -3]
    for end, times, lost in moments:
        states = told.server.store.states[:end]
        assert (await outcome(server, states[-1], times) or {}).keys() == lost
        for older in changes(states):
            try:
                said = await outcome(server, with_older(states[-1], older), times)
            except AssertionError as error:
                at = {key: [n for n, state in enumerate(states) if state.get(key) == older[key]] for key in older}
                said = AssertionError(f"of {end} states: {at}: {error}")
            yield said


async def test_the_history_trims_its_journal_and_has_older_values(told):
    states = told.server.store.states
    firsts = {next((key for key in sorted(state) if key.startswith(b"journal/0")), None) for state in states}
    assert len(firsts) > 4
    assert len(list(singles(states))) > 30


@pytest.mark.parametrize("change", [singles, pairs, together])
async def test_roots_as_they_once_were_are_noticed_or_do_no_harm(told, change):
    found = [said async for said in outcomes(told, change)]
    wrong = [str(said) for said in found if isinstance(said, AssertionError)]
    assert not wrong, f"{len(wrong)} of {len(found)}"
    assert any(isinstance(said, str) for said in found)
    assert all("out of date" in said or "missing" in said for said in found if isinstance(said, str))


@pytest.mark.parametrize("key", [b"meta", b"journal"])
async def test_an_older_list_and_an_older_beginning_are_named(told, key):
    end, times, _ = told.moments[-1]
    states = told.server.store.states[:end]
    for value in {state[key] for state in states} - {states[-1][key]}:
        error = await outcome(new_server(), states[-1] | {key: value}, times)
        assert f"value {key.decode()!r} is out of date" in error


async def test_an_older_end_in_what_an_earlier_version_wrote_is_noticed_where_the_journal_was_cut():
    """It said neither how often `journal` was written, nor as which record `meta` was when it was."""
    told = await history()
    end, times, _ = told.moments[-1]
    states = [earlier(state) for state in told.server.store.states[:end]]
    assert await outcome(new_server(), states[-1], times) is None
    last = values.last_group_key()
    for value in {state[last] for state in states} - {states[-1][last]}:
        assert "'journal/last' is out of date" in await outcome(new_server(), states[-1] | {last: value}, times)


def earlier(state):
    """A state as format 2 has it."""
    found = {}
    for key, value in state.items():
        kind = values.name_of(key).kind
        payload = values.unseal(kind, value, key)
        if key in (b"meta", b"journal", b"journal/last"):
            new = ("number", "owned", "start") + (("listing",) if key == b"journal" else ())
            payload = {name: each for name, each in payload.items() if name not in new}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(values, "FORMAT", 2)
            found[key] = values.seal(kind, payload, key, b"")
    for key, value in found.items():
        if key.startswith(b"pointer/"):
            found[key] = with_sum_of(found, key, values.unseal("pointer", value, key))
    return found


def with_sum_of(found, key, pointer):
    """A pointer with the checksum of the parts that it names."""
    window, whole = values.name_of(key).window, xxhash.xxh3_64()
    for part in range(pointer["parts"]):
        whole.update(values.checksum(found.get(values.image_key(window, pointer["image"], part), b"")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "FORMAT", 2)
        return values.seal("pointer", pointer | {"sum": whole.digest()}, key, b"")


@pytest.mark.parametrize("key", [b"journal", b"journal/last"])
async def test_nothing_is_lost_where_an_older_root_is_salvaged(key):
    told = await history()
    end, times, _ = told.moments[-1]
    states = told.server.store.states[:end]
    several = [older for older in singles(states) if key in older]
    for older in several if THOROUGH else several[::2]:
        async with Salvaged(with_older(states[-1], older)) as salvaged:
            assert salvaged.found.problems or salvaged.found.damages
            assert salvaged.entries == {name: len(each) for name, each in times.items()}


# ---------------------------------------------------------------- values in the place of others


def ever_in(store):
    """By key, all values that it ever had."""
    found = {}
    for key, value in itertools.chain.from_iterable(state.items() for state in store.states):
        found.setdefault(key, {})[value] = None
    return {key: list(each) for key, each in found.items()}


async def small_store():
    """Two windows of one kind with few values: a block has 32 entries."""
    server = StorageServer(checkpoint_bytes=10**6, store_entries=32, block=32)
    server.store = Recording()
    server, models = await stored_of_all_kinds(server, (SMALL, SMALL))
    ever, stored = ever_in(server.store), dict(server.store.values)
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


async def said_of(server, models, stored):
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
    assert await said_of(server, models, stored) is None


async def test_a_value_in_the_place_of_any_other_is_named_and_never_an_answer():
    server, models, stored, _ = await small_store()
    answered = set()
    pairs = itertools.permutations(some_of(stored), 2)  # of those of a place every third one, in short runs
    for place, other in itertools.islice(pairs, 0, None, 1 if THOROUGH else 3):
        error = await said_of(server, models, stored | {place: stored[other]})
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
        error = await said_of(server, models, stored | {key: other[key]})
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
        assert "is of another store" in await said_of(server, models, stored | {key: other[key] for key in some})


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
        error = await said_of(server, models, stored | {key: older})
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
    pairs = itertools.combinations(some_of(stored), 2)
    for one, other in itertools.islice(pairs, 0, None, 1 if THOROUGH else 2):
        error = await said_of(server, models, stored | {one: stored[other], other: stored[one]})
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
            error = await said_of(server, models, changed)
            if error is not None:
                noticed.add(kind_of(key))
    assert noticed == {"meta", "journal", "journal/", "journal/last", "pointer/", "image/", "block/", "staged/"}


async def test_the_list_of_windows_is_never_written_twice_as_the_same_record():
    """Or an older list could be taken for the later one."""
    server = StorageServer(checkpoint_bytes=10**6)
    server.store = Recording()
    storage = await server.start()
    for name in "abc":
        await storage.create(spec(name=name, aggregates=SMALL))
        storage = await server.crash()
    await storage.delete("b")
    await storage.stop()
    key = values.meta_key()
    listed = [Meta.of(values.unseal("meta", value, key)).record for value in ever_in(server.store)[key]]
    assert len(listed) > 4
    assert listed == sorted(set(listed))


# ---------------------------------------------------------------- what each root says of the others


@pytest.mark.parametrize(
    ("meta", "start", "end", "said"),
    [
        (5, {"number": 2, "listing": 5}, {"listing": 5, "start": 2}, None),
        (4, {"number": 2, "listing": 4}, {"listing": 5, "start": 2}, "'meta' is out of date"),
        (6, {"number": 2}, {"listing": 5, "start": 2}, "'journal/last' is out of date"),
        (5, {"number": 3}, {"listing": 5, "start": 2}, "'journal/last' is out of date"),
        (5, {"number": 1}, {"listing": 5, "start": 2}, "'journal' is out of date"),
        (5, {"number": 2, "listing": 6}, {"listing": 5, "start": 2}, "'meta' and 'journal/last' are out of date"),
        (5, {"listing": 6}, {"listing": 5}, None),  # before format 3, `journal` did not say it
        (5, {"first": 8}, {"listing": 5, "group": 7}, None),
        (5, {"first": 9}, {"listing": 5, "group": 7}, "'journal/last' is out of date"),
    ],
)
def test_the_older_one_of_the_roots_is_named(meta, start, end, said):
    def check():
        check_together(Meta([], 1, [], meta), Start(**start), End(**end))

    if said is None:
        check()
    else:
        with pytest.raises(DataLoss, match=said):
            check()


def test_an_image_covers_nothing_behind_the_last_record_and_the_last_listing():
    for image, end in ((7, End(1, 5, 7)), (7, End(1, 7, 5)), (99, End(1, None))):
        check_covered(end, image, "w")
        if end.record is not None:
            with pytest.raises(DataLoss, match="the image of window 'w' covers later writes"):
                check_covered(end, image + 1, "w")
