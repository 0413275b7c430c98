"""ShouldRateLimit: our own client of the protobuf, a clock that stands still, and a log of what was admitted."""

import random
from collections import Counter
from contextlib import ExitStack, contextmanager

import grpc
import pytest
import yaml
from google.protobuf.duration_pb2 import Duration
from prometheus_client.parser import text_string_to_metric_families

from sash_client import Client
from sash_engine.clock import ManualClock
from sash_proto.envoy import ratelimit_pb2 as pb
from sash_proto.envoy.ratelimit_pb2_grpc import RateLimitServiceStub
from tests.support.admissions import most_in_lookback
from tests.support.rpc_errors import refuse
from tests.support.servers import running_service
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

S = 10**9
OK, OVER = pb.RateLimitResponse.OK, pb.RateLimitResponse.OVER_LIMIT
SUM = {"hits": {"function": "sum"}}
WINDOW = {"name": "requests", "time_unit": "ms", "keyed": True, "aggregates": SUM, "slide": {"max_age": "2d"}}
FILE = {
    "domain": "shop",
    "window": "requests",
    "descriptors": [
        {"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 10, "name": "users"}},
        {"key": "user", "value": "root", "rate_limit": {"unlimited": True}},
        {"key": "odd", "rate_limit": {"lookback": "1500ms", "requests_per_unit": 2}},
        {"key": "seen", "shadow_mode": True, "rate_limit": {"unit": "minute", "requests_per_unit": 1}},
        {
            "key": "batch",
            "rate_limits": [{"unit": "second", "requests_per_unit": 30}, {"unit": "hour", "requests_per_unit": 111}],
        },
        {"key": "none", "rate_limit": {"unit": "second", "requests_per_unit": 0}},
        {
            "key": "vip",
            "rate_limit": {"unit": "minute", "requests_per_unit": 100, "replaces": [{"name": "users"}]},
        },
        {
            "key": "tenant",
            "descriptors": [
                {
                    "key": "model",
                    "rate_limits": [
                        {"unit": "second", "requests_per_unit": 2},
                        {"unit": "hour", "requests_per_unit": 3, "name": "hourly"},
                    ],
                }
            ],
        },
    ],
}


class Limiter:
    """A service with limits, on a clock of its own."""

    def __init__(self, service, clock, path):
        self.service, self.clock, self.path = service, clock, path
        self.stub = RateLimitServiceStub(service.channel())
        self.before = Counter()

    @classmethod
    @contextmanager
    def running(cls, folder, document=FILE, **settings):
        path, clock = folder / "limits.yaml", ManualClock(1_700_000_000 * S)
        path.write_text(yaml.safe_dump(document))
        with running_service(clock, rate_limits=str(path), **settings) as service:
            yield cls(service, clock, path)

    def ask(self, *descriptors, hits=0, domain="shop", metadata=()):
        request = pb.RateLimitRequest(domain=domain, hits_addend=hits)
        for each in descriptors:
            if isinstance(each, pb.RateLimitDescriptor):
                request.descriptors.append(each)
            else:
                request.descriptors.append(described(each))
        return self.stub.ShouldRateLimit(request, metadata=metadata)

    def codes(self, *descriptors, **more):
        response = self.ask(*descriptors, **more)
        return response.overall_code, [status.code for status in response.statuses]

    def advance(self, seconds):
        self.clock.advance(int(seconds * S))

    def write(self, document):
        """Change the file, and have it read."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        fresh.replace(self.path)

    def counted(self):
        """What the metrics count, by descriptor and kind."""
        families = text_string_to_metric_families(self.service.http().get("/metrics").text)
        samples = next((each.samples for each in families if each.name == "sash_rate_limit_hits"), ())
        return Counter({(each.labels["descriptor"], each.labels["kind"]): int(each.value) for each in samples})

    def hits(self, descriptor):
        """What the metrics have counted of a rule in this test, by kind."""
        found = self.counted() - self.before
        return {kind: count for (of, kind), count in found.items() if of == descriptor}


def described(pairs, hits=None, **more):
    entries = [pb.RateLimitDescriptor.Entry(key=key, value=value) for key, value in pairs.items()]
    found = pb.RateLimitDescriptor(entries=entries, **more)
    if hits is not None:
        found.hits_addend.value = hits
    return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A service for all tests that neither change its file nor its settings."""
    with Limiter.running(tmp_path_factory.mktemp("limits")) as limiter:
        yield limiter


@pytest.fixture
def made(shared, tmp_path):
    """Make a limiter with a window: one of its own where it has another file or settings."""
    with ExitStack() as stack:

        def make(document=FILE, window=WINDOW, own=False, **settings):
            found = shared
            if own or document is not FILE or settings:
                found = stack.enter_context(Limiter.running(tmp_path, document, **settings))
            if "tokens" in settings:
                return found
            found.before = found.counted()
            if window is not None:
                client = stack.enter_context(Client(found.service.grpc_target))
                client.create_window(window)
                stack.callback(client.delete_window, window["name"])
            return found

        yield make


@pytest.fixture
def limiter(made):
    return made()


def test_the_limit_holds_in_every_minute_and_not_in_calendar_minutes(limiter):
    limiter.advance(55)
    assert [limiter.codes({"user": "ann"})[0] for _ in range(11)] == [OK] * 10 + [OVER]
    limiter.advance(10)  # another minute on the clock
    assert limiter.codes({"user": "ann"}) == (OVER, [OVER])
    limiter.advance(50)
    assert limiter.codes({"user": "ann"}) == (OK, [OK])
    assert limiter.codes({"user": "bob"}) == (OK, [OK])


def test_an_answer_has_the_limit_what_remains_and_when_it_is_reset(limiter):
    for left in (9, 8):
        [status] = limiter.ask({"user": "ann"}).statuses
        assert (status.code, status.limit_remaining, status.duration_until_reset) == (OK, left, Duration(seconds=60))
        limiter.advance(1)
    limiter.ask({"user": "ann"}, hits=8)
    limiter.advance(0.5)
    [status] = limiter.ask({"user": "ann"}).statuses
    assert (status.code, status.limit_remaining) == (OVER, 0)
    assert status.duration_until_reset == Duration(seconds=57, nanos=500_000_000)  # until the first one leaves
    assert status.current_limit == pb.RateLimitResponse.RateLimit(requests_per_unit=10, unit="MINUTE", name="users")
    limiter.advance(57.499)
    assert limiter.codes({"user": "ann"}) == (OVER, [OVER])
    limiter.advance(0.001)
    assert limiter.codes({"user": "ann"}) == (OK, [OK])


def test_a_lookback_need_be_no_unit(limiter):
    assert [limiter.codes({"odd": "a"})[0] for _ in range(3)] == [OK, OK, OVER]
    [status] = limiter.ask({"odd": "a"}).statuses
    assert status.current_limit == pb.RateLimitResponse.RateLimit(requests_per_unit=2)
    limiter.advance(1.499)
    assert limiter.codes({"odd": "a"})[0] == OVER
    limiter.advance(0.001)
    assert limiter.codes({"odd": "a"})[0] == OK


def test_all_limits_of_a_key_must_hold(limiter):
    asked = {"tenant": "acme", "model": "small"}
    assert [limiter.codes(asked)[0] for _ in range(3)] == [OK, OK, OVER]
    [status] = limiter.ask(asked).statuses
    assert (status.current_limit.unit, status.limit_remaining) == (pb.RateLimitResponse.RateLimit.SECOND, 0)
    limiter.advance(1)
    [status] = limiter.ask(asked).statuses
    assert (status.code, status.current_limit.name, status.limit_remaining) == (OK, "hourly", 0)
    limiter.advance(1)
    [status] = limiter.ask(asked).statuses
    assert (status.code, status.current_limit.name) == (OVER, "hourly")
    assert status.duration_until_reset == Duration(seconds=3598)


def test_what_no_rule_limits_is_ok(limiter):
    for asked in ({"user": "root"}, {"tenant": "acme"}, {"nothing": "x"}, {"user": "ann", "more": "x"}):
        response = limiter.ask(asked, hits=1000)
        assert response == pb.RateLimitResponse(
            overall_code=OK, statuses=[pb.RateLimitResponse.DescriptorStatus(code=OK)]
        )
    assert limiter.codes({"user": "ann"}, domain="elsewhere") == (OK, [OK])


def test_a_limit_of_nothing_refuses_everything_and_says_never(limiter):
    [status] = limiter.ask({"none": "x"}).statuses
    assert (status.code, status.limit_remaining, status.HasField("duration_until_reset")) == (OVER, 0, False)


def test_each_descriptor_is_decided_for_itself(limiter):
    limiter.ask({"user": "ann"}, hits=10)
    assert limiter.codes({"user": "ann"}, {"user": "bob"}, {"nothing": "x"}) == (OVER, [OVER, OK, OK])
    assert limiter.ask({"user": "bob"}).statuses[0].limit_remaining == 8
    assert limiter.codes({"user": "eve"}, {"user": "eve"})[0] == OK
    assert limiter.ask({"user": "eve"}).statuses[0].limit_remaining == 7


def test_hits_count_as_many_and_what_is_refused_counts_as_none(limiter):
    assert limiter.ask({"user": "ann"}, hits=7).statuses[0].limit_remaining == 3
    [status] = limiter.ask({"user": "ann"}, hits=4).statuses
    assert (status.code, status.limit_remaining) == (OVER, 3)
    assert limiter.codes({"user": "ann"}, hits=3)[0] == OK
    both = limiter.ask(described({"user": "bob"}, hits=2), described({"user": "eve"}), hits=5)
    assert [status.limit_remaining for status in both.statuses] == [8, 5]


def test_no_hits_ask_and_change_nothing(limiter):
    limiter.ask({"user": "ann"}, hits=4)
    for _ in range(2):
        [status] = limiter.ask(described({"user": "ann"}, hits=0)).statuses
        assert (status.code, status.limit_remaining) == (OK, 6)
    limiter.ask({"user": "ann"}, hits=6)
    [status] = limiter.ask(described({"user": "ann"}, hits=0)).statuses
    assert (status.code, status.limit_remaining, status.duration_until_reset.seconds) == (OK, 0, 60)
    assert limiter.service.on_loop(lambda: limiter.service.plane.window("requests")).entries == 2
    limiter.advance(60)
    assert limiter.ask(described({"user": "ann"}, hits=0)).statuses[0].limit_remaining == 10


def test_shadow_mode_refuses_nothing_and_counts_what_it_would(limiter):
    assert [limiter.codes({"seen": "a"}) for _ in range(3)] == [(OK, [OK])] * 3
    assert limiter.ask({"seen": "a"}).statuses[0].limit_remaining == 0
    assert limiter.hits("seen") == {
        "total": 4,
        "within_limit": 1,
        "near_limit": 1,
        "over_limit": 3,
        "shadow_mode": 3,
    }


def test_a_limit_replaces_another_one_of_the_same_request(limiter):
    limiter.ask({"user": "ann"}, hits=10)
    assert limiter.codes({"user": "ann"}, {"vip": "gold"}) == (OK, [OK, OK])
    assert limiter.codes({"user": "ann"}) == (OVER, [OVER])


def test_a_descriptor_may_bring_its_limit(limiter):
    override = pb.RateLimitDescriptor.RateLimitOverride(requests_per_unit=2, unit="HOUR")
    own = described({"user": "root"}, limit=override)
    assert [limiter.codes(own)[0] for _ in range(3)] == [OK, OK, OVER]
    [status] = limiter.ask(own).statuses
    assert status.current_limit == pb.RateLimitResponse.RateLimit(requests_per_unit=2, unit="HOUR")
    override.unit_multiplier.value = 24
    [status] = limiter.ask(described({"user": "root"}, limit=override)).statuses
    assert (status.code, status.current_limit.unit_multiplier.value) == (OVER, 24)
    assert status.duration_until_reset == Duration(seconds=86400)
    assert limiter.codes(own, domain="elsewhere") == (OK, [OK])
    assert limiter.hits("(override)")["total"] == 5


def test_metrics_count_hits_by_rule(limiter):
    limiter.ask({"user": "ann"}, hits=7)
    assert limiter.hits("user") == {"total": 7, "within_limit": 7}
    limiter.ask({"user": "ann"}, hits=2)  # one of them is beyond eight
    assert limiter.hits("user") == {"total": 9, "within_limit": 9, "near_limit": 1}
    limiter.ask({"user": "ann"})
    limiter.ask({"user": "ann"}, hits=5)
    assert limiter.hits("user") == {"total": 15, "within_limit": 10, "near_limit": 2, "over_limit": 5}
    limiter.ask({"user": "root"})
    assert limiter.hits("user_root") == {}
    for _ in range(5):  # the last ones are near the limit of an hour, while that of a second has less left
        limiter.ask({"batch": "a"}, hits=20)
        limiter.advance(1)
    assert limiter.hits("batch") == {"total": 100, "within_limit": 100, "near_limit": 12}


def test_headers_are_for_the_limit_that_matters(made):
    limiter = made({**FILE, "response_headers": True})

    def headers(*asked, **more):
        return {each.key: each.value for each in limiter.ask(*asked, **more).response_headers_to_add}

    assert headers({"user": "ann"}, {"odd": "a"}) == {
        "X-RateLimit-Limit": "2",
        "X-RateLimit-Remaining": "1",
        "X-RateLimit-Reset": "2",
    }
    limiter.ask({"user": "ann"}, hits=9)
    limiter.advance(0.25)
    assert headers({"user": "ann"}, {"odd": "a"}) == {
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "60",
    }
    limiter.ask({"seen": "a"})
    assert headers({"user": "root"}, {"seen": "a"}) == {}  # a shadow is over, and nobody is told
    assert headers({"none": "x"}) == {"X-RateLimit-Limit": "0", "X-RateLimit-Remaining": "0"}


PARTED = {**WINDOW, "keys": ["who", "model"]}
OF_PARTS = {
    "domain": "llm",
    "window": "requests",
    "parts": {"who": "user"},
    "descriptors": [
        {"key": "user", "rate_limit": {"unit": "hour", "requests_per_unit": 5}},
        {
            "key": "user",
            "value": "x",
            "descriptors": [{"key": "model", "rate_limit": {"unit": "hour", "requests_per_unit": 3}}],
        },
        {"key": "path", "rate_limit": {"unit": "hour", "requests_per_unit": 3}},
        {
            "key": "model",
            "descriptors": [{"key": "model", "rate_limit": {"unit": "hour", "requests_per_unit": 3}}],
        },
    ],
}


def test_entries_are_parts_of_keys_and_the_window_answers_by_them(made):
    limiter = made(OF_PARTS, PARTED)
    assert limiter.codes({"user": "x", "model": "m|1"}, {"user": "y"}, domain="llm") == (OK, [OK, OK])
    with Client(limiter.service.grpc_target) as client:
        window = client.window("requests")
        assert set(window.keys()) == {r"x|m\|1", "y|"}
        [answer] = window.query(by="who", where={"who": "x"})
        assert answer.aggregates["hits"] == 1


def test_keys_of_a_window_without_parts_cannot_be_made_to_meet(made):
    limiter = made(own=True)
    limiter.write({**FILE, "descriptors": [*FILE["descriptors"], {"key": "user|ann"}]})
    limiter.ask({"user": "a|b"})
    limiter.ask({"user": r"a\|b"})
    limiter.ask({"tenant": "a", "model": "b"})
    with Client(limiter.service.grpc_target) as client:
        assert set(client.window("requests").keys()) == {
            r"shop|user|a\|b",
            r"shop|user|a\\\|b",
            "shop|tenant|a|model|b",
        }


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "domain"),
        ({"domain": "shop"}, "descriptors"),
        ({"domain": "shop", "descriptors": [described({"user": "a"})] * 33}, "descriptors"),
        ({"domain": "shop", "descriptors": [described({"user": "a"}), described({})]}, "descriptors.1.entries"),
        ({"domain": "shop", "descriptors": [described({"user": ""})]}, "descriptors.0.entries.0.value"),
        ({"domain": "shop", "descriptors": [described({"": "a"})]}, "descriptors.0.entries.0.key"),
        ({"domain": "shop", "descriptors": [described({"user": "a"})], "hits_addend": 10**9 + 1}, "hits_addend"),
        ({"domain": "shop", "descriptors": [described({"user": "a"}, hits=2**64 - 1)]}, "hits_addend"),
        (
            {"domain": "shop", "descriptors": [described({"user": "a"}, is_negative_hits=True)]},
            "descriptors.0.is_negative_hits",
        ),
        (
            {"domain": "shop", "descriptors": [described({"a": "b"}, limit={"requests_per_unit": 1})]},
            "descriptors.0.limit.unit",
        ),
    ],
)
def test_a_wrong_request_is_refused_and_changes_nothing(limiter, asked, field):
    refuse(limiter.stub.ShouldRateLimit, pb.RateLimitRequest(**asked), "INVALID_ARGUMENT", field)
    assert limiter.service.on_loop(lambda: limiter.service.plane.window("requests")).entries == 0


