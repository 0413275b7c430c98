"""A broker with one partition whose records are in transactions: committed, aborted, and open ones.

librdkafka's mock cluster has no aborted transactions. This is as much of a broker as one consumer of a group asks, in
the oldest versions of the protocol that know transactions.

    with broker("flights") as log:
        log.append(7, [b"…", b"…"])      # of producer 7
        log.end(7, commit=False)         # its marker; it takes an offset

Source: kafka.apache.org/protocol.
"""

import struct
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Condition, Thread

VERSIONS = {0: 3, 1: 4, 2: 1, 3: 1, 8: 2, 9: 1, 10: 0, 11: 0, 12: 0, 13: 0, 14: 0, 18: 0}
"""By request: the only version."""

TRANSACTIONAL, CONTROL, UNSUPPORTED = 16, 32, 35


class Log:
    """The log, and what a reader of committed records may see."""

    def __init__(self, topic):
        self.topic, self.port, self.batches, self.aborted, self.open = topic, 0, [], [], {}
        self.end_offset, self.changed, self.commits = 0, Condition(), {}

    def append(self, producer, values):
        """Append records of a transaction, which begins with the first."""
        self.open.setdefault(producer, self.end_offset)
        self._add(producer, TRANSACTIONAL, [(None, value) for value in values])

    def end(self, producer, commit):
        """End the transaction of a producer."""
        if not commit:
            self.aborted.append((producer, self.open[producer]))
        del self.open[producer]
        self._add(producer, TRANSACTIONAL | CONTROL, [(struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0))])

    def stable(self):
        """Where a reader of committed records ends."""
        return min(self.open.values(), default=self.end_offset)

    def _add(self, producer, attributes, records):
        body = b""
        for place, (key, value) in enumerate(records):
            record = b"\0" + _varint(0) + _varint(place) + _text(key) + _text(value) + _varint(0)
            body += _varint(len(record)) + record
        count = len(records)
        tail = struct.pack(">hiqqqhii", attributes, count - 1, 0, 0, producer, 0, -1, count) + body
        batch = struct.pack(">qiibI", self.end_offset, 9 + len(tail), 0, 2, 0) + tail
        with self.changed:
            self.batches.append((self.end_offset, self.end_offset + count, batch))
            self.end_offset += count
            self.changed.notify_all()

    # ---------------------------------------------------------------- answers, by the number of the request

    def _metadata(self, _):
        me = struct.pack(">ii", 1, 0) + _string("127.0.0.1") + struct.pack(">ihi", self.port, -1, 0)
        partition = struct.pack(">ihiiiiii", 1, 0, 0, 0, 1, 0, 1, 0)
        return me + struct.pack(">ih", 1, 0) + _string(self.topic) + b"\0" + partition

    def _fetch(self, body):
        _, wait_ms, _, _, committed = struct.unpack_from(">iiiib", body)
        (offset,) = struct.unpack_from(">q", body, 17 + 4 + 2 + len(self.topic) + 8)
        with self.changed:
            end = self.stable() if committed else self.end_offset
            if offset >= end:
                self.changed.wait(wait_ms / 1000)
                end = self.stable() if committed else self.end_offset
            found = b"".join(batch for first, last, batch in self.batches if last > offset and first < end)
            aborted = [each for each in self.aborted if committed]
            partition = struct.pack(">ihqqi", 0, 0, self.end_offset, self.stable(), len(aborted))
        partition += b"".join(struct.pack(">qq", *each) for each in aborted)
        return struct.pack(">i", 0) + self._of_topic(partition + struct.pack(">i", len(found)) + found)

    def _offsets(self, body):
        (at,) = struct.unpack_from(">q", body, 4 + 4 + 2 + len(self.topic) + 8)
        return self._of_topic(struct.pack(">ihqq", 0, 0, -1, 0 if at == -2 else self.end_offset))

    def _commit(self, _):
        return self._of_topic(struct.pack(">ih", 0, 0))

    def _coordinator(self, _):
        return struct.pack(">hi", 0, 0) + _string("127.0.0.1") + struct.pack(">i", self.port)

    def _join(self, body):
        names, at = [], 0
        for skip in (4, 0, 4):  # the group and a timeout, the member, the kind and how many protocols
            size = struct.unpack_from(">h", body, at)[0]
            at += 2 + size + skip
        size = struct.unpack_from(">h", body, at)[0]
        names, at = body[at : at + 2 + size], at + 2 + size
        metadata = body[at : at + 4 + struct.unpack_from(">i", body, at)[0]]
        me = _string("me")
        return struct.pack(">hi", 0, 1) + names + me + me + struct.pack(">i", 1) + me + metadata

    def _sync(self, body):
        at = 2 + struct.unpack_from(">h", body)[0] + 4
        at += 2 + struct.unpack_from(">h", body, at)[0] + 4
        return struct.pack(">h", 0) + body[at + 2 + struct.unpack_from(">h", body, at)[0] :]

    def _fine(self, _):
        return struct.pack(">h", 0)

    def _of_topic(self, partition):
        return struct.pack(">i", 1) + _string(self.topic) + struct.pack(">i", 1) + partition

    def answer(self, key, version, body):
        if key == 18 or version != VERSIONS[key]:
            known = b"".join(struct.pack(">hhh", each, only, only) for each, only in VERSIONS.items())
            return struct.pack(">hi", UNSUPPORTED if version else 0, len(VERSIONS)) + known
        by_key = {1: self._fetch, 2: self._offsets, 3: self._metadata, 8: self._commit, 10: self._coordinator}
        return (by_key | {11: self._join, 12: self._fine, 13: self._fine, 14: self._sync})[key](body)


@contextmanager
def broker(topic):
    """Serve a log on a free port."""

    class Handler(StreamRequestHandler):
        def handle(self):
            while head := self.rfile.read(4):
                data = self.rfile.read(*struct.unpack(">i", head))
                key, version, number, name = struct.unpack_from(">hhih", data)
                body = struct.pack(">i", number) + log.answer(key, version, data[10 + max(name, 0) :])
                self.wfile.write(struct.pack(">i", len(body)) + body)

    log = Log(topic)
    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        log.port = server.server_address[1]
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield log
        finally:
            server.shutdown()
            thread.join()


def _string(text):
    return struct.pack(">h", len(text)) + text.encode()


def _text(value):
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number):
    number, found = number << 1 ^ number >> 63, b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])
