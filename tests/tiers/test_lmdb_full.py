"""LMDB's tier without space: its limit, the disk, the address space."""

import os
import resource
from types import SimpleNamespace

import pytest

from sash.tiers.lmdb import LmdbTier
from sash.tiers.lmdb_space import Space
from sash_engine.errors import InvalidArgument, OutOfRoom
from tests.support.clocks import Clock
from tests.support.disks import fill as fill_disk
from tests.support.disks import small_disk
from tests.support.processes import python

KIB, MIB = 2**10, 2**20


# Full


def key(number):
    return b"%08d" % number


def value(number, length):
    return number.to_bytes(4, "little") * (length // 4)


def fill(tier, length, first=0):
    """Commit values until the tier is full, several at a time if they are short; the number of them."""
    step = max(10_000 // length, 1)
    for start in range(first, 10**6, step):
        try:
            tier.commit({key(number): value(number, length) for number in range(start, start + step)})
        except OutOfRoom:
            return start - first
    raise AssertionError("never full")


@pytest.mark.parametrize("length", [16 * KIB, 400, 200 * KIB])
def test_full_and_room_again(open_tier, tmp_path, length):
    limit = 2 * MIB
    tier = open_tier(tmp_path, max_bytes=limit)
    count = fill(tier, length)
    assert limit * 0.4 < count * length < limit * 0.8
    last = count - 1
    with pytest.raises(OutOfRoom, match="is full") as caught:
        tier.commit({key(last): b"changed", b"big": b"x" * MIB}, [key(0)])
    assert (caught.value.field, caught.value.limit) == ("data", "2,097,152 bytes")
    # Nothing has changed, whether a value was to be put or deleted.
    assert tier.get_many([key(0), key(last), b"big"]) == [value(0, length), value(last, length), None]

    keys = [key(number) for number in range(count)]
    tier.commit({}, keys[: count // 2])
    assert tier.get_many(keys[: count // 2]) == [None] * (count // 2)
    assert fill(tier, length, first=count) >= count // 4
    # As long as nothing more is in use, a commit that puts goes through: a checkpoint, which replaces a journal.
    tier.commit({b"image": b"x" * 8 * KIB}, keys[count // 2 : count // 2 + 24])
    tier.close()
    assert (tmp_path / "data.mdb").stat().st_size <= limit


def test_a_smaller_limit_than_what_is_there_still_deletes(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    keys = [key(number) for number in range(200)]
    tier.commit(dict.fromkeys(keys, b"x" * 16 * KIB))
    tier.close()
    small = open_tier(tmp_path, max_bytes=MIB)
    assert small.get_many(keys[:1]) == [b"x" * 16 * KIB]
    with pytest.raises(OutOfRoom):
        small.check_room(1)
    with pytest.raises(OutOfRoom):
        small.commit({b"more": b"x" * 256 * KIB})
    small.check_room(KIB, reserve=1.0)
    small.commit({b"record": b"x" * KIB})  # of an eviction, say
    small.commit({}, keys[10:])
    small.check_room(16 * KIB)
    small.commit({b"more": b"x" * 16 * KIB})


def churned(tier, turn):
    """Fill a tier with values of changing lengths, and delete most of them: free pages lie scattered."""
    keys = []
    for number in range(400):
        length = (3 + number * 7 % 40) * KIB
        try:
            tier.commit({b"%d/%d" % (turn, number): b"x" * length})
        except OutOfRoom:
            break
        keys.append(b"%d/%d" % (turn, number))
    tier.commit({}, keys[::2])
    tier.commit({}, keys[1::2])


def test_the_limit_is_the_same_at_each_start(open_tier, tmp_path):
    """Whatever the file has become: it never grows beyond its limit."""
    limit = 2 * MIB
    for turn in range(15):
        tier = open_tier(tmp_path, max_bytes=limit)
        churned(tier, turn)
        tier.close()
        assert (tmp_path / "data.mdb").stat().st_size <= limit, turn


def test_a_smaller_limit_than_what_is_there_lets_the_file_grow_once(open_tier, tmp_path):
    """Deletes need pages; but not more of them at each start."""
    tier = open_tier(tmp_path)
    keys = [key(number) for number in range(300)]
    tier.commit(dict.fromkeys(keys, b"x" * 16 * KIB))
    tier.close()
    there = (tmp_path / "data.mdb").stat().st_size
    for turn in range(15):
        tier = open_tier(tmp_path, max_bytes=2 * MIB)
        with pytest.raises(OutOfRoom):
            tier.check_room(1)
        tier.commit({b"record": b"x" * KIB}, [keys[turn]])
        tier.close()
        assert (tmp_path / "data.mdb").stat().st_size <= there * 5 / 4, turn


def refused(call) -> bool:
    try:
        call()
    except OutOfRoom:
        return True
    return False


def test_new_entries_leave_room_for_making_room(open_tier, tmp_path):
    limit = 4 * MIB
    tier = open_tier(tmp_path, max_bytes=limit)
    reached = {}
    count = 0
    for reserve in (0.0, 0.5, 1.0):
        while not refused(lambda: tier.check_room(16 * KIB, reserve)):  # noqa: B023  # called at once
            tier.commit({key(count): value(count, 16 * KIB - 100)})
            count += 1
        reached[reserve] = count * 16 * KIB / limit
    assert 0.56 < reached[0.0] <= 0.64
    assert reached[0.0] + 0.04 < reached[0.5] < reached[1.0] - 0.04 < 0.72
    tier.commit({}, [key(number) for number in range(count)])
    tier.check_room(5 * MIB // 2)
    with pytest.raises(OutOfRoom) as caught:
        tier.check_room(limit)
    assert (caught.value.field, caught.value.limit) == ("data", "4,194,304 bytes")


def test_deletes_in_any_order_fit(open_tier, tmp_path):
    """Every second value first: done in that order, each page would have to be copied before one is free."""
    tier = open_tier(tmp_path, max_bytes=2 * MIB)
    count = fill(tier, KIB)
    keys = [key(number) for number in range(count)]
    tier.commit({b"pointer": b""}, keys[::2] + keys[1::2])
    assert tier.get_many(keys) == [None] * count


def test_what_was_freed_just_now_is_room(open_tier, tmp_path):
    """LMDB reuses what a commit freed only in the next but one."""
    tier = open_tier(tmp_path, max_bytes=8 * MIB)
    for turn in range(6):
        tier.commit({b"%d/%d" % (turn, n): b"x" * 100 * KIB for n in range(50)})
        tier.commit({}, [b"%d/%d" % (turn, n) for n in range(50)])
    assert tier.get_many([b"5/0"]) == [None]


def test_the_last_of_a_disk_is_for_making_room(open_tier, tmp_path, monkeypatch):
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"1" * 3 * MIB})
    tier.commit({}, [b"a"])
    disk = {"f_frsize": 4096, "f_blocks": 2**20, "f_bavail": 64 * MIB // 4096}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**disk))
    tier.commit({b"b": b"2"})
    tier.check_room(2 * MIB)  # as much is free within the file
    with pytest.raises(OutOfRoom, match="disk") as caught:
        tier.check_room(5 * MIB)
    assert (caught.value.field, caught.value.limit) == ("data", "the disk")
    tier.check_room(5 * MIB, reserve=0.5)
    with pytest.raises(OutOfRoom):
        tier.check_room(80 * MIB, reserve=1.0)
    disk["f_bavail"] = 2**20
    tier.check_room(80 * MIB)


def test_a_disk_that_another_process_fills_has_no_room_at_once(open_tier, tmp_path):
    with small_disk(tmp_path / "disk", 16 * MIB) as disk:
        tier = open_tier(disk / "data")
        tier.commit({b"a": b"1" * 100 * KIB})
        tier.check_room(10 * MIB)
        limit = tier.limit_bytes
        filler = fill_disk(disk)
        with pytest.raises(OutOfRoom) as caught:
            tier.check_room(1)
        assert (caught.value.field, caught.value.limit) == ("data", "the disk")
        assert tier.limit_bytes < limit - 10 * MIB, "metrics know it, too"
        with pytest.raises(OutOfRoom) as caught:  # of one that did not look
            tier.commit({b"b": b"2" * MIB})
        assert caught.value.limit == "the disk"
        assert tier.get_many([b"a", b"b"]) == [b"1" * 100 * KIB, None]
        filler.unlink()
        tier.check_room(10 * MIB)
        tier.commit({b"b": b"2" * MIB})
        tier.close()


def test_a_disk_with_ample_room_is_looked_at_now_and_then(tmp_path, monkeypatch):
    """Where room is short, it is looked at each time."""
    clock, disk = Clock(), {"f_frsize": 4096, "f_blocks": 2**30, "f_bavail": 2**20}
    looks = []

    def statvfs(_):
        looks.append(clock.now_s)
        return SimpleNamespace(**disk)

    monkeypatch.setattr(os, "statvfs", statvfs)
    (tmp_path / "data.mdb").write_bytes(b"")
    space = Space(tmp_path, str(tmp_path / "data.mdb"), clock)
    for _ in range(10):
        space.look_again(MIB)
    assert len(looks) == 1
    clock.now_s += 1.0
    space.look_again(MIB)
    assert len(looks) == 2
    disk["f_bavail"] = 2**16
    space.measure(MIB)
    for _ in range(10):
        space.look_again(MIB)
    assert len(looks) == 13


def test_a_commit_under_way_is_not_counted_twice(open_tier, tmp_path):
    """It has lengthened the file already, and its caller counts it as pending still."""
    with small_disk(tmp_path / "disk", 16 * MIB) as disk:
        tier = open_tier(disk / "data")
        tier.commit({b"a": b"1"})
        values = disk / "data" / "data.mdb"
        length = values.stat().st_size
        with values.open("ab") as file:
            file.write(bytes(8 * MIB))
        tier.check_room(12 * MIB)
        os.truncate(values, length)
        tier.close()


def test_a_limit_that_nothing_fits_in(tmp_path):
    with pytest.raises(InvalidArgument, match="1,048,576 bytes"):
        LmdbTier(tmp_path, max_bytes=MIB - 1)


def test_a_full_disk_changes_nothing(open_tier, tmp_path):
    """A limit on the size of files stands in for it; as there, the last write is cut short, not refused."""
    tier = open_tier(tmp_path)
    tier.commit({b"before": b"1" * 100 * KIB, b"spare": b"2" * 300 * KIB})
    tier.commit({}, [b"spare"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        for _ in range(3):
            with pytest.raises(OutOfRoom, match="is full") as caught:
                tier.commit({b"big": b"x" * 2 * MIB}, [b"before"])
            assert (caught.value.field, caught.value.limit) == ("data", "the disk")
        assert tier.get_many([b"before", b"big"]) == [b"1" * 100 * KIB, None]
        tier.commit({b"small": b"3"}, [b"before"])
        assert tier.get_many([b"before", b"small"]) == [None, b"3"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tier.commit({b"big": b"x" * 2 * MIB})
    assert tier.get_many([b"big", b"small"]) == [b"x" * 2 * MIB, b"3"]


LITTLE_SPACE = """
import resource, sys
from pathlib import Path
from sash.tiers.lmdb import LmdbTier
from sash.tiers.lmdb_space import Space
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
tier = LmdbTier(Path(sys.argv[1]))
tier.acquire()
tier.commit({b"a": b"1"})
print(tier.get_many([b"a"]))
"""


def test_with_little_address_space(tmp_path):
    with python(LITTLE_SPACE, tmp_path) as process:
        assert process.communicate(timeout=120)[0] == "[b'1']\n"
