"""TLS and mTLS on both ports; new files count without a restart, and no call fails meanwhile."""

import contextlib
import logging
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sash.access.build import check_exposure, is_loopback
from sash.access.tls import Certificates
from sash.settings import Settings
from sash_client import TLS, Client, InvalidArgument, Unavailable
from sash_client.aio import AsyncClient
from sash_engine.errors import InvalidArgument as WrongSetting
from tests.security.conftest import SPEC, going_on
from tests.support.certificates import Authority
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def authority():
    return Authority("one")


@pytest.fixture
def files(tmp_path, authority):
    """Paths of the service's certificate and key, and of its authority; and of a client's certificate and key."""
    cert, key = authority.give(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    mine = authority.give(tmp_path, "client")
    return {"tls_cert": cert, "tls_key": key}, ca, mine


def https(service, ca=None, mine=None):
    """An HTTP client that trusts an authority, with a certificate of its own or without."""
    context = ssl.create_default_context(cafile=ca)
    if mine is not None:
        context.load_cert_chain(*mine)
    url = f"https://127.0.0.1:{service.rest_port}"
    return httpx.Client(base_url=url, verify=context, trust_env=False, timeout=120)


def address_of(service, transport, host="127.0.0.1"):
    if transport == "grpc":
        return {"target": f"{host}:{service.grpc_port}"}
    return {"target": f"https://{host}:{service.rest_port}", "grpc_target": f"{host}:{service.grpc_port}"}


def refused(address, *kinds):
    """Whether the service refuses clients of each kind of TLS; they try several times, so all at once."""

    def ask(tls):
        with Client(**address, tls=tls, timeout_s=120) as client:
            try:
                client.list_windows()
            except Unavailable:
                return True
        return False

    with ThreadPoolExecutor(len(kinds)) as pool:
        return list(pool.map(ask, kinds))


# -------------------------------------------------------------------- who gets in


async def test_both_ports_speak_tls(files, transport):
    settings, ca, _ = files
    with running_service(**settings) as service:
        with https(service, ca) as http:
            assert http.post("/v1/windows", json={"name": "w", **SPEC}).status_code == 201
            connect = http.post("/sash.v1.Windows/ListWindows", json={})
            assert [window["spec"]["name"] for window in connect.json()["windows"]] == ["w"]
        with Client(**address_of(service, transport), tls=TLS(ca=ca)) as client:
            assert [window.name for window in client.list_windows()] == ["w"]
            assert list(client.window("w").entries()) == []
        async with AsyncClient(**address_of(service, transport, "localhost"), tls=TLS(ca)) as client:
            assert [window.name for window in await client.list_windows()] == ["w"]
        with Client(**address_of(service, transport), tls=TLS(ca, name="localhost")) as client:
            assert len(client.list_windows()) == 1


def test_the_wrong_authority_and_no_tls_do_not_get_on(files, tmp_path, transport):
    settings, ca, _ = files
    other = tmp_path / "other.pem"
    other.write_bytes(Authority("two").pem)
    with running_service(**settings) as service:
        address = address_of(service, transport)
        # True: public authorities
        assert refused(address, TLS(ca=other), True, TLS(ca=ca, name="sash.example"), TLS(ca=ca)) == [True] * 3 + [
            False
        ]
        clear = address if transport == "grpc" else {"target": address["target"].replace("https", "http")}
        assert refused(clear, False) == [True]
        with https(service, other) as http, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            http.get("/healthz")
        with pytest.raises(httpx.HTTPError):
            service.http().get("/healthz")  # without TLS


def test_clients_need_a_certificate(files, tmp_path, transport):
    settings, ca, mine = files
    stranger = Authority("two").give(tmp_path, "stranger")
    with running_service(**settings, tls_client_ca=ca) as service:
        address = address_of(service, transport)
        assert refused(address, TLS(ca, *mine), TLS(ca), TLS(ca, *stranger)) == [False, True, True]
        check_http(service, ca, [mine], [None, stranger])


def check_http(service, ca, welcome, others):
    """Check who gets on over HTTP, by their certificates."""
    for certificate in welcome:
        with https(service, ca, certificate) as http:
            assert http.get("/healthz").status_code == 200
    for certificate in others:
        with https(service, ca, certificate) as http, pytest.raises((httpx.HTTPError, ssl.SSLError)):
            http.get("/healthz")


def test_an_idle_client_does_not_hold_up_the_end(files):
    """It does not read, so it would not answer the end of TLS."""
    settings, ca, _ = files
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running_service(**settings, shutdown_grace_s=WAIT_S * 2))
        client = stack.enter_context(Client(f"https://127.0.0.1:{service.rest_port}", tls=TLS(ca)))
        assert client.list_windows() == []
        service.stop()  # asserts that it ends within WAIT_S, which is less than the grace


def test_old_versions_of_tls_are_refused(files):
    settings, _, _ = files
    context = Certificates(*settings.values()).context.current
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


# -------------------------------------------------------------------- new files


