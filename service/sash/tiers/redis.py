"""Redis, Valkey, or a cluster of them, as cold tier.

    {sash}:owner      who is the server here, as JSON; expires when nobody renews it (the lease)
    {sash}:fence      "id number": id of the last owner, number of its last commit
    {sash}:k:KEY      a value

The braces make the prefix the hash tag: one Sash server's data lies in one hash slot, so that a commit is one
transaction in a cluster too. A cluster is shared by giving several Sash servers a prefix each.

**The lease warns, the fence protects.** A second server is refused while the lease runs. If the owner was a process of
this machine that is gone, the second server takes over at once. A server that takes over writes its own id to the
fence. Every commit and every read compares the fence with the server's id, in the same step and round trip. So no clock
decides whether a write is allowed. If a lease ran out because this process or Redis stood still, the server takes it
again, if the fence says that no other server took over in between.

Where a lease table says who has which prefix (`leased`), the lease of a prefix is taken and not renewed: the heartbeat
of the process is the lease of all its tiers. The fence is the same.

**Commits are numbered.** Redis may execute a command long after its sender gave up. A commit that arrives behind a
later one is refused because of its number, whoever made the later one: an owner goes on from the number of the one
before it. If the fence is missing, or its number is lower than that of an answered commit, Redis has lost data
(FLUSHALL, a restart without persistence, a fail-over to a replica that was behind). From then on every call fails with
DataLoss.

**One script and not WATCH, MULTI and EXEC**: both are one round trip (WATCH for the next commit can ride along with
this EXEC), but WATCH ties the order of commits to one connection, and a full server refuses MULTI even for deletes.
Time of a commit as a ratio to a bare SET, medians on two shared cores, script / MULTI: 16 KiB 1.1 / 1.3; 1 MiB 1.2 to
1.9 / 0.9 to 1.2; 8 MiB 1.2 to 1.6 / 1.0 to 1.1. The script copies its arguments; most commits are small.

**A full server** (``maxmemory`` without eviction) executes every commit, and answers that it is full: a commit that
deletes must not fail because it also puts a pointer or an image. New entries are refused then (`check_room`). Writes
that had begun, and writes that free space, go beyond ``maxmemory``: a few commits and an image at a time.

What a commit survives depends on the server. With ``appendonly yes`` and ``appendfsync always`` it survives the end of
Redis and of its machine. With ``everysec`` either may cost two seconds: Redis answers before it writes while an earlier
fsync is in progress. Without ``appendonly``, nothing survives. The tier logs a warning in both cases, and notices a
loss, see above. Replicas lag by the writes that are on their way; with `replicas`, each commit is followed by WAITAOF
on the same connection, and is answered when it is on their disks. If it is not in time, the commit is repeated. A user
needs ``EVAL GET SET MGET PTTL UNLINK`` on ``{prefix}:*``, and may have ``INFO``, ``CONFIG GET`` and ``CLUSTER SLOTS``.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sash.tiers.owner import Owner
from sash.tiers.redis_errors import keys_of, not_acquired, says, text_of
from sash.tiers.redis_link import Argument, Link, Pool, Then
from sash.tiers.redis_scripts import ACQUIRE, COMMIT, RENEW
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, OutOfRoom, SashError, Unavailable

_log = logging.getLogger(__name__)

_BYTES_A_SECOND = 1 << 24  # a commit's answer may take a second longer for each 16 MiB: the slowest disk to wait for
_PROBE_S = (0.05, 1.0)  # first and longest pause between two attempts to reach a server that failed
_ASK_MS = 10
_JUMPED = 2
"""Where a lease table says who has a prefix, no lease of it is so many times as long as this process' own."""
_LOOK_S = 0.2  # between two looks whether a server that was full is so still


