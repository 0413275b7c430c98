"""Schemas of what a service says of itself, and of what several documents have."""

from __future__ import annotations

from typing import Any

__all__ = ["MISSING", "SERVICE_SCHEMAS"]

MISSING: dict[str, Any] = {
    "missing_shards": {
        "description": "With `partial`: the shards that are away, whose part it lacks; absent if there is none.",
        "type": "array",
        "items": {"type": "integer"},
    }
}

SERVICE_SCHEMAS: dict[str, Any] = {
    "Windows": {
        "type": "object",
        "required": ["windows"],
        "properties": {"windows": {"type": "array", "items": {"$ref": "#/components/schemas/Window"}}},
    },
    "Topology": {
        "description": "The processes of a service. `grpc_port` is the port that only this process listens on; 0 if "
        "there is none, or it is not known. `address` is host and port of gRPC for clients on any machine, if it is "
        "not that of the service. `pending_bytes` are bytes of writes that wait for a commit.",
        "type": "object",
        "required": ["shards", "processes"],
        "properties": {
            "shards": {"type": "integer"},
            "processes": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["number", "up", "grpc_port", "shards"],
                    "properties": {
                        "number": {"type": "integer"},
                        "up": {"type": "boolean"},
                        "grpc_port": {"type": "integer"},
                        "shards": {"type": "array", "items": {"type": "integer"}},
                        "address": {"type": "string"},
                        "sizes": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["shard", "entries", "pending_bytes"],
                                "properties": {
                                    "shard": {"type": "integer"},
                                    "entries": {"type": "integer"},
                                    "pending_bytes": {"type": "integer"},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
    "Aggregates": {
        "description": "Aggregates by name, as in a spec.",
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/AggregateSpec"},
    },
    "Move": {
        "type": "object",
        "additionalProperties": False,
        "required": ["shard", "process"],
        "properties": {
            "shard": {"type": "integer", "minimum": 0, "maximum": 4095},
            "process": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        },
    },
    "Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
}
