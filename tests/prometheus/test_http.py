"""The HTTP API as Grafana's data source calls it: parameters, documents, errors, and who may come in."""

from typing import Any

import httpx
import pytest

from tests.prometheus.conftest import Ask, T


def instant(ask: Ask, query: str, at: float = T + 600) -> Any:
    answer = ask("query", query=query, time=at)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]["result"]


def values(ask: Ask, query: str, at: float = T + 600) -> dict[str, str]:
    return {each["metric"].get("key", ""): each["value"][1] for each in instant(ask, query, at)}


def test_the_health_check_of_grafana(ask: Ask, http: httpx.Client) -> None:
    found = ask("query", query="1+1", time="2023-11-14T22:13:20Z")
    assert found.headers["content-type"] == "application/json"
    assert found.headers["content-length"] == str(len(found.content))
    assert found.json() == {"status": "success", "data": {"resultType": "scalar", "result": [T, "2"]}}
    info = http.get("/prometheus/api/v1/status/buildinfo").json()["data"]
    assert info["version"] == "2.42.0"
    assert info["application"] == "Sash"


def test_get_and_post_answer_alike(ask: Ask, http: httpx.Client) -> None:
    form = {"query": 'w:n{key="a"}', "start": T, "end": T + 120, "step": "1m"}
    posted, got = ask("query_range", **form), http.get("/prometheus/api/v1/query_range", params=form)
    assert posted.json() == got.json()
    (series,) = got.json()["data"]["result"]
    assert series == {"metric": {"__name__": "w:n", "key": "a"}, "values": [[T + 60, "30"], [T + 120, "60"]]}


def test_a_metric_of_an_aggregate_is_over_max_age(ask: Ask) -> None:
    assert values(ask, "w:n") == {"a": "300", "b": "300"}
    assert values(ask, "w:n", T + 3600 + 300) == {"a": "150", "b": "150"}
    assert values(ask, "w:n", T + 3600 + 600) == {}


def test_a_lookback_narrows_an_aggregate(ask: Ask) -> None:
    assert values(ask, 'w:n{__lookback__="1m"}') == {"a": "30", "b": "30"}
    assert values(ask, "rate(w:n[1m])") == {"a": "0.5", "b": "0.5"}


def test_a_metric_of_a_field_is_its_newest_entry_for_five_minutes(ask: Ask) -> None:
    assert values(ask, "w:v") == {"a": "598", "b": "599"}
    assert values(ask, "w:v", T + 600 + 299) == {"b": "599"}
    assert values(ask, "w:v", T + 600 + 300) == {}


def test_a_range_that_stands_alone_is_the_entries(ask: Ask) -> None:
    answer = ask("query", query='w:v{key="b"}[4s]', time=T + 10).json()["data"]
    assert answer["resultType"] == "matrix"
    assert answer["result"] == [
        {"metric": {"__name__": "w:v", "key": "b"}, "values": [[T + 7.3, "7"], [T + 9.3, "9"]]},
    ]


def test_a_sketch_says_that_it_is_one(ask: Ask) -> None:
    assert ask("query", query="w:p99", time=T + 600).json()["warnings"] == [
        "w:p99 is approximate: a sketch answers quantile"
    ]
    assert "warnings" not in ask("query", query="w:total", time=T + 600).json()


def test_numbers_are_written_as_prometheus_writes_them(ask: Ask) -> None:
    found = {"1/0": "+Inf", "-1/0": "-Inf", "0/0": "NaN", "1e21": "1" + 21 * "0", "1.5e-7": "0.00000015", "-0": "-0"}
    for query, text in found.items():
        assert ask("query", query=query, time=T).json()["data"]["result"] == [T, text], query


def test_matchers(ask: Ask) -> None:
    found = {
        '{__name__="w:n",key="a"}': ["a"],
        'w:n{key!="a"}': ["b"],
        'w:n{key=~"a|c"}': ["a"],
        "w:n{key!~`a|\\d`}": ["b"],
        'w:n{key=~"\\x61"}': ["a"],
        'w:n{key=~"a", key=~"b"}': [],
        'w:n{key=~""}': [],
        'w:n{other=""}': ["a", "b"],
        'w:n{key="a" or key="b"}': ["a", "b"],
        'w:n{key="c"}': [],
    }
    for query, keys in found.items():
        assert list(values(ask, query)) == keys, query


def test_an_expression_is_formatted(ask: Ask) -> None:
    answer = ask("format_query", query='sum(w:n{key=~"a|\\"b"})by(key)')
    assert answer.json()["data"] == 'sum by (key) (w:n{key=~"a|\\"b"})'


def test_labels_and_their_values(http: httpx.Client) -> None:
    def get(path: str, **parameters: Any) -> Any:
        return http.get(f"/prometheus/api/v1/{path}", params=parameters).json()["data"]

    assert get("labels") == ["__name__", "key"]
    assert get("labels", **{"match[]": '{__name__=~".+"}'}) == ["__name__", "key"]
    assert get("labels", **{"match[]": "nothing"}) == []
    assert get("label/key/values") == ["a", "b"]
    assert get("label/key/values", limit=1) == ["a"]
    assert get("label/key/values", **{"match[]": 'w:n{key!="a"}'}) == ["b"]
    assert get("label/other/values") == []
    assert get("label/__name__/values") == ["w:n", "w:p99", "w:total", "w:v"]
    assert get("label/__name__/values", **{"match[]": '{__name__=~".*:t.*"}'}) == ["w:total"]
    assert get("series", **{"match[]": ['w:n{key="a"}', "w:n"]}) == [
        {"__name__": "w:n", "key": "a"},
        {"__name__": "w:n", "key": "b"},
    ]
    assert get("metadata", metric="w:total") == {
        "w:total": [{"type": "gauge", "help": "sum of v over the last 1h of window w.", "unit": ""}]
    }


