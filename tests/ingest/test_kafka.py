"""Topics of Kafka, on librdkafka's mock cluster: crashes, rebalances, zombies and brokers that fail, against the log.

Where SASH_KAFKA names a real broker, the first test also runs there.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from io import BytesIO
from threading import Thread
from uuid import uuid4

import fastavro
import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sash_ingest.config import IngestConfig
from sash_ingest.connector import SourceError
from sash_ingest.kafka import Kafka
from sash_ingest.run import run
from sash_ingest.runner import RejectedError
from sash_wire.errors import WireError
from sash_wire.pipeline import parsed
from tests.ingest.log import SPEC, ids_of, ingest, record
from tests.ingest.test_runner import faulty
from tests.support import kafka as mock
from tests.support import transactions
from tests.support.forked import Forked
from tests.support.kafka import mock_cluster, sent
from tests.support.profile import THOROUGH
from tests.support.registry import framed, schema_registry
from tests.support.waiting import wait_until

DEATHS = 500 if THOROUGH else 10
KILLS = 40 if THOROUGH else 1
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster():
    with mock_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    name = f"t{uuid4().hex[:8]}"
    cluster.create(name, PARTITIONS)
    return name


def records(first, last):
    """Some (partition, bytes); ids are numbers."""
    return [(n % PARTITIONS, record(n)) for n in range(first, last)]


def document(servers, topic, **more):
    own = more.pop("source", {})
    # With less than two seconds, the mock forgets a member that waits for others to join, and does not answer it.
    # On a busy machine it does so all the same. Then a member asks again after `max.poll.interval.ms` and 3 s.
    times = {"session.timeout.ms": 2500, "heartbeat.interval.ms": 200, "max.poll.interval.ms": 15_000}
    options = times | own.pop("options", {})
    # Each topic has a group of its own: a member of an earlier test that did not leave yet would take part in it.
    source = {"format": "kafka", "servers": servers, "topic": topic, "group": topic, "options": options} | own
    return {"name": "p", "source": source, "time": "at", "windows": [{"spec": SPEC}]} | more


@contextmanager
def running(client, found):
    """A pipeline in this process; yields what it has said."""
    said, stops, failures = [], [], []

    def body():
        try:
            run(client, parsed(IngestConfig, found), False, sys.stdin.buffer, None, said.append, stops.append)
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=body)
    thread.start()
    try:
        wait_until(lambda: stops or failures)
        yield said
    finally:
        for stop in stops:
            stop()
        thread.join()
    if failures:
        raise failures[0]


def here(client, found):
    """Run a pipeline that ends by itself."""
    run(client, parsed(IngestConfig, found), False, sys.stdin.buffer, None, print, lambda stop: None)


def has(window, count):
    wait_until(lambda: window.describe().entries >= count)


@pytest.mark.parametrize("real", [False, True])
def test_a_topic_goes_into_several_windows_and_offsets_are_for_monitors(client, cluster, real):
    servers = os.environ.get("SASH_KAFKA") if real else cluster.servers
    if servers is None:
        pytest.skip("SASH_KAFKA names no broker")
    topic = f"sash{uuid4().hex[:8]}"
    if real:
        admin = AdminClient({"bootstrap.servers": servers})  # the answer does not come once it is collected
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    else:
        cluster.create(topic, PARTITIONS)
    sent(servers, topic, records(0, 2000))
    windows = [{"spec": SPEC}, {"spec": SPEC | {"name": "two"}, "fields": {"id": "kafka_offset"}}]
    found = document(servers, topic, windows=windows, name=f"p{topic}")
    with running(client, found):
        has(client.window("two"), 2000)
        sent(servers, topic, records(2000, 2100))
        has(client.window("two"), 2100)
        has(client.window("log"), 2100)
    assert ids_of(client.window("log")) == Counter(range(2100))
    assert set(ids_of(client.window("two")).values()) == {PARTITIONS}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    places = consumer.committed([TopicPartition(topic, i) for i in range(PARTITIONS)], 10)
    assert [place.offset for place in places] == [525] * PARTITIONS
    # A group that was moved back, or is new, changes nothing.
    consumer.close()
    for group in (topic, "another"):
        with running(client, found | {"source": found["source"] | {"group": group}}) as said:
            sent(servers, topic, [(0, record(9999 if group == "another" else 9998))])
            wait_until(lambda group=group: 9999 - (group != "another") in ids_of(client.window("log")))
        assert said[-1].startswith("1 records"), said
    assert ids_of(client.window("log")) == Counter([*range(2100), 9998, 9999])


class Begun:
    """Streams that are new whenever they begin. It is the connector's `Streams`."""

    def __init__(self):
        self.begun, self.ended = [], []

    def begin(self, stream):
        self.begun.append(stream)
        return 0

    def end(self, stream, drain=True):
        self.ended.append(stream)


