"""A service that callers of every kind attack at once: alive, within its memory, and no refusal for an honest caller.

`python -m tests.security.hostile` is the same at full size, and measures what an honest call waits for.
"""

from __future__ import annotations

import pytest

from tests.security.hostile import BESIDE_MIB, BOUNDED, LIMIT_MIB, attacked, is_alive, under_attack
from tests.support.profile import THOROUGH

SECONDS = 60 if THOROUGH else 5


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with under_attack(tmp_path_factory.mktemp("hostile")) as running:
        yield running


def test_all_kinds_at_once_beside_an_honest_caller(service):
    found = attacked(service, seed=1, callers=24, seconds=SECONDS)
    assert service.process.poll() is None, "it stayed up"
    assert set(found.statuses) == {"200"}, found.line()
    assert found.peak_mib < LIMIT_MIB + BESIDE_MIB, found.line()
    assert sum(each["tries"] for each in found.kinds.values()) >= len(BOUNDED) // 2
    assert is_alive(service)
    status, window = service.call("honest", "GET", "/v1/windows/calm")
    assert status == 200
    assert found.applied <= window["entries"] - 1 <= found.applied + found.unknown
