"""The edges as drivers: a scenario is written once, in REST's documents, and runs over each of them.

    edge.do("insert", "w", time=1, value=2.0)      REST's answer, as plain values; or `Refused`

    rest      JSON over HTTP                      grpc      messages, by gRPC
    sharded   the same, to a service of shards    connect   messages, by Connect
    client    the blocking client, over gRPC      awaited   the client for asyncio, over Connect

Questions say `key`: None (or nothing), a key or a list of keys; and `all_keys`. A float that JSON does not have is a
text in what comes back, and may be one in what is given. The answer of a `watch` is its first event.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from io import BytesIO
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import pytest
from google.rpc import error_details_pb2

from sash_client import ALL_KEYS, SashClientError
from sash_client.answers import Limit
from sash_client.errors import from_rpc
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.labels import read_condition, read_having
from tests.support import shown
from tests.support.either_client import opened
from tests.support.shown import SPECIALS

EDGES = ("rest", "sharded", "grpc", "connect", "client", "awaited")
ONE_STORE = tuple(name for name in EDGES if name != "sharded")


def over(*kinds: str) -> Any:
    """The drivers that a test with the fixture `edge` runs over, where it is not each."""
    return pytest.mark.parametrize("edge", kinds, indirect=True)


class Refused(NamedTuple):
    """What an error says to programs, and to people."""

    reason: str
    field: str | None = None
    limit: str | None = None
    message: str = ""


def edge_of(kind: str, services: Any, stack: ExitStack) -> Any:
    """A driver; `services(sharded)` is what it talks to, and it ends with the stack."""
    running = services(kind == "sharded")
    match kind:
        case "rest" | "sharded":
            return OverRest(running.http())
        case "grpc":
            return OverGrpc(running.stub())
        case "connect":
            return OverConnect(running.http())
        case "client":
            return OverClient(stack.enter_context(opened("blocking", running.grpc_target, timeout_s=120)))
    return OverClient(
        stack.enter_context(opened("awaited", running.rest_url, grpc_target=running.grpc_target, timeout_s=120))
    )


class Edge:
    """What all drivers share: the specs of the windows that they made."""

    def __init__(self) -> None:
        self.specs: dict[str, Any] = {}

    def do(self, call: str, window: str | None = None, **given: Any) -> Any:
        """Make a call; its answer as a document, or what the refusal says."""
        found = self._do(call, window, dict(given))
        if call == "create" and not isinstance(found, Refused):
            self.specs[given["name"]] = given
        return found

    def made(self, call: str, window: str | None = None, **given: Any) -> Any:
        """As `do`, of what must not be refused."""
        found = self.do(call, window, **given)
        assert not isinstance(found, Refused), (call, found)
        return found

    def clear(self) -> None:
        """Delete all windows, those first that others feed."""
        names = [each["spec"]["name"] for each in self.made("list")["windows"]]
        while names:
            names = [name for name in names if isinstance(self.do("delete", name), Refused)]

    def _do(self, call: str, window: str | None, given: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _spec(self, window: str | None) -> dict[str, Any]:
        return self.specs.get(window or "", {})

    def _types(self, window: str | None) -> dict[str, str]:
        return self._spec(window).get("fields") or {"value": "float64"}


# ---------------------------------------------------------------- REST

ROUTES = {
    "create": ("POST", ""),
    "list": ("GET", ""),
    "describe": ("GET", "/{}"),
    "delete": ("DELETE", "/{}"),
    "add_aggregates": ("POST", "/{}/aggregates"),
    "stage": ("POST", "/{}/stage"),
    **{name: ("GET", f"/{{}}/{name}") for name in ("query", "range", "series", "watch", "keys", "entries")},
}


class OverRest(Edge):
    def __init__(self, http: httpx.Client) -> None:
        super().__init__()
        self.http = http

    def call(self, method: str, path: str, **request: Any) -> Any:
        with self.http.stream(method, f"/v1/windows{path}", **request) as response:
            if response.headers["content-type"].startswith("text/event-stream"):
                data = next(line for line in response.iter_lines() if line.startswith("data: "))
                return json.loads(data.removeprefix("data: "))
            response.read()
        document = response.json()
        if response.is_success:
            return document
        return Refused(
            document.get("reason", document["title"]), document.get("field"), document.get("limit"), document["detail"]
        )

    def _do(self, call: str, window: str | None, given: dict[str, Any]) -> Any:
        method, path = ROUTES.get(call, ("POST", f"/{{}}/{call}"))
        beside = {"stage": ("query", "batch"), "answers-at": ("lookback", "where", "aggregate")}.get(call, ())
        asked = {name: given.pop(name) for name in beside if name in given}
        if method != "POST":
            asked, given = {name: _parameter(value) for name, value in given.items() if value is not None}, {}
        return self.call(method, path.format(window), params=asked, json=given if method == "POST" else None)

    def copied(self, window: str, name: str, change: Callable[[bytes], bytes] = bytes) -> Any:
        """Export a window, and import it under a name; `change` may make another file of it."""
        exported = self.http.get(f"/v1/windows/{window}/export")
        file = {"content": change(exported.content), "headers": {"content-type": exported.headers["content-type"]}}
        return self.call("POST", "/import", params={"name": name}, **file)


def _parameter(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


# ---------------------------------------------------------------- messages

METHODS = {
    "create": ("CreateWindow", lambda found: shown.window(found.window)),
    "list": ("ListWindows", lambda found: {"windows": [shown.window(each) for each in found.windows]}),
    "describe": ("GetWindow", shown.window),
    "delete": ("DeleteWindow", lambda found: {"entries": found.entries}),
    "add_aggregates": ("AddAggregates", shown.window),
    "insert": ("Insert", shown.written),
    "bulk-insert": ("BulkInsert", shown.written),
    "admit": ("Admit", shown.admitted),
    "bulk-evict": ("BulkEvict", lambda found: {"evicted": found.evicted} | shown.given_to(found)),
    "retract": ("Retract", shown.changed),
    "update": ("Update", shown.changed),
    "punctuate": ("Punctuate", lambda found: {"evicted": found.evicted, "durability": found.durability}),
    "stage": ("StageBatch", lambda found: {name: getattr(found, name) for name in ("stage", "entries", "durability")}),
    "commit": ("CommitBatch", shown.written),
    "query": ("Query", lambda found: shown.page(found, {"answers": shown.answers(found)})),
    "watch": ("Watch", lambda looks: {"answers": shown.answers(next(iter(looks)))}),
    "answers-at": ("AnswersAt", lambda found: {"answers": shown.answers_at(found)}),
    "range": ("RangeQuery", shown.range_answer),
    "series": ("Series", shown.series),
    "keys": ("ListKeys", lambda found: shown.page(found, {"keys": list(found.keys)})),
    "entries": ("Entries", lambda bulks: {"bulks": [shown.bulk_shown(bulk) for bulk in bulks]}),
}
_ASKED = {"lookback": "lookbacks", "aggregate": "aggregates"}


class OverGrpc(Edge):
    def __init__(self, stub: Any) -> None:
        super().__init__()
        self.stub = stub

    def _do(self, call: str, window: str | None, given: dict[str, Any]) -> Any:
        method, show = METHODS[call]
        return self.call(method, self.message(call, window, given), show)

    def call(self, method: str, request: Any, show: Any) -> Any:
        try:
            return show(getattr(self.stub, method)(request))
        except grpc.RpcError as error:
            return _refused(from_rpc(error))

    def copied(self, window: str, name: str, change: Callable[[bytes], bytes] = bytes) -> Any:
        chunks = self.call("ExportWindow", pb.ExportWindowRequest(window=window), list)
        file = change(b"".join(chunk.data for chunk in chunks))
        sent = [pb.WindowChunk(data=file[at : at + 60_000]) for at in range(0, len(file), 60_000)]
        sent[0].name = name
        return self.call("ImportWindow", iter(sent), shown.window)

    def message(self, call: str, window: str | None, given: dict[str, Any]) -> Any:
        kind = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name[METHODS[call][0]].input_type.name
        request = getattr(pb, kind)()
        match call:
            case "create":
                request.spec.CopyFrom(spec_of(given))
            case "describe" | "delete":
                request.name = window
            case "add_aggregates":
                fill_aggregates(request.aggregates, given)
            case "insert" | "admit" if not isinstance(given.get("time"), list):
                self._fill_entry(request, window, given)
            case "admit":
                limits = given.pop("limits", ())
                self._fill_rows(request.entries, window, given, request)
                fill_limits(request, limits)
            case "bulk-insert" | "retract" | "update":
                self._fill_rows(request, window, given, request)
            case "answers-at":
                question = {name: given.pop(name) for name in ("lookback", "where", "aggregate") if name in given}
                self._fill_rows(request, window, given, request)
                fill_question(request, question)
            case "watch":
                fill_question(request.query, given)
                request.query.window = window
            case "stage":
                _set(request, {name: given.pop(name) for name in ("query", "batch") if name in given})
                self._fill_rows(request.entries, window, given, request.entries)
                request.entries.window = window
            case "bulk-evict":
                _fill_key(request, given.pop("key", None))
                _set(request, given)
            case _:
                fill_question(request, given)
        if "window" in request.DESCRIPTOR.fields_by_name:
            request.window = window
        return request

    def _fill_entry(self, request: Any, window: str | None, given: dict[str, Any]) -> None:
        types = self._types(window)
        _fill_key(request, given.pop("key", None))
        fill_limits(request, given.pop("limits", ()))
        if "lookbacks" in given:
            given["lookbacks"] = [str(each) for each in given["lookbacks"]]
        if "value" in given and types != {"value": "float64"}:
            given["fields"] = dict.fromkeys(types, given.pop("value"))
        for name, value in given.pop("fields", {}).items():
            kind = types.get(name, "float64")
            setattr(request.fields[name], kind, _number(value) if kind == "float64" else value)
        if "value" in given:
            given["value"] = _number(given["value"])
        _set(request, given)

    def _fill_rows(self, rows: Any, window: str | None, given: dict[str, Any], request: Any) -> None:
        types = self._types(window)
        rows.time = np.array(given.pop("time", None) or [], "<i8").tobytes()
        key = given.pop("key", None)
        for part, values in key.items() if isinstance(key, dict) else ():
            rows.parts[part].CopyFrom(coded(values))
        if key is not None and not isinstance(key, dict):
            rows.key.CopyFrom(coded(key))
        columns = given.pop("fields", {})
        if "value" in given:
            columns = dict.fromkeys(types, given.pop("value"))
        for name, values in columns.items():
            fill_column(rows.fields[name], types.get(name, "float64"), values)
        _set(request, given)


class OverConnect(OverGrpc):
    """The same messages over HTTP; streams in Connect's envelopes."""

    def __init__(self, http: httpx.Client) -> None:
        Edge.__init__(self)
        self.http = http

    def call(self, method: str, request: Any, show: Any) -> Any:
        found = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name[method]
        streams = found.server_streaming
        streams = streams or found.client_streaming
        parts = [each.SerializeToString() for each in (request if found.client_streaming else [request])]
        body = b"".join(b"\0" + len(each).to_bytes(4) + each for each in parts) if streams else parts[0]
        kind = f"application/{'connect+' * streams}proto"
        sent = {"content": body, "headers": {"content-type": kind}}
        with self.http.stream("POST", f"/sash.v1.Windows/{method}", **sent) as answer:
            content = next(answer.iter_raw()) if method == "Watch" else answer.read()
        read = getattr(pb, found.output_type.name).FromString
        if not streams:
            return show(read(content)) if answer.is_success else _refused_by_connect(answer.json())
        messages = envelopes(content)
        error = json.loads(messages.pop()[1]).get("error") if messages[-1][0] else None
        answers = [read(message) for _, message in messages]
        return _refused_by_connect(error) if error else show(answers if found.server_streaming else answers[0])


