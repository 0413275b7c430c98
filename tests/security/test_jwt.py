"""JSON Web Tokens: the valid ones, and every way that one can be wrong."""

import base64
import hashlib
import hmac
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sash.access.access import Access
from sash.access.build import access_of
from sash.access.jwt import JwtRules, Jwts
from sash.access.rights import Right
from sash.context import CALL, CallContext
from sash.settings import Settings
from sash_client import Client
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, Unauthenticated, Unavailable
from tests.security.conftest import SPEC
from tests.support.servers import running_service
from tests.support.waiting import until

NOW_S = 2_000_000_000
CLAIMS = {
    "iss": "https://id.example",
    "aud": "sash",
    "sub": "flights",
    "exp": NOW_S + 60,
    "role": "write",
    "windows": ["flights-*", "other"],
}
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())


def public(private, kid, **more):
    algorithm = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind = next((found for base, found in algorithm.items() if isinstance(private, base)), OKPAlgorithm)
    return {**kind.to_jwk(private.public_key(), as_dict=True), "kid": kid, **more}


KEYS = [
    public(RSA, "rsa"),
    public(EC, "ec", alg="ES256", use="sig"),
    public(ED, "ed"),
    public(STRANGER, "for encryption", use="enc"),
    {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"secret" * 8).decode()},
]


def rules(jwks, **more):
    return JwtRules(
        str(jwks), "https://id.example", "sash", **{"role_claim": "role", "windows_claim": "windows", **more}
    )


@pytest.fixture
def clock():
    return ManualClock(NOW_S * 10**9)


@pytest.fixture
def jwks(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return path


@pytest.fixture
def jwts(jwks, clock):
    return Jwts(rules(jwks), clock)


def token(private=EC, kid="ec", algorithm="ES256", without=(), headers=None, **claims):
    made = {name: value for name, value in {**CLAIMS, **claims}.items() if name not in without}
    return jwt.encode(made, private, algorithm, headers={"kid": kid, **(headers or {})}).encode()


async def refused(jwts, text):
    """Why a token is refused."""
    with pytest.raises(Unauthenticated) as found:
        await jwts.caller_of(text)
    assert text.decode("latin-1") not in found.value.message
    return found.value.message.removeprefix("the token is not valid: ")


# -------------------------------------------------------------------- valid tokens


@pytest.mark.parametrize(
    ("private", "kid", "algorithm"),
    [(EC, "ec", "ES256"), (RSA, "rsa", "RS256"), (RSA, "rsa", "PS512"), (ED, "ed", "EdDSA")],
)
async def test_a_valid_token_is_a_caller(jwts, private, kid, algorithm):
    found = await jwts.caller_of(token(private, kid, algorithm))
    assert (found.name, found.role) == ("flights", Right.WRITE)
    assert [found.sees(name) for name in ("flights-1", "other", "others")] == [True, True, False]
    assert await jwts.caller_of(token(private, kid, algorithm)) is not None


async def test_a_verified_token_is_remembered(jwts):
    text = token()
    assert await jwts.caller_of(text) is await jwts.caller_of(text)


@pytest.mark.parametrize(
    ("role", "found"), [("read", Right.READ), (["x", "read", "admin", 7], Right.ADMIN), ("write", Right.WRITE)]
)
async def test_roles(jwts, role, found):
    assert (await jwts.caller_of(token(role=role))).role == found


@pytest.mark.parametrize(
    ("claim", "windows", "seen"),
    [("windows", "a b-*", ["a", "b-1"]), ("windows", [], []), ("scope", "a", []), ("", "a", ["a", "b-1", "c"])],
)
async def test_windows(jwks, clock, claim, windows, seen):
    found = await Jwts(rules(jwks, windows_claim=claim), clock).caller_of(token(windows=windows))
    assert [name for name in ("a", "b-1", "c") if found.sees(name)] == seen


async def test_the_only_key_needs_no_name(tmp_path, clock):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"keys": [{name: value for name, value in KEYS[1].items() if name != "kid"}]}))
    text = jwt.encode(CLAIMS, EC, "ES256").encode()
    assert (await Jwts(rules(path), clock).caller_of(text)).name == "flights"


# -------------------------------------------------------------------- tokens that are none


def parts(header, claims, signature=b""):
    encoded = [
        base64.urlsafe_b64encode(part if isinstance(part, bytes) else json.dumps(part).encode()).rstrip(b"=")
        for part in (header, claims, signature)
    ]
    return b".".join(encoded)


def pem(private):
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def hmac_with(secret, kid):
    """A token signed with a text that everybody knows, as one that trusts the token's algorithm would check it."""
    signed, _, _ = parts({"alg": "HS256", "kid": kid}, CLAIMS).rpartition(b".")
    return signed + b"." + base64.urlsafe_b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).rstrip(b"=")


