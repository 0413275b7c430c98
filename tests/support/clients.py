"""Clients of services that several tests share."""

from collections.abc import Iterator
from contextlib import contextmanager

from sash_client import Client


@contextmanager
def client_of(target: str, grpc_target: str | None = None) -> Iterator[Client]:
    """A client that deletes the service's windows in the end; what is derived goes first."""
    with Client(target, grpc_target=grpc_target, timeout_s=120) as client:
        yield client
        for window in sorted(client.list_windows(), key=lambda each: not {"of", "from"} & set(each.spec)):
            client.delete_window(window.name)
