"""What the connections of both clients share: address, limits, and the options of gRPC.

target            HOST:PORT            http://HOST:PORT
one answer        gRPC                 Connect, on the HTTP port: half of the processor time of a call, or less
streams           gRPC                 gRPC, at `grpc_target`
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from sash_client.calls.credentials import TLS, Token, channel_credentials, check_clear_token, ssl_context, token_of
from sash_client.calls.metadata import said_of_request
from sash_client.calls.owners import Owners
from sash_client.calls.plans import READ_ATTEMPTS, READS
from sash_client.calls.targets import Endpoint, to_endpoint, to_target
from sash_client.data.libraries import imported
from sash_client.errors import FailedPrecondition, InvalidArgument, Unavailable
from sash_wire import traces

if TYPE_CHECKING:
    import ssl

# gRPC 1.85.1 does not end a call with a retry policy that answers with a stream when the server
# dies before the first message, not even when the call is cancelled: `plans.Restarts` retries those.
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "sash.v1.Windows", "method": method} for method in READS],
            "retryPolicy": {
                "maxAttempts": READ_ATTEMPTS,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
_LONGEST_S = 1_000_000_000  # gRPC takes a longer time, or an infinite one, for one that is over
OPTIONS: dict[str, Any] = {
    "grpc.service_config": json.dumps(_SERVICE_CONFIG),
    # The service has limits of its own for requests; an answer that collects a whole window may be large.
    "grpc.max_send_message_length": -1,
    "grpc.max_receive_message_length": -1,
    # By default, gRPC waits for up to two minutes before it connects again to a service that was away.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 2000,
    # While a call is open. Without it, a watch of a service whose machine is gone would wait for ever.
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,  # with its default of a minute, it takes a minute, whatever keepalive says
    "grpc.http2.max_pings_without_data": 0,
}
# A process that a client was told of may be out of its reach: gRPC's own limit to connect is 20 s.
_TO_PROCESS: dict[str, Any] = {"grpc.min_reconnect_backoff_ms": 3000}


class Connection:
    """Where calls go, and within which limits; `Client` and `aio.AsyncClient` make them.

    Args:
        target: host and port of gRPC, such as ``"127.0.0.1:7070"``; port 7070 where there is none. Or the URL of the
            HTTP port, such as ``"http://127.0.0.1:7071"``: calls with one answer go over Connect, which takes less
            processor time; streams go over gRPC. Connect needs httptools (``sash[connect]``).
        grpc_target: where gRPC is, for the streams of a client over Connect; port 7070 of the same host if None.
        timeout_s: seconds after which a call fails with `DeadlineExceeded`, its retries included. Of a stream
            (`entries`, `export_window`, `import_window`, `insert_stream`): seconds that the client waits for each
            message, so that a window of any size can be read. `watch` waits for the next change without limit.
        bulk_entries_max: entries per message that `Window.bulk_insert` sends at most.
        bulk_bytes_max: bytes per message that it sends at most; the service takes 64 MiB unless it is set otherwise.
        token: who calls, where the service asks for tokens; or a function that returns one. It is called for every
            call, so that tokens can change, and must return at once.
        tls: True: TLS by the public authorities. `TLS`: by those that it names. False, or None: none; with None, a
            token is only sent to this machine. A URL with ``https`` means True.
    """

    _now_s: Callable[[], float] = staticmethod(time.monotonic)
    _uniform: Callable[[float, float], float] = staticmethod(random.uniform)
    """What calls that are made again go by: a simulation has others."""
    _opens_at_once = True
    """Whether the channel of gRPC is opened with the client; else by the first call."""

    def __init__(
        self,
        target: str,
        *,
        grpc_target: str | None = None,
        timeout_s: float = 30.0,
        bulk_entries_max: int = 262_144,
        bulk_bytes_max: int = 16 * 2**20,
        token: Token | None = None,
        tls: TLS | bool | None = None,
    ) -> None:
        if not timeout_s > 0 or bulk_entries_max < 1 or bulk_bytes_max < 1:
            raise InvalidArgument("timeout_s, bulk_entries_max and bulk_bytes_max must be positive")
        if timeout_s > _LONGEST_S:
            raise InvalidArgument(
                f"timeout_s may be at most {_LONGEST_S:,} s", field="timeout_s", limit=f"{_LONGEST_S:,}"
            )
        endpoint = to_endpoint(target)
        tls = _tls_of(endpoint, tls)
        if endpoint is None:
            if grpc_target is not None:
                raise InvalidArgument("grpc_target is for clients whose target is a URL", field="grpc_target")
            self.target = self._grpc_target = to_target(target)
        else:
            self.target, self._grpc_target = str(endpoint), to_target(grpc_target or endpoint.host)
        self._token = token
        if token is not None:
            if not callable(token):
                token_of(token)
            if tls is None:
                for address in {self._grpc_target, self._grpc_target if endpoint is None else endpoint.authority}:
                    check_clear_token(address)
        tls = tls or None
        self._credentials = None if tls is None else channel_credentials(tls)
        self.timeout_s = timeout_s
        self.bulk_entries_max = bulk_entries_max
        self.bulk_bytes_max = bulk_bytes_max
        self._is_closed = False
        self._process = os.getpid()
        name = None if tls is None else tls.name
        self._options = OPTIONS if name is None else OPTIONS | {"grpc.ssl_target_name_override": name}
        self._opening = threading.Lock()
        self._channel: Any = None
        self._stub: Any = None
        self._others: dict[str, tuple[Any, Any]] = {}
        """Channels of gRPC to single processes of the service, and their methods, by address."""
        self._owners: Owners | None = None
        """Where each shard is; None: all calls go to the target."""
        self._http: Any = None
        """Makes calls with one answer over Connect; None where they go over gRPC."""
        if endpoint is None:
            if self._opens_at_once:
                self._open_channel()
        else:
            imported("httptools", "a client over Connect")
            self._http = self._connected(endpoint, None if tls is None else ssl_context(tls), name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"

    def _open_channel(self) -> None:
        """Open the channel of gRPC, once."""
        with self._opening:
            if self._channel is None:
                self._channel = self._opened(self._grpc_target, list(self._options.items()))
                self._stub = _stub_of(self._channel)

    def _connected(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> Any:
        """What makes calls over Connect, of the kind that the client needs."""
        raise NotImplementedError

    def _opened(self, target: str, options: list[tuple[str, Any]]) -> Any:
        """A channel of the kind that the client needs."""
        raise NotImplementedError

    def _said(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of the next call; raise an error if there may be none."""
        if self._is_closed:
            raise Unavailable("the client is closed")
        self._check_process()
        metadata = said_of_request()
        if self._token is not None:
            metadata += (("authorization", f"Bearer {token_of(self._token)}"),)
        return metadata

    def _stub_at(self, target: str) -> Any:
        """The methods of one process of the service; its channel is opened once."""
        with self._opening:
            if target not in self._others:
                channel = self._opened(target, list((self._options | _TO_PROCESS).items()))
                self._others[target] = channel, _stub_of(channel)
            return self._others[target][1]

    def _channels(self) -> list[Any]:
        """All open channels of gRPC."""
        channels = [channel for channel, _ in list(self._others.values())]
        return channels if self._channel is None else [self._channel, *channels]

    def _started(
        self, method: str, *request: Any, target: str | None = None, shard: int | None = None, **options: Any
    ) -> Any:
        """Begin a call of gRPC.

        Args:
            target: the process that gets it; None: the one that the client was given.
            shard: the call is for this shard alone.
        """
        metadata = self._said()
        if shard is not None:
            metadata += (("sash-shard", str(shard)),)
        if target is None and self._stub is None:
            self._open_channel()
        call = attrgetter(method)(self._stub if target is None else self._stub_at(target))
        try:
            if traces.tracer is not None:
                at = target or self._grpc_target
                return traces.called(call, method.partition(".")[0], at, metadata, request, options)
            return call(*request, metadata=metadata, **options)
        except ValueError as error:
            # The channel was closed just now, which gRPC calls a ValueError.
            raise Unavailable(f"the client is closed: {error}") from None

    def _check_process(self) -> None:
        """Raise FailedPrecondition in a forked process, which lacks the threads of gRPC and of producers."""
        if os.getpid() != self._process:
            raise FailedPrecondition("the client was made in the process that this one was forked from: make one here")


def _stub_of(channel: Any) -> Any:
    """The methods of gRPC, which is imported with the first channel: it takes a third of what the client takes."""
    from sash_proto.v1 import windows_pb2_grpc

    return windows_pb2_grpc.WindowsStub(channel)  # type: ignore[no-untyped-call]


def _tls_of(endpoint: Endpoint | None, given: TLS | bool | None) -> TLS | Literal[False] | None:
    """What is known of TLS: files, False for none on purpose, or None."""
    if endpoint is not None and endpoint.is_tls and given is False:
        raise InvalidArgument("tls=False is not for https://; write http://", field="tls")
    if endpoint is not None and not endpoint.is_tls and given:
        raise InvalidArgument("tls is not for http://; write https://", field="tls")
    if given is True or (given is None and endpoint is not None and endpoint.is_tls):
        return TLS()
    return given or (None if given is None else False)
