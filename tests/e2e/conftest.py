"""The command line, called in the test's process."""

import io
import sys

import pytest

from sash.main import run


@pytest.fixture
def sash(capsys, monkeypatch):
    """Runs a command in this process, as the console script does; returns its exit status, output and errors."""

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own

    def run_it(*arguments, service=None, text=None, expect=0):
        monkeypatch.setattr(sys, "argv", ["sash", *arguments])
        if service is not None:
            monkeypatch.setenv("SASH_TARGET", service.grpc_target)
        if text is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        with pytest.raises(SystemExit) as ended:
            run()
        done = capsys.readouterr()
        assert (ended.value.code or 0) == expect, done.err
        return done

    return run_it
