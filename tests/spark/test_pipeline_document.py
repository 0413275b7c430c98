"""The document of a pipeline: what is refused, and which part an error names."""

import pytest
import yaml

from sash_client import InvalidArgument, Unavailable
from sash_spark.config import KafkaSource, load, parse
from sash_spark.demo import (
    CONFIG,
)
from sash_spark.pipeline import Pipeline, main
from sash_spark.records import read
from tests.support.pipelines import DDL, DOCUMENT, SPEC, config_in

# ---------------------------------------------------------------- the document


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"name": "no name"}, "name"),
        ({"service": "somewhere"}, "service"),
        ({"surplus": 1}, "surplus"),
        ({"source": {"format": "xml"}}, "source"),
        ({"source": {"format": "csv", "schema": DDL}}, "source.path"),
        (
            {"source": {"format": "kafka", "servers": "h:1", "topic": "t", "schema": DDL, "value": "avro"}},
            "source.value",
        ),
        ({"source": {"format": "rate", "rows_per_second": 0}}, "source.rows_per_second"),
        ({"columns": {"c": 1}}, "columns.c"),
        ({"windows": []}, "windows"),
        ({"windows": [{"spec": SPEC}, {"spec": 7}]}, "windows[1].spec"),
        ({"windows": [{"spec": "absent.yaml"}]}, "windows[0].spec"),
        ({"windows": [{"spec": SPEC}, {"spec": SPEC}]}, "windows[1].spec.name"),
        ({"key": None}, "key"),
        ({"bad_records": {"path": "bad", "share_max": 2}}, "bad_records.share_max"),
        ({"trigger": "sometimes"}, "trigger"),
        ({"time": None}, "time"),
    ],
    ids=str,
)
def test_a_document_that_is_wrong_names_the_part(part, field):
    with pytest.raises(InvalidArgument) as caught:
        parse(DOCUMENT | part)
    assert caught.value.field == field
    assert field in caught.value.message


def test_specs_beside_the_document(tmp_path):
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(DOCUMENT | {"windows": [{"spec": "w.yaml"}]}))
    assert load(tmp_path / "p.yaml").windows[0].spec == SPEC
    for wrong in (b"a: [", b"name: 2020-99-99", b"name: !!bool maybe", b"[" * 3000, b"name: \xff"):
        for name, field in (("w.yaml", "windows[0].spec"), ("wrong.yaml", "config")):
            (tmp_path / name).write_bytes(wrong)
            with pytest.raises(InvalidArgument) as caught:
                load(tmp_path / ("p.yaml" if name == "w.yaml" else name))
            assert caught.value.field == field


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT | {"trigger": "now"}))
    assert main([str(path)]) == 2
    assert "p.yaml: trigger: " in capsys.readouterr().err
    assert main([str(tmp_path / "absent.yaml")]) == 1
    assert main([str(CONFIG), "--check"]) == 0


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"columns": {"c": "no_such(at)"}}, "columns.c"),
        ({"columns": {"c": "at +"}}, "columns.c"),
        ({"columns": {"v": "1"}}, "columns.v"),
        ({"where": "nope > 1"}, "where"),
        ({"time": "nope"}, "time"),
        ({"key": "nope"}, "key"),
        ({"time": "at"}, "c0"),  # a string is no time: the sink says so
        ({"order_by": ["v", "nope"]}, "order_by[1]"),
        ({"source": {"format": "json", "path": "/tmp", "schema": "a strin"}}, "source.schema"),
        ({"windows": [{"spec": SPEC, "time": "nope"}]}, "windows[0].time"),
        ({"windows": [{"spec": SPEC, "fields": {"v": "k"}}]}, "windows[0].fields.v"),
        ({"windows": [{"spec": SPEC, "fields": {"u": "v"}}]}, "windows[0].fields.u"),
        (
            {"windows": [{"spec": SPEC | {"aggregates": {"n": {"function": "nope"}}}}]},
            "windows[0].spec.aggregates.n.function",
        ),
        ({"windows": [{"spec": SPEC, "preaggregate": True}]}, "windows[0].spec.granularity"),
    ],
    ids=str,
)
def test_what_spark_or_the_service_refuse_names_the_part(spark, client, target, tmp_path, part, field):
    (tmp_path / "feed").mkdir()
    with pytest.raises(InvalidArgument) as caught:
        Pipeline(config_in(tmp_path, target, **part), spark)
    assert caught.value.field == field


def test_no_service(spark, tmp_path):
    (tmp_path / "feed").mkdir()
    with pytest.raises(Unavailable):
        Pipeline(config_in(tmp_path, "127.0.0.1:1"), spark)


def test_kafka_without_its_connector_says_what_to_add(spark):
    source = KafkaSource.model_validate({"format": "kafka", "servers": "h:1", "topic": "t", "schema": DDL})
    with pytest.raises(
        InvalidArgument, match=rf"--packages org\.apache\.spark:spark-sql-kafka-0-10_2\.13:{spark.version}"
    ):
        read(spark, source)
