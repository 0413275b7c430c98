"""`sash top`: rates and latencies from two scrapes."""

import gc
import json
import os
import signal
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from sash_cli import scrape as cli_scrape
from sash_cli.scrape import metrics_url
from sash_cli.top import activity, samples
from sash_client import Client
from tests.support.certificates import Authority
from tests.support.forked import Forked
from tests.support.servers import WAIT_S, running_service
from tests.support.tokens import write_tokens

SPEC = {"name": "demo", "aggregates": {"n": {"function": "count"}}}


def scrape(calls=(0, 0, 0), errors=0, inserted=0):
    fast, slow, all_ = calls
    return f"""# HELP sash_ready x
sash_ready 1.0
process_resident_memory_bytes 1.048576e+06
sash_operation_seconds_bucket{{operation="insert",window_class="a",le="0.001"}} {fast}
sash_operation_seconds_bucket{{operation="insert",window_class="a",le="0.1"}} {slow}
sash_operation_seconds_bucket{{operation="insert",window_class="a",le="+Inf"}} {all_}
sash_operation_seconds_bucket{{operation="insert",window_class="b",le="0.001"}} {fast}
sash_operation_seconds_bucket{{operation="insert",window_class="b",le="0.1"}} {slow}
sash_operation_seconds_bucket{{operation="insert",window_class="b",le="+Inf"}} {all_}
sash_operation_errors_total{{operation="insert",kind="NotFound"}} {errors}
sash_operation_errors_total{{operation="insert",kind="InvalidArgument"}} {errors}
sash_window_entries{{window="demo"}} 7
sash_window_keys{{window="demo"}} 2
sash_entries_total{{window="demo",outcome="inserted"}} {inserted}
sash_entries_total{{window="demo",outcome="late"}} 5
"""


def between(before, after, seconds=2.0):
    return activity(samples(before), samples(after), seconds)


def test_rates_and_quantiles():
    found = between(scrape((10, 10, 10), 1, 100), scrape((60, 110, 110), 3, 150))
    assert (found.ready, found.memory_bytes, found.seconds) == (True, 2**20, 2.0)
    insert = found.operations["insert"]
    assert (insert.calls, insert.errors) == (100.0, 2.0)
    assert insert.p50_s == pytest.approx(0.001)
    assert insert.p99_s == pytest.approx(0.001 + 0.099 * 0.98)
    window = found.windows["demo"]
    assert (window.entries, window.keys, window.rates) == (7, 2, {"inserted": 25.0, "late": 0.0})


def test_counters_that_began_again_count_from_0():
    found = between(scrape((10, 10, 10), 5, 100), scrape((4, 4, 4), 1, 50))
    assert (found.operations["insert"].calls, found.operations["insert"].errors) == (4.0, 1.0)
    assert found.windows["demo"].rates["inserted"] == 25.0


def test_calls_beyond_the_last_bound_and_no_calls():
    assert between(scrape(), scrape((0, 0, 9))).operations["insert"].p50_s == 0.1
    quiet = between(scrape((5, 5, 5)), scrape((5, 5, 5))).operations["insert"]
    assert (quiet.calls, quiet.p50_s, quiet.p99_s) == (0.0, None, None)
    new = between("sash_ready 0\n", scrape((2, 2, 2), inserted=4))
    assert (new.operations["insert"].calls, new.windows["demo"].rates["inserted"]) == (2.0, 2.0)


def test_samples_of_a_scrape():
    text = '# x\na 1\nb{x="}\\"\\\\\\n,",y=""} NaN\nc{} +Inf 123\nd one\n{bad\n\ne_1{le="0.5"} 2e3\n'
    found = [(name, labels, repr(value)) for name, labels, value in samples(text)]
    assert found == [
        ("a", {}, "1.0"),
        ("b", {"x": '}"\\\n,', "y": ""}, "nan"),
        ("c", {}, "inf"),
        ("e_1", {"le": "0.5"}, "2000.0"),
    ]


@pytest.fixture(scope="module")
def service():
    with running_service() as running, Client(running.grpc_target) as client:
        client.create_window(SPEC).bulk_insert([1, 2, 3], [1.0, 2.0, 3.0])
        client.create_window({**SPEC, "name": "other"})
        yield running


