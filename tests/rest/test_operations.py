"""What only REST does when all is well: its statuses, YAML, and the forms of its bodies."""

import pytest


def entries(answer):
    return answer["aggregates"]["all"]


def query(http, window, **parameters):
    response = http.get(f"/v1/windows/{window}/query", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()["answers"]


def test_a_window_is_created_once(http):
    spec = {"name": "once", "aggregates": {"n": {"function": "count"}}}
    assert [http.post("/v1/windows", json=spec).status_code for _ in range(2)] == [201, 200]
    assert http.post("/v1/windows", json={**spec, "keyed": True}).status_code == 409
    assert http.delete("/v1/windows/once").json() == {"entries": 0}
    assert http.get("/v1/windows/once").status_code == 404


@pytest.mark.parametrize("media_type", ["application/yaml", "application/yaml; charset=utf-8", "text/yaml"])
def test_a_window_is_created_from_yaml(http, media_type):
    text = "name: from_yaml\naggregates: {n: {function: count}}\nslide: {max_age: 6h}\n"
    response = http.post("/v1/windows", content=text, headers={"content-type": media_type})
    assert response.status_code == 201
    assert response.json()["spec"]["slide"] == {"max_age": "6h", "clock": "event"}
    http.delete("/v1/windows/from_yaml")


def test_columns_stand_beside_the_time_or_in_fields(http, typed):
    rows = {"f": [0.5, -0.0], "i": [2**63 - 1, 0], "s": ["", "x"], "b": [False, True]}
    for time, columns in ((1, rows), (2, {"fields": rows})):
        bulk = {"time": [time] * 2, "key": ["k", "j"], **columns}
        assert http.post(f"/v1/windows/{typed}/bulk-insert", json=bulk).json()["inserted"] == 2
    aggregates = query(http, typed, key="k")[0]["aggregates"]
    assert aggregates == {"n": 2} | {name: [values[0]] * 2 for name, values in rows.items()}


def test_one_field_is_called_value_whatever_its_name(http):
    spec = {"name": "renamed", "fields": {"delay": "int64"}, "aggregates": {"all": {"function": "collect"}}}
    http.post("/v1/windows", json=spec)
    for document in ({"value": 1}, {"delay": 2}, {"fields": {"delay": 3}}):
        assert http.post("/v1/windows/renamed/insert", json={"time": 1, **document}).status_code == 200
    for document in ({"value": [4]}, {"delay": [5]}, {"fields": {"delay": [6]}}):
        assert http.post("/v1/windows/renamed/bulk-insert", json={"time": [2], **document}).status_code == 200
    assert entries(query(http, "renamed")[0]) == [1, 2, 3, 4, 5, 6]
    http.delete("/v1/windows/renamed")
