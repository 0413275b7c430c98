"""Where Envoy is, and its configuration: requests are counted by the header x-user, and by their path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ENVOY = Path(__file__).resolve().parents[2] / "build" / "envoy" / "envoy" / "_bin" / "envoy"
"""`make setup` puts it there."""

_TYPE = "type.googleapis.com/envoy.extensions"


def configuration(port: int, upstream_port: int, sash_port: int, token: str) -> dict[str, Any]:
    """Return the configuration of an Envoy that passes on what Sash lets in: to itself, where all is answered."""
    service: dict[str, Any] = {"envoy_grpc": {"cluster_name": "sash"}}
    service["initial_metadata"] = [{"key": "authorization", "value": f"Bearer {token}"}]
    limit = {
        "@type": f"{_TYPE}.filters.http.ratelimit.v3.RateLimit",
        "domain": "shop",
        "failure_mode_deny": True,
        "timeout": "5s",
        "rate_limit_service": {"grpc_service": service, "transport_api_version": "V3"},
    }
    user = {"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}
    path = {"request_headers": {"header_name": ":path", "descriptor_key": "path"}}
    limits = [{"actions": [user]}, {"actions": [path]}]
    protocol = f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"
    http2 = {"@type": protocol, "explicit_http_config": {"http2_protocol_options": {}}}
    options = {protocol.removeprefix("type.googleapis.com/"): http2}
    return {
        "static_resources": {
            "listeners": [
                _listener(port, {"route": {"cluster": "upstream"}}, limits, [{"name": "limit", "typed_config": limit}]),
                _listener(upstream_port, {"direct_response": {"status": 200}}, [], []),
            ],
            "clusters": [
                _cluster("upstream", upstream_port),
                {**_cluster("sash", sash_port), "typed_extension_protocol_options": options},
            ],
        }
    }


def _listener(port: int, route: dict[str, Any], limits: list[Any], filters: list[Any]) -> dict[str, Any]:
    routes = [{"match": {"prefix": "/"}, **route}]
    host = {"name": "all", "domains": ["*"], "routes": routes, "rate_limits": limits}
    router = {"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}}
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [*filters, router],
    }
    return {"address": _address(port), "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}


def _cluster(name: str, port: int) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}]
    return {
        "name": name,
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
