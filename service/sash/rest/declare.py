"""Declarations of routes. Each route is declared once, on its handler, in a module of `sash.rest.routes`.

    @READS.route(
        "GET", "/v1/windows/{name}/keys", "The keys that have entries, page by page",
        right="read", answers={200: answer("Some of the keys", "Keys")}, errors=(INVALID, UNKNOWN),
    )
    async def keys(call: Call, name: Name, prefix: Annotated[str | None, Parameter("…")] = None) -> dict[str, Any]:

`router` serves the declarations, and `openapi` describes them. A handler returns a JSON document as a dict or as bytes,
which is answered with the lowest status of `answers`, or a `Response`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import getdoc, iscoroutinefunction
from typing import Any, Literal, TypeVar

from sash.rest.bodies import JSON
from sash.rest.parameters import Declared, Parser, declared_by
from sash.rest.problems import MEDIA_TYPE

__all__ = ["SAFE", "Body", "Problems", "Right", "Route", "RouteGroup", "answer", "either", "reference"]

Right = Literal["read", "write", "admin"]
"""A right of a caller. `admin`: to create, delete and import windows, and to change their aggregates."""

Problems = Mapping[int, str]
"""Errors, by status."""

SAFE = ("GET", "HEAD")
"""The methods that change nothing."""

Handler = TypeVar("Handler", bound=Callable[..., Any])

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
_ANY: Problems = {503: "As many requests as allowed are in progress; Retry-After says when to try again"}


def reference(schema: str, example: Any = None) -> dict[str, Any]:
    """Return content with a named schema, as OpenAPI describes it."""
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return content if example is None else {**content, "example": example}


def answer(description: str, schema: str, example: Any = None) -> dict[str, Any]:
    """Return an answer in JSON, as OpenAPI describes it."""
    return {"description": description, "content": {JSON: reference(schema, example)}}


def either(description: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in JSON that has one of several schemas, with an example of each."""
    content = {
        "schema": {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in schemas]},
        "examples": {name: {"value": example} for name, example in schemas.items()},
    }
    return {"description": description, "content": {JSON: content}}


class Body:
    """The body of a request.

    Args:
        contents: the media types that the route takes, as OpenAPI describes them.
        also: other names of these media types.
        bytes_max: a limit below `SASH_MAX_BODY_BYTES`.
    """

    def __init__(
        self,
        contents: Mapping[str, Mapping[str, Any]],
        also: Mapping[str, str] | None = None,
        bytes_max: int | None = None,
    ) -> None:
        self.contents = contents
        self.bytes_max = bytes_max
        self.kinds: Mapping[str, str] = {**{kind: kind for kind in contents}, **(also or {})}
        """The media types by all their names."""


class Route:
    """One route; the arguments are those of `RouteGroup.route`."""

    def __init__(
        self,
        tag: str,
        method: str,
        path: str,
        summary: str,
        handler: Callable[..., Any],
        right: Right | None,
        answers: Mapping[int, Mapping[str, Any]],
        errors: Iterable[Problems],
        body: Body | None,
        head: bool,
        quick: bool,
    ) -> None:
        self.tag, self.method, self.path, self.summary = tag, method, path, summary
        self.handler, self.right, self.body, self.head, self.quick = handler, right, body, head, quick
        self.name = handler.__name__
        self.awaited = iscoroutinefunction(handler)
        self.status = min(answers)
        self._answers = answers
        about_body = _BODY if body is not None else {} if method in SAFE else _NO_BODY
        self._problems = _any_of(*errors, about_body, _ANY, _GUARDED if right is not None else {})
        self._parameters = declared_by(handler, path)
        asked = [each for each in self._parameters if not each.in_path]
        # Routes without parameters ignore the query string.
        self._parsers = {
            kind: Parser(each for each in asked if _goes_with(each, kind)) if asked else None
            for kind in (None, *(() if body is None else body.contents))
        }

    def parse(self, query_string: bytes, kind: str | None = None) -> dict[str, Any]:
        """Return the parameters that are given, as keyword arguments of the handler.

        Args:
            kind: the media type of the body, where the route has one.

        Raises:
            InvalidArgument: a parameter is unknown, missing, given twice, or has a wrong value.
        """
        parser = self._parsers[kind]
        return {} if parser is None else parser.parse(query_string)

    def document(self) -> dict[str, Any]:
        """Return the route as OpenAPI describes it."""
        made: dict[str, Any] = {"tags": [self.tag], "summary": self.summary, "operationId": self.name}
        if (description := getdoc(self.handler)) is not None:
            made["description"] = description
        if self.right is not None:
            made["x-sash-right"] = self.right
            made["security"] = [{"token": []}, {}]  # a service without tokens asks for none
        if self._parameters:
            made["parameters"] = [each.document() for each in self._parameters]
        if self.body is not None:
            made["requestBody"] = {"required": True, "content": self.body.contents}
        responses = {str(status): found for status, found in self._answers.items()}
        for status, description in sorted(self._problems.items()):
            responses[str(status)] = {"description": description, "content": {MEDIA_TYPE: reference("Problem")}}
        return made | {"responses": responses}


class RouteGroup:
    """Routes under one heading of the documentation."""

    def __init__(self, tag: str, description: str) -> None:
        self.tag = tag
        self.description = description
        self.routes: list[Route] = []

    def route(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        right: Right | None,
        answers: Mapping[int, Mapping[str, Any]],
        errors: Iterable[Problems] = (),
        body: Body | None = None,
        head: bool = False,
        quick: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare a route.

        The handler's name is the operation's id, its docstring the description, and its signature declares the
        parameters.

        Args:
            method: of HTTP.
            path: with ``{name}`` for the window's name, which is the handler's second argument.
            summary: what the route does, in a line.
            right: the right that the caller needs; None: no right.
            answers: the successful answers, by status, as OpenAPI describes them.
            errors: the errors of this route, beside those of all routes.
            body: the media types of the body; None: the route takes no body.
            head: whether the route answers HEAD, too, as monitors ask.
            quick: whether small requests may be answered while they are read. The handler may not need a task of its
                own until it waits for the first time.
        """

        def declare(handler: Handler) -> Handler:
            self.routes.append(
                Route(self.tag, method, path, summary, handler, right, answers, errors, body, head, quick)
            )
            return handler

        return declare


def _goes_with(parameter: Declared, kind: str | None) -> bool:
    return parameter.about.only_with is None or kind in parameter.about.only_with


def _any_of(*groups: Problems) -> Problems:
    """Merge problems by status: `There is no such window. Or the tier is full`."""
    merged: dict[int, str] = {}
    for group in groups:
        for status, text in group.items():
            merged[status] = f"{merged[status]}. Or {text[0].lower()}{text[1:]}" if status in merged else text
    return merged
