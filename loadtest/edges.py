"""One way to call the service for each edge: the Python client over gRPC, Connect in protobuf, REST in JSON.

All have the same methods, and all answers have the form of `model.Summary.answer`. A call that is refused because the
service is busy raises `Busy`; the refusal changed nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from loadtest.options import Options
from sash_client import TLS, Client, SashClientError
from sash_client.data.wire import from_answer, to_spec
from sash_proto.v1 import windows_pb2 as pb

Found = Mapping[str, Any]


class Failed(Exception):
    """A call failed."""


class Busy(Failed):
    """The service refused a call, and says to try again."""


TROUBLE = (Failed, SashClientError, OSError, http.client.HTTPException)


class Edge(ABC):
    """A connection to the service."""

    @abstractmethod
    def create(self, spec: Mapping[str, Any]) -> None:
        """Create a window."""

    @abstractmethod
    def insert(self, window: str, key: str | None, time: int, value: float) -> int:
        """Insert one entry; return how many were inserted."""

    @abstractmethod
    def bulk_insert(self, window: str, keys: Sequence[str] | str, times: list[int], values: list[float]) -> int:
        """Insert entries of one key, or of several keys; return how many were inserted."""

    @abstractmethod
    def query(self, window: str, keys: Sequence[str] | None, lookbacks: Sequence[str] = ()) -> list[Found]:
        """Query some keys, or a window without keys."""

    @abstractmethod
    def range_query(self, window: str, key: str, start: int, end: int) -> Found:
        """Query a range of times."""

    @abstractmethod
    def watch(self, window: str, key: str, interval_ms: int) -> AbstractContextManager[Iterator[Found]]:
        """Watch a key; the iterator waits for the next answer."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def connect_to(options: Options, edge: str) -> Edge:
    """Open a connection."""
    return {"grpc": _Grpc, "connect": _Connect, "rest": _Rest}[edge](options)


def grpc_client(options: Options) -> Client:
    """A client of the gRPC port."""
    return Client(options.target, token=options.token, tls=TLS(ca=options.ca) if options.ca else None)


class _Grpc(Edge):
    def __init__(self, options: Options) -> None:
        self._client = grpc_client(options)

    def create(self, spec: Mapping[str, Any]) -> None:
        self._client.create_window(spec)

    def insert(self, window: str, key: str | None, time: int, value: float) -> int:
        return self._client.window(window).insert(time, value, key=key).inserted

    def bulk_insert(self, window: str, keys: Sequence[str] | str, times: list[int], values: list[float]) -> int:
        return self._client.window(window).bulk_insert(times, values, keys=keys).inserted

    def query(self, window: str, keys: Sequence[str] | None, lookbacks: Sequence[str] = ()) -> list[Found]:
        return [answer.aggregates for answer in self._client.window(window).query(keys=keys, lookbacks=lookbacks)]

    def range_query(self, window: str, key: str, start: int, end: int) -> Found:
        return self._client.window(window).range_query(start, end, key=key).aggregates

    @contextlib.contextmanager
    def watch(self, window: str, key: str, interval_ms: int) -> Iterator[Iterator[Found]]:
        with contextlib.closing(self._client.window(window).watch(key=key, every_s=interval_ms / 1000)) as answers:
            yield (each[0].aggregates for each in answers)

    def close(self) -> None:
        self._client.close()


class _Http(Edge):
    """A kept connection of HTTP, and others for streams."""

    content_type = "application/json"

    def __init__(self, options: Options) -> None:
        self._at = urlsplit(options.address)
        self._ssl = ssl.create_default_context(cafile=options.ca) if self._at.scheme == "https" else None
        self._headers = {"authorization": f"Bearer {options.token}"} if options.token else {}
        self._connection = self._connected()

    def _connected(self) -> http.client.HTTPConnection:
        host, port = self._at.hostname or "127.0.0.1", self._at.port
        if self._ssl is None:
            return http.client.HTTPConnection(host, port, timeout=60)
        return http.client.HTTPSConnection(host, port, timeout=60, context=self._ssl)

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = self._headers if body is None else {**self._headers, "content-type": self.content_type}
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            text = response.read()
        except BaseException:
            self._connection.close()  # the rest of the answer must not be taken for the next one
            raise
        _check(response, text)
        return text

    @contextlib.contextmanager
    def _streaming(self, method: str, path: str, body: bytes | None, kind: str) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(self._connected()) as connection:
            connection.request(method, path, body, {**self._headers, **({"content-type": kind} if body else {})})
            response = connection.getresponse()
            if response.status != 200:
                _check(response, response.read())
            with response:
                yield response

    def close(self) -> None:
        self._connection.close()


class _Rest(_Http):
    def _json(self, method: str, path: str, document: Any = None) -> Any:
        return json.loads(self._call(method, path, None if document is None else json.dumps(document).encode()))

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
        with self._streaming("GET", path, None, "") as response:
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


class _Connect(_Http):
    content_type = "application/proto"

    def _unary(self, method: str, request: Any, response: Any) -> Any:
        return response.FromString(self._call("POST", f"/sash.v1.Windows/{method}", request.SerializeToString()))

    def create(self, spec: Mapping[str, Any]) -> None:
        self._unary("CreateWindow", pb.CreateWindowRequest(spec=to_spec(spec)), pb.CreateWindowResponse)

    def insert(self, window: str, key: str | None, time: int, value: float) -> int:
        request = pb.InsertRequest(window=window, key=key, time=time, value=value)
        return int(self._unary("Insert", request, pb.InsertResponse).inserted)

    def bulk_insert(self, window: str, keys: Sequence[str] | str, times: list[int], values: list[float]) -> int:
        request = pb.BulkInsertRequest(window=window, time=np.array(times, "<i8").tobytes())
        request.fields["value"].float64 = np.array(values, "<f8").tobytes()
        distinct = [keys] if isinstance(keys, str) else list(dict.fromkeys(keys))
        codes = {key: code for code, key in enumerate(distinct)}
        column = [0] * len(times) if isinstance(keys, str) else [codes[key] for key in keys]
        request.key.dictionary.extend(distinct)
        request.key.codes = np.array(column, "<u4").tobytes()
        return int(self._unary("BulkInsert", request, pb.InsertResponse).inserted)

    def query(self, window: str, keys: Sequence[str] | None, lookbacks: Sequence[str] = ()) -> list[Found]:
        request = pb.QueryRequest(window=window, keys=keys, lookbacks=lookbacks)
        return [from_answer(answer).aggregates for answer in self._unary("Query", request, pb.QueryResponse).answers]

    def range_query(self, window: str, key: str, start: int, end: int) -> Found:
        request = pb.RangeQueryRequest(window=window, key=key, start=start, end=end)
        return from_answer(self._unary("RangeQuery", request, pb.Answer)).aggregates

    @contextlib.contextmanager
    def watch(self, window: str, key: str, interval_ms: int) -> Iterator[Iterator[Found]]:
        request = pb.WatchRequest(query=pb.QueryRequest(window=window, key=key), interval_ms=interval_ms)
        message = request.SerializeToString()
        body = b"\0" + len(message).to_bytes(4) + message
        with self._streaming("POST", "/sash.v1.Windows/Watch", body, "application/connect+proto") as response:
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


def _check(response: http.client.HTTPResponse, text: bytes) -> None:
    if response.status < 300:
        return
    said = f"{response.status}: {text[:300].decode(errors='replace')}"
    raise Busy(said) if response.status in (429, 503) else Failed(said)