def opened(cluster, topic, **options):
    """A connector that is a member of a group; its streams."""
    kafka = Kafka(parsed(IngestConfig, document(cluster.servers, topic, source={"options": options})).source, "g")
    kafka.open(streams := Begun())
    return kafka, streams


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_partition_that_was_held_is_read_again_when_it_comes_back(cluster, topic, strategy):
    """librdkafka keeps a pause over a rebalance, and who begins a stream knows of none."""
    cluster.send(topic, records(0, 4 * PARTITIONS))
    options = {"partition.assignment.strategy": strategy}
    one, streams = opened(cluster, topic, **options)
    wait_until(lambda: one.poll(0.01) is None or len(streams.begun) == PARTITIONS)
    for stream in streams.begun:
        one.hold(stream, True)
    found = {}

    def read():
        for each in one.poll(0.01):
            found.setdefault(each.stream, []).extend(each.numbers)

    two, theirs = opened(cluster, topic, **options)  # comes and goes: some partitions leave, and come back
    wait_until(lambda: read() or two.poll(0.01) is None or theirs.begun)
    mine = len(streams.begun)
    two.close()
    wait_until(lambda: read() or len(streams.begun) > mine)
    back = set(streams.begun[PARTITIONS:])
    wait_until(lambda: read() or back <= found.keys())
    one.close()


def test_the_lag_is_what_no_window_has_yet(cluster, topic):
    one, streams = opened(cluster, topic)
    wait_until(lambda: one.poll(0.01) is None or len(one.lag()) == PARTITIONS)
    assert {*one.lag().values()} == {0}, "a topic of nothing"
    cluster.send(topic, records(0, 10 * PARTITIONS))
    found = []
    wait_until(lambda: found.extend(one.poll(0.01)) or sum(map(len, found)) == 10 * PARTITIONS)
    assert one.lag() == dict.fromkeys(streams.begun, 10)
    one.applied(streams.begun[0], 4)
    one.applied(streams.begun[1], 10)
    assert [one.lag()[stream] for stream in streams.begun] == [6, 0, 10, 10]
    one.close()


class Old:
    """A message of partition 0."""

    def __init__(self, topic, offset):
        self.error, self.topic, self.partition = lambda: None, lambda: topic, lambda: 0
        self.offset, self.value = lambda: offset, lambda: b"{}"


class Scripted:
    """A consumer in the place of librdkafka's."""

    def __init__(self, options):
        pass

    def subscribe(self, topics, on_assign, on_revoke, on_lost):
        self.assigned = on_assign

    def resume(self, places):
        pass


def test_records_of_several_topics_are_told_apart(monkeypatch):
    class Mixed(Scripted):
        def consume(self, most, timeout_s):
            return [Old(topic, offset) for topic, offset in (("a", 0), ("b", 5), ("b", 6), ("a", 1))]

    monkeypatch.setattr("sash_ingest.kafka.Consumer", Mixed)
    kafka = Kafka(parsed(IngestConfig, document("h:1", "a, b")).source, "g")
    kafka.open(Begun())
    assert {each.stream: each.numbers for each in kafka.poll(0.0)} == {"a/0": [1, 2], "b/0": [6, 7]}


def test_records_from_before_a_partition_came_back_are_read_again(monkeypatch):
    """It left and came back while the consumer was asked: what it gives may be from before, behind another number."""
    done = []

    class Moves(Scripted):
        def consume(self, most, timeout_s):
            if not done:
                self.assigned(self, [TopicPartition("t", 0)])
            return [Old("t", 7)]

        def seek(self, place):
            done.append(("seek", place.offset))

        def assign(self, places):
            done.append(("assign", places[0].offset))

    monkeypatch.setattr("sash_ingest.kafka.Consumer", Moves)
    kafka = Kafka(parsed(IngestConfig, document("h:1", "t")).source, "g")
    streams = Begun()
    streams.begin = lambda stream: 5
    kafka.open(streams)
    assert kafka.poll(0.0) == []
    assert done == [("assign", 5), ("seek", 5)]
    (records,) = kafka.poll(0.0)
    assert (records.stream, records.numbers) == ("t/0", [8])


