"""The connection to a Sash service.

Retries. Reads that meet an unavailable service are tried again, up to four times within `timeout_s`. A write with a
producer's sequence is tried again for as long as `timeout_s`: the service applies it once. A write without is
tried again only while it is certain that the service never saw it, which gRPC itself knows and does; otherwise
the error is raised, and whoever holds the data decides: a write without a reply may have been applied.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import TracebackType
from typing import Any, BinaryIO, Self

import grpc

from sash_client.answers import WindowInfo
from sash_client.calls import Feed, answered, may_pass, pauses_s, received
from sash_client.errors import InvalidArgument, SashClientError, Unavailable, from_rpc
from sash_client.files import chunks, open_to_read, replacing
from sash_client.window import Window
from sash_client.wire import from_info, to_spec
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc

__all__ = ["Client"]

_READS = (
    *("GetWindow", "ListWindows", "ListKeys", "Query", "RangeQuery", "Series"),
    *("Watch", "Entries", "ExportWindow"),  # these until their first message
)
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "sash.v1.Windows", "method": method} for method in _READS],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class Client:
    """A synchronous client; close it, or use it as a context manager. Threads may share it.

    Args:
        target: host and port of the gRPC edge, such as ``"127.0.0.1:7070"``.
        timeout_s: seconds after which a call fails with `DeadlineExceeded`, its retries included.
        bulk_entries_max: entries per message that `Window.bulk_insert` sends at most.
        bulk_bytes_max: bytes per message that it sends at most; the service takes 64 MiB unless it is set otherwise.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 30.0,
        bulk_entries_max: int = 262_144,
        bulk_bytes_max: int = 16 * 2**20,
    ) -> None:
        if timeout_s <= 0 or bulk_entries_max < 1 or bulk_bytes_max < 1:
            raise InvalidArgument("timeout_s, bulk_entries_max and bulk_bytes_max must be positive")
        self.target = target
        self.timeout_s = timeout_s
        self.bulk_entries_max = bulk_entries_max
        self.bulk_bytes_max = bulk_bytes_max
        options = [
            ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
            # The service bounds what it takes; an answer that collects a whole window may be large.
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # By default, a service that was away for a while is not looked for again for up to two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._is_closed = False
        self._channel = grpc.insecure_channel(target, options=options)
        self._stub: Any = windows_pb2_grpc.WindowsStub(self._channel)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"Client({self.target!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; closing twice does nothing."""
        self._is_closed = True
        self._channel.close()

    def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the service accepts connections.

        Raises:
            Unavailable: it does not within `timeout_s` (the client's, where None).
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=wait_s)
        except grpc.FutureTimeoutError:
            ready.cancel()
            raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None

    def create_window(self, spec: Mapping[str, Any] | str) -> Window:
        """Create a window; one that exists with the same spec is left as it is.

        Args:
            spec: the document, or its YAML text. See the README for one.

        Raises:
            InvalidArgument: names the offending part of the spec in `field`.
            AlreadyExists: a window of that name has another spec.
        """
        response = self._call("CreateWindow", pb.CreateWindowRequest(spec=to_spec(spec)))
        return Window(self, response.window.spec.name, response.window.spec)

    def list_windows(self) -> list[WindowInfo]:
        """Show all windows."""
        response = self._call("ListWindows", pb.ListWindowsRequest())
        return [from_info(window) for window in response.windows]

    def delete_window(self, name: str) -> int:
        """Delete a window and its entries; return how many it had. Raises NotFound."""
        return int(self._call("DeleteWindow", pb.DeleteWindowRequest(name=name)).entries)

    def window(self, name: str) -> Window:
        """Return a handle on a window. No call is made: a name that does not exist shows at the first use."""
        return Window(self, name)

    def export_window(self, name: str, file: str | os.PathLike[str] | BinaryIO) -> int:
        """Write a window, with all that the service knows of it, as one file; return its bytes.

        The file is as the window is at one moment; what is written to it meanwhile is not in it.

        Args:
            name: the window.
            file: a path, where a file appears when it is whole (one that is there is replaced); or an open binary file.

        Raises:
            NotFound: there is no such window.
            DataLoss: the service has it no more as it was.
            OSError: the file cannot be written.
        """
        with replacing(file) as out:
            size = 0
            for chunk in self._stream("ExportWindow", pb.ExportWindowRequest(window=name)):
                out.write(chunk.data)
                size += len(chunk.data)
        return size

    def import_window(self, file: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> WindowInfo:
        """Create a window from what `export_window` wrote.

        Args:
            file: a path, or a binary file open for reading.
            name: another name for it.

        Raises:
            AlreadyExists: there is a window of that name.
            InvalidArgument, DataLoss: the file is no exported window, or a damaged one; nothing is created.
            OSError: the file cannot be read.
        """
        with open_to_read(file) as source:
            requests = (
                pb.WindowChunk(data=data, name=(name or "") if i == 0 else "") for i, data in enumerate(chunks(source))
            )
            feed = Feed(requests)
            return from_info(answered(self._started("ImportWindow.future", feed), self.timeout_s, feed))

    def _call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        try:
            return self._started(method, request, timeout=self.timeout_s if timeout_s is None else timeout_s)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def _call_again(self, method: str, request: Any) -> Any:
        """Make a call that may be made twice, until it is answered or `timeout_s` is over."""
        deadline_s = time.monotonic() + self.timeout_s
        for pause_s in pauses_s():
            try:
                return self._call(method, request, max(deadline_s - time.monotonic(), 0.001))
            except SashClientError as error:
                pause_s = max(pause_s, error.retry_after_s or 0.0)
                if not may_pass(error) or self._is_closed or time.monotonic() + pause_s >= deadline_s:
                    raise
            time.sleep(pause_s)
        raise AssertionError("pauses do not end")

    def _stream(self, method: str, request: Any, waits: bool = False) -> Iterator[Any]:
        """Make a call that answers with a stream; each message may take `timeout_s`, or where it `waits` for ever."""
        call = self._started(method, request)
        return received(call, None if waits else self.timeout_s, request if isinstance(request, Feed) else None)

    def _started(self, method: str, request: Any, **options: Any) -> Any:
        try:
            return attrgetter(method)(self._stub)(request, **options)
        except ValueError as error:
            # The channel was closed, which gRPC calls a ValueError.
            raise Unavailable(f"the client is closed: {error}") from None
