"""Which tier an address stands for, and reading what it has while no server has it: nothing is changed."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from sash.tiers import open_tier
from sash.tiers.lmdb import LmdbTier
from sash.tiers.redis import RedisTier
from sash.tiers.redis_view import RedisView
from sash.tiers.views import LmdbView, open_view
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from tests.support.redis_servers import BINARIES, redis_server

VALUES = {b"key %04d" % i: b"%d" % i * (i % 97) for i in range(2500)} | {b"journal/last": b"x", b"[a]*?\\": b"odd"}


def files(folder):
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.fixture
def directory(tmp_path):
    """A data directory that a server has left."""
    tier = LmdbTier(tmp_path / "data")
    tier.acquire()
    tier.commit(VALUES)
    tier.close()
    return tmp_path / "data"


def test_a_view_of_a_directory_has_all_values_and_changes_nothing(directory):
    before = files(directory)
    view = open_view(str(directory))
    assert isinstance(view, LmdbView)
    keys = list(view.keys())
    assert dict(zip(keys, view.get_many(keys), strict=True)) == VALUES
    assert view.get_many([b"nothing", b"journal/last"]) == [None, b"x"]
    assert view.problems() == []
    view.close()
    view.close()
    assert files(directory) == before


def test_a_directory_that_a_server_has_is_not_looked_at_and_no_server_starts_while_one_looks(open_tier, directory):
    tier = open_tier(directory)
    with pytest.raises(FailedPrecondition, match=f"A server has the data directory.*process {os.getpid()} ") as caught:
        LmdbView(directory)
    assert caught.value.field == "data"
    tier.close()
    one, other = LmdbView(directory), None
    with pytest.raises(FailedPrecondition, match="Another server has"):
        LmdbTier(directory).acquire()
    one.close()
    open_tier(directory)
    assert other is None


def test_a_copy_without_the_lock_is_looked_at(directory):
    (directory / "server.lock").unlink()
    view = LmdbView(directory)
    assert dict(zip(VALUES, view.get_many(list(VALUES)), strict=True)) == VALUES
    view.close()
    assert {file.name for file in directory.iterdir()} == {"data.mdb", "lock.mdb"}


def test_what_is_no_data_directory_is_refused_and_let_go(directory, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidArgument, match=r"not a data directory: it has no data\.mdb") as caught:
            LmdbView(path)
        assert caught.value.field == "data"
    (directory / "data.mdb").write_bytes(b"something else" * 1000)
    with pytest.raises(FailedPrecondition, match="is unreadable: it is not an LMDB database"):
        LmdbView(directory)
    with open(directory / "server.lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for address in ("memory://x", "http://127.0.0.1"):
        with pytest.raises(InvalidArgument, match="not a place where windows are stored"):
            open_view(address)
    with lmdb.open(str(tmp_path / "other")) as env, env.begin(write=True) as change:
        change.put(b"a", b"b")
    with pytest.raises(FailedPrecondition, match="belongs to another program"):
        LmdbView(tmp_path / "other")


def test_a_file_that_is_cut_short_is_looked_at_as_far_as_it_goes(open_tier, directory):
    tier = open_tier(directory)
    for number in range(6):
        tier.commit({b"short": b"%d" % number})  # leaves pages that are free
    tier.commit({b"long": b"l" * 400_000})
    tier.commit({b"short": b"6"})
    tier.close()
    os.truncate(directory / "data.mdb", (directory / "data.mdb").stat().st_size - 40_960)
    before = files(directory)
    view = LmdbView(directory)
    keys = list(view.keys())
    found = dict(zip(keys, view.get_many(keys), strict=True))
    cut = found.pop(b"long")
    assert cut == b"l" * len(cut)
    assert 400_000 - 40_960 - 4096 < len(cut) < 400_000
    assert found.pop(b"short") == b"6"
    assert found == VALUES
    view.close()
    assert files(directory) == before


def test_a_tree_of_which_a_page_is_damaged_is_read_as_far_as_it_goes(directory):
    content = bytearray((directory / "data.mdb").read_bytes())
    for found in re.finditer(b"key 1000" + VALUES[b"key 1000"], bytes(content)):  # one page, or a copy that it has left
        page = found.start() // 4096
        content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    (directory / "data.mdb").write_bytes(content)
    view = LmdbView(directory)
    keys = list(view.keys())
    assert len(VALUES) - 100 < len(keys) < len(VALUES)
    assert dict(zip(keys, view.get_many(keys), strict=True)).items() <= VALUES.items()
    assert view.get_many([b"key 0001", b"key 1000", b"key 2400"]) == [b"1", None, VALUES[b"key 2400"]]
    *pages, unreadable = view.problems()
    expected = "page n is no page of a tree: the values below it cannot be read"
    assert {re.sub("[0-9]+", "n", problem) for problem in pages} == {expected}
    assert re.fullmatch("value 'key 1000' cannot be read: page [0-9]+ is no page of a tree", unreadable)
    view.close()


# ---------------------------------------------------------------- writes that the disk lost


def test_an_older_page_is_noticed_wherever_the_journal_ends(open_tier, directory):
    """Of every page that two commits changed, the older one is put back."""
    tier = open_tier(directory)
    states = []
    for number in range(6):
        group, block = b"journal/%016x" % number, b"block/%d" % number
        tier.commit({group: b"g", b"journal/last": b"%d" % number, block: b"b" * 3000})
        states.append((directory / "data.mdb").read_bytes())
    tier.close()
    last = (directory / "data.mdb").read_bytes()
    older, noticed = states[2], 0
    for page in range(2, len(older) // 4096):
        rows = slice(page * 4096, (page + 1) * 4096)
        if older[rows] == last[rows]:
            continue
        (directory / "data.mdb").write_bytes(last[: rows.start] + older[rows] + last[rows.stop :])
        tier = LmdbTier(directory)
        try:
            tier.acquire()
        except DataLoss:
            noticed += 1
        else:
            try:
                assert tier.get_many([b"journal/last", b"journal/%016x" % 5]) == [b"5", b"g"]
            except DataLoss:
                noticed += 1
        tier.close()
    assert noticed


def test_a_directory_that_lost_a_write_is_refused_and_looked_at(open_tier, directory, tmp_path):
    shutil.copytree(directory, tmp_path / "older")
    tier = open_tier(directory)
    tier.commit({b"journal/last": b"y"})
    tier.close()
    with lmdb.open(str(directory), max_dbs=1) as env, env.begin(write=True) as change:
        change.put(b"mine", b"1")  # a transaction that tells nothing
    with pytest.raises(
        DataLoss, match=r"has lost a write that the disk had synced.*sash admin check --salvage"
    ) as caught:
        LmdbTier(directory).acquire()
    assert caught.value.field == "data"
    view = LmdbView(directory)
    assert "lost a write" in view.problems()[0]
    assert view.get_many([b"journal/last"]) == [b"y"]
    view.close()
    open_tier(tmp_path / "older")


@pytest.mark.parametrize("stamp", [None, b"1"])
def test_a_stamp_that_is_another_is_a_write_that_was_lost(directory, stamp):
    with lmdb.open(str(directory), max_dbs=1) as env:
        values = env.open_db(b"values", create=False)
        with env.begin(write=True) as change:
            told = change.get(b"commit").split()[1]
            assert change.get(b"journal/last\0", db=values) == told
            change.put(b"commit", b"%d %s" % (change.id(), told))
        tier = LmdbTier(directory)
        env.close()
        tier.acquire()
        tier.close()
    with lmdb.open(str(directory), max_dbs=1) as env:
        values = env.open_db(b"values", create=False)
        with env.begin(write=True) as change:
            change.put(b"commit", b"%d %s" % (change.id(), told))
            if stamp is None:
                change.delete(b"journal/last\0", db=values)
            else:
                change.put(b"journal/last\0", stamp, db=values)
    with pytest.raises(DataLoss, match="lost a write"):
        LmdbTier(directory).acquire()


def test_a_directory_of_an_earlier_version_tells_nothing_and_is_taken(directory):
    with lmdb.open(str(directory), max_dbs=1) as env:
        values = env.open_db(b"values", create=False)
        with env.begin(write=True) as change:
            change.delete(b"commit")
            change.delete(b"journal/last\0", db=values)
    view = LmdbView(directory)
    assert view.problems() == []
    view.close()
    for _ in range(2):
        tier = LmdbTier(directory)
        tier.acquire()
        assert tier.get_many([b"journal/last"]) == [b"x"]
        tier.commit({b"a": b"b"})
        tier.close()


def test_a_new_directory_that_was_not_finished_is_begun_anew(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "data.mdb").write_bytes(b"half")
    tier = LmdbTier(tmp_path)
    tier.acquire()
    tier.commit({b"a": b"b"})
    tier.close()
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- Redis


@pytest.fixture(scope="module")
def server():
    if not BINARIES:
        pytest.skip("there is no Redis server")
    with redis_server(next(iter(BINARIES.values()))) as running:
        yield running


def test_a_view_of_a_prefix_has_all_its_values(server):
    for prefix in ("some", "some.other"):
        tier = RedisTier(server.url, prefix, timeout_s=60)
        tier.acquire()
        tier.commit(VALUES if prefix == "some" else {b"not": b"mine"})
        with pytest.raises(FailedPrecondition, match=f"A server has '{prefix}' on this Redis: process {os.getpid()} "):
            RedisView(server.url, prefix)
        tier.close()
    view = open_view(server.url, "some")
    assert isinstance(view, RedisView)
    keys = list(view.keys())
    assert len(keys) == len(set(keys))
    assert dict(zip(keys, view.get_many(keys), strict=True)) == VALUES
    assert view.get_many([b"nothing"]) == [None]
    assert view.get_many([]) == []
    assert view.problems() == []
    tier = RedisTier(server.url, "some", timeout_s=60)
    tier.acquire()
    with pytest.raises(FailedPrecondition, match="meanwhile"):
        view.problems()
    tier.close()
    view.close()


def test_a_prefix_that_nobody_used_is_no_place(server):
    with pytest.raises(InvalidArgument, match="Nothing is stored under 'unused'"):
        RedisView(server.url, "unused")
    with pytest.raises(InvalidArgument, match="address of Redis is wrong"):
        RedisView("redis://127.0.0.1:notaport/0", "some")
    with pytest.raises(Unavailable):
        RedisView("redis://127.0.0.1:1/0", "some", timeout_s=0.2)


def test_what_redis_has_is_there_without_a_fence(server):
    """It may have dropped that one, too."""
    tier = RedisTier(server.url, "dropped", timeout_s=60)
    tier.acquire()
    tier.commit({b"a": b"b"})
    tier.close()
    server.ask("DEL", "{dropped}:fence")
    view = RedisView(server.url, "dropped")
    assert list(view.keys()) == [b"a"]
    view.close()


def test_a_server_that_is_gone_without_a_word_is_no_server(server, monkeypatch):
    tier = RedisTier(server.url, "gone", timeout_s=60)
    tier.acquire()
    tier.commit({b"a": b"b"})
    monkeypatch.setattr("sash.tiers.owner.Owner.gone", lambda self: True)
    view = RedisView(server.url, "gone")
    assert view.get_many([b"a"]) == [b"b"]
    view.close()
    monkeypatch.undo()
    tier.close()


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("data", LmdbTier),
        ("./memory", LmdbTier),
        ("./redis:6379", LmdbTier),
        ("redis://127.0.0.1:1/0", RedisTier),
        ("rediss://user:secret@127.0.0.1:1", RedisTier),
        ("memory", type(None)),
    ],
)
def test_the_tier_of_an_address(address, kind):
    assert type(open_tier(address)) is kind


@pytest.mark.parametrize("address", ["", "http://127.0.0.1", "reddis://127.0.0.1", "file:///var/sash"])
def test_anything_else(address):
    with pytest.raises(InvalidArgument, match="not a place to store windows") as caught:
        open_tier(address)
    assert caught.value.field == "data"


def test_only_redis_needs_redis():
    code = "import sys, sash.tiers; sash.tiers.open_tier('data'); print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert not Path("data").exists()
