"""A producer in the hands of a test: it waits on the test's clock, and sends over the test's wire.

    producer's thread ── message ──▶ wire.sent()       what it sends next
                      ◀── reply ──── wire.reply(…)     an answer, or an error
                      ── waits ────▶ waits.timed_s     how long it means to wait
                      ◀── time ───── waits.advance(…)  moves the clock, and ends the waits that are over

Nothing here depends on how fast the machine is: `rests` says that a thread waits for something that only the test does.
"""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager, suppress

from sash_client import Producer, SashClientError, Unavailable, Window
from sash_client.data.bulks import from_bulk
from sash_client.windows import producer
from sash_proto.v1 import windows_pb2 as pb
from tests.support.clocks import Clock

WAIT_S = 120
FOREVER_S = 3600.0
SPEC = pb.WindowSpec(name="w", time_unit="us", fields={"value": "float64"})


class Waits(threading.Condition):
    """A condition whose timed waits end when a test moves the clock."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock
        self._resting = set()
        self.timed_s = []
        """How long each timed wait was to last, one after the other."""

    def wait(self, timeout=None):
        if timeout is None:
            self._rest()
            return True
        ends_s = self._clock() + timeout
        self.timed_s.append(timeout)
        if timeout > 0:
            self._rest()
        return self._clock() < ends_s

    def wait_for(self, predicate, timeout=None):
        ends_s = None if timeout is None else self._clock() + timeout
        if timeout is not None:
            self.timed_s.append(timeout)
        while not (found := predicate()) and (ends_s is None or self._clock() < ends_s):
            self._rest()
        return found

    def notify_all(self):
        self._resting.clear()
        super().notify_all()

    def advance(self, seconds):
        """Move the clock; whoever waits looks again."""
        with self:
            self._clock.now_s += seconds
            self.notify_all()

    def rests(self, thread):
        """Wait until a thread waits, and nobody has woken it."""
        for _ in range(WAIT_S * 1000):
            with self:
                if thread in self._resting:
                    return True
            threading.Event().wait(0.001)
        return False

    def _rest(self):
        self._resting.add(threading.current_thread())
        assert super().wait(WAIT_S), "nobody has woken this thread"


class Wire:
    """Stands for a client whose calls the test answers."""

    def __init__(self):
        self.timeout_s = 5.0
        self.bulk_entries_max, self.bulk_bytes_max = 262_144, 16 * 2**20
        self._is_closed = False
        self._requests, self._replies = queue.SimpleQueue(), queue.SimpleQueue()

    def _check_process(self):
        pass

    def _perform(self, plan):
        try:
            next(plan)
        except StopIteration as end:
            return end.value
        raise AssertionError("the window is known: there is nothing to ask")

    def _call(self, method, message):
        assert method == "BulkInsert"
        sent = pb.BulkInsertRequest()
        sent.CopyFrom(message)
        self._requests.put(sent)
        reply = self._replies.get(timeout=WAIT_S)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def sent(self):
        """Wait for the next message; return its number and its times."""
        message = self._requests.get(timeout=WAIT_S)
        assert message.producer == "p"
        return message.sequence, from_bulk(message).times.tolist()

    def is_silent(self):
        """Whether nothing was sent that the test has not seen."""
        return self._requests.empty()

    def reply(self, reply=None, *, inserted=0, already_applied=False):
        """Answer the message that was sent last: with an error, or as given."""
        self._replies.put(reply or pb.InsertResponse(inserted=inserted, already_applied=already_applied))


class Caller:
    """Runs a call of the producer in a thread of its own."""

    def __init__(self, waits, call):
        self._waits, self._call = waits, call
        self._result = self._error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._result = self._call()
        except Exception as error:
            self._error = error

    def waits(self):
        """Wait until the call waits."""
        return self._waits.rests(self._thread)

    def result(self):
        """Wait until the call has ended; return or raise what it did."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


class _Driven:
    def __init__(self, monkeypatch, spec, options):
        self.clock, self.wire = Clock(), Wire()
        self.waits = Waits(self.clock)
        monkeypatch.setattr(producer, "Condition", lambda: self.waits)
        monkeypatch.setattr(producer, "monotonic", self.clock)
        self.producer = Producer(Window(self.wire, "w", spec), "p", **options)

    def call(self, call):
        """Begin a call in a thread."""
        return Caller(self.waits, call)

    def rests(self):
        """Wait until the producer's thread has nothing to do; return whether it has sent nothing unseen."""
        assert self.waits.rests(self.producer._thread)
        return self.wire.is_silent()

    def ended(self):
        """Wait until the producer's thread has ended."""
        self.producer._thread.join(WAIT_S)
        return not self.producer._thread.is_alive()


@contextmanager
def driven(monkeypatch, spec=SPEC, **options):
    """Make a producer in the hands of the test; end it."""
    made = _Driven(monkeypatch, spec, options)
    try:
        yield made
    finally:
        made.wire._is_closed = True
        made.wire.reply(Unavailable("the test is over"))
        closing = made.call(lambda: made.producer.close(timeout_s=0))
        with suppress(SashClientError):
            closing.result()
        assert made.ended()
