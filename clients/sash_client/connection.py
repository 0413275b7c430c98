"""What the connections of both clients share: address, limits, and the options of gRPC."""

from __future__ import annotations

import json
import os
from operator import attrgetter
from typing import Any

from sash_client.credentials import TLS, Token, channel_credentials, check_clear_token, token_of
from sash_client.errors import FailedPrecondition, InvalidArgument, Unavailable
from sash_client.requests import said_of_request
from sash_client.targets import to_target
from sash_proto.v1 import windows_pb2_grpc
from sash_wire import traces

__all__ = ["OPTIONS", "READ_ATTEMPTS", "Connection"]

READ_ATTEMPTS = 4
"""How often a read is made at most while the service is unavailable."""

# Reads with one answer. gRPC 1.85.1 does not end a call with a retry policy that answers with a stream when the server
# dies before the first message, not even when the call is cancelled: `plans.Restarts` retries those.
_READS = ("GetWindow", "ListWindows", "ListKeys", "Query", "RangeQuery", "Series")
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "sash.v1.Windows", "method": method} for method in _READS],
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


class Connection:
    """Where calls go, and within which limits; `Client` and `aio.AsyncClient` make them.

    Args:
        target: host and port of the gRPC edge, such as ``"127.0.0.1:7070"``; port 7070 where there is none.
        timeout_s: seconds after which a call fails with `DeadlineExceeded`, its retries included. Of a stream
            (`entries`, `export_window`, `import_window`, `insert_stream`): seconds that the client waits for each
            message, so that a window of any size can be read. `watch` waits for the next change without limit.
        bulk_entries_max: entries per message that `Window.bulk_insert` sends at most.
        bulk_bytes_max: bytes per message that it sends at most; the service takes 64 MiB unless it is set otherwise.
        token: who calls, where the service asks for tokens; or a function that returns one. It is called for every
            call, so that tokens can change, and must return at once.
        tls: True: TLS by the public authorities. `TLS`: by those that it names. False, or None: none; with None, a
            token is only sent to this machine.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 30.0,
        bulk_entries_max: int = 262_144,
        bulk_bytes_max: int = 16 * 2**20,
        token: Token | None = None,
        tls: TLS | bool | None = None,
    ) -> None:
        if timeout_s <= 0 or bulk_entries_max < 1 or bulk_bytes_max < 1:
            raise InvalidArgument("timeout_s, bulk_entries_max and bulk_bytes_max must be positive")
        self.target = to_target(target)
        self._token = token
        if token is not None:
            if not callable(token):
                token_of(token)
            if tls is None:
                check_clear_token(self.target)
        tls = TLS() if tls is True else tls or None
        self._credentials = None if tls is None else channel_credentials(tls)
        self.timeout_s = timeout_s
        self.bulk_entries_max = bulk_entries_max
        self.bulk_bytes_max = bulk_bytes_max
        self._is_closed = False
        self._process = os.getpid()
        named = {} if tls is None or tls.name is None else {"grpc.ssl_target_name_override": tls.name}
        self._channel = self._opened(self.target, list((OPTIONS | named).items()))
        self._stub: Any = windows_pb2_grpc.WindowsStub(self._channel)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"

    def _opened(self, target: str, options: list[tuple[str, Any]]) -> Any:
        """A channel of the kind that the client needs."""
        raise NotImplementedError

    def _started(self, method: str, *request: Any, **options: Any) -> Any:
        """Begin a call."""
        if self._is_closed:
            raise Unavailable("the client is closed")
        self._check_process()
        metadata = said_of_request()
        if self._token is not None:
            metadata += (("authorization", f"Bearer {token_of(self._token)}"),)
        call = attrgetter(method)(self._stub)
        try:
            if traces.tracer is not None:
                return traces.called(call, method.partition(".")[0], self.target, metadata, request, options)
            return call(*request, metadata=metadata, **options)
        except ValueError as error:
            # The channel was closed just now, which gRPC calls a ValueError.
            raise Unavailable(f"the client is closed: {error}") from None

    def _check_process(self) -> None:
        """Raise FailedPrecondition in a forked process, which lacks the threads of gRPC and of producers."""
        if os.getpid() != self._process:
            raise FailedPrecondition("the client was made in the process that this one was forked from: make one here")
