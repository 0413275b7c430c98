"""The runner over a log in memory: every record once, whatever fails and whoever else writes."""

import json
import random
from collections import Counter
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from sash_client import InvalidArgument, LastWrite, ResourceExhausted, Unavailable, WriteResult
from sash_ingest.connector import Records, SourceError
from sash_ingest.dead_letters import FileLetters, Letter
from sash_ingest.meters import Meters
from sash_ingest.runner import RejectedError, _AbandonedError, _Stream
from sash_ingest.target import Target
from tests.ingest.log import SPEC, Letters, Log, ids_of, ingest, record, target
from tests.support.clocks import Clock
from tests.support.waiting import wait_until

UNKEYED = {name: value for name, value in SPEC.items() if name != "keys"}
NUMBERS = [n for n in range(1, 1200) if n % 7]  # with gaps, as a log has them


def log_of(numbers=NUMBERS, streams=("a", "b")):
    """Each number in one stream; ids are the numbers."""
    return {name: [(n, record(n)) for n in numbers[i :: len(streams)]] for i, name in enumerate(streams)}


def test_records_of_several_streams_go_into_several_windows_once(client):
    windows = [client.create_window(SPEC | {"name": name}) for name in ("one", "two")]
    for again in range(2):
        run = ingest([target(window) for window in windows])
        run.run(Log(log_of()))
        assert run.meters.inserted == (0 if again else 2 * len(NUMBERS))
        for window in windows:
            assert ids_of(window) == Counter(NUMBERS)
            assert window.last_write("p/a") == LastWrite(NUMBERS[::2][-1], 1)


def test_windows_that_stand_at_different_records_meet(client):
    windows = [client.create_window(SPEC | {"name": name}) for name in ("one", "two")]
    streams = log_of(streams=("a",))
    ingest([target(windows[0])]).run(Log({"a": streams["a"][:300]}))
    log = Log(streams, some=77)
    ingest([target(window) for window in windows], records_per_write=100).run(log)
    for window in windows:
        assert ids_of(window) == Counter(NUMBERS)


class Faulty(Target):
    """A window whose calls and answers are lost now and then, and whose process dies now and then."""

    chance = random.Random(0)
    loses = dies = 0.0

    def write(self, *args):
        if self.chance.random() < self.dies:
            raise RuntimeError("died before")
        if self.chance.random() < self.loses:
            raise Unavailable("the call is lost")
        done = super().write(*args)
        if self.chance.random() < self.loses:
            raise Unavailable("the answer is lost")
        if self.chance.random() < self.dies:
            raise RuntimeError("died after")
        return done


def faulty(window, **rates):
    found = target(window)
    found.__class__ = Faulty
    for name, rate in rates.items():
        setattr(found, name, rate)
    return found


