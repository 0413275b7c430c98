"""The operations that concern a service's windows: create, list and delete them.

Operations are plans (see `plans`), which `Client` and `aio.AsyncClient` perform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sash_client.answers import ServingProcess, ShardSize, Topology, WindowInfo
from sash_client.plans import Ask, Plan
from sash_client.wire import from_info, to_spec
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["created", "deleted", "listed", "moved", "topology"]


def created(spec: Mapping[str, Any] | str) -> Plan[pb.WindowSpec]:
    """Create a window; return its spec. See `Client.create_window`."""
    response = yield Ask("CreateWindow", pb.CreateWindowRequest(spec=to_spec(spec)))
    made: pb.WindowSpec = response.window.spec
    return made


def listed() -> Plan[list[WindowInfo]]:
    """Show all windows."""
    response = yield Ask("ListWindows", pb.ListWindowsRequest())
    return [from_info(window) for window in response.windows]


def deleted(name: str) -> Plan[int]:
    """Delete a window; return how many entries it had."""
    response = yield Ask("DeleteWindow", pb.DeleteWindowRequest(name=name))
    return int(response.entries)


def topology() -> Plan[Topology]:
    """Show the processes of the service, and the shards of each."""
    return topology_of((yield Ask("GetTopology", pb.GetTopologyRequest())))


def moved(shard: int, process: int) -> Plan[Topology]:
    """Have a process take a shard."""
    return topology_of((yield Ask("MoveShard", pb.MoveShardRequest(shard=shard, process=process))))


def topology_of(response: pb.Topology) -> Topology:
    """The answer that a message has."""
    processes = [
        ServingProcess(
            process.number,
            process.up,
            process.grpc_port,
            list(process.shards),
            process.address,
            [ShardSize(size.shard, size.entries, size.pending_bytes) for size in process.sizes],
        )
        for process in response.processes
    ]
    return Topology(response.shards, processes)
