"""Certificates of clients with rights: an entry of the file of tokens gives them, on both ports."""

from contextlib import contextmanager

import grpc
import pytest

from sash.access.access import Access
from sash.access.tokens import Tokens
from sash_client import TLS, Client
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, Unauthenticated
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.security.conftest import SPEC, ending
from tests.security.test_tls import https
from tests.support.certificates import Authority
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

ENTRIES = {
    "root": {"role": "admin"},
    "reader": {"certificate": "dashboards.example.com", "role": "read", "windows": ["seen*"]},
    "writer": {"certificate": "spiffe://example.com/writer", "role": "write", "windows": ["seen*"]},
    "other": {"certificate": "urn:example:writer", "role": "write", "windows": ["seen*"]},
    "few": {"certificate": "few", "role": "read", "calls_per_s": 0.001},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A service, its authority's file, and certificates by their subjects."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority("one")
    cert, key = authority.give(directory)
    ca = directory / "ca.pem"
    ca.write_bytes(authority.pem)
    certificates = {
        "plain": authority.give(directory, "plain"),
        "host": authority.give(directory, "host", "dashboards.example.com"),
        "uri": authority.give(directory, "uri", "other.example.com", "spiffe://example.com/writer"),
        "dashboards.example.com": authority.give(directory, "dashboards.example.com", "spiffe://example.com/writer"),
        "few": authority.give(directory, "few"),
        # Names of another kind than they look like have no rights, and take none from others.
        "uri like a host": authority.give(directory, "uri like a host", "uri=dashboards.example.com"),
        "both": authority.give(directory, "both", "uri=dashboards.example.com", "dashboards.example.com"),
        "urn:example:writer": authority.give(directory, "urn:example:writer"),
        "urn": authority.give(directory, "urn", "urn:example:writer"),
    }
    tokens = write_tokens(directory / "tokens.yaml", ENTRIES)
    with running_service(tls_cert=cert, tls_key=key, tls_client_ca=ca, tokens=tokens) as running:
        with https(running, ca, certificates["plain"]) as http:
            for name in ("seen", "hidden"):
                http.post("/v1/windows", json={"name": name, **SPEC}, headers=bearer("root")).raise_for_status()
        yield running, ca, certificates, tokens


@contextmanager
def stub_of(made, subject):
    running, ca, certificates, _ = made
    cert, key = certificates[subject]
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), cert.read_bytes())
    with grpc.secure_channel(running.grpc_target, credentials) as channel:
        yield pb_grpc.WindowsStub(channel)


def http(made, subject):
    running, ca, certificates, _ = made
    return https(running, ca, certificates[subject])


@pytest.mark.parametrize(
    ("subject", "reads", "writes"),
    [
        ("plain", False, False),
        ("host", True, False),
        ("uri", True, True),
        ("dashboards.example.com", True, False),  # the common name counts before the others
        ("uri like a host", False, False),
        ("both", True, False),
        ("urn:example:writer", False, False),
        ("urn", True, True),
    ],
)
def test_rights_of_a_certificate_on_both_ports(made, subject, reads, writes):
    entry = {"time": 1, "key": "a", "value": 1.5}
    with http(made, subject) as web:
        statuses = {
            "query": web.get("/v1/windows/seen/query?all_keys=true").status_code,
            "hidden": web.get("/v1/windows/hidden/query?all_keys=true").status_code,
            "insert": web.post("/v1/windows/seen/insert", json=entry).status_code,
            "create": web.post("/v1/windows", json={"name": "seen-too", **SPEC}).status_code,
            "connect": web.post("/sash.v1.Windows/ListWindows", json={}).status_code,
            "health": web.get("/healthz").status_code,
        }
    denied = 403 if reads else 401
    assert statuses == {
        "query": 200 if reads else 401,
        "hidden": denied,
        "insert": 200 if writes else denied,
        "create": denied,
        "connect": 200 if reads else 401,
        "health": 200,
    }
    with stub_of(made, subject) as stub:
        if reads:
            assert [window.spec.name for window in stub.ListWindows(pb.ListWindowsRequest()).windows] == ["seen"]
        codes = {
            "query": ending(lambda: stub.Query(pb.QueryRequest(window="seen", key="a")))[0],
            "hidden": ending(lambda: stub.Query(pb.QueryRequest(window="hidden", key="a")))[0],
            "insert": ending(lambda: stub.Insert(pb.InsertRequest(window="seen", time=2, key="a", value=1.5)))[0],
        }
    denied = "PERMISSION_DENIED" if reads else "UNAUTHENTICATED"
    assert codes == {"query": "OK" if reads else denied, "hidden": denied, "insert": "OK" if writes else denied}


