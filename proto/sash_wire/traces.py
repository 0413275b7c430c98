"""Traces by OpenTelemetry, where somebody asks for them: spans of calls, of operations, and of commits.

    client call ─── traceparent ──▶ operation ─┬─▶ commit
                                               └─▶ client call ─── traceparent ──▶ operation of another process

`tracer` is None until `begin`, and OpenTelemetry is imported only then. While tracing is off, it costs one look at
`tracer`.

Source: W3C Trace Context (the headers `traceparent` and `tracestate`), OpenTelemetry's conventions for RPCs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

__all__ = [
    *(
        "begin",
        "called",
        "calling",
        "carried",
        "commits",
        "context",
        "end",
        "export",
        "fail",
        "operating",
        "rename",
        "serving",
    ),
    "tracer",
]

tracer: Any = None
"""Makes the spans of this process; None while nobody asks for any."""

_ending: set[asyncio.Task[None]] = set()
R = TypeVar("R")
_Metadata = tuple[tuple[str, str], ...]


def begin(provider: Any = None) -> None:
    """Make spans from now on.

    Args:
        provider: OpenTelemetry's tracer provider; the process's own if it is None.
    """
    global tracer
    from opentelemetry import trace

    tracer = (provider or trace.get_tracer_provider()).get_tracer("sash")


def export(service: str) -> Any:
    """Make spans, and send them where OpenTelemetry's environment variables say (``OTEL_EXPORTER_OTLP_ENDPOINT``).

    Args:
        service: the name of this program, unless ``OTEL_SERVICE_NAME`` has another.

    Returns:
        the provider; its `shutdown` sends what is left.
    """
    from os import environ

    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if "OTEL_SERVICE_NAME" in environ else {"service.name": service})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    begin(provider)
    return provider


def end() -> None:
    """Make no spans any more."""
    global tracer
    tracer = None


def carried() -> _Metadata:
    """Return the headers by which another process continues the current trace; none while tracing is off."""
    if tracer is None:
        return ()
    headers: dict[str, str] = {}
    _propagator().inject(headers)
    return tuple(headers.items())


def called(
    call: Callable[..., Any], method: str, target: str, metadata: _Metadata, request: tuple[Any, ...], options: Any
) -> Any:
    """Make a gRPC call in a span of its own, which ends with the call."""
    span, headers = _of_call(method, target, metadata, "grpc")
    try:
        answer = call(*request, metadata=headers, **options)
    except BaseException as error:
        _fail(span, error.code().name if hasattr(error, "code") else type(error).__name__)
        span.end()
        raise
    if hasattr(answer, "add_done_callback"):
        answer.add_done_callback(lambda done: _ended(span, done))
    else:
        span.end()
    return answer


@contextmanager
def calling(method: str, target: str, metadata: _Metadata) -> Iterator[_Metadata]:
    """Make a call of Connect in a span of its own; yields the headers that go with the call."""
    span, headers = _of_call(method, target, metadata, "connect_rpc")
    try:
        yield headers
    except BaseException as error:
        _fail(span, getattr(error, "code", type(error).__name__))
        raise
    finally:
        span.end()


@contextmanager
def serving(name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> Iterator[Any]:
    """Serve a call in a span that continues the caller's trace. The call must have a task of its own.

    The span stays the current one of the task: a generator may be closed in another context, where nothing can be
    taken back.
    """
    from opentelemetry.context import attach
    from opentelemetry.trace import SpanKind, set_span_in_context

    span = tracer.start_span(
        name, context=_propagator().extract(headers), kind=SpanKind.SERVER, attributes=dict(attributes)
    )
    attach(set_span_in_context(span))
    try:
        yield span
    finally:
        span.end()


@contextmanager
def operating(name: str, attributes: Mapping[str, str]) -> Iterator[None]:
    """Do an operation in a span of its own."""
    with tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except Exception as error:
            _fail(span, type(error).__name__)
            raise


def context() -> Any:
    """Return the current context, for `commits`; None while tracing is off."""
    if tracer is None:
        return None
    from opentelemetry.context import get_current

    return get_current()


def rename(name: str) -> None:
    """Give the current span another name."""
    if tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().update_name(name)


def fail(code: str) -> None:
    """Note that what the current span is about ended with an error."""
    if tracer is not None:
        from opentelemetry.trace import get_current_span

        _fail(get_current_span(), code)


@contextmanager
def commits(contexts: Iterable[Any], attributes: Mapping[str, int]) -> Iterator[None]:
    """Commit records in a span for each trace that they come from.

    Args:
        contexts: of the records; None where there is none.
    """
    if tracer is None:
        yield
        return
    from opentelemetry.trace import get_current_span

    parents = {get_current_span(each).get_span_context().span_id: each for each in contexts if each is not None}
    parents.pop(0, None)
    spans = [tracer.start_span("commit", context=each, attributes=dict(attributes)) for each in parents.values()]
    try:
        yield
    except BaseException as error:
        for span in spans:
            _fail(span, type(error).__name__)
        raise
    finally:
        for span in spans:
            span.end()


def _of_call(method: str, target: str, metadata: _Metadata, system: str) -> tuple[Any, _Metadata]:
    """Begin the span of a call; return it, and the headers by which the service continues the trace."""
    from opentelemetry.trace import SpanKind, set_span_in_context

    span = tracer.start_span(
        f"sash.v1.Windows/{method}",
        context=_propagator().extract(dict(metadata)) if any(name == "traceparent" for name, _ in metadata) else None,
        kind=SpanKind.CLIENT,
        attributes={"rpc.system": system, "rpc.method": method, "server.address": target},
    )
    headers = {name: value for name, value in metadata if name not in ("traceparent", "tracestate")}
    _propagator().inject(headers, context=set_span_in_context(span))
    return span, tuple(headers.items())


def _ended(span: Any, call: Any) -> None:
    """End the span of a call: a future of the blocking client, or a call of the one that awaits."""
    code = call.code()
    if not isinstance(code, Coroutine):
        _end(span, code)
        return
    import asyncio  # only its users have imported it

    async def finish() -> None:
        _end(span, await code)

    # The status is there: this waits for nothing.
    task = asyncio.ensure_future(finish())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


def _end(span: Any, code: Any) -> None:
    if code.name != "OK":
        _fail(span, code.name)
    span.end()


def _fail(span: Any, code: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code))


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
