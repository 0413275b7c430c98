"""What is counted of a read, and what is known to be a body."""

import pytest

from sash.rest.ahead import PART_BYTES, Ahead

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
MANY = GET * 200
assert len(MANY) > PART_BYTES


def post(length, body=b"", name=b"Content-Length"):
    return b"POST / HTTP/1.1\r\nhost: localhost\r\n%s: %d\r\n\r\n%s" % (name, length, body)


def test_many_requests_are_many():
    assert Ahead().has_many(MANY, True)
    assert Ahead().has_many(MANY, False)


@pytest.mark.parametrize("line", [b"GET / HTTP/2.0", b"GET / RTSP/1.0", b"GET /"])
def test_requests_are_known_by_the_ends_of_their_heads(line):
    assert Ahead().has_many((line + b"\r\nhost: localhost\r\n\r\n") * 200, True)


def test_few_requests_are_not():
    assert not Ahead().has_many(GET * 64 + b" " * PART_BYTES, True)
    assert Ahead().has_many(GET * 65 + b" " * PART_BYTES, True)


def test_a_short_read_is_received_as_it_is():
    assert not Ahead().has_many(MANY[:PART_BYTES], True)


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length"])
@pytest.mark.parametrize("first", [0, 100, len(MANY)])
def test_a_body_of_known_length_is_not_looked_through(name, first):
    ahead = Ahead()
    head = post(3 * len(MANY), MANY[:first], name)
    assert not ahead.has_many(head, True)
    ahead.expect(head)
    assert not ahead.has_many(MANY, False)
    assert not ahead.has_many(MANY, False)
    rest = MANY[first:]
    assert not ahead.has_many(rest, False)
    assert ahead.has_many(MANY, False)


def test_what_follows_a_body_is_looked_through():
    for known in (0, 5, len(MANY) - 1):
        assert Ahead().has_many(post(known, MANY), True)
    assert not Ahead().has_many(post(len(MANY), MANY), True)
    ahead = Ahead()
    ahead.expect(post(10, b""))
    assert ahead.has_many(MANY, False)


def test_a_length_that_is_not_of_the_first_head_says_nothing():
    for odd in (
        b"POST / HTTP/1.1\r\nx: content-length: 99999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nx: a\r\n content-length: 99999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nx-content-length: 99999999\r\n\r\n",
        GET + post(99_999_999),
    ):
        assert Ahead().has_many(odd + MANY, True), odd


def test_a_request_begins_anew():
    ahead = Ahead()
    ahead.expect(post(10**9))
    assert ahead.has_many(MANY, True)
