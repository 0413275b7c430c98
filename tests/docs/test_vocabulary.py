"""One word for one thing on REST, gRPC, the Python client and the command line: compared from their declarations.

The page Calls says which calls are the same. Another test compares it with all that is served.
"""

import inspect
from dataclasses import fields
from itertools import combinations

import pytest

import sash_client
from docs.generate import lists
from docs.generate.service import ask
from sash_client.windows.keys import Grouping
from sash_proto.v1 import windows_pb2 as pb
from sash_spark.reading.question import Question
from tests.support.pages import DOCS, names_in, table_of, text_of

METHODS = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name
SINGULAR = {"lookbacks": "lookback", "aggregates": "aggregate", "keys": "key", "all_keys": "key", "parts": "key"}
"""A list is a repeated parameter in an address; a key is given in several ways."""
ELSEWHERE = {
    "window": "in the path, or whose method it is",
    "name": "in the path, or whose method it is",
    "windows": "of several windows, only in Python",
    "n": "gRPC has it within `top`",
    "order": "gRPC has it within `top`",
    "times": "REST: the form of times in answers; Python: the column of times",
    "interval": "Python has its unit in the name",
    "interval_ms": "Python has its unit in the name",
    "every_s": "REST and gRPC say milliseconds",
    "partial": "watch of Python and REST answers from all shards",
    "as_of": "watch asks about now",
    "known_at": "watch asks about now",
    "position": "Python asks for the next page by itself",
    "value": "of a single row with limits, which REST has as columns",
    "progress": "of a library",
    "timeout_s": "of a library",
    "file": "the stream of the other edges",
    "data": "the stream of the other edges",
    "derived": "of the library's copies",
    **dict.fromkeys(("columns", "bulks", "pairs", "asked", "rows", "identities", "ids"), "forms of Python"),
    **dict.fromkeys(("fields", "entries", "partials", "time", "key"), "columns, which Python takes as such"),
    **dict.fromkeys(("producer", "sequence", "epoch", "after"), "numbers, which a stage has not"),
}
"""Words that an edge has alone, and where the others have the thing."""
CALLS = [
    [names_in(cell) for cell in row[:3]] for row in table_of(text_of(DOCS / "reference" / "calls.md"), "REST", "gRPC")
]

WHOLE = [["POST /v1/windows"], ["POST /v1/windows/{name}/aggregates"]]
"""Calls of REST whose body is what the others call `spec` and `aggregates`."""
COMMANDS = {
    "query": "query",
    "range": "range_query",
    "series": "series",
    "entries": "entries",
    "keys": "keys",
    "watch": "watch",
    "answers-at": "answers_at",
    "data evict": "bulk_evict",
    "data punctuate": "punctuate",
}
OPTIONS = {
    "name": "the window",
    "target": "which service",
    "ascending": "the other order",
    "through": "time, of an eviction",
    **dict.fromkeys(("ticks", "json", "sparkline"), "how answers are shown"),
    **dict.fromkeys(("last", "every", "times"), "of people who wait before a terminal"),
    **dict.fromkeys(("pairs", "output", "with", "time"), "columns of files"),
}
"""Options that no method has."""


def of_rest(call):
    verb, path = call.split()
    operation = ask().openapi["paths"][path][verb.lower()]
    words = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return words | (members(content["schema"]) if content else set())


def members(schema):
    while "$ref" in schema:
        schema = ask().openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    below = [each for kind in ("allOf", "anyOf", "oneOf") for each in schema.get(kind, ())]
    return set(schema.get("properties", ())).union(*map(members, below))


def of_grpc(method):
    return of_message(METHODS[method].input_type) if method in METHODS else set()


def of_message(message):
    """Its fields; in the place of a whole request within it, those of that."""
    words = set()
    for field in message.fields:
        inside = field.message_type
        words |= of_message(inside) if inside is not None and inside.name.endswith("Request") else {field.name}
    return words


def of_python(name):
    owner, method = name.split(".")
    _, *named = inspect.signature(getattr(getattr(sash_client, owner), method)).parameters
    words = set(named)
    return words - {"grouping"} | set(Grouping.__annotations__) if "grouping" in words else words


def words_of(read, names):
    return {SINGULAR.get(word, word) for name in names for word in read(name)}


def edges_of(call):
    """The words of a call on each edge that has it."""
    reads = (of_rest, of_grpc, of_python)
    return [words_of(read, names) for read, names in zip(reads, call, strict=True) if names]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: (call[0] or call[1])[0])
def test_edges_have_the_same_words(call):
    if call[0] in WHOLE:
        return
    found = edges_of(call)
    for some, others in combinations(found, 2):
        assert some ^ others <= set(ELSEWHERE), f"{call}: {sorted((some ^ others) - set(ELSEWHERE))}"


def test_no_word_is_listed_in_vain():
    used = set()
    for call in (each for each in CALLS if each[0] not in WHOLE):
        found = [
            words_of(read, names) for read, names in zip((of_rest, of_grpc, of_python), call, strict=True) if names
        ]
        used |= set().union(*(some ^ others for some, others in combinations(found, 2)))
    assert set(ELSEWHERE) <= used, set(ELSEWHERE) - used


@pytest.mark.parametrize(("command", "method"), COMMANDS.items())
def test_commands_have_the_words_of_the_client(command, method):
    options = {max(each.opts, key=len).lstrip("-").replace("-", "_") for each in lists.all_commands()[command].params}
    known = words_of(of_python, [f"Window.{method}"]) | {"where", "by", "top", "n", "having", "time"}
    assert {SINGULAR.get(word, word) for word in options} - set(OPTIONS) <= known


def test_spark_has_the_words_of_the_client():
    known = words_of(of_python, [f"Window.{method}" for method in ("query", "series", "entries")])
    own = {"target", "window", "what", "partitions", "timeout_s", "login", "delay"}
    assert {SINGULAR.get(each.name, each.name) for each in fields(Question)} - own <= known
