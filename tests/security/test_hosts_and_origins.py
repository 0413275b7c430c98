"""Which Host and Origin a request may have, and the headers that every answer has; on REST, Connect and the page."""

import json

import httpx
import pytest

from sash.rest.guards import Guard
from sash.settings import Settings, load_settings
from sash_engine.errors import InvalidArgument
from tests.support.raw_http import connected
from tests.support.servers import problem, running_service

PATHS = ["/v1/windows", "/sash.v1.Windows/ListWindows?connect=v1&encoding=json&message={}", "/", "/docs", "/metrics"]


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


def guarded(**settings):
    return Guard(Settings(**settings))


async def ask(guard, method="GET", *headers, version="1.1"):
    """The status, headers and body of an answer; where the guard lets the request pass, that it was called."""
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": method, "path": "/x", "http_version": version, "headers": raw}
    refusal, lines = guard.checked(scope)
    found = dict(line.split(": ", 1) for line in lines.decode().splitlines())
    if refusal is None:
        return 200, found, b"called"
    return refusal.status_code, {**refusal.headers, **found}, refusal.body


async def status_for_host(guard, host):
    status, _, body = await ask(guard, "GET", ("Host", host))
    assert (status == 200) == (body == b"called")
    if status != 200:
        assert "SASH_ALLOWED_HOSTS" in json.loads(body)["detail"]
    return status


# -------------------------------------------------------------------- Host

LOOPBACK = [
    "localhost",
    "LOCALHOST:7071",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.0.0.2:7071",
    "[::1]",
    "[::1]:7071",
    "localhost:",
]
FOREIGN = [
    "evil.example",
    "evil.example:7071",
    "localhost.evil.example",
    "evil.localhost.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "xlocalhost",
    "",
    ":7071",
    "*",
    "[localhost",
    "[localhost]",
    "[::1]evil.example",
    "[::1]evil.example:7071",
    "[::1]:evil.example",
    "[::1]:80evil",
    "[::1]]",
    "[[::1]",
    "x[::1]",
    "::1",
    "localhost:evil.example",
    "localhost:80:80",
    "127.0.0.1:80@evil.example",
    "10.0.0.7",
    "[fe80::1]",
]


@pytest.mark.parametrize("host", LOOPBACK)
async def test_loopback_names_are_always_allowed(host):
    for settings in ({}, {"host": "10.0.0.7"}, {"allowed_hosts": "sash.example.com"}):
        assert await status_for_host(guarded(**settings), host) == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_other_hosts_are_not(host):
    guard = guarded()
    assert [await status_for_host(guard, host) for _ in range(2)] == [421, 421]


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({"host": "10.0.0.7"}, "10.0.0.7:7071", 200),
        ({"host": "10.0.0.7"}, "10.0.0.8:7071", 421),
        ({"host": "Sash.Internal"}, "sash.internal", 200),
        ({"host": "fe80::1"}, "[fe80::1]:7071", 200),
        ({"host": "0.0.0.0"}, "10.0.0.7:7071", 200),
        ({"host": "0.0.0.0"}, "[fe80::1]", 200),
        ({"host": "::"}, "10.0.0.7", 200),
        ({"host": "0.0.0.0"}, "evil.example", 421),
        ({"allowed_hosts": "sash.example.com, Other"}, "SASH.example.com:443", 200),
        ({"allowed_hosts": "sash.example.com, Other"}, "other", 200),
        ({"allowed_hosts": "sash.example.com"}, "x.sash.example.com", 421),
        ({"allowed_hosts": "sash.example.com"}, "example.com", 421),
        ({"allowed_hosts": "*.example.com"}, "a.b.example.com:1", 200),
        ({"allowed_hosts": "*.example.com"}, "example.com", 421),
        ({"allowed_hosts": "*.example.com"}, "evilexample.com", 421),
        ({"allowed_hosts": "*"}, "anything.example", 200),
        ({"allowed_hosts": "*"}, "", 421),
    ],
)
async def test_hosts_by_setting(settings, host, status):
    assert await status_for_host(guarded(**settings), host) == status


@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_host_is_refused_on_every_app(http, path):
    assert http.get(path).status_code == 200
    found = problem(http.get(path, headers={"host": "evil.example"}))
    assert found["status"] == 421
    assert "evil.example" in found["detail"]