@pytest.mark.parametrize(
    ("window", "wrong"),
    [
        ({"keyed": False}, "is not keyed"),
        ({"time_unit": "none", "slide": {}}, "has logical time"),
        ({"fields": {"a": "float64", "b": "int64"}, "aggregates": {"n": {"function": "count"}}}, "has not one field"),
        ({"fields": {"a": "string"}, "aggregates": {"n": {"function": "count"}}}, "has not one field of numbers"),
        ({"aggregates": {"n": {"function": "count"}}}, "has no aggregate sum"),
        ({"slide": {"max_age": "30s"}}, "is longer than window 'requests' keeps entries"),
        ({"slide": {"max_count": 2}}, "lets entries leave before they are too old"),
        ({"slide": {"max_gap": "1s"}}, "lets entries leave before they are too old"),
        ({"slide": {"when": "total.hits > 3.0"}}, "lets entries leave before they are too old"),
        ({"slide": {"adaptive": {}}}, "lets entries leave before they are too old"),
        ({"idle_expiry": "59s"}, "forgets keys that are idle for 59s"),
        ({"keys": ["tenant"]}, "entry 'user' is no part of a key of window 'requests'"),
    ],
)
def test_a_window_that_is_not_one_for_limits_says_why(made, window, wrong):
    limiter = made(window={**WINDOW, **window})
    with pytest.raises(grpc.RpcError) as caught:
        limiter.ask({"user": "ann"})
    assert wrong in caught.value.details()
    assert caught.value.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


