"""LMDB's tier when the disk fails and when its file is damaged."""

import contextlib
import errno
import os
import re
import resource

import lmdb
import pytest

from sash.tiers.lmdb import LmdbTier
from sash_engine.errors import DataLoss, FailedPrecondition, OutOfRoom, Unavailable
from tests.support.processes import python

KIB, MIB = 2**10, 2**20


# Damage and errors of the disk


class Failing:
    """Stands in for LMDB's environment: every transaction fails with this."""

    def __init__(self, error):
        self.error = error

    def begin(self, *_, **__):
        raise self.error

    def info(self):
        return {"last_pgno": 2}

    def close(self):
        pass


class DiskFails(lmdb.Error):
    def __init__(self, code):
        super().__init__(os.strerror(code))
        self.code = code


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_an_error_of_the_disk_is_unavailable(open_tier, tmp_path, code):
    tier = open_tier(tmp_path)
    env, tier._env = tier._env, Failing(DiskFails(code))
    for call in (lambda: tier.commit({b"a": b"1"}), lambda: tier.get_many([b"a"])):
        with pytest.raises(Unavailable, match=f"cannot be used now: {os.strerror(code)}") as caught:
            call()
        assert caught.value.retry_after_s == 1.0
    tier._env = env
    tier.commit({b"a": b"1"})
    assert tier.get_many([b"a"]) == [b"1"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_or_a_quota_that_is_used_up_is_out_of_room(open_tier, tmp_path, code):
    tier = open_tier(tmp_path)
    env, tier._env = tier._env, Failing(DiskFails(code))
    with pytest.raises(OutOfRoom, match="is full") as caught:
        tier.commit({b"a": b"1"})
    assert (caught.value.field, caught.value.limit) == ("data", "the disk")
    tier._env = env
    tier.commit({b"a": b"1"})
    assert tier.get_many([b"a"]) == [b"1"]


@pytest.mark.parametrize("call", ["get_many", "commit"])
def test_it_recovers_from_what_lmdb_gives_up_at(open_tier, tmp_path, call):
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"1"})
    tier._env.close()
    tier._env = Failing(lmdb.PanicError("as told"))
    with pytest.raises(Unavailable):
        tier.get_many([b"a"]) if call == "get_many" else tier.commit({b"b": b"2"})
    assert tier.get_many([b"a", b"b"]) == [b"1", None]
    tier.commit({b"b": b"2"})
    assert tier.get_many([b"a", b"b"]) == [b"1", b"2"]


READ_ALL = """
import sys
from pathlib import Path
from sash_engine.errors import SashError
from sash.tiers.lmdb import LmdbTier
tier = LmdbTier(Path(sys.argv[1]))
try:
    tier.acquire()
except SashError as error:
    print(type(error).__name__)
    sys.exit()
for n in range(200):
    try:
        print((tier.get_many([b"%d" % n])[0] or b"missing")[:1])
    except SashError as error:
        print(type(error).__name__)
"""


def test_a_file_cut_short_does_not_end_the_process(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    for n in range(200):
        tier.commit({b"%d" % n: b"x" * 16 * KIB})
    tier.close()
    content = (tmp_path / "data.mdb").read_bytes()
    for part in (0.9, 0.5, 0.01):
        (tmp_path / "data.mdb").write_bytes(content[: int(len(content) * part)])
        with python(READ_ALL, tmp_path) as reader:
            output = reader.communicate(timeout=120)[0].split()
        assert reader.returncode == 0, (part, reader.returncode)
        # A value is whole, zeros (which its checksum tells), or known to be lost.
        assert set(output) <= {"b'x'", "b'\\x00'", "b'm'", "DataLoss"}
        assert set(output) & {"b'\\x00'", "DataLoss"}


# Offsets of LMDB's meta pages: 16 magic number, 20 version, 88 root of the names, 136 last page.
@pytest.mark.parametrize(
    ("at", "bit", "says"),
    [
        *((16, bit, "not an LMDB file") for bit in (0, 7)),
        (92, 3, "No matching key"),
        *((129, bit, "Requested page not found") for bit in (0, 3)),
        (136, 7, "invalid"),
        *((140, bit, "longer than it is") for bit in (3, 6)),
        *((143, bit, "grew beyond environment mapsize") for bit in (0, 6)),
    ],
)
def test_a_damaged_meta_page_is_data_loss_and_names_the_file(open_tier, tmp_path, at, bit, says):
    tier = open_tier(tmp_path)
    for n in range(60):
        tier.commit({b"%d" % n: b"x" * 5000})
    tier.close()
    file = tmp_path / "data.mdb"
    whole = file.read_bytes()
    damaged = bytearray(whole)
    for page in range(2):
        damaged[page * resource.getpagesize() + at] ^= 1 << bit
    file.write_bytes(damaged)

    def read():
        with contextlib.closing(LmdbTier(tmp_path)) as tier:
            tier.acquire()
            tier.get_many([b"1"])

    with pytest.raises(DataLoss, match=says) as caught:
        read()
    assert str(file) in caught.value.message
    assert "damaged" in caught.value.message
    assert caught.value.field == "data"
    file.write_bytes(whole)
    assert open_tier(tmp_path).get_many([b"1"]) == [b"x" * 5000]


def test_a_length_that_no_file_can_have_is_data_loss(open_tier, tmp_path, monkeypatch):
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"1" * MIB})
    tier.close()
    os.truncate(tmp_path / "data.mdb", MIB // 2)

    def refuse(file, length):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "truncate", refuse)
    with pytest.raises(DataLoss, match=r"data\.mdb.* is damaged: it says that it is [\d,]+ bytes long"):
        LmdbTier(tmp_path).acquire()


def test_a_format_that_is_not_known_is_left_alone(open_tier, tmp_path):
    """Of a version of LMDB that does not exist yet, say."""
    open_tier(tmp_path).close()
    file = tmp_path / "data.mdb"
    content = bytearray(file.read_bytes())
    for page in range(2):
        content[page * resource.getpagesize() + 20] ^= 8
    file.write_bytes(content)
    with pytest.raises(FailedPrecondition, match="of another version"):
        LmdbTier(tmp_path).acquire()
    assert file.read_bytes() == content


def test_a_damaged_page_is_data_loss(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    env, tier._env = tier._env, Failing(lmdb.CorruptedError("as told"))
    with pytest.raises(DataLoss, match=re.escape(str(tmp_path))):
        tier.get_many([b"a"])
    tier._env = env
