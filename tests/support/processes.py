"""Python in a process of its own."""

import subprocess
import sys


def python(code: str, *arguments: object) -> subprocess.Popen:
    """A process of its own, with pipes."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
