"""One way to call the service for each edge: the Python client over gRPC and over Connect, and REST in JSON.

All have the same methods, and all answers have the form of `model.Summary.answer`. A call over REST that is refused
because the service is busy raises `Busy`; the refusal changed nothing. The client calls again by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from loadtest.options import Options
from sash_client import TLS, Client, SashClientError
from sash_client.data.wire import from_answer
from sash_proto.v1 import windows_pb2 as pb

Found = Mapping[str, Any]


class Failed(Exception):
    """A call failed."""


class Busy(Failed):
    """The service refused a call, and says to try again."""


TROUBLE = (Failed, SashClientError, OSError, http.client.HTTPException)


def client_of(options: Options, edge: str = "grpc") -> Client:
    """A client of the port of an edge."""
    target = options.target if edge == "grpc" else options.address
    return Client(target, token=options.token, tls=TLS(ca=options.ca) if options.ca else None)


def connect_to(options: Options, edge: str) -> ByClient | Rest:
    """Open a connection."""
    return {"grpc": ByClient, "connect": Connect, "rest": Rest}[edge](options, edge)


@contextlib.contextmanager
def streaming(options: Options, *request: Any) -> Iterator[http.client.HTTPResponse]:
    """Open a stream of HTTP on a connection of its own."""
    with contextlib.closing(connected(options)) as connection:
        connection.request(*request)
        with connection.getresponse() as response:
            if response.status != 200:
                _check(response, response.read())
            yield response


def connected(options: Options) -> http.client.HTTPConnection:
    """A connection of HTTP."""
    at = urlsplit(options.address)
    host, port = at.hostname or "127.0.0.1", at.port
    if at.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=60)
    return http.client.HTTPSConnection(host, port, timeout=60, context=ssl.create_default_context(cafile=options.ca))


def headers_of(options: Options, kind: str = "") -> dict[str, str]:
    """The headers of a request, with a body of a kind."""
    token = {"authorization": f"Bearer {options.token}"} if options.token else {}
    return token | ({"content-type": kind} if kind else {})


class ByClient:
    """The Python client."""

    def __init__(self, options: Options, edge: str) -> None:
        self._options, self._client = options, client_of(options, edge)

    def create(self, spec: Mapping[str, Any]) -> None:
        """Create a window."""
        self._client.create_window(spec)

    def insert(self, window: str, key: str | None, time: int, value: float) -> int:
        """Insert one entry; return how many were inserted."""
        return self._client.window(window).insert(time, value, key=key).inserted

    def bulk_insert(self, window: str, keys: Sequence[str] | str, times: list[int], values: list[float]) -> int:
        """Insert entries of one key, or of several keys; return how many were inserted."""
        return self._client.window(window).bulk_insert(times, values, keys=keys).inserted

    def query(self, window: str, keys: Sequence[str] | None, lookbacks: Sequence[str] = ()) -> list[Found]:
        """Query some keys, or a window without keys."""
        return [answer.aggregates for answer in self._client.window(window).query(keys=keys, lookbacks=lookbacks)]

    def range_query(self, window: str, key: str, start: int, end: int) -> Found:
        """Query a range of times."""
        return self._client.window(window).range_query(start, end, key=key).aggregates

    @contextlib.contextmanager
    def watch(self, window: str, key: str, interval_ms: int) -> Iterator[Iterator[Found]]:
        """Watch a key; the iterator waits for the next answer."""
        with contextlib.closing(self._client.window(window).watch(key=key, every_s=interval_ms / 1000)) as answers:
            yield (each[0].aggregates for each in answers)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Connect(ByClient):
    """The Python client over Connect; it has streams over gRPC, so this one has its own."""

    @contextlib.contextmanager
    def watch(self, window: str, key: str, interval_ms: int) -> Iterator[Iterator[Found]]:
        request = pb.WatchRequest(query=pb.QueryRequest(window=window, key=key), interval_ms=interval_ms)
        message = request.SerializeToString()
        body = b"\0" + len(message).to_bytes(4) + message
        headers = headers_of(self._options, "application/connect+proto")
        with streaming(self._options, "POST", "/sash.v1.Windows/Watch", body, headers) as response:
            yield self._messages(response)

    def _messages(self, response: http.client.HTTPResponse) -> Iterator[Found]:
        while head := response.read(5):
            message = response.read(int.from_bytes(head[1:]))
            if head[0] & 2:
                raise Failed(f"the stream ended: {message.decode()}")
            answers = pb.QueryResponse.FromString(message).answers
            if answers:  # an empty message is a sign of life
                yield from_answer(answers[0]).aggregates
        raise Failed("the stream ended")


class Rest:
    """A kept connection of HTTP, and others for streams."""

    def __init__(self, options: Options, edge: str) -> None:
        self._options, self._connection = options, connected(options)

    def _json(self, method: str, path: str, document: Any = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        headers = headers_of(self._options, "application/json" if body else "")
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            text = response.read()
        except BaseException:
            self._connection.close()  # the rest of the answer must not be taken for the next one
            raise
        _check(response, text)
        return json.loads(text)

    def close(self) -> None:
        self._connection.close()

    def create(self, spec: Mapping[str, Any]) -> None:
        self._json("POST", "/v1/windows", spec)

    def insert(self, window: str, key: str | None, time: int, value: float) -> int:
        document = {"time": time, "value": value} | ({} if key is None else {"key": key})
        return int(self._json("POST", f"/v1/windows/{window}/insert", document)["inserted"])

    def bulk_insert(self, window: str, keys: Sequence[str] | str, times: list[int], values: list[float]) -> int:
        column = [keys] * len(times) if isinstance(keys, str) else list(keys)
        document = {"key": column, "time": times, "value": values}
        return int(self._json("POST", f"/v1/windows/{window}/bulk-insert", document)["inserted"])

    def query(self, window: str, keys: Sequence[str] | None, lookbacks: Sequence[str] = ()) -> list[Found]:
        asked = urlencode([("key", key) for key in keys or ()] + [("lookback", lookback) for lookback in lookbacks])
        answers = self._json("GET", f"/v1/windows/{window}/query?{asked}")["answers"]
        return [answer["aggregates"] for answer in answers]

    def range_query(self, window: str, key: str, start: int, end: int) -> Found:
        path = f"/v1/windows/{window}/range?key={quote(key)}&start={start}&end={end}"
        found: Found = self._json("GET", path)["aggregates"]
        return found

    @contextlib.contextmanager
    def watch(self, window: str, key: str, interval_ms: int) -> Iterator[Iterator[Found]]:
        path = f"/v1/windows/{window}/watch?key={quote(key)}&interval={interval_ms}"
        with streaming(self._options, "GET", path, None, headers_of(self._options)) as response:
            yield self._events(response)

    def _events(self, response: http.client.HTTPResponse) -> Iterator[Found]:
        event = ""
        for line in response:
            if line.startswith(b"event: "):
                event = line.decode().strip()
            elif line.startswith(b"data: "):
                if event:
                    raise Failed(f"{event}: {line.decode().strip()}")
                yield json.loads(line.removeprefix(b"data: "))["answers"][0]["aggregates"]
        raise Failed("the stream ended")


def _check(response: http.client.HTTPResponse, text: bytes) -> None:
    if response.status < 300:
        return
    said = f"{response.status}: {text[:300].decode(errors='replace')}"
    raise Busy(said) if response.status in (429, 503) else Failed(said)