def test_a_seek_that_comes_too_early_is_made_again_and_no_other(monkeypatch):
    codes = [KafkaError._STATE, KafkaError._STATE, None]

    class Opening(Scripted):
        def seek(self, place):
            if (code := codes.pop(0)) is not None:
                raise KafkaException(KafkaError(code))

    monkeypatch.setattr("sash_ingest.kafka.Consumer", Opening)
    kafka = Kafka(parsed(IngestConfig, document("h:1", "t")).source, "g")
    kafka._of["t/0"] = ("t", 0)
    kafka.seek("t/0", 5)
    assert not codes
    codes.append(KafkaError._INVALID_ARG)
    with pytest.raises(SourceError, match="Kafka: "):
        kafka.seek("t/0", 5)


def test_a_consumer_leaves_its_group_before_it_is_closed(cluster, topic, monkeypatch):
    """librdkafka waits for ever, or aborts, where a close meets a rebalance that waits for its callback."""
    done = []

    class Watched(Consumer):
        def subscribe(self, topics, on_revoke, **more):
            super().subscribe(topics, on_revoke=lambda *of: (done.append("revoked"), on_revoke(*of)), **more)

        def commit(self, **more):
            done.append("commit")
            return super().commit(**more)

        def close(self):
            done.append("close")
            super().close()

    monkeypatch.setattr("sash_ingest.kafka.Consumer", Watched)
    one, streams = opened(cluster, topic)
    wait_until(lambda: one.poll(0.01) is None or len(streams.begun) == PARTITIONS)
    one.applied(streams.begun[0], 1)
    one.close()
    assert done == ["commit", "revoked", "close"]
    assert not streams.ended, "who runs it has ended by then"


