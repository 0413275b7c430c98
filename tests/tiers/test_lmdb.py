"""LMDB's tier: its directory, one server alone, a killed server, a disk that fails, a damaged file."""

import contextlib
import errno
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import lmdb
import pytest

from sash.tiers.lmdb import LmdbTier
from sash.tiers.lmdb_commits import lost_write
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, OutOfRoom, Unavailable
from tests.support.processes import python

KIB, MIB = 2**10, 2**20


# The directory


def test_the_directory_is_made_for_the_owner_alone(open_tier, tmp_path):
    path = tmp_path / "new" / "data"
    open_tier(path).commit({b"a": b"1"})
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()} == {
        "server.lock": 0o600,
        "data.mdb": 0o600,
        "lock.mdb": 0o600,
    }


def test_the_directory_is_made_by_a_user_like_any_other(tmp_path):
    """Root may enter every directory. Without its capabilities, it is as other users are."""
    code = "import sys; from sash.tiers.lmdb_open import create; from pathlib import Path; create(Path(sys.argv[1]))"
    as_others = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    subprocess.run([*as_others, sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "data.mdb").exists()


@pytest.mark.parametrize("loss", [Path.unlink, lambda file: os.truncate(file, 0)], ids=["gone", "empty"])
def test_a_file_of_values_that_is_lost_is_no_new_directory(open_tier, tmp_path, loss):
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"1"})
    with pytest.raises(FailedPrecondition, match=f"process {os.getpid()} "):
        LmdbTier(tmp_path).acquire()
    tier.close()
    lost = tmp_path / "data.mdb"
    whole = lost.read_bytes()
    loss(lost)
    for _ in range(2):  # who looks at it does not make it look like a new one
        with pytest.raises(DataLoss, match=r"data\.mdb is (gone|empty): put it back") as caught:
            LmdbTier(tmp_path).acquire()
        assert caught.value.field == "data"
    assert not lost.exists() or not lost.stat().st_size, "nothing was made up"
    lost.write_bytes(whole)
    assert open_tier(tmp_path).get_many([b"a"]) == [b"1"]


def test_a_server_that_ended_before_it_made_its_file_leaves_a_new_directory(open_tier, tmp_path):
    (tmp_path / "server.lock").write_bytes(b"")
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"1"})
    assert tier.get_many([b"a"]) == [b"1"]


def test_a_file_that_is_removed_under_a_server_is_read_and_not_written(open_tier, tmp_path):
    tier = open_tier(tmp_path / "data")
    tier.commit({b"a": b"1"})
    assert tier.healthy
    (tmp_path / "data").rename(tmp_path / "aside")
    for _ in range(2):
        assert not tier.healthy
        with pytest.raises(Unavailable, match="removed or replaced"):
            tier.commit({b"b": b"2"})
    assert tier.get_many([b"a", b"b"]) == [b"1", None]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.mdb").write_bytes((tmp_path / "aside" / "data.mdb").read_bytes())
    assert not tier.healthy, "another file of that name is another file"
    (tmp_path / "data" / "data.mdb").unlink()
    (tmp_path / "data").rmdir()
    (tmp_path / "aside").rename(tmp_path / "data")
    assert tier.healthy
    tier.commit({b"b": b"2"})
    assert tier.get_many([b"b"]) == [b"2"]


