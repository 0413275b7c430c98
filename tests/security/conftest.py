"""A service with tokens for each module."""

from collections.abc import Iterator

import pytest

from tests.support.connect_server import address_of
from tests.support.servers import Running, running_service
from tests.support.tokens import bearer, write_tokens

TOKENS = {
    "reader": {"role": "read", "windows": ["seen*"]},
    "writer": {"role": "write", "windows": ["seen*"]},
    "owner": {"role": "admin", "windows": ["seen*"]},
    "auditor": {"role": "read", "windows": ["*"]},
    "root": {"role": "admin", "windows": ["*"]},
    "late": {"role": "admin", "windows": ["*"], "expires": "2020-01-01T00:00:00Z"},
}
SPEC = {
    "time_unit": "s",
    "keyed": True,
    "fields": {"value": "float64"},
    "aggregates": {"n": {"function": "count"}, "total": {"function": "sum"}},
}


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