def test_consumers_that_die_and_rebalance_lose_and_double_nothing(client, cluster, topic):
    """Each dies at a random moment around a write; others of the group take its partitions over, or it comes again."""
    window, seed = client.create_window(SPEC), 3
    total = 200 * DEATHS
    cluster.send(topic, records(0, total))
    deaths, lives = Counter(), Counter()

    def live(who):
        mine = random.Random(seed + who)
        while window.describe().entries < total:
            lives[who] += 1
            kafka = Kafka(parsed(IngestConfig, document(cluster.servers, topic)).source, "g", say=lambda _: None)
            one = ingest([faulty(window, dies=0.06, chance=mine)], records_per_write=mine.choice([5, 20, 100]))
            thread = Thread(
                target=lambda one=one: (wait_until(lambda: window.describe().entries >= total or one.over), one.stop())
            )
            one.over = False
            thread.start()
            try:
                one.run(kafka)
            except RuntimeError:
                deaths[who] += 1
            finally:
                one.over = True
                thread.join()

    threads = [Thread(target=live, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(deaths.values())} deaths, {sum(lives.values())} rebalances")
    assert sum(deaths.values()) > DEATHS / 5
    assert ids_of(window) == Counter(range(total))


def test_two_groups_that_write_the_same_stream_fence_each_other(client, cluster, topic, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner._FENCED_S", 0.1)
    cluster.send(topic, records(0, 4000))
    found = document(cluster.servers, topic, records_per_write=50)
    other = found | {"source": found["source"] | {"group": "other"}}
    with running(client, found), running(client, other):
        window = client.window("log")
        has(window, 4000)
        cluster.send(topic, records(4000, 8000))
        has(window, 8000)
    assert ids_of(window) == Counter(range(8000))


def test_partitions_move_between_consumers(client, cluster, topic):
    """As they are given out one by one; those that die have all of theirs given out at once."""
    cluster.send(topic, records(0, 1000))
    found = document(
        cluster.servers, topic, source={"options": {"partition.assignment.strategy": "cooperative-sticky"}}
    )
    with running(client, found):
        has(client.window("log"), 1000)
        with running(client, found):
            for first in range(1000, 3000, 500):
                cluster.send(topic, records(first, first + 500))
                has(client.window("log"), first + 500)
        cluster.send(topic, records(3000, 3500))
        has(client.window("log"), 3500)
    assert ids_of(client.window("log")) == Counter(range(3500))


def test_brokers_that_fail_are_waited_for(client, cluster, topic):
    cluster.send(topic, records(0, 400))
    with running(client, document(cluster.servers, topic)) as said:
        window = client.window("log")
        has(window, 400)
        cluster.fail(mock.FETCH, mock.NOT_LEADER, mock.REQUEST_TIMED_OUT, mock.NOT_LEADER)
        cluster.fail(mock.HEARTBEAT, mock.NOT_COORDINATOR, mock.UNKNOWN_MEMBER_ID)
        cluster.fail(mock.OFFSET_COMMIT, mock.ILLEGAL_GENERATION)
        cluster.send(topic, records(400, 800))
        has(window, 800)
        for broker in (1, 2, 3):
            cluster.down(broker)
        wait_until(lambda: any("waiting for Kafka" in line for line in said))
        for broker in (1, 2, 3):
            cluster.up(broker)
        cluster.send(topic, records(800, 1200))
        has(window, 1200)
    assert ids_of(window) == Counter(range(1200))


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_only_committed_transactions_are_read(client, level):
    """Two that interleave, one of which is aborted, and one that is open until it is committed."""
    with transactions.broker("t") as log:
        servers = f"127.0.0.1:{log.port}"
        log.append(1, [record(n) for n in (0, 1)])
        log.append(2, [record(n) for n in (100, 101, 102)])
        log.append(1, [record(2)])
        log.end(2, commit=False)
        log.end(1, commit=True)
        log.append(2, [record(3)])
        log.end(2, commit=True)
        log.append(3, [record(4)])
        log.append(1, [record(103)])
        log.end(1, commit=False)
        options = {} if level == "read_committed" else {"isolation.level": level}
        with running(client, document(servers, "t", name=level, source={"options": options})):
            window = client.window("log")
            if options:
                has(window, 9)  # as the broker gives aborted ones to who asks for them
                return
            has(window, 4)
            assert ids_of(window) == Counter(range(4))
            log.end(3, commit=True)
            log.append(3, [record(5)])
            log.end(3, commit=True)
            has(window, 6)
        assert ids_of(window) == Counter(range(6))
        assert window.last_write(f"{level}/t/0").number == 15  # with the offsets of markers, and of what was aborted
        with running(client, document(servers, "t", name=level)):
            log.append(4, [record(6)])
            log.end(4, commit=True)
            has(window, 7)
        assert ids_of(window) == Counter(range(7))


def letters_in(cluster, topic, count):
    """The headers of the records that were put aside, by record."""
    consumer, found = Consumer({"bootstrap.servers": cluster.servers, "group.id": "x"}), []
    consumer.assign([TopicPartition(topic, 0, 0)])
    wait_until(lambda: found.extend(consumer.consume(10, 0.05)) or len(found) == count)
    consumer.close()
    return {each.value(): {name: value.decode() for name, value in each.headers()} for each in found}


def test_records_that_do_not_fit_go_to_a_topic_with_their_reason(client, cluster, topic):
    bad = f"{topic}-bad"
    cluster.create(bad, 1)
    cluster.send(topic, [(0, record(1)), (0, b"{"), (1, record(2, carrier=None)), (1, record(3))])
    with running(client, document(cluster.servers, topic, bad_records={"topic": bad})):
        has(client.window("log"), 2)
        told = letters_in(cluster, bad, 2)
    assert told[b"{"] | {"sash_reason": ""} == {
        "sash_topic": topic, "sash_partition": "0", "sash_offset": "1", "sash_reason": ""}  # fmt: skip
    assert told[record(2, carrier=None)] == {
        "sash_topic": topic, "sash_partition": "1", "sash_offset": "0",
        "sash_window": "log", "sash_field": "carrier", "sash_reason": "is null"}  # fmt: skip
    assert ids_of(client.window("log")) == Counter([1, 3])


def test_records_of_avro_go_into_windows_and_those_that_do_not_fit_to_a_topic(client, cluster, topic):
    bad, names = f"{topic}-bad", {"at": "long", "carrier": "string", "id": "long"}
    cluster.create(bad, 1)
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": kind} for n, kind in names.items()]}
    with schema_registry() as registry:
        number = registry.add("AVRO", schema)

        def value(n):
            body = BytesIO()
            fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"at": n, "carrier": "AA", "id": n})
            return framed(number, body.getvalue())

        cluster.send(topic, [(0, value(1)), (0, framed(9, b"x")), (0, value(2)), (0, value(3)[:-1])])
        source = {"value": "avro", "registry": {"url": registry.url}}
        with running(client, document(cluster.servers, topic, source=source, bad_records={"topic": bad})):
            has(client.window("log"), 2)
            told = letters_in(cluster, bad, 2)
    assert told[framed(9, b"x")]["sash_reason"] == "has schema 9, which the registry does not have"
    assert told[value(3)[:-1]]["sash_offset"] == "3"
    assert ids_of(client.window("log")) == Counter([1, 2])


