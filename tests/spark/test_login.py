"""Spark with a token: as an option, from a file, in a pipeline; and in no text that Spark shows."""

import pickle

import pytest

from sash_client import InvalidArgument, PermissionDenied, Unauthenticated
from sash_spark import Login, register, sash_sink
from sash_spark.config import parse
from sash_spark.options import Options
from sash_spark.reading.question import Question
from tests.security.conftest import TOKENS, with_windows
from tests.support.servers import running_service
from tests.support.tokens import write_tokens


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    path = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.yaml", TOKENS)
    with running_service(tokens=path) as running:
        with_windows(running)
        yield running


@pytest.mark.parametrize(
    ("options", "login"),
    [
        ({}, Login()),
        ({"token": "t"}, Login("t")),
        ({"TOKEN_FILE": "/t", "tls": "true"}, Login(token_file="/t", tls=True)),
        ({"tls": "false"}, Login(tls=False)),
        (
            {"tls.ca": "c", "tls.cert": "d", "tls.key": "k", "tls.name": "n"},
            Login(ca="c", cert="d", key="k", name="n"),
        ),
    ],
)
def test_options(options, login):
    assert Login.of(Options(options)) == login
    assert Question.of(Options({"target": "t", "window": "w", **options})).login == login


def test_options_that_contradict_each_other():
    for wrong in ({"token": "a", "token_file": "b"}, {"tls": "false", "tls.ca": "c"}, {"tls": "perhaps"}):
        with pytest.raises(InvalidArgument):
            Login.of(Options(wrong))


def test_no_text_has_the_token():
    login = Login("hush")
    sink = sash_sink("127.0.0.1", window="w", time="t", login=login)
    question = Question.of(Options({"target": "t", "window": "w", "token": "hush"}))
    for shown in (login, sink, sink.route, question):
        assert "hush" not in repr(shown)
        assert "hush" not in str(shown)
    assert pickle.loads(pickle.dumps(login)).token == "hush"


def test_a_token_file_is_read_for_each_call(service, tmp_path):
    path = tmp_path / "token"
    with Login(token_file=str(path)).client(service.grpc_target) as client:
        with pytest.raises(InvalidArgument, match="token_file: cannot read"):
            client.list_windows()
        path.write_text("reader-token\n")
        assert len(client.list_windows()) == 1
        path.write_text("wrong")
        with pytest.raises(Unauthenticated):
            client.list_windows()


def test_a_pipeline_has_a_login():
    document = {
        "name": "p",
        "service": "127.0.0.1:7070",
        "checkpoint": "c",
        "source": {"format": "rate"},
        "time": "timestamp",
        "windows": [{"spec": {"name": "w"}}],
    }
    assert parse(document).login == Login()
    assert parse({**document, "token_file": "/t", "tls": False}).login == Login(token_file="/t", tls=False)
    assert parse({**document, "tls": {}}).login == Login(tls=True)
    assert parse({**document, "tls": {"ca": "c"}}).login == Login(tls=True, ca="c")
    for wrong in ({"token": "hush"}, {"tls": {"ac": "c"}}):
        with pytest.raises(InvalidArgument):
            parse({**document, **wrong})


@pytest.mark.spark
def test_a_plan_does_not_show_the_token(spark, service):
    register(spark)
    options = {"target": service.grpc_target, "window": "seen", "token": "reader-token"}
    frame = spark.read.format("sash").options(**options).load()
    frame.collect()
    assert "reader-token" not in frame._jdf.queryExecution().toString()
    with pytest.raises(Exception, match="no right 'read' on window 'hidden'"):
        spark.read.format("sash").options(**{**options, "window": "hidden"}).load().collect()


def test_errors_keep_their_kind(service):
    with Login("reader-token").client(service.grpc_target) as client, pytest.raises(PermissionDenied):
        client.delete_window("seen")
