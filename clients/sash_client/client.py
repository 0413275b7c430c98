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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from sash_client.answers import WindowInfo, WriteResult
from sash_client.calls.connection import Connection
from sash_client.calls.plans import CONNECT_PAUSE_S, READS, Ask, AskStream, Plan, Restarts, Together
from sash_client.calls.streams import Feed, Patience, answered, received
from sash_client.calls.targets import Endpoint
from sash_client.data.bulks import Bulk
from sash_client.data.tables import Answers, Entries
from sash_client.data.wire import from_info, new_name, spec_document
from sash_client.errors import DeadlineExceeded, SashClientError, Unavailable, from_rpc
from sash_client.files import chunks, open_to_read, replacing
from sash_client.windows import handle
from sash_client.windows.handle import spec_of
from sash_client.windows.operations import Blocks, Calls, Operations
from sash_client.windows.producer import Producer
from sash_client.windows.writes import BulkStream
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import traces

if TYPE_CHECKING:
    import ssl

    import grpc

    from sash_client.calls.connect import BlockingCalls

R = TypeVar("R")


class Client(Connection, Calls, Blocks):
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
        import grpc

        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=wait_s)
        except grpc.FutureTimeoutError:
            ready.cancel()
            raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None

    def _wait_for_connect(self, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                self._said()
                self._http.connect(max(deadline_s - time.monotonic(), 0.001))
                return
            except (Unavailable, DeadlineExceeded):
                if self._is_closed or time.monotonic() + CONNECT_PAUSE_S >= deadline_s:
                    raise Unavailable(f"no service at {self.target} within {wait_s:g} s") from None
            time.sleep(CONNECT_PAUSE_S)

    def create_window(self, spec: Mapping[str, Any] | str) -> Window:
        """Create a window. A window that exists with the same spec stays as it is.

        Args:
            spec: the document, or its YAML text; see the page Spec of the documentation.

        Raises:
            InvalidArgument: names the offending part of the spec in `field`.
            AlreadyExists: a window of that name has another spec.
        """
        made = self._perform(handle.created(spec))
        return Window(self, made.name, made)

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

    # ---------------------------------------------------------------- calls

    def _opened(self, target: str, options: list[tuple[str, Any]]) -> grpc.Channel:
        import grpc

        if self._credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self._credentials, options=options)

    def _connected(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> BlockingCalls:
        from sash_client.calls.connect import BlockingCalls

        return BlockingCalls(endpoint, context, name)

    def _perform(self, plan: Plan[R]) -> R:
        """Make the calls of a plan, one after the other; return what it returns."""
        if self._owners is not None:
            plan = self._owners.routed(plan)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Ask):
                    try:
                        shard = step.owner if step.alone else None
                        answer = self._call(step.method, step.request, step.timeout_s, step.target, shard)
                    except SashClientError as error:
                        step = plan.throw(error)
                    else:
                        step = plan.send(answer)
                elif isinstance(step, Together):
                    step = plan.send(self._perform_together(step.plans))
                else:
                    time.sleep(step.seconds)
                    step = next(plan)
        except StopIteration as end:
            done: R = end.value
            return done

    def _perform_together(self, plans: Sequence[Plan[Any]]) -> list[Any]:
        """Perform plans, each in a thread; return what each returned, or the error that it raised."""

        def perform(plan: Plan[Any]) -> Any:
            try:
                return self._perform(plan)
            except SashClientError as error:
                return error

        with ThreadPoolExecutor(len(plans), "sash call") as threads:
            calls = [threads.submit(copy_context().run, perform, plan) for plan in plans]
            return [call.result() for call in calls]

    def _call(
        self,
        method: str,
        request: Any,
        timeout_s: float | None = None,
        target: str | None = None,
        shard: int | None = None,
    ) -> Any:
        """Make a call; `target` and `shard` as of `_started`."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if self._http is not None and target is None:
            return self._over_connect(method, request, timeout_s)
        import grpc

        try:
            return self._started(method, request, timeout=timeout_s, target=target, shard=shard)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def _over_connect(self, method: str, request: Any, timeout_s: float) -> Any:
        """Make a call over Connect, and a read again as `Restarts` allows."""
        said = self._said()
        with nullcontext(said) if traces.tracer is None else traces.calling(method, self.target, said) as metadata:
            if method not in READS:
                return self._http.call(method, request, timeout_s, metadata)
            restarts = Restarts(self)
            while True:
                try:
                    return self._http.call(method, request, restarts.left_s, metadata)
                except SashClientError as error:
                    pause_s = restarts.pause_s(error)
                time.sleep(pause_s)

    def _streamed(self, plan: Plan[AskStream[R]]) -> Iterator[R]:
        """Perform a plan whose answer is a stream; yield what it reads."""
        ask = self._perform(plan)
        for message in self._stream(ask.method, ask.request, Patience(None if ask.waits else self.timeout_s)):
            yield ask.read(message)

    def _stream(self, method: str, request: Any, patience: Patience) -> Iterator[Any]:
        """Make a read that answers with a stream, and retry it as `Restarts` allows; yield its messages."""
        restarts = Restarts(self)
        while True:
            try:
                for message in received(self._started(method, request), patience):
                    restarts.messages += 1
                    yield message
                return
            except SashClientError as error:
                pause_s = restarts.pause_s(error)
            time.sleep(pause_s)


class Window(Operations, Blocks):
    """A handle on one named window; get it from `Client.window` or `Client.create_window`.

    It is cheap and holds no data. The window's spec, which says how times and values travel, is fetched once,
    when a call first needs it.

    Every method raises a `SashClientError`; `InvalidArgument` also before anything is sent.
    """

    _client: Client
    _answers, _entries = Answers, Entries

    def _repr_html_(self) -> str:
        """Return the window as it is now as HTML, which notebooks show."""
        try:
            return self.describe()._repr_html_()
        except SashClientError as error:
            return escape(f"{self!r}: {error.message}")

    @property
    def spec(self) -> Mapping[str, Any]:
        """The window's spec as a plain document."""
        return spec_document(self._spec())

    def insert_stream(
        self, bulks: Iterable[Bulk], *, producer: str | None = None, sequence: int | None = None, epoch: int = 0
    ) -> Iterator[WriteResult]:
        """Insert bulk after bulk over one call, without waiting for answers in between; yield a result for each.

        It is faster than as many calls of `bulk_insert`. For single entries, or for retries, use a `producer`.

        The first error ends the call. Bulks that were yielded before are applied. The error's `applied` says what was
        applied of the bulk that failed; nothing after it is. The client never sends it again by itself. A service that
        shuts down ends the call with `Unavailable`, after it has answered what it had begun.

        Args:
            bulks: any number of them, taken as the service takes them, in another thread. Any time may pass between
                two.
            producer, sequence, epoch: as in `bulk_insert`. Messages are numbered from `sequence` on over all bulks, so
                you can send again what was not answered.
        """
        client = self._client
        stream = BulkStream(self, self._spec(), producer, sequence, epoch, client.timeout_s)
        feed = Feed(message for bulk in bulks for message in stream.messages(bulk))
        try:
            for answer in received(client._started("InsertStream", feed), stream.patience, feed):
                if (done := stream.answered(answer)) is not None:
                    yield done
        except SashClientError as error:
            raise stream.failed(error) from None

    def _spec(self) -> pb.WindowSpec:
        """Return the window's spec, which is fetched once."""
        return spec_of(self)

    def producer(self, name: str, **options: Any) -> Producer:
        """Return a producer of this window. It numbers writes, gathers single entries into bulks and sends them.

        Args:
            name: the producer's name; only one producer at a time may use it.
            options: see `Producer`.
        """
        return Producer(self, name, **options)