ALGORITHM, SIGNATURE, MALFORMED = "its algorithm is not that of its key", "its signature is wrong", "it is malformed"
WRONG = {
    "alg none": (parts({"alg": "none", "kid": "ec"}, CLAIMS), ALGORITHM),
    "alg None": (parts({"alg": "None", "kid": "ec"}, CLAIMS), ALGORITHM),
    "alg missing": (parts({"kid": "ec"}, CLAIMS), ALGORITHM),
    "HS256 with the public key": (hmac_with(pem(RSA), "rsa"), ALGORITHM),
    "HS256 with the key's document": (hmac_with(json.dumps(KEYS[0]).encode(), "rsa"), ALGORITHM),
    "HS256 with a shared key of the set": (hmac_with(b"secret" * 8, "shared"), "its key is unknown"),
    "another key": (token(STRANGER), SIGNATURE),
    "a key for encryption": (token(STRANGER, "for encryption"), "its key is unknown"),
    "another kind of key": (token(RSA, "ec", "RS256"), ALGORITHM),
    "no such key": (token(kid="nobody"), "its key is unknown"),
    "a key within the token": (
        token(STRANGER, "ec", headers={"jwk": public(STRANGER, "ec"), "jku": "http://127.0.0.1:1/"}),
        SIGNATURE,
    ),
    "no signature": (token().rpartition(b".")[0] + b".", SIGNATURE),
    "other claims": (
        token().split(b".")[0]
        + b"."
        + parts({}, {**CLAIMS, "role": "admin"}).split(b".")[1]
        + b"."
        + token().split(b".")[2],
        SIGNATURE,
    ),
    "expired": (token(exp=NOW_S - 31), "it has expired"),
    "not yet": (token(nbf=NOW_S + 31), "it is not valid yet"),
    "issuer": (token(iss="https://id.example.evil"), "its issuer is another one"),
    "audience": (token(aud="sashimi"), "it is for another audience"),
    "audiences": (token(aud=["a", "b"]), "it is for another audience"),
    "exp is text": (token(exp=str(NOW_S + 60)), "its claim 'exp' is no time"),
    "exp is nothing": (token(exp=float("nan")), "its claim 'exp' is no time"),
    "nbf is a list": (token(nbf=[1]), "its claim 'nbf' is no time"),
    "no role": (token(without=["role"]), "its claim 'role' has no role: read, write, admin"),
    "another role": (token(role="root"), "its claim 'role' has no role: read, write, admin"),
    "roles are a mapping": (token(role={"admin": 1}), "its claim 'role' has no role: read, write, admin"),
    "windows are a number": (token(windows=7), "its claim 'windows' is no list of patterns"),
    "windows are numbers": (token(windows=[7]), "its claim 'windows' is no list of patterns"),
    "sub is empty": (token(sub=""), "its claim 'sub' is no name"),
    "sub is long": (token(sub="x" * 201), "its claim 'sub' is no name"),
    "dots": (b"..", MALFORMED),
    "no base64": (b"!.!.!", MALFORMED),
    "no JSON": (parts(b"{", {}), MALFORMED),
    "no object": (parts([], {}), MALFORMED),
    "kid is a list": (parts({"alg": "ES256", "kid": []}, {}), MALFORMED),
    "nested": (parts(b"[" * 5000, {}), MALFORMED),
    "not UTF-8": (b"\xff.\xff.\xff", MALFORMED),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_token_is_refused(jwts, wrong):
    text, why = WRONG[wrong]
    assert await refused(jwts, text) == why


@pytest.mark.parametrize("claim", ["exp", "iss", "aud", "sub"])
async def test_a_claim_is_missing(jwts, claim):
    assert await refused(jwts, token(without=[claim])) == "it lacks a claim: exp, iss, aud or sub"


async def test_a_remembered_token_expires(jwts, clock):
    access, credentials = Access(clock, [jwts]), [b"Bearer " + token()]
    CALL.set(CallContext(caller=await access.caller_of(credentials)))
    access.require("query", "other")
    clock.advance(91 * 10**9)
    with pytest.raises(Unauthenticated, match="expired"):
        access.require("query", "other")
    with pytest.raises(Unauthenticated, match="expired"):
        await access.caller_of(credentials)


async def test_what_is_no_such_token_is_left_to_others(jwts):
    assert await jwts.caller_of(b"sash_abc") is None


# -------------------------------------------------------------------- keys that change


async def test_a_key_that_is_gone_ends_what_it_signed(jwts, jwks, caplog):
    ec_caller, rsa_caller = await jwts.caller_of(token()), await jwts.caller_of(token(RSA, "rsa", "RS256"))
    jwks.write_text(json.dumps({"keys": [KEYS[0]]}))
    await jwts.refresh()
    assert (ec_caller.is_current(), rsa_caller.is_current()) == (False, True)
    assert await refused(jwts, token()) == "its key is unknown"
    jwks.write_text(json.dumps({"keys": [public(STRANGER, "rsa")]}))  # of the same name
    await jwts.refresh()
    assert not rsa_caller.is_current()
    with caplog.at_level(logging.ERROR, "sash"):
        jwks.write_text("{}")
        await jwts.refresh()
    assert "is no JSON Web Key Set" in caplog.text
    assert (await jwts.caller_of(token(STRANGER, "rsa"))).name == "flights"


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [{"kty": "EC"}]}', b"\xff", b"[" * 100_000]
)
def test_a_file_that_is_no_key_set(tmp_path, clock, text):
    path = tmp_path / "jwks.json"
    path.write_bytes(text)
    with pytest.raises(InvalidArgument, match="SASH_JWT_JWKS"):
        Jwts(rules(path), clock)


