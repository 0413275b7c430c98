"""The service's methods as plain functions: a request message in, a response message out, errors raised.

They know nothing of contexts, statuses or event loops: `server` binds them to gRPC, the benchmark to more than
one kind of server.
"""

from __future__ import annotations

from sash.plane import Plane
from sash.rpc import translate
from sash.windows.answers import WriteResult
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
        return _written(self._plane.insert(name, translate.required(request, "time"), fields, key))

    def BulkInsert(self, request: pb.BulkInsertRequest) -> pb.InsertResponse:
        return _written(self._plane.bulk_insert(request.window, translate.batch_of(request, self._entries_max)))

    def BulkEvict(self, request: pb.BulkEvictRequest) -> pb.BulkEvictResponse:
        key = request.key if request.HasField("key") else None
        time = translate.required(request, "time")
        return pb.BulkEvictResponse(evicted=self._plane.bulk_evict(request.window, time, key))

    def Query(self, request: pb.QueryRequest) -> pb.QueryResponse:
        response = pb.QueryResponse()
        key = request.key if request.HasField("key") else None
        as_of = request.as_of if request.HasField("as_of") else None
        for answer in self._plane.query(request.window, key, list(request.lookbacks), as_of):
            translate.fill_answer(response.answers.add(), answer)
        return response

    def RangeQuery(self, request: pb.RangeQueryRequest) -> pb.Answer:
        response = pb.Answer()
        key = request.key if request.HasField("key") else None
        start, end = translate.required(request, "start"), translate.required(request, "end")
        translate.fill_answer(response, self._plane.range_query(request.window, start, end, key))
        return response


def _written(result: WriteResult) -> pb.InsertResponse:
    return pb.InsertResponse(inserted=result.inserted, late=result.late, evicted=result.evicted)
