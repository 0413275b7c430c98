"""``python -m sash.alive``: exit status 0 if the service of this machine answers, else 1. For container health checks.

It goes by the same variables as the service. The service's certificate is not checked: this asks whether it is alive,
not who it is. A service that asks for a client's certificate answers by refusing this one, which has none.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping

_WAIT_S = 2.0


def is_alive(environment: Mapping[str, str]) -> bool:
    """Ask the service that these variables describe."""
    port = int(environment.get("SASH_REST_PORT", "7071"))
    tls = "SASH_TLS_CERT" in environment
    # Not urlopen, which would ask a proxy that the environment names.
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=_WAIT_S, context=ssl._create_unverified_context())
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
    )
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        return tls and "SASH_TLS_CLIENT_CA" in environment
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not is_alive(os.environ))
