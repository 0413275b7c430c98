"""Where people say that a service is."""

import pytest

from sash_client import Client, InvalidArgument, Unavailable
from sash_client.targets import to_target
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


@pytest.mark.parametrize(
    "wrong",
    [
        *("", " ", "a b", "sash:", ":7070", "sash:0", "sash:65536", "sash:port", "sash/7070", "sash:7070/", "me@sash"),
        *("http://sash:7071", "https://sash", "grpc://sash:7070", "a:1,b:2", "[::1", "unix:", None, 7070, b"sash"),
    ],
)
def test_what_is_no_target_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="HOST:PORT") as refused:
        Client(wrong)
    assert refused.value.field == "target"
    assert ("REST" in refused.value.message) == str(wrong).startswith("http")


def test_who_is_not_there_is_told_from_who_cannot_serve():
    with running_service(max_concurrent_calls=1) as service, Client(service.grpc_target, timeout_s=5) as client:
        client.create_window({"name": "w", "aggregates": {"n": {"function": "count"}}})
        next(iter(watching := client.window("w").watch()))
        with pytest.raises(Unavailable, match="in progress") as refused:
            client.list_windows()
        assert not refused.value.unreachable
        watching.close()
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable, match="refused") as lost:
        client.list_windows()
    assert lost.value.unreachable
    assert lost.value.message.startswith("the service cannot be reached: ")
