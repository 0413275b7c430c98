"""A data directory of an earlier version: today's code gives the same answers, and goes on with it.

`fixtures/directory` is a data directory after `write_history`, and `answers.json` what that version answered. The main
function at the end wrote both. It runs on a checkout of the version that the directory is to be of.
"""

import asyncio
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import lmdb
import pytest

from sash.durability import formats as values
from sash.durability.check.check import check
from sash.durability.records.commands import AddAggregates, BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash.tiers import LmdbTier
from sash.tiers.owner import Owner
from sash.tiers.views import open_view
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Coded, Origin
from sash_engine.windows.batches.ledger import PART_EXPIRES_NS
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery
from sash_engine.windows.spec.window import WindowSpec
from tests.support.stored import StorageServer
from tests.support.twins import AGGREGATES, FIELDS, bulk, row

DIRECTORY = Path(__file__).parents[1] / "fixtures" / "directory"
OPTIONS = {"checkpoint_bytes": 10**7, "store_entries": 16, "block": 8}
SECOND = 10**9
GONE = 6
"""Number of the window that was deleted while its values were still there."""

SMALL = {"n": {"function": "count"}, "most": {"function": "max", "field": "n"}}
SOME = {name: AGGREGATES[name] for name in ("count", "mean", "longest", "distinct")}
SPECS = {
    "keyed": {"keyed": True, "slide": {"max_count": 80}},
    "unkeyed": {
        "keyed": False,
        "slide": {"max_age": "300s", "clock": "wall"},
        "time_unit": "s",
        "durability": "interval",
        "aggregates": SOME,
    },
    "panes": {"keyed": True, "aggregates": SOME, "slide": {"max_age": 240}, "granularity": 3},
    "late": {"keyed": True, "aggregates": SMALL},
    "empty": {"keyed": False},
    "gone": {"keyed": True, "aggregates": SMALL},
}
MORE = {"least": {"function": "min", "field": "n"}, "seen": {"function": "bloom", "field": "word", "capacity": 50}}


def spec(name):
    return WindowSpec.parse(
        {"name": name, "time_unit": "none", "fields": FIELDS, "aggregates": AGGREGATES} | SPECS[name]
    )


def rows(start, stop, keys="ab", step=1):
    """Entries at times start, start + step, …; keys take turns."""
    times = range(start, stop, step)
    return [(keys[i % len(keys)], time) for i, time in enumerate(times)]


def inserted(pairs, value, keyed=True):
    return BulkInsert(bulk(pairs, value, keyed))


