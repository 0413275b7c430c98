"""Remove from an environment the files of other packages that Sash does not use: ``python slim.py /opt/sash``.

The image's build runs it. Afterwards it imports what the service and `sash load` use, so that a package that begins to
need one of the files fails the build.
"""

import shutil
import subprocess
import sys
from pathlib import Path

UNUSED = (
    # Arrow Flight, and file systems of clouds: Sash reads and writes Arrow's formats on its own connections.
    *("pyarrow/_flight.*", "pyarrow/libarrow_flight.so.*", "pyarrow/libarrow_python_flight.so*"),
    *("pyarrow/_s3fs.*", "pyarrow/libarrow_s3.so.*", "pyarrow/_gcsfs.*", "pyarrow/_azurefs.*", "pyarrow/_hdfs.*"),
    *("pyarrow/_orc.*", "pyarrow/_dataset_orc.*", "pyarrow/_feather.*", "pyarrow/_pyarrow_cpp_tests.*"),
    *("pyarrow/_parquet_encryption.*", "pyarrow/_dataset_parquet_encryption.*", "pyarrow/libarrow_python_parquet_*"),
    # What others compile against.
    *(
        "pyarrow/include",
        "pyarrow/src",
        "pyarrow/includes",
        "pyarrow/*.p[xy][xdi]",
        "numpy/_core/include",
        "numpy/f2py",
    ),
    *("grpc/_cython/_cygrpc", "uvloop/*.p[xy][xdi]", "uvloop/*.c", "uvloop/handles", "uvloop/loop.c"),
    # Tests of their own.
    *("*/tests", "*/*/tests", "*/testing/tests"),
)
USED = (
    *("sash.service", "sash.main", "sash_cli.load_files", "sash.commands", "sash_client.aio", "numpy.testing"),
    "sash.envoy.limits",  # only a service with rate limits imports it
    "cel",  # only a window with `when` imports it; it imports a prompt, which it does not use here
    *("pyarrow.csv", "pyarrow.json", "pyarrow.parquet", "pyarrow.compute", "pyarrow.ipc", "pyarrow.dataset"),
)


def main(environment: str) -> None:
    root = Path(environment)
    (packages,) = root.glob("lib/python3.*/site-packages")
    before = _mib(root)
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # A wheel has no links: three copies of one library, of which the loader opens `lib….so.N`.
    for path in [*packages.glob("pyarrow/lib[!.]*.so"), *packages.glob("pyarrow/lib[!.]*.so.*.*.*")]:
        path.unlink()
    imports = "\n".join(f"import {name}" for name in USED)
    subprocess.run([root / "bin" / "python", "-c", imports], check=True)
    print(f"{environment}: {before} MiB, now {_mib(root)} MiB")


def _mib(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink()) >> 20


if __name__ == "__main__":
    main(sys.argv[1])
