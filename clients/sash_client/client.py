"""The connection to a Sash service, for code that may block.

Retries. Reads that meet an unavailable service are made up to four times within `timeout_s`. A read that answers with
a stream (`entries`, `export_window`, `watch`) is made again only before its first message. Later it raises
`Unavailable`: the service answers as of the call, so a second call would not continue the first one. A write with a
producer's sequence is tried again for as long as `timeout_s`: the service applies it once. Any other write is sent
once, but for what gRPC sends again by itself because the service certainly never saw it. Its error is raised, and the
caller decides: a write without a reply may have been applied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import grpc

from sash_client.answers import Topology, WindowInfo
from sash_client.blocking import BlockingConnection
from sash_client.calls import Feed, Patience, answered
from sash_client.errors import DeadlineExceeded, Unavailable
from sash_client.files import chunks, open_to_read, replacing
from sash_client.plans import pauses_s
from sash_client.window import Window
from sash_client.windows import created, deleted, listed, moved, topology
from sash_client.wire import from_info, new_name
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["Client"]

R = TypeVar("R")


class Client(BlockingConnection):
    """A synchronous client; close it, or use it as a context manager.

    Threads may share it. Processes may not: a forked process makes its own.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; closing twice does nothing."""
        self._is_closed = True
        if self._http is not None:
            self._http.close()
        for channel in self._channels():
            channel.close()

    def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the service accepts connections.

        Raises:
            Unavailable: it does not within `timeout_s` (the client's if None).
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        if self._http is not None:
            self._wait_for_connect(wait_s)
            return
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=wait_s)
        except grpc.FutureTimeoutError:
            ready.cancel()
            raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None

    def _wait_for_connect(self, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        for pause_s in pauses_s():
            try:
                self._said()
                self._http.connect(max(deadline_s - time.monotonic(), 0.001))
                return
            except (Unavailable, DeadlineExceeded):
                if self._is_closed or time.monotonic() + pause_s >= deadline_s:
                    raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None
            time.sleep(pause_s)

    def create_window(self, spec: Mapping[str, Any] | str) -> Window:
        """Create a window. A window that exists with the same spec stays as it is.

        Args:
            spec: the document, or its YAML text; see the page Spec of the documentation.

        Raises:
            InvalidArgument: names the offending part of the spec in `field`.
            AlreadyExists: a window of that name has another spec.
        """
        made = self._perform(created(spec))
        return Window(self, made.name, made)

    def list_windows(self) -> list[WindowInfo]:
        """Show all windows."""
        return self._perform(listed())

    def topology(self) -> Topology:
        """Show which processes serve the windows, and which shards each has."""
        return self._perform(topology())

    def move_shard(self, shard: int, process: int) -> Topology:
        """Have a process take a shard, where processes share them by leases; returns when it has it.

        Raises:
            InvalidArgument: there is no such shard or process.
            Unavailable: the process does not have it in time.
            Unsupported: shards stay where they are.
        """
        return self._perform(moved(shard, process))

    def delete_window(self, name: str) -> int:
        """Delete a window and its entries; return how many it had. Raises NotFound."""
        return self._perform(deleted(name))

    def window(self, name: str) -> Window:
        """Return a handle on a window. No call is made: a name that does not exist shows at the first use."""
        return Window(self, name)

    def export_window(self, name: str, file: str | os.PathLike[str] | BinaryIO) -> int:
        """Write a window as one file: entries, spec, counts and producers; return its size in bytes.

        The file has the window as it is at one moment. Entries that are written meanwhile are not in it.

        Args:
            name: the window.
            file: a path, or an open binary file. At the path, a file appears when it is whole, and replaces another
                one.

        Raises:
            NotFound: there is no such window.
            DataLoss: a part of the window is damaged or lost.
            OSError: the file cannot be written.
        """
        with replacing(file) as out:
            size = 0
            for _, data in self._exported(name):
                out.write(data)
                size += len(data)
        return size

    def _exported(self, name: str, derived: Sequence[str] = ()) -> Iterator[tuple[str, bytes]]:
        """Yield the parts of a window's file, then those of windows that it feeds, each with its window.

        An earlier service sends the first file only.
        """
        last, request = name, pb.ExportWindowRequest(window=name, derived=derived)
        for chunk in self._stream("ExportWindow", request, Patience(self.timeout_s)):
            last = chunk.name or last
            yield last, chunk.data

    def import_window(self, file: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> WindowInfo:
        """Create a window from what `export_window` wrote.

        Args:
            file: a path, or a binary file open for reading.
            name: another name for it.

        Raises:
            AlreadyExists: there is a window of that name.
            InvalidArgument: the file is no exported window, or is damaged; or `name` is not a name. Nothing is created.
            OSError: the file cannot be read.
        """
        with open_to_read(file) as source:
            return self._imported(chunks(source), new_name(name))

    def _imported(self, parts: Iterator[bytes], name: str, derived: Sequence[str] = ()) -> WindowInfo:
        """Create a window from the parts of its file, and windows that it feeds from those of the files that follow."""
        says: dict[str, Any] = {"name": name, "derived": derived}
        feed = Feed(pb.WindowChunk(data=data, **({} if i else says)) for i, data in enumerate(parts))
        return from_info(answered(self._started("ImportWindow.future", feed), self.timeout_s, feed))
