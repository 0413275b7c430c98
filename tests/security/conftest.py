"""A service with tokens for each module, and services with one window."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from tests.support.connect_server import address_of
from tests.support.servers import Running, running_service
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

TOKENS = {
    "reader": {"role": "read", "windows": ["seen*"]},
    "writer": {"role": "write", "windows": ["seen*"]},
    "owner": {"role": "admin", "windows": ["seen*"]},
    "auditor": {"role": "read", "windows": ["*"]},
    "root": {"role": "admin", "windows": ["*"]},
    "late": {"role": "admin", "windows": ["*"], "expires": "2020-01-01T00:00:00Z"},
}
COUNT = {"n": {"function": "count"}}
SPEC = {
    "time_unit": "s",
    "keyed": True,
    "fields": {"value": "float64"},
    "aggregates": {"n": {"function": "count"}, "total": {"function": "sum"}},
}


@pytest.fixture(scope="module", autouse=True)
def often():
    """Services of this process look at their files more often than once a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sash.service._TIDY_EVERY_S", 0.05)
        yield


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Running]:
    path = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.yaml", TOKENS)
    with running_service(tokens=path) as running:
        with_windows(running)
        yield running


@pytest.fixture
def address(service, transport):
    return address_of(service, transport)


def with_windows(running: Running) -> None:
    """Create a window that the tokens of `seen*` see, and one that they do not see."""
    for name in ("seen", "hidden"):
        response = running.http().post("/v1/windows", json={"name": name, **SPEC}, headers=bearer("root"))
        assert response.status_code == 201, response.text


@contextlib.contextmanager
def windowed(**settings) -> Iterator[Running]:
    """A service with a window `w`."""
    with running_service(**settings) as running:
        new_window(running.http())
        yield running


def ending(call):
    """The code and the details of the end of a call of gRPC; "OK" where it goes on."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


@contextlib.contextmanager
def going_on(*calls) -> Iterator[Callable[[], None]]:
    """Make calls again and again meanwhile, each kind on a thread of its own. None may fail.

    Args:
        calls: generators, which make a call before each `yield`.

    Yields:
        what waits until all of them have been made again.
    """
    counts, stop, failed = [0] * len(calls), threading.Event(), []

    def repeat(number):
        try:
            for _ in calls[number]():
                counts[number] += 1
                if stop.is_set():
                    return
        except Exception as error:
            failed.append(error)
            stop.set()

    def all_go_on():
        before = list(counts)
        wait_until(lambda: stop.is_set() or all(now > then + 1 for now, then in zip(counts, before, strict=True)))

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    try:
        yield all_go_on
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert not failed


def new_window(http, name="w", **more) -> None:
    """Create a window, in the place of the one that is there."""
    http.delete(f"/v1/windows/{name}")
    assert http.post("/v1/windows", json={"name": name, "aggregates": COUNT, **more}).status_code == 201


def rejected(http, code, edge="rest") -> float:
    """How many requests were refused so."""
    found = re.search(
        rf'^sash_requests_rejected_total{{code="{code}",edge="{edge}"}} (\S+)$', http.get("/metrics").text, re.M
    )
    return float(found[1]) if found else 0.0
