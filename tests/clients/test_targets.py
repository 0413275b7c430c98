"""Where people say that a service is."""

import pytest

from sash_client import Client, InvalidArgument, Unavailable
from sash_client.calls.targets import to_endpoint, to_target
from tests.support.connect_server import address
from tests.support.refused import field_of
from tests.support.servers import running_service


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ("127.0.0.1", "127.0.0.1:7070"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("sash", "sash:7070"),
        ("sash.example:7171", "sash.example:7171"),
        ("::1", "[::1]:7070"),
        ("fe80::1.2.3.4", "[fe80::1.2.3.4]:7070"),
        ("[::1]", "[::1]:7070"),
        ("[::1]:80", "[::1]:80"),
        ("dns:///sash:80", "dns:///sash:80"),
        ("unix:/run/sash", "unix:/run/sash"),
    ],
)
def test_a_port_is_added_where_there_is_none(given, target):
    assert to_target(given) == to_target(target) == target


WRONG = """
sash: :7070 sash:0 sash:65536 sash:port sash/7070 sash:7070/ me@sash http://sash:7071/v1 https:// http://a:b
https://me@sash http://ü grpc://sash:7070 a:1,b:2 [::1 unix:
"""


@pytest.mark.parametrize("wrong", [*WRONG.split(), "", " ", "a b", "http://a\n", None, 7070, b"sash"])
def test_what_is_no_target_is_refused(wrong):
    assert field_of(Client, wrong, match="HOST:PORT") == "target"


@pytest.mark.parametrize(
    ("given", "host", "port", "shown"),
    [
        ("http://127.0.0.1:7071", "127.0.0.1", 7071, "http://127.0.0.1:7071"),
        ("HTTP://sash/", "sash", 80, "http://sash:80"),
        ("https://sash.example", "sash.example", 443, "https://sash.example:443"),
        ("http://[::1]:7071", "::1", 7071, "http://[::1]:7071"),
    ],
)
def test_a_url_is_the_http_port(given, host, port, shown):
    found = to_endpoint(given)
    assert (found.host, found.port, found.is_tls) == (host, port, shown.startswith("https"))
    with Client(given) as client:
        assert client.target == shown
        assert client._grpc_target == to_target(host)
    with Client(given, grpc_target="other:1") as client:
        assert client._grpc_target == "other:1"


def test_only_a_url_has_another_address_for_streams():
    for target, other in (("127.0.0.1", "127.0.0.1:7070"), ("http://127.0.0.1", "http://127.0.0.1")):
        with pytest.raises(InvalidArgument):
            Client(target, grpc_target=other)


def test_who_is_not_there_is_told_from_who_cannot_serve(transport):
    with running_service(max_concurrent_calls=1) as service, Client(service.grpc_target, timeout_s=60) as client:
        client.create_window({"name": "w", "aggregates": {"n": {"function": "count"}}})
        next(iter(watching := client.window("w").watch()))
        with pytest.raises(Unavailable, match="in progress") as refused:
            client.list_windows()
        assert not refused.value.unreachable
        watching.close()
    with Client(**address(transport, 1, 1)) as client, pytest.raises(Unavailable, match="refused") as lost:
        client.list_windows()
    assert lost.value.unreachable
    assert lost.value.message.startswith("the service cannot be reached: ")


def test_the_port_of_grpc_is_no_address_of_connect():
    with (
        running_service() as service,
        Client(f"http://{service.grpc_target}") as client,
        pytest.raises(Unavailable, match="port of gRPC: give that without http://, or the port of REST"),
    ):
        client.list_windows()


def test_the_http_port_is_no_target_of_grpc():
    with running_service() as service:
        target = f"127.0.0.1:{service.rest_port}"
        says = f"{target} speaks HTTP, not gRPC; give the port of gRPC (by default 7070), or http://{target}"
        with Client(target, timeout_s=60) as client, pytest.raises(Unavailable) as refused:
            client.list_windows()
    assert refused.value.message.endswith(says)
