"""Wall clocks of other processes that jump, each by a file with the seconds that it is off.

Python processes read it by a `sitecustomize` that comes first on their path; a program in C by a library that is
loaded before libc. Neither touches a clock that cannot jump (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

_PYTHON = """
import mmap, os, struct, time
with open(os.environ["TEST_WALL_CLOCK"], "rb") as file:
    _off = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + struct.unpack("<q", _off[:8])[0]
time.time_ns = lambda: _time_ns() + struct.unpack("<q", _off[:8])[0] * 10**9
"""
_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *off;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("TEST_WALL_CLOCK"), O_RDONLY);
    void *at = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    off = at == MAP_FAILED ? 0 : at;
    close(file);
}
int clock_gettime(clockid_t id, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, id, t);
    if (!failed && id == CLOCK_REALTIME && off) t->tv_sec += *off;
    return failed;
}
int gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


class WallClock:
    """The wall clock of one process, which runs right until `jump`.

    Attributes:
        python: the environment of a Python process that goes by it.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sash-clock-"))
        self._file = self._folder / "off"
        self._file.write_bytes(struct.pack("<q", 0))
        (self._folder / "sitecustomize.py").write_text(_PYTHON)
        self._named = {"TEST_WALL_CLOCK": str(self._file)}
        path = os.pathsep.join(filter(None, [str(self._folder), os.environ.get("PYTHONPATH")]))
        self.python = self._named | {"PYTHONPATH": path}

    def program(self) -> dict[str, str] | None:
        """The environment of a program in C that goes by it; None where there is no compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        source, library = self._folder / "clock.c", self._folder / "clock.so"
        source.write_text(_C)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        return self._named | {"LD_PRELOAD": str(library)}

    def jump(self, off_s: int) -> None:
        """Be so many seconds off from now on."""
        with self._file.open("r+b") as file:  # in place: the processes have mapped it
            file.write(struct.pack("<q", off_s))

    def close(self) -> None:
        """Remove its files."""
        shutil.rmtree(self._folder)
