"""LMDB's file read without LMDB: all that LMDB has put there, and of a damaged file what is not damaged."""

import contextlib
import random

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.tiers.lmdb_file import LmdbFile, PageError

PAGE = 4096


def written(path, seed, rounds=12, each=150, longest=20_000):
    """A database of many transactions, and what is in it."""
    chance, model = random.Random(seed), {}
    with lmdb.open(str(path), max_dbs=2, map_size=2**28) as env:
        named = env.open_db(b"values")
        for _ in range(rounds):
            with env.begin(named, write=True) as change:
                for _ in range(each):
                    key = b"%d" % chance.randrange(4 * each) * chance.randint(1, 30)
                    if chance.random() < 0.3:
                        change.delete(key)
                        model.pop(key, None)
                    else:
                        model[key] = bytes([chance.randrange(256)]) * chance.choice([0, 1, 50, 2000, 2030, longest])
                        change.put(key, model[key])
        with env.begin(write=True) as change:
            change.put(b"unnamed", b"1")
        last = env.info()["last_txnid"]
    return model, last


@pytest.fixture
def files():
    """Opens files, and closes them."""
    opened = []

    def make(path):
        opened.append(LmdbFile(path / "data.mdb"))
        return opened[-1]

    yield make
    for file in opened:
        file.close()


@pytest.mark.parametrize("seed", range(4))
def test_all_that_is_there_is_read(files, tmp_path, seed):
    model, last = written(tmp_path, seed)
    file, problems = files(tmp_path), []
    root = file.root(b"values")
    assert file.transaction == last
    assert list(file.keys(root, problems)) == sorted(model)
    assert not problems
    assert {key: file.get(root, key) for key in model} == model
    for key in (b"", b"nothing", b"~", *(key + b"0" for key in model)):
        assert file.get(root, key) == model.get(key)
    assert file.get(file.root(), b"unnamed") == b"1"
    assert list(file.keys(file.root(), problems)) == [b"unnamed", b"values"]
    assert file.root(b"nothing") is None
    assert file.root(b"unnamed") is None, "it is a value"


def test_an_empty_database_has_nothing(files, tmp_path):
    with lmdb.open(str(tmp_path), max_dbs=1) as env:
        env.open_db(b"values")
        env.sync()
    file, problems = files(tmp_path), []
    for root in (file.root(b"values"), None):
        assert list(file.keys(root, problems)) == []
        assert file.get(root, b"a") is None
    assert not problems


def test_what_is_no_database_is_refused(tmp_path):
    for content in (b"", b"something else" * 1000, bytes(100_000)):
        (tmp_path / "data.mdb").write_bytes(content)
        with pytest.raises(PageError, match="not an LMDB database"):
            LmdbFile(tmp_path / "data.mdb")
    with pytest.raises(OSError, match="No such file"):
        LmdbFile(tmp_path / "none")


def test_the_later_meta_counts_and_the_other_where_that_is_damaged(files, tmp_path):
    model, last = written(tmp_path, 1)
    whole = (tmp_path / "data.mdb").read_bytes()
    found = set()
    for page in (0, 1):
        (tmp_path / "data.mdb").write_bytes(whole[: page * PAGE] + bytes(PAGE) + whole[(page + 1) * PAGE :])
        file = files(tmp_path)
        found.add(file.transaction)
        assert (file.get(file.root(), b"unnamed") == b"1") == (file.transaction == last)
    assert found == {last, last - 1}
    assert model


def page_of(content, key, value):
    """The page with a node."""
    return content.index(key + value[:40]) // PAGE


def test_what_is_behind_a_damaged_page_is_said_and_all_else_read(files, tmp_path):
    model = {b"key %05d" % i: b"v" * 100 for i in range(2000)}
    with lmdb.open(str(tmp_path), map_size=2**28) as env, env.begin(write=True) as change:
        for key, value in model.items():
            change.put(key, value)
    whole = (tmp_path / "data.mdb").read_bytes()
    page = page_of(whole, b"key 01000", b"v" * 100)
    for damage in (bytes(PAGE), b"\xff" * PAGE, whole[PAGE * (page + 1) :][:PAGE]):
        (tmp_path / "data.mdb").write_bytes(whole[: page * PAGE] + damage + whole[(page + 1) * PAGE :])
        file, problems = files(tmp_path), []
        keys = set(file.keys(file.root(), problems))
        assert [problem.split(" is ")[0] for problem in problems] == [f"page {page}"]
        assert b"key 01000" in model.keys() - keys
        assert 20 < len(model.keys() - keys) < 50
        assert keys < model.keys()
        assert all(file.get(file.root(), key) == model[key] for key in keys)
        with pytest.raises(PageError, match=f"page {page} is"):
            file.get(file.root(), b"key 01000")


def test_a_tree_that_leads_into_itself_has_an_end(files, tmp_path):
    with lmdb.open(str(tmp_path), map_size=2**28) as env, env.begin(write=True) as change:
        for i in range(2000):
            change.put(b"key %05d" % i, b"v" * 100)
    content = bytearray((tmp_path / "data.mdb").read_bytes())
    file = files(tmp_path)
    root = file.root()
    at = root * PAGE
    places = content[at + 16 : at + 16 + 2]
    node = at + int.from_bytes(places, "little")
    content[node : node + 6] = root.to_bytes(6, "little")
    (tmp_path / "data.mdb").write_bytes(content)
    file, problems = files(tmp_path), []
    assert 0 < len(set(file.keys(root, problems))) < 2000
    assert any("below itself" in problem for problem in problems)
    with pytest.raises(PageError, match="below itself"):
        file.get(root, b"key 00000")


@given(st.data())
def test_no_damage_is_more_than_an_error(tmp_path_factory, data):
    """Any bytes anywhere, and any end."""
    path = tmp_path_factory.mktemp("damaged")
    model, _ = written(path, 7, rounds=4, each=40, longest=9000)
    content = bytearray((path / "data.mdb").read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(2 * PAGE, len(content) - 1))
        at = at // PAGE * PAGE + at % 64 if data.draw(st.booleans()) else at
        piece = data.draw(st.binary(min_size=1, max_size=16))
        content[at : at + len(piece)] = piece
    del content[data.draw(st.integers(2 * PAGE, len(content) + 1)) :]
    (path / "data.mdb").write_bytes(content)
    file, problems = LmdbFile(path / "data.mdb"), []
    try:
        root = file.root(b"values")
    except PageError:
        root = file.root()
    for key in [*file.keys(root, problems), *model]:
        with contextlib.suppress(PageError):
            file.get(root, key)
    file.close()