def test_once(sash, service):
    asked = ("top", "--once", "--every", "0.05", "--metrics", f"{service.rest_url}/metrics")
    done = sash(*asked).out
    head, operations, windows = done.split("\n\n")
    assert head.startswith(f"{service.rest_url}/metrics: ready, 2 windows, ")
    assert operations.splitlines()[0].split() == ["operation", "calls/s", "errors/s", "p50", "ms", "p99", "ms"]
    assert ["bulk_insert", "0", "0", "-", "-"] in [line.split() for line in operations.splitlines()]
    assert [line.split() for line in windows.splitlines()] == [
        ["window", "entries", "keys", "inserted/s", "late/s", "evicted/s", "duplicates/s"],
        ["demo", "3", "1", "0", "0", "0", "0"],
        ["other", "0", "0", "0", "0", "0", "0"],
    ]
    assert sash(*asked, "-n", "1").out.splitlines()[-1] == "and 1 more"
    document = json.loads(sash(*asked, "--json").out)
    assert document["windows"]["demo"]["entries"] == 3
    assert document["operations"]["bulk_insert"] == {"calls": 0.0, "errors": 0.0, "p50_s": None, "p99_s": None}


def test_it_looks_again_until_it_is_interrupted(service):
    env = os.environ | {"SASH_METRICS": f"{service.rest_url}/metrics"}
    with Forked(["top", "--every", "0.05", "--json"], stdout=subprocess.PIPE, env=env) as looking:
        for _ in range(3):
            assert json.loads(looking.stdout.readline())["ready"] is True
        looking.send_signal(signal.SIGINT)
        assert looking.wait(WAIT_S) == 130


def test_a_terminal_is_cleared_before_each_look(sash, monkeypatch):
    scrapes = [scrape(), scrape((1, 1, 1)), scrape((2, 2, 2))]

    def fetch(url, login):
        if not scrapes:
            raise KeyboardInterrupt
        return scrapes.pop(0)

    monkeypatch.setattr(cli_scrape, "fetch", fetch)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    looks = sash("top", "--every", "0.05", expect=130).out.split("\x1b[H\x1b[J")
    assert looks[0] == ""
    assert [look.split(":")[0] for look in looks[1:]] == ["http"] * 2


def test_a_token_is_sent_to_this_address_only(sash, tmp_path, monkeypatch):
    path = write_tokens(tmp_path / "tokens.yaml", {"ops": {"role": "admin"}})
    with running_service(tokens=str(path)) as service:
        url = f"{service.rest_url}/metrics"
        assert "401" in sash("top", "--once", "--every", "0.05", "--metrics", url, expect=1).err
        gc.collect()  # a connection that is still open would show
        monkeypatch.setenv("SASH_TOKEN", "ops-token")
        assert ": ready, 0 windows" in sash("top", "--once", "--every", "0.05", "--metrics", url).out
        said = sash("top", "--once", "--metrics", "http://sash.example/metrics", expect=1).err
        assert "needs tls" in said

        class Redirect(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(302)
                self.send_header("Location", url)
                self.end_headers()

            def log_message(self, *_):
                pass

        with HTTPServer(("127.0.0.1", 0), Redirect) as elsewhere:
            Thread(target=elsewhere.handle_request, daemon=True).start()
            said = sash("top", "--once", "--metrics", f"http://127.0.0.1:{elsewhere.server_port}/", expect=1).err
        assert "302" in said


def test_metrics_of_a_service_that_asks_for_certificates(sash, tmp_path):
    authority = Authority("one")
    (ca := tmp_path / "ca.pem").write_bytes(authority.pem)
    (cert, key), (own, own_key) = authority.give(tmp_path), authority.give(tmp_path, "ops")
    with running_service(tls_cert=cert, tls_key=key, tls_client_ca=ca) as service:
        url = f"https://127.0.0.1:{service.rest_port}/metrics"
        words = ("top", "--once", "--every", "0.05", "--metrics", url)
        shown = sash("--tls-ca", ca, "--cert", own, "--key", own_key, *words).out
        assert shown.startswith(f"{url}: ready, 0 windows")
        assert "cannot read" in sash("--tls-ca", ca, *words, expect=1).err
        assert "cannot read" in sash(*words, expect=1).err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/metrics", "cannot read http://127.0.0.1:1/metrics: "),
        ("file:///etc/passwd", "is no address of metrics"),
        ("127.0.0.1:7071", "is no address of metrics"),
        ("http://[::1/metrics", "is no address of metrics"),
        ("http://127.0.0.1:port/metrics", "cannot read"),
    ],
)
def test_metrics_that_cannot_be_read_are_one_line(sash, url, said):
    done = sash("top", "--once", "--metrics", url, expect=1)
    assert said in done.err
    assert done.err.startswith("sash: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("target", "secure", "url"),
    [
        ("sash.example", False, "http://sash.example:7071/metrics"),
        ("sash.example:9999", True, "https://sash.example:7071/metrics"),
        ("::1", False, "http://[::1]:7071/metrics"),
        ("dns:///localhost:7070", False, "http://localhost:7071/metrics"),
        ("https://[::1]:8080", True, "https://[::1]:8080/metrics"),
    ],
)
def test_the_address_follows_from_the_target(target, secure, url):
    assert metrics_url(target, secure) == url
