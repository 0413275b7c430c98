"""Routes of FastAPI as REST serves them: who may call comes first, then the parameters, then the body, as limits allow.

    @READS.get(
        "/v1/windows/{name}/keys", summary="The keys that have entries, page by page",
        response_model=Keys, response_description="Some of the keys", openapi_extra=needs("read"),
    )
    async def keys(call: Call, name: Name, asked: Annotated[Listing, Query()]) -> dict[str, Any]:

FastAPI reads the declaration, and makes the OpenAPI document of it. A handler has the request as `Call`; it may have
the window's name, `Parameters`, and a `Document`. It returns a JSON document as a dict or as bytes, which is answered
with the route's status, or a `Response`.

FastAPI's own way of serving a route reads the body before it asks for rights, takes more than RFC 8259 does, and costs
120 µs a call, as much as the rest of a call. So `Route` serves itself, in the 20 µs that FastAPI's routing takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from inspect import iscoroutinefunction
from types import UnionType
from typing import Any, Literal, get_args

import orjson
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from sash.rest.answers import json_bytes
from sash.rest.bodies import JSON, Gone
from sash.rest.call import SAFE, Call, Edge
from sash.rest.connection import Whole
from sash.rest.documents import Problem, reference
from sash.rest.models import Document, Parameters
from sash.rest.problems import MEDIA_TYPE, of_error, of_status
from sash_engine.errors import NotFound
from sash_wire import traces

Right = Literal["read", "write", "admin"]
"""A right of a caller. `admin`: to create, delete and import windows, and to change their aggregates."""

Problems = Mapping[int, str]
"""Errors, by status."""

_BODY: Problems = {
    413: "The body, or the number of entries in it, is too large",
    415: "The Content-Type is not taken here",
}
_NO_BODY: Problems = {415: "The request has a body whose Content-Type is not application/json"}
_GUARDED: Problems = {
    401: "The service asks for tokens, and the request has no valid one",
    403: "The token lacks the right that the route needs on this window",
    429: "The token has used up its quota; Retry-After says when it has room",
}
_INVALID: Problems = {400: "The request is wrong; `field` says where"}
_UNKNOWN: Problems = {404: "There is no such window"}
STORED: Problems = {
    409: "Another server has taken the tier over",
    500: "A stored value that this needs is damaged or lost",
    503: "The tier cannot be reached, or has not confirmed a write, which may be applied then: `detail` says so. "
    "Retry-After says when to try again",
}
_STORING: Problems = {**STORED, 507: "The tier is full; evicting entries or deleting windows makes room"}
_ANY: Problems = {503: "As many requests as allowed are in progress; Retry-After says when to try again"}


def needs(right: Right | None, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what FastAPI does not know of a route.

    Args:
        right: the right that the caller needs; None: no right.
        body: the media types of the body, as OpenAPI describes them; not of a handler with a `Document`.
    """
    made: dict[str, Any] = {}
    if right is not None:
        # A service without tokens asks for none.
        made |= {"x-sash-right": right, "security": [{"token": []}, {}]}
    return made if body is None else made | {"requestBody": {"required": True, "content": dict(body)}}


def content(model: type, example: Any = None) -> dict[str, Any]:
    """Return content with the schema of a model, and an example of it where the model has none."""
    return {"schema": reference(model)} | ({} if example is None else {"example": example})


def told(*groups: Mapping[Any, Any]) -> dict[int | str, dict[str, Any]]:
    """Return answers and problems by status; of problems with one status: `There is no such window. Or …`."""
    made: dict[int | str, dict[str, Any]] = {}
    for group in groups:
        for status, text in group.items():
            if not isinstance(text, str):
                made[status] = text
                continue
            if status in made:
                text = f"{made[status]['description']}. Or {text[0].lower()}{text[1:]}"
            made[status] = {"description": text, "content": {MEDIA_TYPE: {"schema": reference(Problem)}}}
    return dict(sorted(made.items(), key=lambda each: int(each[0])))


