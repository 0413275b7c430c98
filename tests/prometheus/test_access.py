"""Tokens: who may ask, and who sees which windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.prometheus.conftest import T, create, insert
from tests.prometheus.test_remote_write import HEADERS, URL, body_of
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    tokens = {
        "root": {"role": "admin"},
        "writer": {"role": "write"},
        "reader": {"role": "read"},
        "one": {"role": "read", "windows": ["mine*"]},
        "ones": {"role": "write", "windows": ["mine*"]},
    }
    path = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.yaml", tokens)
    with running_service(tokens=path) as running:
        client = running.http()
        for name in ("mine", "other"):
            create(client, name, headers=bearer("root"), time_unit="ms", order={"equal_times": "first"})
            insert(client, name, [T * 1000], [1.0], headers=bearer("writer"))
        yield client


def ask(http: httpx.Client, who: str, path: str, **parameters: Any) -> httpx.Response:
    return http.get(f"/prometheus/{path}", params=parameters, headers=bearer(who))


def test_without_a_token_there_is_no_answer(http: httpx.Client) -> None:
    for path in ("query?query=1", "labels", "status/buildinfo", "nothing"):
        answer = http.get(f"/prometheus/api/v1/{path}")
        assert answer.status_code == 401
        assert answer.json()["errorType"] == "unauthorized"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert http.post(URL, content=b"", headers=HEADERS).status_code == 401


def test_a_token_for_some_windows_sees_no_others(http: httpx.Client) -> None:
    assert ask(http, "one", "api/v1/label/__name__/values").json()["data"] == ["mine:n", "mine:v"]
    assert set(ask(http, "one", "api/v1/metadata").json()["data"]) == {"mine:n", "mine:v"}
    everything = {"match[]": '{__name__=~".+"}'}
    assert {each["__name__"] for each in ask(http, "one", "api/v1/series", **everything).json()["data"]} == {
        "mine:n",
        "mine:v",
    }
    assert b"other" not in ask(http, "one", "federate", **{"match[]": '{__name__=~".+:n"}'}).content
    found = ask(http, "one", "api/v1/query", query='{__name__=~".+:n"}', time=T + 1).json()["data"]["result"]
    assert [each["metric"]["__name__"] for each in found] == ["mine:n"]
    for query in ("other:n", "sum(other:n)", "other:nothing", "missing:n"):  # and does not learn which there are
        assert ask(http, "one", "api/v1/query", query=query).json()["errorType"] == "forbidden", query


def test_to_write_takes_the_right_to_write(http: httpx.Client) -> None:
    def write(who: str, window: str) -> int:
        body = body_of(({"__name__": f"{window}:v"}, [(T * 1000 + 5, 2.0)]))
        return http.post(URL, content=body, headers={**HEADERS, **bearer(who)}).status_code

    assert write("reader", "mine") == 403
    assert write("ones", "other") == 403
    assert write("ones", "mine") == 204
    found = ask(http, "reader", "api/v1/query", query='{__name__=~".+:n"}', time=T + 1).json()["data"]["result"]
    assert {each["metric"]["__name__"]: each["value"][1] for each in found} == {"mine:n": "2", "other:n": "1"}
