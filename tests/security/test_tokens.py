"""The token file: what it may say, and what happens when it changes. Callers, quotas, headers."""

import asyncio
import errno
import logging
import os
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from sash.access.access import Access
from sash.access.caller import Caller
from sash.access.quota import Bucket
from sash.access.rights import RIGHTS, Right
from sash.access.tokens import TokenEntry, Tokens, digest_of, new_token, parse_tokens, yaml_line
from sash.context import CALL, CallContext
from sash.durability.records.commands import Command, EvictAndReset, EvictRange
from sash.plane import Plane
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, PermissionDenied, ResourceExhausted, Unauthenticated
from sash_engine.windows.questions import Question, RangeQuery
from tests.support.tokens import write_tokens

SECOND = 1_000_000_000


@pytest.fixture
def path(tmp_path):
    return write_tokens(tmp_path / "tokens.yaml", {"a": {"windows": ["x-*"]}, "b": {"role": "admin"}})


def caller(tokens, name):
    return asyncio.run(tokens.caller_of(f"{name}-token".encode()))


# -------------------------------------------------------------------- the file


def test_a_token_is_found_by_its_digest(path):
    tokens = Tokens(path, ManualClock())
    found = caller(tokens, "a")
    assert (found.name, found.role) == ("a", Right.READ)
    assert [found.sees(name) for name in ("x-1", "x-", "y-1", "X-1", "ax-1")] == [True, True, False, False, False]
    assert caller(tokens, "c") is None
    assert asyncio.run(tokens.caller_of(digest_of("a-token").encode())) is None  # the file's own text lets nobody in


def test_a_new_token_goes_into_the_file(tmp_path):
    token = new_token()
    entry = TokenEntry(name="me", sha256=digest_of(token), role="write", windows=["*", "a b"], calls_per_s=2)
    text = "tokens:\n" + yaml_line(entry) + "\n"
    assert token not in text
    assert parse_tokens(text.encode(), tmp_path) == [entry]
    assert len({new_token() for _ in range(100)}) == 100
    assert len(token) >= 48
    assert digest_of(token) == sha256(token.encode()).hexdigest()


GOOD = {"name": "a", "sha256": "0" * 64, "role": "read", "windows": ["*"]}


