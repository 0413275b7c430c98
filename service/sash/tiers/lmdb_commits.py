"""Numbers of commits in a file of LMDB. They show that the disk lost a write.

A write that the disk lost although it had synced it leaves an older page, and maybe a tree as it was once. Each value
knows its own key, so a value in the wrong place is noticed. The end of the journal is not: without its last page it is
the journal of a moment ago. So each commit writes its number in two places:

    values        journal/last\\0    the last commit, in the page where the journal ends
    unnamed       commit            "transaction commit": every transaction writes its own number here, as LMDB does
                                    in its meta page, and the last commit
"""

from __future__ import annotations

from typing import Any

import lmdb

COMMIT_KEY = b"commit"
"""In the unnamed database: numbers of the last transaction, and of the last one that changed values."""

STAMP_KEY = b"journal/last\0"
"""Among the values: the second of them."""


def number_transaction(change: lmdb.Transaction[bytes], values: Any, unnamed: Any) -> None:
    """Write the number of a transaction, and the number of the last commit as it has it."""
    stamp = change.get(STAMP_KEY, b"0", db=values)
    change.put(COMMIT_KEY, b"%d %s" % (change.id(), stamp), db=unnamed)


def lost_write(told: bytes | None, stamp: bytes | None, transaction: int) -> bool:
    """Whether a file is not as its last transaction left it. Files of versions that wrote neither number do not tell.

    A compacted copy of a file counts its transactions anew, so the file may name a later one.

    Args:
        told: the value of `COMMIT_KEY`.
        stamp: the value of `STAMP_KEY`.
        transaction: the last one, as the file's meta page has it.
    """
    if told is None:
        return stamp is not None
    number, _, told_stamp = told.partition(b" ")
    return not number.isdigit() or int(number) < transaction or told_stamp != (stamp or b"0")
