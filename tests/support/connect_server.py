"""Serves a servicer of gRPC over Connect as well, so that a client's tests run over both.

    client ── gRPC ─────▶ server of gRPC ──┐
    client ── Connect ──▶ this server ─────┴──▶ servicer: requests, failures, what is lost

Unary calls only; written from the protocol's documentation, apart from the service's own edge.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.rpc import status_pb2

from sash_proto.v1 import windows_pb2 as pb

_METHODS = pb.DESCRIPTOR.services_by_name["Windows"].methods_by_name
_STATUS = {"UNAVAILABLE": 503, "NOT_FOUND": 404, "UNAUTHENTICATED": 401, "DEADLINE_EXCEEDED": 504, "INTERNAL": 500}


class Address(dict):
    """How a client is made that calls a service: `Client(**address)`, with other arguments where a test has some."""

    @property
    def target(self):
        return self["target"]


def address(transport, grpc_port, http_port):
    """The address of a service on two ports of this machine."""
    grpc_target = f"127.0.0.1:{grpc_port}"
    if transport == "grpc":
        return Address(target=grpc_target)
    return Address(target=f"http://127.0.0.1:{http_port}", grpc_target=grpc_target)


def address_of(running, transport):
    """The address of a real service."""
    return address(transport, running.grpc_port, running.rest_port)


class _Aborted(Exception):
    pass


class _Context:
    """What a servicer gets beside its request."""

    def __init__(self):
        self.status = None

    def abort_with_status(self, status):
        self.status = status
        raise _Aborted

    def is_active(self):
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        method = _METHODS[self.path.rpartition("/")[2]]
        request = getattr(pb, method.input_type.name).FromString(self.rfile.read(int(self.headers["content-length"])))
        context = _Context()
        assert self.headers["connect-protocol-version"] == "1"
        assert int(self.headers["connect-timeout-ms"]) > 0
        try:
            answer = getattr(self.server.servicer, method.name)(request, context)
        except _Aborted:
            self._answer(*_failed(context.status), "application/json")
        else:
            self._answer(200, answer.SerializeToString(), "application/proto")

    def _answer(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def _failed(status):
    packed = [value for key, value in status.trailing_metadata or () if key == "grpc-status-details-bin"]
    details = status_pb2.Status.FromString(packed[0]).details if packed else ()
    assert isinstance(status.code, grpc.StatusCode)
    name = status.code.name.lower()
    document = {
        "code": "canceled" if name == "cancelled" else name,
        "message": status.details,
        "details": [
            {
                "type": detail.type_url.rpartition("/")[2],
                "value": base64.b64encode(detail.value).decode().rstrip("="),
            }
            for detail in details
        ],
    }
    return _STATUS.get(status.code.name, 400), json.dumps(document).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, servicer, port):
        super().__init__(("127.0.0.1", port), _Handler)
        self.servicer = servicer
        self.connections = set()

    def process_request(self, request, client_address):
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        pass  # a client that went away

    def cut(self):
        """Break all connections."""
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.connections.discard(connection)


@contextmanager
def over_connect(servicer, port=0):
    """Serve a servicer on a port; yield the server. What is in progress at the end is cut off."""
    server = _Server(servicer, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.cut()
