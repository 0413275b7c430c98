"""Tokens in a YAML file that an operator writes, by their SHA-256.

    tokens:
      - name: flights-producer
        sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        role: write                  # read, write or admin
        windows: ["flights-*"]
        calls_per_s: 200             # optional, as are those below
        entries_per_s: 1000000
        expires: 2027-01-01T00:00:00Z
      - name: airports               # a client that has a certificate, and sends no token
        certificate: airports.example.com
        role: read
        windows: ["airports"]

The file has no token, so reading it does not let anybody in. A token has 256 random bits, so a plain SHA-256 is enough:
nobody can try them out, and no salt or slow hash is needed.

A token is found in a table, by its digest. How long that takes says at most how much of a *digest* agrees with a known
one. Nobody can choose a token by its digest, so that helps nobody.

A certificate is found by a name that it has: the common name of its subject, or an alternative name. TLS has checked
that an authority of `SASH_TLS_CLIENT_CA` signed it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sash.access.caller import Caller
from sash.access.documents import documents_of
from sash.access.files import FromFiles, read_file
from sash.access.quota import Bucket
from sash.access.rights import Right
from sash_engine.clock import Clock

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TokenEntry(BaseModel):
    """One token of the file, or the name in a certificate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    certificate: str | None = Field(None, min_length=1, max_length=255)
    role: Literal["read", "write", "admin"]
    windows: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=1000)
    calls_per_s: Rate | None = None
    entries_per_s: Rate | None = None
    expires: AwareDatetime | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: list[TokenEntry]


class Tokens:
    """The tokens of a file, as callers.

    Args:
        path: the file.
        clock: measures quotas.

    Raises:
        InvalidArgument: the file cannot be read, or is wrong; names the line.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._callers: dict[bytes | str, Caller] = {}
        """By the digest of a token, or the name in a certificate."""
        self.certificates = False
        """Whether certificates have rights."""
        self._file = FromFiles("tokens", [path], lambda: parse_tokens(read_file(path, "tokens"), path), self._use)

    async def refresh(self) -> None:
        """Read the file again if it has changed."""
        await self._file.refresh()

    async def caller_of(self, token: bytes) -> Caller | None:
        """The caller that has this token, if there is one."""
        return self._callers.get(sha256(token).digest())

    def certified(self, names: Sequence[str]) -> Caller | None:
        """The caller whose certificate has these names: the first one that has an entry counts."""
        return next((self._callers[name] for name in names if name in self._callers), None)

    def _use(self, entries: Sequence[TokenEntry]) -> None:
        # A token that was there keeps its caller: what is used of a quota stays known, and its streams go on.
        before = self._callers
        self._callers = {}
        for entry in entries:
            key = entry.certificate or bytes.fromhex(entry.sha256 or "")
            self._callers[key] = self._allowed(before.get(key), entry, key)
        self.certificates = any(entry.certificate for entry in entries)

    def _allowed(self, caller: Caller | None, entry: TokenEntry, key: bytes | str) -> Caller:
        role = Right[entry.role.upper()]
        expires_s = inf if entry.expires is None else entry.expires.timestamp()
        if caller is None:
            caller = Caller(entry.name, role, entry.windows)
            made = caller
            caller.is_current = lambda: self._callers.get(key) is made
        caller.allow(entry.name, role, entry.windows, expires_s)
        caller.calls = self._bucket(caller.calls, entry.calls_per_s)
        caller.entries = self._bucket(caller.entries, entry.entries_per_s)
        return caller

    def _bucket(self, old: Bucket | None, rate: float | None) -> Bucket | None:
        if rate is None or (old is not None and old.rate == rate):
            return None if rate is None else old
        return Bucket(rate, self._clock.monotonic_s())


def digest_of(token: str) -> str:
    """The SHA-256 of a token as the file has it."""
    return sha256(token.encode()).hexdigest()


def new_token() -> str:
    """A new token of 256 random bits. Its prefix lets scanners for secrets find it."""
    return f"sash_{secrets.token_urlsafe(32)}"


def yaml_line(entry: TokenEntry) -> str:
    """An entry as a line of the file's list."""
    text = yaml.safe_dump(
        [entry.model_dump(exclude_none=True)], default_flow_style=None, sort_keys=False, width=10_000
    ).strip()
    return "  " + text.replace("\n", "\n  ")


def parse_tokens(text: bytes, path: Path) -> list[TokenEntry]:
    """Read the file's text.

    Raises:
        InvalidArgument: names the file, the line, and what is wrong.
    """
    [document] = documents_of(text, path, "tokens", _File)
    entries = document.value.tokens
    for i, entry in enumerate(entries):
        if (entry.sha256 is None) == (entry.certificate is None):
            raise document.wrong(("tokens", i), f"tokens.{i} must have either sha256 or certificate")
    for member in ("name", "sha256", "certificate"):
        seen = set[str]()
        for i, entry in enumerate(entries):
            value = getattr(entry, member)
            if value is not None and value in seen:
                wrong = f"tokens.{i}.{member} {value[:64]!r} is there twice"
                raise document.wrong(("tokens", i, member), wrong)
            seen.add(value)
    return entries
