"""What the protocol says, for every kind of tier."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.tiers.memory import MemoryStore, MemoryTier
from sash_engine.errors import FailedPrecondition, SashError, Unavailable
from tests.support.tiers import EVERY_KIND, Faulty

MIB = 2**20


HISTORY = [
    ({b"a": b"1", b"b": b"2"}, []),
    ({b"b": b"new", b"c": b"4"}, [b"a"]),  # overwrites, adds and deletes
    ({b"b": b"new", b"c": b"4"}, [b"a"]),  # again: nothing changes
    ({}, [b"b"]),
    ({}, [b"never"]),
    ({b"a": b"1"}, [b"never", b"ever"]),
    ({}, []),
    ({b"empty": b""}, []),
]


def test_commits_are_those_of_a_dictionary(tier):
    model = {}
    keys = [b"c", b"missing", b"a", b"b", b"never", b"empty", b"c"]
    for puts, deletes in HISTORY:
        model = {key: value for key, value in (model | puts).items() if key not in deletes}
        tier.commit(puts, iter(deletes))
        assert tier.get_many(keys) == [model.get(key) for key in keys]
    tier.commit({})
    assert tier.get_many([]) == []


@pytest.mark.parametrize(
    "value",
    [b"", b"\0", b"\r\n$-1\r\n", bytes(range(256)) * 64, b"\xff" * (8 * MIB)],
    ids=["empty", "zero", "protocol", "all bytes", "8 MiB"],
)
def test_values_come_back_as_they_were(tier, value):
    tier.commit({b"key": value})
    (found,) = tier.get_many([b"key"])
    assert found == value
    assert type(found) is bytes


def test_keys_are_any_bytes_up_to_200(tier):
    keys = [b"\0", b"\0\0", b"\xff", b"{x}", b"sash", b"values", b"a b\r\n", b"k" * 199, b"k" * 200]
    tier.commit({key: b"=" + key for key in keys})
    assert tier.get_many(keys) == [b"=" + key for key in keys]


def test_a_thousand_keys_at_once(tier):
    keys = [b"window/%d" % number for number in range(1000)]
    tier.commit({key: key * 40 for key in keys[::2]})
    wanted = [key * 40 if number % 2 == 0 else None for number, key in enumerate(keys)]
    assert tier.get_many(keys) == wanted
    tier.commit({}, keys)
    assert tier.get_many(keys) == [None] * 1000


def test_only_one_server_at_a_time_and_the_next_one_finds_what_the_last_one_left(make_tier):
    first, second, third = make_tier(), make_tier(), make_tier()
    first.acquire()
    first.commit({b"a": b"1"})
    with pytest.raises(FailedPrecondition, match="nother"):
        second.acquire()
    first.commit({b"b": b"2"})
    assert first.get_many([b"a", b"b"]) == [b"1", b"2"]
    first.close()
    second.acquire()  # one that was refused may ask again
    first.close()  # closing twice takes nothing from the next one
    with pytest.raises(FailedPrecondition):
        third.acquire()
    assert second.get_many([b"a", b"b"]) == [b"1", b"2"]
    second.commit({b"a": b"3"}, [b"b"])
    second.close()
    third.acquire()
    assert third.get_many([b"a", b"b"]) == [b"3", None]


def test_a_closed_tier_does_nothing(make_tier):
    make_tier().close()  # it was never acquired
    tier = make_tier()
    tier.acquire()
    tier.close()
    with pytest.raises(FailedPrecondition):
        tier.commit({b"a": b"1"})
    with pytest.raises(FailedPrecondition):
        tier.get_many([b"a"])
    again = make_tier()
    again.acquire()
    assert again.get_many([b"a"]) == [None]


def test_it_says_what_it_is(make_tier, request):
    assert make_tier().name == request.node.callspec.params["make_tier"].split()[0]


def test_readers_never_see_half_a_commit(tier):
    """One thread commits, three read: all keys of a commit change together."""
    keys = [b"part/%d" % number for number in range(20)]
    tier.commit(dict.fromkeys(keys, b"0"))
    finished = threading.Event()

    def read() -> int:
        last = 0
        while not finished.is_set():
            values = tier.get_many(keys)
            assert len(set(values)) == 1, values
            assert int(values[0]) >= last, "a commit was undone"
            last = int(values[0])
        return last

    with ThreadPoolExecutor(3) as readers:
        reading = [readers.submit(read) for _ in range(3)]
        try:
            for turn in range(1, 60):
                tier.commit(dict.fromkeys(keys, b"%d" % turn))
        finally:
            finished.set()
        for each in reading:
            assert each.result() <= 59
    assert tier.get_many(keys) == [b"59"] * 20


keys = st.sampled_from([b"%d" % number for number in range(8)])
values = st.one_of(st.binary(max_size=20), st.integers(0, 30_000).map(lambda length: b"x" * length))
commits = st.tuples(st.dictionaries(keys, values, max_size=5), st.lists(keys, max_size=5))


@given(history=st.lists(st.one_of(commits, st.just("restart")), max_size=8))
@pytest.mark.parametrize("kind", sorted(EVERY_KIND))
def test_any_history_is_that_of_a_dictionary(kind, history, tmp_path_factory):
    model: dict[bytes, bytes] = {}
    everything = [b"%d" % number for number in range(8)]
    with EVERY_KIND[kind](tmp_path_factory.mktemp("history")) as stored:
        tier = stored.open()
        tier.acquire()
        try:
            for step in history:
                if step == "restart":
                    tier.close()
                    tier = stored.open()
                    tier.acquire()
                else:
                    puts, deletes = step[0], [key for key in step[1] if key not in step[0]]
                    tier.commit(puts, deletes)
                    for key in deletes:
                        model.pop(key, None)
                    model.update(puts)
                assert tier.get_many(everything) == [model.get(key) for key in everything]
        finally:
            tier.close()


# The faulty tier must fail as it says, or tests that rely on it show nothing.


@pytest.fixture
def faulty():
    tier = MemoryTier(MemoryStore())
    tier.acquire()
    return Faulty(tier)


def test_faulty_fails_before_and_after_a_commit_and_at_reads(faulty):
    faulty.fail_before = faulty.fail_after = 1
    for found in (None, b"1"):
        with pytest.raises(Unavailable):
            faulty.commit({b"a": b"1"})
        assert faulty.get_many([b"a"]) == [found]
    faulty.commit({b"a": b"2"})
    assert faulty.commits == 2
    faulty.fail_reads = 1
    with pytest.raises(Unavailable):
        faulty.get_many([b"a"])
    assert faulty.get_many([b"a"]) == [b"2"]
    faulty.unreachable = True
    for call in (lambda: faulty.get_many([b"a"]), lambda: faulty.commit({b"a": b"1"}), faulty.acquire):
        with pytest.raises(SashError):
            call()
    assert faulty.reads == [[b"a"]] * 3


def test_faulty_gate_holds_commits(faulty):
    faulty.open_gate.clear()
    with ThreadPoolExecutor(1) as committer:
        commit = committer.submit(faulty.commit, {b"a": b"1"})
        assert faulty.arrived.wait(120)
        assert faulty.get_many([b"a"]) == [None]
        faulty.open_gate.set()
        commit.result(120)
    assert faulty.get_many([b"a"]) == [b"1"]
