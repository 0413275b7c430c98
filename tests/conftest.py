"""Hypothesis profiles, how files are distributed over processes, and a last line that counts what was skipped.

Profiles, by SASH_PROFILE: `dev` by default, with other examples in each run; `ci` in .ci/run, with the same ones in
each; `coverage` in its pass; `sample` where what has been tested compiled runs as Python; `soak` for hours.
"""

import gc
import os
from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from sash_engine import version
from tests.support.profile import THOROUGH

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=20, deadline=None, suppress_health_check=slow)
settings.register_profile("ci", max_examples=25, deadline=None, suppress_health_check=slow, derandomize=True)
settings.register_profile("coverage", max_examples=10, deadline=None, suppress_health_check=slow, derandomize=True)
settings.register_profile("sample", max_examples=10, deadline=None, suppress_health_check=slow, derandomize=True)
settings.register_profile("soak", max_examples=5000, deadline=None, suppress_health_check=slow)
settings.load_profile(os.environ.get("SASH_PROFILE", "dev"))

ONE_IN = 7 if os.environ.get("SASH_PROFILE") == "sample" else 1
"""A sample has one in seven cases of each test. Few lists of parameters have seven values, so all values are met."""

LONG = (
    "tests/spark",
    "tests/e2e/test_image.py",
    "tests/e2e/test_wheel.py",
    "tests/prometheus/test_real_prometheus.py",
    "tests/bench",
    "tests/simulation",
    "tests/forest/test_histories.py",
    "tests/e2e/test_compiled.py",
    "tests/crash",
    "tests/cluster",
    "tests/ingest",
    "tests/durability/test_families.py",
    "tests/durability/test_damage.py",
    "tests/durability/test_capacity.py",
    "tests/security/test_hostile.py",
    "tests/rest/test_openapi.py",
    "tests/security/test_schemathesis.py",
    "tests/docs",
    "tests/ui",
    "tests/laws",
    "tests/windows",
)
"""They begin first, the longest before the others, so that no process is left with one when the others are done."""


OWN_SPARK = tuple(f"tests/spark/test_{name}.py" for name in ("cluster", "connect", "versions"))
"""These start Sparks of their own, and need not wait for those that share one."""


def pytest_report_header(config):
    return f"engine: {version.engine()}"


def pytest_sessionstart():
    gc.disable()


def pytest_collection_finish():
    """Have the collector of garbage leave out all that was read: it took 2 s meanwhile, and 0.4 s each time later."""
    gc.enable()
    gc.freeze()


def pytest_unconfigure(config):
    """Say last how many tests were skipped, and why: where a tool is missing, that is what did not run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # in the processes of xdist
        return
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ()))
    if reasons:
        told = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        reporter.write_line(f"{reasons.total()} tests were skipped: {told}")


@pytest.fixture(scope="module")
def service():
    """A service in this process; rooms whose services have settings have a fixture of their own by this name."""
    from tests.support.servers import running_service

    with running_service() as running:
        yield running


@pytest.fixture(scope="module")
def http(service):
    return service.http()


@pytest.fixture(scope="module")
def stub(service):
    return service.stub()


@pytest.fixture
def client(service):
    """A client that deletes the windows of the service after each test."""
    from tests.support.clients import client_of

    with client_of(service.grpc_target) as client:
        yield client


@pytest.fixture(params=("grpc", "connect"))
def transport(request):
    """What calls of the Python client with one answer go over; `tests.support.connect_server` makes addresses of it."""
    return request.param


@pytest.fixture
def connections(monkeypatch):
    """The connections of HTTP that services of this process get, in order."""
    from sash.rest.connection import Connection

    make, found = Connection.connection_made, []

    def noted(self, transport):
        make(self, transport)
        found.append(self)

    monkeypatch.setattr(Connection, "connection_made", noted)
    return found


class Files(LoadFileScheduling):
    """Gives each process whole files. What shares a Spark is for one process, so that one JVM is started and warm."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "tests/spark" if file.startswith("tests/spark/") and file not in OWN_SPARK else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_collection_modifyitems(config, items):
    """Give Spark's tests time; put long files first in the processes of xdist, and then those with the most tests.

    Tests that are marked `soak` run in that profile only. A sample runs every other test, with its first case and every
    seventh one after it.
    """
    if not THOROUGH:
        left = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    if ONE_IN > 1:
        cases = defaultdict[str, list[pytest.Item]](list)
        for item in items:
            cases[item.nodeid.partition("[")[0]].append(item)
        kept = {item for each in cases.values() for item in each[::ONE_IN]}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))  # JVMs and many Python workers start: minutes, where it is busy
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(item.location[0] for item in items)

    def rank(item):
        file = item.location[0]
        found = next((place for place, start in enumerate(LONG) if file.startswith(start)), len(LONG))
        return found, 0 if found == 0 else -tests[file]

    items.sort(key=rank)
