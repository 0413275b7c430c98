"""A gRPC service of `sash.v1` that records what it is sent and answers as it is told."""

from __future__ import annotations

from collections import deque
from concurrent import futures
from contextlib import contextmanager

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from grpc_status import rpc_status

from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc
from tests.support.connect_server import address, over_connect


class Recorder(windows_pb2_grpc.WindowsServicer):
    """Keeps every request; answers with `failures` while there are any, then with empty messages.

    A bulk insert is answered with its number of entries, a description with `spec`.
    """

    def __init__(self):
        self.requests = []
        self.failures = deque()
        self.spec = pb.WindowSpec(name="w", time_unit="us", fields={"value": "float64"})

    def of(self, kind):
        return [request for request in self.requests if isinstance(request, kind)]

    def _take(self, request, context):
        self.requests.append(request)
        if self.failures and (failure := self.failures.popleft()) is not None:
            context.abort_with_status(failure)

    def GetWindow(self, request, context):
        self._take(request, context)
        return pb.WindowInfo(spec=self.spec)

    def ListWindows(self, request, context):
        self._take(request, context)
        return pb.ListWindowsResponse()

    def Insert(self, request, context):
        self._take(request, context)
        return pb.InsertResponse(inserted=1)

    def BulkInsert(self, request, context):
        self._take(request, context)
        return pb.InsertResponse(inserted=len(request.time) // 8)

    def Query(self, request, context):
        self._take(request, context)
        return pb.QueryResponse(answers=[pb.Answer(entries=1)])


@contextmanager
def recording(transport="grpc"):
    """Run a recorder on free ports; yield it and its address, as `connect_server.address_of`."""
    recorder = Recorder()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    windows_pb2_grpc.add_WindowsServicer_to_server(recorder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with over_connect(recorder) as http:
            yield recorder, address(transport, port, http.server_port)
    finally:
        server.stop(None).wait()


def status(code, message, *details):
    """A failure for `Recorder.failures`, with google.rpc details."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    return rpc_status.to_status(status_pb2.Status(code=code.value[0], message=message, details=packed))
