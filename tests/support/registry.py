"""A schema registry, as much of one as readers ask: schemas by number and by version, over HTTP on a free port.

with schema_registry() as registry:
    number = registry.add("AVRO", {"type": "record", …})
    value = framed(number, body)
"""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


def framed(number, body):
    """A record behind the header that names its schema."""
    return b"\0" + number.to_bytes(4) + body


class Registry:
    """Its schemas, and what it was asked."""

    def __init__(self, url):
        self.url, self.documents, self.asked, self.failures, self.headers = url, {}, [], [], {}

    def add(self, kind, schema, references=(), subject=None):
        """Register a schema; return its number."""
        number = 1 + len(self.documents)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        document = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})  # as Confluent's does
        if references:
            document["references"] = [{"name": n, "subject": s, "version": 1} for n, s in references]
        self.documents[f"/schemas/ids/{number}"] = document
        if subject is not None:
            self.documents[f"/subjects/{subject}/versions/1"] = document
        return number


@contextmanager
def schema_registry():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, query = self.path.partition("?")
            registry.asked.append(self.path)
            registry.headers = dict(self.headers)
            code, document = 200, registry.documents.get(path)
            if registry.failures:
                code = registry.failures.pop(0)
            elif document is None:
                code = 404
            elif (
                isinstance(document, dict) and document.get("schemaType") == "PROTOBUF" and query != "format=serialized"
            ):
                code = 422
            if isinstance(document, str):  # it is somewhere else
                self.send_response(302)
                self.send_header("Location", document)
                self.end_headers()
                return
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = Registry(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
