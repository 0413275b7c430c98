"""MQTT brokers in this process, for as long as a test needs one: amqtt's, and one whose connections fail on purpose."""

import asyncio
import socket
from collections import Counter
from contextlib import contextmanager, suppress
from threading import RLock, Thread

from amqtt.broker import Broker

_CONFIG = {
    "listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:0"}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


class _Broker(Broker):
    """One that waits for the end of a session's last connection: amqtt's take-over may end the new one with it."""

    async def _handle_client_session(self, reader, writer, client_session, *others):
        while client_session.transitions.is_connected():
            await asyncio.sleep(0.01)
        await super()._handle_client_session(reader, writer, client_session, *others)


@contextmanager
def mqtt_broker():
    """A broker for some time; yields its address."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def done(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def begun():
        broker = _Broker(_CONFIG)
        await broker.start()
        return broker

    broker = done(begun())
    try:
        host, port = broker._servers["default"].instance.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        done(broker.shutdown())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class OneSession:
    """A broker of one client's session, over MQTT 3.1.1: what is not acknowledged is given again at each connection.

    amqtt forgets what was under way when a connection ends, so it gives nothing again.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.waiting: dict[int, bytes] = {}
        """Messages that are not acknowledged, by their ids: topic and payload as they are sent."""
        self.given = Counter[int]()
        """How often each message was given."""
        self.deaf = False
        """Whether acknowledgements are lost."""
        self._last, self._lock, self._connection = 0, RLock(), None
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def publish(self, topic, payload):
        """Give a message to the session."""
        with self._lock:
            self._last += 1
            name = topic.encode()
            self.waiting[self._last] = len(name).to_bytes(2) + name + self._last.to_bytes(2) + payload
            self._give(self._last)

    def cut(self):
        """End the connection without a word."""
        with self._lock:
            if self._connection is not None:
                with suppress(OSError):  # the client has ended it
                    self._connection.shutdown(socket.SHUT_RDWR)
                self._connection = None

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join()

    def _give(self, message, again=0):
        if self._connection is not None:
            self.given[message] += 1
            self._send(0x32 | again << 3, self.waiting[message])

    def _send(self, kind, body):
        size, left = b"", len(body)
        while left > 127:
            size, left = size + bytes([left & 127 | 128]), left >> 7
        with suppress(OSError):
            self._connection.sendall(bytes([kind]) + size + bytes([left]) + body)

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream, suppress(OSError):
                while head := stream.read(1):
                    size, place = 0, 0
                    while (byte := stream.read(1)[0]) & 128:
                        size, place = size | (byte & 127) << place, place + 7
                    with self._lock:
                        self._take(head[0] & 0xF0, stream.read(size | byte << place), connection)
            with self._lock:
                if self._connection is connection:
                    self._connection = None

    def _take(self, kind, body, connection):
        match kind:
            case 0x10:  # CONNECT
                self._connection = connection
                self._send(0x20, b"\1\0")
                for message in self.waiting:
                    self._give(message, again=message in self.given)
            case 0x80 if self._connection is connection:  # SUBSCRIBE, to one topic
                self._send(0x90, body[:2] + b"\1")
            case 0x40 if not self.deaf:  # PUBACK
                self.waiting.pop(int.from_bytes(body[:2]), None)
            case 0xC0 if self._connection is connection:  # PINGREQ
                self._send(0xD0, b"")