def envelopes(body: bytes) -> list[tuple[int, bytes]]:
    """The messages of a stream of Connect, each with its flags."""
    found = []
    while body:
        length = int.from_bytes(body[1:5])
        found.append((body[0], body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def _refused_by_connect(document: dict[str, Any]) -> Refused:
    for detail in document["details"]:
        if detail["type"] == "google.rpc.ErrorInfo":
            info = error_details_pb2.ErrorInfo.FromString(b64decode(detail["value"] + "=="))
            assert info.domain == "sash"
    return Refused(info.reason, info.metadata.get("field"), info.metadata.get("limit"), document["message"])


def _refused(error: SashClientError) -> Refused:
    return Refused(error.reason or error.code, error.field, error.limit, error.message)


def _set(message: Any, given: dict[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, list | tuple):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, value)


def _fill_key(request: Any, key: Any) -> None:
    if isinstance(key, dict):
        request.parts.update(key)
    elif isinstance(key, list):
        request.keys.extend(key)
    elif key is not None:
        request.key = key


def spec_of(document: dict[str, Any]) -> pb.WindowSpec:
    spec, given = pb.WindowSpec(), dict(document)
    fill_aggregates(spec.aggregates, given.pop("aggregates", {}))
    spec.fields.update(given.pop("fields", {}))
    for parts in given.pop("rollups", ()):
        spec.rollups.add(parts=parts)
    for name in ("slide", "order", "from"):
        for option, value in given.pop(name, {}).items():
            is_text = isinstance(getattr(getattr(spec, name), option), str)
            setattr(getattr(spec, name), option, str(value) if is_text else value)
    _set(spec, given)
    return spec


def fill_aggregates(into: Any, documents: dict[str, Any]) -> None:
    for name, options in documents.items():
        made = into[name]
        for option, value in options.items():
            if option in ("function", "field", "returns"):
                setattr(made, option, value)
            else:
                fill_value(made.parameters[option], value)


def fill_value(message: Any, value: Any) -> None:
    if isinstance(value, list):
        message.list.SetInParent()
        for each in value:
            fill_value(message.list.items.add(), each)
    else:
        kinds = {bool: "bool", int: "int64", float: "float64", str: "string"}
        setattr(message, kinds[type(value)], value)


def fill_limits(request: Any, limits: Any) -> None:
    for limit in limits:
        made = request.limits.add(aggregate=limit["aggregate"], lookback=str(limit.get("lookback", "")))
        made.op, value = limit.get("op", ""), _number(limit["value"])
        setattr(made, "integer" if isinstance(value, int) else "value", value)
        made.by.extend(limit.get("by", ()))
        made.all_keys = limit.get("by") == []


def fill_question(request: Any, given: dict[str, Any]) -> None:
    asked = {_ASKED.get(name, name): value for name, value in given.items()}
    _fill_key(request, asked.pop("key", None))
    for text in listed(asked.pop("where", ())):
        part, op, values = read_condition(text)
        request.where.add(part=part, op=op, values=values)
    for text in listed(asked.pop("having", ())):
        aggregate, op, value = read_having(text)
        made = request.having.add(aggregate=aggregate, op=op, value=value)
        if isinstance(value, int) and int(made.value) != value and abs(value) < 2**63:
            made.integer = value
    if "top" in asked:
        request.top.CopyFrom(pb.Top(by=asked.pop("top"), n=asked.pop("n", 0), order=asked.pop("order", "")))
    for name in ("lookbacks", "aggregates", "by"):
        if name in asked:
            asked[name] = [str(each) for each in listed(asked[name])]
    for name in ("step", "width", "gap"):
        if name in asked:
            asked[name] = str(asked[name])
    if (position := asked.get("position")) is not None and request.DESCRIPTOR.name != "ListKeysRequest":
        asked["position"] = str(position)
    _set(request, asked)


def listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _number(value: Any) -> Any:
    return SPECIALS[value] if isinstance(value, str) else value


def fill_column(column: Any, kind: str, values: Any) -> None:
    if kind == "string":
        column.string.CopyFrom(coded(values))
    else:
        types = {"float64": "<f8", "int64": "<i8", "bool": np.uint8}
        setattr(column, kind, np.array([_number(value) for value in values], types[kind]).tobytes())


def coded(strings: Any) -> pb.Strings:
    dictionary = list(dict.fromkeys(strings))
    return pb.Strings(dictionary=dictionary, codes=np.array([dictionary.index(s) for s in strings], "<u4").tobytes())


# ---------------------------------------------------------------- clients


class OverClient(Edge):
    def __init__(self, client: Any) -> None:
        super().__init__()
        self.client = client

    def _do(self, call: str, window: str | None, given: dict[str, Any]) -> Any:
        try:
            return self._called(call, window, given)
        except SashClientError as error:
            return _refused(error)

    def _called(self, call: str, name: str | None, given: dict[str, Any]) -> Any:
        client, window = self.client, self.client.window(name or "w")
        if "where" in given:
            given["where"] = listed(given["where"])
        if "limits" in given:
            given["limits"] = [_limit(each) for each in given["limits"]]
        match call:
            case "create":
                return told(client.create_window(given).describe())
            case "list":
                return {"windows": [told(each) for each in client.list_windows()]}
            case "delete":
                return {"entries": client.delete_window(name)}
            case "describe":
                return told(window.describe())
            case "add_aggregates":
                return told(window.add_aggregates(given))
            case "insert" | "admit" if not isinstance(given.get("time"), list):
                value = _number(given.pop("value")) if "value" in given else None
                fields = None if value is not None else self._fields(name, given)
                return told(getattr(window, call)(given.pop("time"), value, fields=fields, **given))
            case "bulk-insert" | "admit" | "stage" | "update":
                columns = self._fields(name, given)
                method = {"admit": "bulk_admit"}.get(call, call.replace("-", "_"))
                found = getattr(window, method)(given.pop("time", None), columns, keys=given.pop("key", None), **given)
                return told(found[0] if call == "stage" else found)
            case "retract":
                (identities,) = given.pop("fields").values()
                times, keys = given.pop("time", None), given.pop("key", None)
                if times is None:
                    return told(window.retract(ids=identities, keys=keys, **given))
                return told(window.retract(times, identities, keys=keys, **given))
            case "bulk-evict":
                return told(window.bulk_evict(given.pop("time", None), **given))
            case "punctuate":
                return told(window.punctuate(given["time"]))
            case "commit":
                return told(window.commit(given["query"], given["batch"], given["stages"]))
            case "keys":
                return {"keys": window.keys(**given)}
            case "answers-at":
                asked = {_ASKED.get(each, each): value for each, value in given.items() if each not in ("time", "key")}
                found = window.answers_at(given["time"], keys=given["key"], **asked).columns
                return {"answers": [_columns_at(found, each) for each in given.get("lookback", [None])]}
        given = {_ASKED.get(each, each): value for each, value in given.items()}
        for each in ("lookbacks", "aggregates"):
            if each in given:
                given[each] = listed(given[each])
        if given.pop("all_keys", False):
            given["keys"] = ALL_KEYS
        elif isinstance(given.get("key"), list):
            given["keys"] = given.pop("key")
        if call == "watch":
            return {"answers": told(next(iter(window.watch(**given))))}
        if call == "query":
            found = window.query(**given)
            return {"answers": told(list(found))} | ({} if found.next is None else {"next": found.next})
        if call == "entries":
            return {"bulks": [_bulk(each) for each in window.entries(given.pop("start", None), **given)]}
        method = {"range": "range_query", "series": "series"}[call]
        span = given.pop("start"), given.pop("end")
        if "by" in given:
            found = getattr(window, f"{call}_groups")(*span, **given)
            return {"groups": told(list(found))} | ({} if found.next is None else {"next": found.next})
        return told(getattr(window, method)(*span, **given))

    def _fields(self, name: str | None, given: dict[str, Any]) -> dict[str, Any]:
        """Take what is given for each field, one value or a column; floats are numbers."""
        types = self._types(name)
        fields = given.pop("fields", {}) if "value" not in given else dict.fromkeys(types, given.pop("value"))
        floats = {field: each for field, each in fields.items() if types.get(field) == "float64"}
        numbers = {
            field: [*map(_number, each)] if isinstance(each, list) else _number(each) for field, each in floats.items()
        }
        return fields | numbers

    def copied(self, window: str, name: str, change: Callable[[bytes], bytes] = bytes) -> Any:
        file = BytesIO()
        try:
            self.client.export_window(window, file)
            return told(self.client.import_window(BytesIO(change(file.getvalue())), name))
        except SashClientError as error:
            return _refused(error)


def _columns_at(columns: Any, lookback: str | None) -> dict[str, Any]:
    end = "" if lookback is None else f"_{lookback}"
    of = {name.removesuffix(end): told(column) for name, column in columns.items() if name.endswith(end)}
    return {"lookback": lookback, "entries": of.pop("entries"), "aggregates": of}


def _limit(document: dict[str, Any]) -> Limit:
    return Limit(
        document["aggregate"],
        document.get("lookback"),
        _number(document["value"]),
        document.get("op", "<="),
        document.get("by"),
    )


def _bulk(bulk: Any) -> dict[str, Any]:
    keys = {} if bulk.keys is None else {"key": bulk.keys.tolist()}
    return {"time": bulk.times.tolist(), **keys, "fields": told(dict(bulk.columns))}


def told(value: Any) -> Any:
    """What a client returns, as REST's document."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {each.name: told(getattr(value, each.name)) for each in fields(value)}
        if "times" in found:
            found["time"] = found.pop("times")
        return found
    if isinstance(value, dict) or hasattr(value, "items"):
        return {name: told(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return told(value.tolist())
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    return shown.shown(value) if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- what is expected


def fits(found: Any, expected: Any) -> bool:
    """Whether a document has what is expected of it. It may have more members, and its limit may say more."""
    if isinstance(expected, Refused):
        same = isinstance(found, Refused) and (found.reason, found.field) == (expected.reason, expected.field)
        return same and (expected.limit or "") in (found.limit or "") and expected.message in found.message
    if isinstance(found, Refused):
        return False
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(name in found and fits(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(fits, found, expected))
    return type(found) is type(expected) and found == expected if isinstance(expected, bool) else found == expected


def play(edge: Any, steps: Any, **spec: Any) -> None:
    """Make the calls of a scenario, each (call, what is given, what is expected).

    Args:
        steps: a call is of the window `w`, or says which: "other/insert".
        spec: of `w`, which is created first, if it is given.
    """
    if spec:
        edge.made("create", **{"name": "w", "time_unit": "s"} | spec)
    for number, (path, given, expected) in enumerate(steps):
        window, _, call = path.rpartition("/")
        found = edge.do(call, window or "w", **given)
        assert fits(found, expected), (number, path, given, found, expected)


def refuses(edge: Any, calls: Any, reason: str = "INVALID_ARGUMENT") -> None:
    """Check that each call is refused for that reason, and changes no window.

    Args:
        calls: (call, what is given, field, limit, message), as `play` has them.
    """
    before, wrong = edge.made("list"), []
    for path, given, field, limit, message in calls:
        window, _, call = path.rpartition("/")
        found = edge.do(call, window or "w", **given)
        if not fits(found, Refused(reason, field, limit, message)) or not found.message or edge.made("list") != before:
            wrong.append((path, given, field, limit, found))
    assert not wrong, wrong
