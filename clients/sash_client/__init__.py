"""Python client of Sash: sliding-window aggregates as a service.

    from sash_client import Client

    with Client("127.0.0.1:7070") as sash:
        window = sash.window("departure_delay")
        window.bulk_insert(times, {"delay": delays, "carrier": carriers}, keys=airports)
        window.query(key="JFK", lookbacks=["1h", "6h"])

Arrays and data frames go in (NumPy, pandas, Polars, Arrow), answers and data frames come out. Errors are the classes of
`sash_client.errors`. `sash_client.aio` is the client for asyncio.
"""

from sash_client.answers import (
    Admission,
    Answer,
    Counts,
    LastWrite,
    Limit,
    LimitAnswers,
    Staged,
    WindowInfo,
    WriteResult,
)
from sash_client.backups.archive import backup, restore
from sash_client.calls.credentials import TLS
from sash_client.calls.metadata import request_id, trace_calls
from sash_client.client import Client, Window
from sash_client.data.bulks import Bulk
from sash_client.data.features import Features
from sash_client.data.tables import Answers, Entries, RangeAnswer, Series
from sash_client.errors import (
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SashClientError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from sash_client.sketches.bloom import BloomFilter
from sash_client.sketches.count_min import CountMin
from sash_client.sketches.naive_bayes import NaiveBayes
from sash_client.sketches.theta import ThetaSketch
from sash_client.windows.keys import ALL_KEYS
from sash_client.windows.producer import Producer


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # it takes a while, and hardly anybody asks

    try:
        return version("sash")
    except PackageNotFoundError:
        return "unknown"


__all__ = [
    "ALL_KEYS",
    "Admission",
    "AlreadyExists",
    "Answer",
    "Answers",
    "BloomFilter",
    "Bulk",
    "Client",
    "CountMin",
    "Counts",
    "DataLoss",
    "DeadlineExceeded",
    "Entries",
    "FailedPrecondition",
    "Features",
    "InvalidArgument",
    "LastWrite",
    "Limit",
    "LimitAnswers",
    "NaiveBayes",
    "NotFound",
    "PermissionDenied",
    "Producer",
    "RangeAnswer",
    "ResourceExhausted",
    "SashClientError",
    "Series",
    "Staged",
    "TLS",
    "ThetaSketch",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "Window",
    "WindowInfo",
    "WriteResult",
    "backup",
    "request_id",
    "restore",
    "trace_calls",
]
