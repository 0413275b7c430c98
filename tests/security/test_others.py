"""What a caller learns about windows that it may not see, and what it may use."""

import pytest

from sash.rest.lines import PART_ENTRIES
from sash_client import Client
from sash_engine.clock import ManualClock
from tests.security.conftest import SPEC
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens


def test_sizes_of_all_windows_are_for_those_who_see_all(service, address):
    """Any reader saw how much others keep."""
    for name, sees in (("reader", False), ("owner", False), ("auditor", True), ("root", True)):
        with Client(**address, token=f"{name}-token") as client:
            (process,) = client.topology().processes
            assert (list(process.shards), bool(process.sizes)) == ([0], sees), name
        document = service.http().get("/v1/topology", headers=bearer(name)).json()
        assert bool(document["processes"][0]["sizes"]) == sees


def test_a_refused_deletion_names_no_window_that_the_caller_may_not_see(service):
    http = service.http()
    from_it = {"window": "seen-source", "granularity": "1h"}
    made = [
        {**SPEC, "name": "seen-source", "slide": {"max_age": "1h"}},
        {"name": "hidden-view", "of": "seen-source", "slide": {"max_age": "1m"}, "aggregates": SPEC["aggregates"]},
        {**SPEC, "name": "hidden-hours", "slide": {"max_age": "1d"}, "from": from_it},
    ]
    for each in made:
        http.post("/v1/windows", json=each, headers=bearer("root")).raise_for_status()
    for left in ("hidden-view", "hidden-hours"):
        refused = http.delete("/v1/windows/seen-source", headers=bearer("owner"))
        assert refused.status_code == 409
        assert "hidden" not in refused.text
        http.delete(f"/v1/windows/{left}", headers=bearer("root")).raise_for_status()
    assert http.delete("/v1/windows/seen-source", headers=bearer("owner")).status_code == 200


@pytest.fixture
def sent(tmp_path):
    """Sends lines with a quota of a hundred entries a second, on a clock that stands still."""
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin", "entries_per_s": 100}})
    headers = {**bearer("root"), "content-type": "application/x-ndjson"}
    with running_service(ManualClock(), tokens=tokens) as running:
        http = running.http()
        http.headers.update(bearer("root"))
        http.post("/v1/windows", json={"name": "w", **SPEC}).raise_for_status()

        def send(count):
            lines = b"".join(b'{"time": %d, "key": "a", "value": 1}\n' % time for time in range(count))
            return http.post("/v1/windows/w/bulk-insert", content=lines, headers=headers)

        send.entries = lambda: http.get("/v1/windows/w").json()["entries"]
        yield send


def test_a_bulk_beyond_a_quota_is_paid_for_afterwards(sent):
    """One part of NDJSON may have more entries than a second allows; what comes next waits for the mean rate."""
    assert sent(5000).status_code == 200
    refused = sent(5000)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "50")
    assert refused.json()["applied"]["entries"] == 0


def test_of_a_long_body_no_second_part_passes_a_quota(sent):
    """It is paid for before it is applied; the refusal says which entries came before."""
    refused = sent(3 * PART_ENTRIES)
    applied = refused.json()["applied"]["entries"]
    assert (refused.status_code, int(refused.headers["retry-after"])) == (429, applied // 100)
    assert 0 < applied < 2 * PART_ENTRIES
    assert sent.entries() == applied
