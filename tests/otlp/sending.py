"""Requests of OTLP over HTTP, and their attributes."""

from google.rpc import status_pb2


def post(http, body, path="/v1/metrics", **headers):
    return http.post(path, content=body, headers={"content-type": "application/x-protobuf", **headers})


def status_of(answer):
    return status_pb2.Status.FromString(answer.content).message


def put(attributes, names):
    for name, value in names.items():
        made = attributes.add(key=name).value
        kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value", bytes: "bytes_value"}
        setattr(made, kinds[type(value)], value)