def test_a_reload_under_load_fails_no_call(files, tmp_path, authority):
    settings, ca, mine = files

    def kept_connection():
        with Client(service.grpc_target, tls=TLS(ca, *mine)) as client:
            while True:
                yield client.list_windows()

    def new_connections():
        while True:
            with Client(service.grpc_target, tls=TLS(ca, *mine)) as client:
                yield client.list_windows()

    def new_http_connections():
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(*mine)
        while True:
            with httpx.Client(verify=context, trust_env=False, timeout=120) as http:
                yield http.get(f"https://127.0.0.1:{service.rest_port}/healthz").raise_for_status()

    def serial():
        pem = ssl.get_server_certificate(("127.0.0.1", service.rest_port))
        return pem.strip()

    with (
        running_service(**settings) as service,
        going_on(kept_connection, new_connections, new_http_connections) as all_go_on,
    ):
        all_go_on()
        for _ in range(2):
            old = serial()
            settings["tls_cert"].write_text("broken")
            cert, _ = authority.give(tmp_path)
            assert cert.read_text().strip() != old
            wait_until(lambda cert=cert: serial() == cert.read_text().strip())
            all_go_on()


def test_an_authority_that_is_gone_lets_nobody_in(files, tmp_path, authority, transport):
    settings, ca, mine = files
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.pem)
    second = Authority("two")
    theirs = second.give(tmp_path, "second")
    both = TLS(ca, *mine), TLS(ca, *theirs)
    with running_service(**settings, tls_client_ca=trusted) as service:
        address = address_of(service, transport)
        assert refused(address, *both) == [False, True]
        fresh = tmp_path / "fresh.pem"
        fresh.write_bytes(second.pem)
        fresh.replace(trusted)
        wait_until(lambda: refused(address, *both) == [True, False])
        check_http(service, ca, [theirs], [mine])


async def test_files_that_do_not_fit_leave_the_old_ones(files, tmp_path, authority, caplog):
    settings, _, _ = files
    certificates = Certificates(settings["tls_cert"], settings["tls_key"])
    before, context = certificates.pem, certificates.context.current
    old_key = settings["tls_key"].read_bytes()
    authority.give(tmp_path)
    new_key = settings["tls_key"].read_bytes()
    settings["tls_key"].write_bytes(old_key)
    with caplog.at_level(logging.INFO, "sash"):
        await certificates.refresh()  # the new certificate, and the old key: half of a rotation
        assert (certificates.pem, certificates.context.current) == (before, context)
        settings["tls_key"].write_bytes(new_key)
        await certificates.refresh()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert certificates.pem.key == new_key
    assert certificates.context.current is not context


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key", "tls_client_ca"])
def test_a_wrong_file_names_its_setting(files, tmp_path, missing):
    settings, ca, _ = files
    paths = {**settings, "tls_client_ca": ca}
    for content in (None, b"no pem"):
        wrong = tmp_path / "wrong.pem"
        if content is not None:
            wrong.write_bytes(content)
        with pytest.raises(WrongSetting, match=f"SASH_{missing.upper()}.*wrong.pem"):
            Certificates(*{**paths, missing: wrong}.values())


# -------------------------------------------------------------------- clients' settings


@pytest.mark.parametrize("target", ["127.0.0.1", "https://127.0.0.1"])
def test_files_of_a_client_that_are_wrong(tmp_path, target):
    for tls, field in ((TLS(ca=tmp_path / "no.pem"), "tls.ca"), (TLS(cert="c"), "tls"), (TLS(key="k"), "tls")):
        with pytest.raises(InvalidArgument) as wrong:
            Client(target, tls=tls)
        assert wrong.value.field == field


@pytest.mark.parametrize(
    "content", [b"no pem", b"\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_a_file_of_a_client_that_is_no_pem(tmp_path, files, content):
    _, ca, mine = files
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(content)
    for tls in (TLS(ca=wrong), TLS(ca, wrong, mine[1]), TLS(ca, mine[0], wrong)):
        with pytest.raises(InvalidArgument) as refused:
            Client("https://127.0.0.1", tls=tls)
        assert refused.value.field == "tls"


def test_the_url_says_whether_there_is_tls():
    for target, tls in (("https://127.0.0.1", False), ("http://127.0.0.1", True), ("http://127.0.0.1", TLS())):
        with pytest.raises(InvalidArgument, match="write http") as wrong:
            Client(target, tls=tls)
        assert wrong.value.field == "tls"


# -------------------------------------------------------------------- other machines


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_this_machine_needs_no_tokens(host):
    assert is_loopback(host)
    check_exposure(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "sash.example", "localhost.example", "::ffff:10.0.0.1"])
def test_other_machines_are_not_served_without_tokens(host, caplog):
    with pytest.raises(
        WrongSetting, match="SASH_TOKENS, SASH_JWT_JWKS or SASH_TLS_CLIENT_CA; or SASH_INSECURE=1"
    ) as refused:
        check_exposure(Settings(host=host))
    assert refused.value.field == "host"
    check_exposure(Settings(host=host, insecure=True))
    check_exposure(Settings(host=host, tls_client_ca="ca.pem", tls_cert="c.pem"))
    assert not caplog.records
    for who in ({"tokens": "tokens.yaml"}, {"jwt_jwks": "keys.json"}):
        caplog.clear()
        check_exposure(Settings(host=host, **who))
        assert "in the clear" in caplog.text


def test_a_service_checks_before_it_starts():
    with pytest.raises(WrongSetting, match=r"SASH_HOST=0\.0\.0\.0 lets"), running_service(host="0.0.0.0"):
        pass
