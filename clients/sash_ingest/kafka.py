"""Topics of Kafka as streams: one for each partition, with the offsets plus 1 as numbers.

    assigned ──▶ begin: the window's number = the next offset ──▶ consume ──▶ Records      (librdkafka, read committed)
    revoked  ──▶ end: the write under way is finished; offsets are committed for monitors only

What Kafka remembers of the group is not read. So a group that was lost or moved back changes nothing. The group only
spreads partitions over processes: a process whose partitions are elsewhere by now is fenced by the windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from sash_ingest.config import KafkaSource
from sash_ingest.connector import Records, SourceError, Streams
from sash_ingest.dead_letters import Letter, fields_of

BESIDE: Mapping[str, Callable[[Message], Any]] = {
    "kafka_topic": lambda message: message.topic(),
    "kafka_partition": lambda message: message.partition(),
    "kafka_offset": lambda message: message.offset(),
    "kafka_time": lambda message: message.timestamp()[1],
    "kafka_key": lambda message: None if (key := message.key()) is None else bytes(key).decode(errors="replace"),
}
"""The columns that records have beside their values, as in Spark's pipeline; the time is in milliseconds."""

_MESSAGES = 10_000
_COMMIT_S = 5.0
_PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
}
"""Errors that librdkafka recovers from by itself."""


