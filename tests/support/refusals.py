"""Requests over REST that the service refuses."""

from tests.support.servers import problem

JSON = {"content-type": "application/json"}
COUNT = {"n": {"function": "count"}}


def refuse(http, method, path, status, field=None, limit=None, **request):
    found = problem(http.request(method, path, **request))
    assert found["status"] == status, found
    assert found.get("field") == field, found
    if limit is not None:
        assert limit in found["limit"], found
    return found
