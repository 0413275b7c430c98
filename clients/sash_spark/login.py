"""The credentials of Spark's driver and executors for the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sash_client import TLS, Client, InvalidArgument
from sash_client.calls.credentials import Token
from sash_client.calls.targets import to_endpoint
from sash_client.direct import DirectClient
from sash_spark.options import Options

LOGIN_OPTIONS = {"token", "token_file", "tls", "tls.ca", "tls.cert", "tls.key", "tls.name"}


@dataclass(frozen=True)
class Login:
    """Token and TLS of a client; pickled to the executors. Its `repr` hides the token, because Spark logs it.

    Args:
        token: the token itself.
        token_file: a file with the token, on the driver and on every executor; read for every call, so it may change.
        tls: whether to use TLS; None: only if a certificate is named. False sends a token in the clear.
        ca, cert, key, name: as in `sash_client.TLS`; the files are on the driver and on every executor.
    """

    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls: bool | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise InvalidArgument("give either token or token_file", field="token_file")
        if self.tls is False and self._files != TLS():
            raise InvalidArgument("tls is false, and there are files for it", field="tls")

    @classmethod
    def of(cls, options: Options) -> Login:
        """Read the options."""
        files = {name: options.text(f"tls.{name}") for name in ("ca", "cert", "key", "name")}
        tls = None if options.text("tls") is None else options.flag("tls")
        return cls(options.text("token"), options.text("token_file"), tls, **files)

    def client(self, target: str, timeout_s: float = 30.0) -> Client:
        """Connect to the service: to all of its processes, where there are several, so that rows go to their owners."""
        tls = self._files if self._files != TLS() else self.tls
        made = DirectClient if to_endpoint(target) is None else Client
        return made(target, timeout_s=timeout_s, token=self._token(), tls=tls)

    @property
    def _files(self) -> TLS:
        return TLS(self.ca, self.cert, self.key, self.name)

    def _token(self) -> Token | None:
        if self.token_file is None:
            return self.token
        path = Path(self.token_file)

        def read() -> str:
            try:
                return path.read_text().strip()
            except OSError as error:
                raise InvalidArgument(f"token_file: cannot read {path}: {error.strerror}", field="token_file") from None

        return read