def test_a_relative_path_holds_when_the_process_moves(open_tier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tier = LmdbTier(Path("data"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    tier.acquire()
    tier.close()
    assert (tmp_path / "data" / "data.mdb").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_must_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InvalidArgument, match="ermission"):
            LmdbTier(tmp_path).acquire()
    finally:
        tmp_path.chmod(0o700)


def with_content(content):
    def made(path):
        (path / "data.mdb").write_bytes(content)
        return path

    return made


def a_file(path):
    (path / "file").write_text("mine")
    return path / "file"


def of_something_else(path):
    with lmdb.open(os.fspath(path)) as env, env.begin(write=True) as change:
        change.put(b"theirs", b"1")
    return path


def of_a_newer_sash(path):
    with contextlib.closing(LmdbTier(path)) as tier:
        tier.acquire()
    with lmdb.open(os.fspath(path), max_dbs=1) as env, env.begin(write=True) as change:
        assert change.get(b"sash") == b"1"
        change.put(b"sash", b"2")
    return path


def of_another_lmdb(path):
    """Of a version that does not exist yet, say: it is told on both meta pages."""
    with contextlib.closing(LmdbTier(path)) as tier:
        tier.acquire()
    content = bytearray((path / "data.mdb").read_bytes())
    for page in range(2):
        content[page * resource.getpagesize() + 20] ^= 8
    return with_content(content)(path)


REFUSED = {
    "a file": (a_file, InvalidArgument, "cannot be the data directory"),
    "below a file": (lambda path: a_file(path) / "below", InvalidArgument, "cannot be the data directory"),
    "too long": (lambda path: path / ("x" * 300), InvalidArgument, "too long"),
    "another program's": (of_something_else, FailedPrecondition, "something else"),
    "a text": (with_content(b"no database " * 1000), FailedPrecondition, "not an LMDB database"),
    "one byte": (with_content(b"x"), FailedPrecondition, "not an LMDB database"),
    "zeros": (with_content(bytes(8192)), FailedPrecondition, "not an LMDB database"),
    "newer Sash": (of_a_newer_sash, FailedPrecondition, "newer Sash, in format 2; this one reads 1"),
    "newer LMDB": (of_another_lmdb, FailedPrecondition, "of another version"),
}
if Path("/proc/self").exists():  # a file system that nobody can write to
    REFUSED["not writable"] = (lambda path: Path("/proc/sash"), InvalidArgument, "/proc/sash")


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_data_directory_is_refused_and_left_alone(tmp_path, what):
    prepare, kind, says = REFUSED[what]
    path = prepare(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.glob("*") if file.suffix != ".lock" and file.stem != "lock"}
    with pytest.raises(kind, match=says) as caught:
        LmdbTier(path).acquire()
    assert caught.value.field == "data"
    assert {file: file.read_bytes() for file in before} == before


def test_a_database_of_nothing_is_a_new_directory(open_tier, tmp_path):
    lmdb.open(os.fspath(tmp_path)).close()
    open_tier(tmp_path).commit({b"a": b"1"})


def test_a_refused_directory_is_not_kept_locked(open_tier, tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"no database " * 1000)
    with pytest.raises(FailedPrecondition):
        LmdbTier(tmp_path).acquire()
    (tmp_path / "data.mdb").unlink()
    open_tier(tmp_path).commit({b"a": b"1"})


def test_before_it_is_acquired(tmp_path):
    tier = LmdbTier(tmp_path)
    with pytest.raises(Unavailable):
        tier.get_many([b"a"])
    with pytest.raises(Unavailable):
        tier.commit({b"a": b"1"})
    assert list(tmp_path.iterdir()) == []


# One server

HOLD = """
import sys
from pathlib import Path
from sash.tiers.lmdb import LmdbTier
tier = LmdbTier(Path(sys.argv[1]))
tier.acquire()
print("acquired", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_told_who_has_it(open_tier, tmp_path):
    with python(HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "acquired\n"
        with pytest.raises(FailedPrecondition, match=rf"process {holder.pid} on .*{re.escape(os.uname().nodename)}"):
            LmdbTier(tmp_path).acquire()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        open_tier(tmp_path).commit({b"a": b"1"})


def test_a_program_that_the_server_starts_does_not_hold_the_lock(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    with python("import sys; print('runs', flush=True); sys.stdin.read()") as program:
        assert program.stdout.readline() == "runs\n"
        tier.close()
        open_tier(tmp_path)
        program.stdin.close()


# Killed

# Commit n puts ten parts that all say n, moves the head to n and deletes the parts of n - 3. Says n when it is done.
COMMIT = """
import os, sys
from pathlib import Path
from sash.tiers.lmdb import LmdbTier
tier = LmdbTier(Path(sys.argv[1]))
tier.acquire()
n = int(sys.argv[2])
while True:
    puts = {b"%d/%d" % (n, part): b"%d " % n * (10 ** (part % 5)) for part in range(10)}
    tier.commit({**puts, b"head": b"%d" % n}, [b"%d/%d" % (n - 3, part) for part in range(10)])
    os.write(1, b"%d\\n" % n)
    n += 1
"""


def test_killed_in_the_middle_of_commits(tmp_path):
    """Whatever was reported is there, and of the one in progress, all or nothing."""
    chance = random.Random(5)
    first = 1
    for _ in range(6):
        with python(COMMIT, tmp_path, first) as committer:
            for _ in range(chance.randint(1, 40)):
                reported = int(committer.stdout.readline())
            sum(range(chance.randrange(100_000)))  # 0 to 2 ms, so that it is not always right behind a commit
            committer.send_signal(signal.SIGKILL)
            reported = max([reported, *(int(line) for line in committer.stdout if line.endswith("\n"))])
        tier = LmdbTier(tmp_path)
        tier.acquire()
        head = int(tier.get_many([b"head"])[0])
        assert head in (reported, reported + 1)
        for n in range(max(head - 6, 1), head + 3):
            wanted = [b"%d " % n * (10 ** (part % 5)) if head - 3 < n <= head else None for part in range(10)]
            assert tier.get_many([b"%d/%d" % (n, part) for part in range(10)]) == wanted, (n, head)
        tier.close()
        first = head + 1


# Resident memory


def mapped_bytes() -> int:
    """Pages of files in this process."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_reading_and_writing_does_not_keep_the_file_resident(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    before = mapped_bytes()
    block = os.urandom(16 * KIB)
    most = 0
    for turn in range(12):
        tier.commit({b"%d/%d" % (turn, n): block for n in range(512)})
        most = max(most, mapped_bytes() - before)
    for n in range(512):
        assert tier.get_many([b"%d/%d" % (turn, n) for turn in range(12)]) == [block] * 12
        most = max(most, mapped_bytes() - before)
    assert (tmp_path / "data.mdb").stat().st_size > 96 * MIB
    assert most < 40 * MIB


def test_reads_go_on_while_the_file_is_mapped_anew(open_tier, tmp_path, monkeypatch):
    monkeypatch.setattr("sash.tiers.lmdb._REMAP_AFTER_BYTES", 1)
    monkeypatch.setattr("sash.tiers.lmdb._KEYS_PER_LOOK", 1)
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"x" * 16 * KIB})
    finished = threading.Event()
    seen = []

    def read():
        while not finished.is_set():
            seen.append(tier.get_many([b"a"]) == [b"x" * 16 * KIB])

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for n in range(100):
        tier.commit({b"%d" % n: b"y" * 16 * KIB})
    finished.set()
    for reader in readers:
        reader.join()
    assert all(seen)
    assert len(seen) >= 3


