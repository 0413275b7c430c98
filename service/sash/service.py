"""The composition root: the only place that picks a clock, a registry and settings, and wires the parts.

Settings ─▶ Catalogue ─▶ Plane ─┬─▶ RpcServer    :7070
               ▲                └─▶ RestServer   :7071  (and the page)
            Metrics ◀── scrapes       one event loop (uvloop), one thread
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import uvloop
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from sash import ui
from sash.access.build import access_of, certificates_of, check_exposure
from sash.admission import Admission
from sash.connect.app import PREFIX, ConnectApp
from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.limits.memory import MemoryBudget
from sash.limits.places import Places
from sash.otlp.app import PATH as OTLP
from sash.otlp.app import OtlpApp
from sash.otlp.metrics import OtlpMetrics, method_of
from sash.plane import Plane
from sash.prometheus.app import PREFIX as PROMETHEUS
from sash.prometheus.app import PrometheusApp
from sash.prometheus.remote_write import RemoteWrite
from sash.rest.access import METRICS, open_paths, refusal, rights_of
from sash.rest.app import create_app
from sash.rest.entrance import Entrance, Mount
from sash.rest.guards import Guard
from sash.rest.server import RestServer
from sash.rpc.operations import Operations
from sash.rpc.server import RpcServer
from sash.runtime.clock import SystemClock
from sash.runtime.memory import GarbageSearch, give_back, keep_free, keep_together, settle, unsettle
from sash.runtime.metrics import Metrics
from sash.runtime.preparation import RELOAD, budget, prepared, started, told_to_reload
from sash.settings import Settings
from sash.shards.host import Host
from sash.shards.hosted import HostedShards
from sash.shards.layout import Share, check_single, check_standby, is_leased, shards_of_store, store_of
from sash.shards.metrics import MetricsOfAll
from sash.shards.peer_tls import PeerTls
from sash.shards.redis_layout import RedisLayout
from sash.tiers import open_tier
from sash_engine.clock import Clock
from sash_engine.errors import FailedPrecondition, InvalidArgument
from sash_engine.version import engine, version
from sash_wire import traces

if TYPE_CHECKING:
    from sash.envoy.limits import RateLimits
    from sash.shards.leased_host import LeasedHost
    from sash.tiers.redis_link import Pool

_log = logging.getLogger("sash")

_TIDY_EVERY_S = 1.0
_GIVE_BACK_EVERY_S = 15.0
"""Seconds between two times that free memory is given back, where it is not scarce."""
_SWITCH_S = 0.001
"""So long the loop waits for a thread that reads a long body, each time that it goes on. Python's default is 5 ms."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REDIS_TIMEOUT_S = 1.0
_REDIS_CONNECTIONS = 32
"""Most connections to one Redis server at a time, of all shards of a process together."""