def test_refusals_are_counted(http):
    http.get("/healthz", headers={"host": "evil.example"})
    assert 'sash_requests_rejected_total{code="421",edge="rest"}' in http.get("/metrics").text


async def test_a_request_has_one_host():
    guard, twice = guarded(), (("Host", "localhost"), ("Host", "evil.example"))
    assert (await ask(guard, "GET", twice[0]))[0] == 200
    for headers in ((), twice, twice[::-1], (twice[0], twice[0])):
        assert (await ask(guard, "GET", *headers))[0] == 400
    assert (await ask(guard, "GET", version="1.0"))[0] == 200
    assert (await ask(guard, "GET", *twice, version="1.0"))[0] == 400


def test_an_address_in_the_request_line_does_not_replace_the_host(service):
    with connected(service, b"GET http://localhost/healthz HTTP/1.1\r\nhost: evil.example\r\n\r\n") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 421")


async def test_many_spellings_of_a_host_take_no_memory():
    guard = guarded()
    for port in range(5000):
        assert await status_for_host(guard, f"localhost:{port}") == 200
    assert len(guard._known) <= 1024


# -------------------------------------------------------------------- Origin

SAME = "http://sash.example.com:7071"
ORIGINS = [
    # (origin, what SASH_CORS_ORIGINS has, whether it may write, whether it may read)
    (None, "", True, False),
    (SAME, "", True, False),
    ("https://sash.example.com:7071", "", True, False),  # a proxy may end TLS
    ("HTTP://SASH.example.com:7071", "", True, False),
    ("http://sash.example.com", "", False, False),
    ("http://sash.example.com:7072", "", False, False),
    ("http://evil.example", "", False, False),
    ("null", "", False, False),
    ("", "", True, False),
    ("http://evil.example", "https://grafana.example.com", False, False),
    ("https://grafana.example.com", "https://grafana.example.com", True, True),
    ("https://grafana.example.com", "http://a, https://GRAFANA.example.com", True, True),
    ("http://grafana.example.com", "https://grafana.example.com", False, False),
    ("https://grafana.example.com:444", "https://grafana.example.com", False, False),
    ("null", "https://grafana.example.com", False, False),
    ("http://evil.example", "*", True, True),
]


@pytest.mark.parametrize(("origin", "allowed", "writes", "reads"), ORIGINS)
async def test_origins(origin, allowed, writes, reads):
    guard = guarded(allowed_hosts="sash.example.com", cors_origins=allowed)
    headers = [("Host", "sash.example.com:7071"), *([] if origin is None else [("Origin", origin)])]
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        status, found, body = await ask(guard, method, *headers)
        assert (status, body == b"called") == ((200, True) if writes else (403, False))
        if not writes:
            assert "SASH_CORS_ORIGINS" in json.loads(body)["detail"]
    for method in ("GET", "HEAD"):
        status, found, body = await ask(guard, method, *headers)
        assert (status, body) == (200, b"called")
        assert found.get("access-control-allow-origin") == (origin if reads else None)
        assert found.get("vary") == ("Origin" if allowed else None)
        assert "access-control-allow-credentials" not in found


@pytest.mark.parametrize(("origin", "allowed", "_", "reads"), ORIGINS)
async def test_preflights(origin, allowed, _, reads):
    guard = guarded(allowed_hosts="sash.example.com", cors_origins=allowed)
    headers = [("Host", "sash.example.com:7071"), ("Access-Control-Request-Method", "POST")]
    headers += [] if origin is None else [("Origin", origin)]
    status, found, body = await ask(guard, "OPTIONS", *headers)
    assert (status, body == b"called") == ((204, False) if reads else (200, True))
    assert found.get("access-control-allow-origin") == (origin if reads else None)
    if reads:
        assert "Content-Type" in found["access-control-allow-headers"]
        assert "DELETE" in found["access-control-allow-methods"]


@pytest.mark.parametrize("path", ["/v1/windows", "/sash.v1.Windows/CreateWindow"])
def test_a_page_of_another_site_creates_nothing(http, path):
    body = {"name": "w", "spec": {"name": "w"}, "aggregates": {"n": {"function": "count"}}}
    found = problem(http.post(path, json=body, headers={"origin": "http://evil.example"}))
    assert (found["status"], found["field"], found["reason"]) == (403, "Origin", "PERMISSION_DENIED")
    assert http.get("/v1/windows").json() == {"windows": []}