def test_keys_that_are_forgotten_behind_the_lookback_are_no_harm(made):
    assert made(window={**WINDOW, "idle_expiry": "60s"}).codes({"user": "ann"}) == (OK, [OK])


def test_a_window_that_is_made_again_is_asked_as_it_is(limiter):
    limiter.ask({"user": "ann"})
    with Client(limiter.service.grpc_target) as client:
        client.delete_window("requests")
        client.create_window({**WINDOW, "time_unit": "us", "aggregates": {"of": {"function": "sum"}}})
        assert limiter.ask({"user": "ann"}).statuses[0].limit_remaining == 9
        assert client.window("requests").query(key="shop|user|ann")[0].end == limiter.clock.now_ns() // 1000


def test_an_entry_that_is_there_twice_is_no_part_of_a_key(made):
    limiter = made(OF_PARTS, PARTED)
    twice = pb.RateLimitDescriptor(entries=[{"key": "model", "value": "a"}, {"key": "model", "value": "b"}])
    with pytest.raises(grpc.RpcError, match="entry 'model' is there twice"):
        limiter.ask(twice, domain="llm")


def test_an_error_of_one_descriptor_is_that_of_the_request(limiter):
    request = pb.RateLimitRequest(
        domain="shop", descriptors=[described({"user": "a" * 2000}), described({"user": "b"})]
    )
    refuse(limiter.stub.ShouldRateLimit, request, "INVALID_ARGUMENT", "key")


