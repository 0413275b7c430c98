"""The way of each call to the owner of its key: which calls are made where, on a clock and a map of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from sash_client import DeadlineExceeded, FailedPrecondition, PermissionDenied, SashClientError, Unavailable
from sash_client.calls.owners import Owners
from sash_client.calls.plans import Ask, Pause, Plan, Together, performed
from sash_client.data.bulks import Columns
from sash_client.errors import unreachable
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.placement import shard_of
from tests.support.clocks import Clock

SHARDS = 4
KEYS = [f"k{i}" for i in range(20)]


class Service:
    """Processes by address, each with its shards; notes the calls, and fails those that the test says."""

    def __init__(self, shards: Mapping[str, list[int]]) -> None:
        self.shards = dict(shards)
        self.calls: list[tuple[str, str, int | None]] = []
        self.views: dict[str, str] = {}
        self.described: list[str] = []
        """Windows that were asked for their spec."""
        self.errors: dict[str, Callable[[str], SashClientError | None]] = {}
        """By address: what is raised for a method."""

    def answer(self, ask: Ask) -> Any:
        at = ask.target or "s:1"
        if ask.method == "GetWindow":
            name = ask.request.name
            self.described.append(name)
            if error := self.errors.get(at, lambda _: None)(ask.method):
                raise error
            return pb.WindowInfo(spec=pb.WindowSpec(name=name, of=self.views.get(name)))
        self.calls.append((at, ask.method, ask.owner if ask.alone else None))
        assert ask.timeout_s is None or ask.timeout_s > 0
        if error := self.errors.get(at, lambda _: None)(ask.method):
            raise error
        if ask.method != "GetTopology":
            return at
        processes = [
            pb.Process(number=i, up=True, address=address, shards=shards)
            for i, (address, shards) in enumerate(self.shards.items())
        ]
        return pb.Topology(shards=SHARDS, processes=processes)

    def perform(self, plan: Plan[Any]) -> Any:
        return performed(plan, self.answer)


@pytest.fixture
def service() -> Service:
    return Service({"a:1": [0, 1], "b:1": [2, 3]})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def owners(clock: Clock) -> Owners:
    return Owners("s:1", 30.0, clock)


def asked(method: str, key: str | None = None, **options: Any) -> Plan[Any]:
    request = pb.InsertRequest(window="w", key=key) if method == "Insert" else pb.QueryRequest(window="w", key=key)
    return (yield Ask(method, request, **options))


def of(shard: int) -> str:
    return next(key for key in KEYS if shard_of("w", key, SHARDS) == shard)


def call(service: Service, owners: Owners, method: str, key: str | None = None, **options: Any) -> Any:
    service.calls.clear()
    return service.perform(owners.routed(asked(method, key, **options)))


def test_a_call_for_one_key_goes_to_its_owner(service: Service, owners: Owners) -> None:
    for key in KEYS:
        assert call(service, owners, "Insert", key) == ("a:1" if shard_of("w", key, SHARDS) < 2 else "b:1")
    assert call(service, owners, "Query") == "s:1"
    assert service.calls == [("s:1", "Query", None)]  # the map is known: it was asked for once


def test_a_call_that_is_for_one_shard_says_so(service: Service, owners: Owners) -> None:
    assert call(service, owners, "BulkInsert", owner=3, alone=True) == "b:1"
    assert service.calls == [("s:1", "GetTopology", None), ("b:1", "BulkInsert", 3)]


def test_the_map_is_learnt_again_after_an_error(service: Service, owners: Owners, clock: Clock) -> None:
    call(service, owners, "Insert", of(2))
    service.errors["b:1"] = lambda _: Unavailable("on its way")
    clock.now_s += 1
    with pytest.raises(Unavailable):
        call(service, owners, "BulkInsert", owner=2, alone=True)
    service.shards = {"a:1": [0, 1, 2], "b:1": [3]}
    assert call(service, owners, "BulkInsert", owner=2, alone=True) == "a:1"
    assert service.calls[0] == ("s:1", "GetTopology", None)
    # Not more often than that: the next error comes too soon.
    with pytest.raises(Unavailable):
        call(service, owners, "BulkInsert", owner=3, alone=True)
    with pytest.raises(Unavailable):
        call(service, owners, "BulkInsert", owner=3, alone=True)
    assert [method for _, method, _ in service.calls] == ["BulkInsert"]


def test_a_shard_that_nobody_has(service: Service, owners: Owners) -> None:
    service.shards = {"a:1": [0, 1]}
    assert call(service, owners, "Query", of(2)) == "s:1"
    with pytest.raises(Unavailable, match="shard 2") as raised:
        call(service, owners, "BulkInsert", owner=2, alone=True)
    assert raised.value.unreachable
    assert raised.value.retry_after_s is not None


def test_what_did_not_arrive_is_sent_elsewhere(service: Service, owners: Owners, clock: Clock) -> None:
    call(service, owners, "Insert", of(2))
    service.errors["b:1"] = lambda _: unreachable("refused")
    assert call(service, owners, "Insert", of(2)) == "s:1"
    assert [at for at, _, _ in service.calls] == ["b:1", "s:1"]
    # It is avoided for a while.
    clock.now_s += 1
    assert call(service, owners, "Insert", of(2)) == "s:1"
    assert "b:1" not in [at for at, _, _ in service.calls]
    service.errors.clear()
    clock.now_s += 60
    assert call(service, owners, "Insert", of(2)) == "b:1"


def test_a_write_that_may_have_arrived_is_not_sent_elsewhere(service: Service, owners: Owners) -> None:
    service.errors["b:1"] = lambda _: Unavailable("lost")
    with pytest.raises(Unavailable, match="lost"):
        call(service, owners, "Insert", of(2))
    assert call(service, owners, "Query", of(2)) == "s:1"
    service.errors["b:1"] = lambda _: FailedPrecondition("no")
    with pytest.raises(FailedPrecondition):
        call(service, owners, "Query", of(2))


def test_the_process_that_the_client_was_given_is_gone(service: Service, owners: Owners, clock: Clock) -> None:
    call(service, owners, "Insert", of(2))
    service.errors["s:1"] = lambda _: unreachable("refused")
    assert call(service, owners, "CreateWindow") == "a:1"
    clock.now_s += 1
    service.shards = {"a:1": [0, 1, 2, 3]}
    assert call(service, owners, "BulkInsert", owner=2, alone=True) == "a:1"  # the others say who has what
    service.errors["a:1"] = service.errors["b:1"] = lambda _: unreachable("refused")
    with pytest.raises(Unavailable):
        call(service, owners, "CreateWindow")
    # The call may have arrived there: nobody else gets it.
    service.errors = {"s:1": lambda _: Unavailable("lost")}
    with pytest.raises(Unavailable, match="lost"):
        call(service, owners, "CreateWindow")


def test_a_call_ends_by_its_deadline(service: Service, owners: Owners, clock: Clock) -> None:
    def slow(method: str) -> SashClientError:
        clock.now_s += 5
        return unreachable("it took its time")

    call(service, owners, "Insert", of(2))
    service.errors = dict.fromkeys(("s:1", "b:1"), slow)
    with pytest.raises(Unavailable, match="its time"):
        call(service, owners, "Query", of(2), timeout_s=4)
    assert [at for at, _, _ in service.calls] == ["b:1"]


@pytest.mark.parametrize("error", [PermissionDenied("no"), DeadlineExceeded("slow"), Unavailable("away")])
def test_without_a_map_calls_go_where_they_always_can(service: Service, owners: Owners, error: SashClientError) -> None:
    service.errors["s:1"] = lambda method: error if method == "GetTopology" else None
    assert call(service, owners, "Insert", of(2)) == "s:1"
    with pytest.raises(type(error)):
        service.perform(owners.learnt())
    call(service, owners, "Insert", of(2))
    refused = isinstance(error, PermissionDenied)
    assert [method for _, method, _ in service.calls] == (["Insert"] if refused else ["GetTopology", "Insert"])


def test_what_a_plan_does_besides_calls(owners: Owners) -> None:
    def plan() -> Plan[Any]:
        yield Pause(1)
        return (yield Together([]))

    routed = owners.routed(plan())
    assert next(routed) == Pause(1)
    assert isinstance(routed.send(None), Together)
    with pytest.raises(StopIteration) as end:
        routed.send(["done"])
    assert end.value.value == ["done"]


def test_the_parts_of_a_bulk(service: Service, owners: Owners) -> None:
    spec = pb.WindowSpec(name="w", keyed=True)
    rng = np.random.default_rng(1)
    codes = rng.integers(0, len(KEYS), 200).astype("<u4")
    bulk = Columns(
        np.arange(200), {"v": np.arange(200.0), "s": Coded(KEYS, codes), "b": [b"x"] * 200}, Coded(KEYS, codes)
    )
    parts = service.perform(owners.parts(spec, bulk))
    assert len(parts) == 2
    seen = []
    for shard, part in parts:
        assert part.keys is not None
        shards = {shard_of("w", key, SHARDS) for key in part.keys.decode().tolist()}
        assert shard in shards
        assert shards <= ({0, 1} if shard < 2 else {2, 3})
        assert (
            list(part.keys.decode()) == list(part.fields["s"].decode()) == [KEYS[codes[i]] for i in part.times.tolist()]
        )
        assert part.times.tolist() == sorted(part.times.tolist()) == part.fields["v"].tolist()
        assert len(part.fields["b"]) == len(part.times)
        seen += part.times.tolist()
    assert sorted(seen) == list(range(200))
    # All in one place, nothing at all, a window without keys.
    one = Columns(np.arange(2), {}, Coded([of(2), of(3)], np.array([0, 1], "<u4")))
    ((shard, same),) = service.perform(owners.parts(spec, one))
    assert (shard, same) == (2, one) or (shard, same) == (3, one)
    nothing = Columns(np.arange(0), {}, Coded([], np.array([], "<u4")))
    assert service.perform(owners.parts(spec, nothing)) == [(None, nothing)]
    plain = Columns(np.arange(2))
    assert service.perform(owners.parts(pb.WindowSpec(name="w"), plain)) == [(shard_of("w", None, SHARDS), plain)]


def question(window: str, key: str) -> Plan[Any]:
    return (yield Ask("Query", pb.QueryRequest(window=window, key=key)))


def test_a_question_to_a_view_goes_where_its_window_has_the_key(service: Service, owners: Owners) -> None:
    service.views = {"view": "w"}
    for window in ("w", "view"):
        for key in KEYS:
            found = service.perform(owners.routed(question(window, key)))
            assert found == ("a:1" if shard_of("w", key, SHARDS) in (0, 1) else "b:1"), (window, key)
    assert service.described == ["w", "view"]  # once each, of a process that has a shard
    assert {at for at, method, _ in service.calls if method == "Query"} == {"a:1", "b:1"}
    assert any(shard_of("w", key, SHARDS) // 2 != shard_of("view", key, SHARDS) // 2 for key in KEYS)


def test_writes_do_not_wait_for_a_spec(service: Service, owners: Owners) -> None:
    service.perform(owners.routed(asked("Insert", KEYS[0])))
    assert service.described == []


@pytest.mark.parametrize(
    ("error", "described"), [(PermissionDenied("no"), ["view"]), (unreachable("gone"), ["view", "view"])]
)
def test_where_nobody_tells_the_spec_a_window_is_placed_by_its_own_name(
    service: Service, owners: Owners, error: SashClientError, described: list[str]
) -> None:
    for address in ("a:1", "b:1", "s:1"):
        service.errors[address] = lambda method: error if method == "GetWindow" else None
    for _ in range(2):
        key = KEYS[3]
        found = service.perform(owners.routed(question("view", key)))
        assert found == ("a:1" if shard_of("view", key, SHARDS) in (0, 1) else "b:1")
    assert service.described == described