def test_an_allowed_page_works():
    """From the preflight to the answer, on REST and Connect."""
    page = "https://grafana.example.com"
    with running_service(cors_origins=page) as service:
        http = service.http()
        asked = {"origin": page, "access-control-request-method": "POST"}
        for path in ("/v1/windows", "/sash.v1.Windows/ListWindows"):
            preflight = http.options(path, headers=asked)
            assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, page)
        spec = {"name": "w", "aggregates": {"n": {"function": "count"}}}
        made = http.post("/v1/windows", json=spec, headers={"origin": page})
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, page)
        refused = http.get("/v1/windows/nope", headers={"origin": page})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (404, page)
        listed = http.post("/sash.v1.Windows/ListWindows", json={}, headers={"origin": page})
        assert (listed.status_code, listed.headers["access-control-allow-origin"]) == (200, page)


# -------------------------------------------------------------------- headers of answers

ANSWERS = [
    ("GET", "/v1/windows", 200),
    ("GET", "/v1/windows/nope", 404),
    ("POST", "/v1/windows", 415),
    ("OPTIONS", "/v1/windows", 405),
    ("GET", "/nothing", 404),
    ("GET", "/metrics", 200),
    ("HEAD", "/healthz", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/docs", 200),
    ("GET", "/static-offline-docs/swagger-ui.css", 200),
    ("GET", "/", 200),
    ("GET", "/ui/page.js", 200),
    ("GET", "/sash.v1.Windows/ListWindows?connect=v1&encoding=json&message={}", 200),
    ("POST", "/sash.v1.Windows/ListWindows", 415),
    ("POST", "/sash.v1.Windows/Nope", 404),
]


def check_headers(response: httpx.Response) -> None:
    headers = response.headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    (policy,) = headers.get_list("content-security-policy")
    found = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert found["frame-ancestors"] == found["base-uri"] == "'none'"
    assert found["default-src"] in ("'self'", "'none'")
    assert "unsafe" not in found.get("script-src", "")
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS)
def test_every_answer_has_the_headers(http, method, path, status):
    response = http.request(method, path)
    assert response.status_code == status
    check_headers(response)
    is_page = path in ("/", "/docs") or path.startswith("/ui/")
    assert ("default-src 'self'" in response.headers["content-security-policy"]) == is_page


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}])
def test_refusals_have_the_headers(http, headers):
    check_headers(http.post("/v1/windows", json={}, headers=headers))


def test_a_full_service_has_the_headers():
    with running_service(max_concurrent_calls=1) as service:
        http = service.http()
        http.post("/v1/windows", json={"name": "w", "aggregates": {"n": {"function": "count"}}})
        with http.stream("GET", "/v1/windows/w/watch") as watching:
            check_headers(watching)
            refused = http.get("/v1/windows")
            assert refused.status_code == 503
            check_headers(refused)


# -------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("name", "value", "quoted"),
    [
        ("allowed_hosts", "http://sash.example.com", "http://sash.example.com"),
        ("allowed_hosts", "sash.example.com:7071", "sash.example.com:7071"),
        ("allowed_hosts", "a b", "a b"),
        ("allowed_hosts", "good, sash.*.com", "sash.*.com"),
        ("cors_origins", "grafana.example.com", "grafana.example.com"),
        ("cors_origins", "https://grafana.example.com/", "https://grafana.example.com/"),
        ("cors_origins", "https://*.example.com", "https://*.example.com"),
        ("cors_origins", "null", "null"),
    ],
)
def test_settings_that_are_wrong(monkeypatch, name, value, quoted):
    monkeypatch.setenv(f"SASH_{name.upper()}", value)
    with pytest.raises(InvalidArgument, match=f"^SASH_{name.upper()} must be ") as refused:
        load_settings()
    assert repr(quoted) in refused.value.message


def test_settings_from_the_environment(monkeypatch):
    monkeypatch.setenv("SASH_ALLOWED_HOSTS", " Sash.example.com,*.internal,, 10.0.0.7 ,fe80::1,*")
    monkeypatch.setenv("SASH_CORS_ORIGINS", "HTTPS://Grafana.example.com:3000")
    found = load_settings()
    assert found.allowed_hosts == ("sash.example.com", "*.internal", "10.0.0.7", "fe80::1", "*")
    assert found.cors_origins == ("https://grafana.example.com:3000",)
