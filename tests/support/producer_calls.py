"""Calls and errors of a producer in the hands of a test."""

from sash_client import (
    NotFound,
    Unavailable,
)

FOREVER_S = 3600.0


def gone():
    return NotFound("the window is gone")


def lost():
    return Unavailable("lost")


def insert(producer, *times):
    for time in times:
        producer.insert(time, 0.0)


def unapplied(error):
    return [time for bulk in error.unapplied for time in bulk.times.tolist()]


# ---------------------------------------------------------------- a full buffer


CALLS = {
    "insert": lambda producer: producer.insert(9, 0.0),
    "bulk_insert": lambda producer: producer.bulk_insert([9], [0.0]),
}
