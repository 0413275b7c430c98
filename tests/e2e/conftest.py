"""The command line, called in the test's process."""

import io
import logging
import sys
from functools import cache

import pytest
import typer

from sash.main import run

built = cache(typer.main.get_command)
"""All commands, made once: that takes 22 ms, which each call would spend anew."""


@pytest.fixture
def ran(capsys, monkeypatch):
    """Runs a command in this process, as the console script does; returns its exit status, and what it says."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    monkeypatch.setattr(typer.main, "get_command", built)
    log = logging.getLogger("sash")
    level = log.level  # `check` raises it for good, and later tests of this process look at the log

    def ran(*arguments, service=None, text=None, by=run):
        monkeypatch.setattr(sys, "argv", ["sash", *map(str, arguments)])
        if service is not None:
            monkeypatch.setenv("SASH_TARGET", service.grpc_target)
        if text is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        with pytest.raises(SystemExit) as ended:
            by()
        return ended.value.code or 0, capsys.readouterr()

    yield ran
    log.setLevel(level)


@pytest.fixture
def sash(ran):
    """Runs a command that ends with a status; returns what it says."""

    def sash(*arguments, expect=0, **given):
        status, said = ran(*arguments, **given)
        assert status == expect, said.out + said.err
        return said

    return sash
