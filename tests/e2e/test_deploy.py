"""What is deployed runs commands and has settings that exist; the container's health check tells health from death."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sash.commands import app
from sash.settings import Settings
from tests.support.certificates import Authority
from tests.support.servers import WAIT_S, refused_start, service_process

ROOT = Path(__file__).parents[2]
SETTINGS = {f"SASH_{name.upper()}" for name in Settings.model_fields}


@pytest.fixture(scope="module")
def dockerfile():
    """Its instructions in order: (name, rest), continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line]


def unit():
    """The systemd unit: (key, value) in order."""
    lines = (ROOT / "deploy" / "sash.service").read_text().splitlines()
    return [tuple(line.split("=", 1)) for line in lines if "=" in line and not line.startswith("#")]


def commands():
    return typer.main.get_command(app).commands


def last(instructions, name):
    return [rest for each, rest in instructions if each == name][-1]


def settings_of(text):
    return dict(re.findall(r"(SASH_\w+)=(\S+)", text))


def test_the_image_serves_with_settings_that_exist(dockerfile):
    assert json.loads(last(dockerfile, "ENTRYPOINT")) == ["sash"]
    assert set(json.loads(last(dockerfile, "CMD"))) <= set(commands())
    given = settings_of(last(dockerfile, "ENV"))
    assert set(given) <= SETTINGS
    assert given["SASH_DATA"] == last(dockerfile, "VOLUME")
    ports = {Settings.model_fields[name].default for name in ("grpc_port", "rest_port")}
    assert set(map(int, last(dockerfile, "EXPOSE").split())) == ports
    assert int(given["SASH_REST_PORT"]) in ports


def test_the_image_copies_what_there_is_and_does_not_run_as_root(dockerfile):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for each, rest in dockerfile:
        if each == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert source not in ignored
    names = [each for each, _ in dockerfile]
    assert last(dockerfile, "USER") == "sash"
    assert names.index("USER") < names.index("VOLUME") < names.index("ENTRYPOINT")


@pytest.fixture
def check(dockerfile):
    """Runs the image's health check with variables; returns its exit status."""
    _, command = last(dockerfile, "HEALTHCHECK").split("CMD", 1)
    python, *arguments = json.loads(command)
    assert python == "python"

    def check(**environment):
        paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        done = subprocess.run(
            [sys.executable, *arguments],
            env={"http_proxy": "http://127.0.0.1:1", **paths, **environment},
            timeout=WAIT_S,
            stderr=subprocess.DEVNULL,
        )
        return done.returncode

    return check


def test_the_health_check_tells_a_service_from_none(check):
    with service_process() as service:
        port = str(service.rest_port)
        assert check(SASH_REST_PORT=port) == 0
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(WAIT_S) == 0
        assert check(SASH_REST_PORT=port) == 1
        assert check(SASH_REST_PORT=port, SASH_TLS_CERT="cert.pem", SASH_TLS_CLIENT_CA="ca.pem") == 1


def test_the_health_check_speaks_tls(check, tmp_path):
    authority = Authority("one")
    cert, key = authority.give(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    files = {"SASH_TLS_CERT": str(cert), "SASH_TLS_KEY": str(key)}
    for more in ({}, {"SASH_TLS_CLIENT_CA": str(ca)}):
        with service_process(**files, **more) as service:
            assert check(SASH_REST_PORT=str(service.rest_port), **files, **more) == 0


def test_the_image_says_who_may_call_before_it_serves(dockerfile):
    given = settings_of(last(dockerfile, "ENV"))
    said = refused_start("--data", "memory", SASH_HOST=given["SASH_HOST"])
    assert "SASH_TOKENS" in said
    assert "SASH_INSECURE=1" in said


def test_the_unit_serves_with_settings_that_exist():
    found = unit()
    program, command, *options = shlex.split(dict(found)["ExecStart"])
    assert Path(program).name == "sash"
    assert command in commands()
    assert not options
    given = settings_of(" ".join(value for key, value in found if key == "Environment"))
    assert set(given) <= SETTINGS
    assert given["SASH_DATA"] == f"/var/lib/{dict(found)['StateDirectory']}"


def test_settings_that_comments_name_exist():
    for path in (ROOT / "Dockerfile", ROOT / "deploy" / "sash.service"):
        assert set(re.findall(r"SASH_\w+", path.read_text())) <= SETTINGS
