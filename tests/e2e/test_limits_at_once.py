"""Many callers at once over gRPC, Connect and REST against the same limits: none is passed, and nothing is lost."""

import random
import threading

import pytest

from sash_client import ALL_KEYS, Client, Limit
from tests.support.profile import THOROUGH
from tests.support.servers import running_service

TENANTS, USERS, CALLERS, CALLS = ("a", "b"), ("x", "y", "z"), 64 if THOROUGH else 32, 8
PER_USER, PER_TENANT, SPAN = 12, 50, 1000
SPEC = {
    "name": "w",
    "keys": ["tenant", "user"],
    "time_unit": "none",
    "fields": {"cost": "int64"},
    "aggregates": {"n": {"function": "count"}, "cost": {"function": "sum"}},
    "slide": {"max_age": 100_000},
}
LIMITS = [Limit("n", SPAN, PER_USER), Limit("cost", SPAN, PER_TENANT, by=["tenant"])]


def over_client(target):
    client = Client(target)

    def admit(key, time, cost, **numbers):
        return client.window("w").admit(time, fields={"cost": cost}, key=key, limits=LIMITS, **numbers).admitted[0]

    return admit, client.close


def over_rest(service):
    http = service.http()
    limits = [
        {"aggregate": each.aggregate, "lookback": each.lookback, "op": "<=", "value": each.value}
        | ({} if each.by is None else {"by": each.by})
        for each in LIMITS
    ]

    def admit(key, time, cost, **numbers):
        body = {"time": time, "key": key, "fields": {"cost": cost}, "limits": limits} | numbers
        return http.post("/v1/windows/w/admit", json=body).raise_for_status().json()["admitted"][0]

    return admit, http.close


def attack(service, rollups):
    """Every caller's calls: key, time, cost, and whether it went in."""
    with Client(service.grpc_target) as client:
        client.create_window(SPEC | ({"rollups": [["tenant"]]} if rollups else {}))
    edges = [
        lambda: over_client(service.grpc_target),
        lambda: over_client(service.rest_url),
        lambda: over_rest(service),
    ]
    done, failed, together = [], [], threading.Barrier(CALLERS)

    def call(number):
        draw = random.Random(number)
        admit, close = edges[number % 3]()
        other, close_other = edges[(number + 1) % 3]()
        try:
            together.wait(60)
            for sequence in range(1, CALLS + 1):
                key = f"{draw.choice(TENANTS)}|{draw.choice(USERS)}"
                # Late and early by more than a lookback.
                time, cost = (
                    5000 + draw.choice([0, 0, 0, 300, 900, -1500, 2500]) + draw.randrange(50),
                    draw.randint(1, 3),
                )
                numbers = {"producer": f"p{number}", "sequence": sequence} if number % 2 else {}
                admitted = admit(key, time, cost, **numbers)
                if numbers and draw.random() < 0.3:
                    assert other(key, time, cost, **numbers) == admitted, "the same number has one decision"
                done.append((key, time, cost, admitted))
        except BaseException as error:
            failed.append(error)
            together.abort()
        finally:
            close()
            close_other()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed[0]
    return done


@pytest.mark.parametrize("rollups", [False, True])
def test_no_limit_is_passed_and_nothing_is_lost(rollups, tmp_path):
    with running_service(data=str(tmp_path / "data")) as service:
        done = attack(service, rollups)
        admitted = sorted((key, time, cost) for key, time, cost, went_in in done if went_in)
        assert len(done) == CALLERS * CALLS
        assert 0 < len(admitted) < len(done), "some are refused"
        with Client(service.grpc_target) as client:
            stored = []
            for bulk in client.window("w").entries(keys=ALL_KEYS):
                stored += zip(bulk.keys.tolist(), bulk.times.tolist(), bulk.columns["cost"].tolist(), strict=True)
        assert sorted(stored) == admitted
        for key, end, _ in admitted:
            inside = [each for each in admitted if end - SPAN < each[1] <= end]
            assert sum(each[0] == key for each in inside) <= PER_USER
            assert sum(cost for other, _, cost in inside if other[0] == key[0]) <= PER_TENANT
        # What was refused would pass a limit also now: entries only came.
        for key, time, cost, went_in in done:
            ends = [time, *(end for _, end, _ in admitted if time < end < time + SPAN)]
            if not went_in:
                assert any(
                    sum(each[0] == key and end - SPAN < each[1] <= end for each in admitted) >= PER_USER
                    or sum(c for k, t, c in admitted if k[0] == key[0] and end - SPAN < t <= end) + cost > PER_TENANT
                    for end in ends
                )
