"""The gRPC service and its messages, with the comments of the .proto file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from docs.generate.text import anchor, code, table

ROOT = Path(__file__).parents[2] / "proto"
NAME = "sash_proto/v1/windows.proto"

_SCALARS = {
    getattr(FieldDescriptorProto, f"TYPE_{name.upper()}"): name
    for name in ("double", "int64", "string", "bool", "bytes", "uint32", "int32", "float", "uint64")
}


@cache
def _file() -> tuple[FileDescriptorProto, dict[tuple[int, ...], str]]:
    """The compiled file, and its comments by the path of what they stand at."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={made}", NAME], check=True)
        (file,) = FileDescriptorSet.FromString(made.read_bytes()).file
    comments = {}
    for location in file.source_code_info.location:
        said = f"{location.leading_comments} {location.trailing_comments}"
        comments[tuple(location.path)] = " ".join(said.split())
    return file, comments


def methods() -> str:
    """The methods of the service, with what they take and answer."""
    file, comments = _file()
    (service,) = file.service
    rows = []
    for i, method in enumerate(service.method):
        takes = "stream of " * method.client_streaming + _link(method.input_type)
        answers = "stream of " * method.server_streaming + _link(method.output_type)
        rows.append((code(method.name), takes, answers, comments.get((6, 0, 2, i), "")))
    return table(("method", "takes", "answers", "meaning"), rows)


def messages() -> str:
    """All messages with their fields."""
    file, comments = _file()
    parts = []
    for i, message in enumerate(file.message_type):
        parts.append(f"### {message.name}\n")
        if said := comments.get((4, i)):
            parts.append(said + "\n")
        rows = []
        for j, field in enumerate(message.field):
            rows.append((code(field.name), _type(message, field), str(field.number), comments.get((4, i, 2, j), "")))
        parts.append(table(("field", "type", "number", "meaning"), rows) if rows else "No fields.\n")
    return "\n".join(parts)


def _type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    nested = {each.name: each for each in message.nested_type}
    own = field.type_name.rsplit(".", 1)[-1]
    if own in nested and nested[own].options.map_entry:
        key, value = nested[own].field
        return f"map of {_type(message, key)} to {_type(message, value)}"
    name = _SCALARS.get(field.type) or _link(field.type_name)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    if field.proto3_optional:
        return f"optional {name}"
    return f"one of `{message.oneof_decl[field.oneof_index].name}`: {name}" if field.HasField("oneof_index") else name


def _link(full_name: str) -> str:
    name = full_name.rsplit(".", 1)[-1]
    return f"[{name}](#{anchor(name)})"