class Provider:
    """What an address answers; counts how often it is asked."""

    def __init__(self, keys):
        self.keys, self.asked, self.fails = keys, 0, False

    def __call__(self, url):
        self.asked += 1
        if self.fails:
            raise OSError("nobody there")
        return json.dumps({"keys": self.keys}).encode()


async def test_keys_are_fetched_and_a_new_one_is_looked_for(clock):
    provider = Provider(KEYS[:1])
    jwts = Jwts(rules("https://id.example/keys"), clock, provider)
    assert (await jwts.caller_of(token(RSA, "rsa", "RS256"))).name == "flights"
    assert provider.asked == 1
    # An unknown name of a key asks again, but not for each token that somebody makes up.
    for _ in range(5):
        await refused(jwts, token())
    assert provider.asked == 1
    provider.keys = KEYS
    clock.advance(30 * 10**9)
    assert (await jwts.caller_of(token())).name == "flights"
    assert provider.asked == 2
    # Keys are fetched again after a while, whether or not somebody asks.
    await jwts.refresh()
    assert provider.asked == 2
    clock.advance(300 * 10**9)
    provider.keys = KEYS[:1]
    caller = await jwts.caller_of(token(exp=NOW_S + 9999))
    await jwts.refresh()
    await until(lambda: not caller.is_current())
    assert provider.asked == 3


async def test_a_provider_that_is_away(clock, caplog):
    provider = Provider(KEYS)
    provider.fails = True
    jwts = Jwts(rules("https://id.example/keys"), clock, provider)
    with caplog.at_level(logging.ERROR, "sash"):
        for _ in range(3):
            with pytest.raises(Unavailable) as refused:
                await jwts.caller_of(token())
    assert refused.value.retry_after_s == 1.0
    assert (provider.asked, "nobody there" in caplog.text) == (1, True)
    provider.fails = False
    clock.advance(10**9)
    assert (await jwts.caller_of(token())).name == "flights"
    provider.fails = True
    clock.advance(300 * 10**9)
    await jwts.refresh()
    await until(lambda: "stay in use" in caplog.text)
    assert (await jwts.caller_of(token(exp=NOW_S + 9999))).name == "flights"


# -------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"jwt_issuer": None}, "SASH_JWT_ISSUER is missing"),
        ({"jwt_audience": None}, "SASH_JWT_AUDIENCE is missing"),
        ({"jwt_jwks": "http://id.example/keys"}, "SASH_JWT_JWKS must be https"),
        ({"jwt_jwks": "/nowhere/keys.json"}, "SASH_JWT_JWKS: cannot read /nowhere/keys.json"),
    ],
)
def test_settings_that_do_not_do(jwks, clock, given, wrong):
    settings = {"jwt_jwks": str(jwks), "jwt_issuer": "i", "jwt_audience": "a", **given}
    with pytest.raises(InvalidArgument, match=wrong):
        access_of(Settings(**settings), clock)


def test_a_service_takes_tokens_of_an_address():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"keys": KEYS}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        settings = {
            "jwt_jwks": f"http://127.0.0.1:{provider.server_port}/",
            "jwt_issuer": CLAIMS["iss"],
            "jwt_audience": "sash",
        }
        with running_service(ManualClock(NOW_S * 10**9), **settings) as service:
            owner = token(role="admin").decode()
            made = service.http().post(
                "/v1/windows", json={"name": "flights-1", **SPEC}, headers={"authorization": f"Bearer {owner}"}
            )
            assert made.status_code == 201
            with Client(service.grpc_target, token=token().decode()) as client:
                assert [window.name for window in client.list_windows()] == ["flights-1"]
            assert service.http().get("/v1/windows", headers={"authorization": "Bearer a.b.c"}).status_code == 401
        provider.shutdown()
