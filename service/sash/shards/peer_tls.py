"""TLS between processes over a network: each proves who it is by the certificate of its ports.

Peer ── client certificate, where authorities are set ──▶ PeerServer
     ◀── server certificate, for the name that the lease table has ──
"""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from sash.access.tls import Certificates, Pem
from sash.rpc.access import server_credentials


class PeerTls:
    """The credentials of a process, as its files are now.

    Args:
        certificates: of its ports.
    """

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    @property
    def pem(self) -> Pem:
        """The contents of the files. It is another object once they have changed."""
        return self._certificates.pem

    def server(self) -> grpc.ServerCredentials:
        """For a server that other processes call; it follows the files."""
        return server_credentials(self._certificates, lambda pem: pem.of_peers)

    def client(self) -> grpc.ChannelCredentials:
        """For calls of other processes; of the files as they are now."""
        pem = self.pem
        if pem.of_peers is not None:
            return grpc.ssl_channel_credentials(pem.of_peers, pem.key, pem.cert)
        return grpc.ssl_channel_credentials(pem.cert + b"\n" + _of_system())


def _of_system() -> bytes:
    path = ssl.get_default_verify_paths().cafile
    return b"" if path is None else Path(path).read_bytes()
