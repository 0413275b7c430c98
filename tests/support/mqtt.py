"""An MQTT broker in this process, for as long as a test needs one; amqtt brings it."""

import asyncio
from contextlib import contextmanager
from threading import Thread

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
