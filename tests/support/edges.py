"""The operations over REST and over gRPC, with plain values in and out: what one edge says, the other must say too."""

import grpc
import numpy as np

from sash_proto.v1 import windows_pb2 as pb
from tests.support.shown import (
    ADDED,
    FIELDS,
    SPECIALS,
    answer,
    answers,
    bulk_shown,
    changed,
    given_to,
    series,
    window,
    written,
)

FAR = 10**11
"""Seconds: a time that is in the future for some thousand years."""


def timeless(document):
    """A document without the times, where they are None."""
    return {name: value for name, value in document.items() if name != "time" or value is not None}


class OverRest:
    """The operations as plain values, over REST."""

    def __init__(self, service, spec):
        self.http = service.http()
        self.spec = {"time_unit": "s", "keyed": True, "fields": FIELDS, **spec}

    def call(self, method, path, **request):
        response = self.http.request(method, f"/v1/windows{path}", **request)
        document = response.json()
        if response.is_success:
            return document
        return "refused", document["detail"], document["reason"], document.get("field"), document.get("limit")

    def create(self, name):
        return self.call("POST", "", json={"name": name, **self.spec})

    def insert(self, name, time, key, fields, lookbacks, origin):
        question = {} if lookbacks is None else {"answer": True, "lookbacks": lookbacks}
        entry = {"time": time, "key": key, "fields": fields, **question, **origin}
        return self.call("POST", f"/{name}/insert", json=entry)

    def bulk_insert(self, name, times, keys, columns, origin):
        return self.call("POST", f"/{name}/bulk-insert", json={"time": times, "key": keys, **columns, **origin})

    def bulk_evict(self, name, time, key, origin):
        document = {"time": time, **origin} | ({} if key is None else {"key": key})
        return self.call("POST", f"/{name}/bulk-evict", json=document)

    def evict_range(self, name, start, end, key, exclusive, origin):
        document = {"start": start, "end": end, **origin} | ({} if key is None else {"key": key})
        document |= {"end_exclusive": True} if exclusive else {}
        return self.call("POST", f"/{name}/bulk-evict", json=document)

    def retract(self, name, times, keys, identities, origin):
        document = {"time": times, "key": keys, "s": identities, **origin}
        return self.call("POST", f"/{name}/retract", json=timeless(document))

    def update(self, name, times, keys, columns, origin):
        document = {"time": times, "key": keys, **columns, **origin}
        return self.call("POST", f"/{name}/update", json=timeless(document))

    def stage(self, name, times, keys, columns, query, batch):
        document = {"time": times, "key": keys, **columns}
        found = self.call("POST", f"/{name}/stage", json=document, params={"query": query, "batch": batch})
        return found if isinstance(found, tuple) else (found.pop("stage"), found)

    def commit(self, name, query, batch, stages):
        return self.call("POST", f"/{name}/commit", json={"query": query, "batch": batch, "stages": stages})

    def entries(self, name, keys, start, end, exclusive):
        asked = {**which(keys), "start": start, "end": end} | ({"end_exclusive": "true"} if exclusive else {})
        found = self.call("GET", f"/{name}/entries", params=asked)
        if isinstance(found, tuple):
            return found
        return found["bulks"]

    def export_and_import(self, name):
        exported = self.http.get(f"/v1/windows/{name}/export")
        self.http.delete(f"/v1/windows/{name}")
        file = {"content": exported.content, "headers": {"content-type": exported.headers["content-type"]}}
        return self.call("POST", "/import", params={"name": name}, **file)

    def query(self, name, keys, lookbacks, combine=False):
        asked = {**which(keys), "lookback": lookbacks, "partials": "true"} | ({"combine": "true"} if combine else {})
        found = self.call("GET", f"/{name}/query", params=asked)
        return found if isinstance(found, tuple) else found["answers"]

    def range_query(self, name, keys, start, end, exclusive):
        asked = {**which(keys), "start": start, "end": end} | ({"end_exclusive": "true"} if exclusive else {})
        return self.call("GET", f"/{name}/range", params=asked)

    def series(self, name, keys, start, end, step, width):
        asked = {**which(keys), "start": start, "end": end, "step": step} | ({} if width is None else {"width": width})
        found = self.call("GET", f"/{name}/series", params=asked)
        if isinstance(found, dict):
            assert (found.pop("start"), found.pop("end"), found.pop("step")) == (start, end, int(step.rstrip("s")))
        return found

    def add_aggregates(self, name):
        return self.call("POST", f"/{name}/aggregates", json=ADDED)

    def keys(self, name, prefix, limit, position):
        return self.call("GET", f"/{name}/keys", params={"prefix": prefix, "limit": limit, "position": position})

    def describe(self, name):
        return self.call("GET", f"/{name}")


