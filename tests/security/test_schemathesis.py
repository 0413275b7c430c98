"""Schemathesis with tokens: refusals are as the OpenAPI document says, whatever the request.

With all rights, `tests/rest/test_openapi.py` asks. A reader gets the same answers, so it is asked for the rest only.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rest.test_openapi import BULKS, SPECS
from tests.support.profile import THOROUGH
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens

SETTINGS = Path(__file__).parents[1] / "rest" / "schemathesis.toml"
PHASES = [] if THOROUGH else ["--phases", "examples,fuzzing"]
"""Without the bounds of each parameter: a reader is refused before anybody reads any."""
TOKENS = {"root": {"role": "admin"}, "reader": {"role": "read"}, "stranger": {"windows": ["none"]}}


@pytest.mark.parametrize(
    ("token", "left_out"),
    [
        ("reader", ["--exclude-method", "GET"]),
        pytest.param("stranger", [], marks=pytest.mark.soak),  # is refused all; `test_matrix.py` has each refusal
    ],
)
def test_schemathesis_finds_nothing(tmp_path, token, left_out):
    with running_service(
        max_body_bytes=1 << 20, max_windows=50, tokens=write_tokens(tmp_path / "tokens.yaml", TOKENS), public=("docs",)
    ) as service:
        http, root = service.http(), bearer("root")
        for name, spec in SPECS.items():
            assert http.post("/v1/windows", json={"name": name, **spec}, headers=root).status_code == 201
            assert http.post(f"/v1/windows/{name}/bulk-insert", json=BULKS[name], headers=root).status_code == 200
        before = http.get("/v1/windows", headers=root).json()
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(SETTINGS), "run", "--no-color"]
        command += [
            *left_out,
            *PHASES,
            "--max-examples",
            "2",
            "--header",
            f"authorization: {bearer(token)['authorization']}",
        ]
        done = subprocess.run(
            [*command, f"{service.rest_url}/openapi.json"], cwd=tmp_path, capture_output=True, text=True, timeout=800
        )
        assert done.returncode == 0, done.stdout + done.stderr
        after = http.get("/v1/windows", headers=root).json()
    assert before == after
