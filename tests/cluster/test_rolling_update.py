"""The pods of deploy/kubernetes/overlays/sharded, each a machine of its own: an update restarts one after the other.

The settings are those of the manifests. What a pod's volumes and secrets would bring, and names in DNS, is given here.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.deployments import Callers, Process, made
from tests.support.namespaces import Machines, machines
from tests.support.redis_servers import BINARIES, redis_server, wait_until
from tests.support.servers import WAIT_S

OVERLAY = Path(__file__).parents[2] / "deploy" / "kubernetes" / "overlays" / "sharded"
STATEFUL = yaml.safe_load((OVERLAY / "statefulset.yaml").read_text())["spec"]
SETTINGS = yaml.safe_load((OVERLAY / "configmap.yaml").read_text())["data"]
PODS = 2
"""Of the replicas: who is left has all shards while one starts."""


@pytest.fixture
def network() -> Iterator[Machines]:
    with machines(PODS) as made:
        yield made


def pod(network: Machines, number: int, redis: str) -> Process:
    settings = {name: value for name, value in SETTINGS.items() if "TLS" not in name}
    (container,) = STATEFUL["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"]} == {"POD_NAME", "SASH_ADDRESS"}
    settings |= {"SASH_ADDRESS": network.address(number), "SASH_HOST": network.address(number), "SASH_INSECURE": "1"}
    ports = ("--grpc-port", "7070", "--rest-port", "7071")
    return Process(redis, "--shards", settings.pop("SASH_SHARDS"), *ports, under=network.on(number), **settings)


def test_an_update_of_all_pods_fails_no_call(network: Machines) -> None:
    with contextlib.ExitStack() as stack:
        bound = (f"bind 127.0.0.1 {network.redis}", "protected-mode no", "appendfsync no")
        redis = stack.enter_context(redis_server(BINARIES["valkey"], *bound))
        url = f"redis://{network.redis}:{redis.port}"
        pods = []

        def started(number: int) -> Process:
            process = pod(network, number, url)
            stack.callback(process.end)
            return process

        def settled() -> bool:
            return all(len([each for each in one.shards().values() if each]) == PODS and one.serves() for one in pods)

        pods += [started(number) for number in range(PODS)]
        wait_until(settled)
        assert {re.sub(r":\d+$", "", each.target) for each in pods} == {network.address(i) for i in range(PODS)}
        made(pods[0])
        with Callers("ipv4:" + ",".join(each.target for each in pods)) as callers:
            callers.more()
            for number in reversed(range(PODS)):  # as the controller of a StatefulSet does
                pods[number].process.send_signal(signal.SIGTERM)
                assert pods[number].process.wait(WAIT_S) == 0
                pods[number] = started(number)
                wait_until(settled)
        assert (callers.failed, callers.perhaps) == ([], {})
        for each in pods:
            assert {key: entries for key, (entries, _) in each.answers().items()} == dict(callers.applied)