def test_lost_calls_and_answers_lose_and_double_nothing(window, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner.pauses_s", lambda: iter([0.0] * 1000))
    run = ingest([faulty(window, loses=0.3)], records_per_write=20)
    run.run(Log(log_of()))
    assert ids_of(window) == Counter(NUMBERS)
    assert any("waiting: " in line for line in run.said)
    assert any("waits no more" in line for line in run.said)


def test_processes_that_die_at_any_moment_lose_and_double_nothing(client):
    window, chance, deaths = client.create_window(SPEC), random.Random(1), 0
    for _ in range(2000):
        run = ingest([faulty(window, dies=0.2, chance=chance)], records_per_write=chance.choice([7, 20]))
        try:
            run.run(Log(log_of(), some=chance.choice([5, 30, 100])))
        except RuntimeError:
            deaths += 1
        else:
            break
    assert deaths > 5
    assert ids_of(window) == Counter(NUMBERS)


def test_two_processes_that_both_take_a_stream_for_theirs(window, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner._FENCED_S", 0.0)
    runs = [ingest([target(window)], records_per_write=10) for _ in range(2)]
    failures = []

    def run_it(run):
        try:
            run.run(Log(log_of(), some=13))
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=run_it, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ids_of(window) == Counter(NUMBERS)
    assert sum(run.meters.inserted for run in runs) == len(NUMBERS)


def test_a_zombie_is_fenced_and_drops_what_it_has(window):
    old = ingest([target(window)])
    assert old.begin("a") == 0
    ingest([target(window)]).run(Log({"a": [(n, record(n)) for n in range(1, 50)]}))
    log = Log({"a": [(n, record(n)) for n in range(1, 50)]}, ends=False)
    old._connector = log
    log.at["a"] = log.done["a"] = 0
    for records in log.poll(0):
        old._take(records)
    wait_until(lambda: old._step() or old._streams["a"].under_way is None)
    assert old._streams["a"].at[0].number == 49, "what the other one has written is answered as applied"
    assert ids_of(window) == Counter(range(1, 50))
    window.bulk_insert([60], {"id": [60]}, keys={"carrier": ["AA"]}, producer="p/a", sequence=60, after=49, epoch=9)
    log.streams["a"] = [(n, record(n)) for n in range(50, 70)]
    for records in log.poll(0):
        old._take(records)
    wait_until(lambda: old._step() or old._streams["a"].back_s is not None)
    assert "another process has taken it over" in old.said[-1]
    assert not old._streams["a"].waiting.numbers
    old._take(Records("a", [70], [record(70)]))
    assert not old._streams["a"].waiting.numbers, "it is asked for again when the stream comes back"
    old._streams["a"].back_s = 0.0
    wait_until(lambda: old._step() or log.sought)
    assert log.sought == [("a", 60)]
    assert [at.epoch for at in old._streams["a"].at] == [10]


def test_a_window_that_has_a_part_of_a_write_is_given_the_rest(window):
    """Two processes began before one of them wrote, so neither is fenced."""
    old = ingest([target(window)])
    assert old.begin("a") == 0
    ingest([target(window)]).run(Log({"a": [(n, record(n)) for n in range(1, 26)]}))
    old._connector = log = Log({"a": [(n, record(n)) for n in range(1, 50)]}, ends=False)
    log.at["a"] = log.done["a"] = 0
    for records in log.poll(0):
        old._take(records)
    wait_until(lambda: old._step() or old._streams["a"].at[0].number == 49)
    assert ids_of(window) == Counter(range(1, 50))


def test_a_stream_that_is_lost_waits_for_no_answer(client):
    to = target(client.create_window(SPEC))
    run, asked = ingest([to]), Event()

    def away(*_):
        asked.set()
        raise Unavailable("away")

    run.begin("a")
    to.write = away
    run._take(Records("a", [1], [record(1)]))
    run._step()
    write = run._streams["a"].under_way
    assert asked.wait(60)
    run.end("a", drain=False)
    assert type(write.exception(60)) is _AbandonedError
    assert "waiting" not in run.meters.line()


def test_a_shard_that_lacks_a_write_is_given_it_again(window):
    """The other shards have it: a write that ends where theirs did is applied on this one alone."""
    run, log = ingest([target(window)]), Log({"a": [(n, record(n)) for n in range(1, 200)]}, some=50)
    begin = run.begin

    def ahead(stream):
        begin(stream)
        run._streams[stream].at[0].number = 120  # what another shard said
        return 120

    run.begin = ahead
    run.run(log)
    assert log.sought == [("a", 0)]
    assert ids_of(window) == Counter(range(1, 200))


def test_records_that_do_not_fit_are_put_aside_and_the_others_go_on(client):
    windows = [client.create_window(SPEC), client.create_window(SPEC | {"name": "strict", "keys": ["carrier", "dest"]})]
    records = [(n, record(n, dest="SFO")) for n in range(1, 20)]
    records[3] = (4, b"{")
    records[4] = (5, record(5, carrier=None, dest="SFO"))
    records[5] = (6, record(6, dest=None))
    records[6] = (7, record(7, id="x", dest="SFO"))
    records[7] = (8, record(8, carrier="x" * 600, dest="SFO"))
    records[8] = (9, record(9, at="now", dest="SFO"))
    records[9] = (10, record(10, carrier=None, dest=None))
    letters = Letters()
    run = ingest([target(window) for window in windows], letters)
    run.run(Log({"a": records}))
    found = {(each.origin["number"], each.window, each.field) for each in letters}
    both = {
        (n, name, field)
        for n, field in ((5, "carrier"), (7, "id"), (8, "carrier"), (9, "at"), (10, "carrier"))
        for name in ("log", "strict")
    }
    both = {(n, w, "dest" if (n, w) == (8, "strict") else f) for n, w, f in both}
    assert found == both | {(4, None, None), (6, "strict", "dest")}
    assert ids_of(windows[0]) == Counter({1, 2, 3, 6, *range(11, 20)})
    assert ids_of(windows[1]) == Counter({1, 2, 3, *range(11, 20)})
    assert run.meters.rejected == len(letters)
    with pytest.raises(RejectedError, match="stream b, number 2: is no JSON"):
        ingest([target(windows[0])]).run(Log({"b": [(1, record(1)), (2, b"{")]}))


def test_what_only_the_window_can_refuse_is_found_by_halving(client):
    window = client.create_window(UNKEYED | {"order": {"late": "reject"}, "slide": {"max_age": "100ms"}})
    letters, bad = Letters(), {300, 301, 777}
    records = [(n, record(n) if n not in bad else record(n, at=1)) for n in range(200, 1000)]
    run = ingest([target(window)], letters, records_per_write=100)
    run.run(Log({"a": records}, some=1000))
    assert {each.origin["number"] for each in letters} == bad
    assert run.meters.inserted == 800 - len(bad)
    assert window.last_write("p/a").number == 999


def test_a_batch_of_nothing_but_bad_records_is_read_once(client):
    window, letters = client.create_window(SPEC), Letters()
    for again in range(2):
        ingest([target(window)], letters).run(Log({"a": [(n, b"{") for n in range(1, 9)]}))
        assert len(letters) == 8, again
    assert window.last_write("p/a").number == 8


def test_a_window_that_was_made_anew_with_other_fields_ends_it(client, window):
    made = target(window)
    client.delete_window("log")
    client.create_window(SPEC | {"fields": {"other": "int64"}, "aggregates": {"n": {"function": "count"}}})
    with pytest.raises(InvalidArgument, match="other"):
        ingest([made], letters := Letters()).run(Log({"a": [(n, record(n)) for n in range(1, 9)]}))
    assert not letters


def test_a_stream_whose_numbers_an_export_lost_is_not_begun(window):
    run = ingest([target(window)])
    run._targets[0].window = type("W", (), {"name": "w", "last_write": lambda self, producer: LastWrite(0, 3)})()
    with pytest.raises(SourceError, match="Take another name"):
        run.begin("a")


def test_a_stream_that_gives_more_than_is_written_is_held(window):
    log = Log(log_of(streams=("a",)), some=len(NUMBERS))
    held = []
    hold = log.hold
    log.hold = lambda stream, on: (held.append(on), hold(stream, on))
    ingest([target(window)], records_per_write=50).run(log)
    assert held == [True, False]
    assert ids_of(window) == Counter(NUMBERS)


def test_a_write_has_so_many_bytes_at_most(client, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner._BYTES_MAX", 5 * len(record(10)))
    to = target(client.create_window(SPEC))
    write, sizes = to.write, []
    to.write = lambda rows, *of: (sizes.append(len(rows)), write(rows, *of))[1]
    ingest([to]).run(Log({"a": [(n, record(n)) for n in range(10, 90)]}))
    assert (sum(sizes), max(sizes)) == (80, 5)


def test_a_write_that_is_too_large_is_halved_and_not_made_again(client, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner.pauses_s", lambda: iter([0.0]))
    to, letters = target(client.create_window(SPEC)), Letters()
    write = to.write

    def small(rows, *of):
        if len(rows) > 3 or 7 in rows.numbers:
            raise ResourceExhausted("is too large", reason="TOO_LARGE")
        return write(rows, *of)

    to.write = small
    ingest([to], letters).run(Log({"a": [(n, record(n)) for n in range(1, 30)]}))
    assert ids_of(to.window) == Counter(set(range(1, 30)) - {7})
    assert [(each.origin["number"], each.reason) for each in letters] == [(7, "is too large")]


def test_the_service_says_when_to_come_again(client):
    run, waited, answers = ingest([]), [], iter([Unavailable("away", retry_after_s=7.0), Unavailable("away"), 1])

    class Never:
        def wait(self, pause_s):
            waited.append(pause_s)

    def call():
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    assert run._asked(_Stream("a", "p/a", [], Records("a", [], [])), call, Never()) == 1
    assert waited[0] == 7.0
    assert waited[1] < 7.0


def test_stop_writes_what_was_read(window):
    log = Log({"a": [(n, record(n)) for n in range(1, 500)]}, some=500, ends=False)
    run = ingest([target(window)], records_per_write=40)
    log.applied = lambda stream, number: run.stop()
    run.run(log)
    assert ids_of(window) == Counter(range(1, 500))


def test_stop_does_not_wait_for_a_service_that_is_away(client, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner._DRAIN_S", 0.05)
    made = target(client.create_window(SPEC))
    run = ingest([made])

    def away(*_):
        run.stop()
        raise Unavailable("away")

    made.write = away
    run.run(Log({"a": [(1, record(1))]}, ends=False))
    assert "read again at the next start" in run.said[-1]
    made.window.last_write = away
    run = ingest([made])
    run.run(Log({"a": [(1, record(1))]}, ends=False))


def test_the_line_and_the_metrics_say_what_happened(window):
    run = ingest([target(window)], Letters())
    run.run(Log({"a": [(1, record(1)), (2, b"{")]}))
    line = run.meters.line()
    assert "2 records" in line
    assert "1 inserted, 1 rejected" in line
    read = run.meters.registry.get_sample_value
    assert read("sash_ingest_records_total", {"pipeline": "p"}) == 2
    assert read("sash_ingest_rejected_total", {"pipeline": "p", "window": ""}) == 1
    assert read("sash_ingest_entries_total", {"pipeline": "p", "window": "log", "outcome": "inserted"}) == 1
    run.meters.write("log", WriteResult(inserted=2, late=1))
    assert read("sash_ingest_entries_total", {"pipeline": "p", "window": "log", "outcome": "late"}) == 1
    run.meters.lag({"a": 5, "b": 1})
    run.meters.lag({"a": 4})
    assert read("sash_ingest_lag_records", {"pipeline": "p", "stream": "b"}) is None
    assert "lag 4 in 1 streams" in run.meters.line()
    assert run.meters.trouble("a", "away")
    assert not run.meters.trouble("a", "away")
    assert read("sash_ingest_waiting", {"pipeline": "p"}) == 1
    assert "waiting for a: away" in run.meters.line()


def test_the_rate_of_the_line_is_that_since_the_last_one(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("sash_ingest.meters.time", SimpleNamespace(monotonic=clock))
    meters = Meters("p")
    for records, seconds, line in ((50, 10, "50 records (5/s), "), (10, 5, "60 records (2/s), ")):
        meters.read(records)
        clock.now_s += seconds
        assert meters.line().startswith(line)


def test_a_record_that_is_wrong_for_every_window_is_one_letter_also_where_they_stand_apart(client):
    windows = [client.create_window(SPEC | {"name": name}) for name in ("one", "two")]
    records = [(n, record(n) if n != 5 else b"{") for n in range(1, 9)]
    ingest([target(windows[0])]).run(Log({"a": records[:3]}))
    ingest([target(window) for window in windows], letters := Letters()).run(Log({"a": records}))
    assert [each.origin["number"] for each in letters] == [5]


def test_a_file_of_letters_has_what_is_no_text_in_base64(tmp_path):
    letters = FileLetters(tmp_path / "bad.ndjson")
    letters.put([Letter({"n": n}, None, None, "is wrong", value) for n, value in enumerate((b"{", b"\xff", None))])
    found = [json.loads(line) for line in (tmp_path / "bad.ndjson").read_text().splitlines()]
    assert [(each.get("record", ""), each.get("record_base64")) for each in found] == [
        ("{", None), ("", "/w=="), (None, None)], "they are stored before it is closed"  # fmt: skip
    letters.close()


def test_a_part_of_records_has_what_stands_beside_them():
    records = Records("s", [1, 2, 3], [b"a", b"b", b"c"], {"key": ["x", "y", "z"]})
    assert records.part(1) == Records("s", [2, 3], [b"b", b"c"], {"key": ["y", "z"]})
    assert records.part(0, 2) == Records("s", [1, 2], [b"a", b"b"], {"key": ["x", "y"]})
