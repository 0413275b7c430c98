"""JSON Web Tokens of an identity provider, checked with its public keys.

    token ──▶ kid ──▶ key of the set ──▶ signature, issuer, audience, times ──▶ role and windows, from claims
                       ▲
    JWKS: a file that is read again when it changes, or a URL that is fetched again every five minutes, and at once
    (but not more often than every 30 seconds) for a key that is not known yet

Only public-key signatures count. A symmetric key, or the algorithm `none`, would let whoever knows the public keys make
tokens. The algorithm is the key's, not the one that the token names.

Source: RFC 7517, 7519 and 8725; PyJWT checks signatures.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt

from sash.access.caller import Caller
from sash.access.deadline import Deadline
from sash.access.files import FromFiles, read_file
from sash.access.rights import Right
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, Unauthenticated, Unavailable

_LEEWAY_S = 30
"""Clocks of two machines differ by so much."""
_FETCH_EVERY_S = 300.0
_FETCH_AGAIN_S = 30.0
_FETCH_WAIT_S = 5.0
_JWKS_BYTES_MAX = 1 << 20
_KNOWN_MAX = 10_000
_NAME_MAX = 200
_ALGORITHMS: Mapping[str, Sequence[str]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}

_log = logging.getLogger("sash")


@dataclass(frozen=True, slots=True)
class JwtRules:
    """What a token must say.

    Args:
        jwks: a file, or an https address.
        issuer, audience: the claims `iss` and `aud`.
        role_claim: the claim with the role: a text, or a list of texts whose highest role counts.
        windows_claim: the claim with patterns of windows: a list, or a text with spaces between. "": every window.
    """

    jwks: str
    issuer: str
    audience: str
    role_claim: str
    windows_claim: str


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key, and the algorithms that it is used with."""

    document: Mapping[str, Any]
    key: Any
    algorithms: Sequence[str]


class Jwts:
    """Callers by JSON Web Tokens.

    Args:
        rules: what a token must say.
        clock: tells wall time, and limits how often keys are fetched.
        fetch: gets the text at an address; runs in a thread.

    Raises:
        InvalidArgument: the file cannot be read, or is no set of keys.
    """

    def __init__(self, rules: JwtRules, clock: Clock, fetch: Callable[[str], bytes] | None = None) -> None:
        self._rules = rules
        self._clock = clock
        self._fetch = fetch or _fetched
        self._keys: dict[str | None, _Key] = {}
        self._known: dict[bytes, Caller] = {}
        self._fetched_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._file: FromFiles[list[_Key]] | None = None
        if not rules.jwks.startswith(("https://", "http://")):
            path = Path(rules.jwks)
            self._file = FromFiles(
                "keys of SASH_JWT_JWKS", [path], lambda: _keys_of(read_file(path, "jwt_jwks"), str(path)), self._use
            )

    async def refresh(self) -> None:
        """Read the file again if it has changed, or begin to fetch the keys again if it is time to."""
        if self._file is not None:
            await self._file.refresh()
        elif self._is_due(_FETCH_EVERY_S):
            self._begin_fetch()

    async def caller_of(self, token: bytes) -> Caller | None:
        """Who this token is of; None if it is not a JSON Web Token.

        Raises:
            Unauthenticated: it is not valid.
            Unavailable: there are no keys yet.
        """
        if token.count(b".") != 2:
            return None
        digest = sha256(token).digest()
        caller = self._known.get(digest)
        if caller is not None and caller.is_current():
            return caller
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except (jwt.InvalidTokenError, RecursionError):  # a header may be nested as deep as it is long
            raise _invalid("it is malformed") from None
        caller = self._caller(token, await self._key(kid), kid)
        if len(self._known) >= _KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[digest] = caller
        return caller

    # ---------------------------------------------------------------- keys

    async def _key(self, kid: str | None) -> _Key:
        if self._file is None and kid not in self._keys:
            again_s = _FETCH_AGAIN_S if self._keys else 1.0
            if self._is_due(again_s):
                self._begin_fetch()
            if self._fetching is not None:
                await asyncio.wait([self._fetching], timeout=2 * _FETCH_WAIT_S)
            if not self._keys:
                raise Unavailable("the keys that tokens are checked with cannot be fetched", retry_after_s=1.0)
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if kid not in self._keys:
            raise _invalid("its key is unknown")
        return self._keys[kid]

    def _is_due(self, every_s: float) -> bool:
        return self._fetched_s is None or self._clock.monotonic_s() - self._fetched_s >= every_s

    def _begin_fetch(self) -> None:
        if self._fetching is None or self._fetching.done():
            self._fetched_s = self._clock.monotonic_s()
            self._fetching = asyncio.create_task(self._fetch_keys())

    async def _fetch_keys(self) -> None:
        url = self._rules.jwks
        try:
            self._use(_keys_of(await asyncio.to_thread(self._fetch, url), url))
        except (InvalidArgument, OSError, ValueError) as error:
            kept = "; the keys of before stay in use" if self._keys else ""
            _log.error("cannot fetch the keys of SASH_JWT_JWKS from %s: %s%s", url, error, kept)

    def _use(self, keys: list[_Key]) -> None:
        # A key that is as before stays the same object: what is open with it goes on.
        before = self._keys
        self._keys = {}
        for key in keys:
            kid = key.document.get("kid")
            old = before.get(kid)
            self._keys[kid] = old if old is not None and old.document == key.document else key

    # ---------------------------------------------------------------- tokens

    def _caller(self, token: bytes, key: _Key, kid: str | None) -> Caller:
        rules = self._rules
        # Times are checked below, on the service's clock.
        options: Any = {
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
            "require": ["exp", "iss", "aud", "sub"],
        }
        try:
            claims = jwt.decode(
                token, key.key, list(key.algorithms), options, audience=rules.audience, issuer=rules.issuer
            )
        except jwt.InvalidTokenError as error:
            raise _invalid(_REASONS.get(type(error), "it is malformed")) from None
        expires_s, not_before_s = _number(claims, "exp"), _number(claims, "nbf", 0.0)
        now_s = self._clock.now_ns() / 1e9
        if now_s >= expires_s + _LEEWAY_S:
            raise _invalid("it has expired")
        if now_s < not_before_s - _LEEWAY_S:
            raise _invalid("it is not valid yet")
        name = claims["sub"]
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX:
            raise _invalid("its claim 'sub' is no name")
        return Caller(
            name,
            _role(claims.get(rules.role_claim), rules.role_claim),
            _windows(claims, rules.windows_claim),
            expires_s=expires_s + _LEEWAY_S,
            is_current=lambda: any(each is key for each in self._keys.values()),
        )