def test_reads_do_not_wait_for_a_commit(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    tier.commit({b"a": b"1"})
    with tier._writing:  # as a commit that syncs
        assert tier.get_many([b"a"]) == [b"1"]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("commits", [0, 2])
def test_a_copy_by_lmdb_s_own_tool_opens_and_goes_on(tmp_path, compact, commits):
    tier = LmdbTier(tmp_path / "data")
    tier.acquire()
    for number in range(9):
        tier.commit({b"key": b"%d" % number})
    tier.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    with lmdb.open(str(tmp_path / "data"), max_dbs=1, readonly=True, lock=False) as env:
        env.copy(str(copy), compact=compact)
    for number in range(8, 9 + commits):
        tier = LmdbTier(copy)
        tier.acquire()
        assert tier.get_many([b"key"]) == [b"%d" % number]
        if commits:
            tier.commit({b"key": b"%d" % (number + 1)})
        tier.close()
    with lmdb.open(str(copy), max_dbs=1) as env, env.begin(env.open_db(b"values", create=False), write=True) as change:
        change.put(b"key", b"behind the tier's back")
    with pytest.raises(DataLoss, match="has lost a write"):
        LmdbTier(copy).acquire()


def test_what_tells_of_a_lost_write():
    for told, stamp, transaction, lost in (
        (None, None, 5, False),
        (None, b"5", 5, True),
        (b"5 5", b"5", 5, False),
        (b"5 0", None, 5, False),
        (b"5 5", b"4", 5, True),
        (b"4 4", b"4", 5, True),
        (b"9 9", b"9", 5, False),
        (b"x 5", b"5", 5, True),
    ):
        assert lost_write(told, stamp, transaction) is lost, (told, stamp, transaction)


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


def test_a_damaged_page_is_data_loss(open_tier, tmp_path):
    tier = open_tier(tmp_path)
    env, tier._env = tier._env, Failing(lmdb.CorruptedError("as told"))
    with pytest.raises(DataLoss, match=re.escape(str(tmp_path))):
        tier.get_many([b"a"])
    tier._env = env