class Route(APIRoute):
    """One route, declared by FastAPI's decorators."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        model = given.get("response_model")
        # FastAPI would make a validator of it for each route, a tenth of a start, though `handle` needs none.
        given["response_model"] = None
        super().__init__(path, endpoint, **{**given, "operation_id": endpoint.__name__})
        extra = self.openapi_extra or {}
        self.method = next(iter(self.methods or ()))
        self.right: Right | None = extra.get("x-sash-right")
        self.kinds = tuple(extra.get("requestBody", {}).get("content", [JSON] if self.body_field else ()))
        """The media types of the body; none where the route takes no body."""
        self._end = path.rpartition("}")[2]
        self._awaited = iscoroutinefunction(endpoint)
        self._status = self.status_code or 200
        self._call = self.dependant.request_param_name or "call"
        self._asked, self.parameters = _declared(self.dependant.query_params, Parameters)
        self._sent, self._document = _declared(self.dependant.body_params, Document)
        declared = (self._asked, self.parameters), (self._sent, self._document)
        of_window = "{name}" in path
        self._with_times = [name for name, kind in declared if of_window and kind is not None and kind.time_members]
        """The arguments that may have times of the window."""
        if isinstance(model, type | UnionType):
            schemas = [reference(each) for each in get_args(model) or (model,)]
            answers = self.responses.setdefault(self._status, {})
            kind = {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
            answers["content"] = answers.get("content", {}) | kind
        self.responses = told(
            self.responses,
            _INVALID if self.parameters is not None or self.kinds else {},
            _UNKNOWN if of_window else {},
            _BODY if self.kinds else {} if self.method in SAFE else _NO_BODY,
            {} if self.method in SAFE else _STORING,
            _ANY,
            _GUARDED if self.right is not None else {},
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a path; the end tells nearly all apart, without the 1 µs of an expression."""
        return super().matches(scope) if scope["path"].endswith(self._end) else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this path, as its handler says."""
        app, name = scope["app"], scope["path_params"].get("name")
        edge: Edge = app.edge
        found: Any
        if scope["method"] != self.method:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(app.methods(self.path))})
        if traces.tracer is not None:
            traces.rename(f"{scope['method']} {self.path}")
        pretty = b"pretty" in scope["query_string"] and _takes_pretty(scope)
        try:
            if edge.admit is not None and self.right is not None:
                edge.admit(scope, self.right, name)
            call = Call(edge, scope, receive, self.kinds)
            given: dict[str, Any] = {self._call: call}
            if name is not None:
                given["name"] = name
            if self.parameters is not None:
                given[self._asked] = self.parameters.read(scope["query_string"], call.kind)
            if self._document is not None:
                given[self._sent] = self._document.read(await call.json(bytes_max=self._document.bytes_max))
            for argument in self._with_times:
                if given[argument].has_times_to_read:
                    unit = (await edge.plane.look_up(name)).time_unit
                    given[argument] = given[argument].with_times(unit, edge.plane.now_ns)
            found = self.endpoint(**given)
            if self._awaited:
                found = await found
            if type(found) is dict:
                found = json_bytes(found)
            if type(found) is bytes:
                found = Whole(self._status, b"application/json", found, b"\n")
        except Gone:
            return
        except Exception as error:
            taken = app.methods(scope["path"]) if isinstance(error, NotFound) else ()
            if taken and scope["method"] not in taken:
                found = wrong_method(scope, taken)  # a window may be called `import`, but none is
            else:
                found = of_error(error, scope["method"], scope["path"])
        if pretty:
            found = _pretty(found)
        if isinstance(found, Response) and found.status_code >= HTTPStatus.BAD_REQUEST:
            app.metrics.count_rejected("rest", str(int(found.status_code)))
        await found(scope, receive, send)


_PRETTY = frozenset((b"pretty", b"pretty=", b"pretty=true"))
"""The parameter of all routes that asks for JSON with line breaks."""

_PRETTY_BYTES_MAX = 1 << 20
"""A longer answer stays as it is: this takes 20 ms."""


def _takes_pretty(scope: Scope) -> bool:
    """Take the parameter out of a request; return whether it was there."""
    asked = scope["query_string"].split(b"&")
    scope["query_string"] = b"&".join([each for each in asked if each not in _PRETTY])
    return not _PRETTY.isdisjoint(asked)


def _pretty(answer: Whole | Response) -> Whole | Response:
    """Return an answer with line breaks, if it is JSON that people can read."""
    body = answer.body if isinstance(answer, Whole) else getattr(answer, "body", b"")
    kind = answer.kind if isinstance(answer, Whole) else (answer.media_type or "").encode()
    if not kind.endswith(b"json") or not 0 < len(body) <= _PRETTY_BYTES_MAX:
        return answer
    document = json.loads(body)
    try:
        lines = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an integer of more than 64 bits
        lines = json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
    if isinstance(answer, Whole):
        return Whole(answer.status, answer.kind, lines)
    answer.body = lines
    answer.headers["content-length"] = str(len(lines))
    return answer


def wrong_method(scope: Scope, methods: Iterable[str]) -> Response:
    """Return the problem document of a path that does not take a method."""
    taken = ", ".join(sorted(methods))
    detail = f"{scope['path'][:200]} takes {taken}, not {scope['method']}"
    return of_status(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"allow": taken})


def _declared(fields: Iterable[Any], kind: type[Any]) -> tuple[str, Any]:
    """Return the name and the model of the argument of a handler that is of a kind."""
    for field in fields:
        model = field.field_info.annotation
        assert issubclass(model, kind), f"declare {field.name} as {kind.__name__}"
        return field.name, model
    return "", None
