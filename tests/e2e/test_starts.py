"""What a process imports before it serves or helps: what only some calls need is imported by the first of them."""

import subprocess
import sys

import pytest

from sash import commands

ONLY_SOME = {"pyarrow", "pandas", "polars", "jwt", "cryptography", "redis", "opentelemetry.sdk", "matplotlib", "rich"}
ONLY_SOME |= {"opentelemetry.exporter", "sash.envoy.limits", "sash.shards.leased_host"}
COMMANDS = {"sash_cli.app", "sash.commands"}
SERVICE = {"sash.service", "sash.plane", "sash_engine", "fastapi", "datasketches", "lmdb"}
CALLS = {"grpc", "asyncio", "yaml"}
ALL_CALLS = ONLY_SOME | SERVICE | CALLS
CLIENT = ALL_CALLS | {"numpy", "google.protobuf", "sash_client", "ssl", "urllib.request"}


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import sash.service, sash.processes.supervisor, sash_client.aio", ONLY_SOME | COMMANDS),
        ("from sash import main; sys.argv = ['sash', 'serve', '--help']; main.run()", CLIENT | COMMANDS),
        ("from sash import main; sys.argv = ['sash', '--help']; main.run()", CLIENT),
        (
            "from sash import main; sys.argv = ['sash', 'query', '--help']; main.run()",
            CLIENT,
        ),
        ("import sash_client", ALL_CALLS),
    ],
    ids=["service", "help of serve", "help", "help of a command", "client"],
)
def test_a_start_imports_nothing_that_only_some_calls_need(code, others):
    code = f"import sys\ntry:\n    {code}\nfinally:\n    print(sorted({others!r} & set(sys.modules)), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[-1] == "[]"


def test_a_service_starts_without_looking_for_plugins_of_pydantic(tmp_path):
    code = (
        "import sys\nfrom sash import main\nsys.argv = ['sash', 'serve', '--rest-port', '70000']\n"
        "try:\n    main.run()\nfinally:\n    from pydantic.plugin import _loader\n    print(_loader._plugins)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (1, "None\n")
    assert found.stderr.startswith("sash: SASH_REST_PORT")


@pytest.mark.parametrize(
    "words",
    [["--help"], ["-h"], ["--processes"], ["--nothing"], ["more"], ["--rest-port", "x"], ["--rest-port", "70000"]],
)
def test_serve_says_the_same_where_it_starts_without_the_other_commands(ran, words):
    assert ran("serve", *words) == ran("serve", *words, by=commands.run)
