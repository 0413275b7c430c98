"""Small pipelines over JSON files."""

import json

from sash_spark.config import parse

DDL = "at string, k string, v double"
SPEC = {
    "name": "w",
    "keyed": True,
    "fields": {"v": "float64"},
    "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}},
}
DOCUMENT = {
    "name": "p",
    "service": "127.0.0.1:1",
    "checkpoint": "nowhere",
    "source": {"format": "json", "path": "nowhere", "schema": DDL},
    "columns": {"time_of_it": "try_to_timestamp(at)"},
    "time": "time_of_it",
    "key": "k",
    "windows": [{"spec": SPEC}],
}


def config_in(tmp_path, target, **parts):
    """A pipeline over JSON files in a directory of the test."""
    source = {"format": "json", "path": str(tmp_path / "feed"), "schema": DDL}
    document = DOCUMENT | {"service": target, "checkpoint": str(tmp_path / "checkpoint"), "source": source}
    return parse(document | parts)


def feed(tmp_path, *records, name="a"):
    (tmp_path / "feed").mkdir(exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (tmp_path / "feed" / f"{name}.json").write_text("\n".join(lines) + "\n")


def record(second, k="x", v=1.0):
    return {"at": f"2013-01-01 00:00:{second:02d}", "k": k, "v": v}