class RedisTier:
    """A `ColdTier` on a Redis server or cluster.

    After a failure the tier is not `healthy`: calls fail at once with Unavailable, without touching the network, until
    a background thread has reached the server again.

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://`` for TLS, or ``unix://``; any server of a cluster.
            Options as redis-py reads them, such as ``?ssl_ca_certs=/etc/ca.pem``.
        prefix: separates this server's keys from others: 1 to 64 letters, digits and ``_ . : / -``.
        timeout_s: longest wait for the server. A call that moves many bytes may take longer while they keep coming.
        lease_s: how long a server that vanished with its machine keeps other servers out.
        connections: most connections at a time.
        replicas: on how many replicas a commit must be on disk, beside the server's own, before it is answered.
        pool: has the connections, with those of other tiers, and what the server says of its memory; None: they are of
            this tier alone.
        leased: another lease says who has the prefix, see `sash.shards.lease_table`. The one of the tier is not renewed
            then, and nothing is asked of a server that nobody uses.

    Raises:
        InvalidArgument: the URL or the prefix is malformed.
    """

    name = "redis"

    def __init__(
        self,
        url: str,
        prefix: str = "sash",
        *,
        timeout_s: float = 1.0,
        lease_s: float = 10.0,
        connections: int = 8,
        replicas: int = 0,
        pool: Pool | None = None,
        leased: bool = False,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.:/-]{1,64}", prefix):
            raise InvalidArgument("A Redis prefix is 1 to 64 letters, digits and _ . : / -", field="prefix")
        try:
            self._link = Link(url, prefix, timeout_s, connections, pool)
        except ValueError as error:
            raise InvalidArgument(f"The address of Redis is wrong: {error}", field="url") from None
        self._prefix = prefix
        self._fence_key, self._owner_key, self._stem = keys_of(prefix)
        self._lease_s = lease_s
        self._leased = leased
        self._replicas = replicas
        owner = Owner.here()
        self._id, self._token = owner.id.encode(), owner.token()
        self._number = 0  # of the last commit that was sent
        self._answered = 0  # of the last commit that was answered
        self._over: tuple[type[SashError], str] | None = None  # why nothing will ever work again
        self._down: str | None = "not acquired yet"  # why nothing works now
        self._full = False  # as of the last answer to a write
        self._probe_at = 0.0
        self._wake = threading.Event()
        self._keeper: threading.Thread | None = None

    @property
    def healthy(self) -> bool:
        """Whether calls go to the server, as far as is known."""
        return self._over is None and self._down is None

    @property
    def used_bytes(self) -> int | None:
        """Memory of the server, for all its data, as it last said, see `ColdTier`."""
        return self._link.pool.used_bytes

    @property
    def limit_bytes(self) -> int | None:
        """Its maxmemory, if it has one, see `ColdTier`."""
        return self._link.pool.limit_bytes

    def acquire(self) -> None:
        """Become the only server of this prefix, see `ColdTier`."""
        assert self._keeper is None, "acquired before"
        self._admit(acquiring=True)
        try:
            self._link.locate()
            self._take_lease(b"")
            if not self._link.pool.warned:
                self._link.pool.warned = True
                self._warn()
                self._measure()
        except (RedisError, OSError) as error:
            self._link.drop()
            raise not_acquired(error) from error
        self._down = None
        self._keeper = threading.Thread(target=self._keep, name=f"sash-redis-{self._prefix}", daemon=True)
        self._keeper.start()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values by key, see `ColdTier`.

        Raises:
            FailedPrecondition: another server has taken the tier over, and may have written these keys.
            DataLoss: Redis has lost data.
        """
        answered = self._answered
        if not keys:
            self._admit()
            return []
        fence, *values = self._call(lambda: ["MGET", self._fence_key, *(self._stem + key for key in keys)])
        if fence is None:
            self._judge(b"LOST")
        owner, number = fence.split()
        if owner != self._id:
            self._judge(b"TAKEN")
        if int(number) < answered:
            self._judge(b"LOST")
        return list(values)

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Put and delete, all or nothing, see `ColdTier`.

        Raises:
            DataLoss: Redis has lost data; nothing has changed.
        """
        deletes = list(deletes)
        if not puts and not deletes:
            self._admit()
            return
        keys = [self._stem + key for key in (*puts, *deletes)]
        values = list(puts.values())

        def command() -> list[Argument]:
            self._number += 1  # each attempt has its own number, so that it cannot be taken for an earlier one
            numbers = (self._answered, self._number)
            return ["EVAL", COMMIT, 1 + len(keys), self._fence_key, *keys, self._id, *numbers, *values]

        extra_s = sum(map(len, values)) / _BYTES_A_SECOND
        if not self._replicas:
            self._judge(self._call(command, extra_s))
        else:
            # A replica says what it has on disk when it is asked, and else each second. Its first answer is mostly of
            # before the commit, so it is asked again.
            then = Then(["WAITAOF", 1, self._replicas, _ASK_MS], self._is_kept)
            verdict, kept = self._call(command, extra_s, then)
            self._judge(verdict)
            if not self._is_kept(kept):
                raise Unavailable(
                    f"Redis has the commit, and {kept[1]} of the {self._replicas} replicas that shall have it on disk "
                    "have said so in time; it is committed again",
                    field="data",
                    retry_after_s=_PROBE_S[1],
                )
        self._answered = self._number

    def _is_kept(self, told: Sequence[int]) -> bool:
        """Whether enough servers have a commit on disk: the server itself, and so many replicas."""
        return told[0] >= 1 and told[1] >= self._replicas

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Check that Redis is not full, as far as it has said, see `ColdTier`. It does not say how much fits."""
        if self._full and not reserve:
            message = "Redis is full (maxmemory): evict entries, delete windows, or give it more memory"
            raise OutOfRoom(message, field="data", limit="maxmemory")

    def close(self) -> None:
        """Give the lease back, and close all connections, see `ColdTier`."""
        keeper, self._keeper = self._keeper, None
        ours = self.healthy
        self._over = self._over or (FailedPrecondition, "This tier is closed.")
        self._wake.set()
        if keeper is not None:
            keeper.join()
        if ours:
            try:
                self._link.call(lambda: self._renewal(0))
            except (RedisError, OSError, Unavailable) as error:
                _log.warning("The lease of %r on Redis could not be given back: %s", self._prefix, error)
        self._link.drop()

    # Calls

    def _admit(self, *, acquiring: bool = False) -> None:
        if self._over is not None:
            kind, message = self._over
            raise kind(message)
        if self._down is not None and not acquiring:
            raise self._unavailable(self._down)

    def _call(self, command: Callable[[], Sequence[Argument]], extra_s: float = 0.0, then: Then | None = None) -> Any:
        self._admit()
        try:
            return self._link.call(command, extra_s, then)
        except ResponseError as error:
            if not says(error, "MISCONF", "NOREPLICAS"):  # those refuse writes only, so reads go on
                self._open(error)
            raise self._unavailable(text_of(error)) from error
        except (RedisError, OSError) as error:
            self._open(error)
            raise self._unavailable(text_of(error)) from error

    def _unavailable(self, reason: str) -> Unavailable:
        again_s = max(self._probe_at - time.monotonic(), _PROBE_S[0])
        return Unavailable(f"Redis cannot serve this now: {reason}", retry_after_s=again_s)

    def _open(self, error: Exception) -> None:
        """Let calls fail at once, until the keeper has reached the server."""
        if self._down is None:
            _log.warning("Redis is not available for %r: %s", self._prefix, text_of(error))
            self._probe_at = time.monotonic() + _PROBE_S[0]
            self._down = text_of(error)
            self._wake.set()

    def _judge(self, verdict: bytes) -> None:
        """Note whether the server is full; or raise what the fence said, now and from now on."""
        if verdict in (b"DONE", b"FULL"):
            self._full, was_full = verdict == b"FULL", self._full
            if self._full and not was_full:
                self._wake.set()  # to look more often
            return
        if self._over is None:
            if verdict == b"LOST":
                what = "Redis has lost what was stored under {!r}: it was emptied, or went back to an earlier state."
                self._over = DataLoss, what.format(self._prefix)
            else:
                self._over = FailedPrecondition, f"Another server has taken {self._prefix!r} on this Redis over."
            _log.error("%s", self._over[1])
        self._admit()

    # Ownership

    def _take_lease(self, gone: bytes) -> None:
        arguments = (self._id, self._token, int(self._lease_s * 1000), gone)
        held = self._link.call(lambda: ["EVAL", ACQUIRE, 2, self._fence_key, self._owner_key, *arguments])
        if isinstance(held, int):
            self._number = self._answered = held
            return
        token, left_ms = held
        owner = Owner.parse(token)
        if not gone and owner is not None and owner.gone():
            _log.info("Taking %r on Redis over from %s, which is gone", self._prefix, owner)
            self._take_lease(token)
            return
        if not gone and self._leased and left_ms > _JUMPED * self._lease_s * 1000:
            _log.warning(
                "The lease of %s on %r ends in %d s: Redis' clock was set back", owner, self._prefix, left_ms / 1000
            )
            self._take_lease(token)
            return
        left_s = max(left_ms, 0) / 1000
        raise FailedPrecondition(
            f"Another server has {self._prefix!r} on this Redis: {owner or 'one that does not say who it is'}; "
            f"if it is gone, its lease runs out in {left_s:.1f} s.",
            field="prefix",
            retry_after_s=left_s,
        )

    def _renewal(self, lease_ms: int) -> list[Argument]:
        keys = (self._fence_key, self._owner_key)
        return ["EVAL", RENEW, 2, *keys, self._id, self._answered, self._token, lease_ms]

    def _keep(self) -> None:
        """Renew the lease, and reach the server again after a failure, until the tier is closed."""
        pause_s = _PROBE_S[0]
        while self._over is None:
            renew_s = None if self._leased else self._lease_s / 3
            if self._full:
                renew_s = min(self._lease_s / 3, _LOOK_S)
            self._wake.wait(renew_s if self._down is None else self._probe_at - time.monotonic())
            self._wake.clear()
            if self._over is not None or (self._down is not None and time.monotonic() < self._probe_at):
                continue
            try:
                self._probe()
                pause_s = _PROBE_S[0]
            except SashError:
                pass  # _judge has logged it, or all connections are busy: then the server works
            except Exception as error:  # in any case the server must be tried again
                self._open(error)
                self._down = text_of(error)
                self._probe_at = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
                pause_s = min(2 * pause_s, _PROBE_S[1])

    def _probe(self) -> None:
        if self._down is not None:
            self._link.drop()
            self._link.locate()
        try:
            self._judge(self._link.call(lambda: self._renewal(int(self._lease_s * 1000))))
        except ResponseError as error:
            if not says(error, "MISCONF", "NOREPLICAS"):
                raise
        if self._down is not None:
            self._down = None
            _log.warning("Redis is available again for %r", self._prefix)
        self._measure()

    def _measure(self) -> None:
        """Note how full the server is, if it says so."""
        self._link.pool.measure(self._told("INFO", "memory").decode(errors="replace"))

    def _warn(self) -> None:
        """Warn if the server is not set up to keep its data."""
        info = self._told("INFO").decode(errors="replace")
        if "aof_enabled:0" in info:
            _log.warning("Redis has no append-only file: what it acknowledges is lost when it stops (appendonly no)")
        elif self._told("CONFIG", "GET", "appendfsync") in ([b"appendfsync", b"everysec"], [b"appendfsync", b"no"]):
            _log.warning("Redis may lose what it acknowledged last when it is killed: set appendfsync always")
        if "maxmemory_policy:allkeys" in info and "maxmemory:0\r" not in info:
            _log.warning("Redis drops any key when it is full (maxmemory-policy allkeys-…): set noeviction")

    def _told(self, *question: str) -> Any:
        try:
            return self._link.call(lambda: question)
        except (RedisError, OSError):
            return b""  # not every user may ask; and if the server is gone again, the keeper will notice