def test_what_sash_has_nothing_of_is_empty(http: httpx.Client) -> None:
    assert http.get("/prometheus/api/v1/rules").json()["data"] == {"groups": []}
    assert http.get("/prometheus/api/v1/alerts").json()["data"] == {"alerts": []}
    assert http.get("/prometheus/api/v1/query_exemplars?query=x").json()["data"] == []


@pytest.mark.parametrize(
    ("path", "form", "status", "kind", "said"),
    [
        ("query", {}, 400, "bad_data", '"query": it is missing'),
        ("query", {"query": "w:n{"}, 400, "bad_data", "parse error"),
        ("query", {"query": "w:n", "time": "soon"}, 400, "bad_data", "'time'"),
        ("query", {"query": "w:n", "time": "1e300"}, 400, "bad_data", "'time'"),
        ("query", {"query": "foo(w:n)"}, 400, "bad_data", "unknown function 'foo'"),
        ("query", {"query": "(" * 151 + "1" + ")" * 151}, 400, "bad_data", "at most 150"),
        ("query", {"query": "1" + " " * 20_000}, 400, "bad_data", "20001 characters"),
        ("query", {"query": 'w:n{key=~"(((a{100}){100}){100})"}'}, 400, "bad_data", "key: the regular expression"),
        ("query", {"query": 'w:n{key=~"("}'}, 400, "bad_data", "key: the regular expression"),
        ("query", {"query": "w:n{" + ",".join(31 * ['key=~"a"']) + "}"}, 400, "bad_data", "at most 30"),
        ("query", {"query": "w:n{" + ",".join(501 * ['a=""']) + "}"}, 400, "bad_data", "501 matchers"),
        ("query", {"query": "{" + " or ".join(501 * ['a="b"']) + "}"}, 400, "bad_data", "501 matchers"),
        ("query", {"query": '{key=~".*"}'}, 400, "bad_data", "non-empty matcher"),
        ("query", {"query": "histogram_quantile(0.9, w:n)"}, 422, "execution", "aggregate `quantile`"),
        ("query", {"query": "max_over_time(w:v[5m:1m])"}, 422, "execution", "subquery"),
        ("query", {"query": 'count_values("x", w:n)'}, 422, "execution", "count_values"),
        ("query", {"query": "avg_over_time(w:n[5m])"}, 422, "execution", "w:n is an aggregate"),
        ("query", {"query": "w:n + on () w:n"}, 422, "execution", "many-to-many"),
        ("query_range", {"query": "w:n", "start": 1, "end": 0, "step": 1}, 400, "bad_data", "before start"),
        ("query_range", {"query": "w:n", "start": 0, "end": 1e6, "step": 1}, 400, "bad_data", "11,000 points"),
        ("query_range", {"query": "w:n", "start": 0, "end": 10, "step": "-1s"}, 400, "bad_data", "'step'"),
        ("query_range", {"query": "w:v[5m]", "start": 0, "end": 10, "step": 1}, 400, "bad_data", "range vector"),
        ("series", {}, 400, "bad_data", "match[]"),
        ("labels", {"match[]": "1+1"}, 400, "bad_data", "no selector"),
        ("labels", {"limit": "many"}, 400, "bad_data", "whole number"),
        ("series", {"match[]": [f"w{i}:n" for i in range(21)]}, 400, "bad_data", "at most 20"),
    ],
)
def test_errors_name_what_is_wrong(
    ask: Ask, path: str, form: dict[str, Any], status: int, kind: str, said: str
) -> None:
    answer = ask(path, **{"time": T + 600, **form})
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert (document["status"], document["errorType"]) == ("error", kind)
    assert said in document["error"]
    assert answer.headers["x-request-id"]


def test_only_forms_are_taken_and_only_from_this_site(http: httpx.Client) -> None:
    url, form = "/prometheus/api/v1/query", {"query": "1"}
    assert http.post(url, json=form).status_code == 415
    assert http.post(url, data=form, headers={"origin": "http://elsewhere"}).status_code == 403
    assert http.post(url, data=form, headers={"host": "elsewhere"}).status_code == 421
    assert http.post("/v1/windows", data=form).status_code == 415
    assert http.post(url, content=b"query=" + b"1" * (1 << 18)).status_code == 413
    assert http.put(url).status_code == 405
    assert http.get("/prometheus/api/v1/nothing").status_code == 404


def test_an_expression_as_deep_as_is_allowed_is_evaluated(ask: Ask) -> None:
    for deep in ("abs(" * 150 + "w:n" + ")" * 150, "w:n" + " + w:n" * 149, "-(" * 75 + "w:n" + ")" * 75):
        answer = ask("query", query=deep, time=T + 600)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("between", ["# a comment\n", " # one\n # two\n\t", "#\n"])
def test_a_comment_may_stand_before_a_regular_expression(ask: Ask, between: str) -> None:
    assert list(values(ask, f'w:n{{key=~{between}"[a]"}}')) == ["a"]
    assert values(ask, f'w:n{{key=~{between}"61"}}') == {}  # hexadecimal digits of "a"
    shown = ask("format_query", query=f'w:n{{key=~{between}"[a]"}}').json()
    assert shown["data"] == 'w:n{key=~"[a]"}'
