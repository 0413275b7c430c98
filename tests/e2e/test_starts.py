"""What a process imports before it serves or helps: what only some calls need is imported by the first of them."""

import subprocess
import sys

import pytest

ONLY_SOME = {"pyarrow", "pandas", "polars", "jwt", "cryptography", "redis", "opentelemetry.sdk", "matplotlib", "rich"}
SERVICE = {"sash.service", "sash.plane", "sash_engine", "fastapi", "datasketches", "lmdb"}
CALLS = {"grpc", "asyncio", "yaml"}
ALL_CALLS = ONLY_SOME | SERVICE | CALLS
CLIENT = ALL_CALLS | {"numpy", "google.protobuf", "sash_client", "ssl", "urllib.request"}


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import sash.service", ONLY_SOME),
        ("from sash import main; sys.argv = ['sash', '--help']; main.run()", CLIENT),
        (
            "from sash import main; sys.argv = ['sash', 'query', '--help']; main.run()",
            CLIENT,
        ),
        ("import sash_client", ALL_CALLS),
    ],
    ids=["serve", "help", "help of a command", "client"],
)
def test_a_start_imports_nothing_that_only_some_calls_need(code, others):
    code = f"import sys\ntry:\n    {code}\nfinally:\n    print(sorted({others!r} & set(sys.modules)), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[-1] == "[]"
