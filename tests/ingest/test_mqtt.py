"""The connector of `docs/howto/own-connector.md` where messages come again: each is written once, and acknowledged."""

import json
from collections import Counter
from threading import Event, Thread

import pytest

from sash_client import FailedPrecondition, Unavailable
from tests.ingest.log import ids_of, ingest, record, target
from tests.support.mqtt import OneSession
from tests.support.pages import ROOT, blocks_of
from tests.support.waiting import wait_until

TOPIC = "sensors/attic"
PRODUCER = f"p/{TOPIC}"


@pytest.fixture
def broker():
    broker = OneSession()
    yield broker
    broker.close()


def connector(broker):
    """What the page shows."""
    named = {}
    exec(blocks_of((ROOT / "docs/howto/own-connector.md").read_text())[0].code, named)
    made = named["Mqtt"](broker.address, "sensors/#", session="s")
    made.client.reconnect_delay_set(0.01, 0.01)
    return made


def publish(broker, *numbers):
    for n in numbers:
        broker.publish(TOPIC, json.dumps(json.loads(record(n)) | {"n": n}).encode())


class Running:
    """A pipeline in a thread of its own, until the block ends."""

    def __init__(self, broker, to):
        self.connector, self.one, self.failures = connector(broker), ingest([to]), []
        self.thread = Thread(target=self._run)

    def _run(self):
        try:
            self.one.run(self.connector)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.one.stop()
        self.thread.join()
        assert not self.failures


def settled(broker, window, numbers):
    """Each number is in the window once, and nothing waits for an acknowledgement."""
    wait_until(lambda: not broker.waiting)
    assert ids_of(window) == Counter(numbers)
    assert window.last_write(PRODUCER).number == max(numbers)


@pytest.mark.parametrize("written", [False, True])
def test_a_process_that_dies_before_it_acknowledges(broker, window, written):
    to = target(window)
    write = to.write

    def dies(*args):
        if written:
            write(*args)
        raise RuntimeError("died")

    to.write = dies
    publish(broker, *range(1, 11))
    with pytest.raises(RuntimeError, match="died"):
        ingest([to]).run(connector(broker))
    assert len(broker.waiting) == 10
    assert bool(ids_of(window)) == written
    with Running(broker, target(window)):
        publish(broker, 11)
        settled(broker, window, range(1, 12))
    assert min(broker.given[each] for each in range(1, 11)) >= 2


def test_a_connection_that_is_cut_while_messages_are_written(broker, window):
    to, begun, goes_on = target(window), Event(), Event()
    write = to.write

    def slow(*args):
        begun.set()
        assert goes_on.wait(60)
        return write(*args)

    to.write = slow
    with Running(broker, to) as running:
        publish(broker, *range(1, 6))
        assert begun.wait(60)
        for _ in range(2):
            had = dict(broker.given)
            broker.cut()
            wait_until(lambda had=had: all(broker.given[each] > had[each] for each in had))
        publish(broker, 6)
        wait_until(lambda: 6 in running.connector.kept[TOPIC])
        assert len(broker.waiting) == 6, "nothing is acknowledged that is not written"
        goes_on.set()
        settled(broker, window, range(1, 7))
    assert running.one.meters.inserted == 6


def test_acknowledgements_that_are_lost_with_their_connection(broker, window):
    with Running(broker, target(window)) as running:
        broker.deaf = True
        publish(broker, *range(1, 6))
        wait_until(lambda: running.connector.done.get(TOPIC) == 5)
        assert len(broker.waiting) == 5
        broker.deaf = False
        broker.cut()
        settled(broker, window, range(1, 6))
    assert running.one.meters.inserted == 5


def test_a_device_that_sends_a_reading_again_before_it_is_written(broker, window):
    """Each message has its own id, and is acknowledged."""
    to, begun, goes_on = target(window), Event(), Event()
    write = to.write

    def slow(*args):
        begun.set()
        assert goes_on.wait(60)
        return write(*args)

    to.write = slow
    with Running(broker, to) as running:
        publish(broker, 1, 2, 1, 2, 3)
        assert begun.wait(60)
        wait_until(lambda: 3 in running.connector.kept[TOPIC])
        assert len(broker.waiting) == 5
        goes_on.set()
        settled(broker, window, range(1, 4))


class New:
    """Streams that no window knows. It is the connector's `Streams`."""

    def begin(self, stream):
        return 0


@pytest.fixture
def opened(broker):
    """A connector that was given 1 to 5, and has 6 in hand."""
    made = connector(broker)
    made.open(New())
    publish(broker, *range(1, 6))
    found = []
    wait_until(lambda: found.extend(n for each in made.poll(0.01) for n in each.numbers) or len(found) == 5)
    publish(broker, 6)
    wait_until(lambda: not made.came.empty())
    yield made
    made.close()


@pytest.mark.parametrize("number", [0, 2, 4, 5])
def test_what_is_asked_for_again_comes_before_what_is_new(broker, opened, number):
    """Else its numbers would pass for given, and be acknowledged with the later ones."""
    opened.seek(TOPIC, number)
    wait_until(lambda: set(broker.waiting) == set(range(1, 7)) - set(range(1, number + 1)))
    found = [(each.stream, n) for each in opened.poll(0) for n in each.numbers]
    assert found == [(TOPIC, n) for n in range(number + 1, 7)]
    assert not opened.poll(0)
    opened.applied(TOPIC, 6)
    wait_until(lambda: not broker.waiting)


def test_a_process_that_was_fenced_gives_the_stream_back(broker, window, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner._FENCED_S", 0.0)
    to = target(window)
    write, calls = to.write, []

    def fenced(*args):
        calls.append(args)
        if len(calls) == 1:
            publish(broker, 4, 5, 6)
            raise FailedPrecondition("another one", reason="PRODUCER_FENCED")
        if len(calls) == 2:
            raise Unavailable("away")
        return write(*args)

    to.write = fenced
    with Running(broker, to):
        publish(broker, 1, 2, 3)
        settled(broker, window, range(1, 7))