@pytest.mark.parametrize("subject", ["plain", "uri"])
def test_streams_of_grpc(made, subject):
    with stub_of(made, subject) as stub:
        bulk = pb.BulkInsertRequest(window="seen", time=bytes(8), key=pb.Strings(dictionary=["a"], codes=bytes(4)))
        bulk.fields["value"].float64 = bytes(8)
        for call in (
            lambda: [each.inserted for each in stub.InsertStream(iter([bulk, bulk]))],
            lambda: next(stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="seen", key="a")))),
            lambda: list(stub.Entries(pb.EntriesRequest(window="seen", all_keys=True))),
        ):
            if subject == "uri":
                assert call()
                continue
            assert ending(call)[0] == "UNAUTHENTICATED"


def test_a_token_goes_before_the_certificate(made):
    with http(made, "host") as web:
        assert web.get("/v1/windows/hidden", headers=bearer("root")).status_code == 200
        assert web.get("/v1/windows/seen", headers=bearer("wrong")).status_code == 401
    running, ca, certificates, _ = made
    cert, key = certificates["host"]
    with Client(running.grpc_target, tls=TLS(ca=ca, cert=cert, key=key), token="root-token", timeout_s=120) as client:
        assert len(client.list_windows()) == 2


def test_a_certificate_has_quotas(made):
    with http(made, "few") as web, stub_of(made, "few") as stub:
        assert web.get("/v1/windows").status_code == 200
        refused = web.get("/v1/windows")
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert ending(lambda: stub.ListWindows(pb.ListWindowsRequest()))[0] == "RESOURCE_EXHAUSTED"


def test_a_watch_ends_and_an_open_connection_is_refused_when_the_entry_goes(made):
    _, _, _, tokens = made
    with http(made, "host") as web, stub_of(made, "host") as stub:
        assert web.get("/v1/windows/seen").status_code == 200
        watch = stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="seen", key="a"), interval_ms=50))
        next(watch)
        write_tokens(tokens, {name: entry for name, entry in ENTRIES.items() if name != "reader"})
        try:
            wait_until(lambda: web.get("/v1/windows/seen").status_code == 401)
            assert ending(lambda: list(watch))[0] == "UNAUTHENTICATED"
        finally:
            write_tokens(tokens, ENTRIES)
        wait_until(lambda: web.get("/v1/windows/seen").status_code == 200)


# -------------------------------------------------------------------- the file


def test_certificates_need_an_authority(tmp_path):
    path = write_tokens(tmp_path / "tokens.yaml", ENTRIES)
    with pytest.raises(InvalidArgument, match="need SASH_TLS_CLIENT_CA"), running_service(tokens=path):
        pass


async def test_a_name_in_a_certificate_is_no_token(tmp_path):
    """The digest of a token and the name in a certificate never meet in the table."""
    path = write_tokens(tmp_path / "tokens.yaml", ENTRIES)
    clock = ManualClock()
    tokens = Tokens(path, clock)
    access = Access(clock, [tokens], tokens.certified)
    with pytest.raises(Unauthenticated, match="the token is unknown"):
        await access.caller_of([b"Bearer few"])
    assert access.caller_with(["nobody", "few"]).name == "few"
    for names in ([], ["nobody"]):
        with pytest.raises(Unauthenticated, match="certificate"):
            access.caller_with(names)
