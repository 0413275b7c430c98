"""Authentication of gRPC calls: before a message is read, of every service of the server but health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import Any
from urllib.parse import unquote

import grpc

from sash.access.tls import Certificates, Pem, is_name
from sash.admission import Admission
from sash.context import CALL, CallContext
from sash.limits.refusals import Refusals
from sash.rpc.errors import end_with_error
from sash.runtime.metrics import Metrics
from sash_engine.errors import SashError

_OPEN = "/grpc.health.v1.Health/"


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls through that have a valid token, or a certificate with rights.

    Args:
        admission: finds out who calls.
        metrics: counts refusals.
        refusals: when calls are refused.
        guard: handles what is refused before anybody asks who calls.
    """

    def __init__(
        self, admission: Admission, metrics: Metrics, refusals: Refusals, guard: grpc.GenericRpcHandler
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._refusals = refusals
        self._guard = guard

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        if (refusing := self._guard.service(details)) is not None:
            return refusing
        CALL.set(CallContext(lambda: details.invocation_metadata))
        if not details.method.startswith(_OPEN):
            values = [value for name, value in details.invocation_metadata or () if name == "authorization"]
            if self._admission.goes_by_certificate(values):
                return self._certified(await continuation(details), details.method)
            try:
                await self._admission.identify([_bytes(value) for value in values])
            except SashError as error:
                return self._refusing(error, details.method)
        return await continuation(details)

    def _refusing(self, error: SashError, method: str) -> Any:
        # Of the kind that reads nothing before it answers, whatever the kind of the method.
        async def refuse(_: Any, context: Any) -> None:
            note_peer(context)
            await self._abort(error, method, context)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _certified(self, handler: Any, method: str) -> Any:
        """What looks at the client's certificate before a handler runs. Only the context of a call has it."""
        if handler is None:
            return None
        kind = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        serve = getattr(handler, kind)

        async def admit(context: Any) -> None:
            note_peer(context)
            try:
                await self._admission.identify((), _names_of(context))
            except SashError as error:
                await self._abort(error, method, context)

        async def answers(request: Any, context: Any) -> Any:
            await admit(context)
            async with aclosing(serve(request, context)) as responses:
                async for response in responses:
                    yield response

        async def answer(request: Any, context: Any) -> Any:
            await admit(context)
            return await serve(request, context)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        certified = answers if isasyncgenfunction(serve) else answer
        return make(certified, handler.request_deserializer, handler.response_serializer)

    async def _abort(self, error: SashError, method: str, context: Any) -> None:
        await self._refusals.turn()
        self._admission.refused(method, error)
        await end_with_error(context, error, method, self._metrics)


def server_credentials(
    certificates: Certificates, authorities: Callable[[Pem], bytes | None] = lambda pem: pem.client_ca
) -> grpc.ServerCredentials:
    """Credentials that go by the files as they are: gRPC asks at each handshake, on a thread of its own.

    Args:
        authorities: those that clients' certificates must come from; None: clients need none.
    """

    def configuration(pem: Pem) -> Any:
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], authorities(pem))

    given = certificates.pem

    def changed() -> Any:
        nonlocal given
        pem = certificates.pem
        if pem is given:
            return None
        given = pem
        return configuration(pem)

    credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        configuration(given), changed, require_client_authentication=authorities(given) is not None
    )
    return credentials


def _names_of(context: Any) -> list[str]:
    """The names in the certificate of a call's client: the common ones first; as `names_in`."""
    found = context.auth_context()
    common, others, uris = (
        [value.decode("utf-8", "replace") for value in found.get(name, ())]
        for name in ("x509_common_name", "x509_subject_alternative_name", "peer_uri")
    )
    # One that is there as something else, too, is not only a URI.
    kinds = [(name, False) for name in common] + [(name, others.count(name) == uris.count(name)) for name in others]
    return [name for name, is_uri in kinds if is_name(name, is_uri)]


def note_peer(context: Any) -> None:
    """Note which call is served, and where it comes from. Who makes it is known, where that is asked."""
    peer = context.peer()  # gRPC ends the process when a call is asked for its peer after its client has gone
    found = CALL.get()
    caller = None if found is None else found.caller
    CALL.set(CallContext(context.invocation_metadata, lambda: _address(peer), caller=caller))


def _address(peer: str) -> str:
    """An address as gRPC gives it (ipv6:%5B::1%5D:5000), as everybody else writes it."""
    return unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:"))


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