class Kafka:
    """Reads topics. It is a `Connector`.

    Args:
        source: brokers, topics, options.
        group: the consumer group.
        needs: which columns of `BESIDE` the windows read.
        say: takes lines for people.
    """

    def __init__(
        self, source: KafkaSource, group: str, needs: frozenset[str] = frozenset(), say: Callable[[str], None] = print
    ) -> None:
        self._source, self._say = source, say
        self._beside = {name: BESIDE[name] for name in needs}
        options: dict[str, Any] = {
            "partition.assignment.strategy": "range",
            **source.options,
            "bootstrap.servers": source.servers,
            "group.id": source.group or group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # an offset that is not there is an error: records would be left out
            "error_cb": self._told,
        }
        self._cooperative = "cooperative" in str(options["partition.assignment.strategy"])
        self._consumer = Consumer(options)
        self._streams: Streams | None = None
        self._of: dict[str, tuple[str, int]] = {}
        self._fresh: dict[tuple[str, int], int] = {}
        """Partitions that came while the consumer was asked for records, and where they begin."""
        self._applied: dict[str, int] = {}
        self._commit_s = time.monotonic()
        self._trouble = ""

    def open(self, streams: Streams) -> None:
        self._streams = streams
        topics = [topic.strip() for topic in self._source.topic.split(",")]
        revoked, lost = partial(self._gone, drain=True), partial(self._gone, drain=False)
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=revoked, on_lost=lost)

    def poll(self, timeout_s: float) -> Sequence[Records]:
        self._fresh = {}
        messages = self._consumer.consume(_MESSAGES, timeout_s)
        found: dict[tuple[str, int], Records] = {}
        last: Records | None = None
        topic = partition = None
        several = "," in self._source.topic or self._source.topic.startswith("^")
        for message in messages:
            if (error := message.error()) is not None:
                self._failed(error, message)
                continue
            if message.partition() != partition or (several and message.topic() != topic):
                topic, partition = message.topic(), message.partition()
                assert topic is not None
                assert partition is not None
                last = found.get((topic, partition))
                if last is None:
                    last = Records(f"{topic}/{partition}", [], [], {name: [] for name in self._beside})
                    found[topic, partition] = last
                add_number, add_value, beside = last.numbers.append, last.values.append, last.beside
            add_number(message.offset() + 1)  # type: ignore[operator]
            add_value(message.value())
            if beside:
                for name, column in beside.items():
                    column.append(self._beside[name](message))
        for place in found.keys() & self._fresh.keys():  # they may be from before the partition came
            del found[place]
            self.seek(f"{place[0]}/{place[1]}", self._fresh[place])
        if messages and self._trouble:
            self._trouble = ""
            self._say("Kafka answers again")
        if time.monotonic() >= self._commit_s + _COMMIT_S:
            self._commit()
        return list(found.values())

    def applied(self, stream: str, number: int) -> None:
        self._applied[stream] = number

    def seek(self, stream: str, number: int) -> None:
        topic, partition = self._of[stream]
        place = TopicPartition(topic, partition, self._offset(number))
        self._retried(lambda: self._consumer.seek(place))

    def hold(self, stream: str, held: bool) -> None:
        place = TopicPartition(*self._of[stream])
        (self._consumer.pause if held else self._consumer.resume)([place])

    def lag(self) -> Mapping[str, int]:
        found = {}
        for stream, number in self._applied.items():
            if stream in self._of:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(*self._of[stream]), cached=True)
                if end >= 0:
                    found[stream] = max(end - number, 0)
        return found

    def origin(self, stream: str, number: int) -> Mapping[str, Any]:
        topic, _, partition = stream.rpartition("/")
        return {"topic": topic, "partition": int(partition), "offset": number - 1}

    def close(self) -> None:
        """Commit, leave the group, and close.

        Where a consumer is closed while a rebalance waits for its callback, librdkafka may wait for ever, with Python's
        lock in hand, or abort (its issues 4884 and 4792). So this leaves the group first, and serves what waits.
        """
        self._commit(wait=True)
        self._streams = None  # the callbacks do nothing from here on
        self._consumer.unsubscribe()
        while self._consumer.consume(_MESSAGES, 0.0):
            pass
        self._consumer.close()

    # ---------------------------------------------------------------- partitions come and go

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._streams is None:
            return
        for each in partitions:
            stream = f"{each.topic}/{each.partition}"
            number = self._streams.begin(stream)
            self._of[stream] = (each.topic, each.partition)
            self._applied[stream] = self._fresh[each.topic, each.partition] = number
            each.offset = self._offset(number)
        consumer.resume(partitions)  # librdkafka keeps a pause over a rebalance
        (consumer.incremental_assign if self._cooperative else consumer.assign)(partitions)

    def _offset(self, number: int) -> int:
        """The offset behind a number."""
        if number:
            return number
        return OFFSET_BEGINNING if self._source.starting == "earliest" else OFFSET_END

    def _gone(self, consumer: Consumer, partitions: list[TopicPartition], drain: bool) -> None:
        if self._streams is None:
            return
        for each in partitions:
            self._streams.end(f"{each.topic}/{each.partition}", drain)
        if drain:
            self._commit()
        for each in partitions:
            stream = f"{each.topic}/{each.partition}"
            self._of.pop(stream, None)
            self._applied.pop(stream, None)
            self._fresh.pop((each.topic, each.partition), None)

    def _commit(self, wait: bool = False) -> None:
        """Tell Kafka how far the windows are, for monitors. Nothing depends on it."""
        self._commit_s = time.monotonic()
        places = [TopicPartition(*self._of[s], n) for s, n in self._applied.items() if n and s in self._of]
        if not places:
            return
        try:
            if wait:
                self._consumer.commit(offsets=places, asynchronous=False)
            else:
                self._consumer.commit(offsets=places)
        except KafkaException as error:
            self._say(f"offsets were not committed, which only monitors miss: {error.args[0]}")

    # ---------------------------------------------------------------- what goes wrong

    def _failed(self, error: KafkaError, message: Message) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise SourceError(
                f"{message.topic()}/{message.partition()}: the offset at which the windows stand is not there "
                f"({error.str()}). Its records were deleted, or the topic was made anew. To go on with what is there, "
                "take another name for the pipeline"
            )
        if error.code() not in _PASSING and not error.retriable():
            raise SourceError(f"Kafka: {error.str()}")
        self._told(error)

    def _told(self, error: KafkaError) -> None:
        """Say once what librdkafka waits for."""
        if error.code() != KafkaError._PARTITION_EOF and not self._trouble:
            self._trouble = error.str()
            self._say(f"waiting for Kafka: {self._trouble}")

    def _retried(self, call: Callable[[], None]) -> None:
        """Call what fails while a partition is still being opened."""
        end_s = time.monotonic() + 10.0
        while True:
            try:
                return call()
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE or time.monotonic() >= end_s:
                    raise SourceError(f"Kafka: {error.args[0].str()}") from None
            time.sleep(0.01)


class TopicLetters:
    """A topic for records that do not fit. It is `DeadLetters`: the value as it was, the reason in headers.

    Args:
        source: brokers and options.
        topic: where they go.
    """

    def __init__(self, source: KafkaSource, topic: str) -> None:
        login = {
            name: value for name, value in source.options.items() if name.startswith(("sasl.", "ssl.", "security."))
        }
        servers = {"bootstrap.servers": source.servers, "enable.idempotence": True, "message.timeout.ms": 0}
        self._producer, self._topic = Producer({**login, **servers}), topic

    def put(self, letters: Sequence[Letter]) -> None:
        failed: list[KafkaError] = []
        for letter in letters:
            headers: dict[str, str | bytes | None] = {
                f"sash_{name}": str(value) for name, value in fields_of(letter).items()
            }
            self._producer.produce(
                self._topic,
                letter.value,
                headers=headers,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
        self._producer.flush()
        if failed:
            raise SourceError(f"records that do not fit cannot be put into topic {self._topic}: {failed[0].str()}")

    def close(self) -> None:
        self._producer.flush(10.0)