def test_a_topic_that_was_made_anew_is_not_read_from_its_middle(client, window, cluster, topic):
    window.bulk_insert([1], {"id": [1]}, keys={"carrier": ["A"]}, producer=f"p/{topic}/0", sequence=500, after=0)
    cluster.send(topic, records(0, 100))
    with pytest.raises(SourceError, match="made anew"):
        here(client, document(cluster.servers, topic))


def test_latest_begins_at_the_end(client, cluster, topic):
    cluster.send(topic, records(0, 100))
    later = iter(range(100, 10_000))
    with running(client, document(cluster.servers, topic, source={"starting": "latest"})):
        window = client.window("log")
        wait_until(lambda: cluster.send(topic, [(0, record(next(later)))]) or window.describe().entries)
    assert min(ids_of(window)) >= 100


def test_csv_and_columns_of_kafka(client, cluster, topic):
    cluster.send(topic, [(0, b"7,AA,1"), (0, b"8,AA,x")])
    spec = SPEC | {"fields": {"id": "int64", "part": "int64"}}
    found = document(
        cluster.servers, topic, source={"value": "csv", "schema": "at long, carrier string, id"},
        windows=[{"spec": spec, "time": "timestamp_millis(kafka_time)", "parts": {"carrier": "kafka_topic"},
                  "fields": {"part": "kafka_partition"}}])  # fmt: skip
    with pytest.raises(RejectedError, match=f"topic {topic}, partition 0, offset 1: id is 'x'"):
        here(client, found)
    assert client.window("log").describe().entries == 0


def test_kills_of_the_command(client, service, cluster, topic, tmp_path):
    """The command, killed at random moments and started again, and asked to end at last."""
    total = 3000 * KILLS
    cluster.send(topic, records(0, total // 2))
    path = tmp_path / "p.yaml"
    path.write_text(
        yaml.safe_dump(document(cluster.servers, topic, records_per_write=100, service=service.grpc_target))
    )
    words = ["ingest", "kafka", path]
    window, chance = client.create_window(SPEC), random.Random(4)
    for kill in range(KILLS):
        process = Forked(words, stderr=subprocess.DEVNULL, env=os.environ)
        goal = min(window.describe().entries + chance.randrange(1, 2000), total // 2)
        has(window, goal)
        process.kill()
        process.wait()
        if kill == KILLS // 2:
            cluster.send(topic, records(total // 2, total))
    process = Forked(words, stderr=subprocess.PIPE, env=os.environ)
    has(window, total)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate()
    assert process.returncode == 0, told
    assert "inserted" in told
    assert ids_of(window) == Counter(range(total))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"source": {"format": "kafka", "servers": "h:1"}}, "source.topic"),
        ({"source": {"format": "nats"}}, "source"),
        ({"windows": []}, "windows"),
        ({"time": "a + b"}, "windows[0].time"),
        ({"windows": [{"spec": SPEC, "fields": {"nope": "x"}}]}, "windows[0].fields.nope"),
        ({"source": {"format": "kafka", "servers": "h:1", "topic": "t", "value": "csv"}}, "source.schema"),
        ({"bad_records": {"path": "a", "topic": "b"}}, "bad_records"),
        ({"bad_records": {}}, "bad_records"),
        ({"surplus": 1}, "surplus"),
    ],
    ids=str,
)
def test_a_document_that_is_wrong_names_the_part(client, more, field):
    with pytest.raises(WireError) as caught:
        here(client, document("h:1", "t") | more)
    assert caught.value.field == field
