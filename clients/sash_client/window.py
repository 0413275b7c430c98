"""One window, from the outside: arrays in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sash_client import operations
from sash_client.answers import Bulk, WriteResult
from sash_client.calls import Feed, Patience, received
from sash_client.errors import SashClientError
from sash_client.operations import BulkStream, Handle
from sash_client.plans import AskStream, Plan
from sash_client.producer import Producer
from sash_client.wire import spec_document
from sash_proto.v1 import windows_pb2 as pb

if TYPE_CHECKING:
    from sash_client.client import Client

__all__ = ["Window"]

P = ParamSpec("P")
R = TypeVar("R")


def _performed(plan: Callable[Concatenate[Handle, P], Plan[R]]) -> Callable[Concatenate[Window, P], R]:
    """The method that performs an operation."""

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._client._perform(plan(self, *args, **kwargs))

    return method


def _streamed(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[R]]],
) -> Callable[Concatenate[Window, P], Iterator[R]]:
    """The method that performs an operation whose answer is a stream."""

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        client = self._client
        ask = client._perform(plan(self, *args, **kwargs))
        for message in client._stream(ask.method, ask.request, Patience(None if ask.waits else client.timeout_s)):
            yield ask.read(message)

    return method


class Window(Handle):
    """A handle on one named window; get it from `Client.window` or `Client.create_window`.

    It is cheap and holds no data. The window's spec, which says how times and values travel, is fetched once,
    when a call first needs it.

    Every method raises a `SashClientError`; `InvalidArgument` also before anything is sent.
    """

    _client: Client

    @property
    def spec(self) -> Mapping[str, Any]:
        """The window's spec as a plain document."""
        return spec_document(self._spec())

    describe = _performed(operations.describe)
    add_aggregates = _performed(operations.add_aggregates)
    keys = _performed(operations.keys)

    insert = _performed(operations.insert)
    bulk_insert = _performed(operations.bulk_insert)
    bulk_evict = _performed(operations.bulk_evict)
    stage = _performed(operations.stage)
    commit = _performed(operations.commit)

    query = _performed(operations.query)
    range_query = _performed(operations.range_query)
    series = _performed(operations.series)
    watch = _streamed(operations.watch)
    entries = _streamed(operations.entries)

    def insert_stream(
        self, bulks: Iterable[Bulk], *, producer: str | None = None, sequence: int | None = None, epoch: int = 0
    ) -> Iterator[WriteResult]:
        """Insert bulk after bulk over one call, without waiting for an answer in between; yield one for each, in order.

        It is faster than as many `bulk_insert`s: for whoever has bulk after bulk to send. Whoever has single entries,
        or wants to be retried, takes a `producer`.

        The first error ends it: what was yielded before is applied, the error's `applied` says what was applied of the
        bulk that failed, and nothing after it is. It is never sent again by itself. A service that shuts down ends it
        with `Unavailable`, once it has answered what it had begun.

        Args:
            bulks: any number of them; they are taken as the service takes them, in another thread. There may be any
                time between two.
            producer, sequence, epoch: as in `bulk_insert`: messages are numbered from `sequence` on over all bulks, so
                that what was not answered can be sent again.
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

    def producer(self, name: str, **options: Any) -> Producer:
        """Return a producer of this window, which numbers writes, gathers single entries into bulks and sends them.

        Args:
            name: the producer's name: one at a time may use it.
            options: see `Producer`.
        """
        return Producer(self, name, **options)

    def _spec(self) -> pb.WindowSpec:
        return self._client._perform(operations.known(self))