def test_a_clock_that_is_behind_the_window_decides_nothing(made):
    limiter = made(window={**WINDOW, "slide": {"max_age": "2m"}})
    limiter.ask({"user": "ann"})
    with Client(limiter.service.grpc_target) as client:
        later = limiter.clock.now_ns() // 10**6 + 3_600_000
        client.window("requests").insert(later, 1.0, key="shop|user|ann")
    with pytest.raises(grpc.RpcError, match="the clock of the service is behind window 'requests'") as caught:
        limiter.ask({"user": "ann"})
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_window_that_is_not_there_is_named(made):
    limiter = made(window=None)
    with pytest.raises(grpc.RpcError) as caught:
        limiter.ask({"user": "ann"})
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'requests'" in caught.value.details()
    assert limiter.codes({"nothing": "x"}) == (OK, [OK])


def test_integers_count_too(made):
    limiter = made(window={**WINDOW, "fields": {"hits": "int64"}})
    assert limiter.ask({"user": "ann"}, hits=4).statuses[0].limit_remaining == 6


def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(made, caplog):
    limiter = made(own=True)
    changed = {**FILE, "descriptors": [{"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 2}}]}
    limiter.ask({"user": "ann"})
    limiter.write(changed)
    wait_until(lambda: limiter.ask(described({"user": "ann"}, hits=0)).statuses[0].limit_remaining == 1)
    assert limiter.codes({"user": "ann"})[0] == OK
    assert limiter.codes({"user": "ann"})[0] == OVER
    limiter.write("domain: shop\nwindow: [1]")
    wait_until(lambda: "the rate limits of before stay in use" in caplog.text)
    assert "limits.yaml, line 2: window must be text" in caplog.text
    assert limiter.codes({"user": "ann"})[0] == OVER


def test_a_limit_that_is_lowered_below_what_is_there_refuses(made):
    limiter = made(own=True)
    limiter.ask({"user": "ann"}, hits=5)
    limiter.write({**FILE, "descriptors": [{"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 2}}]})
    asked = described({"user": "ann"}, hits=0)
    wait_until(lambda: limiter.ask(asked).statuses[0].current_limit.requests_per_unit == 2)
    for each in (asked, {"user": "ann"}):
        [status] = limiter.ask(each).statuses
        assert (status.code, status.limit_remaining) == (OVER, 0)


def test_a_service_without_a_file_has_no_such_method():
    with running_service() as running, pytest.raises(grpc.RpcError) as caught:
        RateLimitServiceStub(running.channel()).ShouldRateLimit(pb.RateLimitRequest(domain="a"))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_envoy_needs_the_right_to_write(made, tmp_path):
    tokens = write_tokens(
        tmp_path / "tokens.yaml",
        {"envoy": {"role": "write", "windows": ["requests"]}, "eve": {"role": "read"}, "root": {"role": "admin"}},
    )
    limiter = made(tokens=str(tokens))
    with Client(limiter.service.grpc_target, token="root-token") as client:
        client.create_window(WINDOW)

    def code_of(name):
        metadata = () if name is None else (("authorization", f"Bearer {name}-token"),)
        try:
            return limiter.ask({"user": "ann"}, metadata=metadata).overall_code
        except grpc.RpcError as error:
            return error.code()

    assert code_of(None) is grpc.StatusCode.UNAUTHENTICATED
    assert code_of("eve") is grpc.StatusCode.PERMISSION_DENIED
    assert code_of("envoy") == OK


@pytest.mark.parametrize("stored", [False, True])
def test_no_lookback_of_the_log_has_more_than_the_limit(made, tmp_path, stored):
    """Whatever is asked and when: exact against the log, and nothing that fits is refused."""
    limiter = made(**({"data": str(tmp_path / "data")} if stored else {}))
    draw = random.Random(7)
    logs = {"ann": [], "bob": []}
    calls = 60 if stored else 600
    for _ in range(calls):
        user, hits = draw.choice(["ann", "bob"]), draw.choice([1, 1, 1, 2, 5, 11])
        now = limiter.clock.now_ns()
        [status] = limiter.ask({"user": user}, hits=hits).statuses
        there = sum(each for at, each in logs[user] if at > now - 60 * S)
        assert (status.code == OK) == (there + hits <= 10)
        if status.code == OK:
            logs[user].append((now, hits))
        elif status.HasField("duration_until_reset"):
            freed = now + status.duration_until_reset.ToNanoseconds()
            for at, fits in ((freed, True), (freed - 10**6, False)):
                assert (sum(each for t, each in logs[user] if t > at - 60 * S) + hits <= 10) is fits
        else:
            assert hits > 10
        limiter.advance(draw.choice([0, 0.001, 0.5, 3, 20, 59.999]))
    for log in logs.values():
        assert len(log) > calls // 20
        assert 5 <= most_in_lookback(log, 60 * S) <= 10


def test_many_callers_at_once_pass_no_limit(made):
    limiter = made(
        {**FILE, "descriptors": [{"key": "user", "rate_limit": {"lookback": "1h", "requests_per_unit": 25}}]}
    )
    asked = pb.RateLimitRequest(domain="shop", descriptors=[described({"user": "ann"})])
    calls = [limiter.stub.ShouldRateLimit.future(asked) for _ in range(100)]
    codes = [call.result().overall_code for call in calls]
    assert (codes.count(OK), codes.count(OVER)) == (25, 75)
