"""Responses that are too large to be made in one go: messages which, one after the other, are the response.

    answers   [ 50 answers ] [ 50 answers ] …      a message each, made and written in a slice of its own
    proto     message message message …            protobuf reads repeated fields that follow each other as one
    JSON      {"answers": [ … , … , … ], …}        the brackets of all but the outermost are left out

A message here has one repeated field, and nothing else; a last one has what else there is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message

from sash.rpc import translate
from sash_engine.steps import Steps
from sash_engine.windows.answers import Answer, Page
from sash_proto.v1 import windows_pb2 as pb

_VALUES = 1_000
"""Values of a message: 1 ms to make it, and 0.1 ms to write it."""


Run = Callable[[Steps[bytes]], Coroutine[Any, Any, bytes]]
"""Takes steps in slices."""


class Written(Protocol):
    """How messages are written."""

    def write(self, message: Message) -> bytes:
        """One message."""

    def join(self, parts: Sequence[bytes], last: bytes) -> bytes:
        """Several messages as one."""


class Proto:
    """Protobuf's binary form; equal messages are equal bytes."""

    def write(self, message: Message) -> bytes:
        return message.SerializeToString(deterministic=True)

    def join(self, parts: Sequence[bytes], last: bytes) -> bytes:
        return b"".join([*parts, last])


PROTO = Proto()


class Parts:
    """A large response.

    Args:
        messages: makes the messages, each when it is wanted.
        last: what else there is.
        run: takes the steps in which they are made and written.
    """

    def __init__(self, messages: Iterable[Message], last: Message, run: Run) -> None:
        self._messages, self._last = messages, last
        self._run = run

    async def written(self, codec: Written) -> bytes:
        """The response as bytes."""

        def steps() -> Steps[bytes]:
            parts = []
            for message in self._messages:
                parts.append(codec.write(message))
                yield
            return codec.join(parts, codec.write(self._last))

        return await self._run(steps())


def query_response(answers: list[Answer], run: Run, missing: Sequence[int] = ()) -> pb.QueryResponse | Parts:
    """The response of a query; in parts where it is large. The answers are handed over."""
    size = max(_VALUES // (1 + len(answers[0].aggregates)), 1) if answers else 1
    position = answers.position if isinstance(answers, Page) else None
    if len(answers) <= size:
        return _message(answers, position, missing)
    answers.reverse()
    return Parts(_messages(answers, size), pb.QueryResponse(next=position, missing_shards=missing), run)


def _messages(answers: list[Answer], size: int) -> Iterator[pb.QueryResponse]:
    """Messages of up to `size` answers each, the last ones first; memory of millions of values is freed bit by bit."""
    while answers:
        some = answers[-size:]
        some.reverse()
        del answers[-size:]
        yield _message(some)


def _message(answers: Sequence[Answer], position: str | None = None, missing: Sequence[int] = ()) -> pb.QueryResponse:
    message = pb.QueryResponse(next=position, missing_shards=missing)
    for answer in answers:
        translate.fill_answer(message.answers.add(), answer)
    return message