class Service:
    """One service: a plane and its two edges on the running event loop.

    Args:
        settings: addresses and limits.
        clock: what latencies are measured with, and windows on wall time go by.
        share: the part of this process, where there are several; None: everything.

    Create, start and stop it on one event loop.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None, share: Share | None = None) -> None:
        self._settings = settings
        check_exposure(settings)
        check_standby(settings)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        metrics = Metrics(registry, version(), engine=engine())
        clock = clock or SystemClock()
        memory = self._memory = budget(settings)
        self._access = access_of(settings, clock)
        self._certificates = certificates_of(settings)
        shards = shards_of_store(settings) if share is None else share.shards
        share = share or Share(0, 1, shards)
        self._shards = shards
        shared = share.processes > 1
        self._storage: Storage | Host | LeasedHost
        figures: Storage | HostedShards
        if shards == 1:
            self._storage = figures = _opened(settings, clock, memory, share, 0)
            self.plane = Plane.of(self._storage, metrics, clock, self._access)
        else:
            opened = partial(_opened, settings, clock, memory, share)
            if is_leased(settings, shards):
                from sash.shards.leased_host import LeasedHost  # brings redis-py, which takes 0.1 s to import
                from sash.tiers.redis_link import Pool

                tls = None if self._certificates is None else PeerTls(self._certificates)
                pool = Pool(settings.data, _REDIS_TIMEOUT_S, _REDIS_CONNECTIONS)
                opened = partial(opened, pool=pool)
                self._storage = LeasedHost(settings, share, opened, metrics, clock, self._access, tls, pool)
            else:
                self._storage = Host(share, opened, metrics, clock, self._access)
            self.plane, figures = self._storage.plane, self._storage.shards
        self._figures = figures
        metrics.watch(figures.kept)
        metrics.watch_ready(self._not_ready)
        metrics.watch_storage(figures.status)
        metrics.watch_memory(memory)
        metrics.watch_watches(self.plane.watches)
        memory.watch("cache", lambda: figures.cache_bytes)
        memory.watch("writes", lambda: figures.pending_bytes)
        memory.watch_windows(lambda: figures.window_bytes)
        collected = None
        if not isinstance(self._storage, Storage) and shared:
            collected = MetricsOfAll(self._storage, registry)
        self._started = asyncio.Event()
        self.taken = asyncio.Event()
        """Set when another service has taken the store over, if this one may then become its standby."""
        is_open = open_paths(settings.public, ui.PATHS)
        turns = self.plane.turns
        http = Admission(self._access, memory, turns, _places(settings))
        rights = rights_of(http, is_open) if http.asks_who_calls else None
        rest = create_app(self.plane, settings, registry, metrics, self._not_ready, rights, collected)
        rest.router.routes.extend(ui.routes(lambda: self.grpc_port))
        points = OtlpMetrics(self.plane, memory, settings.max_entries_per_write, metrics)
        others = [method_of(points)]
        self._rate_limits: RateLimits | None = None
        if settings.rate_limits is not None:
            from sash.envoy import limits  # which most services do without

            self._rate_limits = limits.RateLimits(self.plane, metrics, settings.rate_limits)
            others.append(limits.method_of(self._rate_limits))
        self._rpc = RpcServer(
            self.plane,
            settings,
            metrics,
            memory,
            self._access,
            self._certificates,
            shared,
            routed=shards > 1,
            others=others,
        )
        closing = rest.edge.closing
        operations = Operations(self.plane, settings.max_entries_per_write, closing)
        connect = ConnectApp(operations, metrics, settings.max_body_bytes, memory)
        remote_write = RemoteWrite(self.plane, memory, settings.max_body_bytes, settings.max_entries_per_write)
        otlp = OtlpApp(self.plane, points, metrics, settings.max_body_bytes)
        prometheus = PrometheusApp(self.plane, metrics, clock, remote_write, memory)
        mounts = (
            Mount(
                prefix=PREFIX,
                app=connect,
                refuse=connect.refuse,
                admission=Admission(self._access, memory, turns, _places(settings), closing),
                at_once=connect.at_once,
            ),
            Mount(prefix=PROMETHEUS, app=prometheus, refuse=prometheus.refuse, admission=http),
            Mount(prefix=OTLP, app=otlp, refuse=otlp.refuse, admission=http),
            Mount(
                prefix="",
                app=rest,
                refuse=refusal(metrics),
                admission=http,
                at_once=rest.at_once,
                is_open=is_open,
                of_every_window=METRICS,
            ),
        )
        entrance = Entrance(mounts, Guard(settings), settings.max_body_bytes, metrics, shards == 1)
        context = None if self._certificates is None else self._certificates.context
        self._rest = RestServer(entrance, closing, turns, settings, metrics, memory, context, shared)
        memory.watch("answers", lambda: self._rest.connections.unsent_bytes)

    @property
    def grpc_port(self) -> int:
        """The port that gRPC listens on, once started."""
        return self._rpc.port

    @property
    def own_grpc_port(self) -> int:
        """The port of gRPC that only this process listens on, if it shares the other; 0 where it does not."""
        return self._rpc.own_port

    @property
    def rest_port(self) -> int:
        """The port that REST listens on, once started."""
        return self._rest.port

    async def start(self) -> None:
        """Recover what is stored, listen on both ports, then report to be ready.

        Raises:
            InvalidArgument: an address cannot be listened on, or the tier's is wrong.
            FailedPrecondition: another service has the tier.
            Unavailable: the tier cannot be reached.
            DataLoss: what recovery needs is damaged.
        """
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._storage.stop)
            await self._wait_for_leases()
            await self._storage.start(self._settings.standby)
            if isinstance(self._storage, Storage):
                check_single(self._settings)
            undo.push_async_callback(self._rest.stop, 0)
            await self._rest.start()
            await self._rpc.start()
            if not isinstance(self._storage, Storage):
                self._storage.reachable(self._rpc.own_port or self._rpc.port, self._rest.port)
            undo.pop_all()
        self._started.set()
        self._watch = asyncio.create_task(self._every_second())

    async def _wait_for_leases(self) -> None:
        """A standby of several shards waits for processes that have them by the lease table, too."""
        if not self._settings.standby or self._shards == 1:
            return
        layout, told = RedisLayout(self._settings), False
        while True:
            try:
                await asyncio.to_thread(layout.check_unleased)
            except FailedPrecondition as error:
                if not told:
                    _log.info("standing by: %s", error.message)
                    told = True
                await asyncio.sleep(min(error.retry_after_s or _TIDY_EVERY_S, _TIDY_EVERY_S))
            else:
                return

    async def stop(self, at_once: bool = False) -> None:
        """Report not to be ready, let calls in progress finish, close both ports, bring the tier up to date.

        Args:
            at_once: give calls no time, and leave to the next start what makes it quick: it waits for the store. What
                was acknowledged is stored.
        """
        self._started.clear()
        self._watch.cancel()
        self._rpc.set_ready(False)
        grace_s = 0.0
        if not at_once:
            if not isinstance(self._storage, Storage):
                await self._storage.hand_over()
            await asyncio.sleep(self._settings.shutdown_delay_s)
            grace_s = self._settings.shutdown_grace_s
        await asyncio.gather(self._rpc.stop(grace_s), self._rest.stop(grace_s))
        await self._storage.stop(checkpoint=not at_once)

    def _not_ready(self) -> str | None:
        """Why requests are not welcome; None where they are."""
        if not self._started.is_set():
            return "starting or shutting down"
        return self._storage.problem or self._memory.problem()

    async def _every_second(self) -> None:
        ready, loop = True, asyncio.get_running_loop()
        gave_back_s, search = loop.time(), GarbageSearch(loop.time)

        async def tidy() -> None:
            nonlocal gave_back_s
            self.plane.tidy()
            if self._memory.is_scarce or loop.time() - gave_back_s > _GIVE_BACK_EVERY_S:
                gave_back_s = loop.time()
                await asyncio.to_thread(give_back)

        async def tell_ready() -> None:
            nonlocal ready
            if ready != (self._not_ready() is None):
                ready = not ready
                self._rpc.set_ready(ready)

        async def look_for_others() -> None:
            if self._settings.standby and self._figures.taken:
                self.taken.set()

        async def collect() -> None:
            search.look_if_due(self._memory.is_tight)

        refreshes = [self._access.refresh]
        if self._certificates is not None:
            refreshes.append(self._certificates.refresh)
        if self._rate_limits is not None:
            refreshes.append(self._rate_limits.refresh)
        while True:
            await asyncio.sleep(_TIDY_EVERY_S)
            # Each for itself: a window that cannot be tidied must not keep a token alive.
            for step in (*refreshes, look_for_others, tidy, tell_ready, collect):
                try:
                    await step()
                except Exception:
                    _log.exception("%s failed; it is tried again", step.__qualname__)


def _opened(
    settings: Settings, clock: Clock, memory: MemoryBudget, share: Share, shard: int, pool: Pool | None = None
) -> Storage:
    """The windows of one shard."""
    data, prefix = store_of(settings, share.shards, shard)
    most = settings.data_max_bytes and settings.data_max_bytes // share.shards
    here = len(share.mine)
    return Storage(
        Catalogue(max_windows=settings.max_windows, clock=clock),
        clock,
        open_tier(
            data,
            prefix,
            max_bytes=most,
            lease_s=settings.lease_s,
            replicas=settings.redis_wait_replicas,
            pool=pool,
        ),
        cache_bytes=settings.cache_bytes // here,
        checkpoint_bytes=max(settings.checkpoint_bytes // here, 4096),
        store_entries=settings.store_entries,
        interval_s=settings.commit_interval_ms / 1000,
        memory=memory,
    )


def _places(settings: Settings) -> Places:
    """The places for calls of one edge."""
    return Places(settings.max_concurrent_calls, settings.calls_per_address)


def serve(settings: Settings) -> None:
    """Serve until told to stop (SIGINT, SIGTERM); raises as `Service.start`."""
    settings = prepared(settings)
    with tracing(settings):
        uvloop.run(_serve(settings))


@contextmanager
def tracing(settings: Settings) -> Iterator[None]:
    """Send traces if the settings say so. What is not sent yet is sent at the end."""
    if settings.traces == "off":
        yield
        return
    try:
        provider = traces.export("sash")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise InvalidArgument(
            "SASH_TRACES=otlp needs OpenTelemetry: pip install 'sash[otel]'", field="traces", limit="off"
        ) from None
    try:
        yield
    finally:
        provider.shutdown()


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(0)


async def _serve(settings: Settings) -> None:
    keep_together()
    # A recovery may take minutes, in which the loop stands still; it writes nothing, and may end anywhere.
    for number in _SIGNALS:
        signal.signal(number, _end)
    signal.signal(RELOAD, signal.SIG_IGN)  # what it would read again is being read
    service = Service(settings)
    await service.start()
    asked_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, asked_to_stop.set)
    loop.add_signal_handler(RELOAD, told_to_reload)
    settle()
    keep_free()
    sys.setswitchinterval(_SWITCH_S)
    print(started(settings, service.grpc_port, service.rest_port), flush=True)
    ends = [asyncio.create_task(asked_to_stop.wait()), asyncio.create_task(service.taken.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if service.taken.is_set():
        # Nothing is left to be stored, and what is in memory is out of date: no call may wait for its end.
        _log.critical("another service has taken the store over: this one ends")
        os._exit(1)
    _log.info("shutting down")
    await service.stop()
    _log.info("stopped")
    unsettle()