class OverGrpc:
    """The same operations over gRPC, told in REST's values."""

    def __init__(self, service, spec):
        self.stub = service.stub()
        self.spec = spec

    def call(self, method, request, shown):
        try:
            return shown(getattr(self.stub, method)(request))
        except grpc.RpcError as error:
            from sash_client.errors import from_rpc

            decoded = from_rpc(error)
            return "refused", decoded.message, decoded.reason, decoded.field, decoded.limit

    def create(self, name):
        groups = {"slide": pb.SlidePolicy, "order": pb.OrderPolicy}
        given = {each: groups[each](**value) if each in groups else value for each, value in self.spec.items()}
        given["aggregates"] = aggregates(self.spec["aggregates"])
        spec = pb.WindowSpec(name=name, time_unit="s", keyed=True, fields=FIELDS, **given)
        return self.call("CreateWindow", pb.CreateWindowRequest(spec=spec), lambda response: window(response.window))

    def insert(self, name, time, key, fields, lookbacks, origin):
        values = {each: pb.Value(**{FIELDS[each]: number(value, each)}) for each, value in fields.items()}
        request = pb.InsertRequest(window=name, time=time, key=key, fields=values, **origin)
        if lookbacks is None:
            return self.call("Insert", request, written)
        request.answer = True
        request.lookbacks.extend(lookbacks)
        return self.call("Insert", request, lambda response: written(response) | {"answers": answers(response)})

    def bulk_insert(self, name, times, keys, columns, origin):
        request = self.bulk(name, times, keys, columns)
        request.MergeFrom(pb.BulkInsertRequest(**origin))
        return self.call("BulkInsert", request, written)

    def retract(self, name, times, keys, identities, origin):
        time = np.array(times or [], "<i8").tobytes()
        fields = {"s": pb.Column(string=coded(identities))}
        request = pb.BulkInsertRequest(window=name, time=time, key=coded(keys), fields=fields, **origin)
        return self.call("Retract", request, changed)

    def update(self, name, times, keys, columns, origin):
        request = self.bulk(name, times, keys, columns)
        request.MergeFrom(pb.BulkInsertRequest(**origin))
        return self.call("Update", request, changed)

    def bulk(self, name, times, keys, columns):
        encoded = {
            "f": pb.Column(float64=np.array([number(v, "f") for v in columns["f"]], "<f8").tobytes()),
            "i": pb.Column(int64=np.array(columns["i"], "<i8").tobytes()),
            "s": pb.Column(string=coded(columns["s"])),
            "b": pb.Column(bool=np.array(columns["b"], np.uint8).tobytes()),
        }
        time = np.array(times or [], "<i8").tobytes()
        return pb.BulkInsertRequest(window=name, time=time, fields=encoded, key=coded(keys))

    def stage(self, name, times, keys, columns, query, batch):
        request = pb.StageBatchRequest(entries=self.bulk(name, times, keys, columns), query=query, batch=batch)
        return self.call(
            "StageBatch",
            request,
            lambda response: (response.stage, {"entries": response.entries, "durability": response.durability}),
        )

    def commit(self, name, query, batch, stages):
        request = pb.CommitBatchRequest(window=name, query=query, batch=batch, stages=stages)
        return self.call("CommitBatch", request, written)

    def entries(self, name, keys, start, end, exclusive):
        request = pb.EntriesRequest(window=name, **which_message(keys), start=start, end=end, end_exclusive=exclusive)
        return self.call("Entries", request, lambda bulks: [bulk_shown(bulk) for bulk in bulks])

    def export_and_import(self, name):
        chunks = list(self.stub.ExportWindow(pb.ExportWindowRequest(window=name)))
        self.stub.DeleteWindow(pb.DeleteWindowRequest(name=name))
        chunks[0].name = name
        return self.call("ImportWindow", iter(chunks), window)

    def bulk_evict(self, name, time, key, origin):
        request = pb.BulkEvictRequest(window=name, time=time, key=key, **origin)
        return self.call("BulkEvict", request, lambda response: {"evicted": response.evicted} | given_to(response))

    def evict_range(self, name, start, end, key, exclusive, origin):
        request = pb.BulkEvictRequest(window=name, start=start, end=end, key=key, end_exclusive=exclusive, **origin)
        return self.call("BulkEvict", request, lambda response: {"evicted": response.evicted} | given_to(response))

    def query(self, name, keys, lookbacks, combine=False):
        if combine and isinstance(keys, str):
            keys = [keys]
        request = pb.QueryRequest(window=name, **which_message(keys), lookbacks=lookbacks, combine=combine)
        request.partials = True
        return self.call("Query", request, lambda response: [answer(each, partials=True) for each in response.answers])

    def range_query(self, name, keys, start, end, exclusive):
        asked = {"start": start, "end": end, "end_exclusive": exclusive}
        request = pb.RangeQueryRequest(window=name, **which_message(keys), **asked)
        return self.call("RangeQuery", request, answer)

    def series(self, name, keys, start, end, step, width):
        asked = {"start": start, "end": end, "step": step, "width": width or ""}
        return self.call("Series", pb.SeriesRequest(window=name, **which_message(keys), **asked), series)

    def add_aggregates(self, name):
        return self.call("AddAggregates", pb.AddAggregatesRequest(window=name, aggregates=aggregates(ADDED)), window)

    def keys(self, name, prefix, limit, position):
        request = pb.ListKeysRequest(window=name, prefix=prefix, limit=limit, position=position)
        return self.call(
            "ListKeys",
            request,
            lambda found: {"keys": list(found.keys)} | ({"next": found.next} if found.HasField("next") else {}),
        )

    def describe(self, name):
        return self.call("GetWindow", pb.GetWindowRequest(name=name), window)


def which(keys):
    return {"all_keys": "true"} if keys is None else {"key": keys}


def which_message(keys):
    return {"all_keys": True} if keys is None else {"key": keys} if isinstance(keys, str) else {"keys": keys}


def aggregates(documents):
    return {name: pb.AggregateSpec(**options) for name, options in documents.items()}


def number(value, name):
    return SPECIALS[value] if name == "f" and isinstance(value, str) else float(value) if name == "f" else value


def coded(strings):
    dictionary = list(dict.fromkeys(strings))
    return pb.Strings(dictionary=dictionary, codes=np.array([dictionary.index(s) for s in strings], "<u4").tobytes())


def columns_of(rows):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(6)]
    return columns[0], columns[1], dict(zip(FIELDS, columns[2:], strict=True))
