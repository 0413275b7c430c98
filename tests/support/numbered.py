"""A service of `sash.v1` that applies numbered writes once, loses what it is told to lose, and can be restarted.

    client ── BulkInsert 7 ──▶ [lost before] ──▶ applied: 7 ──▶ [lost after] ──▶ reply

Only what a client's retries touch is here; what it applies is kept as rows, in the order of their arrival.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent import futures
from contextlib import contextmanager

import grpc
import numpy as np

from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc
from tests.support.recorder import status

LOST = status(grpc.StatusCode.UNAVAILABLE, "lost")


class Numbered(windows_pb2_grpc.WindowsServicer):
    """Each call, and each message of a stream, takes the next of `script`: None, or (when, a status to fail with).

    `when` is "before" or "after": whether it fails before or after it is applied.
    """

    def __init__(self):
        self.spec = pb.WindowSpec(name="w", time_unit="us", keyed=False, fields={"value": "float64"})
        self.script = deque()
        self.rows = []
        self.applied = {}
        self.arrived = []  # (producer, sequence) of every attempt
        self.stages = {}
        self.committed = set()
        self.files = {}
        self.importing = threading.Event()
        self.streams = 0  # attempts to read entries or an export
        self.gate = threading.Event()
        self.gate.set()

    def times(self):
        return [time for time, _ in self.rows]

    def GetWindow(self, request, context):
        return pb.WindowInfo(spec=self.spec)

    def ListWindows(self, request, context):
        return pb.ListWindowsResponse(windows=[pb.WindowInfo(spec=pb.WindowSpec(name=name)) for name in self.files])

    def BulkInsert(self, request, context):
        rows = list(zip(_times(request), np.frombuffer(request.fields["value"].float64, "<f8").tolist(), strict=True))
        return self._write(request, context, rows)

    def Insert(self, request, context):
        return self._write(request, context, [(request.time, request.value)])

    def BulkEvict(self, request, context):
        done = self._write(request, context, [])
        return pb.BulkEvictResponse(evicted=5 * (not done.already_applied), already_applied=done.already_applied)

    def InsertStream(self, requests, context):
        for request in requests:
            yield self.BulkInsert(request, context)

    def StageBatch(self, request, context):
        return self._scripted(context, lambda: self._stage(request))

    def CommitBatch(self, request, context):
        return self._scripted(context, lambda: self._commit(request, context))

    def Watch(self, request, context):
        for entries in (1, 2):
            yield pb.QueryResponse(answers=[pb.Answer(entries=entries)])
            if request.query.window == "quiet":
                ended = threading.Event()
                if context.add_callback(ended.set):
                    ended.wait(120)
        context.abort_with_status(status(grpc.StatusCode.UNAVAILABLE, "the service is shutting down"))

    def ExportWindow(self, request, context):
        if request.window not in self.files:
            context.abort_with_status(status(grpc.StatusCode.NOT_FOUND, f"no window {request.window!r}"))
        data = self.files[request.window]
        self.streams += 1
        for at in range(0, len(data), 1000):
            self.gate.wait(120)
            self._scripted(context, lambda: None)
            yield pb.WindowChunk(data=data[at : at + 1000])

    def Entries(self, request, context):
        self.streams += 1
        for time, value in self.rows:
            self.gate.wait(120)
            self._scripted(context, lambda: None)
            column = pb.Column(float64=np.array([value], "<f8").tobytes())
            yield pb.BulkInsertRequest(time=np.array([time], "<i8").tobytes(), fields={"value": column})

    def ImportWindow(self, requests, context):
        self.importing.set()
        if not context.add_callback(self.importing.clear):  # the call has ended already
            self.importing.clear()
        chunks = list(requests)
        name = chunks[0].name or "w"
        self.gate.wait(120)
        if not context.is_active():
            return pb.WindowInfo()
        if name in self.files:
            context.abort_with_status(status(grpc.StatusCode.ALREADY_EXISTS, f"window {name!r} is there"))
        self.files[name] = b"".join(chunk.data for chunk in chunks)
        return pb.WindowInfo(spec=pb.WindowSpec(name=name), entries=len(self.files[name]))

    def _stage(self, request):
        token = f"stage {len(self.stages)}"
        self.stages[token] = _times(request.entries)
        return pb.StageBatchResponse(stage=token, entries=len(self.stages[token]), durability="sync")

    def _commit(self, request, context):
        if (request.query, request.batch) in self.committed:
            return pb.InsertResponse(already_applied=True, durability="sync")
        self.committed.add((request.query, request.batch))
        rows = [(time, 0.0) for stage in request.stages for time in self.stages[stage]]
        self.rows += rows
        return pb.InsertResponse(inserted=len(rows), durability="sync")

    def _write(self, request, context, rows):
        self.arrived.append((request.producer, request.sequence))
        self.gate.wait(120)
        return self._scripted(context, lambda: self._apply(request, context, rows))

    def _apply(self, request, context, rows):
        if request.producer:
            last = self.applied.get(request.producer, 0)
            if request.sequence > last + 1:
                info = grpc.StatusCode.FAILED_PRECONDITION
                context.abort_with_status(status(info, f"a gap: the next one is {last + 1}"))
            if request.sequence <= last:
                return pb.InsertResponse(already_applied=True, durability="sync")
            self.applied[request.producer] = request.sequence
        self.rows += rows
        return pb.InsertResponse(inserted=len(rows), durability="sync")

    def _scripted(self, context, apply):
        self._fail(context, "before")
        response = apply()
        self._fail(context, "after")
        if self.script:
            self.script.popleft()
        return response

    def _fail(self, context, when):
        if self.script and self.script[0] is not None and self.script[0][0] == when:
            context.abort_with_status(self.script.popleft()[1])


def _times(request):
    return np.frombuffer(request.time, "<i8").tolist()


@contextmanager
def serving(servicer, port=0):
    """Serve on a port; yield it. What is in progress at the end is cut off."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    windows_pb2_grpc.add_WindowsServicer_to_server(servicer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()
