"""The service's methods as plain functions: a request message in, a response message out, errors raised.

    request     or an iterator of requests           response      or an iterator of responses, as the proto says

They know nothing of contexts and statuses: `server` binds them to gRPC, the benchmark to more than one kind of server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from sash.calls import INTERVAL_MS, QUIET_S, allowing, check_interval, each, going, key_names
from sash.durability.records.commands import (
    Admit,
    BulkInsert,
    Commit,
    Insert,
    Punctuate,
    Retract,
    StageBatch,
    Update,
    eviction_of,
)
from sash.plane import Plane
from sash.rpc import bulks, translate
from sash.rpc.grouping import where_of
from sash.rpc.parts import PROTO, Parts, query_response
from sash.rpc.pipeline import in_order, until_closed
from sash.topology import Topology
from sash_engine.errors import InvalidArgument
from sash_engine.windows.answers import Page
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.values import no_field
from sash_engine.windows.questions import KEYS, AnswersAt, EntriesQuery, KeysQuery, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.text import check_spec_bytes
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.writing.changes import named
from sash_proto.v1 import windows_pb2 as pb

# gRPC's clients take messages of up to 4 MiB unless told otherwise.
CHUNK_BYTES_MAX = 1 << 20

_Bulk = tuple[str, AnyBatch, Origin | None]


class Operations:
    """One method per method of `sash.v1.Windows`, by the same name.

    Args:
        plane: the operations.
        entries_max: how many entries one write may carry.
        closing: is set when the service is about to end: streams that could go on for ever end then.
    """

    def __init__(self, plane: Plane, entries_max: int, closing: asyncio.Event) -> None:
        self._plane = plane
        self._entries_max = entries_max
        self._closing = closing
        self.in_slices, self.parsed = plane.in_slices, plane.parsed
        """Take the steps of an edge's own work, and of what reads a caller's message."""

    # ---------------------------------------------------------------- windows

    async def CreateWindow(self, request: pb.CreateWindowRequest) -> pb.CreateWindowResponse:
        check_spec_bytes(request.spec.ByteSize())
        window, created = await self._plane.create(WindowSpec.parse(translate.document_of(request.spec)))
        response = pb.CreateWindowResponse(created=created)
        translate.fill_window(response.window, window)
        return response

    async def GetWindow(self, request: pb.GetWindowRequest) -> pb.WindowInfo:
        response = pb.WindowInfo()
        translate.fill_window(response, await self._plane.window(request.name))
        return response

    async def ListWindows(self, request: pb.ListWindowsRequest) -> pb.ListWindowsResponse:
        response = pb.ListWindowsResponse()
        for window in await self._plane.windows():
            translate.fill_window(response.windows.add(), window)
        return response

    async def DeleteWindow(self, request: pb.DeleteWindowRequest) -> pb.DeleteWindowResponse:
        return pb.DeleteWindowResponse(entries=await self._plane.delete(request.name))

    async def AddAggregates(self, request: pb.AddAggregatesRequest) -> pb.WindowInfo:
        response = pb.WindowInfo()
        check_spec_bytes(request.ByteSize(), "aggregates")
        window = await self._plane.add_aggregates(request.window, translate.aggregates_of(request.aggregates))
        translate.fill_window(response, window)
        return response

    async def ExportWindow(self, request: pb.ExportWindowRequest) -> AsyncIterator[pb.WindowChunk]:
        parts = await self._plane.export_together(request.window, list(request.derived))
        last = request.window if not request.derived else ""
        async for name, part in each(parts):
            for at in range(0, len(part), CHUNK_BYTES_MAX):
                # Only the first chunk of a file says whose it is.
                yield pb.WindowChunk(data=part[at : at + CHUNK_BYTES_MAX], name="" if name == last else name)
                last = name

    async def ImportWindow(self, requests: AsyncIterator[pb.WindowChunk]) -> pb.WindowInfo:
        first = await anext(requests, pb.WindowChunk())

        # To gRPC a stream whose client has gone has ended. The file itself says where it ends, so it is refused.
        async def parts() -> AsyncIterator[bytes]:
            yield first.data
            async for chunk in requests:
                for field in ("name", "derived"):
                    if getattr(chunk, field):
                        raise InvalidArgument("only the first chunk may name windows", field=field)
                yield chunk.data

        response = pb.WindowInfo()
        translate.fill_window(response, await self._plane.restore(parts(), first.name or None, first.derived))
        return response

    async def GetTopology(self, request: pb.GetTopologyRequest) -> pb.Topology:
        return _topology(await self._plane.topology())

    async def MoveShard(self, request: pb.MoveShardRequest) -> pb.Topology:
        return _topology(await self._plane.move(request.shard, request.process))

    # ---------------------------------------------------------------- writes

    async def Insert(self, request: pb.InsertRequest) -> pb.InsertResponse:
        name = request.window
        spec = await self._plane.look_up(name, "insert")
        fields, key = translate.entry_of(request, spec), translate.key_of(request, spec)
        time = translate.required(request, "time")
        command = Insert(time, fields, key, request.answer, list(request.lookbacks))
        return translate.written(await self._plane.write(name, command, translate.origin_of(request)))

    async def BulkInsert(self, request: pb.BulkInsertRequest) -> pb.InsertResponse:
        return await self._insert(await self._bulk(request))

    def InsertStream(self, requests: AsyncIterator[pb.BulkInsertRequest]) -> AsyncIterator[pb.InsertResponse]:
        async def bulks() -> AsyncIterator[_Bulk]:
            async for request in requests:
                yield await self._bulk(request)

        return in_order(bulks(), self._insert, self._closing)

    async def _bulk(self, request: pb.BulkInsertRequest) -> _Bulk:
        """Read a bulk. It may take slices, so a stream reads its next bulk after that."""
        spec = await self._checked_spec(request, "bulk_insert")
        origin = translate.origin_of(request)
        return request.window, await self._batch(request, spec), origin

    async def _batch(self, request: pb.BulkInsertRequest, spec: WindowSpec, names: bool = False) -> AnyBatch:
        return await self.in_slices(bulks.batch_steps(request, self._entries_max, spec, names))

    async def _insert(self, bulk: _Bulk) -> pb.InsertResponse:
        window, batch, origin = bulk
        return translate.written(await self._plane.write(window, BulkInsert(batch), origin))

    async def Admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        spec = await self._plane.look_up(request.window, "admit")
        if request.HasField("entries"):
            translate.check_alone(request)
            batch = await self._batch(request.entries, spec)
        else:
            batch = translate.row_of(request, spec)
        command = Admit(batch, translate.limits_of(request))
        return translate.admitted(await self._plane.write(request.window, command, translate.origin_of(request)))

    async def BulkEvict(self, request: pb.BulkEvictRequest) -> pb.BulkEvictResponse:
        key = request.key if request.HasField("key") else None
        if request.parts:
            key = translate.key_of(request, await self._plane.look_up(request.window, "bulk_evict"))
        time, start, end = (getattr(request, f) if request.HasField(f) else None for f in ("time", "start", "end"))
        origin = translate.origin_of(request)
        command = eviction_of(time, key, start, end, request.end_exclusive, request.reset_mark)
        return translate.evicted(await self._plane.write(request.window, command, origin))

    async def Retract(self, request: pb.BulkInsertRequest) -> pb.ChangeResponse:
        spec = named(await self._plane.look_up(request.window, "retract"))
        batch, origin = await self._batch(request, spec, True), translate.origin_of(request)
        return translate.changed(await self._plane.write(request.window, Retract(batch), origin))

    async def Update(self, request: pb.BulkInsertRequest) -> pb.ChangeResponse:
        spec = await self._checked_spec(request, "update")
        named(spec)
        batch, origin = await self._batch(request, spec, True), translate.origin_of(request)
        return translate.changed(await self._plane.write(request.window, Update(batch), origin))

    async def Punctuate(self, request: pb.PunctuateRequest) -> pb.PunctuateResponse:
        command = Punctuate(translate.required(request, "time"))
        return translate.punctuated(await self._plane.write(request.window, command))

    async def StageBatch(self, request: pb.StageBatchRequest) -> pb.StageBatchResponse:
        number = translate.required(request, "batch")
        part = request.entries
        if translate.origin_of(part) is not None:
            raise InvalidArgument("a part has no producer: the batch is applied once", field="entries.producer")
        spec = await self._checked_spec(part, "stage")
        batch = await self._batch(part, spec)
        staged = await self._plane.write(part.window, StageBatch(batch, request.query, number))
        return pb.StageBatchResponse(stage=staged.stage, entries=staged.entries, durability=staged.durability)

    async def CommitBatch(self, request: pb.CommitBatchRequest) -> pb.InsertResponse:
        number = translate.required(request, "batch")
        command = Commit(request.query, number, list(request.stages))
        return translate.written(await self._plane.write(request.window, command))

    async def _checked_spec(self, request: pb.BulkInsertRequest, operation: str) -> WindowSpec:
        """The spec of the window; refuses a bulk with fields that it lacks, before any of its columns is read."""
        spec = await self._plane.look_up(request.window, operation)
        if len(request.fields) > len(spec.fields):
            name = next(name for name in request.fields if name not in spec.fields)
            raise no_field(spec.name, name, spec.fields)
        return spec

    # ---------------------------------------------------------------- reads

    async def Query(self, request: pb.QueryRequest) -> pb.QueryResponse | Parts:
        with allowing(request.partial) as missing:
            answers = await self._plane.ask(request.window, translate.question_of(Query, request))
        return query_response(answers, self._plane.in_slices, sorted(missing))

    async def Watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.QueryResponse]:
        interval_ms = request.interval_ms or INTERVAL_MS
        check_interval(interval_ms, "interval_ms")

        async def look() -> bytes:
            response = await self.Query(request.query)
            if isinstance(response, Parts):
                return await response.written(PROTO)
            return response.SerializeToString(deterministic=True)

        asked = ("proto", request.query.SerializeToString(deterministic=True), interval_ms)
        may = partial(self._plane.check_may, request.query.window, "query")
        changes = self._plane.watches.changes(asked, look, interval_ms, self._closing, QUIET_S, may)
        async with aclosing(changes):
            async for found in changes:
                if found is not None:
                    yield pb.QueryResponse.FromString(found)
        raise going()

    async def Entries(self, request: pb.EntriesRequest) -> AsyncIterator[pb.BulkInsertRequest]:
        async for batch in each(await self._plane.ask(request.window, translate.question_of(EntriesQuery, request))):
            yield bulks.bulk_of(request.window, batch)

    async def RangeQuery(self, request: pb.RangeQueryRequest) -> pb.Answer:
        response = pb.Answer()
        with allowing(request.partial) as missing:
            found = await self._plane.ask(request.window, translate.question_of(RangeQuery, request))
        if isinstance(found, Page):
            translate.fill_groups(response, found)
        else:
            translate.fill_answer(response, found)
        response.missing_shards.extend(sorted(missing))
        return response

    async def Series(self, request: pb.SeriesRequest) -> pb.SeriesResponse:
        response = pb.SeriesResponse()
        with allowing(request.partial) as missing:
            found = await self._plane.ask(request.window, translate.question_of(SeriesQuery, request))
        if isinstance(found, Page):
            translate.fill_series_groups(response, found)
        else:
            translate.fill_series(response, found)
        response.missing_shards.extend(sorted(missing))
        return response

    async def AnswersAt(self, request: pb.AnswersAtRequest) -> pb.AnswersAtResponse:
        return await self._answers_at(request, request)

    async def AnswersAtStream(
        self, requests: AsyncIterator[pb.AnswersAtRequest]
    ) -> AsyncIterator[pb.AnswersAtResponse]:
        first = None
        async with aclosing(until_closed(requests, self._closing)) as open_:
            async for request in open_:
                if first is None:
                    first = request
                    await self._plane.look_up(request.window, AnswersAt.name)  # it may have no pairs
                elif request.window or request.lookbacks or request.where or request.aggregates or request.partial:
                    raise InvalidArgument(
                        "only the first request has a question; the others have pairs", field="window"
                    )
                if request.time:
                    yield await self._answers_at(first, request)

    async def _answers_at(self, asked: pb.AnswersAtRequest, pairs: pb.AnswersAtRequest) -> pb.AnswersAtResponse:
        spec = await self._plane.look_up(asked.window, AnswersAt.name)
        times, keys, known_at = await self.in_slices(bulks.pairs_steps(pairs, spec))
        question = AnswersAt(times, keys, list(asked.lookbacks), where_of(asked), list(asked.aggregates), known_at)
        with allowing(asked.partial) as missing:
            found = await self._plane.ask(asked.window, question)
        return await self.in_slices(translate.answers_at_steps(found, sorted(missing)))

    async def ListKeys(self, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        limit = request.limit if request.HasField("limit") else KEYS
        question = KeysQuery(request.prefix, limit, request.position, where_of(request))
        keys, next_ = await key_names(self._plane, request.window, question)
        return pb.ListKeysResponse(keys=keys, next=next_)


def _topology(found: Topology) -> pb.Topology:
    processes = [
        pb.Process(
            number=process.number,
            up=process.up,
            grpc_port=process.grpc_port,
            shards=process.shards,
            address=process.address,
            sizes=[
                pb.ShardSize(shard=shard, entries=entries, pending_bytes=pending)
                for shard, (entries, pending) in sorted(process.sizes.items())
            ],
        )
        for process in found.processes
    ]
    return pb.Topology(shards=found.shards, processes=processes)