_REASONS: Mapping[type[Exception], str] = {
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.InvalidAlgorithmError: "its algorithm is not that of its key",
    jwt.InvalidIssuerError: "its issuer is another one",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.MissingRequiredClaimError: "it lacks a claim: exp, iss, aud or sub",
}


def _invalid(why: str) -> Unauthenticated:
    return Unauthenticated(f"the token is not valid: {why}", field="authorization")


def _number(claims: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        raise _invalid(f"its claim {name!r} is no time")
    return float(value)


def _role(value: Any, claim: str) -> Right:
    known = {str(right): right for right in Right}
    given = value if isinstance(value, list) else [value]
    roles = [known[each] for each in given if isinstance(each, str) and each in known]
    if not roles:
        raise _invalid(f"its claim {claim!r} has no role: {', '.join(known)}")
    return max(roles)


def _windows(claims: Mapping[str, Any], claim: str) -> Sequence[str]:
    if not claim:
        return ["*"]
    value = claims.get(claim, [])
    patterns = value.split() if isinstance(value, str) else value
    if not isinstance(patterns, list) or not all(isinstance(each, str) and len(each) <= _NAME_MAX for each in patterns):
        raise _invalid(f"its claim {claim!r} is no list of patterns")
    return patterns


def _keys_of(text: bytes, where: str) -> list[_Key]:
    """Read a JSON Web Key Set; keys of other kinds, or for other uses, are left out."""
    try:
        document = json.loads(text)
        given = document["keys"]
        found = [_Key(each, jwt.PyJWK(each).key, _algorithms(each)) for each in given if _signs(each)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as error:
        raise InvalidArgument(f"SASH_JWT_JWKS: {where} is no JSON Web Key Set: {error}", field="jwt_jwks") from None
    if not found:
        raise InvalidArgument(f"SASH_JWT_JWKS: {where} has no public key for signatures", field="jwt_jwks")
    return found


def _signs(key: Mapping[str, Any]) -> bool:
    return key.get("kty") in _ALGORITHMS and key.get("use", "sig") == "sig" and bool(_algorithms(key))


def _algorithms(key: Mapping[str, Any]) -> Sequence[str]:
    known = _ALGORITHMS[key["kty"]]
    return known if "alg" not in key else [each for each in known if each == key["alg"]]


def _fetched(url: str) -> bytes:
    with Deadline(_FETCH_WAIT_S) as deadline:
        text = deadline.fetched(url, _JWKS_BYTES_MAX + 1)
    if len(text) > _JWKS_BYTES_MAX:
        raise ValueError(f"it has more than {_JWKS_BYTES_MAX} bytes")
    return text
