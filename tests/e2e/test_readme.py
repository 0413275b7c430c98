"""The README's code runs, in the order in which a reader meets it, and prints what it says; its tables are complete.

The blocks that need Spark run with the other tests of Spark.
"""

import inspect
import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sash_client
from sash import errors
from sash.main import app
from sash.monoids import BUILT_IN
from sash.monoids.pane import partials_table
from sash.rest.problems import STATUSES, UnsupportedMediaType
from sash.rpc.errors import CODES
from sash.settings import Settings
from sash.windows import ledger, predicate, spec
from sash.windows.costs import MAX_ANSWERS, MAX_BUCKETS, MAX_LARGE_BUCKETS, MAX_VALUES
from sash.windows.reader import MAX_LOOKBACKS
from sash.windows.spec import WindowSpec
from sash.windows.spec_text import MAX_DEPTH, MAX_SPEC_BYTES
from sash.windows.window import MAX_KEY_NAMES, Window
from sash_client.local import local_service
from sash_proto.v1 import windows_pb2 as pb
from tests.support.readme import README, Reader, blocks_of, names_in, needs_spark, readme_blocks, table_of


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with local_service(data=str(tmp_path_factory.mktemp("data"))) as service:
        yield service


@pytest.fixture
def reader(service, tmp_path):
    return Reader(service, tmp_path)


def test_every_block_runs(reader):
    for block in readme_blocks():
        if not needs_spark(block):
            reader.run(block)
    assert reader.ran == {"sh", "python", "yaml"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\nassert 1 == 2\n```", None),
        ("```python\nprint(1)\n```\nprints `2`.", "line 1"),
        ("```python\nprint(1)\n```", "line 1"),
        ("\n```sh\nfalse\ntrue\n```", "line 2"),
        ("```sh\ncurl -s http://127.0.0.1:7071/v1/windows/nope\n```", "NotFound|not found|no window|404"),
        ("```cobol\nSTOP RUN.\n```", "nobody knows"),
    ],
)
def test_a_block_that_is_wrong_is_found(reader, text, says):
    (block,) = blocks_of(text)
    with pytest.raises(AssertionError, match=says):
        reader.run(block)


# -------------------------------------------------------------------- tables


@pytest.fixture(scope="module")
def text():
    return README.read_text()


def test_partials_are_those_of_the_code(text):
    written = {}
    for functions, parts, blob in table_of(text, "`function`", "parts"):
        written |= dict.fromkeys(names_in(functions), (parts, blob))
    assert written == {function: (parts, blob) for function, parts, blob in partials_table(BUILT_IN)}


def test_aggregates_are_those_of_the_code(text):
    written = [name for row in table_of(text, "`function`", "options") for name in names_in(row[0])]
    assert sorted(written) == sorted(monoid.function for monoid in BUILT_IN)


def test_calls_are_those_of_both_edges(text, service):
    rows = table_of(text, "REST", "gRPC")
    paths = httpx.get(f"{service.address}/openapi.json", trust_env=False).json()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert {call for row in rows for call in names_in(row[0])} == served
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["Windows"].methods}
    assert {name for row in rows for name in names_in(row[1])} == methods | {"grpc.health.v1.Health"}
    for row in rows:
        for name in names_in(row[2]):
            owner, method = name.split(".")
            assert callable(getattr(getattr(sash_client, owner), method)), name


def test_metrics_are_those_of_a_scrape(text, service):
    scraped = httpx.get(f"{service.address}/metrics", trust_env=False).text
    served = {
        family.name + "_total" * (family.type == "counter")
        for family in text_string_to_metric_families(scraped)
        if family.name.startswith("sash_")
    }
    assert {name for row in table_of(text, "metric") for name in names_in(row[0])} == served


def test_settings_are_those_of_the_code(text):
    """With the defaults that they are said to have, and the options of `sash serve`."""
    options, defaults = set(), {}
    for cell, default, _ in table_of(text, "variable", "default"):
        variables = [name for name in names_in(cell) if name.startswith("SASH_")]
        options |= {name for name in names_in(cell) if name.startswith("--")}
        single = len(variables) == 1
        defaults |= zip(variables, [default] if single else default.split(", "), strict=True)
    fields = Settings.model_fields
    assert set(defaults) == {f"SASH_{name.upper()}" for name in fields}
    for name, default in defaults.items():
        assert _value(default) == fields[name.removeprefix("SASH_").lower()].default, name
    (serve,) = (command.callback for command in app.registered_commands if command.callback.__name__ == "serve")
    assert options == {f"--{name.replace('_', '-')}" for name in serve.__annotations__ if name != "return"}


def test_errors_are_those_of_both_edges(text):
    written = {}
    for error, status, code, _ in table_of(text, "error", "REST"):
        written[getattr(errors, *names_in(error))] = (int(status), *names_in(code))
    raised = set(STATUSES) - {UnsupportedMediaType, errors.Unauthenticated, errors.PermissionDenied}
    codes = {kind: next(CODES[each] for each in kind.__mro__ if each in CODES) for kind in raised}
    assert written == {kind: (STATUSES[kind].value, codes[kind].name) for kind in raised}


def test_limits_are_those_of_the_code(text):
    written = {what: re.findall(r"[\d,]*\d", limit) for what, limit in table_of(text, "what", "limit")}
    for what, limits in {
        "fields of a window; aggregates": [spec.MAX_FIELDS, spec.MAX_AGGREGATES],
        "key": [1, spec.MAX_KEY_BYTES],
        "keys of a window": [inspect.signature(Window).parameters["max_keys"].default],
        "lookbacks of a question": [MAX_LOOKBACKS],
        "answers of a question about several keys": [MAX_ANSWERS],
        "buckets of a series": [MAX_BUCKETS, MAX_LARGE_BUCKETS],
        "values in lists and blobs, of a series or of several keys": [MAX_VALUES],
        "keys in one answer of `keys`": [MAX_KEY_NAMES],
        "`slide.when`": [predicate.MAX_LENGTH],
        "a spec; aggregates that are added": [MAX_SPEC_BYTES // 2**10, MAX_DEPTH],
        "name of a producer or query": [1, ledger.MAX_NAME_BYTES],
        "producers, and queries, that a window remembers": [ledger.MAX_WRITERS],
        "staged parts of a window": [ledger.MAX_PARTS],
    }.items():
        assert [int(number.replace(",", "")) for number in written[what][: len(limits)]] == limits, what


def test_keys_of_a_spec_are_those_of_the_code(text):
    """In the table, or in the example before it."""
    keys = {name.partition(".")[0] for row in table_of(text, "key", "values") for name in names_in(row[0])}
    example = next(block.code for block in readme_blocks() if block.language == "yaml")
    keys |= {line.partition(":")[0] for line in example.splitlines() if line[:1].isalpha()}
    assert keys == set(WindowSpec.model_fields)


def _value(text):
    """A default as the README writes it: 64 MiB, 4,000,000, info."""
    number, _, unit = text.partition(" ")
    plain = number.replace(",", "")
    if not plain.replace(".", "", 1).isdigit():
        return None if text == "none" else text
    return int(plain) * 2**20 if unit == "MiB" else float(plain) if "." in plain else int(plain)