async def write_history(server):
    """Values of all kinds: two images of each window, a journal behind them, and deletes that are not done yet."""
    storage = await server.start()
    server.clock.advance(1000 * SECOND)
    for name in SPECS:
        await storage.create(spec(name))
    await storage.write("keyed", inserted(rows(0, 60, "aaabc"), 0), Origin("loader", 1))
    await storage.write("unkeyed", inserted(rows(800, 900), 100, False))
    await storage.write("panes", inserted(rows(0, 220, "a"), 200))
    await storage.write("late", inserted(rows(0, 200, "a", 2), 300))
    await storage.write("gone", inserted(rows(0, 100, "a"), 0))
    storage = await server.restart()  # the first images
    await storage.write("keyed", inserted(rows(60, 150, "aaacd"), 1000), Origin("loader", 1, 7))
    await storage.write("keyed", BulkEvict(21, "a"))
    await storage.write("late", inserted(rows(2, 200, "a", 7), 400))  # into blocks that are stored
    await storage.write("late", BulkEvict(12))  # in the middle of one
    first = await storage.write("keyed", StageBatch(bulk([("a", 151), ("e", 152)], 50, True), "query", 0))
    await storage.write("keyed", StageBatch(bulk([("a", 153)], 60, True), "query", 0))  # the commit does not name it
    await storage.write("keyed", Commit("query", 0, [first.stage]))
    await storage.write("panes", StageBatch(bulk([("a", 225)], 70, True), "query", 4))
    await storage.write("gone", inserted(rows(100, 120), 0))
    storage = await server.restart()  # the second images
    server.clock.advance(PART_EXPIRES_NS // 2)
    await storage.write("keyed", StageBatch(bulk([("e", 155)], 80, True), "query", 1))
    server.clock.advance(PART_EXPIRES_NS // 2 + SECOND)
    storage.tidy()  # the part for "panes" expires, entries of "unkeyed" are too old
    now_s = server.clock.now_ns() // SECOND
    await storage.write("unkeyed", inserted(rows(now_s - 100, now_s, "a", 9), 500, False))
    await storage.write("keyed", AddAggregates(MORE))
    await storage.write("keyed", Insert(156, row(7), "a"), Origin("loader", 2, 7))
    await storage.write("panes", inserted(rows(200, 250, "ab"), 600))
    await storage.write("late", inserted(rows(1, 100, "b", 3), 700))
    await server.settled()
    reader = storage.export("gone")  # its values stay until it is closed
    await storage.delete("gone")
    await server.settled()
    found = answers(storage)
    await server.die()
    del reader
    return found


def answers(storage):
    """Everything that can be asked of all windows, as JSON has it."""
    return json.loads(json.dumps({info.spec.name: of_window(storage, info) for info in storage.all()}, default=repr))


def known(found, earlier):
    """What is found, without the members that the earlier version did not have."""
    if isinstance(earlier, dict):
        return {name: known(found[name], earlier[name]) for name in earlier if name in found}
    if isinstance(earlier, list) and len(found) == len(earlier):
        return [known(one, other) for one, other in zip(found, earlier, strict=True)]
    return found


def of_window(storage, info):
    window = storage.find(info.spec.name)
    keys = window.key_names("", 1000)[0] if info.spec.keyed else [None]
    first, last = (4300, 4700) if info.spec.time_unit == "s" else (0, 240)
    panes = info.spec.granularity is not None
    return {
        "info": {**asdict(info), "spec": info.spec.document()},
        "keys": keys,
        "whole": [plain(window.query(key, [], None)) for key in keys],
        "lookbacks": [plain(window.query(key, [6, 33], None)) for key in keys],
        "ranges": [plain([window.range_query(at, at + 50, key)]) for at in range(first, last, 80) for key in keys],
        "series": [series(window.series(first, last, 40, 60, key)) for key in keys],
        "entries": [] if panes else entries(storage, info.spec.name),
        "ledger": window.ledger.document(),
    }


def plain(found):
    return [asdict(answer) for answer in found]


def series(found):
    return [found.entries.tolist(), {name: column.tolist() for name, column in found.aggregates.items()}]


def entries(storage, name):
    question = EntriesQuery(keys=ALL_KEYS) if storage.find(name).spec.keyed else EntriesQuery()
    found = []
    for part in storage.find(name).reader.entries(question):
        keys = [None] * len(part.times) if part.keys is None else [part.keys.dictionary[i] for i in part.keys.codes]
        columns = [column.tolist() for column in part.columns.values() if not isinstance(column, Coded)]
        found += [list(each) for each in zip(keys, part.times.tolist(), *columns, strict=True)]
    return found


class Directory:
    """Servers on a copy of the directory, one after the other, at the time at which it was written."""

    def __init__(self, path):
        shutil.copytree(DIRECTORY, path)
        told = json.loads((path / "answers.json").read_text())
        self.path, self.answers = path, told["answers"]
        self.server = StorageServer(**OPTIONS)
        self.server.open = lambda: LmdbTier(path)
        self.server.clock.advance(told["now_ns"])

    def names(self):
        """What the directory has, while no server runs."""
        view = open_view(str(self.path))
        found = set(map(values.name_of, view.keys()))
        view.close()
        return found


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path / "data")


async def test_the_directory_has_values_of_all_kinds(directory):
    """Or the tests below show less than they say."""
    names = directory.names()
    assert {name.kind for name in names} == {"meta", "pointer", "last", "journal", "head", "image", "block", "part"}
    assert {name.number for name in names if name.kind == "head" and name.window != GONE} >= {2}
    assert {name.kind for name in names if name.window == GONE} == {"pointer", "head", "image", "block"}
    view = open_view(str(directory.path))
    found = check(view, ManualClock())
    assert found.whole
    assert {window.name for window in found.windows} == set(SPECS) - {"gone"}
    view.close()


async def test_today_s_code_answers_as_the_earlier_version_did(directory):
    storage = await directory.server.start()
    assert known(answers(storage), directory.answers) == directory.answers
    await directory.server.settled()
    for again in (directory.server.restart, directory.server.crash):
        storage = await again()
        assert known(answers(storage), directory.answers) == directory.answers


async def test_today_s_code_goes_on_deleting_what_was_being_deleted(directory):
    storage = await directory.server.start()
    await directory.server.settled()
    await storage.stop()
    assert not [name for name in directory.names() if name.window == GONE]


async def test_today_s_code_goes_on_writing_to_the_windows(directory):
    storage = await directory.server.start()
    retried = await storage.write("keyed", Insert(156, row(7), "a"), Origin("loader", 2, 7))
    assert retried.already_applied
    assert (await storage.write("keyed", Commit("query", 0, []))).already_applied
    ledger = storage.find("keyed").ledger
    assert (await storage.write("keyed", Commit("query", 1, list(ledger.parts)))).inserted == 1
    later = {
        "keyed": inserted(rows(157, 190, "abcde"), 2000),
        "unkeyed": inserted(rows(4700, 4730), 2000, False),
        "panes": inserted(rows(190, 290), 2000),
        "late": inserted(rows(3, 200, "ab"), 2000),
        "empty": inserted(rows(0, 10), 2000, False),
    }
    for name, write in later.items():
        assert (await storage.write(name, write)).inserted
    await storage.write("late", BulkEvict(31))
    expected = answers(storage)
    for again in (directory.server.crash, directory.server.restart, directory.server.crash):
        storage = await again()
        assert answers(storage) == expected
    await storage.stop()
    view = open_view(str(directory.path))
    assert check(view, ManualClock()).whole
    view.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])

    async def main():
        server = StorageServer(**OPTIONS)
        server.open = lambda: LmdbTier(target / "written")
        found = await write_history(server)
        told = {"now_ns": server.clock.now_ns(), "answers": found}
        (target / "answers.json").write_text(json.dumps(told))

    asyncio.run(main())
    with lmdb.open(str(target / "written"), max_dbs=1, readonly=True, lock=False) as env:
        env.copy(str(target), compact=True)
    lock = (target / "written" / "server.lock").read_bytes()  # without the name of this machine
    holds = lock[lock.index(b"}") + 1 :]
    (target / "server.lock").write_bytes(Owner("0" * 32, "earlier", "", 1, "").token() + holds)
    shutil.rmtree(target / "written")
