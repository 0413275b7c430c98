"""The methods of `sash.v1.Windows` as a table, from which each protocol serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from sash.rpc.operations import Operations
from sash_proto.v1 import windows_pb2 as pb

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["Windows"]

SERVICE: str = _DESCRIPTOR.full_name


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the service.

    Attributes:
        call: takes a request or an iterator of them; returns a coroutine of a response, or an iterator of responses.
        reads_only: it changes nothing, so a request may be repeated, or cached.
        service: it is a method of.
        bytes_max: a longer message is refused; None: only the server's limit holds.
        parsed: so many times its length a large message takes once it is parsed. Of ours, numbers take less, short
            texts up to ten times.
    """

    name: str
    call: Callable[[Any], Any]
    request: type[Message]
    streams_requests: bool
    streams_responses: bool
    reads_only: bool
    service: str = SERVICE
    bytes_max: int | None = None
    parsed: int = 4

    @property
    def path(self) -> str:
        """The path by which gRPC calls it."""
        return f"/{self.service}/{self.name}"


def methods(operations: Operations) -> Mapping[str, Method]:
    """Every method of the service by name."""
    return {
        method.name: Method(
            method.name,
            getattr(operations, method.name),
            GetMessageClass(method.input_type),
            method.client_streaming,
            method.server_streaming,
            method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS,
        )
        for method in _DESCRIPTOR.methods
    }
