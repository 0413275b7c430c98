"""The REST calls, from the OpenAPI document that a service answers with."""

from __future__ import annotations

import json
import re
from typing import Any

from docs.generate.service import ask
from docs.generate.text import anchor, code, table


def operations(tag: str) -> str:
    """The paths and methods with a tag: parameters, body, answers and errors. Their documents are on the page REST."""
    calls = (
        _operation(f"{method.upper()} {path}", operation)
        for path, methods in ask().openapi["paths"].items()
        for method, operation in methods.items()
        if operation["tags"] == [tag]
    )
    return "\n".join(calls).replace("](#", "](rest.md#")


def _operation(call: str, operation: dict[str, Any]) -> str:
    parts = [f"## {call}\n", f"{operation['summary']}.\n"]
    parameters = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
    if parameters:
        rows = [
            (
                code(parameter["name"]),
                type_of(parameter["schema"]),
                "required" if parameter.get("required") else default_of(parameter["schema"]),
                parameter.get("description", ""),
            )
            for parameter in parameters
        ]
        parts.append(table(("parameter", "type", "default", "meaning"), rows))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"Body, `{kind}`: {type_of(content['schema'])}\n")
        parts += _examples(kind, content)
    rows = []
    for status, response in operation["responses"].items():
        contents = [_content(kind, each) for kind, each in response.get("content", {}).items()]
        rows.append((status, "; ".join(contents), response["description"]))
    parts.append(table(("status", "body", "meaning"), rows))
    return "\n".join(parts)


def _content(kind: str, content: dict[str, Any]) -> str:
    """The type of a response. `itemSchema` describes one item of a stream."""
    if "itemSchema" in content:
        return f"`{kind}`: a stream of {type_of(content['itemSchema'])}"
    # An error is always the same kind of document.
    found = type_of(content["schema"])
    return found if kind == "application/problem+json" else f"`{kind}`: {found}"


def _examples(kind: str, content: dict[str, Any]) -> list[str]:
    name = content["schema"].get("$ref", "").rsplit("/", 1)[-1]
    shown = ask().openapi["components"]["schemas"].get(name, {}).get("examples", [])
    shown = [content["example"]] if "example" in content else shown
    named = content.get("examples") or ({"": {"value": shown[0]}} if shown else {})
    return [
        f"{f'Example: {name}.' if name else 'Example:'}\n\n{_fenced(kind, example['value'])}"
        for name, example in named.items()
    ]


def _fenced(kind: str, value: Any) -> str:
    if isinstance(value, str):
        return f"```yaml\n{value.strip()}\n```\n"
    return f"```json\n{_LIST.sub(_in_one_line, json.dumps(value, indent=2))}\n```\n"


_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")


def _in_one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"


def schemas() -> str:
    """The documents that bodies and answers are."""
    parts = []
    for name, schema in ask().openapi["components"]["schemas"].items():
        parts.append(f"### {name}\n")
        if "description" in schema:
            parts.append(schema["description"].replace("``", "`") + "\n")
        rows = []
        for member, found in schema.get("properties", {}).items():
            always = "yes" if member in schema.get("required", ()) else ""
            rows.append((code(member), type_of(found), always, found.get("description", "")))
        if rows:
            parts.append(table(("member", "type", "always there", "meaning"), rows))
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and others:
            parts.append(f"Further members: {type_of(others)}.\n")
    return "\n".join(parts)


def type_of(schema: dict[str, Any], named: bool = True) -> str:
    """A JSON schema in a few words; with links to those that have a heading of their own where `named`."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{anchor(name)})" if named else "a mapping, see below"
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    if "anyOf" in schema:
        kinds = [type_of(each, named) for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    kind = schema.get("type", "any value")
    if isinstance(kind, list):
        return " or ".join(each for each in kind)
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {type_of(items, named)}" if items else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        others = schema["additionalProperties"]
        inner = type_of(others, named) if others else "any value"
        return f"mapping of name to {'an aggregate' if not named and '$ref' in others else inner}"
    if kind == "string" and schema.get("format") == "binary":
        return "bytes"
    name = "int64" if schema.get("format") == "int64" else str(kind)
    words = {"minimum": "at least", "maximum": "at most"}
    bounds = [f"{word} {_number(schema[bound])}" for bound, word in words.items() if bound in schema]
    return f"{name}, {', '.join(bounds)}" if bounds else name


def _number(value: int) -> str:
    """A number with commas; a large power of two as one."""
    bits = value.bit_length() - 1
    return f"2^{bits}" if bits > 40 and value == 1 << bits else f"{value:,}"


def default_of(schema: dict[str, Any]) -> str:
    """The default of a schema as text; nothing where there is none."""
    found = schema.get("default")
    if found in (None, []):
        return ""
    if isinstance(found, dict):
        return "" if "$ref" in schema else code(json.dumps(found))
    return code(json.dumps(found).strip('"'))
