"""The service's methods as plain functions: a request message in, a response message out, errors raised.

They know nothing of contexts, statuses or event loops: `server` binds them to gRPC, the benchmark to more than
one kind of server.
"""

from __future__ import annotations

from sash.errors import InvalidArgument
from sash.plane import Plane
from sash.rpc import translate
from sash.windows.spec import WindowSpec
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["Operations"]


class Operations:
    """One method per method of `sash.v1.Windows`, by the same name.

    Args:
        plane: the operations.
        entries_max: how many entries one write may carry.
    """

    def __init__(self, plane: Plane, entries_max: int) -> None:
        self._plane = plane
        self._entries_max = entries_max

    def CreateWindow(self, request: pb.CreateWindowRequest) -> pb.CreateWindowResponse:
        window, created = self._plane.create(WindowSpec.parse(translate.document_of(request.spec)))
        response = pb.CreateWindowResponse(created=created)
        translate.fill_window(response.window, window)
        return response

    def GetWindow(self, request: pb.GetWindowRequest) -> pb.WindowInfo:
        response = pb.WindowInfo()
        translate.fill_window(response, self._plane.describe(request.name))
        return response

    def ListWindows(self, request: pb.ListWindowsRequest) -> pb.ListWindowsResponse:
        response = pb.ListWindowsResponse()
        for window in self._plane.list():
            translate.fill_window(response.windows.add(), window)
        return response

    def DeleteWindow(self, request: pb.DeleteWindowRequest) -> pb.DeleteWindowResponse:
        return pb.DeleteWindowResponse(entries=self._plane.delete(request.name))

    def Insert(self, request: pb.InsertRequest) -> pb.InsertResponse:
        name = request.window
        fields = translate.entry_of(request, self._plane.spec(name))
        key = request.key if request.HasField("key") else None
        time = translate.required(request, "time")
        lookbacks = list(request.lookbacks)
        return translate.written(self._plane.insert(name, time, fields, key, request.answer, lookbacks))

    def BulkInsert(self, request: pb.BulkInsertRequest) -> pb.InsertResponse:
        batch = translate.batch_of(request, self._entries_max)
        return translate.written(self._plane.bulk_insert(request.window, batch))

    def BulkEvict(self, request: pb.BulkEvictRequest) -> pb.BulkEvictResponse:
        key = request.key if request.HasField("key") else None
        time = translate.required(request, "time")
        return pb.BulkEvictResponse(evicted=self._plane.bulk_evict(request.window, time, key))

    def Query(self, request: pb.QueryRequest) -> pb.QueryResponse:
        response = pb.QueryResponse()
        key, keys = translate.keys_of(request)
        as_of = request.as_of if request.HasField("as_of") else None
        lookbacks = list(request.lookbacks)
        for answer in self._plane.query(request.window, key, lookbacks, as_of, keys, request.combine):
            translate.fill_answer(response.answers.add(), answer)
        return response

    def RangeQuery(self, request: pb.RangeQueryRequest) -> pb.Answer:
        response = pb.Answer()
        key, keys = translate.keys_of(request)
        start, end = translate.required(request, "start"), translate.required(request, "end")
        translate.fill_answer(response, self._plane.range_query(request.window, start, end, key, keys))
        return response

    def Series(self, request: pb.SeriesRequest) -> pb.SeriesResponse:
        response = pb.SeriesResponse()
        key, keys = translate.keys_of(request)
        start, end = translate.required(request, "start"), translate.required(request, "end")
        if not request.step:
            raise InvalidArgument("step is missing", field="step")
        series = self._plane.series(request.window, start, end, request.step, request.width or None, key, keys)
        translate.fill_series(response, series)
        return response

    def AddAggregates(self, request: pb.AddAggregatesRequest) -> pb.WindowInfo:
        response = pb.WindowInfo()
        window = self._plane.add_aggregates(request.window, translate.aggregates_of(request.aggregates))
        translate.fill_window(response, window)
        return response

    def ListKeys(self, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        limit = {"limit": request.limit} if request.HasField("limit") else {}
        return pb.ListKeysResponse(keys=self._plane.keys(request.window, request.prefix, **limit))