@pytest.mark.parametrize(
    ("text", "line", "wrong"),
    [
        ("a: b: c", 1, "is not YAML"),
        ("tokens:\n- {\x00}", 1, "is not YAML"),
        ("", 1, "must be a mapping"),
        ("- 1", 1, "must be a mapping"),
        ("token: []", 1, "is missing"),
        ("tokens: 7", 1, "tokens is wrong"),
        ("[" * 100_000, 1, "is nested too deep"),
        ("tokens: &a [*a]", 1, "is nested too deep"),
        ("tokens:\n- name: a\n  role: read\n  windows: ['*']", 2, "tokens.0 must have either sha256 or certificate"),
        (
            f"tokens:\n- {{name: a, sha256: {'a' * 64}, certificate: b, role: read, windows: [w]}}",
            2,
            "tokens.0 must have either sha256 or certificate",
        ),
        ("tokens:\n- name: a\n  name: b", 3, "'name' is there twice"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, line, wrong):
    with pytest.raises(InvalidArgument, match=rf"tokens\.yaml, line {line}: .*{wrong}"):
        parse_tokens(text.encode(), tmp_path / "tokens.yaml")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("name", "a b"),
        ("name", "a\nwho=root"),
        ("sha256", "0" * 63),
        ("sha256", "A" * 64),
        ("role", "root"),
        ("windows", []),
        ("windows", [""]),
        ("windows", "*"),
        ("calls_per_s", 0),
        ("entries_per_s", -1),
        ("entries_per_s", float("inf")),
        ("expires", "2027-01-01T00:00:00"),  # without a zone
        ("nonsense", 1),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(tmp_path, member, value):
    entries = [{**GOOD, "name": "first"}, {**GOOD, "sha256": "1" * 64, member: value}]
    text = yaml.safe_dump({"tokens": entries}, sort_keys=False)
    shown = next(i for i, line in enumerate(text.splitlines(), 1) if i > 6 and line[2:].startswith(member))
    with pytest.raises(InvalidArgument, match=rf"line (\d+): tokens\.1\.{member}") as refused:
        parse_tokens(text.encode(), tmp_path)
    found = int(refused.value.message.split("line ")[1].split(":")[0])
    # A value that is a list may begin on the line after its name; a name that is not known has no place of its own.
    assert shown <= found <= shown + 1 or member == "nonsense"


@pytest.mark.parametrize("member", ["name", "sha256", "certificate"])
def test_a_name_a_hash_or_a_certificate_is_there_once(tmp_path, member):
    entry = {**GOOD, "certificate": "b"} if member == "certificate" else GOOD
    entries = [entry, {**entry, "name": "b", "sha256": "1" * 64, member: entry[member]}]
    if member == "certificate":
        for each in entries:
            del each["sha256"]
    with pytest.raises(InvalidArgument, match=f"tokens.1.{member} .* is there twice"):
        parse_tokens(yaml.safe_dump({"tokens": entries}).encode(), tmp_path)


# -------------------------------------------------------------------- reloads


async def test_a_changed_file_counts_from_the_next_look(path):
    tokens = Tokens(path, ManualClock())
    before = {name: await tokens.caller_of(f"{name}-token".encode()) for name in "ab"}
    write_tokens(path, {"b": {"role": "read", "windows": ["z"]}, "c": {}})
    await tokens.refresh()
    assert await tokens.caller_of(b"a-token") is None
    assert not before["a"].is_current()
    assert await tokens.caller_of(b"b-token") is before["b"]
    assert before["b"].is_current()
    assert (before["b"].role, before["b"].sees("x"), before["b"].sees("z")) == (Right.READ, False, True)
    assert (await tokens.caller_of(b"c-token")).name == "c"
    # One that comes back is another one: what was open with the old one stays closed.
    write_tokens(path, {"a": {}})
    await tokens.refresh()
    assert await tokens.caller_of(b"a-token") is not before["a"]
    assert not before["a"].is_current()


@pytest.mark.parametrize("broken", ["tokens:\n- name: a", None])
async def test_a_broken_file_leaves_the_old_tokens(path, caplog, broken):
    tokens = Tokens(path, ManualClock())
    path.unlink()
    if broken is not None:
        path.write_text(broken)
    with caplog.at_level(logging.INFO, "sash"):
        await tokens.refresh()
        await tokens.refresh()
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # once for each change
    assert ("line 2" in caplog.text) if broken else ("cannot read" in caplog.text)
    assert (await tokens.caller_of(b"b-token")).is_current()
    write_tokens(path, {"c": {}})
    await tokens.refresh()
    assert await tokens.caller_of(b"b-token") is None


async def test_a_file_that_can_be_read_again_counts(tmp_path, monkeypatch, caplog):
    """It is as before, and so is its state: a service without an open file to spare would keep a token for ever."""
    path = write_tokens(tmp_path / "tokens.yaml", {"a": {}, "b": {}})
    tokens = Tokens(path, ManualClock())
    write_tokens(path, {"b": {}})
    with monkeypatch.context() as without, caplog.at_level(logging.INFO, "sash"):
        without.setattr(Path, "open", refuse_to_open)
        for _ in range(3):
            await tokens.refresh()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "Too many open files" in caplog.text
    assert await tokens.caller_of(b"a-token") is not None
    await tokens.refresh()
    assert await tokens.caller_of(b"a-token") is None
    assert await tokens.caller_of(b"b-token") is not None


def refuse_to_open(*_):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_a_file_that_is_too_long_leaves_the_old_tokens(path, caplog):
    tokens = Tokens(path, ManualClock())
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole
    await tokens.refresh()
    assert "is too long" in caplog.text
    assert (await tokens.caller_of(b"b-token")).is_current()


def test_a_missing_file_at_the_start_names_the_setting(tmp_path):
    with pytest.raises(InvalidArgument, match=r"SASH_TOKENS: cannot read .*none\.yaml: No such file"):
        Tokens(tmp_path / "none.yaml", ManualClock())


# -------------------------------------------------------------------- quotas


def test_a_bucket_gives_its_rate_and_may_owe():
    bucket = Bucket(10, 0)
    assert [bucket.take(1, 0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1, 0) == pytest.approx(0.1)
    assert bucket.take(25, 0.1) == 0  # one bulk may cost more than a second gives …
    assert bucket.take(1, 2.5) == pytest.approx(0.1)  # … and is paid for before the next one
    assert bucket.take(1, 2.6) == 0
    assert [bucket.take(1, 1000) for _ in range(11)][-1] == pytest.approx(0.1)  # idle time is not saved up


async def test_quotas_are_kept_over_reloads(path):
    clock = ManualClock()
    write_tokens(path, {"a": {"calls_per_s": 2, "entries_per_s": 100}})
    tokens = Tokens(path, clock)
    access = Access(clock, [tokens])
    for _ in range(2):
        await access.caller_of([b"Bearer a-token"])
    with pytest.raises(ResourceExhausted, match="quota of calls") as refused:
        await access.caller_of([b"Bearer a-token"])
    assert (refused.value.limit, refused.value.retry_after_s) == ("2 calls a second", pytest.approx(0.5))
    write_tokens(path, {"a": {"calls_per_s": 2, "entries_per_s": 100, "windows": ["y"]}})
    await tokens.refresh()
    with pytest.raises(ResourceExhausted):
        await access.caller_of([b"Bearer a-token"])
    clock.advance(SECOND // 2)
    CALL.set(CallContext(caller=await access.caller_of([b"bearer  a-token"])))
    access.charge(150)
    with pytest.raises(ResourceExhausted, match="quota of entries") as refused:
        access.charge(1)
    assert refused.value.retry_after_s == pytest.approx(0.51)


# -------------------------------------------------------------------- callers


@pytest.mark.parametrize(
    "credentials",
    [
        [],
        [b"Bearer a-token", b"Bearer a-token"],
        [b""],
        [b"a-token"],
        [b"Bearer"],
        [b"Bearer "],
        [b"Basic a-token"],
        [b"Bearer a-token more"],
        [b"Bearer A-token"],
        [b"Bearer a-toke"],
        [b"Bearer " + b"a" * 9000],
        [b"Bearer \xff\xfe"],
    ],
)
async def test_credentials_that_are_none(path, credentials):
    access = Access(ManualClock(), [Tokens(path, ManualClock())])
    with pytest.raises(Unauthenticated) as refused:
        await access.caller_of(credentials)
    assert refused.value.field == "authorization"
    assert "a-toke" not in refused.value.message
    assert ("too long" in refused.value.message) == (len(str(credentials)) > 8192)


async def test_a_token_expires(path):
    clock = ManualClock()
    write_tokens(path, {"a": {"expires": "1970-01-01T00:00:10Z"}})
    access = Access(clock, [Tokens(path, clock)])
    clock.advance(10 * SECOND - 1)
    CALL.set(CallContext(caller=await access.caller_of([b"Bearer a-token"])))
    access.require("query", "w")
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="has expired"):
        access.require("query", "w")
    with pytest.raises(Unauthenticated, match="has expired"):
        await access.caller_of([b"Bearer a-token"])


def test_nobody_may_do_anything_where_tokens_are_asked_for(path):
    access = Access(ManualClock(), [Tokens(path, ManualClock())])
    CALL.set(None)
    for operation in RIGHTS:
        with pytest.raises(Unauthenticated):
            access.require(operation, "w")
    assert not access.sees("w")
    CALL.set(CallContext(caller=Caller("me", Right.READ, ["w"])))
    access.require("query", "w")
    with pytest.raises(PermissionDenied, match="'me' has no right 'write' on window 'w'"):
        access.require("insert", "w")
    with pytest.raises(PermissionDenied, match="'me' has no right 'read' on window 'v'"):
        access.require("query", "v")
    CALL.set(None)


def kinds(base, name):
    """What the classes of commands, or of questions, are called."""
    found = [base]
    for cls in found:
        found.extend(cls.__subclasses__())
    return {getattr(cls, name) for cls in found if isinstance(getattr(cls, name, None), str)}


def test_every_operation_of_the_plane_has_a_right():
    public = {name for name in vars(Plane) if not name.startswith("_")}
    rightless = {"tidy", "parsed", "of", "learn", "now_ns"}
    # They require the right of the named operation, or of the command or question.
    of_another = {"spec", "look_up", "check_may", "window", "windows", "export_together", "write", "ask"}
    asked = kinds(Command, "kind") - {EvictRange.kind, EvictAndReset.kind} | kinds(Question, "name") - {RangeQuery.name}
    asked |= {"describe", "range_query", "range_groups", "series_groups"}
    assert public - rightless - of_another | asked == set(RIGHTS)
